"""What the SQLite log promises beyond the contract: durability, file, and several processes."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from eventsourcing.persistence import IntegrityError, OperationalError

from eventstore.log.codec import encode
from eventstore.log.errors import LogUnavailable, UnsafeLog
from eventstore.log.event_log import Due, QueueDepth, WaitingQueue
from eventstore.log.session import Session
from eventstore.log.streams import identity_stream
from eventstore.read_models import queue_depths
from eventstore.stores import sqlite_connections, sqlite_contents
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import RecorderLog
from eventstore.stores.sqlite_connections import Checkpointer, connect, create_file
from eventstore.stores.sqlite_log import SqliteRecorder, SqliteStore
from eventstore.stores.sqlite_sizes import wal_bytes
from tests.log.samples import OTHER, OWNER, OWNER_DID, append, message

PROCESSES = multiprocessing.get_context("spawn")
DEADLINE_S = 20.0
NOT_LATER_S = 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    create_file(path)
    with closing(SqliteStore(path)) as opened:
        yield opened


def test_every_connection_waits_for_the_disk(store: SqliteStore) -> None:
    for transaction in (store.reading, store.writing):
        with transaction() as session:
            ((journal_mode,),) = session.rows("PRAGMA journal_mode")
            ((synchronous,),) = session.rows("PRAGMA synchronous")
        assert (journal_mode, synchronous) == ("wal", 2)


def test_an_append_that_runs_out_of_memory_ends_the_process_and_is_no_outage_of_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(SqliteRecorder, "insert_events", exhausted)
    with closing(open_log(f"sqlite:{path}")) as log, pytest.raises(MemoryError):
        append(log, OWNER, message())


def test_a_database_that_cannot_be_made_safe_is_refused() -> None:
    with pytest.raises(UnsafeLog):
        connect(Path(":memory:"))


def test_a_reading_transaction_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(OperationalError), store.reading() as session:
        session.rows("INSERT INTO heartbeat VALUES (1, 1)")


def test_a_failed_transaction_is_undone_and_the_next_one_works(store: SqliteStore) -> None:
    with pytest.raises(IntegrityError), store.writing() as session:
        session.run_many("INSERT INTO heartbeat VALUES (?, ?)", [(1, 1), (None, None)])
    with store.writing() as session:
        assert not session.rows("SELECT * FROM heartbeat")
        session.rows("INSERT INTO heartbeat VALUES (2, 2)")


def test_what_follows_a_failed_removal_of_contents_is_overwritten_again(
    store: SqliteStore,
) -> None:
    with store.writer.transaction() as cursor:
        sqlite_contents.keep(cursor, [(1, b"content")])
        cursor.execute(
            "CREATE TRIGGER kept BEFORE DELETE ON contents BEGIN SELECT RAISE(ABORT, 'kept'); END"
        )
    with pytest.raises(IntegrityError), store.writer.transaction() as cursor:
        sqlite_contents.remove(cursor, [1])
    with store.writing() as session:
        assert session.rows("PRAGMA secure_delete") == [(1,)]


def test_a_removed_content_is_not_written_once_more(store: SqliteStore, path: Path) -> None:
    """Without its key it says nothing, and the pages that it gives up are many."""
    with store.writer.transaction() as cursor:
        sqlite_contents.keep(cursor, [(1, bytes(1_000_000))])
    with closing(connect(path)) as beside:
        beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with store.writer.transaction() as cursor:
        sqlite_contents.remove(cursor, [1])
    assert 0 < wal_bytes(path) < 100_000


def test_a_writing_transaction_has_its_turn_before_its_first_statement(
    store: SqliteStore, path: Path
) -> None:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
        with store.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
            another.execute("BEGIN IMMEDIATE")
        another.execute("BEGIN IMMEDIATE")


def test_what_two_threads_append_counts_in_the_sums_of_both(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RecorderLog(store)
    another = threading.Thread(target=append, args=(log, OTHER, message()))
    transaction, ended = store.writer.transaction, [0]

    @contextmanager
    def followed_by_another() -> Iterator[sqlite3.Cursor]:
        with transaction() as cursor:
            yield cursor
        ended[0] += 1
        if ended[0] == 1:
            another.start()
            another.join(NOT_LATER_S)  # it ends in this time, unless it waits for this one

    monkeypatch.setattr(store.writer, "transaction", followed_by_another)
    append(log, OWNER, message())
    another.join()
    with store.reading() as session:
        ((facts_bytes,),) = session.rows("SELECT sum(length(state)) FROM stored_events")
    assert log.storage().facts_bytes == facts_bytes


def test_readers_are_not_kept_waiting_by_a_writer(store: SqliteStore) -> None:
    with store.writing() as writing:
        writing.rows("INSERT INTO heartbeat VALUES (1, 1)")
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: _count_heartbeats(store), range(16)))
    assert found == [0] * 16
    assert _count_heartbeats(store) == 1


def _count_heartbeats(store: SqliteStore) -> int:
    with store.reading() as session:
        count: int = session.rows("SELECT count(*) FROM heartbeat")[0][0]
        return count


def test_only_so_many_reads_are_in_progress_at_once(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connections, "READERS_MAX", 2)
    monkeypatch.setattr(sqlite_connections, "READER_WAIT_S", 0.0)
    with store.reading():
        with store.reading(), pytest.raises(OperationalError, match="2 reads"), store.reading():
            pass
        assert _count_heartbeats(store) == 0


def test_closing_waits_for_the_reads_that_are_under_way(store: SqliteStore) -> None:
    with ThreadPoolExecutor(1) as threads:
        with store.reading() as session:
            session.rows("SELECT 1")
            closed = threads.submit(store.close)
            assert wait([closed], timeout=0.2).not_done
            assert [tuple(row) for row in session.rows("SELECT 1")] == [(1,)]
        closed.result()


def test_a_new_file_is_in_wal_mode_before_another_process_can_see_it(path: Path) -> None:
    # Else several processes that open it at once would find the database locked.
    create_file(path)
    write_version, read_version = path.read_bytes()[18:20]
    assert (write_version, read_version) == (2, 2)
    assert list(path.parent.iterdir()) == [path]
    created = path.stat().st_ino
    create_file(path)
    assert path.stat().st_ino == created


def test_only_the_owner_of_the_file_can_read_it(path: Path) -> None:
    with closing(open_log(f"sqlite:{path}")) as log:
        append(log, OWNER, message())
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["log.db", "log.db-shm", "log.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_log_from_before_its_later_columns_opens_and_works(path: Path) -> None:
    create_file(path)
    with closing(sqlite3.connect(path)) as first, first:
        first.execute(
            "CREATE TABLE queue_depths (stream BLOB PRIMARY KEY, messages INTEGER NOT NULL,"
            " bytes INTEGER NOT NULL, oldest_at_ms INTEGER)"
        )
        first.execute("INSERT INTO queue_depths VALUES (?, 2, 20, 5)", (OTHER.bytes,))
    for version in (1, 2):
        with closing(open_log(f"sqlite:{path}")) as log:
            waiting = QueueDepth(OWNER, version, 7, 9, OWNER_DID, outbound=True)
            log.append([encode(OWNER, version, message())], [message()], [waiting])
            owned = WaitingQueue(OWNER_DID, version, 7, 9, outbound=True)
            kept = WaitingQueue("", 2, 20, 5, outbound=False)
            assert log.waiting_queues(limit=9) == [kept, owned]
            assert log.waiting_queues(outbound_only=True, limit=9) == [owned]
            assert log.figures().queue_messages == 2 + version


class Explained:
    """A session that runs nothing and keeps how its statements would be run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.plans: list[str] = []

    def rows(self, statement: str, parameters: Sequence[object] = ()) -> list[Sequence[Any]]:
        plan = self._session.rows(f"EXPLAIN QUERY PLAN {statement}", parameters)
        self.plans += [row[3] for row in plan]
        return []


