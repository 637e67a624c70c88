"""The read model of queues: how much waits for each identity, and since when.

Written with the events that change a queue, in their transaction, from what the owner knows: an
operator sees the depth of all queues, those of sleeping identities included, without waking one.

``QueueFold`` makes the same from the events alone, for a restore, where no owner has the state in
memory. Its memory is bounded: when too much waits, the queues of the upper half of streams are left
to another pass over the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from eventstore.log.codec import identity_stream
from eventstore.log.content import size_of
from eventstore.log.event_log import LogFigures, QueueDepth, WaitingQueue
from eventstore.log.events import (
    AccountEnded,
    ConnectionEstablished,
    Event,
    IdentityRegistered,
    MessageQueued,
    MessageQueued1,
    MessagesRemoved,
    MessagesRemoved1,
)
from eventstore.log.session import Session

_SELECT: Final = "SELECT did, messages, bytes, oldest_at_ms, outbound FROM queue_depths"


def save(session: Session, depths: Sequence[QueueDepth]) -> None:
    """Replace the depths of these streams."""
    session.run_many(
        "INSERT INTO queue_depths (stream, messages, bytes, oldest_at_ms, did, outbound)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (stream) DO UPDATE SET messages = excluded.messages,"
        " bytes = excluded.bytes, oldest_at_ms = excluded.oldest_at_ms,"
        " did = excluded.did, outbound = excluded.outbound",
        [
            (d.stream.bytes, d.messages, d.bytes, d.oldest_at_ms, d.did.encode(), int(d.outbound))
            for d in depths
        ],
    )


def waiting(session: Session, *, outbound_only: bool, limit: int) -> list[WaitingQueue]:
    """Queues that are not empty, those that wait longest first."""
    # Two texts: PostgreSQL uses the partial index only for the condition that it was made with.
    condition = "messages > 0 AND outbound = 1" if outbound_only else "messages > 0"
    return _queues(
        session.rows(f"{_SELECT} WHERE {condition} ORDER BY oldest_at_ms LIMIT ?", (limit,))
    )


def waiting_of(session: Session, did: str) -> list[WaitingQueue]:
    """The queue of one identity, if it is not empty."""
    condition = "messages > 0 AND stream = ?"
    return _queues(session.rows(f"{_SELECT} WHERE {condition}", (identity_stream(did).bytes,)))


def _queues(found: Sequence[Sequence[Any]]) -> list[WaitingQueue]:
    return [
        WaitingQueue(bytes(did).decode(), messages, size_bytes, oldest_at_ms, bool(outbound))
        for did, messages, size_bytes, oldest_at_ms, outbound in found
    ]


def total(session: Session, position: int) -> LogFigures:
    """The sums over all identities."""
    ((identities, messages, size_bytes, oldest_at_ms),) = session.rows(
        "SELECT COUNT(*), SUM(messages), SUM(bytes), MIN(oldest_at_ms) FROM queue_depths"
    )
    return LogFigures(
        log_position=position,
        identities=identities,
        queue_messages=int(messages or 0),
        queue_bytes=int(size_bytes or 0),
        queue_oldest_at_ms=oldest_at_ms,
    )


FOLDED: Final = (
    IdentityRegistered,
    ConnectionEstablished,
    AccountEnded,
    *(MessageQueued, MessageQueued1),
    *(MessagesRemoved, MessagesRemoved1),
)
"""The events that say something about a queue."""
ENTRIES_MAX: Final = 1_000_000
"""Queues and waiting messages in memory, about 250 bytes each."""


class _Queue(msgspec.Struct):
    did: str
    bytes: int = 0
    outbound: bool = False
    waiting: dict[str, tuple[int, int]] = {}
    """Size in bytes and time in Unix ms of each message by id, in arrival order."""


class QueueFold:
    """The queues of the streams from ``start`` on; ``rest`` is where another fold has to start."""

    def __init__(self, start: bytes = b"", *, entries_max: int = ENTRIES_MAX) -> None:
        """``start`` is compared with the 16 bytes of a stream."""
        self._start = start
        self._entries_max = entries_max
        self._entries = 0
        self._queues: dict[bytes, _Queue] = {}
        self.rest: bytes | None = None

    def take(self, stream: bytes, event: Event) -> None:
        """Take the next event of a stream that is one of ``FOLDED``."""
        if stream < self._start or (self.rest is not None and stream >= self.rest):
            return
        match event:
            case IdentityRegistered():
                self._queue(stream, event.did)
            case ConnectionEstablished():
                self._queue(stream, event.did).outbound = bool(event.endpoint)
            case AccountEnded():
                if (ended := self._queues.get(stream)) is not None:
                    ended.outbound = False
            case MessageQueued() | MessageQueued1():
                self._add(self._queues.get(stream), event)
            case MessagesRemoved() | MessagesRemoved1():
                self._remove(self._queues.get(stream), event)
            case _:
                pass
        if self._entries > self._entries_max:
            self._halve()

    def depths(self) -> Iterator[QueueDepth]:
        """What waits now, of each identity that has a queue; an empty one too."""
        for stream, queue in self._queues.items():
            oldest = next(iter(queue.waiting.values()), None)
            yield QueueDepth(
                UUID(bytes=stream),
                len(queue.waiting),
                queue.bytes,
                None if oldest is None else oldest[1],
                queue.did,
                queue.outbound,
            )

    def _queue(self, stream: bytes, did: str) -> _Queue:
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = _Queue(did)
            self._entries += 1
        return queue

    def _add(self, queue: _Queue | None, event: MessageQueued | MessageQueued1) -> None:
        if queue is not None:
            size_bytes = size_of(event.payload)
            queue.waiting[event.message_id] = (size_bytes, event.at_ms)
            queue.bytes += size_bytes
            self._entries += 1

    def _remove(self, queue: _Queue | None, event: MessagesRemoved | MessagesRemoved1) -> None:
        if queue is not None:
            for message_id in event.message_ids:
                removed = queue.waiting.pop(message_id, None)
                if removed is not None:
                    queue.bytes -= removed[0]
                    self._entries -= 1

    def _halve(self) -> None:
        streams = sorted(self._queues)
        if len(streams) == 1:
            return  # one queue alone has a bound of its own
        self.rest = streams[len(streams) // 2]
        self._queues = {s: queue for s, queue in self._queues.items() if s < self.rest}
        self._entries = sum(1 + len(queue.waiting) for queue in self._queues.values())
