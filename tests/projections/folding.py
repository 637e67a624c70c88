"""The tables as the real core and the real read models say, by folding the log in Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.state_rows import TABLE_OF, TABLES, state_rows
from actors.host import owned_partition
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog, PageBounds, PublicEventsFilter, SavedEventsFilter
from eventstore.log.events import (
    AccountExpired,
    AccountRotated,
    BatchSealed,
    ConnectionEstablished,
    ContractRequested,
    ContractStored,
    Event,
    EventSaved,
    EventTagsUpdated,
    IdentityErased,
    IdentityErasureBegun,
    IdentityRegistered,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    MediationGranted,
    MessageExpirySet,
    MessageQueued,
    MessagesDelivered,
    PublicEventPublished,
    PushDeviceSet,
    QueuePolicySet,
    SpeakerNamed,
)
from eventstore.log.faults import Fault, Finding
from eventstore.log.streams import is_erased_name, partition_stream, stream_of
from eventstore.log.verify import Summary, verify
from eventstore.parquet.columns import identity_of
from tests.histories import LIMITS

Rows = set[tuple[Any, ...]]
Described = defaultdict[str, list[dict[str, Any]]]
_ALL: Final = 10_000
_LATER_MS: Final = 4_000_000_000_000


@dataclass(frozen=True)
class Stored:
    """One event with its place."""

    stream: bytes
    identity: str
    version: int
    position: int
    event: Event

    @property
    def place(self) -> tuple[Any, ...]:
        return (self.stream, self.identity, self.version, self.position, when(self.event.at_ms))


def when(at_ms: int) -> datetime | None:
    """A time as Spark hands it out; 0 is never."""
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms else None


def stored_events(log: EventLog) -> Iterator[Stored]:
    """Every row in the order of the log; the identity of a seal is its partition."""
    identities: dict[bytes, str] = {}
    rows = log.read_log(limit=1_000_000)
    events = [decode(row.topic, row.state) for row in rows]
    streams: list[bytes] = [row.originator_id.bytes for row in rows]  # type: ignore[union-attr]
    for stream, event in zip(streams, events, strict=True):
        named = event.partition if isinstance(event, BatchSealed) else identity_of(event, stream)
        # Who was erased and has come back has its name in a later event.
        if named and identities.get(stream, "erased:").startswith("erased:"):
            identities[stream] = named
    for row, stream, event in zip(rows, streams, events, strict=True):
        yield Stored(stream, identities[stream], row.originator_version, row.id, event)


def fold(log: EventLog) -> dict[str, Rows]:
    """The rows of every table."""
    streams: dict[bytes, list[Stored]] = {}
    seals: list[Stored] = []
    for each in stored_events(log):
        if isinstance(each.event, BatchSealed):
            seals.append(each)
        else:
            streams.setdefault(each.stream, []).append(each)
    tables: dict[str, Rows] = {}
    for stored in streams.values():
        for name, rows in _of_stream(log, stored):
            tables.setdefault(name, set()).update(rows)
    erased = {stream for stream, stored in streams.items() if _is_erased(stored)}
    tables = {name: {_unnamed(row, erased) for row in rows} for name, rows in tables.items()}
    every = [e for stored in streams.values() for e in stored] + seals
    now_ms = max((e.event.at_ms for e in every), default=0)
    return tables | _of_seals(log, seals, now_ms)


def _is_erased(stored: list[Stored]) -> bool:
    """Was the identity erased, and has not come back, nor speaks for an account again?"""
    said = (IdentityErased, IdentityRegistered, ConnectionEstablished, SpeakerNamed)
    events = [e.event for e in stored if isinstance(e.event, said)]
    account = [e.account_did for e in events[-1:] if isinstance(e, SpeakerNamed)]
    last = [e for e in events if not isinstance(e, SpeakerNamed)][-1:]
    is_erased = any(isinstance(event, IdentityErased) for event in last)
    return is_erased and not any(did and not is_erased_name(did) for did in account)


def _unnamed(row: tuple[Any, ...], erased: set[bytes]) -> tuple[Any, ...]:
    return tuple("erased" if isinstance(v, str) and _is_unnamed(v, erased) else v for v in row)


def _is_unnamed(name: str, erased: set[bytes]) -> bool:
    return name.startswith("erased:") or (name.startswith("did:") and stream_of(name) in erased)


def _of_stream(log: EventLog, stored: list[Stored]) -> Iterable[tuple[str, Iterable[Any]]]:
    state = Identity()
    for each in stored:
        evolve(state, each.event)
        assert state.version == each.version
    at = {each.version: each for each in stored}
    known = described(state)
    (figures,) = known["identities"]
    yield "identities", [(
        *stored[-1].place, figures["saved_events"], when(figures["added_at"]),
        when(figures["delivered_at"]), when(figures["removed_at"]), figures["refusing"],
        figures["dedicated"], figures["erased"],
    )]  # fmt: skip
    kept = _since_erasure(stored)
    registered = [e for e in kept if isinstance(e.event, IdentityRegistered)]
    for row in known["registrations"]:
        yield "registrations", [(
            *registered[-1].place, row["expires_at_s"], len(registered),
            when(registered[0].event.at_ms),
        )]  # fmt: skip
    yield from _of_contracts(known, at)
    yield from _of_queue(known, stored, at)
    yield from _of_agent(known, kept)
    for row in known["key_owners"]:
        claimed = at[row["version"]]
        assert isinstance(claimed.event, KeyClaimed)
        yield "key_owners", [(*claimed.place, claimed.event.key, row["owner_did"])]
    for row in known["invitations"]:
        (used,) = stored
        assert isinstance(used.event, InvitationUsed)
        yield "invitations", [(*used.place, used.event.invitation_id, row["by_did"])]
    yield from _of_read_models(log, stored, state)


def _since_erasure(stored: list[Stored]) -> list[Stored]:
    """The events of a stream since the last erasure of its identity began, all if none did."""
    begun = [e.version for e in stored if isinstance(e.event, IdentityErasureBegun)]
    return [e for e in stored if not begun or e.version > begun[-1]]


def described(state: Identity) -> Described:
    """The rows of the state by table, each with the names of its columns, places in order."""
    known: Described = defaultdict(list)
    for row in state_rows(state):
        table = TABLE_OF[type(row)]
        known[table].append(dict(zip(TABLES[table]._fields, row, strict=True)))
    for found in known.values():
        places = [row["place"] for row in found if "place" in row]
        assert places == list(range(len(places)))
    return known


def _of_contracts(known: Described, at: dict[int, Stored]) -> Iterable[tuple[str, Iterable[Any]]]:
    contracts = []
    for row in known["contracts"]:
        event = at[row["version"]].event
        assert isinstance(event, ContractStored)
        contracts.append((
            *at[row["version"]].place, row["contract_id"], row["requestor_did"],
            row["recipient_did"], row["expires_at_s"], row["digest"], len(event.contract),
        ))  # fmt: skip
    yield "contracts", contracts
    requests = []
    for row in known["contract_requests"]:
        event = at[row["version"]].event
        assert isinstance(event, ContractRequested)
        size_bytes = event.encrypted_contract_request.size_bytes
        place = at[row["version"]].place
        requests.append((*place, row["request_id"], row["sender_did"], size_bytes))
    yield "contract_requests", requests


def _of_queue(
    known: Described, stored: list[Stored], at: dict[int, Stored]
) -> Iterable[tuple[str, Iterable[Any]]]:
    deliveries: Counter[str] = Counter()
    delivered_at: dict[str, int] = {}
    for each in stored:
        if isinstance(each.event, MessagesDelivered):
            deliveries.update(each.event.message_ids)
            delivered_at |= dict.fromkeys(each.event.message_ids, each.event.at_ms)
    queue = []
    for row in known["queues"]:
        message_id = row["message_id"]
        event = at[row["version"]].event
        assert isinstance(event, MessageQueued)
        assert (row["protocol"], row["recorded_at"]) == (event.protocol, event.at_ms)
        queue.append((
            *at[row["version"]].place, message_id, row["protocol"], row["sender_did"],
            row["recipient_key"], row["size_bytes"], deliveries[message_id],
            when(delivered_at.get(message_id, 0)),
        ))  # fmt: skip
    assert [row[2] for row in queue] == sorted(row[2] for row in queue)
    yield "queues", queue
    for row in known["message_expiries"]:
        timed = [
            e
            for e in stored
            if isinstance(e.event, MessageExpirySet) and row["message_id"] in e.event.message_ids
        ]
        yield "message_expiries", [(*timed[-1].place, *row.values())]
    for row in known["queue_policies"]:
        set_last = [e for e in stored if isinstance(e.event, QueuePolicySet)][-1]
        yield "queue_policies", [(*set_last.place, *row.values())]


def _of_agent(  # noqa: C901 - one loop per table
    known: Described, stored: list[Stored]
) -> Iterable[tuple[str, Iterable[Any]]]:
    for row in known["push_devices"]:
        device = [e for e in stored if isinstance(e.event, PushDeviceSet)][-1]
        yield "push_devices", [(*device.place, *row.values())]
    for row in known["connections"]:
        said = [e for e in stored if isinstance(e.event, ConnectionEstablished)][-1]
        row["routing_keys"] = tuple(row["routing_keys"])
        yield "connections", [(*said.place, *row.values())]
    if known["mediation"]:
        granted = [e for e in stored if isinstance(e.event, MediationGranted)]
        yield "mediation", [granted[-1].place]
    for row in known["speakers"]:
        rotated = [e for e in stored if isinstance(e.event, AccountRotated)][-1]
        yield "speakers", [(*rotated.place, row["speaker_did"])]
    for row in known["account_names"]:
        (given,) = [e for e in stored if isinstance(e.event, SpeakerNamed)]
        yield "account_names", [(*given.place, row["account_did"])]
    added: dict[str, tuple[Stored, int]] = {}
    for each in stored:
        if isinstance(each.event, AccountExpired):
            added.clear()
        if isinstance(each.event, KeylistUpdated):
            for key in each.event.removed:
                added.pop(key, None)
            for ordinal, key in enumerate(each.event.added):
                added.setdefault(key, (each, ordinal))
    places = [(each.version, ordinal) for each, ordinal in added.values()]
    assert list(added) == [row["key"] for row in known["keylists"]]
    assert places == sorted(places)
    yield (
        "keylists",
        [
            (*added[row["key"]][0].place, row["key"], added[row["key"]][1], row["claim"])
            for row in known["keylists"]
        ],
    )
    assert not (known["key_owners"] and isinstance(stored[-1].event, KeyReleased))


def _of_read_models(
    log: EventLog, stored: list[Stored], state: Identity
) -> Iterable[tuple[str, Iterable[Any]]]:
    owner = UUID(bytes=stored[0].stream)
    shown = log.query_saved_events(owner, SavedEventsFilter(), PageBounds(0, _ALL))
    fresh = log.query_saved_events(
        owner, SavedEventsFilter(unprocessed_only=True), PageBounds(0, _ALL)
    )
    unprocessed = {event.event_id for event in fresh.events}
    since = _since_erasure(stored)
    saved = {e.event.event_id: e for e in since if isinstance(e.event, EventSaved)}
    # What is being erased leaves the read model in steps, and the tables at once.
    events = [] if state.erasing else shown.events
    assert len(shown.events) == shown.total
    assert len(events) == len(saved) == state.saved_events
    rows = []
    for page in events:
        first = saved[page.event_id]
        event = first.event
        assert isinstance(event, EventSaved)
        revisions = [
            e.version
            for e in stored
            if isinstance(e.event, EventTagsUpdated)
            and e.event.event_id == page.event_id
            and e.version > first.version
        ]
        rows.append((
            *first.place, page.event_id, event.sender_did, event.recipient_did,
            event.contract_id, float(page.timestamp_s), len(page.payload.encode()),
            tuple(page.encrypted_tags), page.event_id not in unprocessed, max(revisions, default=0),
        ))  # fmt: skip
    yield "saved_events", rows
    published = {e.event.event_id: e for e in stored if isinstance(e.event, PublicEventPublished)}
    public = log.query_public_events(owner, PublicEventsFilter(), PageBounds(0, _ALL))
    # One that was withdrawn after these rows has no content to be shown.
    assert {event.event_id for event in public.events} <= set(state.public_events)
    assert public.total == len(state.public_events)
    rows = []
    for event_id in state.public_events:
        event = published[event_id].event
        assert isinstance(event, PublicEventPublished)
        rows.append((
            *published[event_id].place, event_id, event.channel_id, tuple(event.tags),
            float(event.timestamp_s), event.event.size_bytes,
        ))  # fmt: skip
    yield "public_events", rows


def _of_seals(log: EventLog, seals: list[Stored], now_ms: int) -> dict[str, Rows]:
    """Nonces as a host would load them, heads as the check of the chain finds them."""
    *findings, summary = verify(log)
    # In the beginning of a log contents are gone that a later row erased.
    assert {f.fault for f in findings if isinstance(f, Finding)} <= {Fault.MISSING_CONTENT}
    assert isinstance(summary, Summary)
    nonces: Rows = set()
    heads: Rows = set()
    for name, head in summary.heads.items():
        window_ms = LIMITS.timestamp_window_ms
        loaded = owned_partition.load(log, name, now_ms=_LATER_MS, window_ms=window_ms)
        known = {
            joined[i : i + 16]
            for joined in loaded.nonces.packed().values()
            for i in range(0, len(joined), 16)
        }
        own = [s for s in seals if s.stream == partition_stream(name).bytes]
        expiry: dict[bytes, int] = {}
        took = covered = 0
        for each in own:
            assert isinstance(each.event, BatchSealed)
            covered += each.event.rows
            for start in range(0, len(each.event.nonces), 24):
                packed = each.event.nonces[start : start + 24]
                took += 1
                expiry[packed[:16]] = max(
                    expiry.get(packed[:16], 0), int.from_bytes(packed[16:], "big")
                )
        in_force = {key for key, until_ms in expiry.items() if until_ms >= now_ms}
        assert in_force <= known <= set(expiry)
        nonces |= {(name, key, when(expiry[key])) for key in in_force}
        last = own[-1]
        assert isinstance(last.event, BatchSealed)
        heads.add((
            name, head.version, last.position, when(last.event.at_ms), last.event.epoch,
            head.digest, len(own), took, covered,
        ))  # fmt: skip
    return {"nonces": nonces, "seals": heads}
