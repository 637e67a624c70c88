"""The export beside a serving mediator: it follows, outlives faults, ends with its parent."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from eventstore.log.event_log import EventLog
from eventstore.log.public_key import PublicKey
from eventstore.parquet.errors import ExportRefused, ExportUnavailable
from eventstore.parquet.files import HEAD, open_place
from eventstore.parquet.tree import CHECKPOINT, head_in
from eventstore.parquet.write.exporter import Exported, Exporter
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server import exporting
from http_edge.server.child_process import EXPORT, keep_exporting
from http_edge.server.exporting import ContinuousExport, exporter_of
from http_edge.server.log_head import HeadFile
from http_edge.server.status_files import ExportReporter, export_figures
from http_edge.settings.settings import Archive, Export, Settings
from tests.export.samples import Growing, catalog_of, whole_log
from tests.tidy.modules import ROOT

WAIT_S = 60
NOW_MS = 1_700_000_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    export = Export(
        to=str(tmp_path / "export"), lag_s_max=0.05, retry_s_max=0.1, compact_files_min=4
    )
    load_or_create(tmp_path / "mediator-keys.json")
    return Settings(
        data_dir=tmp_path, did="did:web:mediator.test", log_level="debug", export=export
    )


@pytest.fixture
def log(settings: Settings) -> Iterator[EventLog]:
    with closing(open_log(settings.log_dsn)) as opened:
        yield opened


@contextmanager
def _running(settings: Settings) -> Iterator[queue.Queue[Any]]:
    """What the export in a thread reports: steps and faults."""
    steps: queue.Queue[Any] = queue.Queue()
    stopping = threading.Event()
    reporter = ExportReporter(settings.data_dir, lambda: NOW_MS)
    export = ContinuousExport(settings, reporter, on_step=steps.put, on_fault=steps.put)
    thread = threading.Thread(target=export.run, args=(stopping,))
    thread.start()
    try:
        yield steps
    finally:
        stopping.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def _rows(settings: Settings) -> int:
    assert settings.export.to is not None
    place = open_place(settings.export.to)
    return catalog_of(place, None).rows


def test_it_follows_the_log_and_puts_small_files_together(
    settings: Settings, log: EventLog
) -> None:
    growing = Growing(log)
    with _running(settings) as steps:
        for number in range(1, 13):
            growing.grow()
            step = steps.get(timeout=WAIT_S)
            assert isinstance(step, Exported)
            assert step.last == 5 * number
    assert _rows(settings) == len(whole_log(log))
    place = open_place(f"{settings.data_dir}/export")
    assert len(catalog_of(place, None).statements) < 12


@pytest.mark.parametrize(
    ("name", "times_s", "is_due"),
    [
        ("take_out_erased", (0, 0), False),
        ("take_out_erased", (1e-9, 0), True),
        ("take_out_erased", (3_600, 0), False),
        ("prune", (1e-9, 0), False),
        ("prune", (1e-9, 1), True),
        ("prune", (3_600, 1), False),
    ],
)
def test_what_was_erased_or_is_kept_no_longer_leaves_as_often_as_the_settings_say(
    settings: Settings,
    log: EventLog,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    times_s: tuple[float, float],
    is_due: bool,
) -> None:
    every_s, keep_s = times_s
    Growing(log).grow()
    often = {"lag_s_max": 1e-9, "erased_every_s": every_s}
    export = settings.export.model_copy(update=often)
    archive = Archive(keep_s=keep_s).model_copy(update={"prune_every_s": every_s or 3_600})
    settings = settings.model_copy(update={"export": export, "archive": archive})
    run, rounds, done = getattr(Exporter, name), itertools.count(1), list[str]()
    stopping = threading.Event()

    def noted(*arguments: Any) -> Any:
        done.append(name)
        found = run(*arguments)
        if len(done) == 3:
            stopping.set()
        return found

    class StopAfterThree(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            super().on_caught_up(position, complete_until_ms)
            if next(rounds) == 3 and not is_due:  # else once it was done as often
                stopping.set()

    monkeypatch.setattr(Exporter, name, noted)
    ContinuousExport(settings, StopAfterThree(None, lambda: NOW_MS)).run(stopping)
    assert done == [name] * (3 if is_due else 0)


def test_what_is_recorded_while_erased_contents_are_taken_out_is_exported_meanwhile(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, done, stopping = Growing(log), list[str](), threading.Event()
    growing.grow()
    often = {"lag_s_max": 1e-9, "erased_every_s": 1e-9}
    export = settings.export.model_copy(update=often)
    take_out = Exporter.take_out_erased

    def noted(exporter: Exporter, *progress: Any) -> Any:
        growing.grow()
        taken = take_out(exporter, *progress)
        done.append("erasing ended")
        stopping.set()
        return taken

    monkeypatch.setattr(Exporter, "take_out_erased", noted)
    ContinuousExport(
        settings.model_copy(update={"export": export}),
        ExportReporter(None, lambda: NOW_MS),
        on_step=lambda _: done.append("step"),
    ).run(stopping)
    assert done == ["step", "step", "erasing ended"]


def test_an_export_that_fell_behind_while_it_rewrote_files_is_not_said_to_have_caught_up(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, stopping, seen = Growing(log), threading.Event(), list[tuple[int, int]]()
    growing.grow()
    often = {"lag_s_max": 1e-9, "erased_every_s": 1e-9, "rows_per_file_max": 6}
    export = settings.export.model_copy(update=often)

    def grow_once(exporter: Exporter, progress: Callable[..., None]) -> None:
        if exporter.catalog.last == log.position() == 5:
            growing.grow(3)
            progress(0, 0)

    class Seen(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            super().on_caught_up(position, complete_until_ms)
            seen.append((position, log.position()))
            stopping.set()

    monkeypatch.setattr(Exporter, "take_out_erased", grow_once)
    settings = settings.model_copy(update={"export": export})
    ContinuousExport(settings, Seen(None, lambda: NOW_MS)).run(stopping)
    assert seen == [(20, 20)]


def test_an_idle_export_says_until_when_it_is_complete_as_often_as_the_settings_say(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    Growing(log).grow()
    now_ms = NOW_MS
    monkeypatch.setattr(exporting, "system_clock", lambda: now_ms)
    export = settings.export.model_copy(update={"complete_every_s": 7.0})
    place = open_place(f"{settings.data_dir}/export")
    said = []
    with exporter_of(settings.model_copy(update={"export": export}), log, place) as exporter:
        for pass_ms in (0, 6_999, 1):
            now_ms += pass_ms
            while exporter.step():
                pass
            said.append(exporter.catalog.complete_until_ms)
    assert said == [said[0], said[0], now_ms - 60_000]


def test_each_new_head_is_published_also_by_who_stands_by(
    settings: Settings, log: EventLog
) -> None:
    growing = Growing(log)
    key = PublicKey(load_or_create(settings.keys_path).signing_public)
    each = settings.export.model_copy(update={"head_every_s": 0})
    settings = settings.model_copy(update={"export": each})
    stopping = threading.Event()
    notes: tuple[queue.Queue[bytes], ...] = (queue.Queue(), queue.Queue())
    reporter = ExportReporter(None, lambda: NOW_MS)
    exports = [ContinuousExport(settings, reporter, on_head=to.put) for to in notes]
    threads = [threading.Thread(target=export.run, args=(stopping,)) for export in exports]
    for thread in threads:
        thread.start()
    try:
        for seals in (0, 2, 4):
            for published in notes:
                while head_in(published.get(timeout=WAIT_S), key).size < seals:
                    pass
            growing.grow()
    finally:
        stopping.set()
        for thread in threads:
            thread.join(WAIT_S)


def test_strangers_get_one_head_in_an_interval_also_after_a_restart(
    settings: Settings, log: EventLog
) -> None:
    """How many transactions were sealed between two heads tells for whom."""
    growing, notes, stopping = Growing(log), set[bytes](), threading.Event()
    key = PublicKey(load_or_create(settings.keys_path).signing_public)

    class Once(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            stopping.set()

    for _ in range(3):
        growing.grow()
        stopping.clear()
        ContinuousExport(settings, Once(None, lambda: NOW_MS), on_head=notes.add).run(stopping)
    newest = open_place(str(settings.export.to)).read_if_there(CHECKPOINT)
    assert newest is not None
    (public,) = notes
    assert 0 < head_in(public, key).size < head_in(newest, key).size


def test_a_published_head_that_was_not_written_or_is_lost_is_written_though_none_is_newer(
    settings: Settings, log: EventLog
) -> None:
    Growing(log).grow()
    often = settings.export.model_copy(update={"lag_s_max": 1e-9})
    settings = settings.model_copy(update={"export": often})
    published = settings.data_dir / "log-head.txt"
    stopping, seen = threading.Event(), list[bytes | None]()
    damaged = partial(published.write_text, "no head")
    losses: list[Callable[[], object]] = [published.rmdir, published.unlink, damaged, stopping.set]
    lose = iter(losses)
    published.mkdir()

    class Lose(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            super().on_caught_up(position, complete_until_ms)
            seen.append(published.read_bytes() if published.is_file() else None)
            next(lose)()

    on_head = HeadFile(settings.data_dir).publish
    ContinuousExport(settings, Lose(None, lambda: NOW_MS), on_head=on_head).run(stopping)
    newest = open_place(f"{settings.data_dir}/export").read_if_there(CHECKPOINT)
    assert newest is not None
    assert seen == [None, newest, newest, newest]


def test_it_logs_a_fault_once_and_goes_on_when_it_is_over(
    settings: Settings, log: EventLog
) -> None:
    Growing(log).grow()
    in_the_way = settings.data_dir / "export"
    in_the_way.write_text("a file where the folder should be")
    with _running(settings) as steps:
        fault = steps.get(timeout=WAIT_S)
        assert isinstance(fault, ExportUnavailable)
        status = export_figures(settings.data_dir, log.position(), NOW_MS + 2_500)
        assert (status["fault"], status["fault_age_s"]) == (str(fault), 2.5)
        in_the_way.unlink()
        assert isinstance(steps.get(timeout=WAIT_S), Exported)
    assert _rows(settings) == len(whole_log(log))
    status = export_figures(settings.data_dir, log.position() + 3, NOW_MS + 1_500)
    assert datetime.fromisoformat(status.pop("complete_until")) < datetime.now(UTC)
    assert status == {
        "position": log.position(),
        "rows_behind": 3,
        "last_step_age_s": 1.5,
        "caught_up_age_s": 1.5,
        "fault": "",
        "fault_age_s": None,
        "standby": False,
    }


def _shown(settings: Settings, log: EventLog) -> dict[str, Any]:
    return export_figures(settings.data_dir, log.position(), NOW_MS + 901_000)


def test_a_first_step_whose_place_does_not_answer_has_an_age(
    settings: Settings, log: EventLog
) -> None:
    Growing(log).grow()
    silent = settings.data_dir / "export" / HEAD
    silent.parent.mkdir()
    os.mkfifo(silent)  # to open it waits for a writer, as for a server that never answers
    with _running(settings) as steps:
        while (shown := _shown(settings, log))["caught_up_age_s"] is None:
            pass
        with silent.open("wb"):  # the export had come to it, or comes now, and goes on
            silent.unlink()
        while not isinstance(steps.get(timeout=WAIT_S), Exported):
            pass
    assert (shown["fault"], shown["caught_up_age_s"]) == ("", 901)


def test_a_step_that_cannot_be_reported_is_one_fault_and_is_waited_for_longer_each_time(
    settings: Settings, log: EventLog
) -> None:
    growing, faults, waits = Growing(log), list[Exception](), list[float]()
    growing.grow()
    export = settings.export.model_copy(update={"retry_s_max": 5.0})

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return self.is_set()

    stopping = Waits()

    def on_full_disk(step: Exported) -> None:
        growing.grow()
        if step.last >= 25:
            stopping.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ContinuousExport(
        settings.model_copy(update={"export": export}),
        ExportReporter(None, lambda: NOW_MS),
        on_step=on_full_disk,
        on_fault=faults.append,
    ).run(stopping)
    assert [str(fault) for fault in faults] == ["[Errno 28] No space left on device"]
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_place_that_cannot_be_locked_is_a_fault_with_its_reason_and_no_other_exporters(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    Growing(log).grow()
    take = fcntl.flock

    def no_locks(_file: object, _kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with _running(settings) as steps:
        fault = steps.get(timeout=WAIT_S)
        status = export_figures(settings.data_dir, log.position(), NOW_MS)
        monkeypatch.setattr(fcntl, "flock", take)
        assert isinstance(steps.get(timeout=WAIT_S), Exported)
    assert isinstance(fault, OSError)
    assert "No locks available" in str(fault)
    assert str(settings.data_dir / "export-") in str(fault)
    assert (status["fault"], status["standby"]) == (str(fault), False)


def test_a_store_that_went_away_is_reported_and_what_was_exported_stays_known(
    settings: Settings, log: EventLog, s3_server: ThreadedMotoServer, s3_uri: str
) -> None:
    growing = Growing(log)
    growing.grow()
    moved = settings.model_copy(
        update={"export": settings.export.model_copy(update={"to": s3_uri})}
    )
    with _running(moved) as steps:
        assert isinstance(steps.get(timeout=WAIT_S), Exported)
        exported = log.position()
        s3_server.stop()
        growing.grow()
        assert isinstance(steps.get(timeout=WAIT_S), ExportUnavailable)
        status = export_figures(settings.data_dir, log.position(), NOW_MS)
    assert status["position"] == exported
    assert status["rows_behind"] == log.position() - exported
    assert status["fault"]


def test_a_place_of_another_program_is_a_fault_and_no_end(
    settings: Settings, log: EventLog
) -> None:
    folder = settings.data_dir / "export" / "events"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    Growing(log).grow()
    with _running(settings) as steps:
        assert isinstance(steps.get(timeout=WAIT_S), ExportRefused)
        (folder / "mine.txt").unlink()
        assert isinstance(steps.get(timeout=WAIT_S), Exported)


def test_one_exporter_of_a_machine_writes_to_a_place(settings: Settings, log: EventLog) -> None:
    place, elsewhere = open_place(str(settings.export.to)), open_place(f"{settings.data_dir}/x")
    with exporter_of(settings, log, place):
        with exporter_of(settings, log, elsewhere):
            pass
        with pytest.raises(ExportRefused, match="another process"):
            exporter_of(settings, log, place).__enter__()
    with exporter_of(settings, log, place):
        pass


def test_the_child_ends_with_its_parent(settings: Settings, log: EventLog) -> None:
    Growing(log).grow()
    with subprocess.Popen(
        EXPORT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(settings.model_dump_json().encode() + b"\n")
        child.stdin.flush()
        assert b'"exported"' in child.stderr.readline()
        child.stdin.close()
        assert child.wait(WAIT_S) == 0
    assert _rows(settings) == len(whole_log(log))


def test_a_fault_ends_the_child_with_its_reason_while_the_parent_lives(settings: Settings) -> None:
    faulty = "from http_edge.server import exporting as e; e.ContinuousExport = None; e.main()"
    with subprocess.Popen(
        (*EXPORT[:-1], faulty), stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(settings.model_dump_json().encode() + b"\n")
        child.stdin.flush()
        assert child.wait(WAIT_S) == 1
        assert b"TypeError" in child.stderr.read().splitlines()[-1]


async def test_the_parent_starts_it_and_ends_it(settings: Settings, log: EventLog) -> None:
    Growing(log).grow()
    stopping = asyncio.Event()
    running = asyncio.create_task(keep_exporting(settings, stopping, None))
    manifests = settings.data_dir / "export" / "manifests"
    async with asyncio.timeout(WAIT_S):
        while not list(manifests.glob("*.json")):  # noqa: ASYNC110 - another process makes them
            await asyncio.sleep(0.05)
        stopping.set()
        await running
    assert _rows(settings) == len(whole_log(log))


def _exporting() -> int:
    """The child of this process that exports."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = [pid for pid in children if EXPORT[-1] in Path(f"/proc/{pid}/cmdline").read_text()]
    return int(found)


async def test_an_exporter_that_is_killed_is_a_fault(settings: Settings, log: EventLog) -> None:
    Growing(log).grow()
    stopping = asyncio.Event()

    async def shown(name: str) -> Any:
        while not (found := export_figures(settings.data_dir, log.position(), NOW_MS)[name]):  # noqa: ASYNC110 - of another
            await asyncio.sleep(0.05)
        return found

    running = asyncio.create_task(keep_exporting(settings, stopping, None))
    async with asyncio.timeout(WAIT_S):
        await shown("position")
        os.kill(_exporting(), signal.SIGKILL)
        assert await shown("fault") == "the exporting process ended with code -9"
        stopping.set()
        await running
