"""Turns the rows found for a message or an identity into plain records to show.

Times are ISO 8601 in UTC with milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from eventstore.log.events import TOPIC_BY_TYPE, type_name
from eventstore.log.streams import erased_name
from eventstore.parquet.audit.lookup import FoundRow, Lookup, Row
from eventstore.parquet.schema import FILLING, SCHEMA, SIZE

Record: TypeAlias = dict[str, Any]
FROM_QUEUED: Final = ("identity", "protocol", "sender_did", "recipient_key", SIZE)
"""The fields that the first event of a message has."""
_MS: Final = 1_000
_COUNTED_BY: Final = ("protocol", "command", "reason", "sender_did")
_LIFE: Final = ("message-queued", "messages-delivered", "messages-removed")
"""The events of a message; the last word of each says what happened."""
_TRAFFIC: Final = (*_LIFE, "event-saved", "public-event-published")
"""Events that are counted by day; the last word of each says what was done."""
_ELSEWHERE: Final = {
    *("messages-delivered", "messages-removed", "event-tags-updated", "public-events-deleted"),
    *("key-claimed", "key-released", "invitation-used", "refusals-counted", "batch-sealed"),
}
"""Events that are counted by day, or are in the stream of a key, an invitation or an edge."""
_OF_ITS_STREAM: Final = tuple(
    name for kind in TOPIC_BY_TYPE if (name := type_name(kind)) not in {*_TRAFFIC, *_ELSEWHERE}
)
_WHOSE: Final = {"did", "owner_did", "by_did", "digest", "claims"}
_IN_HISTORY: Final = {*_OF_ITS_STREAM, "key-claimed", "key-released", "invitation-used"}
_DETAILS: Final = tuple(
    name
    for name in SCHEMA.names
    if name not in _WHOSE
    and any(
        name in (*filling.columns, *([SIZE] if filling.content else []))
        for kind, filling in FILLING.items()
        if type_name(kind) in _IN_HISTORY
    )
)
"""The columns with details of events; an audit shows those that an event has."""


class IdentityRecords(NamedTuple):
    """The records to show of an identity."""

    history: list[Record]
    """The identity's events, except those of messages and saved events; newest first."""
    traffic: list[Record]
    """What it sent, received, fetched and kept, by day (UTC), newest first."""
    refused: list[Record]
    """Its refused commands; most refusals first."""


def message_records(lookups: Sequence[Lookup], message_id: str) -> list[Record]:
    """The events of one message, in order, each with the seal that proves it.

    Args:
        lookups: one for each database of the log.
        message_id: the id of the message.

    Raises:
        ExportDamaged: a file, which it names, is not as it was signed.
        ExportUnavailable: the place cannot be read now.
    """
    events = [
        _event(found)
        for lookup in lookups
        for found in lookup.of_message(message_id)
        if found.row["type"] in _LIFE
    ]
    # The later events say little of a message whose first ones were pruned.
    return events if events and events[0]["event"] == "queued" else []


def _event(found: FoundRow) -> Record:
    row, seal, _ = found
    return {
        **found.place(),
        "recorded_at": time_text(row["recorded_at"]),
        "event": _last_word(row["type"]),
        "by": row.get("channel") or row.get("reason"),
        "version": row["version"],
        **{name: row.get(name) for name in FROM_QUEUED},
        "seal_partition": row["shard"],
        "seal_position": seal.position if seal else None,
        "seal_version": seal.version if seal else None,
        "seal_digest": seal.digest.hex() if seal else None,
    }


def identity_records(lookups: Sequence[Lookup], did: str) -> IdentityRecords:
    """The records of an identity, also of one whose name was erased.

    Args and errors as ``message_records``.
    """
    names = {did, erased_name(did)}
    history: list[FoundRow] = []
    claimed: set[str] = set()
    traffic, refused = _Traffic(names), _Refusals(names)
    for found in chain.from_iterable(lookup.of_identities(names) for lookup in lookups):
        row = found.row
        if row["type"] == "key-claimed" and row.get("owner_did") in names:
            claimed.add(row["identity"])
        if _is_history(row, names):
            history.append(found)
        traffic.add(row)
        refused.add(row)
    keys = chain.from_iterable(lookup.of_identities(claimed) for lookup in lookups if claimed)
    history += _of_keys(keys, names)
    return IdentityRecords(
        [_happened(one) for one in sorted(history, key=_order, reverse=True)],
        traffic.records(),
        refused.records(),
    )


