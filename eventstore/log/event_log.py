"""The port to the append-only log: what every store must offer.

``eventstore.stores.sqlite_log`` and ``eventstore.stores.postgres_log`` implement it on the
recorders of the eventsourcing library; one contract suite runs on both. All methods block; callers
that must not wait call them from a thread of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec
from eventsourcing.persistence import Notification, StoredEvent

from eventstore.log.events import Event, Seconds
from eventstore.log.streams import identity_stream

BYTES_ANY: Final = 2**62
"""As ``bytes_max``: any number of bytes."""
_PAGE_ROWS: Final = 4_096
_PAGE_BYTES: Final = 8 * 1024 * 1024


class SavedEventsFilter(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="saved-events"
):
    """Filter of QUERY_EVENTS (DCTRL-0004 8.10). None means: no filter. All are ANDed.

    Both time bounds are exclusive; an empty tag list is no filter.
    """

    after_timestamp_s: Seconds | None = None
    before_timestamp_s: Seconds | None = None
    participant_did: str | None = None
    encrypted_tags: list[str] = []
    unprocessed_only: bool = False


class SavedEvent(msgspec.Struct, frozen=True, array_like=True):
    """One row of a QUERY_EVENTS page."""

    event_id: str
    payload: str
    encrypted_tags: list[str]
    timestamp_s: Seconds


class SavedEventsPage(msgspec.Struct, frozen=True, array_like=True, tag="saved-events"):
    """A page of saved events, oldest first by (timestamp, position), and the exact total."""

    events: list[SavedEvent]
    total: int


class PublicEventsFilter(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="public-events"
):
    """Filter of GET /public/:did (DCTRL-0007). Bounds are exclusive, tags match any."""

    channel_id: str | None = None
    tags: list[str] = []
    after_timestamp_s: Seconds | None = None
    before_timestamp_s: Seconds | None = None


class PublicEvent(msgspec.Struct, frozen=True, array_like=True):
    """One public event with all that its signature covers."""

    event_id: str
    channel_id: str
    event: str
    tags: list[str]
    timestamp_s: Seconds
    event_signature: str


class PublicEventsPage(msgspec.Struct, frozen=True, array_like=True, tag="public-events"):
    """A page of public events, newest first by (timestamp, position), and the exact total."""

    events: list[PublicEvent]
    total: int


class PageBounds(NamedTuple):
    """How many records precede a page, and its most records and bytes; None for any bytes."""

    offset: int
    limit: int
    bytes_max: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """A cached fold of a stream: ``state`` after version ``version``, made by fold ``fold``."""

    version: int
    fold: int
    state: bytes


class SealPlace(NamedTuple):
    """A seal by its place, the version of a partition's stream, and its digest."""

    stream: UUID
    version: int
    digest: bytes


class DueSnapshot(NamedTuple):
    """A snapshot to save for a stream, and the newest seal of its owner when it was made."""

    stream: UUID
    snapshot: Snapshot
    seal: SealPlace


class Changed(Enum):
    """Which fields of a queue depth differ from the stored ones; the size always may."""

    SIZE = "messages, bytes"
    OLDEST = "oldest_at_ms"
    ANYTHING = "anything"


class QueueDepth(msgspec.Struct, frozen=True):
    """The size of one identity's queue; ``oldest_at_ms`` is None for an empty queue.

    ``outbound``: the identity has an endpoint that its messages are sent to. The search for due
    work (``actors.core.retention``) goes by the later times, in Unix ms; None if
    nothing can become due.
    """

    stream: UUID
    messages: int
    bytes: int
    oldest_at_ms: int | None
    did: str = ""
    outbound: bool = False
    expires_at_ms: int | None = None
    requests_since_ms: int | None = None
    contracts_until_ms: int | None = None
    registered_until_ms: int | None = None
    idle_since_ms: int | None = None
    published_since_ms: int | None = None
    changed: Changed = Changed.ANYTHING


class Listed(Enum):
    """Whether an owner's saved events are on lists, and whether others share that key range."""

    NOT = "not"
    APART = "apart"
    AMONG_OTHERS = "among others"
    """Possibly, because another stream begins with the same 8 bytes (``read_models.postings``)."""


class Due(StrEnum):
    """A time by which identities with due work are found: a field of ``QueueDepth``."""

    MESSAGES = "oldest_at_ms"
    EXPIRING = "expires_at_ms"
    REQUESTS = "requests_since_ms"
    CONTRACTS = "contracts_until_ms"
    REGISTRATION = "registered_until_ms"
    IDLE = "idle_since_ms"
    PUBLIC_EVENTS = "published_since_ms"


class DuePlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place in the order by such a time: Unix milliseconds, then the stream (16 bytes)."""

    at_ms: int
    stream: bytes


class DueIdentity(msgspec.Struct, frozen=True, array_like=True):
    """An identity that may have due work."""

    did: str
    place: DuePlace


class WaitingQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is not empty, as operators and delivery workers see it."""

    did: str
    messages: int
    bytes: int
    oldest_at_ms: int
    outbound: bool

    @property
    def place(self) -> DuePlace:
        """The place in the order of ``waiting_queues``."""
        return DuePlace(self.oldest_at_ms, identity_stream(self.did).bytes)