def test_no_question_about_all_queues_looks_at_each(store: SqliteStore) -> None:
    with store.reading() as session:
        explained = Explained(session)
        asking = cast("Session", explained)
        queue_depths.total(asking, 1)
        one = WaitingQueue(OWNER_DID, 1, 7, 9, outbound=True)
        queue_depths.waiting(asking, outbound_only=True, after=one, limit=9)
        queue_depths.waiting(asking, outbound_only=False, after=None, limit=9)
        for time_ in Due:
            queue_depths.due(asking, time_, until_ms=1, after=None, limit=9)
    by_age = "INDEX due_by_oldest_at_ms (oldest_at_ms>?)"
    place = "(oldest_at_ms,stream)>(?,?)"
    assert explained.plans[:4] == [
        "SCAN queue_totals",
        f"SEARCH queue_depths USING COVERING {by_age}",
        f"SEARCH queue_depths USING INDEX outbound_by_oldest (outbound=? AND {place})",
        f"SEARCH queue_depths USING INDEX due_by_oldest_at_ms ({place})",
    ]
    assert [plan.split()[4] for plan in explained.plans[4:]] == [f"due_by_{due}" for due in Due]
    assert all(plan.startswith("SEARCH") for plan in explained.plans[4:])


def test_a_file_that_is_no_database_is_unavailable(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(LogUnavailable):
        open_log(f"sqlite:{path}")


def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable):
        open_log(f"sqlite:{tmp_path}/missing/log.db")


