"""Puts small files together: many steps become one, with one manifest in place of theirs.

The new manifest is the commit. Until it stands, the old ones count; from then on they lie inside
its positions and are ignored, and ``commit.sweep`` removes them and their files. Programs that
read the export meanwhile have the old files open, so the sweep is left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile, Manifest, Signer, Statement
from eventstore.parquet.rows import read_table
from eventstore.parquet.write.commit import write_data, write_manifest
from eventstore.parquet.write.step import Bounds


def compact(
    place: ExportPlace, catalog: Catalog, signer: Signer, *, files_min: int, bounds: Bounds
) -> Iterator[Manifest]:
    """Put runs of small steps together, earliest first; yields each new manifest.

    A run has at least ``files_min`` (two or more) steps, none with more rows than all others
    together, and stays within the bounds: so a row is written again only into a file at least
    twice as large, and memory is bounded as in a step. The content of each file is compared with
    its manifest before it is written again.

    Raises:
        ExportDamaged: a file is not what its manifest says.
        ExportUnavailable: the place cannot be read or written now.
    """
    for run in runs(catalog.statements, files_min=files_min, bounds=bounds):
        first, last = run[0].manifest, run[-1].manifest
        manifest = Manifest(
            format=last.format,
            schema=last.schema,
            first=first.first,
            last=last.last,
            rows=sum(statement.manifest.rows for statement in run),
            files=list(_merged_files(place, run)),
            heads=last.heads,
            replaces=[statement.manifest.path for statement in run],
            stands_for=run[-1].link,
            previous=first.previous,
            signed_by=signer.signed_by,
        )
        yield write_manifest(place, manifest, signer).manifest


def runs(
    statements: Sequence[Statement], *, files_min: int, bounds: Bounds
) -> Iterator[Sequence[Statement]]:
    """The runs of consecutive steps that are worth putting together."""
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


def _day(file: DataFile) -> str:
    return file.path.split("/")[1].removeprefix("date=")