class DedicatedIdentity(msgspec.Struct, frozen=True, array_like=True):
    """An identity that is a partition of its own; ``reason`` as in ``IdentityDedicated``."""

    did: str
    reason: str


class LogFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the log and of all queues; no message waits if ``queue_oldest_at_ms`` is None."""

    log_position: int
    identities: int
    queue_messages: int
    queue_bytes: int
    queue_oldest_at_ms: int | None


class StorageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The storage that a log uses, in bytes; None where its store cannot say without a scan.

    ``facts_bytes`` counts the rows and their indexes (in SQLite: the states of the rows alone),
    ``contents_bytes`` the stored contents, ``read_models_bytes`` the tables derived from both,
    snapshots included (in SQLite: everything else, all indexes included). ``free_bytes`` is room
    within the files that the store uses again before they grow. A SQLite log that an earlier
    release began has None for the first three until its read models are rebuilt.
    """

    facts_bytes: int | None
    contents_bytes: int | None
    read_models_bytes: int | None
    wal_bytes: int | None
    free_bytes: int | None
    used_bytes: int
    """Everything but the free bytes."""


class StoredRecord(NamedTuple):
    """A row with its stored content; None if it has none, or no longer has it."""

    row: StoredEvent
    content: bytes | None


class LogRow(msgspec.Struct, frozen=True, gc=False):
    """One row as it stands in the log, for readers of the whole log; ``stream`` is 16 bytes.

    ``content`` is the row's stored content, None if it has none, or no longer has it.
    The garbage collector does not track rows: it would scan millions of them in vain.
    """

    position: int
    stream: bytes
    version: int
    topic: str
    state: bytes
    content: bytes | None = None


class ChangedRow(NamedTuple):
    """A row that loses names: its state with and without them; ``stream`` is 16 bytes."""

    stream: bytes
    position: int
    before: bytes
    after: bytes


class Departure(NamedTuple):
    """A step in which rows leave the log for its archive, done as a whole or not at all.

    ``seam`` replaces ``before``, the log's present seam (``eventstore.log.seam``), which is None
    if it has none. The rows at ``positions`` leave; ``states`` replace the archived states of
    their streams, and snapshots of earlier versions, which can have names of rows that leave. The
    snapshots of ``renamed``, streams whose states lose a name, become empty as in ``change_rows``.
    """

    before: str | None
    seam: str
    positions: Sequence[int] = ()
    states: Sequence[tuple[UUID, Snapshot]] = ()
    renamed: Collection[UUID] = ()


