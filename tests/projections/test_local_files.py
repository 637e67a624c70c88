"""Files that Spark writes and reads on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from projections.generations.place import TablesPlace
from projections.generations.reading import read_files
from projections.spark.export import open_export

pytestmark = pytest.mark.spark


def test_spark_sets_no_permission_for_which_it_would_start_a_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All that it writes is written by the same object, with the permissions of the umask."""
    java, file = spark._jvm, tmp_path / "file"
    file.touch()
    file.chmod(0o640)  # whatever the umask is
    fs = java.org.apache.hadoop.fs
    files = fs.FileSystem.get(
        java.java.net.URI("file:///"), spark.sparkContext._jsc.hadoopConfiguration()
    )
    files.setPermission(fs.Path(str(file)), fs.permission.FsPermission(0o777))
    assert file.stat().st_mode & 0o777 == 0o640
    rows = spark.range(5).selectExpr("id", "id AS part")
    rows.write.partitionBy("part").parquet(str(tmp_path / "rows"))
    written = [path.suffix for path in (tmp_path / "rows").rglob("*") if path.is_file()]
    assert written == [".parquet"] * 5
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 5


def test_spark_starts_no_python_for_rows_of_which_there_are_none(
    spark: SparkSession, filled: Path
) -> None:
    place, export = TablesPlace(str(filled / "tables")), open_export(str(filled / "export"))
    tables = place.opened()
    assert tables is not None
    for none in (read_files(spark, place, tables.tables[0], []), export.events(spark, until=(0,))):
        assert none.columns
        assert none.count() == 0
        plan = none._jdf.queryExecution().executedPlan().toString()
        assert "ExistingRDD" not in plan, "rows that a Python gives"
