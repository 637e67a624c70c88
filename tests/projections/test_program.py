"""``python -m projections``: what an operator types, and what is said when it cannot be done."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, StructType

from eventstore.parquet.schema import SCHEMA as EXPORTED
from eventstore.stores.open_log import open_log
from projections.generations.place import TablesPlace
from projections.program import projections
from projections.spark.export import SCHEMA, open_export, spark_path
from projections.spark.program import cause, point_in_log, progress_steps
from projections.tables import PROJECTIONS
from tests.export.test_earlier_release import golden
from tests.histories import Act, History, random_script
from tests.projections.exports import export_log
from tests.tidy.modules import ROOT


@pytest.fixture
def export(tmp_path: Path) -> Path:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(7, 30))
        export_log(log, tmp_path / "an export", rows_max=20)
    return tmp_path / "an export"


def run(*arguments: str) -> Result:
    """Run the program here."""
    return CliRunner().invoke(projections, ["rebuild", *arguments])


S3_ERROR = """An error occurred while calling o67.parquet.
: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class S3AFileSystem not found
\tat org.apache.hadoop.conf.Configuration.getClass(Configuration.java:2737)
Caused by: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found
\tat org.apache.hadoop.conf.Configuration.getClassByName(Configuration.java:2641)
\t... 21 more
"""


NO_CONNECTOR = (
    "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found:"
    " Spark reads s3 with the package org.apache.hadoop:hadoop-aws"
)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (S3_ERROR, NO_CONNECTOR),
        ("while calling o9.x.\n: java.net.ConnectException: to host:9\n\tat a.b(C.java:1)\n",
         "ConnectException: to host:9"),
        ("An error occurred while calling o9.x.\n", "An error occurred while calling o9.x."),
        ("[FAILED_READ_FILE] Encountered x.parquet\n: a.B: c\n", "[FAILED_READ_FILE] Encountered"),
    ],
)  # fmt: skip
def test_an_error_of_java_names_its_cause(said: str, named: str) -> None:
    assert cause(said).startswith(named)


def test_a_time_beyond_what_is_exported_is_refused(export: Path, tmp_path: Path) -> None:
    later = datetime.now(UTC) + timedelta(minutes=5)
    for source, said in (
        (str(export), "the export is complete until "),
        (golden(tmp_path / "old").root, "has no completion time"),
    ):
        place = ("--from", source, "--to", str(tmp_path / "tables"))
        done = run(*place, "--as-of", later.isoformat())
        assert (done.exit_code, said in done.output) == (2, True)
        open_export(source).require(None)
        open_export(source).require(1)
    open_export(str(export)).require(datetime.now(UTC) - timedelta(minutes=2))


@pytest.mark.spark
def test_an_export_becomes_tables_with_a_catalog(
    spark_here: SparkSession,
    export: Path,
    tmp_path: Path,
) -> None:
    done = run("--from", str(export), "--to", str(tmp_path / "tables"), "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    made = TablesPlace(str(tmp_path / "tables")).generation()
    assert printed == msgspec.to_builtins(made)
    assert [table["name"] for table in printed["tables"]] == [p.name for p in PROJECTIONS]
    for table in printed["tables"]:
        assert table["about"]
        assert all(column["about"] and column["type"] for column in table["columns"])


def test_poste_ends_as_the_program_does(tmp_path: Path) -> None:
    poste = [sys.executable, "-c", "from http_edge.cli.main import main; main()"]
    command = [*poste, "audit", "replays", "--from", str(tmp_path)]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.startswith("poste: ")
    assert "there is no export here" in failed.stderr


def test_a_place_without_an_export_is_said(tmp_path: Path) -> None:
    for source, why in ((tmp_path, "there is no export here"), (tmp_path / "x", "no such folder")):
        done = run("--from", str(source), "--to", str(tmp_path / "tables"))
        assert (done.exit_code, why in done.output) == (3, True)
        assert done.output.startswith("projections: "), "errors name the program that was typed"
    assert not (tmp_path / "tables").exists()


def test_a_terminal_shows_each_step_and_a_pipe_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (True, False):
        stderr = io.StringIO()
        monkeypatch.setattr(stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress_steps("Writing the report", 2) as steps:
            steps.update(1, "messages")
            steps.update(1, "volume")
        shown = stderr.getvalue()
        words = ("Writing the report", "0/2", "Spark", "1/2", "messages", "2/2", "volume")
        assert [word in shown for word in words] == [is_terminal] * len(words)


def test_a_missing_and_a_truncated_file_are_named(export: Path, tmp_path: Path) -> None:
    first, *_ = sorted(export.glob("events/*/*.parquet"))
    content = first.read_bytes()
    for spoil in (lambda: first.write_bytes(content[:-1]), first.unlink):
        spoil()
        done = run("--from", str(export), "--to", str(tmp_path / "tables"))
        assert (done.exit_code, first.name in done.output) == (4, True)


def test_a_point_in_the_log_is_a_position_or_a_time() -> None:
    assert point_in_log("0012") == 12
    assert point_in_log("2030-12-31T23:59:59Z") == datetime(2030, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert point_in_log("2030-12-31T23:59") == datetime(2030, 12, 31, 23, 59, tzinfo=UTC)
    assert point_in_log("2031-01-01 01:00+01:00") == datetime(2031, 1, 1, tzinfo=UTC)
    for text in ("", "-1", "½", "yesterday", "12e3"):
        with pytest.raises(click.BadParameter, match="neither"):
            point_in_log(text)


def test_paths_and_addresses_are_written_as_spark_does(tmp_path: Path) -> None:
    assert spark_path(str(tmp_path / "a b") + "/") == f"file://{tmp_path}/a b"
    assert spark_path("s3://bucket/a/b/?region=eu") == "s3a://bucket/a/b"
    assert spark_path("hdfs://name:8020/a") == "hdfs://name:8020/a"


def _in_arrow(kind: DataType) -> pa.DataType:
    """The exported type that Spark reads as this one."""
    match kind:
        case ArrayType():
            return pa.list_(_in_arrow(kind.elementType))
        case StructType():
            return pa.struct([(field.name, _in_arrow(field.dataType)) for field in kind])
        case _:
            return {
                "bigint": pa.int64(), "binary": pa.binary(), "boolean": pa.bool_(),
                "double": pa.float64(), "string": pa.string(),
                "timestamp": pa.timestamp("us", tz="UTC"),
            }[kind.simpleString()]  # fmt: skip


def test_every_column_that_is_read_is_exported_as_that_type() -> None:
    for field in SCHEMA:
        kind = EXPORTED.field(field.name).type
        if field.name == "stream":
            kind = pa.binary()  # whose length is fixed where it is exported
        assert kind == _in_arrow(field.dataType), field.name


@pytest.mark.spark
def test_what_was_refused_is_read_entry_by_entry(spark: SparkSession, tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        for more in (4, 6):
            history.count_refusals(Act(0, 0, 0, more))
        history.commit()
        export_log(log, tmp_path / "export", rows_max=100)
    events = open_export(str(tmp_path / "export")).events(spark)
    rows = events.where("type = 'refusals-counted'").orderBy("position").collect()
    assert [(row.identity, row.edge, row.until - row.since) for row in rows] == [
        ("edge:edge-0", "edge-0", timedelta(minutes=1))
    ] * 2
    assert [[(e.protocol, e.reason, e["count"]) for e in row.refusals] for row in rows] == [
        [("decentrl", "DUPLICATE_NONCE", 5)],
        [("decentrl", "DUPLICATE_NONCE", 7)],
    ]
    (entry,) = rows[0].refusals
    assert entry.last_at - entry.first_at == timedelta(milliseconds=1)


@pytest.mark.spark
def test_a_file_that_was_changed_is_named_in_one_line(spark: SparkSession, export: Path) -> None:
    first, *_ = sorted(export.glob("events/*/*.parquet"))
    first.write_bytes(bytes(first.stat().st_size))
    with pytest.raises((PySparkException, Py4JError)) as caught:
        open_export(str(export), skip_hashes=True).events(spark).count()
    said = cause(str(caught.value))
    assert first.name in said
    assert "\n" not in said
