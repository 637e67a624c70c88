"""The log in one SQLite file, for one machine.

WAL and ``synchronous=FULL`` are set on every connection and read back: a commit that returned
survives a power cut. Several processes may have the same file open; writers take turns by
``BEGIN IMMEDIATE`` and the busy time-out. Rows are never removed and the file is never rebuilt,
because positions are bare rowids.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import IntegrityError, OperationalError, StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)
from typing_extensions import override

from eventstore import queue_depths, read_models
from eventstore.errors import CorruptRow, LogUnavailable, UnsafeLog
from eventstore.events import Event
from eventstore.log import LogRow, QueueDepth
from eventstore.postings import INSERT
from eventstore.read_models import READ_MODELS
from eventstore.session import LogSession, Store, StoredPosting
from eventstore.sqlite_checkpoint import Checkpointer

BUSY_TIMEOUT_S: Final = 10
CHECKPOINT_BYTES: Final = 32 * 1024 * 1024
WAL_PAGES_MAX: Final = 32_000
"""Four times as much as is meant to wait: where no checkpoint works beside the commits, or none is
fast enough, it is done within one."""
_PAGE_BYTES: Final = 4_096
WRITER_CACHE_KIB: Final = 65_536
READERS_KEPT: Final = 4
READERS_MORE: Final = 28

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS postings (
        list BLOB NOT NULL, timestamp_s REAL NOT NULL, version INTEGER NOT NULL,
        revision INTEGER NOT NULL, own INTEGER NOT NULL,
        PRIMARY KEY (list, timestamp_s, version)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS snapshots (
        stream BLOB PRIMARY KEY, version INTEGER NOT NULL, fold INTEGER NOT NULL,
        state BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS queue_depths (
        stream BLOB PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL,
        oldest_at_ms INTEGER, did BLOB NOT NULL DEFAULT x'', outbound INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS dedicated (
        stream BLOB PRIMARY KEY, did BLOB NOT NULL, reason BLOB NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS settings (name BLOB PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS heartbeat (id INTEGER PRIMARY KEY, beats INTEGER NOT NULL)",
)

_LATER_COLUMNS: Final = {
    "did": "ALTER TABLE queue_depths ADD COLUMN did BLOB NOT NULL DEFAULT x''",
    "outbound": "ALTER TABLE queue_depths ADD COLUMN outbound INTEGER NOT NULL DEFAULT 0",
}
"""Columns of queue_depths that the first logs were made without."""
_OUTBOUND_INDEX: Final = """
    CREATE INDEX IF NOT EXISTS outbound_queues ON queue_depths (oldest_at_ms)
    WHERE messages > 0 AND outbound = 1
    """


def open_sqlite_store(path: Path) -> Store:
    """The store in this file, which is made (readable by its owner only) if missing.

    Raises:
        LogUnavailable: the file cannot be opened or is not a database.
        UnsafeLog: it cannot be used with WAL and full synchronisation.
    """
    path = path.absolute()
    try:
        if not path.exists():
            create_file(path)
        return SqliteStore(path)
    except (OSError, sqlite3.Error, OperationalError) as error:
        raise LogUnavailable(f"{path}: {error}") from error


def create_file(path: Path) -> None:
    """Make an empty database that is in WAL mode from the first moment it can be seen.

    Processes that switch a fresh file to WAL at the same time get "database is locked" at once,
    in spite of the busy time-out. SQLite gives -wal and -shm the mode of the file, here 0600.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as draft:
        with closing(sqlite3.connect(draft.name)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft.name)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode with the settings that durability rests on.

    Raises:
        UnsafeLog: a setting did not take.
        sqlite3.Error: the file cannot be opened or is not a database.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        if (journal_mode, synchronous) != ("wal", 2):
            raise UnsafeLog(f"{path}: journal_mode {journal_mode}, synchronous {synchronous}")
    except BaseException:
        connection.close()
        raise
    connection.row_factory = sqlite3.Row
    # Text that is not UTF-8 (bit rot) must reach the check that names it.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    return connection