def test_rows_change_nowhere_but_where_names_leave_and_go_where_they_leave_for_the_archive() -> (
    None
):
    sources = list(Path(__file__).parents[2].glob("eventstore/**/*.py"))
    assert len(sources) > 30
    deleting: list[tuple[str, str]] = []
    changing: list[tuple[str, str]] = []
    for source in sources:
        tree = ast.parse(source.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = " ".join(node.value.upper().split())
                words = words.replace("PUBLIC.STORED_EVENTS", "STORED_EVENTS")
                if "UPDATE STORED_EVENTS" in words:
                    changing.append((source.name, _function_at(tree, node.lineno)))
                assert "VACUUM" not in words.split(), source
                if "DELETE FROM STORED_EVENTS" in words:
                    deleting.append((source.name, _function_at(tree, node.lineno)))
    assert sorted(changing) == [
        ("postgres_log.py", "change_rows"),
        ("sqlite_log.py", "change_rows"),
    ]
    assert sorted(deleting) == [
        ("postgres_log.py", "remove_rows"),
        ("sqlite_log.py", "remove_rows"),
    ]


def _function_at(tree: ast.Module, line: int) -> str:
    """The innermost function of a module that has this line; empty for none."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno).name if found else ""


def test_several_processes_append_to_one_file(path: Path) -> None:
    children = [PROCESSES.Process(target=_append_many, args=(path, str(n))) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 3
    with closing(open_log(f"sqlite:{path}")) as log:
        for number in range(3):
            assert len(log.read_stream(identity_stream(str(number)))) == 25
        assert [row.id for row in log.read_log()] == list(range(1, 76))


def _append_many(path: Path, name: str) -> None:
    with closing(open_log(f"sqlite:{path}")) as log:
        for _ in range(25):
            append(log, identity_stream(name), message())


def test_an_append_that_returned_survives_the_end_of_its_process(path: Path) -> None:
    child = PROCESSES.Process(target=_append_and_be_killed, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with closing(open_log(f"sqlite:{path}")) as log:
        assert len(log.read_stream(OWNER)) == 2


def _append_and_be_killed(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    append(log, OWNER, message())
    append(log, OWNER, message())
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_log_written_elsewhere_is_read_at_once(path: Path) -> None:
    with closing(open_log(f"sqlite:{path}")) as log, closing(sqlite3.connect(path)) as foreign:
        with foreign:
            foreign.execute("INSERT INTO stored_events VALUES ('not a stream', 1, 'topic', x'00')")
        (row,) = log.read_log()
        assert row.originator_id == "not a stream"


@pytest.mark.parametrize("form", ["sqlite://{path}", "sqlite:{path}", "sqlite:log.db"])
def test_a_url_names_a_file(path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with closing(open_log(form.format(path=path))) as log:
        log.check_writable()
    assert path.exists()


def test_a_url_can_escape_characters(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path}/a%20b%3F.db")) as log:
        log.check_writable()
    assert (tmp_path / "a b?.db").exists()


@pytest.mark.parametrize(
    "url", ["", "log.db", "mysql://u:secret@h/d", "sqlite:", "sqlite://host/x"]
)
def test_a_url_of_no_log_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(LogUnavailable) as refused:
        open_log(url)
    assert "secret" not in str(refused.value)


def test_what_is_committed_moves_into_the_file_while_the_writer_goes_on(path: Path) -> None:
    create_file(path)
    with closing(SqliteStore(path, checkpoint_bytes=64 * 1024)) as store:
        before, written = begun_anew(path), 0
        deadline = time.monotonic() + DEADLINE_S
        while begun_anew(path) - before < 2:
            assert time.monotonic() < deadline, "no checkpoint"
            with store.writing() as session:
                session.run_many(
                    "INSERT INTO settings VALUES (?, ?)", [(b"%d" % written, bytes(8_192))]
                )
            written += 1
    with closing(SqliteStore(path)) as store, store.reading() as session:
        ((kept,),) = session.rows("SELECT COUNT(*) FROM settings")
    assert kept == written


def begun_anew(path: Path) -> int:
    """How often the WAL was used from its beginning again, as its header says."""
    header = path.with_name(f"{path.name}-wal").read_bytes()[:32]
    return int.from_bytes(header[12:16])


def test_a_checkpoint_that_fails_is_made_the_next_time(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_file(path)
    failed, opened = threading.Event(), threading.Event()

    def open_for_one() -> sqlite3.Connection:
        if not failed.is_set():
            failed.set()
            raise sqlite3.OperationalError("disk I/O error")
        opened.set()
        return connect(path)

    with closing(connect(path)) as writer:
        checkpointer = Checkpointer(open_for_one, writer, bytes_min=10)
        for done in (failed, opened):
            checkpointer.wrote(9)
            assert not done.is_set()
            checkpointer.wrote(1)
            assert done.wait(DEADLINE_S)
        checkpointer.stop()
    assert [record.message for record in caplog.records] == [
        "SQLite checkpoint failed: OperationalError"
    ]


def test_a_thread_that_cannot_be_started_is_started_by_a_later_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create_file(path)
    opened = threading.Event()

    def open_for_one() -> sqlite3.Connection:
        opened.set()
        return connect(path)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(connect(path)) as writer:
        checkpointer = Checkpointer(open_for_one, writer, bytes_min=1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            checkpointer.wrote(1)
            checkpointer.stop()
        checkpointer = Checkpointer(open_for_one, writer, bytes_min=1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            checkpointer.wrote(1)
        checkpointer.wrote(1)
        assert opened.wait(DEADLINE_S)
        checkpointer.stop()
    assert [r.message for r in caplog.records] == ["SQLite checkpoint failed: RuntimeError"] * 2


def test_a_checkpointer_is_stopped_while_a_checkpoint_is_under_way_and_another_waits(
    path: Path,
) -> None:
    create_file(path)
    begun, goes_on = threading.Event(), threading.Event()
    opened = []

    def open_for_one() -> sqlite3.Connection:
        opened.append(connect(path))
        begun.set()
        assert goes_on.wait(DEADLINE_S)
        return opened[-1]

    with closing(connect(path)) as writer:
        checkpointer = Checkpointer(open_for_one, writer, bytes_min=1)
        checkpointer.wrote(1)
        assert begun.wait(DEADLINE_S)
        checkpointer.wrote(1)
        stopping = threading.Thread(target=checkpointer.stop, daemon=True)
        stopping.start()
        goes_on.set()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
        checkpointer.wrote(1)
    assert 1 <= len(opened) <= 2
