"""The exported log as a table of Delta Lake, which other programs open at a version.

The table is the folder ``events``, partitioned by ``date``, the day of a file's rows. Each of its
versions was committed by the exporter (``eventstore.parquet.write.table``) and carries a signed
``TableVersion``. The library reads and writes the format; it alone knows how to commit to a store
so that of two commits of one version only one succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import EVENTS, TABLE_LOG, ExportPlace
from eventstore.parquet.schema import SCHEMA

DATE: Final = "date"
"""The column by which the table is partitioned; it stands in the paths of files alone."""
ARROW_SCHEMA: Final = pa.schema([pa.field(DATE, pa.date32(), nullable=False), *SCHEMA])
DELTA_SCHEMA: Final = Schema.from_arrow(ARROW_SCHEMA)
_STYLE: Final = re.compile(r"\x1b\[\d+m|\s*↳\s*|\n\s*")


class ReadTable(NamedTuple):
    """A table at one version."""

    table: DeltaTable
    version: int
    files: Mapping[str, TableFile]
    """By their path in the export."""


class TableFile(NamedTuple):
    """What the table says about a data file."""

    bytes: int
    rows: int


def open_table(place: ExportPlace, version: int | None = None) -> DeltaTable | None:
    """The table of an export, at a version or as it is now; None where there is none.

    Raises:
        ExportDamaged: its log cannot be read, or does not have the version.
        ExportUnavailable: the place cannot be read now.
    """
    try:
        with table_errors(place):
            return DeltaTable(
                place.table.uri, version=version, storage_options=dict(place.table.options)
            )
    except TableNotFoundError:
        return None


def read_table(place: ExportPlace, version: int | None = None) -> ReadTable:
    """The files of the table at a version, or as it is now. Raises as ``open_table``."""
    table = open_table(place, version)
    if table is None:
        raise ExportDamaged(TABLE_LOG, Damage.MISSING, "the export has a table")
    return ReadTable(table, table.version(), files_of(place, table))


def files_of(place: ExportPlace, table: DeltaTable) -> dict[str, TableFile]:
    """The files of an opened table. Raises as ``open_table``."""
    with table_errors(place):
        # pa.table would import pandas, where it is installed, to see that this is none of it.
        actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return {
        f"{EVENTS}/{path}": TableFile(size, rows) for path, size, rows in zip(*columns, strict=True)
    }


@contextmanager
def table_errors(place: ExportPlace) -> Iterator[None]:
    """Errors of the library as ours: of the store where it cannot be read, else of the log.

    Raises:
        TableNotFoundError: there is no table.
        CommitFailedError: another process committed this version.
        ExportDamaged, ExportUnavailable: see above.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except TableNotFoundError:
        # What is no table to the library may be a store that is gone, or a log that was cut.
        if any(path.endswith(".json") for path in place.sizes(TABLE_LOG)):
            raise ExportDamaged(TABLE_LOG, Damage.BROKEN_COMMIT, "its beginning is gone") from None
        raise
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        try:
            place.sizes(TABLE_LOG)
        except ExportUnavailable as unavailable:
            raise unavailable from error
        raise ExportDamaged(TABLE_LOG, Damage.BROKEN_COMMIT, said_by_library(error)) from error


def said_by_library(error: Exception) -> str:
    """What the library says, on one line and without colours."""
    text = str(error).partition("stack backtrace:")[0].partition("\n   0: ")[0]
    return _STYLE.sub(" ", text).strip()
