"""Connections to a SQLite log: one that writes, a few that read, and one that checkpoints.

Every connection has WAL and ``synchronous=FULL``, set and read back: a commit that returned
survives a power cut. Writers take turns by a lock in this process, and among processes by
``BEGIN IMMEDIATE`` and the busy time-out. Readers never wait for a writer.

**Checkpoints beside the writer** move committed pages from the WAL into the file. By itself, SQLite
does this within a commit: once the WAL is full, one commit copies all of it, and every command in
the next batch waits for it (measured: 60 to 140 ms every 5,000 messages). Here a thread with a
connection of its own copies while the writer goes on. Further passes copy what was committed
meanwhile, each time less; the writer copies the last of it after its next commit, within a few
milliseconds, and then SQLite uses the WAL from its beginning again. Durability does not change: on
any connection SQLite syncs the WAL before it copies and the file before it uses the WAL again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from eventsourcing.persistence import IntegrityError, OperationalError

from eventstore.log.errors import LogDamaged, LogFull, ReadTooLong, UnsafeLog
from eventstore.stores import sqlite_contents, sqlite_sizes
from eventstore.stores.sqlite_erasure import Erasure
from eventstore.stores.sqlite_sizes import wal_bytes

BUSY_TIMEOUT_S: Final = 10
CHECKPOINT_BYTES: Final = 32 * 1024 * 1024
WAL_PAGES_MAX: Final = 32_000
"""Four times ``CHECKPOINT_BYTES``: if no checkpoint beside the commits works, or none is fast
enough, SQLite does one within a commit."""
WRITER_CACHE_KIB: Final = 65_536
READERS_KEPT: Final = 4
READERS_MAX: Final = 32
READER_WAIT_S: Final = 5.0
_PAUSE_S_MAX: Final = 3.0
"""The longest pause after a long read for the WAL's truncation, which is tried once a second."""
_STEPS_BETWEEN_LOOKS: Final = 1_000_000
"""Steps of SQLite's machine, a tenth of a second, between two looks at the time of a transaction
with a bound: each look waits for its turn among the threads of Python."""
_KINDS: Final[Mapping[int, type[Exception]]] = {
    sqlite3.SQLITE_FULL: LogFull,
    sqlite3.SQLITE_IOERR_SHMSIZE: LogFull,  # of the file ``-shm``, which also a reading makes
    sqlite3.SQLITE_INTERRUPT: ReadTooLong,
}
_PAGE_BYTES: Final = 4_096
_FRAMES_MAX: Final = 200
"""A pass that copies no more than this is the last: its sync takes longer than its copying."""
_PASSES_MAX: Final = 4
"""Under the heaviest load no pass catches up with the writer, which has to wait in the end."""
_LOG = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[], sqlite3.Connection]
"""Opens one more connection to a log."""


def create_file(path: Path) -> None:
    """Make an empty database that is in WAL mode as soon as it can be seen.

    Processes that switch a fresh file to WAL at the same time get "database is locked" at once,
    in spite of the busy time-out. SQLite gives -wal and -shm the mode of the file, here 0600.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as draft:
        with closing(sqlite3.connect(draft.name)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
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
        # Any row may have a name that an erasure removes, and any statement may move such a row.
        # What stays is a copy of a row where SQLite has arranged a page anew: it does not clear
        # the room between the rows then, until it uses that room again.
        connection.execute("PRAGMA secure_delete = ON")
        (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        if (journal_mode, synchronous) != ("wal", 2):
            raise UnsafeLog(f"{path}: journal_mode {journal_mode}, synchronous {synchronous}")
    except BaseException:
        connection.close()
        raise
    _keep_all_text(connection)
    return connection


def can_be_written(path: Path) -> bool:
    """Whether this user may write the file, and the WAL beside it."""
    return all(os.access(one, os.W_OK, effective_ids=True) for one in (path, path.parent))


def denied(path: Path, *, to_read: bool) -> str:
    """Which access to a file that exists this process lacks; empty if it lacks none."""
    wanted = [(path, os.R_OK, "read")]
    if not to_read:
        wanted += [(path, os.W_OK, "write"), (path.parent, os.W_OK, "write to")]
    with contextlib.suppress(OSError):
        for one, access, verb in wanted:
            if access == os.W_OK and os.statvfs(one).f_flag & os.ST_RDONLY:
                return f"{one} is on a file system that is mounted read-only"
            owner = one.stat().st_uid
            if not os.access(one, access, effective_ids=True):
                return (
                    f"this process, of user {os.geteuid()}, may not {verb} {one}, which belongs to"
                    f" user {owner}: run it as the user that runs the mediator"
                )
    return ""


def is_taken_as_fixed(path: Path) -> bool:
    """Whether the file is read as one that never changes: later writes of others are not seen."""
    beside = (path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))
    return not can_be_written(path) and not all(one.exists() for one in beside)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection to a log that cannot be written: a backup, or one that is mounted read-only.

    If the WAL and its index exist, as beside a running mediator, SQLite reads them too, and sees
    later commits. Otherwise SQLite would have to make them, so the file is opened as one that
    never changes.

    Raises:
        sqlite3.Error: the file cannot be opened, or a WAL with rows has no index.
    """
    how = "mode=ro"
    if is_taken_as_fixed(path):
        how += "&immutable=1"
        if wal_bytes(path):
            why = f"{path.name}-wal has rows that cannot be read where nothing can be written"
            raise sqlite3.OperationalError(f"{why}: copy both files to a folder of your own")
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{how}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    _keep_all_text(connection)
    return connection


