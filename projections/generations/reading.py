"""The tables of one generation as DataFrames, whatever is rebuilt meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from projections.generations.delta_folder import TablesDamaged
from projections.generations.generation import Generation, GenerationTable, TableFile
from projections.generations.place import TablesPlace
from projections.spark.export import spark_path


class OpenedTables:
    """A generation that was opened: what is read stays the same as long as it is kept."""

    def __init__(self, spark: SparkSession, place: TablesPlace, generation: Generation) -> None:
        self.generation = generation
        self._spark = spark
        self._place = place

    def table(self, name: str) -> DataFrame:
        """The rows of a table.

        Raises:
            KeyError: there is no such table.
        """
        table = self.generation.table(name)
        return read_files(self._spark, self._place, table, table.files)


def open_tables(spark: SparkSession, target: str, generation: int | None = None) -> OpenedTables:
    """The tables at a path or a URI, of one generation, or of the newest one.

    Raises:
        TablesDamaged: there are none, or they are not what the generation says.
        ExportUnavailable: the place cannot be read now.
    """
    place = TablesPlace(target)
    found = place.generation(generation)
    if found is None:
        raise TablesDamaged(f"{target}: no rebuilt tables are here")
    place.check(found)
    return OpenedTables(spark, place, found)


def read_files(
    spark: SparkSession, place: TablesPlace, table: GenerationTable, files: Sequence[TableFile]
) -> DataFrame:
    """The rows in these files of a table."""
    schema = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    if not files:
        return spark.createDataFrame([], schema)
    root = f"{spark_path(place.target)}/{table.name}"
    rows = spark.read.schema(schema).parquet(*[f"{root}/{file.path}" for file in files])
    return rows.select(*[column.name for column in table.columns])
