"""Checks one data file of an export against its manifest: its bytes, schema and order of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from eventstore.log.faults import Fault
from eventstore.parquet.columns import types_in
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.schema import SCHEMA, with_added
from eventstore.parquet.table import Described, statistics_of
from eventstore.parquet.verify.findings import ExportFinding, file_finding

_REPORTED_MAX: Final = 20
"""The most misplaced rows of a file that are reported; all rows are checked, sorted."""


class ReadFile(NamedTuple):
    """A data file that was read, and its findings."""

    table: pa.Table | None
    """The file's rows; None if it is not whole, or has no rows of this schema."""
    findings: Sequence[ExportFinding]
    is_whole: bool
    """Whether it is, to the byte, the file that the manifest names."""


def read_file(place: ExportPlace, file: DataFile, described: Described | None = None) -> ReadFile:
    """Read a data file; of a damaged one say so, with the positions of its rows.

    A file that is not the one its manifest names is not decoded: some kilobytes that someone put
    there can decode to any size, and its footer, which no hash covers then, need not say so.

    ``described`` is what the table says of the file; None if that is unknown, or was checked.

    Raises:
        FileMissing: there is no such file.
        ExportUnavailable: the place cannot be read now.
    """
    content = place.read(file.path, file.bytes)
    damage = _byte_damage(file, content)
    if damage is not None:
        return ReadFile(None, [damage], is_whole=False)
    try:
        footer, table = _contents(content)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        why = f"not a file of this schema: {str(error).splitlines()[0]}"
        return ReadFile(None, [file_finding(file.path, Damage.CHANGED, why)], is_whole=True)
    findings = [*_disorder(file, table), *_contradictions(file, table)]
    findings += misleading(file, footer, table)
    if described is not None and not _fits(described, file, footer):
        why = "the table has another day or other bounds for it, by which programs pass it over"
        findings.append(file_finding(file.path, Damage.BROKEN_COMMIT, why))
    return ReadFile(table, findings, is_whole=True)


def _byte_damage(file: DataFile, content: bytes) -> ExportFinding | None:
    fault, why = Damage.CHANGED, "its SHA-256 is not that of the manifest"
    if len(content) != file.bytes:
        size = f"{'at least ' * (len(content) > file.bytes)}{len(content)} bytes"
        fault, why = Damage.TRUNCATED, f"{size}, {file.bytes} when it was written"
    elif hashlib.sha256(content).hexdigest() == file.sha256:
        return None
    return replace(
        file_finding(file.path, fault, why), first_position=file.first, last_position=file.last
    )


def _contents(content: bytes) -> tuple[Any, pa.Table]:
    """The footer (``pyarrow.parquet.FileMetaData``) and the rows of a file of this schema."""
    opened = pq.ParquetFile(pa.BufferReader(content))
    table = with_added(opened.read(use_threads=False))
    if not table.schema.equals(SCHEMA) or table.schema.metadata != SCHEMA.metadata:
        raise ValueError("other columns")
    # Finds text that is not UTF-8, and lists that end before they begin.
    table.validate(full=True)
    return opened.metadata, table


def _disorder(file: DataFile, table: pa.Table) -> Iterator[ExportFinding]:
    """Yield rows that do not follow the row before, or are of another day than the file."""
    if table.num_rows == 0:
        return
    positions = table["position"].combine_chunks()
    steps = pc.pairwise_diff(positions)
    for row in _rows_where(pc.less_equal(steps, 0)):
        why = f"follows position {positions[row - 1]} in the file"
        yield _row_finding(file, table, row, Fault.WRONG_POSITION, why)
    days = table["recorded_at"].combine_chunks().cast(pa.date32(), safe=False)
    if days.unique().cast(pa.string()).to_pylist() == [file.day]:
        return
    for row in _rows_where(pc.not_equal(days.cast(pa.string()), file.day)):
        why = f"recorded_at is not of {file.day}, the day of the file"
        yield _row_finding(file, table, row, Fault.WRONG_COLUMN, why)


def _rows_where(mask: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask)[:_REPORTED_MAX].to_pylist()
    return found


def _contradictions(file: DataFile, table: pa.Table) -> Iterator[ExportFinding]:
    """Yield what the manifest says wrongly about the file, although the file is the signed one."""
    for said, stated, actual in (
        ("rows", file.rows, table.num_rows),
        ("bytes of state", file.state_bytes, pc.sum(pc.binary_length(table["state"])).as_py()),
        ("rows by type", file.types, types_in(table)),
    ):
        if stated != actual:
            why = f"its manifest says {stated} {said}, it has {actual}"
            yield file_finding(file.path, Damage.CHANGED, why)
    for said, stated, row in (("begins", file.first, 0), ("ends", file.last, table.num_rows - 1)):
        if table.num_rows and table["position"][row].as_py() != stated:
            why = f"the file {said} with position {stated}, says its manifest"
            yield _row_finding(file, table, row, Fault.WRONG_POSITION, why)


def misleading(file: DataFile, footer: Any, table: pa.Table) -> Iterator[ExportFinding]:
    """Yield parts of a file that programs would pass over for a value that they have.

    Programs go by the statistics; the exporter writes no page indexes and no Bloom filters.
    """
    start = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        rows = table.slice(start, group.num_rows)
        start += group.num_rows
        chunks = map(group.column, range(group.num_columns))
        wrong = [chunk.path_in_schema for chunk in chunks if not _leads_to(chunk, rows)]
        if wrong:
            why = f"the statistics of its row group {number} do not fit its rows: "
            yield file_finding(file.path, Damage.CHANGED, why + ", ".join(wrong))


def _leads_to(chunk: Any, rows: pa.Table) -> bool:
    """Whether a program that goes by what a column's chunk says of itself finds all its values."""
    said = chunk.statistics
    if chunk.has_column_index or chunk.has_offset_index or chunk.bloom_filter_offset is not None:
        return False
    if said is None:
        return True
    if chunk.path_in_schema not in SCHEMA.names:
        return False  # the exporter writes none of values within lists
    values = rows[chunk.path_in_schema]
    if said.has_null_count and said.null_count != values.null_count:
        return False
    if values.null_count == len(values):
        return True  # most columns have no value in most files
    if pa.types.is_string(values.type) or pa.types.is_timestamp(values.type):
        values = values.cast(pa.binary() if pa.types.is_string(values.type) else pa.int64())
    found = pc.min_max(values).as_py()
    return not said.has_min_max or (said.min_raw <= found["min"] and found["max"] <= said.max_raw)


def _fits(described: Described, file: DataFile, footer: Any) -> bool:
    """Whether a table's entry has the day of the file and no other bounds than its footer."""
    day, bounds = described
    columns = {name for kind in bounds.values() for name in kind} & {*SCHEMA.names}
    try:
        found = statistics_of(footer, columns)
    except (KeyError, ValueError, OverflowError):
        return False  # bounds of a column of lists, or a time that is none
    said = [(kind, name, bound) for kind in bounds for name, bound in bounds[kind].items()]
    return day == file.day and all(found[kind].get(name) == bound for kind, name, bound in said)


def _row_finding(
    file: DataFile, table: pa.Table, row: int, fault: Fault, why: str
) -> ExportFinding:
    named = table.slice(row, 1).select(["position", "shard", "stream", "version"])
    found = named.to_pylist()[0]
    return ExportFinding(
        fault=fault,
        path=file.path,
        row=row,
        first_position=found["position"],
        last_position=found["position"],
        shard=found["shard"],
        stream=UUID(bytes=found["stream"]),
        version=found["version"],
        explanation=why,
    )
