"""Removes old, unneeded rows from an export for ever, by one signed statement.

One manifest replaces those of the old part (``eventstore.parquet.manifest.Pruned``). It takes their
place in the chain, has the newest seals and the tree over all seals up to its end, removed ones
included, and names files with the rows that stay. One version of the table replaces the old files
by the new ones: before its commit nothing is removed, and after it no removed row counts. So a kill
at any time leaves a whole export; the next exporter removes files that do not count.

The work has no bound, so it is done in parts: ``Rewriting.after_part`` is called after each file or
some thousand rows. It may make steps, which add manifests behind the old part.

The caller decides which rows are not needed (``actors.archive.unneeded_rows``).

Memory: the rows that stay of one day, up to the ``Bounds`` and those of one more file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.event_log import LogRow
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile, Manifest, Pruned, Statement
from eventstore.parquet.rows import manifest_rows, read_table
from eventstore.parquet.write.commit import files_by_day, write_data
from eventstore.parquet.write.compaction import Rewriting, replaced
from eventstore.parquet.write.erasing import contents_in
from eventstore.parquet.write.step import Bounds
from eventstore.parquet.write.table import Clock
from eventstore.parquet.write.tree import require_tiles

_EPOCH: Final = date(1970, 1, 1)
_PART_BYTES: Final = 8_192


class Positions:
    """A set of positions of a log, in parts of 65,536: one bit for each position of such a part.

    A part without a position of the set takes no memory. So a pruning needs memory for what it
    removes, however much was recorded before.
    """

    def __init__(self) -> None:
        self._parts: defaultdict[int, bytearray] = defaultdict(partial(bytearray, _PART_BYTES))

    def __len__(self) -> int:
        """The number of positions."""
        return sum(int.from_bytes(part, "big").bit_count() for part in self._parts.values())

    def __contains__(self, position: int) -> bool:
        """Whether the set has this position."""
        number, place = divmod(position >> 3, _PART_BYTES)
        return number in self._parts and bool(self._parts[number][place] & (1 << (position & 7)))

    def add(self, position: int) -> None:
        """Add a position."""
        number, place = divmod(position >> 3, _PART_BYTES)
        self._parts[number][place] |= 1 << (position & 7)


Plan: TypeAlias = Callable[[Callable[[], Iterator[Sequence[LogRow]]], int], Positions]
"""Finds the positions that nothing needs. Its arguments: a function that reads the rows, and the
position up to which rows were pruned before."""


def prune(
    rewriting: Rewriting,
    statements: Sequence[Statement],
    plan: Plan,
    *,
    until_ms: int,
    clock: Clock,
    bounds: Bounds,
) -> tuple[Statement, int] | None:
    """Write the rows that stay of the old manifests, and the manifest that replaces these.

    Args:
        rewriting: the place of the export, and what is needed to write there.
        statements: the first manifests, whose rows have left the log.
        plan: finds the rows that leave.
        until_ms: only manifests whose rows were all recorded by then are replaced, Unix ms.
        clock: gives Unix milliseconds.
        bounds: for the rows of a file.

    Returns:
        The new manifest, and the number of rows that it leaves out; None if nothing can go.

    Raises:
        ExportDamaged: a file is not what its manifest says, or tiles lack seals of these manifests.
        ExportUnavailable: the place cannot be read or written now.
        Whatever ``plan`` raises.
    """
    run, recorded_until_ms = _old_run(rewriting, statements, until_ms)
    # A pruned manifest alone has nothing to lose; one without a tree cannot replace others.
    if not run or run[-1].manifest.is_pruned or run[-1].manifest.tree is None:
        return None
    manifests = [statement.manifest for statement in run]
    require_tiles(rewriting.place, manifests, rewriting.after_part)
    before = manifests[0].pruned
    pruned_up_to = manifests[0].last if before else 0
    leaving = plan(lambda: _rows(rewriting, run), pruned_up_to)
    rows = len(leaving)
    if not rows:
        return None
    rest = list(_rest(rewriting, run, leaving, bounds))
    files, contents = [file for file, _ in rest], sum(counted for _, counted in rest)
    again = 1 + max(manifest.rewritten or 0 for manifest in manifests)
    pruned = Pruned(
        rows=rows + (before.rows if before else 0),
        recorded_until_ms=recorded_until_ms,
        at_ms=clock(),
    )
    written = replaced(rewriting, run, files, rewritten=again, contents=contents, pruned=pruned)
    return written, rows


def _old_run(
    rewriting: Rewriting, statements: Sequence[Statement], until_ms: int
) -> tuple[Sequence[Statement], int]:
    """The first manifests whose rows were recorded by ``until_ms``, and when the last of these was.

    The run ends before the first manifest with a younger row, even if older ones follow: clocks
    may have been ahead, and the positions of one manifest have no gap.
    """
    run: list[Statement] = []
    recorded_ms = 0
    for statement in statements:
        if _begins_ms(statement) > until_ms:
            break
        last_ms = _recorded_ms(rewriting.place, statement.manifest)
        rewriting.after_part()
        if last_ms > until_ms:
            break
        run.append(statement)
        recorded_ms = max(recorded_ms, last_ms)
    return run, recorded_ms


def _begins_ms(statement: Statement) -> int:
    """When the first day of a manifest's rows began, Unix milliseconds."""
    day = min(file.day for file in statement.manifest.files)
    return (date.fromisoformat(day) - _EPOCH) // timedelta(milliseconds=1)


def _recorded_ms(place: ExportPlace, manifest: Manifest) -> int:
    """When the last row of a manifest was recorded, read from the files of its newest day."""
    if manifest.pruned is not None:
        return manifest.pruned.recorded_until_ms
    newest = max(file.day for file in manifest.files)
    latest: list[int] = [
        pc.max(read_table(place, file, ("recorded_at",))["recorded_at"]).cast(pa.int64()).as_py()
        for file in manifest.files
        if file.day == newest
    ]
    return max(latest) // 1000


def _rows(rewriting: Rewriting, run: Sequence[Statement]) -> Iterator[Sequence[LogRow]]:
    for statement in run:
        for rows in manifest_rows(rewriting.place, statement.manifest):
            yield rows
            rewriting.after_part()


def _rest(
    rewriting: Rewriting, run: Sequence[Statement], leaving: Positions, bounds: Bounds
) -> Iterator[tuple[DataFile, int]]:
    """Write the rows that stay; yield each file and its number of contents.

    The only file of a day stays as it is if no row of it leaves.
    """
    for day, files in files_by_day(run):
        for table in _gathered(_stays(rewriting, files, leaving), bounds):
            if len(files) == 1 and table.num_rows == files[0].rows:
                file = files[0]
            else:
                file = write_data(rewriting.place, day, table, rewriting.version)
            yield file, contents_in(table)


def _stays(
    rewriting: Rewriting, files: Iterable[DataFile], leaving: Positions
) -> Iterator[pa.Table]:
    for file in files:
        table = read_table(rewriting.place, file)
        stays = [position not in leaving for position in table["position"].to_pylist()]
        yield table.filter(pa.array(stays, pa.bool_()))
        rewriting.after_part()


def _gathered(tables: Iterable[pa.Table], bounds: Bounds) -> Iterator[pa.Table]:
    """Merge tables into few, none of which is empty."""
    waiting: list[pa.Table] = []
    rows = size_bytes = 0
    for table in tables:
        if not table.num_rows:
            continue
        waiting.append(table)
        rows, size_bytes = rows + table.num_rows, size_bytes + table.nbytes
        if rows >= bounds.rows_max or size_bytes >= bounds.bytes_max:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()