def _keep_all_text(connection: sqlite3.Connection) -> None:
    """Read text that is not UTF-8 (bit rot), too: it must reach the check that names it."""
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise errors of the driver as the library's or the log's."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise IntegrityError(error) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        # The lowest byte is the kind of an error, the rest says more about it.
        is_damage = code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        kind = LogDamaged if is_damage else _KINDS.get(code, OperationalError)
        raise kind(error) from error


class SqliteReaders:
    """At most ``READERS_MAX`` connections that cannot write; ``READERS_KEPT`` of them stay open."""

    def __init__(
        self,
        connect: Connect,
        no_truncation_waits: threading.Event,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads with a bound leave a pause while the event is clear; ``monotonic``: in seconds."""
        self._connect, self._monotonic = connect, monotonic
        self._no_truncation_waits = no_truncation_waits
        self._free: list[sqlite3.Connection] = []
        self._in_use = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def transaction(self, seconds_max: float | None = None) -> Iterator[sqlite3.Cursor]:
        """A transaction that sees one snapshot and changes nothing, for ``seconds_max`` at most.

        One with a bound may be long. While the WAL is to be truncated it leaves a pause behind it,
        no longer than it took: so none pays for the reads of others.

        Raises:
            ReadTooLong: it took longer.
            LogFull, LogDamaged: the read failed for this reason.
            OperationalError: the read failed, no connection came free within ``READER_WAIT_S``, or
                the store was closed.
        """
        began_s = self._monotonic()
        with library_errors():
            connection = self._take()
            try:
                if seconds_max is not None:
                    ends_s = time.monotonic() + seconds_max
                    connection.set_progress_handler(
                        lambda: time.monotonic() > ends_s, _STEPS_BETWEEN_LOOKS
                    )
                with closing(connection.cursor()) as cursor:
                    cursor.execute("BEGIN")
                    try:
                        yield cursor
                    finally:
                        connection.rollback()
            finally:
                connection.set_progress_handler(None, 0)
                self._give_back(connection)
                if seconds_max is not None:
                    took_s = self._monotonic() - began_s
                    self._no_truncation_waits.wait(min(took_s, _PAUSE_S_MAX))

    def close(self) -> None:
        """Close all connections, after the reads that are under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # Closing a connection while another thread reads from it crashes in C.
            self._changed.wait_for(lambda: not self._in_use, timeout=BUSY_TIMEOUT_S)
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._changed:
            self._changed.wait_for(self._may_take, timeout=READER_WAIT_S)
            if self._closed:
                raise OperationalError("the log is closed")
            if not self._may_take():
                raise OperationalError(f"{READERS_MAX} reads are already in progress")
            self._in_use += 1
            if self._free:
                return self._free.pop()
        try:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            self._leave()
            raise
        return connection

    def _may_take(self) -> bool:
        return self._closed or bool(self._free) or self._in_use < READERS_MAX

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._changed:
            is_kept = not self._closed and len(self._free) < READERS_KEPT
            if is_kept:
                self._free.append(connection)
        if not is_kept:
            connection.close()
        self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._in_use -= 1
            self._changed.notify_all()


class SqliteWriter:
    """The one connection that writes, tuned for many small appends to many streams.

    Each append touches an index page per stream. Measured with 50,000 streams: with the default
    2 MiB of cache one append in a hundred waits 8 ms for the disk, with this cache 2 ms.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        checkpoint_bytes: int,
        erased_within_s: float,
    ) -> None:
        self.connection = connect()
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")
        self.connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
        self._turn = threading.Lock()
        (self._pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        self._checkpoints = Checkpointer(connect, self.connection, bytes_min=checkpoint_bytes)
        self._erasure = Erasure(connect, self._turn, self._remove_erased, within_s=erased_within_s)
        self.no_truncation_waits = self._erasure.no_truncation_waits

    def erased(self) -> None:
        """Schedule the removal, also from the files, of what the last transaction erased."""
        self._erasure.wanted()

    def _remove_erased(self, after: int) -> int | None:
        """Remove some erased contents from the tables, the first ones after a position.

        On this connection, because a commit on another one empties the cache of this one.

        Returns:
            The position of the last one; None if there is none after ``after``.

        Raises: as ``transaction``.
        """
        with self.transaction() as cursor:
            removed = sqlite_contents.remove_erased(cursor, after)
            if removed is None:
                return None
            removed_bytes, last = removed
            sqlite_sizes.add(cursor, 0, -removed_bytes)
        return last

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        """A transaction that is durable when the block ends, or undone when it raises.

        Raises:
            IntegrityError: a key is there already.
            LogFull, LogDamaged, OperationalError: the store failed; the commit may have been under
                way.
        """
        with library_errors(), self._turn, closing(self.connection.cursor()) as cursor:
            changed = self.connection.total_changes
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                (pages,) = cursor.execute("PRAGMA page_count").fetchone()
                cursor.execute("COMMIT")
            except BaseException:
                self.connection.rollback()
                raise
            # An estimate: each row changes a page, and larger rows add pages to the file.
            rows, grown = self.connection.total_changes - changed, pages - self._pages
            self._pages = pages
            self._checkpoints.wrote((rows + grown) * _PAGE_BYTES)

    def close(self) -> None:
        """Close the connection, after the transaction and the checkpoint that are under way."""
        self._checkpoints.stop()
        self._erasure.stop()
        with self._turn:
            self.connection.close()


class Checkpointer:
    """The thread that checkpoints when enough was written."""

    def __init__(
        self,
        connect: Connect,
        writer: sqlite3.Connection,
        *,
        bytes_min: int,
    ) -> None:
        """Prepare checkpoints, each after about ``bytes_min`` bytes of written pages.

        ``connect`` opens a connection for one checkpoint, in the thread; ``writer`` is the
        connection that writes.
        """
        self._connect = connect
        self._writer = writer
        self._bytes_min = bytes_min
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._newest: Future[None] | None = None
        self._stopped = False
        self._little_is_left = False

    def wrote(self, size_bytes: int) -> None:
        """Count the bytes of a commit, an estimate; the writer calls this after each commit."""
        self._bytes += size_bytes
        if self._little_is_left:
            self._little_is_left = False
            self._try(lambda: _copy(self._writer))
        newest = self._newest
        one_waits = newest is not None and not (newest.running() or newest.done())
        if self._bytes < self._bytes_min or one_waits or self._stopped:
            return
        self._bytes = 0
        self._try(self._begin)

    def stop(self) -> None:
        """End the thread, after the pass that is under way."""
        self._stopped = True
        self._thread.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        self._newest = self._thread.submit(self._try, self._checkpoint)

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
        """Run a checkpoint; a failure costs nothing: the WAL keeps its pages until the next."""
        try:
            checkpoint()
        except Exception as error:  # noqa: BLE001 - no failure here is one of the commit
            _LOG.warning("SQLite checkpoint failed: %s", type(error).__name__)


def _copy(connection: sqlite3.Connection) -> int:
    """Copy what can be copied now; return how many frames of the WAL are copied in all.

    Raises:
        sqlite3.Error: it could not be read, written or synced.
    """
    _, _, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(copied)
