"""Rounds of archiving beside a mediator: bounded, interrupted, killed, and what they report."""

from __future__ import annotations

import asyncio
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.parquet.files import ExportPlace
from http_edge.server.archive_process import ArchiveProcess
from http_edge.server.archive_round import Interrupted, archive_once, run_beside
from http_edge.server.archive_status import Reporter, figures
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.killed_archiving import exit_code
from tests.export.leaving import (
    LATER_MS,
    assert_whole,
    faults_in,
    log,
    nonces_of,
    place,
    played,
    settings_of,
    states_of,
    streams_of,
    summary_of,
)
from tests.export.samples import catalog_of, exported_log, findings, whole_log
from tests.histories import History, random_script

__all__ = ["log", "place"]

WAIT_S = 60
NOW_MS = 1_900_000_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    archive = Archive(rows_per_step_max=40, pause_s=0, every_s=0.05)
    return settings_of(tmp_path, archive=archive)


def _aged(settings: Settings, history: History, age_s: float) -> Settings:
    """Settings under which, by the clock of the tests, so much of a history stays."""
    until_ms = history.now_ms - age_s * 1000
    archive = settings.archive.model_copy(update={"rows_age_s_min": (LATER_MS - until_ms) / 1000})
    return settings.model_copy(update={"archive": archive})


def test_a_round_takes_what_is_old_and_the_archive_gets_no_more(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    rows = whole_log(log)
    archived = archive_once(_aged(settings, history, 600), is_checked=False, clock=lambda: LATER_MS)
    assert archived is not None
    assert 0 < archived.left < archived.seam < log.position()
    assert catalog_of(place).last == archived.seam
    assert exported_log(place) == list(rows)[: archived.seam]
    assert findings(place) == []
    assert_whole(log, settings.log_dsn)
    assert summary_of(log).left == archived.left


def test_a_round_without_old_rows_makes_no_archive(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    history = played(log, 50)
    young = _aged(settings, history, 10**7)
    assert archive_once(young, is_checked=False, clock=lambda: LATER_MS) is None
    assert place.sizes("") == {}


def test_commands_go_on_between_the_steps_of_a_round(settings: Settings, log: EventLog) -> None:
    history = played(log)
    seeds = iter(range(100))

    def others() -> None:
        history.play(random_script(next(seeds), 30))

    left = 0
    for _ in range(3):
        before = log.position()
        archived = archive_once(
            settings, is_checked=False, clock=lambda: LATER_MS, after_step=others
        )
        assert archived is not None
        assert archived.left_in_all > left
        assert log.position() > before
        left = archived.left_in_all
    streams = streams_of(log)
    states = states_of(log, streams)
    assert_whole(log, settings.log_dsn)
    history.play(random_script(200, 50))
    assert states_of(log, streams) != states


@pytest.mark.crash
def test_a_kill_at_any_step_of_a_round_leaves_a_log_that_is_whole_and_goes_on(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    history = played(log, 250)
    rows = whole_log(log)
    streams = streams_of(log)
    states, nonces = states_of(log, streams), nonces_of(log)
    fatal, ended = 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        fatal += 1 if fatal < 4 else 3
        code = exit_code(settings, fatal)
        assert code is not None
        ended = code
        assert faults_in(log) == []
        assert (states_of(log, streams), nonces_of(log)) == (states, nonces)
    assert ended == 0
    assert fatal > 6
    assert_whole(log, settings.log_dsn)
    assert exported_log(place) == list(rows)
    assert summary_of(log).seam == rows[-1].position
    history.play(random_script(3, 100))
    assert faults_in(log) == []


def test_a_round_that_is_interrupted_is_reported_by_the_next_one(
    settings: Settings, log: EventLog
) -> None:
    played(log)
    stopping = threading.Event()
    stopping.set()
    settings = settings.model_copy(
        update={"archive": settings.archive.model_copy(update={"rows_age_s_min": 0})}
    )
    run_beside(settings, stopping, Reporter(settings.data_dir, lambda: NOW_MS))
    assert figures(settings.data_dir, NOW_MS)["last_round_age_s"] is None
    assert summary_of(log).left <= 40
    run_beside(settings, threading.Event(), Reporter(settings.data_dir, lambda: NOW_MS))
    summary = summary_of(log)
    assert figures(settings.data_dir, NOW_MS + 1_500) == {
        "position": summary.seam,
        "rows_left": summary.left,
        "rows_stayed": summary.seam - summary.left,
        "last_round_age_s": 1.5,
        "trouble": "",
        "trouble_age_s": None,
    }


def test_what_keeps_rows_in_the_log_is_shown_until_it_is_over(
    settings: Settings, log: EventLog
) -> None:
    played(log, 100)
    in_the_way = Path(settings.archive_place)
    in_the_way.write_text("a file where the folder should be")
    for now_ms in (NOW_MS, NOW_MS + 1_000):
        run_beside(settings, threading.Event(), Reporter(settings.data_dir, partial(int, now_ms)))
    shown = figures(settings.data_dir, NOW_MS + 2_500)
    assert shown["trouble"]
    assert shown["trouble_age_s"] == 2.5
    in_the_way.unlink()
    run_beside(settings, threading.Event(), Reporter(settings.data_dir, lambda: NOW_MS))
    shown = figures(settings.data_dir, NOW_MS)
    assert (shown["trouble"], shown["trouble_age_s"]) == ("", None)
    assert shown["rows_left"] > 0


def test_an_interruption_ends_a_round_between_two_transactions(
    settings: Settings, log: EventLog
) -> None:
    played(log)
    left = []

    def stop() -> None:
        left.append(summary_of(log).left)
        if left[-1]:
            raise Interrupted

    with pytest.raises(Interrupted):
        archive_once(settings, is_checked=False, clock=lambda: LATER_MS, after_step=stop)
    assert_whole(log, settings.log_dsn)
    rest = [row.position for row in whole_log(log) if row.topic != SEAL_TOPIC]
    assert len(rest) > left[-1]


async def test_the_parent_starts_rounds_and_ends_the_one_under_way(
    settings: Settings, log: EventLog
) -> None:
    played(log)
    stopping = asyncio.Event()
    running = asyncio.create_task(ArchiveProcess(settings, first_s=0).run(stopping))
    async with asyncio.timeout(WAIT_S):
        while not figures(settings.data_dir, NOW_MS)["rows_left"]:  # noqa: ASYNC110 - of another
            await asyncio.sleep(0.05)
        stopping.set()
        await running
    assert_whole(log, settings.log_dsn)
    assert summary_of(log).left > 0
