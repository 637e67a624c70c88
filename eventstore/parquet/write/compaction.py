"""Puts small files together: many steps become one, with one manifest in place of theirs.

One commit of the table takes the old files away and brings the new ones. Programs that opened an
earlier version go on reading the old files, which ``commit.sweep`` removes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Signer,
    Statement,
    Verify,
    day_of,
    parse_manifest,
)
from eventstore.parquet.rows import read_table
from eventstore.parquet.write.commit import write_data, write_manifest
from eventstore.parquet.write.step import Bounds


class Compacted(NamedTuple):
    """Manifests that one manifest replaces, once it is committed."""

    run: Sequence[Statement]
    statement: Statement
    added: Sequence[DataFile]
    removed: Mapping[str, int]
    """Paths of files that it does not name any more, with their bytes."""


def compact(
    place: ExportPlace,
    run: Sequence[Statement],
    signer: Signer,
    verify: Verify,
) -> Compacted:
    """Put the files of a run of steps together and write the manifest that replaces theirs.

    The content of each file is compared with its manifest before it is written again.

    Raises:
        ExportDamaged: a file is not what its manifest says.
        ExportUnavailable: the place cannot be read or written now.
    """
    first, last = run[0].manifest, run[-1].manifest
    files = list(_merged_files(place, run))
    manifest = Manifest(
        format=last.format,
        schema=last.schema,
        first=first.first,
        last=last.last,
        rows=sum(statement.manifest.rows for statement in run),
        files=files,
        heads=_read_again(place, run[-1], verify).heads,
        replaces=[statement.manifest.path for statement in run],
        stands_for=run[-1].link,
        previous=first.previous,
        signed_by=signer.signed_by,
        tree=last.tree,
    )
    before = {file.path: file.bytes for s in run for file in s.manifest.files}
    after = {file.path for file in files}
    return Compacted(
        run,
        write_manifest(place, manifest, signer),
        [file for file in files if file.path not in before],
        {path: size for path, size in before.items() if path not in after},
    )


def runs(
    statements: Sequence[Statement], *, files_min: int, bounds: Bounds
) -> Iterator[Sequence[Statement]]:
    """The runs of consecutive steps that are worth putting together, earliest first.

    A run has at least ``files_min`` (two or more) steps, none with more rows than all others
    together, and stays within the bounds: so a row is written again only into a file at least
    twice as large, and memory is bounded as in a step.
    """
    start = 0
    while start < len(statements):
        run = _run_from(statements, start, bounds)
        sizes = [statement.manifest.rows for statement in run]
        if len(run) >= max(files_min, 2) and 2 * max(sizes) <= sum(sizes):
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


def _merged_files(place: ExportPlace, run: Sequence[Statement]) -> Iterator[DataFile]:
    files = [file for statement in run for file in statement.manifest.files]
    days = groupby(sorted(files, key=lambda file: (_day(file), file.first)), key=_day)
    for day, same_day in days:
        parts = list(same_day)
        if len(parts) == 1:
            yield parts[0]
            continue
        table = pa.concat_tables([read_table(place, file) for file in parts])
        yield write_data(place, day, table.combine_chunks())


def _read_again(place: ExportPlace, statement: Statement, verify: Verify) -> Manifest:
    """A manifest with its heads, which a summary leaves out."""
    path = statement.manifest.path
    try:
        found = parse_manifest(path, place.read(path), verify)
    except FileMissing as error:
        raise ExportDamaged(path, Damage.MISSING, "the table names its files") from error
    if found.sha256 != statement.sha256:
        raise ExportDamaged(path, Damage.CHANGED, "not the manifest that was committed")
    return found.manifest


def _day(file: DataFile) -> str:
    return day_of(file.path)
