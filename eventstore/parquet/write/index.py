"""Writes the index of an export (``eventstore.parquet.index``): a file for each step, then merges.

The last eight or more runs are merged once none of them has more entries than all others together:
so an entry is rewritten only into a run at least twice as large, and the number of runs grows with
the logarithm of the log. A large run has several files, each with the keys between two bounds. All
entries of a key are in one of them: a run with a larger file than ``FILE_ENTRIES`` is not merged
again, so that a key with many entries has several runs, and not ever more memory. A file counts
once a version of the table names it.

Memory: the entries of ``FILE_ENTRIES`` rows, and of ``MERGED_AT_ONCE`` while runs are merged, or of
one key: at most ``FILE_ENTRIES`` of each run, 45 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.index import (
    KEY_BITS,
    OF_ENTRIES,
    OFFSET_BITS,
    ExportIndex,
    IndexFile,
    IndexReader,
    encoded_index,
    entries_of,
    index_path,
    runs_of,
    sorted_entries,
)
from eventstore.parquet.manifest import Manifest, digest_for
from eventstore.parquet.rows import read_table

RUNS_MERGED: Final = 8
FILE_ENTRIES: Final = 4_194_304
"""32 MiB; a run with more has several files."""
MERGED_AT_ONCE: Final = 1_048_576

Run = Sequence[IndexFile]


class IndexWriter:
    """Writes the index of one export."""

    def __init__(self, place: ExportPlace) -> None:
        self._place = place

    def extended(self, index: ExportIndex, rows: pa.Table, last: int, version: int) -> ExportIndex:
        """Extend the index by the rows that follow it and end at ``last``.

        ``version`` is that of the table which will be the first to have the new files.

        Raises:
            ExportDamaged: a file to merge is missing, or not the one that was signed.
            ExportUnavailable: the place cannot be read or written now.
        """
        first = index.last + 1
        entries = entries_of(rows, first)
        runs: list[Run] = list(runs_of(index))
        if len(entries):
            runs.append([self._written(entries, first, last, 0, version)])
        while merged := _worth_merging(runs):
            runs[-merged:] = [list(self._merged(runs[-merged:], version))]
        return ExportIndex(last=last, files=[file for run in runs for file in run])

    def complete(self, catalog: Catalog) -> ExportIndex:
        """Make the index of an export that has none from its data files.

        Raises as ``extended``, and if a data file is not what its manifest says.
        """
        index = ExportIndex(last=0, files=[])
        version = catalog.next_version
        for statement in catalog.statements:
            rows = _rows_of(self._place, statement.manifest)
            index = self.extended(index, rows, statement.manifest.last, version)
        return index

    def _written(
        self, entries: pa.UInt64Array, first: int, last: int, low: int, version: int
    ) -> IndexFile:
        content, root = encoded_index(entries)
        path = index_path(first, last, digest_for(version, root))
        self._place.write(path, content)
        return IndexFile(
            path=path, first=first, last=last, low=low, entries=len(entries), root=root
        )

    def _merged(self, runs: Sequence[Run], version: int) -> Iterator[IndexFile]:
        first, last = runs[0][0].first, runs[-1][0].last
        waiting: list[pa.UInt64Array] = []
        low = 0
        for start, entries in self._by_key(runs, first):
            if sum(map(len, waiting)) + len(entries) > FILE_ENTRIES and waiting:
                yield self._written(pa.concat_arrays(waiting), first, last, low, version)
                waiting, low = [], start
            waiting.append(entries)
        yield self._written(pa.concat_arrays(waiting), first, last, low, version)

    def _by_key(self, runs: Sequence[Run], first: int) -> Iterator[tuple[int, pa.UInt64Array]]:
        """Yield the first key of each range of keys with entries, and those of all runs, sorted."""
        ranges = 1 + sum(map(_entries_in, runs)) // MERGED_AT_ONCE
        bounds = [(number << KEY_BITS) // ranges for number in range(ranges + 1)]
        readers = [(file.first - first, IndexReader(self._place, file))
                   for run in runs for file in run]  # fmt: skip
        for low, high in pairwise(bounds):
            parts = [
                pc.add(part, pa.scalar(moved, pa.uint64()))
                for moved, reader in readers
                for part in reader.entries(low, high)
            ]
            if parts:  # no index file is empty
                yield low, sorted_entries(parts)


def _worth_merging(runs: Sequence[Run]) -> int:
    """How many of the last runs to merge now; 0 for none."""
    sizes = [_entries_in(run) for run in runs]
    for count in range(RUNS_MERGED, len(runs) + 1):
        if any(file.entries > FILE_ENTRIES for run in runs[-count:] for file in run):
            return 0  # only one key has that many in one file, and a merge holds all of them
        span = runs[-1][0].last - runs[-count][0].first
        if span < 1 << OFFSET_BITS and 2 * max(sizes[-count:]) <= sum(sizes[-count:]):
            return count
    return 0


def _entries_in(run: Run) -> int:
    return sum(file.entries for file in run)


def _rows_of(place: ExportPlace, manifest: Manifest) -> pa.Table:
    return pa.concat_tables([read_table(place, file, OF_ENTRIES) for file in manifest.files])
