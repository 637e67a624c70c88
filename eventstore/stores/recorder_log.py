"""The event log on any store: implements the port with one recorder and its sessions."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final
from uuid import UUID

from eventsourcing.persistence import IntegrityError, Notification, StoredEvent
from typing_extensions import override

from eventstore.log.batch import batch_bytes, check_batch
from eventstore.log.errors import (
    AppendConflict,
    AppendUnknown,
    LogFull,
    LogUnfinished,
    NoRoom,
    NotComparable,
    ReadModelsMissing,
    RowsStay,
    TurnLost,
)
from eventstore.log.event_log import (
    BYTES_ANY,
    ChangedRow,
    DedicatedIdentity,
    Departure,
    Due,
    DueIdentity,
    DuePlace,
    DueSnapshot,
    EventLog,
    Listed,
    LogFigures,
    LogRow,
    PageBounds,
    PublicEventsFilter,
    PublicEventsPage,
    QueueDepth,
    SavedEventsFilter,
    SavedEventsPage,
    SealPlace,
    Snapshot,
    StorageFigures,
    StoredRecord,
    WaitingQueue,
)
from eventstore.log.events import Event
from eventstore.log.log_format import check_format
from eventstore.log.seam import SEAM
from eventstore.log.session import LogSession, Session, Store, unavailable
from eventstore.read_models import (
    public_events,
    queue_depths,
    saved_events,
    saved_events_erasure,
)
from eventstore.read_models.remake import Difference, Progress, differences, remake
from eventstore.read_models.update import MADE, UNFILLED, dedicated

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES: Final = 32
_STATES_AT_ONCE: Final = 100
_NEWEST: Final = 2**62
"""No row of a stream has a version behind this one."""
HISTORY_S_MAX: Final = 15.0
"""Counting 5 million saved events by 16 tags takes 11 s. Meanwhile other histories wait, and SQLite
cannot cut its WAL."""
_NO_LAYOUT: Final = 0
"""The layout of an empty snapshot; those of states begin with 1."""
_PUT: Final = "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT "
_FIX: Final = _PUT + "DO NOTHING"
SET: Final = _PUT + "(name) DO UPDATE SET value = excluded.value"
UNSET: Final = "DELETE FROM settings WHERE name = ?"
UNFINISHED: Final = "unfinished_restore"
"""A constant that a log has until a restore into it has come to its end."""


def opened(store: Store, *, makes_missing: bool = False) -> EventLog:
    """The log in a store, unless it is only partly restored or of a later release.

    ``makes_missing``: also accept a log whose read models were made anew and not filled.

    Raises:
        LogUnavailable: it cannot be read.
        LogUnfinished: a restore into it has not come to its end.
        ReadModelsMissing: a rebuild of missing read models has not come to its end.
        LogOfLaterRelease: a later release has written to it.
    """
    try:
        with unavailable(), store.reading() as session:
            constants = stored_settings(session)
        if UNFINISHED in constants:
            raise LogUnfinished("a restore into this log is unfinished")
        if UNFILLED in constants and not makes_missing:
            raise ReadModelsMissing(MADE)
        check_format(constants)
    except BaseException:
        store.close()
        raise
    return RecorderLog(store)


def stored_settings(session: Session) -> dict[str, str]:
    """All constants of a log."""
    found = session.rows("SELECT name, value FROM settings")
    return {bytes(name).decode(): bytes(value).decode() for name, value in found}


def rebuild_read_models(store: Store, *, progress: Progress | None = None) -> None:
    """Make all read models anew from the rows of the log, in one transaction; drop the snapshots.

    Raises:
        LogUnavailable: the store failed; all is as it was.
        LogOfLaterRelease: a later release has tables that this one does not know.
        CorruptRow, UnknownTopic: a row cannot be understood; all is as it was.
    """
    with unavailable(), store.writing() as session:
        check_format(stored_settings(session))
        session.keep_out_writers()
        for table in (*MADE, "snapshots"):
            session.run_many(f"DELETE FROM {table}", [()])  # noqa: S608 - own text
        queue_depths.forget_totals(session)
        session.recount()
        remake(session, progress=progress)
        session.run_many(UNSET, [(UNFILLED.encode(),)])


def wrong_read_models(store: Store, *, progress: Progress | None = None) -> Sequence[Difference]:
    """The read models that do not agree with the rows of the log.

    Raises:
        NotComparable: the store cannot hold temporary tables, or has no room for them.
        ReadModelsMissing: one of them is not there.
        LogUnavailable, CorruptRow, UnknownTopic: as ``rebuild_read_models``.
    """
    try:
        with unavailable(), store.scratch() as (session, stored_in):
            remake(session, progress=progress)
            return list(differences(session, stored_in))
    except LogFull as error:
        raise NotComparable(f"no room for temporary tables: {error}") from error


class RecorderLog(EventLog):
    """An ``EventLog`` over a ``Store``. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    def append(
        self,
        rows: Sequence[StoredEvent],
        events: Sequence[Event],
        depths: Sequence[QueueDepth] = (),
    ) -> None:
        check_batch(rows, events)
        if not rows:
            return
        try:
            self._store.recorder.insert_events(rows, events=events, depths=depths)
        except IntegrityError as error:
            raise AppendConflict(str(error)) from error
        except MemoryError:
            raise  # the process ends, so the outcome is unknown as well
        except LogFull as error:
            raise NoRoom(f"{type(error).__name__}: {error}", batch_bytes(rows, events)) from error
        except Exception as error:
            # Whatever failed, a commit may have been under way: a store that reports an I/O
            # error at COMMIT can still have the transaction after a restart.
            raise AppendUnknown(f"{type(error).__name__}: {error}") from error

    @override
    def read_stream(
        self,
        stream: UUID,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[StoredEvent]:
        with unavailable():
            return self._store.recorder.select_events(
                stream,
                gt=after,
                lte=None if before is None else before - 1,
                desc=newest_first,
                limit=limit,
            )

    @override
    def read_versions(self, stream: UUID, versions: Sequence[int]) -> dict[int, StoredEvent]:
        with unavailable(), self._store.asking() as session:
            return session.stored(stream, versions)

    @override
    def read_records(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        with unavailable(), self._store.asking() as session:
            return session.records_of(wanted)

    @override
    def read_contents(
        self, *, after: int, until: int, bytes_max: int = BYTES_ANY
    ) -> dict[int, bytes]:
        with unavailable(), self._store.asking() as session:
            return session.contents(after, until, bytes_max)

    @override
    def read_log(
        self,
        *,
        after: int | None = 0,
        until: int | None = None,
        topics: Collection[str] = (),
        limit: int = 1000,
    ) -> Sequence[Notification]:
        with unavailable():
            return self._store.recorder.select_notifications(
                after, limit, until, list(topics), inclusive_of_start=False
            )

    @override
    def read_rows(self, *, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        with unavailable(), self._store.reading() as session:
            return session.log_rows(after, rows_max, bytes_max)

    @override
    def append_age_s(self) -> float:
        with unavailable(), self._store.asking() as session:
            return session.append_age_s()

    @override
    def position(self) -> int:
        with unavailable():
            return self._store.recorder.max_notification_id() or 0

    @override
    def figures(self) -> LogFigures:
        position = self.position()
        with unavailable(), self._store.reading() as session:
            return queue_depths.total(session, position)

    @override
    def storage(self) -> StorageFigures:
        with unavailable():
            return self._store.storage()

    @override
    def waiting_queues(
        self,
        *,
        outbound_only: bool = False,
        did: str | None = None,
        after: WaitingQueue | None = None,
        limit: int,
    ) -> Sequence[WaitingQueue]:
        with unavailable(), self._store.reading() as session:
            if did is not None:
                return queue_depths.waiting_of(session, did)
            return queue_depths.waiting(
                session, outbound_only=outbound_only, after=after, limit=limit
            )

    @override
    def due_identities(
        self, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
    ) -> Sequence[DueIdentity]:
        with unavailable(), self._store.asking() as session:
            return queue_depths.due(session, time, until_ms=until_ms, after=after, limit=limit)

    @override
    def dedicated(self) -> Sequence[DedicatedIdentity]:
        with unavailable(), self._store.asking() as session:
            return dedicated(session)

    @override
    def query_saved_events(
        self, owner: UUID, where: SavedEventsFilter, bounds: PageBounds
    ) -> SavedEventsPage:
        with unavailable(), self._store.reading(HISTORY_S_MAX) as session:
            return saved_events.query(session, owner, where, bounds)

    @override
    def known_saved_events(self, owner: UUID, event_ids: Collection[str]) -> set[str]:
        with unavailable(), self._store.asking() as session:
            return set(saved_events.known(session, owner, event_ids))

    @override
    def how_listed(self, owner: UUID) -> Listed:
        with unavailable(), self._store.reading() as session:
            return saved_events_erasure.how_listed(session, owner)

    @override
    def query_public_events(
        self, owner: UUID, where: PublicEventsFilter, bounds: PageBounds
    ) -> PublicEventsPage:
        with unavailable(), self._store.reading() as session:
            return public_events.query(session, owner, where, bounds)

    @override
    def load_snapshots(self, streams: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return self._load("snapshots", streams)

    @override
    def read_streams(
        self, after: Mapping[UUID, int], *, limit: int
    ) -> dict[UUID, list[StoredEvent]]:
        with unavailable(), self._store.asking() as session:
            return session.rows_behind(after, limit)

    @override
    def snapshots(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        return self._all("snapshots")

    @override
    def save_snapshots(self, due: Sequence[DueSnapshot]) -> None:
        with unavailable(), self._store.writing() as session:
            stored = {seal for seal in {one.seal for one in due} if _is_stored(session, seal)}
            proven = [(one.stream, one.snapshot) for one in due if one.seal in stored]
            save_states(session, "snapshots", proven)

    @override
    def stream_rows(
        self, stream: UUID, *, until: int | None = None, topics: Collection[str]
    ) -> Sequence[LogRow]:
        with unavailable(), self._store.asking() as session:
            return session.stream_rows(stream, _NEWEST if until is None else until, topics)

    @override
    def load_archived_state(self, stream: UUID) -> Snapshot | None:
        return self._load("archived_states", [stream]).get(stream)

    @override
    def archived_states(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        return self._all("archived_states")

    @override
    def let_leave(self, departure: Departure) -> None:
        name, said = SEAM.encode(), departure.seam.encode()
        empty = self._empty(departure.renamed)
        with unavailable(), self._store.writing() as session:
            if departure.before is None:
                session.run_many(_FIX, [(name, said)])
            else:
                # UPDATE, not SELECT: it keeps another process waiting until this is committed.
                follows = "UPDATE settings SET value = ? WHERE name = ? AND value = ?"
                session.run_many(follows, [(said, name, departure.before.encode())])
            if stored_settings(session).get(SEAM) != departure.seam:
                raise TurnLost
            positions = departure.positions
            if positions and session.remove_rows(positions) != len(positions):
                raise RowsStay(
                    f"a row from position {min(positions)} to {max(positions)} is missing,"
                    " or its content still exists"
                )
            if departure.states:
                save_states(session, "archived_states", departure.states)
                session.run_many(
                    "DELETE FROM snapshots WHERE stream = ? AND version < ?",
                    sorted((stream.bytes, one.version) for stream, one in departure.states),
                )
            save_states(session, "snapshots", empty)

    @override
    def change_rows(self, rows: Sequence[ChangedRow]) -> None:
        empty = self._empty({UUID(bytes=row.stream) for row in rows})
        with unavailable(), self._store.writing() as session:
            if session.change_rows(rows) != len(rows):
                raise RowsStay("a row meanwhile changed or left")
            save_states(session, "snapshots", empty)

    def _empty(self, streams: Collection[UUID]) -> Sequence[tuple[UUID, Snapshot]]:
        """Empty snapshots of these streams, at their newest versions."""
        return [
            (stream, Snapshot(newest.originator_version, _NO_LAYOUT, b""))
            for stream in streams
            for newest in self.read_stream(stream, newest_first=True, limit=1)
        ]

    @override
    def setting(self, name: str, default: str) -> str:
        find = "SELECT value FROM settings WHERE name = ?"
        key = (name.encode(),)
        with unavailable(), self._store.asking() as session:
            found = session.rows(find, key)
        if not found:
            # Another process may insert first, between the two: then its value is the constant.
            with unavailable(), self._store.writing() as session:
                session.run_many(_FIX, [(*key, default.encode())])
                found = session.rows(find, key)
        return bytes(found[0][0]).decode()

    @override
    def settings(self) -> dict[str, str]:
        with unavailable(), self._store.asking() as session:
            return stored_settings(session)

    @override
    def mark(self, name: str, value: str | None) -> None:
        with unavailable(), self._store.writing() as session:
            if value is None:
                session.run_many(UNSET, [(name.encode(),)])
            else:
                session.run_many(SET, [(name.encode(), value.encode())])

    @override
    def check_writable(self) -> None:
        with unavailable(), self._store.writing() as session:
            session.run_many(
                "INSERT INTO heartbeat (id, beats) VALUES (?, 1)"
                " ON CONFLICT (id) DO UPDATE SET beats = heartbeat.beats + 1",
                [(0,)],
            )

    @override
    def close(self) -> None:
        self._store.close()

    def _load(self, table: str, streams: Sequence[UUID]) -> dict[UUID, Snapshot]:
        with unavailable(), self._store.asking() as session:
            found = session.states(table, streams)
        checked = [(row[0], _checked(*row)) for row in found]
        return {stream: one for stream, one in checked if one is not None}

    def _all(self, table: str) -> Iterator[tuple[UUID, Snapshot | None]]:
        find = (
            f"SELECT stream, version, fold, state FROM {table} WHERE stream > ?"  # noqa: S608 - own text
            " ORDER BY stream LIMIT ?"
        )
        reached = b""
        while True:
            with unavailable(), self._store.reading() as session:
                found = session.rows(find, (reached, _STATES_AT_ONCE))
            for reached, version, fold, state in found:
                stream = UUID(bytes=bytes(reached))
                yield stream, _checked(stream, version, fold, bytes(state))
            if not found:
                return


def save_states(session: LogSession, table: str, states: Sequence[tuple[UUID, Snapshot]]) -> None:
    """Replace the states of these streams in a table of states, unless a later one is there.

    A former owner may save after the next one, and must not bring back what has left since.
    SQLite overwrites the old bytes, except a copy that may stay where it has arranged a page anew:
    any state can have names and ids that a later erasure removes from the rows of the log, but that
    it cannot find in what a replaced state has left in the file.
    """
    # In one order, because two that save the same states in PostgreSQL wait for each other's rows.
    rows = [
        (s.bytes, one.version, one.fold, _snapshot_digest(s, one) + one.state)
        for s, one in sorted(states, key=itemgetter(0))
    ]
    session.run_many(
        f"INSERT INTO {table} (stream, version, fold, state) VALUES (?, ?, ?, ?)"  # noqa: S608 - own text
        " ON CONFLICT (stream) DO UPDATE SET"
        " version = excluded.version, fold = excluded.fold, state = excluded.state"
        f" WHERE excluded.version >= {table}.version",
        rows,
    )


def _is_stored(session: LogSession, seal: SealPlace) -> bool:
    found = session.stored(seal.stream, [seal.version])
    return seal.version in found and found[seal.version].state.endswith(seal.digest)


def _snapshot_digest(stream: UUID, snapshot: Snapshot) -> bytes:
    """SHA-256 over a snapshot and its stream."""
    said = b"%d %d " % (snapshot.version, snapshot.fold)
    return hashlib.sha256(stream.bytes + said + snapshot.state).digest()


def _checked(stream: UUID, version: int, fold: int, stored: bytes) -> Snapshot | None:
    """The snapshot in a row; None if it does not match the digest in front of it."""
    snapshot = Snapshot(version, fold, stored[_DIGEST_BYTES:])
    if stored[:_DIGEST_BYTES] == _snapshot_digest(stream, snapshot):
        return snapshot
    _LOG.warning("ignored a snapshot that lacks its digest", extra={"stream": str(stream)})
    return None