class LogReader(Protocol):
    """What reads a log: its rows with their contents, the states made of rows, the constants.

    A check, an export or a look-up needs no more, and so cannot write to the log.
    """

    def position(self) -> int:
        """The position of the newest row; 0 for an empty log."""

    def read_stream(
        self,
        stream: UUID,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[StoredEvent]:
        """Rows of a stream with ``after < version < before``. Versions start at 1."""

    def read_streams(
        self, after: Mapping[UUID, int], *, limit: int
    ) -> dict[UUID, list[StoredEvent]]:
        """For each stream the rows after its version in ``after``, in order, at most ``limit``."""

    def read_versions(self, stream: UUID, versions: Sequence[int]) -> dict[int, StoredEvent]:
        """The rows of a stream at these versions, by version; a missing version is left out."""

    def read_records(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        """Read rows of several streams as ``read_versions`` does, with their contents."""

    def stream_rows(
        self, stream: UUID, *, until: int | None = None, topics: Collection[str]
    ) -> Sequence[LogRow]:
        """Rows of a stream with one of these topics, up to version ``until``; without contents."""

    def read_log(
        self,
        *,
        after: int | None = 0,
        until: int | None = None,
        topics: Collection[str] = (),
        limit: int = 1000,
    ) -> Sequence[Notification]:
        """Rows in the order of the log with ``after < position <= until``; of all topics if none.

        Rows of one topic are found by a scan: name both ends. None as an end is no bound.
        """

    def read_rows(self, *, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        """Rows in the order of the log with a position greater than ``after``, read in bulk.

        The rows come with their contents: at most ``rows_max`` rows and ``bytes_max`` bytes of
        states and contents, but at least one row.

        Raises: LogUnavailable, CorruptRow (a row's stream is not a UUID in the form of this log).
        """

    def rows_after(self, after: int) -> Iterator[LogRow]:
        """Yield the rows that ``read_rows`` gives; each page is read when it is needed."""
        while page := self.read_rows(after=after, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES):
            yield from page
            after = page[-1].position

    def append_age_s(self) -> float:
        """The age of the oldest append under way, in seconds; what ended before, later reads find.

        0 if there is none, and on SQLite, where none outlives its writer; infinite if it is hidden.
        """

    def read_contents(
        self, *, after: int, until: int, bytes_max: int = BYTES_ANY
    ) -> dict[int, bytes]:
        """Stored contents by the position of their row, for ``after < position <= until``.

        Reading ends with the content that brings their total to ``bytes_max`` bytes or more.
        """

    def load_snapshot(self, stream: UUID) -> Snapshot | None:
        """The newest snapshot of a stream, which is only a cache; None if missing or altered.

        Each snapshot is stored behind its digest, so an altered one is detected and not used.
        """
        return self.load_snapshots([stream]).get(stream)

    def load_snapshots(self, streams: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """Load snapshots of several streams as ``load_snapshot`` does; leave out missing ones."""

    def snapshots(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        """Yield all snapshots in the order of their streams; None for an altered one."""

    def load_archived_state(self, stream: UUID) -> Snapshot | None:
        """The state that replaces the rows that left a stream; None if missing or altered."""

    def archived_states(self) -> Iterator[tuple[UUID, Snapshot | None]]:
        """Yield all archived states in the order of their streams; None for an altered one.

        They are not a cache: the log has them nowhere else.
        """

    def settings(self) -> dict[str, str]:
        """All constants of the log that are fixed so far, and its marks."""


class EventLog(LogReader, Protocol):
    """An append-only log with its read models and its snapshot cache."""

    def append(
        self,
        rows: Sequence[StoredEvent],
        events: Sequence[Event],
        depths: Sequence[QueueDepth] = (),
    ) -> None:
        """Store all rows and bring the read models up to date, in one transaction.

        ``events[i]`` is the decoded form of ``rows[i]``, with its content if it has one. The
        transaction stores these contents beside the rows, and erases the contents that the events
        say are no longer needed. ``depths`` are the queues after these events.
        Returns only when the transaction is durable. The rows of one call get consecutive
        positions in the order given.

        Raises: AppendConflict, AppendUnknown, AppendRefused.
        """

    def figures(self) -> LogFigures:
        """Totals of the log and of all queues."""

    def storage(self) -> StorageFigures:
        """The storage that the log uses, without a scan of it."""

    def waiting_queues(
        self,
        *,
        outbound_only: bool = False,
        did: str | None = None,
        after: WaitingQueue | None = None,
        limit: int,
    ) -> Sequence[WaitingQueue]:
        """Queues that are not empty, oldest first, after one of them; or only that of ``did``."""

    def due_identities(
        self, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
    ) -> Sequence[DueIdentity]:
        """Identities whose ``time`` is at most ``until_ms``, ordered by it, after a place.

        Uses an index. Of an identity that an earlier release wrote, the log knows only the time of
        the oldest message until the identity's next command or a rebuild of the read models.
        """

    def dedicated(self) -> Sequence[DedicatedIdentity]:
        """The identities that are partitions of their own, in the order of their DIDs."""

    def query_saved_events(
        self, owner: UUID, where: SavedEventsFilter, bounds: PageBounds
    ) -> SavedEventsPage:
        """A page of one owner's saved events with the exact total, from one snapshot.

        Raises:
            ReadTooLong: it took longer than 15 s (PostgreSQL: one of its statements).
            PageTooLarge: its records are more than ``bytes_max``.
        """

    def known_saved_events(self, owner: UUID, event_ids: Collection[str]) -> set[str]:
        """Those of these ids that belong to saved events of this owner."""

    def how_listed(self, owner: UUID) -> Listed:
        """Whether the owner's saved events are on lists, and whether others share that range."""

    def query_public_events(
        self, owner: UUID, where: PublicEventsFilter, bounds: PageBounds
    ) -> PublicEventsPage:
        """A page of one publisher's public events with the exact total, from one snapshot.

        Raises:
            PageTooLarge: its records are more than ``bytes_max``.
        """

    def save_snapshots(self, due: Sequence[DueSnapshot]) -> None:
        """Replace the snapshots of these streams that are not newer; a lost one loses no data.

        One whose seal is not in the log is left out: a server has lost the seal in a fail-over, and
        perhaps rows that are in the snapshot.
        """

    def let_leave(self, departure: Departure) -> None:
        """Carry out one departure, in one transaction.

        Raises:
            TurnLost: the log has another seam; nothing was done.
            RowsStay: a row is missing or still has its content; nothing was done.
            LogUnavailable: the store failed; all of it was done or nothing.
        """

    def change_rows(self, rows: Sequence[ChangedRow]) -> None:
        """Remove names from rows (``eventstore.log.name_erasure``), in one transaction.

        The snapshots of their streams, which can have the names, become empty: a host ignores an
        empty one, and no late save of an earlier state replaces it.

        Raises:
            RowsStay: a row is missing or was changed; nothing was done.
            LogUnavailable: the store failed; all of it was done or nothing.
        """

    def setting(self, name: str, default: str) -> str:
        """A constant of the log, fixed at its first use (e.g. the number of shards)."""

    def mark(self, name: str, value: str | None) -> None:
        """Set a mark, a value beside the constants that may change; None removes it."""

    def check_writable(self) -> None:
        """Prove that the store takes a durable write now. Raises: LogUnavailable."""

    def close(self) -> None:
        """Release connections. Nothing is pending: append returns after the commit."""
