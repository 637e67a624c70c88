"""Reads the rows of a table as a DataFrame, unaffected by later rebuilds."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from projections.generations.generation import GenerationTable, TableFile
from projections.generations.place import TablesPlace
from projections.spark.export import read_parquet, spark_path


def read_files(
    spark: SparkSession, place: TablesPlace, table: GenerationTable, files: Sequence[TableFile]
) -> DataFrame:
    """The rows in these files of a table."""
    schema = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    root = f"{spark_path(place.target)}/{table.name}"
    rows = read_parquet(spark, schema, [f"{root}/{file.path}" for file in files])
    return rows.select(*[column.name for column in table.columns])
