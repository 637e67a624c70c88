"""Takes contents out of rows of an export that the log has erased since they were exported.

What is erased the log says: a content that it still has stays, and so does one of a row that it has
without its content unless one of its rows says that this was erased; a damaged log takes nothing
out of its export. A row that has left the log has no content (``eventstore.log.event_log``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.codec import decode
from eventstore.log.content import BEGINS_WITH_CONTENT, without_content
from eventstore.log.errors import SeamRefused
from eventstore.log.event_contents import ERASING
from eventstore.log.event_log import EventLog
from eventstore.log.events import TOPIC_BY_TYPE
from eventstore.log.seam import SEAM, read_seam
from eventstore.parquet.schema import SCHEMA

_TOPICS: Final = frozenset(TOPIC_BY_TYPE[kind] for kind in ERASING)
_PAGE_ROWS: Final = 4_096
_PAGE_BYTES: Final = 8 * 1024 * 1024
_ANY_VERSION: Final = 2**62
_STATE: Final = SCHEMA.get_field_index("state")


def contents_in(table: pa.Table) -> int:
    """How many rows of an export have their content."""
    count: int = pc.sum(_have_content(table["state"].combine_chunks())).as_py() or 0
    return count


def _have_content(states: pa.BinaryArray) -> pa.BooleanArray:
    begins = pc.binary_slice(states, 0, 1)
    return pc.equal(begins, pa.scalar(BEGINS_WITH_CONTENT, begins.type))


def without_erased(log: EventLog, table: pa.Table) -> tuple[pa.Table, int]:
    """The rows of an export without the contents that the log has erased; how many these are.

    Args:
        log: the log that they were exported from.
        table: rows with all columns, by position.

    Raises:
        LogUnavailable: the log cannot be read now.
        UnknownTopic, CorruptRow: a row of the log cannot be understood.
    """
    states = table["state"].combine_chunks()
    numbers = pc.indices_nonzero(_have_content(states))
    rows = table.select(["position", "stream", "version"]).take(numbers)
    erased = _erased(log, dict(zip(rows["position"].to_pylist(), _places(rows), strict=True)))
    if not erased:
        return table, 0
    gone = pc.is_in(table["position"], value_set=pa.array(sorted(erased), pa.int64()))
    values = [
        without_content(state)[0] if is_gone else state
        for state, is_gone in zip(states.to_pylist(), gone.to_pylist(), strict=True)
    ]
    field = SCHEMA.field(_STATE)
    return table.set_column(_STATE, field, pa.array(values, field.type)), len(erased)


def _places(rows: pa.Table) -> Iterator[tuple[bytes, int]]:
    return zip(rows["stream"].to_pylist(), rows["version"].to_pylist(), strict=True)


def _erased(log: EventLog, exported: Mapping[int, tuple[bytes, int]]) -> set[int]:
    """Of rows that were exported with a content, by position: those where it was erased."""
    if not exported:
        return set()
    text = log.settings().get(SEAM)
    try:
        seam = 0 if text is None else read_seam(text).position
    except SeamRefused:
        seam = 0
    left = {position for position in exported if position <= seam}
    without: set[int] = set()
    named: set[tuple[bytes, int]] = set()
    reached, last = min(exported) - 1, max(exported)
    while reached < last:
        page = log.read_rows(after=reached, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES)
        for row in page:
            if row.topic in _TOPICS:
                named |= {(row.stream, version) for version in _versions(row.topic, row.state)}
            if row.position in exported:
                left.discard(row.position)
                if row.content is None:
                    without.add(row.position)
        reached = page[-1].position if page else last
    # Mostly erased soon, by rows that were read just now; of the others their streams are asked.
    later = {exported[position] for position in without} - named
    for stream in {stream for stream, _ in later}:
        found = log.stream_rows(UUID(bytes=stream), until=_ANY_VERSION, topics=_TOPICS)
        named |= {(stream, version) for row in found for version in _versions(row.topic, row.state)}
    return left | {position for position in without if exported[position] in named}


def _versions(topic: str, state: bytes) -> Iterable[int]:
    event = decode(topic, state)
    assert isinstance(event, ERASING)
    return event.versions
