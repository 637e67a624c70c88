"""The log in one SQLite file, for one machine.

A commit that returned survives a power cut (``eventstore.stores.sqlite_connections``). Several
processes may have the same file open. The newest row stays and the file is never rebuilt, because
positions are bare rowids; contents are stored apart and erased
(``eventstore.stores.sqlite_erasure``).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import IntegrityError, PersistenceError, StoredEvent
from typing_extensions import override

from eventstore.log.errors import CorruptRow, LogDamaged, LogFull, LogUnavailable, NotComparable
from eventstore.log.event_contents import content_of, erased_by
from eventstore.log.event_log import (
    BYTES_ANY,
    Changed,
    ChangedRow,
    LogRow,
    QueueDepth,
    StorageFigures,
    StoredRecord,
)
from eventstore.log.events import BatchSealed, Event
from eventstore.log.session import LogSession, Store, StoredPosting
from eventstore.log.streams import STREAM_BYTES
from eventstore.read_models import queue_depths
from eventstore.read_models.postings import INSERT
from eventstore.read_models.saved_events_erasure import LastSteps
from eventstore.read_models.update import MADE, READ_MODELS, update_read_models
from eventstore.stores import sqlite_contents, sqlite_sizes
from eventstore.stores.sql_recorder import SqlRecorder
from eventstore.stores.sqlite_connections import (
    CHECKPOINT_BYTES,
    SqliteReaders,
    SqliteWriter,
    can_be_written,
    connect,
    connect_to_read,
    create_file,
    denied,
    library_errors,
)
from eventstore.stores.sqlite_contents import COLUMNS, JOINED, KEYS, NOT_ERASED, opened
from eventstore.stores.sqlite_erasure import WITHIN_S
from eventstore.stores.sqlite_tables import (
    TABLES,
    connect_with_stand_ins,
    make_tables,
    require_log,
    require_read_models,
    stand_in,
)

_OWN_TABLES: Final = ("stored_events", "contents", "content_keys", "erased", "archived_states")
_FAULTS_MAX: Final = 20
_WAL_BYTES_MAX: Final = 1024 * 1024 * 1024
"""To which a comparison may let the WAL grow: it reads one snapshot, and beside a mediator SQLite
uses no room of the WAL again until that ends. Eight times what the WAL has otherwise."""
_ERASE: Final = (
    "INSERT OR IGNORE INTO erased SELECT e.rowid FROM json_each(?) CROSS JOIN stored_events AS e"
    " ON originator_id = json_extract(value, '$[0]')"
    " AND originator_version = json_extract(value, '$[1]')"
)
_PREDECESSOR: Final = (
    "SELECT 1 FROM stored_events WHERE originator_id = ? AND originator_version = ?"
    " AND substr(state, -32) = ?"
)
_RESIZE: Final = {
    Changed.SIZE: "UPDATE queue_depths SET messages = ?, bytes = ? WHERE stream = ?",
    Changed.OLDEST: (
        "UPDATE queue_depths SET messages = ?, bytes = ?, oldest_at_ms = ? WHERE stream = ?"
    ),
}


def open_sqlite_store(path: Path, *, makes_missing: bool = False, to_read: bool = False) -> Store:
    """Open the store in this file; make a missing file, readable by its owner only.

    ``makes_missing``: also accept a log that lacks read models, and make no log. ``to_read``: make
    neither; the file may be read-only.

    Raises:
        LogMissing: there is no log in the file, with ``to_read`` or ``makes_missing``.
        LogFull: its disk has no room for the files beside it.
        ReadModelsMissing: the log has rows and lacks a read model.
        LogUnavailable: the file cannot be opened or is not a database.
        UnsafeLog: it cannot be used with WAL and full synchronisation.
    """
    path = path.absolute()
    try:
        with library_errors():
            if to_read or makes_missing:
                require_log(path)
            elif not path.exists():
                create_file(path)
            return SqliteStore(path, makes_missing=makes_missing, to_read=to_read)
    except (LogDamaged, LogFull) as error:
        raise type(error)(f"{path}: {error}") from error
    except (OSError, PersistenceError) as error:
        raise LogUnavailable(denied(path, to_read=to_read) or f"{path}: {error}") from error


class SqliteStore(Store):
    """A ``Store``: one connection that writes, a pool of connections that read."""

    def __init__(
        self,
        path: Path,
        *,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        erased_within_s: float = WITHIN_S,
        makes_missing: bool = False,
        to_read: bool = False,
    ) -> None:
        """``to_read``: the file need not be writable; if it is not, every write fails.

        Erased contents that an earlier process left in the WAL are then left there, too.
        """
        connects = connect_to_read if to_read and not can_be_written(path) else connect
        leaves_tables = connects is connect_to_read or (to_read and makes_missing)
        self._connect = partial(connects, path)
        if leaves_tables:
            self._connect = partial(connect_with_stand_ins, self._connect)
        if not makes_missing:
            require_read_models(self._connect)
        self._path = path
        is_left = not to_read and sqlite_sizes.wal_bytes(path) > 0
        self.writer = SqliteWriter(
            self._connect, checkpoint_bytes=checkpoint_bytes, erased_within_s=erased_within_s
        )
        self._readers = SqliteReaders(self._connect, self.writer.no_truncation_waits)
        self.recorder = SqliteRecorder(self.writer, self._readers)
        with self.writer.transaction() as cursor:
            if not leaves_tables:
                make_tables(cursor)
            erased = cursor.execute("SELECT 1 FROM erased LIMIT 1").fetchone()
        if is_left or (erased and not to_read):
            # Perhaps a killed process left this, and had just erased something.
            self.writer.erased()

    @override
    @contextmanager
    def reading(self, seconds_max: float | None = None) -> Iterator[LogSession]:
        with self._readers.transaction(seconds_max) as cursor:
            yield _Session(cursor)

    @override
    @contextmanager
    def writing(self) -> Iterator[LogSession]:
        with self.writer.transaction() as cursor:
            session = _Session(cursor)
            yield session
        if session.has_removed:
            self.writer.erased()

    @override
    @contextmanager
    def scratch(self) -> Iterator[tuple[LogSession, str]]:
        with (
            library_errors(),
            closing(self._connect()) as connection,
            closing(connection.cursor()) as cursor,
        ):
            require_read_models(self._connect)
            cursor.execute("PRAGMA temp_store = FILE")
            sqlite_sizes.give_back_wal(cursor)
            cursor.execute("BEGIN")
            for name in MADE:
                (table,) = (table for table in TABLES if f" {name} (" in table)
                cursor.execute(stand_in(table))
            yield _Scratch(cursor, self._path), "main"
            connection.rollback()

    @override
    def faults_in_files(self) -> Sequence[str]:
        with self._readers.transaction() as cursor:
            found = cursor.execute(f"PRAGMA main.integrity_check({_FAULTS_MAX})").fetchall()
        return [text for (text,) in found if text != "ok"]

    @override
    def storage(self) -> StorageFigures:
        with self._readers.transaction() as cursor:
            return sqlite_sizes.figures(cursor, self._path)

    @override
    def close(self) -> None:
        self.writer.close()
        self._readers.close()


class SqliteRecorder(SqlRecorder):
    """A recorder with one statement for a batch, and the read models in its transaction."""

    position = "rowid"

    def __init__(self, writer: SqliteWriter, readers: SqliteReaders) -> None:
        self._writer = writer
        self._readers = readers
        self._steps: LastSteps = {}

    @override
    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        events: Sequence[Event] = (),
        depths: Sequence[QueueDepth] = (),
        **_: Any,
    ) -> Sequence[int]:
        gone = erased_by(stored_events, events) if events else []
        rows = [
            (self._stored_stream(s.originator_id), s.originator_version, s.topic, s.state)
            for s in stored_events
        ]
        with self._writer.transaction() as cursor:
            cursor.executemany("INSERT INTO stored_events VALUES (?, ?, ?, ?)", rows)
            _require_predecessors(cursor, rows, events)
            # New rowids follow the greatest one, and no other transaction writes now.
            newest = cursor.execute("SELECT MAX(rowid) FROM stored_events").fetchone()[0] or 0
            session = _Session(cursor)
            first = newest - len(stored_events) + 1
            kept = [
                (position, content.stored)
                for position, event in enumerate(events, first)
                if (content := content_of(event)) is not None and content.stored is not None
            ]
            kept_bytes = sqlite_contents.keep(cursor, kept) if kept else 0
            sqlite_sizes.add(cursor, sum(len(row.state) for row in stored_events), kept_bytes)
            if gone:
                session.erase(gone)
            if events:
                update_read_models(session, stored_events, events, self._steps)
            if depths:
                _save_depths(session, depths)
        if session.has_removed:
            self._writer.erased()
        return list(range(first, newest + 1))

    @override
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self._readers.transaction() as cursor:
            return cursor.execute(statement, parameters).fetchall()

    @override
    def _stored_stream(self, stream: UUID | str) -> object:
        return stream.hex if isinstance(stream, UUID) else stream

    @override
    def _stream(self, stored: Any) -> UUID | str:
        # Only our own spelling is a stream: "{A1…}" is the same UUID, but no query finds it.
        try:
            stream = UUID(hex=stored)
        except (ValueError, TypeError, AttributeError):
            foreign: str = stored
            return foreign
        return stream if stream.hex == stored else str(stored)


def _require_predecessors(
    cursor: sqlite3.Cursor, rows: Sequence[tuple[object, int, str, bytes]], events: Sequence[Event]
) -> None:
    """Refuse a seal that does not follow the one whose digest it has, as after a lost commit."""
    for (stream, version, *_), event in zip(rows, events, strict=False):
        if isinstance(event, BatchSealed) and version > 1:
            cursor.execute(_PREDECESSOR, (stream, version - 1, event.previous))
            if cursor.fetchone() is None:
                raise IntegrityError("the seal before this one is not there")


def _save_depths(session: _Session, depths: Sequence[QueueDepth]) -> None:
    others = [depth for depth in depths if depth.changed is Changed.ANYTHING]
    for changed in _RESIZE:
        some = [depth for depth in depths if depth.changed is changed]
        if some and not session.resized(changed, some):
            others += some
    if others:
        queue_depths.save(session, others)
        # The row of an erased identity loses its name: the WAL still has it.
        session.has_removed |= not all(depth.did for depth in others)


class _Session(LogSession):
    """A ``LogSession`` on a cursor within a transaction."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.has_removed = False
        self._cursor = cursor

    @override
    def rows(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Sequence[Any]]:
        self._cursor.execute(statement, parameters)
        return self._cursor.fetchall()

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
    def rows_behind(self, after: Mapping[UUID, int], limit: int) -> dict[UUID, list[StoredEvent]]:
        find = (
            "SELECT originator_version, topic, state FROM stored_events WHERE originator_id = ?"
            " AND originator_version > ? ORDER BY originator_version LIMIT ?"
        )
        found = {s: self.rows(find, (s.hex, version, limit)) for s, version in after.items()}
        return {s: [StoredEvent(s, *row) for row in rows] for s, rows in found.items()}

    @override
    def records(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredRecord]:
        found = self.rows(
            f"SELECT {COLUMNS}, originator_version, topic, state"  # noqa: S608 - own text
            f" FROM stored_events AS e {JOINED}"
            " WHERE originator_id = ? AND originator_version IN (SELECT value FROM json_each(?))",
            (stream.hex, json.dumps(list(versions))),
        )
        return {
            row[0]: StoredRecord(StoredEvent(stream, *row), opened(*content))
            for content, row in ((one[:4], one[4:]) for one in found)
        }

    @override
    def contents(self, after: int, until: int, bytes_max: int = BYTES_ANY) -> dict[int, bytes]:
        self._cursor.execute(
            f"SELECT {COLUMNS} FROM contents AS c"  # noqa: S608 - own text
            f" LEFT JOIN content_keys ON page = c.position / {KEYS}"
            f" WHERE c.position > ? AND c.position <= ? AND {NOT_ERASED} ORDER BY c.position",
            (after, until),
        )
        found: dict[int, bytes] = {}
        size_bytes = 0
        for one in self._cursor:
            content = found[one[0]] = opened(*one) or b""
            size_bytes += len(content)
            if size_bytes >= bytes_max:
                break
        return found

    @override
    def erase(self, gone: Collection[tuple[UUID, int]]) -> None:
        places = json.dumps([(stream.hex, version) for stream, version in gone])
        self._cursor.execute(_ERASE, (places,))
        self.has_removed = True

    def resized(self, changed: Changed, depths: Sequence[QueueDepth]) -> bool:
        """Save only the changed columns of these depths; False if a row is missing.

        SQLite rewrites every index that has a column named in the statement, changed or not.
        """
        rows: list[tuple[object, ...]]
        if changed is Changed.SIZE:
            rows = [(d.messages, d.bytes, d.stream.bytes) for d in depths]
        else:
            rows = [(d.messages, d.bytes, d.oldest_at_ms, d.stream.bytes) for d in depths]
        self._cursor.executemany(_RESIZE[changed], rows)
        return self._cursor.rowcount == len(depths)

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        self._cursor.execute(
            f"SELECT e.rowid, originator_id, originator_version, topic, state, {COLUMNS}"  # noqa: S608 - own text
            f" FROM stored_events AS e {JOINED}"
            " WHERE e.rowid > ? ORDER BY e.rowid LIMIT ?",
            (after, rows_max),
        )
        found: list[LogRow] = []
        size_bytes = 0
        for position, stream, version, topic, state, *stored in self._cursor:
            try:
                key = bytes.fromhex(stream)
                size_bytes += len(state) + len(stored[1] or b"")
            except (TypeError, ValueError) as error:
                raise CorruptRow(f"position {position}", str(error)) from error
            if key.hex() != stream or len(key) != STREAM_BYTES:
                raise CorruptRow(
                    f"position {position}", "the stream is not in the form of this log"
                )
            found.append(LogRow(position, key, version, topic, state, opened(*stored)))
            if size_bytes > bytes_max:
                return found[:-1] or found
        return found

    @override
    def import_rows(self, rows: Sequence[LogRow]) -> None:
        self._cursor.executemany(
            "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
            " VALUES (?, ?, ?, ?, ?)",
            [(r.position, r.stream.hex(), r.version, r.topic, r.state) for r in rows],
        )
        kept = [(r.position, r.content) for r in rows if r.content is not None]
        kept_bytes = sqlite_contents.keep(self._cursor, kept)
        sqlite_sizes.add(self._cursor, sum(len(row.state) for row in rows), kept_bytes)

    @override
    def import_postings(self, postings: Collection[StoredPosting]) -> None:
        # In the order of the table, which is its index.
        self._cursor.executemany(INSERT, sorted(postings))

    @override
    def stream_rows(self, stream: UUID, until: int, topics: Collection[str]) -> Sequence[LogRow]:
        found = self.rows(
            "SELECT rowid, originator_version, topic, state FROM stored_events"
            " WHERE originator_id = ? AND originator_version <= ?"
            " AND topic IN (SELECT value FROM json_each(?)) ORDER BY originator_version",
            (stream.hex, until, json.dumps(list(topics))),
        )
        return [LogRow(position, stream.bytes, *row) for position, *row in found]

    @override
    def change_rows(self, rows: Sequence[ChangedRow]) -> int:
        self._cursor.executemany(
            "UPDATE stored_events SET state = ? WHERE rowid = ? AND state = ?",
            [(row.after, row.position, row.before) for row in rows],
        )
        changed = self._cursor.rowcount
        sqlite_sizes.add(self._cursor, sum(len(r.after) - len(r.before) for r in rows), 0)
        self.has_removed = self.has_removed or changed > 0
        return changed

    @override
    def remove_rows(self, positions: Collection[int]) -> int:
        # The next position follows the newest row: without that row, a position would be reused.
        leave = (
            "DELETE FROM stored_events WHERE rowid IN (SELECT value FROM json_each(?))"  # noqa: S608 - own text
            " AND rowid < (SELECT MAX(rowid) FROM stored_events) AND NOT EXISTS"
            f" (SELECT 1 FROM contents AS c WHERE position = stored_events.rowid AND {NOT_ERASED})"
        )
        removed = self._cursor.execute(leave, (json.dumps(list(positions)),)).rowcount
        self.has_removed = self.has_removed or removed > 0
        return removed

    @override
    def clear(self) -> None:
        for table in (*_OWN_TABLES, *READ_MODELS):
            self._cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - own text
        self.has_removed = True
        self.recount()

    @override
    def recount(self) -> None:
        sqlite_sizes.recount(self._cursor)

    @override
    def keep_out_writers(self) -> None:
        """Do nothing: a transaction that writes keeps out all others from its beginning."""


class _Scratch(_Session):
    """The session of a comparison, which ends when the WAL has grown too large beside it."""

    def __init__(self, cursor: sqlite3.Cursor, path: Path) -> None:
        super().__init__(cursor)
        self._path = path

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        if sqlite_sizes.wal_bytes(self._path) > _WAL_BYTES_MAX:
            raise NotComparable(
                f"{self._path.name}-wal has more than {_WAL_BYTES_MAX >> 20} MiB, of which the"
                " mediator can use nothing again meanwhile: check when it has less to do"
            )
        return super().log_rows(after, rows_max, bytes_max)
