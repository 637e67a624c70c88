"""What a log in SQLite takes, without a look at its pages: sums of what came and what left.

SQLite knows how many pages a file has and how many are free, and not which table has them without
reading all. So one row has the bytes of rows and of contents. Not every append changes it: it would
be a page of each commit. What a killed process had not saved, a few pages, is missing in it until
the read models are made anew, as all of it is in a file of an earlier release.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from eventsourcing.persistence import StoredEvent

from eventstore.log.event_log import StorageFigures

TABLES: Final = (
    """
    CREATE TABLE log_bytes (
        id INTEGER PRIMARY KEY, facts INTEGER NOT NULL, contents INTEGER NOT NULL
    )
    """,
    # Of rows that leave, by whatever statement. Appends have nothing to do with it.
    """
    CREATE TRIGGER fact_removed AFTER DELETE ON stored_events BEGIN
        UPDATE log_bytes SET facts = facts - coalesce(length(old.state), 0);
    END
    """,
)
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
_UNSAVED_APPENDS: Final = 64
_UNSAVED_BYTES: Final = 65_536
"""What is not saved yet is less than both."""


class UnsavedBytes(msgspec.Struct, frozen=True):
    """What was appended, less what was erased, since the row was changed."""

    facts: int = 0
    contents: int = 0
    appends: int = 0

    def save(self, cursor: sqlite3.Cursor) -> None:
        """Add it to the row."""
        add(cursor, self.facts, self.contents)

    def after(
        self, cursor: sqlite3.Cursor, rows: Sequence[StoredEvent], contents_bytes: int
    ) -> UnsavedBytes:
        """What is unsaved once this append is committed; saved with it if it is much."""
        facts, contents = sum(len(row.state) for row in rows), self.contents + contents_bytes
        sums = UnsavedBytes(self.facts + facts, contents, self.appends + 1)
        is_little = sums.facts + abs(sums.contents) < _UNSAVED_BYTES
        if is_little and sums.appends < _UNSAVED_APPENDS:
            return sums
        sums.save(cursor)
        return UnsavedBytes()


def make(cursor: sqlite3.Cursor) -> None:
    """Keep the sums from now on, if the log is empty."""
    for statement in (*TABLES, _BEGIN):
        cursor.execute(statement)


def add(cursor: sqlite3.Cursor, facts_bytes: int, contents_bytes: int) -> None:
    """So many bytes came, or left if less than 0."""
    cursor.execute(
        "UPDATE log_bytes SET facts = facts + ?, contents = contents + ?",
        (facts_bytes, contents_bytes),
    )


def recount(cursor: sqlite3.Cursor) -> None:
    """Make the sums anew from all rows and contents."""
    for statement in _RECOUNT:
        cursor.execute(statement)


def figures(cursor: sqlite3.Cursor, path: Path, unsaved: UnsavedBytes) -> StorageFigures:
    """What the file and its WAL take."""
    ((pages,),) = cursor.execute("PRAGMA page_count").fetchall()
    ((free,),) = cursor.execute("PRAGMA freelist_count").fetchall()
    ((page_bytes,),) = cursor.execute("PRAGMA page_size").fetchall()
    sums = cursor.execute("SELECT facts, contents FROM log_bytes").fetchall()
    facts, contents = (
        (sums[0][0] + unsaved.facts, sums[0][1] + unsaved.contents) if sums else (None, None)
    )
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


def wal_bytes(path: Path) -> int:
    """The size of the WAL beside a file; 0 where there is none."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:  # the last connection of another process removes it
        return 0
