"""Checkpoints beside the writer: what is committed moves from the WAL into the file.

SQLite does this within a commit by itself: once the WAL is full, one commit copies all of it, and
with it waits everybody whose command is in the next batch (measured: 60 to 140 ms every 5,000
messages). Here a thread with a connection of its own copies while the writer goes on. What was
committed meanwhile is copied again, each time less; the last of it by the writer after its next
commit, within a few milliseconds, and then the WAL is used from its beginning again.

Nothing about durability changes: whoever checkpoints, SQLite syncs the WAL before it copies and the
file before it uses the WAL again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

_LOG = logging.getLogger(__name__)
_FRAMES_MAX: Final = 200
"""A pass that finds so little is the last beside the writer: to sync takes longer than to copy."""
_PASSES_MAX: Final = 4
"""Under the heaviest load the writer is never caught up with; it has to wait in the end."""
_NAME: Final = "checkpoints"


class Checkpointer:
    """The thread that checkpoints when enough was written."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        writer: sqlite3.Connection,
        *,
        bytes_min: int,
    ) -> None:
        """A checkpointer that starts when about so many bytes of pages were written.

        ``connect`` opens a connection for one checkpoint, in the thread; ``writer`` is the
        connection that writes.
        """
        self._connect = connect
        self._writer = writer
        self._bytes_min = bytes_min
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._due = threading.Event()
        self._stopped = False
        self._little_is_left = False

    def wrote(self, size_bytes: int) -> None:
        """So much was committed, about; for who writes, after the commit and before the next."""
        self._bytes += size_bytes
        if self._little_is_left:
            self._little_is_left = False
            self._try(lambda: _copy(self._writer))
        if self._bytes < self._bytes_min or self._stopped:
            return
        self._bytes = 0
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=_NAME, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after the pass that is under way."""
        self._stopped = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while self._due.wait() and not self._stopped:
            self._due.clear()
            self._try(self._checkpoint)

    def _checkpoint(self) -> None:
        with closing(self._connect()) as connection:
            before = 0
            for _ in range(_PASSES_MAX):
                copied = _copy(connection)
                if self._stopped or copied - before <= _FRAMES_MAX:
                    break
                before = copied
        self._little_is_left = True

    @staticmethod
    def _try(checkpoint: Callable[[], object]) -> None:
        """What fails costs nothing: the WAL keeps what it has, until the next time."""
        try:
            checkpoint()
        except Exception as error:  # noqa: BLE001 - no failure here is one of the commit
            _LOG.warning("no checkpoint: %s", type(error).__name__)


def _copy(connection: sqlite3.Connection) -> int:
    """Copy what may be copied now; how many frames of the WAL are copied by now.

    Raises:
        sqlite3.Error: it could not be read, written or synced.
    """
    _, _, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(copied)
