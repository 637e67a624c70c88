"""The rows of one manifest as they stand in its files, numbered in the order of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log import LogRow
from eventstore.parquet.export_findings import ExportFinding
from eventstore.row_check import Finding


class NumberedRows:
    """The rows of a manifest in the order of the log, numbered from 0."""

    def __init__(self, paths: Sequence[str], tables: Sequence[pa.Table]) -> None:
        """Put the rows of the files together."""
        self._paths = paths
        self._starts = [0, *accumulate(table.num_rows for table in tables)]
        self.table = pa.concat_tables(tables)
        self._order: pa.Array | None = None
        positions = self.table["position"].combine_chunks()
        if pc.any(pc.less_equal(pc.pairwise_diff(positions), 0)).as_py():
            self._order = pc.sort_indices(positions)
            self.table = self.table.take(self._order)

    def without_values(self) -> NumberedRows:
        """The same, with no more than what names a row: to be handed to another process."""
        named = object.__new__(NumberedRows)
        named._paths, named._starts, named._order = self._paths, self._starts, self._order
        named.table = self.table.select(["position", "shard", "stream", "version"])
        return named

    def __len__(self) -> int:
        """How many there are."""
        count: int = self.table.num_rows
        return count

    def page(self, start: int, count: int) -> tuple[pa.Table, list[LogRow]]:
        """So many rows from this number, as they are and as rows of the log.

        The number of a row stands for its position, since nothing says that positions are right.
        """
        page = self.table.slice(start, count)
        topics = pc.binary_join_element_wise(
            page["type"], page["type_version"].cast(pa.string()), "."
        )
        encoded = topics.combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        rows = map(
            LogRow,
            range(start, start + page.num_rows),
            page["stream"].to_pylist(),
            page["version"].to_pylist(),
            map(names.__getitem__, encoded.indices.to_pylist()),
            page["state"].to_pylist(),
        )
        return page, list(rows)

    def finding(self, found: Finding, shard: str | None = None) -> ExportFinding:
        """A finding about numbered rows, with positions and places in files."""
        number = found.last_position
        index = number if self._order is None else self._order[number].as_py()
        file = bisect_right(self._starts, index) - 1
        stream = found.stream
        assert isinstance(stream, UUID)
        positions = self.table["position"]
        return ExportFinding(
            fault=found.fault,
            path=self._paths[file],
            row=index - self._starts[file],
            first_position=positions[found.first_position].as_py(),
            last_position=positions[number].as_py(),
            shard=shard or found.partition or self.table["shard"][number].as_py(),
            stream=stream,
            version=found.version,
            explanation=found.explanation,
        )


class Streams(NamedTuple):
    """Where the rows of a manifest begin and end in each of their streams."""

    table: pa.Table
    """stream, first and last version, identity, and the number of the first row."""
    rows: NumberedRows
