"""Streams across manifests: each goes on where the manifest before ended it, under one name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias
from uuid import UUID

from eventstore.parquet.export_findings import ExportFinding
from eventstore.parquet.numbered_rows import Streams
from eventstore.parquet.verify_rows import FINDINGS_MAX
from eventstore.row_check import Fault, Finding

_End: TypeAlias = tuple[int, str | None]
"""The last version of a stream, and its identity."""


class StreamEnds:
    """Where each stream ends in the manifests that were joined, which come in their order.

    Attributes:
        left_out: findings that were only counted.

    Memory: about 300 bytes for each stream.
    """

    def __init__(self) -> None:
        """Begin with the first manifest."""
        self._ends: dict[bytes, _End] = {}
        self._before_loss: dict[bytes, _End] = {}
        self._is_lossy = False
        self.left_out = 0

    def __len__(self) -> int:
        """How many streams there are."""
        return len(self._ends.keys() | self._before_loss.keys())

    def lose(self) -> None:
        """Rows are missing here: each stream may go on with any later version."""
        self._before_loss |= self._ends
        self._ends = {}
        self._is_lossy = True

    def join(self, streams: Streams) -> Iterator[ExportFinding]:
        """Let the streams of the next manifest go on; at most ``FINDINGS_MAX`` findings."""
        for told, (index, fault, why) in enumerate(self._breaks(streams)):
            if told < FINDINGS_MAX:
                yield _finding(streams, index, fault, why)
            else:
                self.left_out += 1

    def _breaks(self, streams: Streams) -> Iterator[tuple[int, Fault, str]]:
        columns = [streams.table[name] for name in ("stream", "first", "last", "identity")]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for index, (stream, first, last, identity) in enumerate(rows):
            end = self._ends.get(stream)
            lost = self._before_loss.get(stream) if end is None else None
            version, known = end or lost or (0, identity)
            may_skip = self._is_lossy and end is None
            if first <= version or (first > version + 1 and not may_skip):
                yield index, Fault.VERSION_BREAK, f"version {version + 1} should stand here"
            if identity != known:
                yield index, Fault.WRONG_COLUMN, "identity: not the one of its stream"
            self._ends[stream] = (last, known)


def _finding(streams: Streams, index: int, fault: Fault, why: str) -> ExportFinding:
    row: dict[str, Any] = streams.table.slice(index, 1).to_pylist()[0]
    number = row["number"]
    return streams.rows.finding(
        Finding(
            fault=fault,
            first_position=number,
            last_position=number,
            stream=UUID(bytes=row["stream"]),
            version=row["first"],
            partition=None,
            explanation=why,
        )
    )
