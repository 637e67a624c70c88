"""The exported log as a Delta Lake table, which other programs open at a version.

The table is the folder ``events``, partitioned by ``date``, the day of a file's rows. Each of its
versions was committed by the exporter (``eventstore.parquet.write.table``) and carries a signed
``TableVersion``. The library ``deltalake`` reads and writes the format, and commits to a store so
that of two commits of one version only one succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import EVENTS, STATEMENT_BYTES_MAX, TABLE_LOG, ExportPlace
from eventstore.parquet.manifest import check_size
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.versions import (
    EndMark,
    TableVersion,
    is_checkpoint_due,
    is_torn,
    version_of,
)

DATE: Final = "date"
"""The column that partitions the table; only the paths of files have it."""
ARROW_SCHEMA: Final = pa.schema([pa.field(DATE, pa.date32(), nullable=False), *SCHEMA])
DELTA_SCHEMA: Final = Schema.from_arrow(ARROW_SCHEMA)
STATISTICS: Final = (
    *("position", "shard", "version", "type", "recorded_at", "message_id", "size_bytes"),
)
"""Columns whose bounds the table has, so that programs skip files without opening them. No column
has names: these would stay in the table's log after they have left the rows."""
_TEXT_MAX: Final = 256
"""The most characters of a bound; a column with a longer bound gets none in that file's entry."""
LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The file that says to the library which checkpoint is the newest."""
_CHECKPOINT: Final = re.compile(r"/([0-9]{20})\.checkpoint\.parquet\Z")
_OTHER_CHECKPOINT: Final = re.compile(r"/[0-9]{20}\.checkpoint\.[^/]*\.(json|parquet)\Z")
"""Of forms of checkpoints that the library reads, too."""
_STYLE: Final = re.compile(r"\x1b\[\d+m|\s*↳\s*|\n\s*")


class TableFile(NamedTuple):
    """What the table says about a data file."""

    bytes: int
    rows: int


Described: TypeAlias = tuple[str, dict[str, dict[str, Any]]]
"""The day and the statistics (``statistics_of``) that a table has for a data file."""


def open_table(place: ExportPlace, version: int | None = None) -> DeltaTable | None:
    """Open the table of an export, at a version or the newest one; None if there is no table.

    The library that opens it is shown no file that would end this process.

    Raises:
        ExportDamaged: the table's log cannot be read, or does not have the version.
        ExportUnavailable: the place cannot be read now.
    """
    _check_commits(place, version)
    return open_checked_table(place, version)


def open_checked_table(place: ExportPlace, version: int | None) -> DeltaTable | None:
    """Open a table as ``open_table``, whose log this process has looked at, or has written, before.

    The look reads the list of all commits that are kept: too much for each step of an exporter.
    """
    try:
        with table_errors(place):
            return DeltaTable(
                place.table.uri, version=version, storage_options=dict(place.table.options)
            )
    except TableNotFoundError:
        return None


def _check_commits(place: ExportPlace, version: int | None) -> None:
    """Refuse commits at which the library would end the process: it reads nested JSON recursively.

    It reads those behind the newest checkpoint up to the version. Raises as ``open_table``.
    """
    sizes = place.sizes(TABLE_LOG)
    for path in filter(_OTHER_CHECKPOINT.search, sizes):
        raise ExportDamaged(path, Damage.STRAY, "no exporter makes such a checkpoint")
    hint = f"{TABLE_LOG}/{LAST_CHECKPOINT}"
    if sizes.get(hint, 0) > STATEMENT_BYTES_MAX:  # the library reads it whole
        raise ExportDamaged(hint, Damage.CHANGED, f"more than {STATEMENT_BYTES_MAX} bytes")
    _, reached = _newest_checkpoint(sizes, version)
    commits = sorted(path for path in sizes if version_of(path) > reached)
    for path, content in place.read_all(commits):
        check_size(path, content)
        if is_torn(content):
            raise ExportDamaged(path, Damage.BROKEN_COMMIT, "torn, or JSON nested without end")


def _newest_checkpoint(sizes: Mapping[str, int], version: int | None) -> tuple[str, int]:
    """The path and version of the checkpoint that the library reads; ``("", -1)`` for none."""
    found = ((int(one[1]), path) for path, size in sizes.items() if size
             for one in _CHECKPOINT.finditer(path))  # fmt: skip
    reached, path = max((one for one in found if version is None or one[0] <= version),
                        default=(-1, ""))  # fmt: skip
    return path, reached


def check_checkpoint(
    place: ExportPlace, sizes: Mapping[str, int], said: TableVersion, mark: EndMark | None
) -> None:
    """Check that the library, opening the newest version, decodes only a checkpoint that is signed.

    ``sizes`` are of the files in the table's log, listed after the mark was read. An exporter may
    have been killed before it signed one that was due.

    Raises:
        ExportDamaged: it is another file than the signed one, or nothing signed names it.
        ExportUnavailable: the place cannot be read now.
    """
    path, reached = _newest_checkpoint(sizes, said.version)
    named = {**(mark.checkpoint if mark else {}), **said.checkpoint}
    sha256 = named.get(path.removeprefix(f"{TABLE_LOG}/"))
    is_unmarked = mark is None or mark.version < said.version
    if sha256 is not None and place.sha256(path) != sha256:
        raise ExportDamaged(path, Damage.CHANGED, "its SHA-256 is not the signed one")
    if (
        sha256 is None
        and path
        and not (reached == said.version and is_unmarked and is_checkpoint_due(said))
    ):
        raise ExportDamaged(path, Damage.STRAY, "no commit names it")


def require_table(place: ExportPlace, version: int | None = None) -> DeltaTable:
    """Open the table of an export that must have one. Raises as ``open_table``."""
    table = open_table(place, version)
    if table is None:
        raise ExportDamaged(TABLE_LOG, Damage.MISSING, "the export has a table")
    return table


def files_of(place: ExportPlace, table: DeltaTable) -> dict[str, TableFile]:
    """The files of an opened table by their path in the export. Raises as ``open_table``."""
    actions = _actions_of(place, table)
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return {
        f"{EVENTS}/{path}": TableFile(size, rows) for path, size, rows in zip(*columns, strict=True)
    }


def _actions_of(place: ExportPlace, table: DeltaTable) -> pa.Table:
    with table_errors(place):
        # pa.table would import pandas, if installed, to check that this is not a data frame.
        return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()


def described_in(place: ExportPlace, table: DeltaTable) -> dict[str, Described]:
    """What an opened table says of each file. Raises as ``open_table``."""
    kinds = {"minValues": "min", "maxValues": "max", "nullCount": "null_count"}
    return {
        f"{EVENTS}/{action['path']}": (
            action["partition"][DATE].isoformat(),
            {
                kind: {
                    n: _as_json(v) for n, v in (action.get(column) or {}).items() if v is not None
                }
                for kind, column in kinds.items()
            },
        )
        for action in _actions_of(place, table).to_pylist()
    }


def statistics_in(place: ExportPlace, path: str) -> dict[str, dict[str, Any]]:
    """The bounds of ``STATISTICS`` in the footer of a data file, in the form of a table's log.

    Raises:
        FileMissing: there is no such file.
        ExportDamaged: it is no Parquet file.
        ExportUnavailable: it cannot be read now.
    """
    try:
        with place.opened(path) as file:
            return statistics_of(pq.read_metadata(file), STATISTICS)
    except pa.ArrowException as error:
        raise ExportDamaged(path, Damage.CHANGED, str(error)) from error


def statistics_of(footer: Any, columns: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The bounds of columns in a Parquet footer, in the form of a table's log.

    Args:
        footer: ``pyarrow.parquet.FileMetaData``.
        columns: names of columns that hold no lists.

    Returns:
        ``minValues``, ``maxValues`` and ``nullCount`` by column; bounds only if they are known.
    """
    numbers = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    row_groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name in columns:
        groups = [group.column(numbers[name]).statistics for group in row_groups]
        if any(found is None or not found.has_null_count for found in groups):
            continue
        nulls[name] = sum(found.null_count for found in groups)
        with_values = [found for found in groups if found.num_values]
        if not with_values or not all(found.has_min_max for found in with_values):
            continue
        low = _as_json(min(found.min for found in with_values))
        high = _as_json(max(found.max for found in with_values))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return {"minValues": least, "maxValues": most, "nullCount": nulls}


