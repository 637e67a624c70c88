"""Reads the rows of the log back from an export, with only the columns of the log itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore.log.content import without_content
from eventstore.log.event_log import LogRow
from eventstore.parquet.catalog import Catalog, read_data
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile, Manifest, heads_of
from eventstore.parquet.schema import SCHEMA, with_added
from eventstore.stores.restore import LogSection

_OF_THE_LOG: Final = ("position", "stream", "version", "type", "type_version", "state")
_ROWS_AT_ONCE: Final = 16_384


def read_table(
    place: ExportPlace,
    file: DataFile,
    columns: Sequence[str] = SCHEMA.names,
    *,
    is_compared: bool = True,
) -> pa.Table:
    """Read columns of a data file, after comparing its content as ``read_data`` does.

    Raises:
        ExportDamaged: the file is missing, changed, or not of this schema.
        ExportUnavailable: the file cannot be read now.
    """
    content = read_data(place, file, is_compared=is_compared)
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(
            columns=list(columns), use_threads=False
        )
        if table.schema.metadata == SCHEMA.metadata and table.num_rows == file.rows:
            wanted = pa.schema(map(SCHEMA.field, columns), SCHEMA.metadata)
            return with_added(table, columns).cast(wanted)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ExportDamaged(file.path, Damage.CHANGED, str(error)) from error
    raise ExportDamaged(file.path, Damage.CHANGED, "not the rows that its manifest names")


def exported_sections(
    place: ExportPlace, catalog: Catalog, until: int | None = None
) -> Iterator[LogSection]:
    """Yield the rows of an export in the order of the log; compare each file with its SHA-256.

    The last section of a manifest has the heads that the manifest names. Manifests that begin
    after ``until`` are not read. Memory: the tables of three data files (``manifest_tables``),
    because the next one is read ahead.

    Raises:
        ExportDamaged: a file is not what its manifest says.
        ExportUnavailable: a file cannot be read now.
    """
    manifests = [
        s.manifest for s in catalog.statements if until is None or s.manifest.first <= until
    ]
    tables = (
        (manifest, table, is_last)
        for manifest in manifests
        for table, is_last in manifest_tables(place, manifest)
    )
    with ThreadPoolExecutor(1, "export-rows") as reader:
        ahead = reader.submit(next, tables, None)
        while (found := ahead.result()) is not None:
            ahead = reader.submit(next, tables, None)
            manifest, table, is_last = found
            left = table.num_rows
            for rows in _pages(table):
                left -= len(rows)
                ends = is_last and not left
                heads = heads_of(manifest.path, manifest) if ends else None
                yield LogSection(rows, heads, manifest.is_pruned)


def manifest_rows(place: ExportPlace, manifest: Manifest) -> Iterator[list[LogRow]]:
    """Read the rows of a manifest, sorted by position, some thousands at a time.

    Raises as ``read_table``.
    """
    for table, _ in manifest_tables(place, manifest):
        yield from _pages(table)


def manifest_tables(place: ExportPlace, manifest: Manifest) -> Iterator[tuple[pa.Table, bool]]:
    """Read the rows of a manifest as ``in_order``, with the columns of the log.

    Raises as ``read_table``.
    """

    def read(file: DataFile) -> pa.Table:
        table = read_table(place, file, _OF_THE_LOG)
        bounds = pc.min_max(table["position"]).as_py()
        if (bounds["min"], bounds["max"]) != (file.first, file.last):
            why = f"positions {bounds['min']} to {bounds['max']}, not those of its name"
            raise ExportDamaged(file.path, Damage.MISPLACED, why)
        return table

    return in_order(manifest.files, read)


def in_order(
    files: Iterable[DataFile], read: Callable[[DataFile], pa.Table]
) -> Iterator[tuple[pa.Table, bool]]:
    """Read the rows of a manifest, sorted by position, a data file at a time; is it the last one?

    A step over midnight has a file per day, whose positions may interleave; a manifest of what was
    pruned has any number. A file is read once all rows before its first one were taken. Memory: two
    data files, and the rows behind the next one's first.

    Args:
        files: the files of the manifest.
        read: reads the rows of one of them, sorted by position. What it raises ends the reading.
    """
    by_first = sorted(files, key=lambda file: file.first)
    waiting: list[pa.Table] = []
    for file, after in zip_longest(by_first, by_first[1:]):
        table = read(file)
        if len(by_first) > 1:
            table = pa.concat_tables([*waiting, table]).sort_by("position")
        if after is None:
            yield table, True
            return
        ready = pc.sum(pc.less(table["position"], after.first), min_count=0).as_py()
        yield table.slice(0, ready), False
        waiting = [table.slice(ready)]


def _pages(table: pa.Table) -> Iterator[list[LogRow]]:
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield log_rows(table.slice(start, _ROWS_AT_ONCE))


def log_rows(table: pa.Table) -> list[LogRow]:
    """Rows of the log, from a table of an export."""
    topics = pc.binary_join_element_wise(
        table["type"], pc.cast(table["type_version"], pa.string()), "."
    )
    encoded = topics.combine_chunks().dictionary_encode()  # one text for all rows of a topic
    names = map(encoded.dictionary.to_pylist().__getitem__, encoded.indices.to_pylist())
    facts, contents = zip(*map(without_content, table["state"].to_pylist()), strict=True)
    columns = (table[name].to_pylist() for name in ("position", "stream", "version"))
    return list(map(LogRow, *columns, names, facts, contents))
