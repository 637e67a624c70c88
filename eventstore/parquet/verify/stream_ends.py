"""The versions of each stream, from one manifest of an export to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.faults import Fault
from eventstore.log.streams import stream_of
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.verify.mark import STREAM_ENDS
from eventstore.parquet.verify.rows import FINDINGS_MAX, Streams

_End: TypeAlias = tuple[int, bool]
"""The last version of a stream, and whether its rows name its identity."""


class StreamEnds:
    """The end of each stream in the manifests joined so far, in the order of the log.

    Attributes:
        left_out: the number of findings that were only counted.

    Memory: about 300 bytes for each stream.
    """

    def __init__(self, verified: pa.Table | None = None) -> None:
        """``verified`` are the ends (``STREAM_ENDS``) that an earlier check found."""
        self._verified = STREAM_ENDS.empty_table() if verified is None else verified
        self._ends: dict[bytes, _End] = {}
        self._before_loss: dict[bytes, _End] = {}
        self._is_lossy = False
        self.left_out = 0

    def __len__(self) -> int:
        """The number of streams."""
        count: int = self.table().num_rows
        return count

    def table(self) -> pa.Table:
        """The end of each stream."""
        ends = self._before_loss | self._ends
        columns = [list(ends), [e[0] for e in ends.values()], [e[1] for e in ends.values()]]
        new = pa.table(list(map(pa.array, columns, STREAM_ENDS.types)), schema=STREAM_ENDS)
        is_newer = pc.is_in(self._verified["stream"], value_set=new["stream"].combine_chunks())
        return pa.concat_tables([self._verified.filter(pc.invert(is_newer)), new])

    def lose(self) -> None:
        """Note missing rows: each stream may continue with any later version."""
        self._before_loss |= self._ends
        self._ends = {}
        self._is_lossy = True

    def join(self, streams: Streams, *, is_partly_known: bool = False) -> Iterator[ExportFinding]:
        """Continue the streams with the next manifest; yield at most ``FINDINGS_MAX`` findings.

        ``is_partly_known``: an earlier check has seen the manifest's first rows.
        """
        self._recall(streams)
        breaks = self._breaks(streams, is_partly_known=is_partly_known)
        for reported, (index, fault, why) in enumerate(breaks):
            if reported < FINDINGS_MAX:
                yield _finding(streams, index, fault, why)
            else:
                self.left_out += 1

    def _recall(self, streams: Streams) -> None:
        """Load the ends of these streams that an earlier check found."""
        named = streams.table["stream"].cast(pa.binary())
        found = pc.index_in(named, value_set=self._verified["stream"].combine_chunks())
        known = self._verified.take(found.drop_null())
        for stream, last, is_named in zip(*(c.to_pylist() for c in known.columns), strict=True):
            self._ends.setdefault(stream, (last, is_named))

    def _breaks(
        self, streams: Streams, *, is_partly_known: bool
    ) -> Iterator[tuple[int, Fault, str]]:
        columns = [streams.table[name] for name in ("stream", "version", "last", "identity")]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for index, (stream, first, last, identity) in enumerate(rows):
            end = self._ends.get(stream)
            lost = self._before_loss.get(stream) if end is None else None
            version, is_named = end or lost or (0, identity is not None)
            may_skip = self._is_lossy and end is None
            is_seen = first <= version and not (is_partly_known and last >= version)
            if is_seen or (first > version + 1 and not may_skip):
                yield index, Fault.VERSION_BREAK, f"version {version + 1} should stand here"
            is_own = identity is None or stream_of(identity) == stream
            if not is_own or is_named != (identity is not None):
                yield index, Fault.WRONG_COLUMN, "identity: not the one of its stream"
            self._ends[stream] = (last, is_named)


def _finding(streams: Streams, index: int, fault: Fault, why: str) -> ExportFinding:
    row: dict[str, Any] = streams.table.slice(index, 1).to_pylist()[0]
    return ExportFinding(
        fault=fault,
        path=streams.paths[row["file"]],
        row=row["row"],
        first_position=row["position"],
        last_position=row["position"],
        shard=row["shard"],
        stream=UUID(bytes=row["stream"]),
        version=row["version"],
        explanation=why,
    )
