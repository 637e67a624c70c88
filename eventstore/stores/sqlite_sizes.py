"""The storage that a log in SQLite uses, without a scan of its pages: running sums.

SQLite knows how many pages a file has and how many are free, but not which table has them without
reading all. So one row has the bytes of rows and of contents. A file of an earlier release lacks
the row until its read models are rebuilt.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from eventstore.log.event_log import StorageFigures

TABLES: Final = (
    """
    CREATE TABLE log_bytes (
        id INTEGER PRIMARY KEY, facts INTEGER NOT NULL, contents INTEGER NOT NULL
    )
    """,
    # For rows that any statement removes. Appends do not fire it.
    """
    CREATE TRIGGER fact_removed AFTER DELETE ON stored_events BEGIN
        UPDATE log_bytes SET facts = facts - coalesce(length(old.state), 0);
    END
    """,
)
_BUSY_MS: Final = 50
MADE_LAST: Final = "fact_removed"
_BEGIN: Final = """
    INSERT INTO log_bytes SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_events)
    """
_RECOUNT: Final = (
    "DELETE FROM log_bytes",
    """
    INSERT INTO log_bytes SELECT 0,
    (SELECT coalesce(sum(length(state)), 0) FROM stored_events),
    (SELECT coalesce(sum(length(content)), 0) FROM contents)
    """,
)


def make(cursor: sqlite3.Cursor) -> None:
    """Keep the sums from now on, if the log is empty."""
    for statement in (*TABLES, _BEGIN):
        cursor.execute(statement)


def add(cursor: sqlite3.Cursor, facts_bytes: int, contents_bytes: int) -> None:
    """Add these bytes, which may be negative, to the sums."""
    cursor.execute(
        "UPDATE log_bytes SET facts = facts + ?, contents = contents + ?",
        (facts_bytes, contents_bytes),
    )


def recount(cursor: sqlite3.Cursor) -> None:
    """Make the sums anew from all rows and contents."""
    for statement in _RECOUNT:
        cursor.execute(statement)


def figures(cursor: sqlite3.Cursor, path: Path) -> StorageFigures:
    """The storage that the file and its WAL use."""
    ((pages,),) = cursor.execute("PRAGMA page_count").fetchall()
    ((free,),) = cursor.execute("PRAGMA freelist_count").fetchall()
    ((page_bytes,),) = cursor.execute("PRAGMA page_size").fetchall()
    sums = cursor.execute("SELECT facts, contents FROM log_bytes").fetchall()
    facts, contents = sums[0] if sums else (None, None)
    held_bytes = (pages - free) * page_bytes
    in_wal = wal_bytes(path)
    return StorageFigures(
        facts_bytes=facts,
        contents_bytes=contents,
        read_models_bytes=max(0, held_bytes - facts - contents) if sums else None,
        wal_bytes=in_wal,
        free_bytes=free * page_bytes,
        used_bytes=held_bytes + in_wal,
    )


def give_back_wal(cursor: sqlite3.Cursor) -> None:
    """Let the WAL have the size of what is kept for readers, if it can be given back just now.

    A copied WAL keeps its size, and is written again from its beginning.
    """
    (timeout_ms,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    # Meanwhile nothing is written.
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    with suppress(sqlite3.Error):  # of a connection that may only read, for example
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def wal_bytes(path: Path) -> int:
    """The size of the WAL beside a file; 0 where there is none.

    Raises:
        sqlite3.OperationalError: it cannot be looked at; says why.
    """
    wal = path.with_name(f"{path.name}-wal")
    try:
        return wal.stat().st_size
    except FileNotFoundError:  # the last connection of another process removes it
        return 0
    except OSError as error:
        why = f"{wal} cannot be looked at: {error.strerror}"
        raise sqlite3.OperationalError(why) from error
