"""One exporter of all machines: the log in PostgreSQL says who it is, and who comes after it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.child_process import EXPORT
from http_edge.server.exporting import OtherExporter, exporter_of
from http_edge.server.status_files import export_figures
from http_edge.settings.settings import Export, Settings
from tests.export.samples import Growing, catalog_of, contents, whole_log
from tests.tidy.modules import ROOT

pytestmark = pytest.mark.postgres
WAIT_S = 60
END_HOLDS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
def machines(tmp_path: Path, postgres_url: str) -> list[Settings]:
    """Two machines of one mediator, which export to a place that both reach."""
    keys = tmp_path / "keys.json"
    load_or_create(keys)
    export = Export(to=str(tmp_path / "export"), lag_s_max=0.1, retry_s_max=0.2)
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        found.append(
            Settings(
                data_dir=tmp_path / name,
                keys_file=keys,
                log=postgres_url,
                did="did:web:mediator.test",
                log_level="debug",
                export=export,
            )
        )
    return found


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


def test_a_second_machine_is_refused_until_the_lock_of_the_first_ends(
    machines: list[Settings], log: EventLog, tmp_path: Path
) -> None:
    first, second = machines
    place, elsewhere = open_place(str(first.export.to)), open_place(str(tmp_path / "elsewhere"))
    growing = Growing(log)
    growing.grow(3)
    with exporter_of(first, log, place) as exporter:
        assert exporter.step()
        with pytest.raises(OtherExporter, match="another process exports to"):
            exporter_of(second, log, place).__enter__()
        with exporter_of(second, log, elsewhere) as other:
            assert other.step()
        growing.grow(3)
        with psycopg.connect(str(first.log)) as connection:
            assert connection.execute(END_HOLDS).fetchall() == [(True,)]
        written = contents(place)
        for change in (exporter.step, lambda: exporter.compact(files_min=2), exporter.sweep):
            with pytest.raises(LogUnavailable, match="the advisory lock was lost"):
                change()
        assert contents(place) == written
        with exporter_of(second, log, place) as successor:
            assert successor.step()
            with pytest.raises(LogUnavailable, match="the advisory lock was lost"):
                exporter.step()
    assert catalog_of(place, None).rows == len(whole_log(log))


def test_another_machine_takes_over_when_the_exporter_dies_or_loses_the_database(
    machines: list[Settings], log: EventLog
) -> None:
    growing = Growing(log)
    growing.grow()
    exporting = [exporter(settings) for settings in machines[:1]]
    try:
        said(exporting[0], "exported")
        exporting.append(exporter(machines[1]))
        said(exporting[1], "stands by")
        status = export_figures(machines[1].data_dir, log.position(), 0)
        assert (status["standby"], status["fault"], status["position"]) == (True, "", None)
        exporting[0].kill()
        growing.grow()
        said(exporting[1], "exported")
        with psycopg.connect(str(machines[0].log)) as connection:
            assert connection.execute(END_HOLDS).fetchall() == [(True,)]
        said(exporting[1], "the export has a fault")
        growing.grow()
        said(exporting[1], "exported")
    finally:
        for child in exporting:
            child.kill()
            child.communicate(timeout=WAIT_S)
    place = open_place(str(machines[0].export.to))
    assert catalog_of(place, None).rows == len(whole_log(log))


def exporter(settings: Settings) -> subprocess.Popen[bytes]:
    """The exporting process of ``poste serve`` on a machine."""
    child = subprocess.Popen(EXPORT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert child.stdin is not None
    child.stdin.write(settings.model_dump_json().encode() + b"\n")
    child.stdin.flush()
    return child


def said(child: subprocess.Popen[bytes], words: str) -> None:
    """Wait until the process writes a line with these words."""
    assert child.stderr is not None
    for line in child.stderr:
        if words.encode() in line:
            return
    raise AssertionError(f"it ended without saying: {words}")
