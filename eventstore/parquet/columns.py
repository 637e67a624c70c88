"""Rows of the log as Arrow columns: decoded by type in bulk, placed by column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from eventstore import events as e
from eventstore.codec import decode
from eventstore.events import TOPIC_BY_TYPE, BatchSealed, Event
from eventstore.log import LogRow
from eventstore.parquet.schema import SCHEMA

SEAL_TOPIC: Final = TOPIC_BY_TYPE[BatchSealed]
TYPE_BY_TOPIC: Final = {topic: kind for kind, topic in TOPIC_BY_TYPE.items()}

Identities: TypeAlias = Callable[[Collection[bytes]], Mapping[bytes, str | None]]
"""The identity of each of these streams, None where it is not known."""

_INT64_MAX: Final = 2**63 - 1
_MS: Final = 1_000
_OF_THE_ROW: Final = {"at_ms", "command"}
_RENAMED: Final[Mapping[tuple[type[Event], str], str]] = {
    (e.ConnectionEstablished, "protocol"): "handshake",
    (e.KeylistUpdated, "added"): "keys_added",
    (e.KeylistUpdated, "removed"): "keys_removed",
    (e.EventSaved, "encrypted_tags"): "tags",
    (e.EventTagsUpdated, "encrypted_tags"): "tags",
    (e.RefusalsCounted, "since_ms"): "since",
    (e.RefusalsCounted, "until_ms"): "until",
    (e.BatchSealed, "rows"): "sealed_rows",
}
CONTENT: Final[Mapping[type[Event], str]] = {
    e.IdentityRegistered: "contract",
    e.ContractStored: "contract",
    e.ContractRequested: "encrypted_contract_request",
    e.MessageQueued: "payload",
    e.EventSaved: "payload",
    e.PublicEventPublished: "event",
}
"""The field whose size is ``size_bytes`` and that has no column of its own."""
IN_STATE_ALONE: Final = {
    (e.ContractRequested, "requestor_ephemeral_public_key"),
    (e.PublicEventPublished, "event_signature"),
}


def _microseconds(at_ms: int) -> int:
    return min(at_ms, _INT64_MAX // _MS) * _MS


def _refusals(refusals: Sequence[e.RefusedCommands]) -> list[dict[str, Any]]:
    return [
        {
            "protocol": refused.protocol,
            "command": refused.command,
            "reason": refused.reason,
            "sender_did": refused.sender_did,
            "count": refused.count,
            "first_at": _microseconds(refused.first_ms),
            "last_at": _microseconds(refused.last_ms),
        }
        for refused in refusals
    ]


_CONVERTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "since": _microseconds,
    "until": _microseconds,
    "refusals": _refusals,
}
"""Columns that hold a field in another form."""


def columns_of(kind: type[Event]) -> dict[str, str]:
    """The columns that an event type fills, each with the field that it holds."""
    return {
        _RENAMED.get((kind, field), field): field
        for field in kind.__struct_fields__
        if field not in _OF_THE_ROW
        and field != CONTENT.get(kind)
        and (kind, field) not in IN_STATE_ALONE
    }


_COLUMNS: Final = {kind: columns_of(kind) for kind in TOPIC_BY_TYPE}
_DECODE: Final = {
    topic: msgspec.msgpack.Decoder(kind).decode for kind, topic in TOPIC_BY_TYPE.items()
}


def to_table(rows: Sequence[LogRow], identities: Identities) -> pa.Table:
    """The rows as a table with every column of the schema but ``shard``, which only a seal tells.

    Raises:
        UnknownTopic, CorruptRow: a row is of no type that this release knows, or does not decode.
        LogUnavailable: the identity of a stream had to be read, and could not be.
    """
    streams = [row.stream for row in rows]
    topics = [row.topic for row in rows]
    states = [row.state for row in rows]
    typed = event_columns(topics, states)
    names = identities({stream for stream, topic in zip(streams, topics, strict=True)
                        if topic != SEAL_TOPIC})  # fmt: skip
    kinds = {topic: topic.rpartition(".") for topic in set(topics)}
    typed |= {
        "position": [row.position for row in rows],
        "stream": streams,
        "identity": list(map(names.get, streams)),
        "version": [row.version for row in rows],
        "type": [kinds[topic][0] for topic in topics],
        "type_version": [int(kinds[topic][2]) for topic in topics],
        "state": states,
    }
    fields = [field for field in SCHEMA if field.name != "shard"]
    arrays = [to_array(typed.get(field.name), field.type, len(rows)) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, SCHEMA.metadata))


def event_columns(topics: Sequence[str], states: Sequence[bytes]) -> dict[str, list[Any]]:
    """The columns that the events of rows fill: time, command and those of their types.

    Raises:
        UnknownTopic, CorruptRow: a row is of no type that this release knows, or does not decode.
    """
    places: dict[str, list[int]] = {}
    for index, topic in enumerate(topics):
        places.setdefault(topic, []).append(index)
    times: list[Any] = [0] * len(topics)
    commands: list[Any] = [b""] * len(topics)
    typed: dict[str, list[Any]] = {}
    for topic, indices in places.items():
        decoded = _decoded(topic, [states[index] for index in indices])
        for index, event in zip(indices, decoded, strict=True):
            times[index] = event.at_ms * _MS
            commands[index] = event.command
        for column, values in _fields(TYPE_BY_TOPIC[topic], decoded):
            placed = typed.setdefault(column, [None] * len(topics))
            for index, value in zip(indices, values, strict=True):
                placed[index] = value
    return typed | {"recorded_at": times, "command": commands}


def with_shards(table: pa.Table, sections: Iterable[tuple[str, int]]) -> pa.Table:
    """The table with its ``shard`` column: each partition for the number of rows it sealed."""
    shards = [pa.repeat(pa.scalar(partition, pa.string()), rows) for partition, rows in sections]
    index = SCHEMA.get_field_index("shard")
    return table.add_column(index, SCHEMA.field(index), pa.concat_arrays(shards))


def identity_of(event: Event) -> str | None:
    """The identity that the first event of a stream names, None if it names none."""
    match event:
        case e.IdentityRegistered(did=did) | e.ConnectionEstablished(did=did):
            return did
        case e.KeyClaimed(key=key):
            return f"key:{key}"
        case e.InvitationUsed(invitation_id=invitation_id):
            return f"invitation:{invitation_id}"
        case e.RefusalsCounted(edge=edge):
            return f"edge:{edge}"
        case _:
            return None


def _decoded(topic: str, states: Sequence[bytes]) -> list[Any]:
    try:
        return list(map(_DECODE[topic], states))
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        # Again, one by one and with the errors of the log.
        return [decode(topic, state) for state in states]


def _fields(kind: type[Event], decoded: Sequence[Any]) -> Iterable[tuple[str, Iterable[Any]]]:
    for column, field in _COLUMNS[kind].items():
        values = map(attrgetter(field), decoded)
        convert = _CONVERTED.get(column)
        yield column, values if convert is None else map(convert, values)
    if content := CONTENT.get(kind):
        yield "size_bytes", map(_size_bytes, map(attrgetter(content), decoded))


def _size_bytes(content: bytes | str) -> int:
    return len(content.encode() if isinstance(content, str) else content)


def to_array(values: list[Any] | None, kind: pa.DataType, rows: int) -> pa.Array:
    """The values of a column as Arrow has them; only nulls if there are none."""
    if values is None:
        return pa.nulls(rows, kind)
    if pa.types.is_floating(kind):
        values = [None if value is None else float(value) for value in values]
    try:
        return pa.array(values, kind)
    except OverflowError:
        return pa.array([value if value is None else _saturated(value) for value in values], kind)


def _saturated(value: int) -> int:
    return max(-_INT64_MAX - 1, min(value, _INT64_MAX))