def _as_json(value: Any) -> Any:
    """A bound in the table's format: times in UTC, to the microsecond; None for no bound."""
    match value:
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case bool() | bytes() | date():
            return None
        case str():
            return value if len(value) <= _TEXT_MAX else None
        case _:
            return value


@contextmanager
def table_errors(place: ExportPlace) -> Iterator[None]:
    """Translate errors of the library in a read: unavailable if a file is not given, else damaged.

    Raises:
        TableNotFoundError: there is no table.
        ExportDamaged, ExportUnavailable: see above.
    """
    try:
        yield
    except TableNotFoundError:
        # The library finds no table also if the store is gone, or the table's log was cut.
        if any(path.endswith(".json") for path in place.sizes(TABLE_LOG)):
            raise ExportDamaged(TABLE_LOG, Damage.BROKEN_COMMIT, "its beginning is gone") from None
        raise
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        require_given(place, TABLE_LOG, error)
        raise ExportDamaged(TABLE_LOG, Damage.BROKEN_COMMIT, said_by_library(error)) from error


@contextmanager
def write_errors(place: ExportPlace) -> Iterator[None]:
    """Translate errors of the library in a write: damaged if the table cannot be read either.

    Raises:
        CommitFailedError: another process committed this version.
        ExportDamaged: the log of the table cannot be read.
        ExportUnavailable: the place cannot be written now.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        open_table(place)
        raise ExportUnavailable(TABLE_LOG, said_by_library(error)) from error


def require_given(place: ExportPlace, folder: str, error: Exception) -> None:
    """Check that a place gave the files of a table's log, after this error of a read.

    Of a checkpoint that it does not give, the library says what it says of one that it cannot
    decode.

    Raises:
        ExportUnavailable: the place does not give them now.
    """
    try:
        checkpoints = [path for path in place.sizes(folder) if ".checkpoint" in path]
        for path in sorted(checkpoints)[-1:]:
            place.sha256(path)
    except ExportUnavailable as unavailable:
        raise unavailable from error
    if isinstance(error, OSError):
        raise ExportUnavailable(folder, said_by_library(error)) from error


def said_by_library(error: Exception) -> str:
    """The library's error message, on one line and without colours."""
    text = str(error).partition("stack backtrace:")[0].partition("\n   0: ")[0]
    return _STYLE.sub(" ", text).strip()
