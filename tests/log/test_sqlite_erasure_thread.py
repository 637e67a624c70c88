"""When the thread that removes erased contents works: by turns, until it is done, then no more."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from eventstore.log.event_log import EventLog
from eventstore.stores import sqlite_erasure
from eventstore.stores.recorder_log import RecorderLog
from eventstore.stores.sqlite_connections import SqliteReaders, connect, create_file
from eventstore.stores.sqlite_erasure import Erasure
from eventstore.stores.sqlite_log import SqliteStore
from eventstore.stores.sqlite_sizes import wal_bytes
from tests.log.samples import OWNER, append, message, removed
from tests.log.test_sqlite_erasure import DEADLINE_S, opened, until

NOT_LATER_S = 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[EventLog]:
    """A log with some of its rows in the WAL."""
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"one"))
        yield log


class Passes:
    """Counts passes over the tables, in which nothing is left to remove."""

    count = 0

    def remove(self, _after: int) -> None:
        self.count += 1


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    monkeypatch.setattr(sqlite_erasure, "_AGAIN_S", 0.01)
    return Passes()


def test_a_reader_in_the_way_has_the_thread_try_again_by_itself_and_then_rest(
    path: Path, log: EventLog, passes: Passes
) -> None:
    erasure = Erasure(lambda: connect(path), threading.Lock(), passes.remove, within_s=0.0)
    with closing(connect(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM contents").fetchone() == (1,)
        append(log, OWNER, message(b"two"))
        erasure.wanted()
        until(lambda: passes.count > 2)
        assert wal_bytes(path) > 0
        reader.execute("ROLLBACK")
        until(lambda: wal_bytes(path) == 0)
    until(lambda: not erasure._wanted.is_set())
    erasure.stop()


@pytest.mark.usefixtures("passes")
def test_long_reads_one_after_another_leave_the_wal_a_moment_to_be_truncated(path: Path) -> None:
    create_file(path)
    with closing(SqliteStore(path, erased_within_s=0.0)) as store:
        log, readers, minutes = RecorderLog(store), store._readers, count(0, 60)
        readers._monotonic = lambda: next(minutes)
        append(log, OWNER, message(b"one"))
        until(lambda: wal_bytes(path) > 0)
        with store.reading(60.0) as session:
            assert session.rows("SELECT COUNT(*) FROM contents") == [(1,)]
            append(log, OWNER, removed([1], "id"))
            until(lambda: not store.writer.no_truncation_waits.is_set())
        with store.reading(60.0):
            assert wal_bytes(path) == 0
        assert store.writer.no_truncation_waits.is_set()


def test_a_read_leaves_no_longer_pause_than_it_took_and_waits_for_no_other(
    path: Path, log: EventLog
) -> None:
    class Pauses(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return False

    pauses: list[float | None] = []
    now_s = 0.0
    readers = SqliteReaders(lambda: connect(path), Pauses(), lambda: now_s)
    for took_s in (0.0, 0.25, 15.0):
        with readers.transaction(60.0) as cursor:
            assert cursor.execute("SELECT COUNT(*) FROM contents").fetchone() == (1,)
            now_s += took_s
            assert len(pauses) == {0.0: 0, 0.25: 1, 15.0: 2}[took_s]
    with readers.transaction():
        now_s += 15
    assert pauses == [0, 0.25, 3]
    readers.close()


@pytest.mark.usefixtures("log")
def test_the_wal_is_truncated_in_a_turn_between_commits(path: Path, passes: Passes) -> None:
    before, after = [], []

    class Turn:
        def __enter__(self) -> None:
            before.append(wal_bytes(path))

        def __exit__(self, *_: object) -> None:
            after.append(wal_bytes(path))

    turn: Any = Turn()
    erasure = Erasure(lambda: connect(path), turn, passes.remove, within_s=0.0)
    erasure.wanted()
    until(lambda: bool(after))
    erasure.stop()
    assert before[0] > 0
    assert after[0] == 0


@pytest.mark.usefixtures("log")
def test_a_file_that_cannot_be_opened_for_a_while_is_tried_again(
    path: Path, passes: Passes
) -> None:
    failures = [sqlite3.OperationalError("unable to open database file")] * 2

    def open_or_fail() -> sqlite3.Connection:
        if failures:
            raise failures.pop()
        return connect(path)

    erasure = Erasure(open_or_fail, threading.Lock(), passes.remove, within_s=0.0)
    erasure.wanted()
    until(lambda: wal_bytes(path) == 0)
    erasure.stop()
    assert failures == []


@pytest.mark.usefixtures("log")
def test_one_line_for_each_reason_names_a_disk_that_fails_every_attempt(
    path: Path, passes: Passes, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = []

    def open_or_fail() -> sqlite3.Connection:
        if failures:
            raise failures.pop()
        return connect(path)

    def is_over() -> bool:
        return not failures and not erasure._wanted.is_set() and wal_bytes(path) == 0

    erasure = Erasure(open_or_fail, threading.Lock(), passes.remove, within_s=0.0)
    reasons = ["unable to open database file", "database or disk is full"]
    said = [f"erased contents are still in the files: {reason}" for reason in reasons]
    for outage in (1, 2):
        failures.extend(map(sqlite3.OperationalError, (reasons[1], *reversed(reasons))))
        erasure.wanted()
        until(is_over)
        lines = [line.message for line in caplog.records if line.levelno >= logging.WARNING]
        assert lines == said * outage
    erasure.stop()


def test_no_thread_starts_after_the_end(path: Path, passes: Passes) -> None:
    erasure = Erasure(lambda: connect(path), threading.Lock(), passes.remove, within_s=0.0)
    erasure.stop()
    erasure.wanted()
    assert erasure._thread is None
    assert passes.count == 0


def test_of_two_first_erasures_at_the_same_time_one_starts_the_thread(
    path: Path, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    erasure = Erasure(lambda: connect(path), threading.Lock(), passes.remove, within_s=0.0)
    another = threading.Thread(target=erasure.wanted)
    started, start = [], threading.Thread.start

    def start_beside_another(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 1:
            start(another)
            another.join(NOT_LATER_S)  # it ends in this time, unless it waits for this one
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_beside_another)
    erasure.wanted()
    another.join()
    erasure.stop()
    assert len(started) == 1
    assert not started[0].is_alive()


@pytest.mark.usefixtures("log")
def test_a_thread_that_cannot_be_started_is_started_by_a_later_erasure(
    path: Path,
    passes: Passes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    erasure = Erasure(lambda: connect(path), threading.Lock(), passes.remove, within_s=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            erasure.wanted()
        ended = Erasure(lambda: connect(path), threading.Lock(), passes.remove, within_s=0.0)
        ended.wanted()
        ended.stop()
    assert passes.count == 0
    erasure.wanted()
    until(lambda: wal_bytes(path) == 0)
    erasure.stop()
    why = "erased contents are still in the files: can't start new thread"
    lines = [line.message for line in caplog.records if line.levelno >= logging.WARNING]
    assert lines == [why] * 2  # one of each log


class StopsAsItIsCleared(threading.Event):
    """An event of a thread that is stopped at the worst time: just before this is cleared."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self.stopping = threading.Thread(target=stop, daemon=True)
        self._is_set_by_stop = threading.Event()

    def set(self) -> None:
        super().set()
        if threading.current_thread() is self.stopping:
            self._is_set_by_stop.set()

    def clear(self) -> None:
        if self.stopping.ident is None:
            self.stopping.start()
            assert self._is_set_by_stop.wait(DEADLINE_S)
        super().clear()


def test_an_erasure_is_stopped_at_any_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    erasure = Erasure(lambda: connect(path), threading.Lock(), lambda _: None, within_s=0.0)
    wanted = StopsAsItIsCleared(erasure.stop)
    monkeypatch.setattr(erasure, "_wanted", wanted)
    erasure.wanted()
    wait_for_the_end(wanted.stopping)


def wait_for_the_end(thread: threading.Thread) -> None:
    """Of a thread that may not have begun."""
    deadline = time.monotonic() + DEADLINE_S
    while thread.ident is None or thread.is_alive():
        assert time.monotonic() < deadline, "it does not end"
