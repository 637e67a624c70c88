"""The tables, indexes and triggers of a log in SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from eventstore.log.errors import LogMissing, ReadModelsMissing
from eventstore.read_models.queue_depths import DUE_COLUMNS, INDEXES
from eventstore.read_models.update import MADE, UNFILLED
from eventstore.stores import sqlite_contents, sqlite_sizes
from eventstore.stores.sqlite_connections import Connect, connect_to_read

TABLES: Final = (
    # As the library's recorder makes it, so that logs of all releases are alike.
    """
    CREATE TABLE IF NOT EXISTS stored_events (
        originator_id TEXT, originator_version INTEGER, topic TEXT, state BLOB,
        PRIMARY KEY (originator_id, originator_version)
    )
    """,
    *sqlite_contents.TABLES,
    """
    CREATE TABLE IF NOT EXISTS postings (
        list BLOB NOT NULL, timestamp_s REAL NOT NULL, version INTEGER NOT NULL,
        revision INTEGER NOT NULL, own INTEGER NOT NULL,
        PRIMARY KEY (list, timestamp_s, version)
    ) WITHOUT ROWID
    """,
    *(
        f"""
        CREATE TABLE IF NOT EXISTS {name} (
            stream BLOB PRIMARY KEY, version INTEGER NOT NULL, fold INTEGER NOT NULL,
            state BLOB NOT NULL
        )
        """
        for name in ("snapshots", "archived_states")
    ),
    """
    CREATE TABLE IF NOT EXISTS queue_depths (
        stream BLOB PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL,
        oldest_at_ms INTEGER, did BLOB NOT NULL DEFAULT x'', outbound INTEGER NOT NULL DEFAULT 0,
        expires_at_ms INTEGER, requests_since_ms INTEGER, contracts_until_ms INTEGER,
        registered_until_ms INTEGER, idle_since_ms INTEGER, published_since_ms INTEGER
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

_QUEUE_TOTALS: Final = (
    "DROP TABLE IF EXISTS queue_totals",
    """
    CREATE TABLE queue_totals (
        id INTEGER PRIMARY KEY, queues INTEGER NOT NULL, messages INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    )
    """,
    """
    INSERT INTO queue_totals
    SELECT 0, count(*), coalesce(sum(messages), 0), coalesce(sum(bytes), 0) FROM queue_depths
    """,
    """
    CREATE TRIGGER queue_added AFTER INSERT ON queue_depths BEGIN
        UPDATE queue_totals SET queues = queues + 1, messages = messages + new.messages,
        bytes = bytes + new.bytes;
    END
    """,
    """
    CREATE TRIGGER queue_changed AFTER UPDATE OF messages, bytes ON queue_depths
    WHEN new.messages <> old.messages OR new.bytes <> old.bytes BEGIN
        UPDATE queue_totals SET messages = messages + new.messages - old.messages,
        bytes = bytes + new.bytes - old.bytes;
    END
    """,
    """
    CREATE TRIGGER queue_removed AFTER DELETE ON queue_depths BEGIN
        UPDATE queue_totals SET queues = queues - 1, messages = messages - old.messages,
        bytes = bytes - old.bytes;
    END
    """,
)
"""Sums of queue_depths, kept by triggers: every change of a queue changes them."""
_TOTALS_MADE_LAST: Final = "queue_removed"
_LATER_COLUMNS: Final = {
    "did": "ALTER TABLE queue_depths ADD COLUMN did BLOB NOT NULL DEFAULT x''",
    "outbound": "ALTER TABLE queue_depths ADD COLUMN outbound INTEGER NOT NULL DEFAULT 0",
    **{name: f"ALTER TABLE queue_depths ADD COLUMN {name} INTEGER" for name in DUE_COLUMNS},
}
"""Columns of queue_depths that the first logs lack."""
_NOTE_UNFILLED: Final = (
    "INSERT OR IGNORE INTO settings SELECT ?, x'' WHERE EXISTS (SELECT 1 FROM stored_events)"
)
_INDEXES: Final = (
    # Indexes of earlier releases.
    "DROP INDEX IF EXISTS outbound_queues",
    "DROP INDEX IF EXISTS outbound_by_age",
    *INDEXES,
)


def require_read_models(connect: Connect) -> None:
    """Refuse a log that lacks a read model, which would otherwise be made empty.

    Raises:
        ReadModelsMissing: the log has its table of rows and lacks a read model.
    """
    with closing(connect()) as connection:
        there = _names(connection)
    missing = [name for name in MADE if name not in there]
    if missing and "stored_events" in there:
        raise ReadModelsMissing(missing)


def _names(database: sqlite3.Connection | sqlite3.Cursor) -> set[str]:
    """The names of its tables, indexes and triggers."""
    return {name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()}


def require_log(path: Path) -> None:
    """Refuse a file without the table of rows, and leave it as it is.

    Raises:
        LogMissing: there is no log in it.
        sqlite3.Error: as ``connect_to_read``; or it is no database.
    """
    if path.exists():
        with closing(connect_to_read(path)) as connection:
            if "stored_events" in _names(connection):
                return
    raise LogMissing(f"there is no log in {path}")


def connect_with_stand_ins(connect: Connect) -> sqlite3.Connection:
    """A connection to a log that is left as it is, with temporary tables in place of missing ones.

    An earlier release may have written it. Missing read models stay missing.

    Raises: as ``connect``.
    """
    connection = connect()
    # Before there is a temporary table: a change of the setting would remove it.
    connection.execute("PRAGMA temp_store = FILE")
    there = _names(connection)
    for table in TABLES:
        if not any(f" {name} (" in table for name in (*MADE, *there)):
            connection.execute(stand_in(table))
    return connection


def stand_in(table: str) -> str:
    """The statement that makes one of ``TABLES`` as a temporary table.

    It hides a table of the same name in the file.
    """
    return table.replace("TABLE IF NOT EXISTS", "TEMP TABLE")


def make_tables(cursor: sqlite3.Cursor) -> None:
    """Make missing tables, columns, indexes and triggers."""
    there = _names(cursor)
    for table in TABLES:
        cursor.execute(table)
    if not there.issuperset(MADE):
        cursor.execute(_NOTE_UNFILLED, (UNFILLED.encode(),))
    columns = {row[1] for row in cursor.execute("PRAGMA table_info(queue_depths)").fetchall()}
    for name, statement in _LATER_COLUMNS.items():
        if name not in columns:
            cursor.execute(statement)
    for statement in _INDEXES:
        cursor.execute(statement)
    if _TOTALS_MADE_LAST not in there:
        for statement in _QUEUE_TOTALS:
            cursor.execute(statement)
    if sqlite_sizes.MADE_LAST not in there:
        sqlite_sizes.make(cursor)
