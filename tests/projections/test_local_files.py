"""Files that Spark writes on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
