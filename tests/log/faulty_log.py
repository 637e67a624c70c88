"""A real log whose next appends go wrong in the ways that stores can go wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent
from typing_extensions import override

from eventstore.log.errors import AppendConflict, AppendUnknown
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
    Snapshot,
    StorageFigures,
    StoredRecord,
    WaitingQueue,
)
from eventstore.log.events import Event


@dataclass(frozen=True)
class FailNext:
    """The next ``appends`` store nothing and are unknown."""

    appends: int = 1


@dataclass(frozen=True)
class StoreNext:
    """The next ``appends`` go well, before others go wrong."""

    appends: int = 1


@dataclass(frozen=True)
class StoredButFailed:
    """The next ``appends`` are stored, and are unknown all the same."""

    appends: int = 1


@dataclass(frozen=True)
class ConflictNext:
    """The next ``appends`` store nothing and conflict, as if another writer had been first."""

    appends: int = 1


Plan: TypeAlias = FailNext | StoreNext | StoredButFailed | ConflictNext


class _Outcome(Enum):
    STORED = "stored"
    NOTHING_STORED = "nothing stored"
    STORED_BUT_FAILED = "stored but failed"
    CONFLICT = "conflict"


_OUTCOMES = {
    FailNext: _Outcome.NOTHING_STORED,
    StoreNext: _Outcome.STORED,
    StoredButFailed: _Outcome.STORED_BUT_FAILED,
    ConflictNext: _Outcome.CONFLICT,
}


class FaultyLog(EventLog):
    """An ``EventLog`` that behaves as the real one it wraps, but for the faults planned."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._outcomes: deque[_Outcome] = deque()
        self.appends: list[tuple[Sequence[StoredEvent], bool]] = []
        """Every append asked for, and whether it was stored."""

    def plan(self, *plans: Plan) -> None:
        """Let the next appends go wrong, in this order, after those planned before."""
        for plan in plans:
            self._outcomes += [_OUTCOMES[type(plan)]] * plan.appends

    @property
    def faults_left(self) -> int:
        """Planned faults that have not happened yet."""
        return len(self._outcomes)

    @override
    def append(
        self,
        rows: Sequence[StoredEvent],
        events: Sequence[Event],
        depths: Sequence[QueueDepth] = (),
    ) -> None:
        outcome = self._outcomes.popleft() if self._outcomes else _Outcome.STORED
        stored = outcome in (_Outcome.STORED, _Outcome.STORED_BUT_FAILED)
        if stored:
            self._log.append(rows, events, depths)
        self.appends.append((rows, stored))
        match outcome:
            case _Outcome.STORED:
                return
            case _Outcome.CONFLICT:
                raise AppendConflict("planned: another writer was first")
            case _Outcome.NOTHING_STORED | _Outcome.STORED_BUT_FAILED:
                raise AppendUnknown(f"planned: {outcome.value}")

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
        return self._log.read_stream(
            stream, after=after, before=before, limit=limit, newest_first=newest_first
        )

    @override
    def read_versions(self, stream: UUID, versions: Sequence[int]) -> dict[int, StoredEvent]:
        return self._log.read_versions(stream, versions)

    @override
    def read_records(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        return self._log.read_records(wanted)

    @override
    def read_contents(
        self, *, after: int, until: int, bytes_max: int = BYTES_ANY
    ) -> dict[int, bytes]:
        return self._log.read_contents(after=after, until=until, bytes_max=bytes_max)

    @override
    def read_rows(self, *, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        return self._log.read_rows(after=after, rows_max=rows_max, bytes_max=bytes_max)

    @override
    def append_age_s(self) -> float:
        return self._log.append_age_s()

    @override
    def figures(self) -> LogFigures:
        return self._log.figures()

    @override
    def storage(self) -> StorageFigures:
        return self._log.storage()

    @override
    def waiting_queues(
        self,
        *,
        outbound_only: bool = False,
        did: str | None = None,
        after: WaitingQueue | None = None,
        limit: int,
    ) -> Sequence[WaitingQueue]:
        return self._log.waiting_queues(
            outbound_only=outbound_only, did=did, after=after, limit=limit
        )

    @override
    def due_identities(
        self, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
    ) -> Sequence[DueIdentity]:
        return self._log.due_identities(time, until_ms=until_ms, after=after, limit=limit)

    @override
    def dedicated(self) -> Sequence[DedicatedIdentity]:
        return self._log.dedicated()

    @override
    def read_log(
        self,
        *,
        after: int | None = 0,
        until: int | None = None,
        topics: Collection[str] = (),
        limit: int = 1000,
    ) -> Sequence[Notification]:
        return self._log.read_log(after=after, until=until, topics=topics, limit=limit)

    @override
    def position(self) -> int:
        return self._log.position()

    @override
    def query_saved_events(
        self, owner: UUID, where: SavedEventsFilter, bounds: PageBounds
    ) -> SavedEventsPage:
        return self._log.query_saved_events(owner, where, bounds)

    @override
    def known_saved_events(self, owner: UUID, event_ids: Collection[str]) -> set[str]:
        return self._log.known_saved_events(owner, event_ids)

    @override
    def how_listed(self, owner: UUID) -> Listed:
        return self._log.how_listed(owner)

    @override
    def query_public_events(
        self, owner: UUID, where: PublicEventsFilter, bounds: PageBounds
    ) -> PublicEventsPage:
        return self._log.query_public_events(owner, where, bounds)

    @override
    def load_snapshots(self, streams: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return self._log.load_snapshots(streams)

    @override
    def read_streams(
        self, after: Mapping[UUID, int], *, limit: int
    ) -> dict[UUID, list[StoredEvent]]:
        return self._log.read_streams(after, limit=limit)

    @override
    def snapshots(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        return self._log.snapshots()

    @override
    def save_snapshots(self, due: Sequence[DueSnapshot]) -> None:
        self._log.save_snapshots(due)

    @override
    def stream_rows(
        self, stream: UUID, *, until: int | None = None, topics: Collection[str]
    ) -> Sequence[LogRow]:
        return self._log.stream_rows(stream, until=until, topics=topics)

    @override
    def load_archived_state(self, stream: UUID) -> Snapshot | None:
        return self._log.load_archived_state(stream)

    @override
    def archived_states(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        return self._log.archived_states()

    @override
    def change_rows(self, rows: Sequence[ChangedRow]) -> None:
        self._log.change_rows(rows)

    @override
    def let_leave(self, departure: Departure) -> None:
        self._log.let_leave(departure)

    @override
    def setting(self, name: str, default: str) -> str:
        return self._log.setting(name, default)

    @override
    def settings(self) -> dict[str, str]:
        return self._log.settings()

    @override
    def mark(self, name: str, value: str | None) -> None:
        self._log.mark(name, value)

    @override
    def check_writable(self) -> None:
        self._log.check_writable()

    @override
    def close(self) -> None:
        self._log.close()
