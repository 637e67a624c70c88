"""SQL inside one transaction, the same text for both stores.

Statements use ``?`` for parameters and only what SQLite and PostgreSQL have in common. Keys made
from clients' strings are bytes (PostgreSQL text cannot hold U+0000).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import ApplicationRecorder, StoredEvent

from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import BYTES_ANY, ChangedRow, LogRow, StorageFigures, StoredRecord

StoredPosting: TypeAlias = tuple[bytes, float, int, int, int]
"""List, timestamp in seconds, version, revision, own: a row of ``read_models.postings``."""


class Session(Protocol):
    """One open transaction, as read models use it."""

    def rows(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows (none if it returns none)."""

    def run_many(self, statement: str, parameters: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each of the parameter rows."""

    def stored(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredEvent]:
        """The stored rows of a stream at these versions, by version."""

    def records(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredRecord]:
        """The same rows, with their stored contents."""


class LogSession(Session, Protocol):
    """One open transaction on a store, with the operations whose SQL differs between stores."""

    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        """Rows after a position, with contents: within both bounds, but at least one row."""

    def contents(self, after: int, until: int, bytes_max: int = BYTES_ANY) -> dict[int, bytes]:
        """Stored contents by position, as ``LogReader.read_contents``."""

    def erase(self, gone: Collection[tuple[UUID, int]]) -> None:
        """Erase the contents, if any, of the rows at these streams and versions."""

    def states(self, table: str, streams: Sequence[UUID]) -> Sequence[tuple[UUID, int, int, bytes]]:
        """Stream, version, fold and stored state of these streams, in a table of snapshots."""
        find = f"SELECT version, fold, state FROM {table} WHERE stream = ?"  # noqa: S608 - own text
        return [(s, *row) for s in streams for row in self.rows(find, (s.bytes,))]

    def records_of(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        """As ``records``, for many streams."""
        return {stream: self.records(stream, versions) for stream, versions in wanted.items()}

    def rows_behind(self, after: Mapping[UUID, int], limit: int) -> dict[UUID, list[StoredEvent]]:
        """For each stream the stored rows after its version in ``after``, at most ``limit``."""

    def append_age_s(self) -> float:
        """As ``LogReader.append_age_s``."""
        return 0.0

    def import_rows(self, rows: Sequence[LogRow]) -> None:
        """Store rows of another log, with contents, at the positions that they have there.

        These positions follow all positions in this log; later appends get positions behind them.
        """

    def import_postings(self, postings: Collection[StoredPosting]) -> None:
        """Store new postings, in bulk."""

    def stream_rows(self, stream: UUID, until: int, topics: Collection[str]) -> Sequence[LogRow]:
        """Rows of a stream up to version ``until`` with one of these topics, without contents."""

    def change_rows(self, rows: Sequence[ChangedRow]) -> int:
        """Replace the states of the rows that still have their earlier one; return how many."""

    def remove_rows(self, positions: Collection[int]) -> int:
        """Remove these rows, except any with a content (SQLite: or the newest); return how many."""

    def clear(self) -> None:
        """Remove all rows, contents, read models and snapshots; constants stay."""

    def recount(self) -> None:
        """Recompute the sums that the store keeps of its rows and contents, if it keeps any."""

    def keep_out_writers(self) -> None:
        """Keep other transactions from appending until this one ends."""


class Store(Protocol):
    """A database that holds a log: the library's recorder, and transactions beside it.

    All methods raise the library's errors (``eventsourcing.persistence.PersistenceError`` and
    its base), or ``LogFull``, ``LogDamaged``, ``ReadTooLong`` and ``ReadCancelled``, never those of
    the driver.
    """

    recorder: ApplicationRecorder
    """Writes and reads ``stored_events``; takes ``events=`` for the read models."""

    def asking(self) -> AbstractContextManager[LogSession]:
        """A session for one statement that changes nothing."""
        return self.reading()

    def reading(self, seconds_max: float | None = None) -> AbstractContextManager[LogSession]:
        """A transaction that sees one snapshot and changes nothing.

        ``seconds_max`` bounds it, or on PostgreSQL each of its statements; then it raises
        ``ReadTooLong``.
        """

    def writing(self) -> AbstractContextManager[LogSession]:
        """A transaction that is durable when the block ends, or undone when it raises."""

    def storage(self) -> StorageFigures:
        """The storage that the store uses, from figures that it keeps."""

    def scratch(self) -> AbstractContextManager[tuple[LogSession, str]]:
        """A transaction on one snapshot, with empty read models of its own that end with it.

        Yields the session and the name of the schema that has the stored read models.
        """

    def faults_in_files(self) -> Sequence[str]:
        """What the database finds wrong with its own files; nothing where it has no such check.

        Reading by position uses no index, so the rows may be whole while an index lacks some.
        """
        return ()

    def close(self) -> None:
        """Release all connections."""


@contextmanager
def unavailable() -> Iterator[None]:
    """Raise errors of the library as ``LogUnavailable``."""
    try:
        yield
    except EventSourcingError as error:
        raise LogUnavailable(f"{type(error).__name__}: {error}") from error
