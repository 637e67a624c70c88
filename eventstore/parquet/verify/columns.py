"""Checks the typed columns of an export against the states of its rows.

The check makes every column again from ``state``, as the exporter does. It compares whole columns
first, and searches for the rows that differ only in columns that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.event_log import LogRow
from eventstore.log.events import Event
from eventstore.log.faults import Fault, Finding, finding
from eventstore.log.row_check import not_understood
from eventstore.parquet.columns import columns_of, to_array
from eventstore.parquet.schema import SCHEMA

Events: TypeAlias = Sequence[Event | None]
"""The events in rows; None for a row that does not decode."""
_OF_THE_LOG: Final = {
    *("position", "shard", "stream", "identity", "version", "type", "type_version", "state")
}
"""Columns that no event fills."""
_OF_EVENTS: Final = [field for field in SCHEMA if field.name not in _OF_THE_LOG]


def check_columns(page: pa.Table, rows: Sequence[LogRow], events: Events) -> Iterator[Finding]:
    """Check the typed columns of a page; ``rows`` and ``events`` are those of the page.

    Yields at most one finding for each row, which names all its wrong columns, or says that the
    row cannot be decoded.
    """
    understood = [index for index, event in enumerate(events) if event is not None]
    if len(understood) < len(rows):
        for row, event in zip(rows, events, strict=True):
            if event is None:
                yield not_understood(row)
        if understood:
            page = page.take(understood)
            yield from check_columns(
                page, [rows[index] for index in understood], [events[index] for index in understood]
            )
        return
    expected = columns_of(rows, events)
    wrong: dict[int, list[str]] = {}
    for field in _OF_EVENTS:
        for index in _differences(page[field.name], expected.get(field.name), field.type):
            wrong.setdefault(index, []).append(field.name)
    for index, names in sorted(wrong.items()):
        why = f"{', '.join(names)}: not what the state of the row says"
        yield finding(Fault.WRONG_COLUMN, rows[index], why)


def _differences(
    column: pa.ChunkedArray, values: list[Any] | None, kind: pa.DataType
) -> Sequence[int]:
    """The indices where a column differs from these values, to the bit."""
    if values is None:
        if column.null_count == len(column):
            return []
        found: list[int] = pc.indices_nonzero(column.is_valid()).to_pylist()
        return found
    one, other = _bits(column.combine_chunks()), _bits(to_array(values, kind, len(values)))
    return list(_unequal(one, other, 0))


def _bits(array: pa.Array) -> pa.Array:
    """Floating-point numbers as integers, so that -0.0 differs from 0.0, and NaN equals itself."""
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
