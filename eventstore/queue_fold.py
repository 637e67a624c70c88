"""What waits for each identity, from the events alone: the depths of queues without their owner.

Hosts write depths with the events that change them (``eventstore.queue_depths``), because they
have the state in memory. Here it is folded from the log, for a restore. Memory is bounded: when
too much waits, the queues of the upper half of streams are left to another pass over the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from eventstore.events import (
    ConnectionEstablished,
    Event,
    IdentityRegistered,
    MessageQueued,
    MessagesRemoved,
)
from eventstore.log import QueueDepth

FOLDED: Final = (IdentityRegistered, ConnectionEstablished, MessageQueued, MessagesRemoved)
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
        """Nothing yet. ``start`` is compared with the 16 bytes of a stream."""
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
            case MessageQueued():
                self._add(self._queues.get(stream), event)
            case MessagesRemoved():
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

    def _add(self, queue: _Queue | None, event: MessageQueued) -> None:
        if queue is not None:
            queue.waiting[event.message_id] = (len(event.payload), event.at_ms)
            queue.bytes += len(event.payload)
            self._entries += 1

    def _remove(self, queue: _Queue | None, event: MessagesRemoved) -> None:
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
