"""Names of erased identities leave a log from which nothing is exported or archived."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.log.seam import seam_position
from eventstore.parquet.files import open_place
from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from http_edge.server.archive_round import archive_once, erase_names, run_beside
from http_edge.server.child_process import work_beside
from http_edge.server.exporting import export_erasures, exporter_of
from http_edge.server.status_files import (
    ArchiveReporter,
    archive_figures,
    archive_figures_by_database,
)
from http_edge.settings.sections import Archive, Export
from http_edge.settings.settings import Settings
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settled
from tests.contract.test_name_erasure_contract import naming
from tests.contract.test_retention_contract import Mediator, is_sound
from tests.export.leaving import settings_of
from tests.export.samples import exported_log, findings
from tests.log.raw_sql import run_sql

WAIT_S = 60
NOW_MS = 4_000_000_000_000
DAY_MS = 86_400_000
GRACE_MS = 3_600_000
"""An exporter makes its next pass a day after it has rewritten its files, which takes a while."""


def _node(tmp_path: Path, name: str, log_url: str) -> Settings:
    """The settings of a node that neither exports nor archives: with PostgreSQL these defaults."""
    enabled = False if log_url.startswith("sqlite:") else None
    return settings_of(tmp_path / name, log=log_url, archive=Archive(enabled=enabled, every_s=0.05))


@pytest.fixture
def mediator(log: EventLog) -> Mediator:
    return settled(log)


@pytest.mark.thorough
async def test_names_leave_a_log_that_nothing_else_takes_them_out_of(
    mediator: Mediator, log: EventLog, log_url: str, tmp_path: Path
) -> None:
    node = _node(tmp_path, "one", log_url)
    erase(mediator, GONE)
    assert naming(log, GONE.encode())
    stopping = asyncio.Event()
    working = asyncio.create_task(work_beside(node, stopping, None))
    try:
        async with asyncio.timeout(WAIT_S):
            while naming(log, GONE.encode()):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
    finally:
        stopping.set()
        await working
    assert naming(log, STAYS.encode())
    assert is_sound(log)


def test_a_log_loses_names_once_in_an_interval_whichever_node_looks(
    mediator: Mediator, log: EventLog, log_url: str, tmp_path: Path
) -> None:
    one, two = (_node(tmp_path, name, log_url) for name in ("one", "two"))
    erase(mediator, GONE)
    erase_names(one, clock=lambda: NOW_MS)
    assert not naming(log, GONE.encode())
    erase(mediator, STAYS)
    for node, later_ms in ((one, -GRACE_MS), (one, 1), (two, DAY_MS + GRACE_MS - 1)):
        erase_names(node, clock=partial(int, NOW_MS + later_ms))
        assert naming(log, STAYS.encode())
    erase_names(two, clock=lambda: NOW_MS + DAY_MS + GRACE_MS)
    assert not naming(log, STAYS.encode())


def test_a_failure_is_shown_and_the_next_round_goes_on(
    mediator: Mediator, log: EventLog, log_url: str, tmp_path: Path
) -> None:
    node = _node(tmp_path, "one", log_url)
    erase(mediator, GONE)
    reporter = ArchiveReporter(node.data_dir, lambda: NOW_MS)
    away = node.model_copy(update={"log": f"sqlite:{tmp_path}/none.db"})
    run_beside(away, threading.Event(), reporter)
    (shown,) = archive_figures_by_database(node, NOW_MS)
    assert shown["fault"]
    run_beside(node, threading.Event(), reporter)
    (shown,) = archive_figures_by_database(node, NOW_MS)
    assert (shown["fault"], shown["last_round_age_s"]) == ("", 0)
    assert not naming(log, GONE.encode())


def test_a_log_that_an_exporter_elsewhere_works_through_is_left_to_it(
    mediator: Mediator, log: EventLog, log_url: str, tmp_path: Path
) -> None:
    node = _node(tmp_path, "one", log_url)
    with exporter_of(node, log, open_place(str(tmp_path / "export"))) as exporter:
        exporter.take_out_erased()
    erase(mediator, GONE)
    for later_ms in (0, DAY_MS + GRACE_MS // 2):
        erase_names(node, clock=partial(int, system_clock() + later_ms))
        assert naming(log, GONE.encode())


def test_a_row_that_leaves_while_names_are_removed_is_no_fault_and_a_next_pass_does_the_rest(
    tmp_path: Path,
) -> None:
    log_url = f"sqlite:{tmp_path / 'log.db'}"
    node = _node(tmp_path, "one", log_url)
    with closing(open_log(log_url)) as log:
        erase(settled(log), GONE)
        none = "BEGIN SELECT RAISE(IGNORE); END"  # as if each row had left just before
        run_sql(log_url, f"CREATE TRIGGER no_row BEFORE UPDATE ON stored_events {none}")
        erase_names(node)
        assert naming(log, GONE.encode())
        run_sql(log_url, "DROP TRIGGER no_row")
        erase_names(node)
        assert not naming(log, GONE.encode())


@pytest.mark.postgres
def test_a_node_leaves_the_work_to_the_one_that_has_it_under_way(
    postgres_url: str, tmp_path: Path
) -> None:
    with closing(open_log(postgres_url)) as log:
        mediator = settled(log)
        erase(mediator, GONE)
        node = _node(tmp_path, "one", postgres_url)
        reporter = ArchiveReporter(node.data_dir, lambda: NOW_MS)
        with advisory_lock(postgres_url, "erase names", PostgresBounds()):
            run_beside(node, threading.Event(), reporter)
        assert naming(log, GONE.encode())
        assert archive_figures(node.data_dir, NOW_MS)["last_round_age_s"] is None
        run_beside(node, threading.Event(), reporter)
        assert not naming(log, GONE.encode())


@pytest.mark.thorough
def test_names_leave_an_archive_to_which_no_rows_move_any_more(tmp_path: Path) -> None:
    log_url = f"sqlite:{tmp_path / 'log.db'}"
    node = _node(tmp_path, "one", log_url)
    with closing(open_log(log_url)) as log:
        mediator = settled(log)
        archive_once(node, is_checked=True, clock=lambda: NOW_MS)
        assert seam_position(log)
        erase(mediator, GONE)
        erase_names(node)
        assert not naming(log, GONE.encode())
        assert is_sound(log)
    place = open_place(node.archive_place)
    assert not [row for row in exported_log(place) if GONE.encode() in row.state]
    assert findings(place) == []


def test_names_leave_a_log_whose_archive_the_settings_no_longer_name_and_its_archive_once_named(
    mediator: Mediator,
    log: EventLog,
    log_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = open_place(str(tmp_path / "export"))
    known = settings_of(tmp_path / "one", log=log_url, export=Export(to=str(tmp_path / "export")))
    archive_once(known, is_checked=True, clock=lambda: NOW_MS)
    assert seam_position(log)
    node = _node(tmp_path, "one", log_url)
    erase_names(node, clock=lambda: NOW_MS)
    assert not caplog.records
    erase(mediator, GONE)
    erase_names(node, clock=lambda: NOW_MS + 2 * DAY_MS)
    assert not naming(log, GONE.encode())
    assert is_sound(log)
    (warning,) = caplog.messages
    assert "poste export compact --to" in warning
    with exporter_of(known, log, place) as exporter:
        export_erasures(log, exporter)
        exporter.take_out_erased()
    assert not [row for row in exported_log(place) if GONE.encode() in row.state]
    assert findings(place) == []
