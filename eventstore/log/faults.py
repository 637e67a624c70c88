"""What can be wrong with the rows of a log, and how a check reports it."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from eventstore.log.event_log import LogRow
from eventstore.log.streams import STREAM_BYTES


class Fault(Enum):
    """What can be wrong with a row or a seal."""

    MALFORMED_ROW = "malformed-row"
    """A column does not hold its type, or the stream is not a UUID in the form of this log."""
    UNKNOWN_TOPIC = "unknown-topic"
    UNDECODABLE_STATE = "undecodable-state"
    VERSION_BREAK = "version-break"
    """The version does not follow the stream's last one: rows are missing, moved or added."""
    UNSEALED_ROWS = "unsealed-rows"
    """No seal covers these rows: they were added, or their seal was removed."""
    MISSING_ROWS = "missing-rows"
    """The seal covers more rows than stand before it."""
    FOREIGN_SEAL = "foreign-seal"
    """The seal names another partition than the one whose stream it stands in."""
    BROKEN_CHAIN = "broken-chain"
    """The seal does not continue from the partition's last seal."""
    BROKEN_SEAL = "broken-seal"
    """The seal does not match these rows: the seal or some of the rows were changed."""
    MISSING_HEAD = "missing-head"
    """A head that was known before is not in the log: the end of the log was cut off."""
    WRONG_HEAD = "wrong-head"
    """The manifest names another newest seal of a partition than its rows have."""
    WRONG_TREE = "wrong-tree"
    """A manifest, a tile or a signed head has another tree than the seals give."""
    MISSING_CONTENT = "missing-content"
    """The content of the row is not there, and no row says that it was erased."""
    WRONG_CONTENT = "wrong-content"
    """A content is not its row's, or is there though it was erased or has no row."""
    MISSING_NAME = "missing-name"
    """A name is gone from the row, and no row says that the identity it named was erased."""
    WRONG_SEAM = "wrong-seam"
    """The mediator did not sign what the log says about the rows that have left."""
    WRONG_REST = "wrong-rest"
    """The rows before the seam are not those that stayed when others left, or not the archive's."""
    MISSING_STATE = "missing-state"
    """Rows of the stream have left, and the state that stands for them is missing or changed."""
    WRONG_COLUMN = "wrong-column"
    """A column of the export does not agree with the row's state and the rows around it."""
    WRONG_POSITION = "wrong-position"
    """The position does not follow the one before, or is not where the file says it is."""


class Head(NamedTuple):
    """The newest seal of a partition: its version in the partition's stream and its digest."""

    version: int
    digest: bytes


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in the rows of these positions.

    ``stream`` and ``version`` are those of the row at ``last_position``; ``partition`` is set
    if a seal names it.
    """

    fault: Fault
    first_position: int
    last_position: int
    stream: UUID | str
    version: int
    partition: str | None
    explanation: str


def finding(
    fault: Fault,
    row: LogRow,
    explanation: str,
    partition: str | None = None,
    first_position: int | None = None,
) -> Finding:
    """A finding about a row, or about the rows from ``first_position`` to it."""
    stream: Any = row.stream
    if isinstance(stream, bytes):  # a column of SQLite takes any
        stream = UUID(bytes=stream) if len(stream) == STREAM_BYTES else stream.hex()
    return Finding(
        fault=fault,
        first_position=row.position if first_position is None else first_position,
        last_position=row.position,
        stream=stream,
        version=row.version,
        partition=partition,
        explanation=explanation,
    )