def _for_writing(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The one connection that writes, tuned for many small appends to many streams.

    Each append touches an index page per stream. Measured with 50,000 streams: with the default
    2 MiB of cache one append in a hundred waits 8 ms for the disk, so 2 ms.
    """
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")
    connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    return connection


class SqliteStore(Store):
    """A ``Store``: one connection that writes, a pool of connections that read."""

    def __init__(self, path: Path, *, checkpoint_bytes: int = CHECKPOINT_BYTES) -> None:
        self._datastore = _Datastore(path, _for_writing(connect(path)), checkpoint_bytes)
        self.recorder = SqliteRecorder(self._datastore)
        self.recorder.create_table()
        with self.writing() as session:
            known = {row[1] for row in session.rows("PRAGMA table_info(queue_depths)")}
            for name, statement in _LATER_COLUMNS.items():
                if name not in known:
                    session.rows(statement)
            session.rows(_OUTBOUND_INDEX)

    @override
    @contextmanager
    def reading(self) -> Iterator[LogSession]:
        with self._datastore.transaction(commit=False) as cursor:
            yield _Session(cursor)

    @override
    @contextmanager
    def writing(self) -> Iterator[LogSession]:
        with self._datastore.transaction(commit=True) as cursor:
            yield _Session(cursor)

    @override
    def close(self) -> None:
        self._datastore.close()


class SqliteRecorder(SQLiteApplicationRecorder):
    """The library's recorder with one statement per batch and the read models beside it."""

    @override
    def construct_create_table_statements(self) -> list[str]:
        return [*super().construct_create_table_statements(), *_TABLES]

    @override
    def _insert_events(
        self,
        c: SQLiteCursor,
        stored_events: Sequence[StoredEvent],
        *,
        events: Sequence[Event] = (),
        depths: Sequence[QueueDepth] = (),
        **_: Any,
    ) -> Sequence[int]:
        c.executemany(
            self.insert_events_statement,
            [
                (
                    s.originator_id.hex if isinstance(s.originator_id, UUID) else s.originator_id,
                    s.originator_version,
                    s.topic,
                    s.state,
                )
                for s in stored_events
            ],
        )
        # New rowids follow the greatest one, and nobody else writes in this transaction.
        c.execute(self.select_max_notification_id_statement)
        newest = c.fetchone()[0] or 0
        if events:
            read_models.apply(_Session(c), stored_events, events)
        if depths:
            queue_depths.save(_Session(c), depths)
        return list(range(newest - len(stored_events) + 1, newest + 1))

    @override
    def convert_originator_id(self, originator_id: str) -> UUID | str:
        # Only the text that we write is a stream: "{A1…}" is the same UUID but not found by it.
        try:
            stream = UUID(hex=originator_id)
        except (ValueError, TypeError, AttributeError):
            return originator_id
        return stream if stream.hex == originator_id else originator_id


class _Session(LogSession):
    """A ``LogSession`` on a cursor within a transaction."""

    def __init__(self, cursor: SQLiteCursor) -> None:
        self._cursor = cursor

    @override
    def rows(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Sequence[Any]]:
        self._cursor.execute(statement, parameters)
        found: list[Sequence[Any]] = self._cursor.fetchall()
        return found

    @override
    def run_many(self, statement: str, parameters: Iterable[Sequence[object]]) -> None:
        self._cursor.executemany(statement, parameters)

    @override
    def stored(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredEvent]:
        found = self.rows(
            "SELECT originator_version, topic, state FROM stored_events"
            " WHERE originator_id = ? AND originator_version IN (SELECT value FROM json_each(?))",
            (stream.hex, json.dumps(list(versions))),
        )
        return {row[0]: StoredEvent(stream, *row) for row in found}

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        cursor = self._cursor.sqlite_cursor
        cursor.row_factory = None
        cursor.execute(
            "SELECT rowid, originator_id, originator_version, topic, state FROM stored_events"
            " WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (after, rows_max),
        )
        found: list[LogRow] = []
        size_bytes = 0
        for position, stream, version, topic, state in cursor:
            try:
                key = bytes.fromhex(stream)
                size_bytes += len(state)
            except (TypeError, ValueError) as error:
                raise CorruptRow(f"position {position}", str(error)) from error
            if key.hex() != stream:
                raise CorruptRow(f"position {position}", "the stream is not written as it is here")
            found.append(LogRow(position, key, version, topic, state))
            if size_bytes > bytes_max:
                return found[:-1] or found
        return found

    @override
    def first_rows(self, streams: Sequence[bytes]) -> dict[bytes, StoredEvent]:
        found = self.rows(
            "SELECT originator_id, topic, state FROM stored_events WHERE originator_version = 1"
            " AND originator_id IN (SELECT value FROM json_each(?))",
            (json.dumps([stream.hex() for stream in streams]),),
        )
        return {
            bytes.fromhex(stream): StoredEvent(UUID(hex=stream), 1, topic, state)
            for stream, topic, state in found
        }

    @override
    def import_rows(self, rows: Sequence[LogRow]) -> None:
        self._cursor.executemany(
            "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
            " VALUES (?, ?, ?, ?, ?)",
            [(r.position, r.stream.hex(), r.version, r.topic, r.state) for r in rows],
        )

    @override
    def import_postings(self, postings: Collection[StoredPosting]) -> None:
        # In the order of the table, which is its index.
        self._cursor.executemany(INSERT, sorted(postings))

    @override
    def clear(self) -> None:
        for table in ("stored_events", *READ_MODELS):
            self._cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - own text


class _Readers(SQLiteConnectionPool):
    """The library's pool of connections, none of which can write."""

    @override
    def _create_connection(self) -> SQLiteConnection:
        connection = connect(Path(self.db_name))
        connection.execute("PRAGMA query_only = ON")
        return SQLiteConnection(connection, max_age=self.max_age)

    @override
    def close(self) -> None:
        # The library closes connections under the hands of threads that read: a crash in C.
        with self._put_condition:
            self._put_condition.wait_for(lambda: not self._in_use, timeout=BUSY_TIMEOUT_S)
            self._in_use.clear()
        super().close()


class _Datastore(SQLiteDatastore):
    """The library's datastore with one connection kept for writing.

    In the library a writer that waits for its turn keeps readers from getting a connection.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection, checkpoint_bytes: int) -> None:
        self._writer = writer
        self._turn = threading.Lock()
        (self._pages,) = writer.execute("PRAGMA page_count").fetchone()
        self._checkpoints = Checkpointer(partial(connect, path), writer, bytes_min=checkpoint_bytes)
        super().__init__(db_name=str(path))
        self.pool = _Readers(db_name=str(path), pool_size=READERS_KEPT, max_overflow=READERS_MORE)

    @override
    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[SQLiteCursor]:
        with _library_errors():
            if commit:
                with self._turn, self._write() as cursor:
                    yield cursor
            else:
                with super().transaction(commit=False) as cursor:
                    yield cursor

    @contextmanager
    def _write(self) -> Iterator[SQLiteCursor]:
        with closing(self._writer.cursor()) as cursor:
            changed = self._writer.total_changes
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield SQLiteCursor(cursor)
                (pages,) = cursor.execute("PRAGMA page_count").fetchone()
                cursor.execute("COMMIT")
            except BaseException:
                self._writer.rollback()
                raise
        # About: each row changes a page, and what is larger than that adds pages to the file.
        rows, grown = self._writer.total_changes - changed, pages - self._pages
        self._pages = pages
        self._checkpoints.wrote((rows + grown) * _PAGE_BYTES)

    @override
    def close(self) -> None:
        self._checkpoints.stop()
        with self._turn:
            self._writer.close()
        super().close()


@contextmanager
def _library_errors() -> Iterator[None]:
    """Errors of the driver as the library's, also those that it lets through."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise IntegrityError(error) from error
    except sqlite3.Error as error:
        raise OperationalError(error) from error
