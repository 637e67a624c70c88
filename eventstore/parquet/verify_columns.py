"""The typed columns of exported rows against what their states decode to.

All rows are decoded and turned into columns as the exporter does it; equal columns are compared
in bulk, and only where two differ are their rows looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.codec import decode
from eventstore.errors import CorruptRow, UnknownTopic
from eventstore.log import LogRow
from eventstore.parquet.columns import event_columns, to_array
from eventstore.parquet.schema import SCHEMA
from eventstore.row_check import Fault, Finding, finding

_OF_THE_LOG: Final = {
    *("position", "shard", "stream", "identity", "version", "type", "type_version", "state")
}
"""Columns that no event fills."""
_OF_EVENTS: Final = [field for field in SCHEMA if field.name not in _OF_THE_LOG]


def check_columns(page: pa.Table, rows: Sequence[LogRow]) -> Iterator[Finding]:
    """What is wrong with the typed columns of a page; ``rows`` are the same rows.

    Yields for each row at most one finding, which names all of its columns that are wrong, or
    says that the row cannot be decoded.
    """
    try:
        expected = event_columns([row.topic for row in rows], [row.state for row in rows])
    except (UnknownTopic, CorruptRow):
        understood = []
        for index, row in enumerate(rows):
            found = list(_not_understood(row))
            yield from found
            if not found:
                understood.append(index)
        if understood:
            yield from check_columns(page.take(understood), [rows[index] for index in understood])
        return
    wrong: dict[int, list[str]] = {}
    for field in _OF_EVENTS:
        for index in _differences(page[field.name], expected.get(field.name), field.type):
            wrong.setdefault(index, []).append(field.name)
    for index, names in sorted(wrong.items()):
        why = f"{', '.join(names)}: not what the state of the row says"
        yield finding(Fault.WRONG_COLUMN, rows[index], why)


def _not_understood(row: LogRow) -> Iterator[Finding]:
    try:
        decode(row.topic, row.state)
    except UnknownTopic:
        yield finding(Fault.UNKNOWN_TOPIC, row, f"topic {row.topic!r}")
    except CorruptRow as error:
        yield finding(Fault.UNDECODABLE_STATE, row, str(error))


def _differences(
    column: pa.ChunkedArray, values: list[Any] | None, kind: pa.DataType
) -> Sequence[int]:
    """The places where a column does not hold these values, to the bit."""
    if values is None:
        if column.null_count == len(column):
            return []
        found: list[int] = pc.indices_nonzero(column.is_valid()).to_pylist()
        return found
    one, other = _bits(column.combine_chunks()), _bits(to_array(values, kind, len(values)))
    return list(_unequal(one, other, 0))


def _bits(array: pa.Array) -> pa.Array:
    """Floating-point numbers as integers: -0.0 is not 0.0, and what is no number equals itself."""
    return array.view(pa.int64()) if pa.types.is_floating(array.type) else array


def _unequal(one: pa.Array, other: pa.Array, start: int) -> Iterator[int]:
    if one.equals(other):
        return
    if len(one) == 1:
        yield start
        return
    half = len(one) // 2
    yield from _unequal(one[:half], other[:half], start)
    yield from _unequal(one[half:], other[half:], start + half)
