"""Merges small files: many steps become one, with one manifest in place of theirs.

A rewritten file leaves out contents that were erased since (``write.erasing``). A step can also be
rewritten, to files of other names, only to leave out erased contents and names.

One commit of the table replaces the old files by the new ones. Programs that opened an earlier
version continue to read the old files, which ``Exporter.sweep`` removes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.event_log import LogReader
from eventstore.parquet.catalog import check_continues
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Pruned,
    Signer,
    Statement,
    parse_manifest,
)
from eventstore.parquet.rows import log_rows, read_table
from eventstore.parquet.write.commit import files_by_day, write_data, write_manifest
from eventstore.parquet.write.erasing import (
    COLUMNS_OF_NAMES,
    GoneNames,
    contents_in,
    names_erased,
    positions_named,
    rows_naming,
    rows_of,
    with_states,
    without_erased,
)
from eventstore.parquet.write.step import Bounds


class Rewriting(NamedTuple):
    """What is needed to rewrite steps of an export."""

    place: ExportPlace
    log: LogReader
    signer: Signer
    version: int
    """No earlier version of the table has the new files."""
    after_part: Callable[[], None] = lambda: None
    """Called after each part of a work without a bound; an exception from it ends the work."""


def compact(rewriting: Rewriting, run: Sequence[Statement]) -> Statement:
    """Merge the files of a run of steps; write the manifest that replaces theirs once committed.

    Each file is compared with its manifest before it is merged.

    Raises:
        ExportDamaged: a file is not what its manifest says.
        ExportUnavailable: the place cannot be read or written now.
        LogUnavailable: the log cannot be read now.
    """
    merged = list(_merged_files(rewriting, run))
    contents = sum(counted for _, counted in merged)
    return replaced(rewriting, run, [file for file, _ in merged], contents=contents)


class TakenOut(NamedTuple):
    """How much was taken out of an export: contents, and rows that lost a name."""

    contents: int = 0
    names: int = 0


class Rewritten(NamedTuple):
    """The result of rewriting a step: its new manifest, if any, and what was taken out of it.

    ``names_stay``: the step still names erased identities, in rows that have the name in the log
    too, or whose seal covers it.
    """

    statement: Statement | None
    taken: TakenOut = TakenOut()
    names_stay: bool = False


def without_erased_of(rewriting: Rewriting, statement: Statement, gone: GoneNames) -> Rewritten:
    """Rewrite the files of a step that have contents or names which were erased since.

    Raises as ``compact``.
    """
    place, log, manifest = rewriting.place, rewriting.log, statement.manifest
    files: list[DataFile] = []
    taken, contents = TakenOut(), 0
    states, renamed, names_stay = _names_erased(place, log, manifest, gone)
    if manifest.contents == 0 and not renamed:
        return Rewritten(None, names_stay=names_stay)
    for file in manifest.files:
        table, erased = without_erased(log, read_table(place, file))
        contents += contents_in(table)
        is_renamed = pc.is_in(table["position"], value_set=pa.array(renamed, pa.int64()))
        names = pc.sum(is_renamed).as_py()
        if names:
            table = with_states(table, states, gone)
        if erased or names:
            file = write_data(place, file.day, table, rewriting.version)  # noqa: PLW2901
        files.append(file)
        taken = TakenOut(taken.contents + erased, taken.names + names)
    if taken == TakenOut():
        return Rewritten(None, names_stay=names_stay)
    again = 1 + (manifest.rewritten or 0)
    written = replaced(
        rewriting, [statement], files, rewritten=again, contents=contents, pruned=manifest.pruned
    )
    return Rewritten(written, taken, names_stay)


def _names_erased(
    place: ExportPlace, log: LogReader, manifest: Manifest, gone: GoneNames
) -> tuple[Mapping[int, bytes], Sequence[int], bool]:
    """The new states of rows that lose a name, and the positions of all rows that change.

    Also whether names stay (``Rewritten``).
    """
    if not gone.identities:
        return {}, [], False
    # Rows are compared with the seals behind them, which may be in another file. Of a part that was
    # pruned they cannot be compared, and it may have any number of files.
    files = manifest.files
    together = [[file] for file in files] if manifest.is_pruned else [files]
    all_states: dict[int, bytes] = {}
    renamed: list[int] = []
    stay = False
    for some in together:
        tables = [read_table(place, file, COLUMNS_OF_NAMES) for file in some]
        table = pa.concat_tables(tables).sort_by("position").combine_chunks()
        naming = rows_naming(table, gone)
        numbers = sorted(naming | rows_of(table, gone))
        if not numbers:
            continue
        states = names_erased(log, log_rows(table), numbers, gone, is_part=manifest.is_pruned)
        renamed += {*states, *positions_named(table.take(numbers), gone)}
        positions = table["position"]
        stay |= any(positions[number].as_py() not in states for number in naming)
        all_states |= states
    return all_states, sorted(renamed), stay


def replaced(
    rewriting: Rewriting,
    run: Sequence[Statement],
    files: list[DataFile],
    *,
    rewritten: int | None = None,
    contents: int | None = None,
    pruned: Pruned | None = None,
) -> Statement:
    """Write the manifest that names these files in place of those of a run.

    Raises:
        ExportDamaged: the manifests do not follow each other.
        ExportUnavailable: the place cannot be read or written now.
    """
    for before, after in pairwise(run):
        check_continues(after.manifest, before.manifest.last, before.link)
    first, last = run[0].manifest, run[-1].manifest
    manifest = Manifest(
        format=last.format,
        schema=last.schema,
        first=first.first,
        last=last.last,
        rows=sum(file.rows for file in files),
        files=files,
        heads=_read_again(rewriting, run[-1]).heads,
        replaces=[statement.manifest.path for statement in run],
        stands_for=run[-1].link,
        previous=first.previous,
        signed_by=rewriting.signer.signed_by,
        tree=last.tree,
        rewritten=rewritten,
        contents=contents,
        pruned=pruned,
    )
    return write_manifest(rewriting.place, manifest, rewriting.signer, rewriting.version)


def runs(
    statements: Sequence[Statement], *, files_min: int, bounds: Bounds
) -> Iterator[Sequence[Statement]]:
    """Yield the runs of consecutive steps that are worth merging, earliest first.

    A run has at least ``files_min`` steps, none with more rows than all others together (so two or
    more), none that was pruned, and stays within the bounds: so a row is rewritten only into a step
    at least twice as large, and memory is bounded as in a step.
    """
    start = 1 if statements and statements[0].manifest.is_pruned else 0
    while start < len(statements):
        run = _run_from(statements, start, bounds)
        sizes = [statement.manifest.rows for statement in run]
        if len(run) >= files_min and 2 * max(sizes) <= sum(sizes):
            yield run
            start += len(run)
        else:
            start += 1


def _run_from(statements: Sequence[Statement], start: int, bounds: Bounds) -> Sequence[Statement]:
    rows = size_bytes = 0
    for end in range(start, len(statements)):
        manifest = statements[end].manifest
        rows += manifest.rows
        size_bytes += sum(file.state_bytes for file in manifest.files)
        if rows > bounds.rows_max or size_bytes > bounds.bytes_max:
            return statements[start:end]
    return statements[start:]


def _merged_files(rewriting: Rewriting, run: Sequence[Statement]) -> Iterator[tuple[DataFile, int]]:
    """Yield the file of each day and its number of contents; the only one of a day stays."""
    for day, parts in files_by_day(run):
        if len(parts) == 1:
            yield parts[0], contents_in(read_table(rewriting.place, parts[0], ("state",)))
            continue
        table = pa.concat_tables([read_table(rewriting.place, file) for file in parts])
        table, _ = without_erased(rewriting.log, table.combine_chunks())
        yield write_data(rewriting.place, day, table, rewriting.version), contents_in(table)


def _read_again(rewriting: Rewriting, statement: Statement) -> Manifest:
    """Read a manifest again for its heads, which a summary leaves out."""
    path = statement.manifest.path
    content = rewriting.place.read_named(path, "the table names its files")
    found = parse_manifest(path, content, rewriting.signer.key.verify)
    if found.sha256 != statement.sha256:
        raise ExportDamaged(path, Damage.CHANGED, "not the manifest that was committed")
    return found.manifest