def _order(found: FoundRow) -> tuple[Any, ...]:
    position = found.row["position"]
    return (position,) if found.database is None else (found.row["recorded_at"], position)


def _is_history(row: Row, names: Collection[str]) -> bool:
    kind, is_by = row["type"], row.get("by_did") in names
    if kind in _OF_ITS_STREAM:
        return is_by or row["identity"] in names
    return is_by and kind == "invitation-used"


def _of_keys(keys: Iterable[FoundRow], names: Collection[str]) -> Iterator[FoundRow]:
    """The identity's claims of keys, and the releases of these keys, which name no owner."""
    owners: dict[str, str] = {}
    for found in keys:  # one database has all events of a key, in order
        row = found.row
        if row["type"] == "key-claimed":
            owners[row["identity"]] = row["owner_did"]
        elif row["type"] != "key-released":
            continue
        if owners.get(row["identity"]) in names:
            yield found


def _happened(found: FoundRow) -> Record:
    row = found.row
    return {
        **found.place(),
        "recorded_at": time_text(row["recorded_at"]),
        "type": row["type"],
        "version": row["version"],
        "identity": row["identity"],
        "details": {name: row[name] for name in _DETAILS if row.get(name) is not None},
    }


class _Traffic:
    """Counts what an identity sent, received, fetched and kept, by day."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._counts: dict[tuple[str, str, str], int] = defaultdict(int)
        self._sizes: dict[tuple[str, str, str], int | None] = {}

    def add(self, row: Row) -> None:
        if row["type"] not in _TRAFFIC:
            return
        day = row["recorded_at"].astimezone(UTC).date().isoformat()
        by = row.get("protocol") or row.get("channel") or row.get("reason") or ""
        own = [_last_word(row["type"])] if row["identity"] in self._names else []
        is_sent = row["type"] == "message-queued" and row.get("sender_did") in self._names
        ids, size = row.get("message_ids"), row.get(SIZE)
        for what in [*own, *(["sent"] if is_sent else [])]:
            key = day, what, by
            self._counts[key] += 1 if ids is None else len(ids)
            known = [one for one in (self._sizes.get(key), size) if one is not None]
            self._sizes[key] = sum(known) if known else None

    def records(self) -> list[Record]:
        counts = self._counts
        order = sorted(
            sorted(counts, key=lambda key: key[1:]), key=lambda key: key[0], reverse=True
        )
        return [
            {"day": k[0], "what": k[1], "by": k[2], "count": counts[k], SIZE: self._sizes[k]}
            for k in order
        ]


class _Refusals:
    """Counts the refused commands of an identity."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._found: dict[tuple[str, ...], Record] = {}
        self._edges: dict[tuple[str, ...], set[str]] = defaultdict(set)

    def add(self, row: Row) -> None:
        for one in row.get("refusals") or ():
            if one["sender_did"] not in self._names:
                continue
            key = tuple(one[name] for name in _COUNTED_BY)
            first, last = one["first_at"], one["last_at"]
            before = self._found.get(key, {"count": 0, "first_at": first, "last_at": last})
            self._edges[key].add(row["edge"])
            self._found[key] = dict(zip(_COUNTED_BY, key, strict=True)) | {
                "count": before["count"] + one["count"],
                "first_at": min(before["first_at"], first),
                "last_at": max(before["last_at"], last),
                "edges": len(self._edges[key]),
            }

    def records(self) -> list[Record]:
        found = self._found
        order = sorted(found, key=lambda key: (-found[key]["count"], key))
        return [
            found[key] | {name: time_text(found[key][name]) for name in ("first_at", "last_at")}
            for key in order
        ]


def _last_word(kind: str) -> str:
    return kind.rpartition("-")[2]


def time_text(at: datetime) -> str:
    """A time as text to show."""
    text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def message_summary(events: Sequence[Record], at_ms: int) -> Record:
    """Summarise the life of a message; ``waited_s`` ends at its removal, or at ``at_ms``.

    Clocks may step back in between: no wait is shorter than none.
    """
    queued, last = events[0], events[-1]
    queued_at = datetime.fromisoformat(queued["recorded_at"])
    is_gone = last["event"] == "removed"
    until = (
        datetime.fromisoformat(last["recorded_at"])
        if is_gone
        else datetime.fromtimestamp(at_ms / _MS, UTC)
    )
    return {
        **{name: queued[name] for name in FROM_QUEUED},
        "state": f"removed: {last['by']}" if is_gone else "waits",
        "deliveries": sum(event["event"] == "delivered" for event in events),
        "waited_s": max(0.0, (until - queued_at).total_seconds()),
    }
