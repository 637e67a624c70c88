"""Lets what was erased leave the files of a SQLite log, and gives free pages back.

The key of a content is overwritten (``eventstore.stores.sqlite_contents``), but its page of before
stands in the WAL until that is used again there, and in the file until then. So some time after
something was erased a thread moves the WAL into the file and cuts it to nothing. It takes no more
than moments between two commits, and tries again where a reader is in the way.

What is free in the file is used again first. Where it is a large part of the file, the end of the
file moves into it, some pages at a time, and the file becomes shorter; only in files that were made
for it (``auto_vacuum``), because a file cannot be changed to that without renumbering its rows.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

WITHIN_S: Final = 30.0
"""From the first erasure to the end of what the WAL has of it, if no reader is in the way."""
_BUSY_MS: Final = 50
"""So long the writer waits at most because a reader is in the way of the end of the WAL."""
_AGAIN_S: Final = 1.0
_PASSES: Final = 2
_PAGES_AT_ONCE: Final = 64
_FREE_PAGES_MIN: Final = 4_096
"""16 MiB: less than that is not worth moving pages for."""
_FREE_SHARE_MAX: Final = 0.25
_STEPS_MAX: Final = 256
"""So many steps after one erasure: 64 MiB."""
_BETWEEN_STEPS_S: Final = 0.01
_INCREMENTAL: Final = 2
_LOG = logging.getLogger(__name__)


class Erasure:
    """The thread that lets erased contents leave the files of a log."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        turn: threading.Lock,
        *,
        within_s: float = WITHIN_S,
    ) -> None:
        """One for a log, with nothing to do.

        ``connect`` opens a connection, in the thread; ``turn`` is held by what writes.
        """
        self._connect = connect
        self._turn = turn
        self._within_s = within_s
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wanted(self) -> None:
        """Something was erased; called by the writer after its commit."""
        self._wanted.set()
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._work, name="erasure", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what it was to do is done now, if no reader is in the way."""
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._purged()

    def _work(self) -> None:
        # It may be stopped at any moment, also as something wanted is put down as taken up.
        while not self._stopped.is_set():
            self._wanted.wait()
            if self._stopped.wait(self._within_s):
                return
            self._wanted.clear()
            while not self._purged() and not self._stopped.wait(_AGAIN_S):
                pass

    def _purged(self) -> bool:
        """Do it once; False where it is still to be done."""
        try:
            with closing(self._connect()) as connection:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
                self._give_back(connection)
                return self._truncated(connection)
        except sqlite3.Error as error:
            _LOG.warning("erased contents are still in the files: %s", type(error).__name__)
            return False

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
                # A script, because it takes a step for each page and has no rows to fetch.
                connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
            if self._stopped.wait(_BETWEEN_STEPS_S):
                return
