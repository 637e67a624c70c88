"""An export and its tables in a notebook: one name for each table and view, in every form."""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import projections
from eventstore.log.public_key import PublicKeyRefused
from eventstore.parquet.errors import SignedByAnother
from eventstore.stores.open_log import open_log
from projections.analysis.dictionary import type_of
from projections.analysis.opening import NotOfThisExport
from projections.tables import PROJECTIONS
from projections.views import VIEWS
from projections.views.span import NoSuchTime
from tests.histories import IDENTITIES, History, random_script
from tests.projections.exports import SIGNER, export_log
from tests.tidy.modules import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, filled: Path) -> Path:
    """An export, the tables of it, and rows that were exported since."""
    folder = shutil.copytree(filled, tmp_path_factory.mktemp("opening"), dirs_exist_ok=True)
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        History(log, start_ms=1_700_000_000_000, after=log.position()).play(random_script(3, 40))
        export_log(log, folder / "export")
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[projections.Opened]:
    with projections.open(str(folder / "export"), str(folder / "tables")) as opened:
        yield opened


@pytest.mark.spark
def test_every_table_and_view_has_a_name_and_says_what_it_holds(
    opened: projections.Opened,
) -> None:
    named = {projection.name for projection in PROJECTIONS} | {view.name for view in VIEWS}
    assert set(opened.names) == named | {"events", "span", "tenants"}
    for name in opened.names:
        assert opened.arrow(name).schema.names == list(opened.columns(name)), name
    assert opened.generation is not None
    for table in opened.generation.tables:
        types = {column.name: column.type for column in table.columns}
        said = {name: type_of(table.name, name) for name in types}
        assert {name: html.unescape(found) for name, found in said.items()} == types
    with pytest.raises(KeyError, match="there is no pears, only events"):
        opened.columns("pears")


@pytest.mark.spark
def test_arrow_pandas_duckdb_and_spark_give_the_same_rows(
    opened: projections.Opened, spark: SparkSession
) -> None:
    session = opened.spark(spark)
    for name in ("queues", "keylists", "volumes", "events"):
        wanted = list(opened.columns(name))
        found = opened.arrow(name)
        assert found.num_rows, name
        assert len(opened.pandas(name)) == found.num_rows
        assert opened.sql(f"SELECT * FROM {name}").aggregate("count(*)").fetchone() == (
            found.num_rows,
        )
        rows = session.table(name).select(*wanted).toArrow()
        assert _rows(rows) == _rows(found), name


def _rows(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.values())) for row in table.to_pylist())


@pytest.mark.spark
def test_what_is_opened_ends_with_its_tables_whatever_is_exported_since(
    opened: projections.Opened, folder: Path
) -> None:
    assert opened.generation is not None
    last = opened.sql("SELECT max(position) FROM events").fetchone()
    assert last == (opened.generation.position,)
    waiting = opened.sql("SELECT count(*) FROM messages WHERE removed_at IS NULL").fetchone()
    assert waiting == opened.sql("SELECT count(*) FROM queues").fetchone()
    with projections.open(str(folder / "export")) as alone:
        later = alone.sql("SELECT max(position) FROM events").fetchone()
        assert later is not None
        assert later > last
        assert "queues" not in alone.names


@pytest.mark.spark
def test_tables_of_another_export_are_refused(folder: Path, tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).commit()
        export_log(log, tmp_path / "export")
    with pytest.raises(NotOfThisExport, match="newer than the export"):
        projections.open(str(tmp_path / "export"), str(folder / "tables"))


@pytest.mark.spark
def test_views_are_about_the_time_that_was_named(folder: Path) -> None:
    since, until = (datetime.fromtimestamp(s, UTC) for s in (1_700_000_401, 1_700_000_700))
    with projections.open(
        str(folder / "export"), since=since, until=until, within_s=60, tenants={"did:x:y": "acme"}
    ) as opened:
        bins = opened.arrow("bins")["bin_start"].to_pylist()
        assert len(bins) == 5  # whole minutes
        assert (bins[0] <= since, bins[-1] < until) == (True, True)
        assert opened.span.within_ms == 60_000
        assert ("did:x:y", "acme") in opened.sql("SELECT * FROM labels").fetchall()
    with pytest.raises(NoSuchTime):
        projections.open(str(folder / "export"), since=until, until=since)


def test_an_export_that_another_key_has_signed_is_refused(tmp_path: Path) -> None:
    export = str(tmp_path / "export")
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        export_log(log, tmp_path / "export")
    for form in (SIGNER.text, SIGNER.raw.hex(), SIGNER.verifier_key("any")):
        with projections.open(export, public_key=form) as opened:
            assert opened.names
    with pytest.raises(SignedByAnother):
        projections.open(export, public_key="z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")
    with pytest.raises(PublicKeyRefused, match="not an Ed25519 public key"):
        projections.open(export, public_key="mediator")


def test_nothing_is_imported_that_was_not_asked_for(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        export_log(log, tmp_path / "export")
    program = f"""
import sys
import projections
with projections.open({str(tmp_path / "export")!r}) as opened:
    assert opened.columns("volumes")
    assert not {{"pyspark", "duckdb"}} & set(sys.modules)
    assert opened.arrow("volumes").num_rows == 0
    assert "pyspark" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def _run_notebook(tmp_path: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "deploy/docs/notebooks/analysis.py", *places],
        env={
            "PATH": "",
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": str(tmp_path),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_notebook_of_the_guide_runs_on_a_log_in_which_nothing_has_happened(
    tmp_path: Path,
) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        export_log(log, tmp_path / "export")
    ran = _run_notebook(tmp_path, tmp_path / "export")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.spark
def test_the_notebook_of_the_guide_runs_to_its_end(folder: Path, tmp_path: Path) -> None:
    ran = _run_notebook(tmp_path, folder / "export", folder / "tables")
    assert ran.returncode == 0, ran.stderr
    for said in ("service_level", "in_time", IDENTITIES[0], "commands_refused", "oldest"):
        assert said in ran.stdout, said
