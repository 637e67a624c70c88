"""Rounds of archiving beside a mediator: bounded, interrupted, killed, and what they report."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.archive.departure import Archived
from eventstore.log.errors import TurnLost
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import HEAD, ExportPlace, open_place
from eventstore.stores.open_log import open_log
from http_edge.server.archive_round import Interrupted, archive_once, run_beside
from http_edge.server.child_process import keep_archiving
from http_edge.server.exits import Exit
from http_edge.server.exporting import exporter_of
from http_edge.server.status_files import ArchiveReporter, archive_figures
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.killed_archiving import exit_code
from tests.export.leaving import (
    LATER_MS,
    assert_whole,
    faults_in,
    leave,
    log,
    nonces_of,
    place,
    played,
    read_ids,
    settings_of,
    states_of,
    streams_of,
    summary_of,
)
from tests.export.samples import SIGNED_BY, catalog_of, exported_log, findings, whole_log
from tests.histories import History, random_script
from tests.unit.cli.conftest import Run, run

__all__ = ["log", "place", "run"]

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
    aged = _aged(settings, history, 600)
    archived = archive_once(aged, is_checked=False, clock=lambda: LATER_MS)
    assert archived is not None
    assert archive_once(aged, is_checked=False, clock=lambda: LATER_MS) is None
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


def test_the_same_rows_leave_however_few_at_a_time(tmp_path: Path) -> None:
    rests = []
    for rows_max in (1_000, 3):
        with closing(open_log(f"sqlite:{tmp_path / f'{rows_max}.db'}")) as log:
            archive = open_place(str(tmp_path / f"{rows_max}"))
            history = played(log)
            leave(log, archive, until_ms=history.now_ms - 600_000, rows_max=rows_max)
            read_ids(history)
            leave(log, archive, rows_max=rows_max)
            rests.append([row.position for row in whole_log(log)])
    assert rests[0] == rests[1]


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
    run_beside(settings, stopping, ArchiveReporter(settings.data_dir, lambda: NOW_MS))
    assert archive_figures(settings.data_dir, NOW_MS + 500)["last_round_age_s"] == 0.5
    assert summary_of(log).left <= 40
    run_beside(settings, threading.Event(), ArchiveReporter(settings.data_dir, lambda: NOW_MS))
    summary = summary_of(log)
    assert archive_figures(settings.data_dir, NOW_MS + 1_500) == {
        "position": summary.seam,
        "rows_left": summary.left,
        "rows_stayed": summary.seam - summary.left,
        "last_round_age_s": 1.5,
        "fault": "",
        "fault_age_s": None,
    }


def test_a_first_round_whose_archive_does_not_answer_has_an_age(
    settings: Settings, log: EventLog
) -> None:
    played(log, 50)
    silent = Path(settings.archive_place) / HEAD
    silent.parent.mkdir()
    os.mkfifo(silent)  # to open it waits for a writer, as for a server that never answers
    reporter = ArchiveReporter(settings.data_dir, lambda: NOW_MS)
    arguments = (settings, threading.Event(), reporter)
    hanging = threading.Thread(target=run_beside, args=arguments, daemon=True)
    hanging.start()
    shown = archive_figures(settings.data_dir, NOW_MS + 90_000_000)
    while shown["last_round_age_s"] is None:
        shown = archive_figures(settings.data_dir, NOW_MS + 90_000_000)
    with silent.open("wb"):  # the round had come to it, or comes now, and goes on
        hanging.join(WAIT_S)
    assert (shown["fault"], shown["last_round_age_s"]) == ("", 90_000)
    assert archive_figures(settings.data_dir, NOW_MS)["fault"], "it has ended with one"


def test_what_keeps_rows_in_the_log_is_shown_until_it_is_over(
    settings: Settings, log: EventLog
) -> None:
    played(log, 100)
    in_the_way = Path(settings.archive_place)
    in_the_way.write_text("a file where the folder should be")
    for now_ms in (NOW_MS, NOW_MS + 1_000):
        run_beside(
            settings, threading.Event(), ArchiveReporter(settings.data_dir, partial(int, now_ms))
        )
    shown = archive_figures(settings.data_dir, NOW_MS + 2_500)
    assert shown["fault"]
    assert shown["fault_age_s"] == 2.5
    in_the_way.unlink()
    run_beside(settings, threading.Event(), ArchiveReporter(settings.data_dir, lambda: NOW_MS))
    shown = archive_figures(settings.data_dir, NOW_MS)
    assert (shown["fault"], shown["fault_age_s"]) == ("", None)
    assert shown["rows_left"] > 0


def test_an_archive_that_the_log_has_left_behind_is_shown_with_its_remedy_which_ends_it(
    settings: Settings, log: EventLog, tmp_path: Path
) -> None:
    history = played(log, 150)
    export = settings.export.model_copy(update={"to": str(tmp_path / "moved")})
    archive_once(settings, is_checked=False, clock=lambda: LATER_MS)
    shutil.copytree(settings.archive_place, tmp_path / "moved")
    history.play(random_script(3, 100))
    read_ids(history)
    exporting = settings.model_copy(update={"export": export})
    archived = archive_once(exporting, is_checked=False, clock=lambda: LATER_MS)
    assert archived is not None
    faults = []
    for one in (settings, exporting):
        run_beside(one, threading.Event(), ArchiveReporter(one.data_dir, lambda: NOW_MS))
        faults.append(archive_figures(one.data_dir, NOW_MS)["fault"])
    assert f"rows up to position {archived.seam} left the log" in faults[0]
    assert "copy the archive there first, or set export.to to where it is" in faults[0]
    assert faults[1] == ""


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


def test_a_round_that_could_not_write_to_the_archive_leaves_its_work_to_the_next_one(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    """What was erased is still in the archive, and so is what it keeps no longer."""
    history = played(log)
    update = {"rows_age_s_min": 0, "keep_s": 1}
    archive = settings.archive.model_copy(update=update)
    settings = settings.model_copy(update={"archive": archive})
    archive_once(settings, is_checked=False, prunes=False)
    history.play(random_script(3, 50))

    def is_due() -> tuple[bool, bool]:
        reporter = ArchiveReporter(settings.data_dir, lambda: NOW_MS)
        run_beside(settings, threading.Event(), reporter)
        assert archive_figures(settings.data_dir, NOW_MS)["last_round_age_s"] == 0
        return reporter.is_erasing_due(60), reporter.is_pruning_due(1, 60)

    with exporter_of(settings, log, place):
        assert is_due() == (True, True)
        assert not catalog_of(place).pruned_up_to
    assert is_due() == (False, False)
    assert catalog_of(place).pruned_up_to


def test_rounds_take_out_and_prune_as_often_as_the_settings_say(
    settings: Settings, log: EventLog
) -> None:
    history = played(log)
    update = {"rows_age_s_min": 0, "keep_s": 1, "prune_every_s": 60}
    archive = settings.archive.model_copy(update=update)
    export = settings.export.model_copy(update={"erased_every_s": 30})
    settings = settings.model_copy(update={"archive": archive, "export": export})

    def is_done(after_s: int) -> tuple[bool, bool]:
        history.play(random_script(after_s, 20))
        reporter = ArchiveReporter(settings.data_dir, lambda: NOW_MS + after_s * 1_000)
        run_beside(settings, threading.Event(), reporter)
        return not reporter.is_erasing_due(1), not reporter.is_pruning_due(1, 1)

    assert is_done(0) == (True, True)
    assert is_done(29) == (False, False)
    assert is_done(30) == (True, False)
    assert is_done(59) == (False, False)
    assert is_done(60) == (True, True)


def test_of_two_rounds_one_goes_on_and_the_other_ends_without_a_fault(
    settings: Settings, log: EventLog, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = played(log)
    archive = settings.archive.model_copy(update={"rows_age_s_min": 0})
    settings = settings.model_copy(update={"archive": archive})
    before, seams = [0], [0]

    def other() -> None:
        if summary_of(log).left > before[-1]:  # the first step was made
            archived = archive_once(settings, is_checked=False)
            assert archived is not None
            seams.append(archived.seam)

    class Between(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            other()
            return super().wait(timeout)

    run_beside(settings, Between(), ArchiveReporter(settings.data_dir, lambda: NOW_MS))
    assert seams == [0, log.position()]
    shown = archive_figures(settings.data_dir, NOW_MS + 500)
    assert (shown["fault"], shown["last_round_age_s"]) == ("", 0.5)
    history.play(random_script(3, 100))
    before.append(summary_of(log).left)
    monkeypatch.setattr("http_edge.cli.archive.archive_once", partial(_beside, other))
    named = ("--data-dir", str(settings.data_dir), "--set", "archive.rows_age_s_min=0")
    ran = run("log", "archive", *named)
    assert (ran.code, "another process is moving rows to the archive" in ran.err) == (
        Exit.BUSY,
        True,
    )
    assert "what was done before that is kept" in Exit.BUSY.means, "its first step was"
    assert seams[2:] == [log.position()]
    assert_whole(log, settings.log_dsn)


def _beside(other: Callable[[], None], settings: Settings, **options: Any) -> Archived | None:
    return archive_once(settings, **{**options, "after_step": other})


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_row_that_another_round_took_is_no_damage(
    settings: Settings,
    log: EventLog,
    place: ExportPlace,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_checked: bool,
) -> None:
    """Also where it is missing before this round has made a step."""
    history = played(log)
    archive_once(settings, is_checked=False, clock=lambda: LATER_MS)
    history.play(random_script(3, 150))
    read_ids(history)

    def other(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        archive_once(settings, is_checked=False, clock=lambda: LATER_MS)
        return catalog_of(place)

    monkeypatch.setattr("actors.archive.departure.catalog_of", other)
    with pytest.raises(TurnLost):
        archive_once(settings, is_checked=is_checked, clock=lambda: LATER_MS)
    assert_whole(log, settings.log_dsn)


def test_whose_seam_it_is_the_mediators_key_alone_says(
    run: Run, settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    played(log)
    leave(log, place)
    check = ("log", "verify", "--data-dir", str(settings.data_dir), "--json")

    def checked(*named: str) -> tuple[int, list[str], bool, bool, str]:
        ran = run(*check, *named)
        said = json.loads(ran.out)
        faults = [one["fault"] for one in said["findings"]]
        return ran.code, faults, said["archive"] is not None, bool(said["unproven"]), ran.err

    sound: tuple[int, list[str], bool, bool, str] = (Exit.OK, [], True, False, "")
    assert checked() == sound
    settings.keys_path.unlink()
    *found, said = checked()
    assert found == [Exit.OK, [], False, True]
    assert "the signer of their replacement is unknown" in said
    assert "their archive was not checked" in said
    assert checked("--public-key", SIGNED_BY.text) == sound
    stranger = PublicKey(bytes(range(1, 33))).text
    wrong = (Exit.FINDING, ["wrong-seam"], False, False, "")
    assert checked("--public-key", stranger) == wrong


async def test_the_parent_starts_rounds_and_ends_the_one_under_way(
    settings: Settings, log: EventLog
) -> None:
    played(log)
    stopping = asyncio.Event()
    running = asyncio.create_task(keep_archiving(settings, stopping, None, first_s=0))
    async with asyncio.timeout(WAIT_S):
        while not archive_figures(settings.data_dir, NOW_MS)["rows_left"]:  # noqa: ASYNC110 - of another
            await asyncio.sleep(0.05)
        stopping.set()
        await running
    assert_whole(log, settings.log_dsn)
    assert summary_of(log).left > 0
