"""Converts rows of the log to Arrow columns: decodes in bulk by type, and places by column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias, get_type_hints

import msgspec
import pyarrow as pa

from eventstore.log.codec import decode_rows
from eventstore.log.content import size_of, with_content
from eventstore.log.event_declaration import NamesStream
from eventstore.log.event_log import LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    TOPIC_BY_TYPE,
    TYPE_BY_TOPIC,
    Event,
    IdentityErased,
)
from eventstore.log.streams import ERASED
from eventstore.parquet.schema import FILLING, SCHEMA, SIZE, TIME, Filled, fields_of

Identities: TypeAlias = Callable[[Collection[bytes]], Mapping[bytes, str | None]]
"""Gives the identity of each of these streams, None if it is unknown."""

_INT64_MAX: Final = 2**63 - 1
_MS: Final = 1_000


def _microseconds(at_ms: int) -> int:
    return min(at_ms, _INT64_MAX // _MS) * _MS


@lru_cache
def _members(kind: type[msgspec.Struct]) -> Mapping[str, Filled]:
    return fields_of(kind).columns


def _records(structs: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    """Structs as dicts, which Arrow accepts."""
    return [
        {name: _converted(struct, member) for name, member in _members(type(struct)).items()}
        for struct in structs
    ]


def _converted(struct: msgspec.Struct, member: Filled) -> Any:
    value = getattr(struct, member.field)
    convert = _conversion(member.type)
    return value if convert is None else convert(value)


def _conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that converts a field's value for a column of this type; None to keep it."""
    if kind == TIME:
        return _microseconds
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return _records
    return None


def to_table(
    rows: Sequence[LogRow], identities: Identities, events: Sequence[Event] | None = None
) -> pa.Table:
    """Convert rows to a table with all columns of the schema except ``shard``, which seals name.

    ``events`` are the rows' events, if the caller has decoded them already.

    Raises:
        UnknownTopic, CorruptRow: a row is of no type that this release knows, or does not decode.
        LogUnavailable: the identity of a stream could not be read.
    """
    streams = [row.stream for row in rows]
    topics = [row.topic for row in rows]
    typed = columns_of(rows, decode_rows(rows) if events is None else events)
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
        "state": [with_content(row.state, row.content) for row in rows],
    }
    fields = [field for field in SCHEMA if field.name != "shard"]
    arrays = [to_array(typed.get(field.name), field.type, len(rows)) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, SCHEMA.metadata))


def columns_of(rows: Sequence[LogRow], events: Sequence[Any]) -> dict[str, list[Any]]:
    """The columns that the events in rows fill: time, command and the columns of their types."""
    places: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        places.setdefault(row.topic, []).append(index)
    typed: dict[str, list[Any]] = {}
    for topic, indices in places.items():
        of_topic = [events[index] for index in indices]
        for column, values in _fields(TYPE_BY_TOPIC[topic], of_topic):
            placed = typed.setdefault(column, [None] * len(rows))
            for index, value in zip(indices, values, strict=True):
                placed[index] = value
    typed["recorded_at"] = [event.at_ms * _MS for event in events]
    typed["command"] = [event.command for event in events]
    return typed


def with_shards(table: pa.Table, sections: Iterable[tuple[str, int]]) -> pa.Table:
    """Add the ``shard`` column to a table: each partition for the number of rows it sealed."""
    index = SCHEMA.get_field_index("shard")
    return table.add_column(index, SCHEMA.field(index), shards_of(sections))


def shards_of(sections: Iterable[tuple[str | None, int]]) -> pa.Array:
    """The ``shard`` column for these sections: partitions, and how many rows each sealed.

    Most seals cover a row or two: an array for each would cost more than the rest of the row.
    """
    return pa.array([partition for partition, rows in sections for _ in range(rows)], pa.string())


def identity_of(event: Event, stream: bytes) -> str | None:
    """The identity that the first event of a stream names; None if it names none.

    An erasure comes first only where the identity is of another database.
    """
    if isinstance(event, IdentityErased):
        return f"{ERASED}{stream.hex()}"
    naming = _NAMING.get(type(event))
    if naming is None:
        return None
    named: str = getattr(event, naming[0])
    # An event of an erased key has its digest, which is not its stream.
    return naming[1] + (f"{ERASED}{stream.hex()}" if named.startswith(ERASED) else named)


def _names_stream(kind: type[Event]) -> tuple[str, str] | None:
    """The field that names the stream of a first event of this type, and its prefix."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, NamesStream):
                return name, mark.prefix
    return None


_NAMING: Final = {kind: found for kind in TOPIC_BY_TYPE if (found := _names_stream(kind))}


def _fields(kind: type[Event], decoded: Sequence[Any]) -> Iterable[tuple[str, Iterable[Any]]]:
    filling = FILLING[kind]
    for column, filled in filling.columns.items():
        values = map(attrgetter(filled.field), decoded)
        convert = _conversion(filled.type)
        yield column, values if convert is None else map(convert, values)
    if filling.content is not None:
        yield SIZE, map(size_of, map(attrgetter(filling.content), decoded))


def types_in(table: pa.Table) -> dict[str, int]:
    """Count exported rows by topic."""
    counts = table.group_by(["type", "type_version"], use_threads=False)
    return {
        f"{row['type']}.{row['type_version']}": row["count_all"]
        for row in counts.aggregate([([], "count_all")]).to_pylist()
    }


def to_array(values: list[Any] | None, kind: pa.DataType, rows: int) -> pa.Array:
    """The values of a column as an Arrow array; only nulls if there are no values."""
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
