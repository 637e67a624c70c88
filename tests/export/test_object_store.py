"""The export in an S3 store: a real server of this machine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from moto.server import ThreadedMotoServer

import projections
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import END, open_place
from tests.export.samples import (
    Growing,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_export_to_s3_follows_compacts_and_reads_back(sqlite_log: EventLog, s3_uri: str) -> None:
    place = open_place(s3_uri)
    growing = Growing(sqlite_log)
    for _ in range(3):
        growing.grow(6)
        export_all(sqlite_log, place)
    assert exported_log(place) == list(whole_log(sqlite_log))
    with closing(exporter(sqlite_log, place)) as export:
        assert export.compact(files_min=2) >= 0
        export.sweep()
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert catalog_of(place).strays == []


@pytest.mark.parametrize("name", ["a b", "100%", "a#b?c", "ünï ☃"])
def test_an_export_may_be_at_any_name_of_a_store(
    sqlite_log: EventLog, s3_uri: str, name: str
) -> None:
    place = open_place(s3_uri.replace("/mediator?", f"/{quote(name)}?"))
    Growing(sqlite_log).grow()
    export_all(sqlite_log, place)
    assert place.root.endswith(f"/{name}")
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


def test_a_name_that_stands_for_another_one_of_the_store_is_refused(s3_uri: str) -> None:
    with pytest.raises(ExportUnavailable, match="/a%20b: no table can be where a name has"):
        open_place(s3_uri.replace("/mediator?", "/a%2520b?"))


def test_a_store_that_is_gone_is_said_and_the_export_goes_on_later(
    sqlite_log: EventLog, s3_server: ThreadedMotoServer, s3_uri: str
) -> None:
    growing = Growing(sqlite_log)
    place = open_place(s3_uri)
    with closing(exporter(sqlite_log, place)) as export:
        growing.grow()
        assert export.step()
        growing.grow()
        # The objects of this server live in the process, so they outlive it.
        s3_server.stop()
        with pytest.raises(ExportUnavailable, match=END):
            export.step()
        again = ThreadedMotoServer(
            ip_address="127.0.0.1", port=s3_server.get_host_and_port()[1], verbose=False
        )
        again.start()
        try:
            assert export.step()
            assert exported_log(place) == list(whole_log(sqlite_log))
        finally:
            again.stop()


def test_an_export_in_s3_is_opened_for_a_notebook(sqlite_log: EventLog, s3_uri: str) -> None:
    Growing(sqlite_log).grow(6)
    export_all(sqlite_log, open_place(s3_uri))
    with projections.open(s3_uri) as opened:
        positions = opened.sql("SELECT position FROM events ORDER BY position").fetchall()
        assert opened.sql("SELECT * FROM volumes").fetchall()
    assert [position for (position,) in positions] == [
        row.position for row in whole_log(sqlite_log)
    ]


@pytest.mark.spark
def test_a_cluster_without_a_connector_says_what_it_needs(
    spark_here: SparkSession,
    sqlite_log: EventLog,
    s3_uri: str,
    tmp_path: Path,
) -> None:
    from projections.program import projections as program  # noqa: PLC0415 - Spark

    Growing(sqlite_log).grow()
    export_all(sqlite_log, open_place(s3_uri))
    places = ["--from", s3_uri, "--to", str(tmp_path / "tables")]
    ran = CliRunner().invoke(program, ["rebuild", *places])
    assert ran.exit_code == 3, ran.stderr
    assert "org.apache.hadoop:hadoop-aws" in ran.stderr
    assert "An error occurred while calling" not in ran.stderr


def test_an_address_with_a_password_is_not_repeated_in_errors() -> None:
    with pytest.raises(ExportUnavailable) as said:
        open_place("s4://key:secret@exports/mediator")
    assert "secret" not in str(said.value)


def test_an_address_of_a_store_without_a_bucket_is_no_place() -> None:
    with pytest.raises(ExportUnavailable, match="not the address of a known and reachable store"):
        open_place("s3://")
