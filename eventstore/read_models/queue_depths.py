"""The read model of queues: how many messages wait for each identity, and since when.

An append that changes a queue writes its depth in the same transaction, from the state of the
owner: an operator sees the depth of all queues without loading an identity that is not in memory.
Identities with due work are found here, too: each time (``Due``) has an index of its own, with only
the identities that have such a time.

``QueueFold`` makes the same depths from the events alone, for a restore, where no owner has the
state in memory. Its memory is bounded: when too many messages wait, it leaves the queues of the
upper half of streams to another pass over the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Any, Final
from uuid import UUID

import msgspec

from eventstore.log.codec import decode
from eventstore.log.content import size_of
from eventstore.log.event_log import (
    Due,
    DueIdentity,
    DuePlace,
    LogFigures,
    LogRow,
    QueueDepth,
    WaitingQueue,
)
from eventstore.log.events import (
    DIDCOMM,
    AccountEnded,
    AccountExpired,
    AnyContractRequested,
    AnyContractRequestsAcknowledged,
    AnyMessageQueued,
    AnyMessagesRemoved,
    AnyPublicEventPublished,
    AnyPublicEventsDeleted,
    ConnectionEstablished,
    ContractExpired,
    ContractRequestsExpired,
    ContractStored,
    Event,
    IdentityErased,
    IdentityErasureBegun,
    IdentityRegistered,
    MessageExpirySet,
    PublicEventsExpired,
    QueuePolicySet,
    Seconds,
    SpeakerNamed,
    topics_of,
)
from eventstore.log.session import Session
from eventstore.log.signs_of_life import SIGNS_OF_LIFE, idle_since_ms, is_sign_of_life
from eventstore.log.streams import identity_stream

DUE_COLUMNS: Final = tuple(time.value for time in Due if time is not Due.MESSAGES)
"""The columns that only the search for due work uses."""
COLUMNS: Final = (
    *("stream", "messages", "bytes", "oldest_at_ms", "did", "outbound"),
    *DUE_COLUMNS,
)
NAMES: Final = ", ".join(COLUMNS)
_PLACES: Final = ", ".join("?" * len(COLUMNS))
CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
_SAVE: Final = (
    f"INSERT INTO queue_depths ({NAMES}) VALUES ({_PLACES})"  # noqa: S608 - own text
    f" ON CONFLICT (stream) DO UPDATE SET {CHANGES}"
)
INDEXES: Final = (
    *(
        f"CREATE INDEX IF NOT EXISTS due_by_{time.value} ON queue_depths ({time.value}, stream)"
        f" WHERE {time.value} IS NOT NULL"
        for time in Due
    ),
    """
    CREATE INDEX IF NOT EXISTS outbound_by_oldest ON queue_depths (outbound, oldest_at_ms, stream)
    WHERE outbound = 1 AND oldest_at_ms IS NOT NULL
    """,
)
"""The same text for both stores. A message that is not the oldest changes none of these indexes:
PostgreSQL then touches no index, if the row stays in its page."""
MADE_LAST: Final = "outbound_by_oldest"
"""The index that is made last: if it exists, so do all others, and the columns."""
_TOTALS: Final = ", ".join(f"coalesce(sum({n}), 0)" for n in ("queues", "messages", "bytes"))
"""PostgreSQL keeps the sums in several rows."""
_SELECT: Final = "SELECT did, messages, bytes, oldest_at_ms, outbound FROM queue_depths"
_FIRST: Final = DuePlace(-(2**62), b"")


def save(session: Session, depths: Sequence[QueueDepth]) -> None:
    """Replace the depths of these streams."""
    session.run_many(_SAVE, [row_of(depth) for depth in depths])


def row_of(depth: QueueDepth) -> tuple[object, ...]:
    """The values of ``COLUMNS``."""
    d = depth
    return (
        *(d.stream.bytes, d.messages, d.bytes, d.oldest_at_ms, d.did.encode()),
        *(int(d.outbound), d.expires_at_ms, d.requests_since_ms),
        *(d.contracts_until_ms, d.registered_until_ms, d.idle_since_ms, d.published_since_ms),
    )


def waiting(
    session: Session, *, outbound_only: bool, after: WaitingQueue | None, limit: int
) -> list[WaitingQueue]:
    """Queues that are not empty, the longest waiting first, after a queue found before."""
    # PostgreSQL uses the partial index only for the condition that it was made with.
    outbound = "outbound = 1 AND " if outbound_only else ""
    start = _FIRST if after is None else after.place
    later = f"{outbound}oldest_at_ms IS NOT NULL AND (oldest_at_ms, stream) > (?, ?)"
    ordered = f"{_SELECT} WHERE {later} ORDER BY oldest_at_ms, stream LIMIT ?"
    return _queues(session.rows(ordered, (start.at_ms, start.stream, limit)))


def waiting_of(session: Session, did: str) -> list[WaitingQueue]:
    """The queue of one identity, if it is not empty."""
    condition = "messages > 0 AND stream = ?"
    return _queues(session.rows(f"{_SELECT} WHERE {condition}", (identity_stream(did).bytes,)))


def _queues(found: Sequence[Sequence[Any]]) -> list[WaitingQueue]:
    return [
        WaitingQueue(bytes(did).decode(), messages, size_bytes, oldest_at_ms, bool(outbound))
        for did, messages, size_bytes, oldest_at_ms, outbound in found
    ]


def due(
    session: Session, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
) -> list[DueIdentity]:
    """Identities whose ``time`` is at most ``until_ms``, ordered by it, after a place."""
    start, at = after or _FIRST, time.value
    found = session.rows(
        f"SELECT did, {at}, stream FROM queue_depths WHERE {at} IS NOT NULL AND {at} <= ?"  # noqa: S608 - own text
        f" AND ({at}, stream) > (?, ?) ORDER BY {at}, stream LIMIT ?",
        (until_ms, start.at_ms, start.stream, limit),
    )
    return [
        DueIdentity(bytes(did).decode(), DuePlace(at_ms, bytes(stream)))
        for did, at_ms, stream in found
    ]


def total(session: Session, position: int) -> LogFigures:
    """The sums over all identities, kept with every change, and the time of the oldest message."""
    sums = session.rows(f"SELECT {_TOTALS} FROM queue_totals")  # noqa: S608 - own text
    identities, messages, size_bytes = sums[0] if sums else (0, 0, 0)
    oldest = session.rows(
        "SELECT oldest_at_ms FROM queue_depths WHERE oldest_at_ms IS NOT NULL"
        " ORDER BY oldest_at_ms LIMIT 1"
    )
    return LogFigures(
        log_position=position,
        identities=int(identities),
        queue_messages=int(messages),
        queue_bytes=int(size_bytes),
        queue_oldest_at_ms=oldest[0][0] if oldest else None,
    )


def forget_totals(session: Session) -> None:
    """Set the sums over all queues to zero, for a table of queues that is empty."""
    session.run_many("UPDATE queue_totals SET queues = 0, messages = 0, bytes = 0", [()])


def are_totals_wrong(session: Session, stored_in: str) -> bool:
    """Whether the kept sums differ from the sums over the queues stored in this schema."""
    ((wrong,),) = session.rows(
        f"SELECT count(*) FROM (SELECT {_TOTALS} FROM"  # noqa: S608 - own text
        f" {stored_in}.queue_totals EXCEPT SELECT count(*), coalesce(sum(messages), 0),"
        f" coalesce(sum(bytes), 0) FROM {stored_in}.queue_depths) AS d"
    )
    return bool(wrong)


_FOLDED: Final[tuple[type[Event], ...]] = (
    IdentityRegistered,
    ConnectionEstablished,
    *(AccountEnded, AccountExpired, SpeakerNamed),
    *(AnyMessageQueued, AnyMessagesRemoved, MessageExpirySet, QueuePolicySet),
    *(AnyContractRequested, AnyContractRequestsAcknowledged, ContractRequestsExpired),
    *(ContractStored, ContractExpired),
    *(AnyPublicEventPublished, AnyPublicEventsDeleted, PublicEventsExpired),
    *(IdentityErasureBegun, IdentityErased),
    *SIGNS_OF_LIFE,
)
FOLDED: Final = topics_of(*_FOLDED)
"""The topics of events that change a queue, or a time by which due work of its owner is found."""
_DEPTHS_AT_ONCE: Final = 10_000
ENTRIES_MAX: Final = 1_000_000
"""The most queues and waiting records in memory, about 250 bytes each."""


class _Queue(msgspec.Struct):
    """The queue of a stream, which counts once the identity has registered or connected.

    If the first row that said so has left the log for its archive, a later one says it.
    """

    did: str = ""
    has_begun: bool = False
    bytes: int = 0
    outbound: bool = False
    is_agent: bool = False
    seen_ms: int = 0
    own_age_s: int = 0
    registered_until_s: Seconds = 0
    waiting: dict[str, tuple[int, int, bool]] = {}
    """Size in bytes, time in Unix ms, whether it is an envelope: by message id, in order."""
    expiring: dict[str, Seconds] = {}
    requests: dict[str, int] = {}
    contracts: dict[str, Seconds] = {}
    published: dict[str, int] = {}
    is_being_erased: bool = False

    def depth(self, stream: UUID) -> QueueDepth:
        """The depth that the owner of the identity would write (``actors.core.retention``)."""
        oldest = next(iter(self.waiting.values()), None)
        first = next(
            (at_ms for _, at_ms, is_envelope in self.waiting.values() if is_envelope), None
        )
        expiries = [ceil(at_s * 1000) for at_s in self.expiring.values()]
        if self.own_age_s and first is not None:
            expiries.append(first + self.own_age_s * 1000 + 1)
        if self.is_being_erased or (first is not None and not self.is_agent):
            expiries.append(0)
        has_any = self.waiting or self.requests or self.contracts
        is_client = self.registered_until_s and not self.is_agent
        return QueueDepth(
            stream,
            len(self.waiting),
            self.bytes,
            None if oldest is None else oldest[1],
            self.did,
            self.outbound,
            min(expiries, default=None),
            next(iter(self.requests.values()), None),
            ceil(min(self.contracts.values()) * 1000) if self.contracts else None,
            ceil(self.registered_until_s * 1000) if is_client and has_any else None,
            idle_since_ms(self.seen_ms, self.registered_until_s) if self.is_agent else None,
            next(iter(self.published.values()), None),
        )


class QueueFold:
    """The queues of the streams from ``start`` to ``rest``, where another fold has to start."""

    def __init__(self, start: bytes = b"") -> None:
        """``start`` is compared with the 16 bytes of a stream."""
        self._start = start
        self._entries = 0
        self._queues: dict[bytes, _Queue] = {}
        self.rest: bytes | None = None

    def take(self, stream: bytes, event: Event) -> None:
        """Take the next event of a stream; its topic is one of ``FOLDED``."""
        if stream < self._start or (self.rest is not None and stream >= self.rest):
            return
        match event:
            case IdentityRegistered():
                queue = self._queue(stream, event.did)
                queue.registered_until_s = max(queue.registered_until_s, event.expires_at_s)
            case ConnectionEstablished():
                queue = self._queue(stream, event.did)
                queue.outbound, queue.is_agent = bool(event.endpoint), True
            case SpeakerNamed():
                # Once it speaks for no other account any more, its owner writes a depth for it.
                if not event.account_did and not self._known(stream).has_begun:
                    self._queue(stream, event.did)
            case _:
                self._take(self._known(stream), event)
        agent = self._queues.get(stream)
        if agent is not None and agent.is_agent and is_sign_of_life(event):
            agent.seen_ms = max(agent.seen_ms, event.at_ms)
        if self._entries > ENTRIES_MAX:
            self._halve()

    def depths(self) -> Iterator[QueueDepth]:
        """The present depths of all queues, empty ones included."""
        for stream, queue in self._queues.items():
            if queue.has_begun:
                yield queue.depth(UUID(bytes=stream))

    def save(
        self,
        read_rows: Callable[[int], Sequence[LogRow]],
        save_depths: Callable[[Sequence[QueueDepth]], None],
    ) -> int:
        """Save the depths of all queues; return how many there are.

        The queues that did not fit into memory are folded in more passes over the log;
        ``read_rows`` returns the next rows after a position.
        """
        fold, saved = self, 0
        while True:
            depths = fold.depths()
            while some := list(islice(depths, _DEPTHS_AT_ONCE)):
                save_depths(some)
                saved += len(some)
            if fold.rest is None:
                return saved
            fold, reached = QueueFold(fold.rest), 0
            while rows := read_rows(reached):
                for row in rows:
                    if row.topic in FOLDED and row.stream >= fold._start:
                        fold.take(row.stream, decode(row.topic, row.state))
                reached = rows[-1].position

    def _queue(self, stream: bytes, did: str) -> _Queue:
        queue = self._known(stream)
        queue.did, queue.has_begun = did, True
        return queue

    def _known(self, stream: bytes) -> _Queue:
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = _Queue()
            self._entries += 1
        return queue

    def _take(  # noqa: C901 - one arm per event
        self, queue: _Queue, event: Event
    ) -> None:
        match event:
            case AccountEnded() | AccountExpired():
                queue.outbound = queue.is_agent = False
                queue.own_age_s = 0
            case IdentityErasureBegun():
                self._entries -= len(queue.contracts)
                queue.registered_until_s = queue.own_age_s = 0
                queue.contracts, queue.is_being_erased = {}, True
                queue.outbound = queue.is_agent = False
            case IdentityErased():
                # Of an identity of another database, it is the first event here.
                queue.did, queue.is_being_erased, queue.has_begun = "", False, True
            case QueuePolicySet():
                queue.own_age_s = event.age_s_max
            case AnyMessageQueued():
                size_bytes = size_of(event.payload)
                is_envelope = event.protocol.startswith(DIDCOMM)
                queue.waiting[event.message_id] = (size_bytes, event.at_ms, is_envelope)
                queue.bytes += size_bytes
                self._entries += 1
            case MessageExpirySet():
                known = [i for i in event.message_ids if i in queue.waiting]
                queue.expiring |= dict.fromkeys(known, event.expires_at_s)
            case AnyMessagesRemoved():
                self._remove(queue, event.message_ids)
            case AnyContractRequested():
                queue.requests[event.request_id] = event.at_ms
                self._entries += 1
            case AnyContractRequestsAcknowledged() | ContractRequestsExpired():
                gone = [queue.requests.pop(i, None) is not None for i in event.request_ids]
                self._entries -= sum(gone)
            case ContractStored():
                queue.contracts[event.contract_id] = event.expires_at_s
                self._entries += 1
            case ContractExpired():
                self._entries -= queue.contracts.pop(event.contract_id, None) is not None
            case AnyPublicEventPublished():
                queue.published[event.event_id] = event.at_ms
                self._entries += 1
            case AnyPublicEventsDeleted() | PublicEventsExpired():
                gone = [queue.published.pop(i, None) is not None for i in event.event_ids]
                self._entries -= sum(gone)
            case _:
                pass

    def _remove(self, queue: _Queue, message_ids: list[str]) -> None:
        for message_id in message_ids:
            removed = queue.waiting.pop(message_id, None)
            if removed is not None:
                queue.expiring.pop(message_id, None)
                queue.bytes -= removed[0]
                self._entries -= 1

    def _halve(self) -> None:
        streams = sorted(self._queues)
        if len(streams) == 1:
            return  # one queue alone has a bound of its own
        self.rest = streams[len(streams) // 2]
        self._queues = {s: queue for s, queue in self._queues.items() if s < self.rest}
        self._entries = sum(
            1
            + len(queue.waiting)
            + len(queue.requests)
            + len(queue.contracts)
            + len(queue.published)
            for queue in self._queues.values()
        )
