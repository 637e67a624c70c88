"""The rebuilt tables on disk and their catalog, which says what each one holds.

    <target>/catalog.json                            what is valid; replaced whole, at the end
    <target>/<generation>/<table>/part-*.parquet     tables; a later generation has its own folder

Nothing is read that the catalog does not name: a rebuild that was interrupted changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyspark.sql import DataFrame, SparkSession

from eventstore.parquet.files import ExportPlace, FileMissing, open_place
from projections.errors import UNSAFE, ProjectionError
from projections.spark.export import Position, spark_path
from projections.tables.projection import Projection

FORMAT: Final = 1
CATALOG: Final = "catalog.json"


class TablesDamaged(ProjectionError):
    """The catalog of earlier tables cannot be read, or is of another release."""

    exit_code = UNSAFE


class CatalogColumn(msgspec.Struct, frozen=True):
    """One column: its type as Spark names it, and what it holds."""

    name: str
    type: str
    about: str


class CatalogTable(msgspec.Struct, frozen=True):
    """One table: a folder of Parquet files below the target."""

    name: str
    about: str
    path: str
    rows: int
    columns: Sequence[CatalogColumn]


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The catalog: tables as the log stood at one position.

    ``positions`` are those of its databases, ``position`` is their sum. ``at_ms`` is the latest
    recorded time up to there, Unix milliseconds; ``window_ms_max``
    the longest timestamp window of any seal. ``mediator`` and ``public_key`` name the export;
    ``pseudonyms`` is the fingerprint of the key that names were replaced by, empty for none.
    """

    format: int = FORMAT
    mediator: str
    public_key: str
    generation: int
    position: int
    positions: Sequence[int] = ()
    at_ms: int
    window_ms_max: int
    pseudonyms: str = ""
    tables: Sequence[CatalogTable]

    @property
    def at(self) -> Position:
        """The position; earlier releases knew one database."""
        return tuple(self.positions) or (self.position,)

    def table(self, name: str) -> CatalogTable:
        """The table of this name.

        Raises:
            KeyError: there is none.
        """
        return {table.name: table for table in self.tables}[name]


class TablesPlace:
    """A folder of tables, at a path of this machine or a URI."""

    def __init__(self, target: str) -> None:
        self._place: ExportPlace = open_place(target)
        self._root = spark_path(target)

    def catalog(self) -> Tables | None:
        """The catalog, None where there are no tables yet.

        Raises:
            TablesDamaged: it is none that this release can read.
        """
        try:
            tables = msgspec.json.decode(self._place.read(CATALOG), type=Tables)
        except FileMissing:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TablesDamaged(f"{self._place.full_path(CATALOG)}: {error}") from error
        if tables.format != FORMAT:
            raise TablesDamaged(f"{self._place.full_path(CATALOG)}: format {tables.format}")
        return tables

    def read(self, spark: SparkSession, table: CatalogTable) -> DataFrame:
        """The rows of a table."""
        schema = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
        return spark.read.schema(schema).parquet(f"{self._root}/{table.path}")

    def write(self, generation: int, projection: Projection, rows: DataFrame) -> CatalogTable:
        """Write a table of a new generation, which counts only when the catalog names it."""
        path = f"{generation:06d}/{projection.name}"
        rows.write.mode("overwrite").parquet(f"{self._root}/{path}")
        return CatalogTable(
            projection.name,
            projection.about,
            path,
            self._count(path),
            [
                CatalogColumn(
                    field.name, field.dataType.simpleString(), projection.columns[field.name]
                )
                for field in rows.schema
            ],
        )

    def commit(self, tables: Tables) -> None:
        """Make these tables the ones that count, and remove all others."""
        content = msgspec.json.format(msgspec.json.encode(tables), indent=2)
        self._place.write(CATALOG, content + b"\n")
        kept = {table.path for table in tables.tables}
        for generation in self._folders(""):
            if generation.isdecimal():
                inside = {f"{generation}/{name}" for name in self._folders(generation)}
                for path in inside - kept if inside & kept else {generation}:
                    self._place.filesystem.delete_dir(self._place.full_path(path))

    def _folders(self, path: str) -> list[str]:
        """Names of the folders in a folder."""
        found = self._place.filesystem.get_file_info(FileSelector(self._place.full_path(path)))
        return [info.base_name for info in found if info.type == FileType.Directory]

    def _count(self, path: str) -> int:
        """Rows of a table, by the footers of its files."""
        return sum(
            pq.read_metadata(
                self._place.full_path(file), filesystem=self._place.filesystem
            ).num_rows
            for file in self._place.sizes(path)
            if file.endswith(".parquet")
        )
