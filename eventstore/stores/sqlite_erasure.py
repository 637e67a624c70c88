"""Removes what was erased from the tables and files of a SQLite log, and gives free pages back.

Some time after an erasure a thread removes all contents that were erased by then
(``eventstore.stores.sqlite_contents``): the longer it waits, the more of them share their pages.
That overwrites their keys, but a page as it was stays in the file until a checkpoint, and in the
WAL until that room is used again. So the thread then moves the WAL into the file and truncates the
WAL. It takes no more than moments between two commits, and tries again if a reader is in the way;
each long read then leaves a pause, or one after the other would be in the way for ever.

SQLite uses free pages in the file again first. If they are a large part of the file, pages at its
end move into them, some at a time, and the file becomes shorter; only in files that were made for
it (``auto_vacuum``), because a file cannot be changed to that without renumbering its rows.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from eventsourcing.persistence import OperationalError

from eventstore.log.errors import LogUnavailable

WITHIN_S: Final = 30.0
"""From the first erasure until it leaves the tables and then the files.

What is erased in this time is removed together, and mostly lies in the same pages.
"""
_PAUSE_S: Final = 0.004
"""After some are removed: without it the same thread would mostly get the next turn, too."""
_BUSY_MS: Final = 50
"""The longest that the writer waits for a reader that keeps the WAL from being truncated."""
_AGAIN_S: Final = 1.0
_PASSES: Final = 2
_PAGES_AT_ONCE: Final = 64
_FREE_PAGES_MIN: Final = 4_096
"""16 MiB: less than that is not worth moving pages for."""
_FREE_SHARE_MAX: Final = 0.25
_STEPS_MAX: Final = 256
"""The most steps after one erasure: 64 MiB."""
_BETWEEN_STEPS_S: Final = 0.01
_INCREMENTAL: Final = 2
_LOG = logging.getLogger(__name__)


class Erasure:
    """The thread that removes erased contents from the files of a log."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        turn: threading.Lock,
        remove: Callable[[int], int | None],
        *,
        within_s: float,
    ) -> None:
        """Prepare the thread, which starts with the first erasure.

        ``connect`` opens a connection, in the thread; the writer holds ``turn`` while it writes;
        ``remove`` removes some erased contents, the first ones after a position, from the tables,
        and returns the position of the last one, or None if there is none.
        """
        self.no_truncation_waits = threading.Event()
        """Clear while a reader, of this process or another, is in the way of the WAL's
        truncation."""
        self.no_truncation_waits.set()
        self._connect = connect
        self._turn = turn
        self._remove = remove
        self._within_s = within_s
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._fault = ""

    def wanted(self) -> None:
        """Note that something was erased; the writer calls this after its commit.

        If the thread cannot be started, that is logged, and the next call tries again.
        """
        self._wanted.set()
        with self._starting:
            if self._thread is not None or self._stopped.is_set():
                return
            thread = threading.Thread(target=self._work, name="erasure", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self._failed(error)
            else:
                self._thread = thread

    def stop(self) -> None:
        """End the thread, and do the rest of its work now if no reader is in the way."""
        self._stopped.set()
        self._wanted.set()
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self._purged()
            self.no_truncation_waits.set()

    def _work(self) -> None:
        # A stop may come at any moment, also between the wait and the clear.
        while not self._stopped.is_set():
            self._wanted.wait()
            if self._stopped.wait(self._within_s):
                return
            self._wanted.clear()
            while not self._purged() and not self._stopped.wait(_AGAIN_S):
                pass

    def _purged(self) -> bool:
        """Remove erased contents, and purge the files once; False if that is still to be done."""
        try:
            self._remove_all()
            with closing(self._connect()) as connection:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
                self._give_back(connection)
                is_done = self._truncated(connection)
        except (OperationalError, LogUnavailable, sqlite3.Error) as error:
            self._failed(error)
            self.no_truncation_waits.set()
            return False
        self._fault = ""
        if is_done:
            self.no_truncation_waits.set()
        else:
            self.no_truncation_waits.clear()
        return is_done

    def _failed(self, error: Exception) -> None:
        # A full disk fails every attempt: one line for each reason until one succeeds.
        level = logging.DEBUG if str(error) == self._fault else logging.WARNING
        _LOG.log(level, "erased contents are still in the files: %s", error)
        self._fault = str(error)

    def _remove_all(self) -> None:
        """Remove erased contents in one pass: what is erased behind it waits for the next one."""
        after: int | None = 0
        while after is not None:
            after = self._remove(after)
            self._stopped.wait(_PAUSE_S)

    def _truncated(self, connection: sqlite3.Connection) -> bool:
        for _ in range(_PASSES):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        with self._turn:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def _give_back(self, connection: sqlite3.Connection) -> None:
        (kind,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if kind != _INCREMENTAL:
            return
        for _ in range(_STEPS_MAX):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free < _FREE_PAGES_MIN or free < pages * _FREE_SHARE_MAX:
                return
            with self._turn:
                # A script, because the pragma takes a step for each page and has no rows to fetch.
                connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
            if self._stopped.wait(_BETWEEN_STEPS_S):
                return
