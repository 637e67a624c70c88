"""Aries queue 1.0 (draft): the queue's status, its limits, and fetching from it.

There is no acknowledgement: a fetched message has left the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from http_edge.clients.didcomm.pickup import Picked, envelope_of
from http_edge.clients.didcomm.protocol_session import ProtocolSession, record_of
from http_edge.didcomm.envelopes.messages import Json

_PROTOCOL: Final = "queue/1.0"


class QueueStatus(msgspec.Struct, frozen=True):
    """The status and the limits of the queue; zero means no limit."""

    message_count: int
    will_queue: bool
    duration_limit_s: int | None = msgspec.field(default=None, name="duration_limit")
    duration_waited_s: int | None = msgspec.field(default=None, name="duration_waited")
    last_added_time: str | None = None
    last_delivered_time: str | None = None
    last_removed_time: str | None = None
    message_count_limit: int | None = None
    message_bytes_limit: int | None = msgspec.field(default=None, name="message_size_limit")
    total_bytes: int | None = msgspec.field(default=None, name="size")
    total_bytes_limit: int | None = msgspec.field(default=None, name="size_limit")


@dataclass(frozen=True, slots=True)
class Fetched(Picked):
    """A message of a batch, with the time at which it was queued if that was given."""

    added_time: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    id: str
    msg: Json | str
    added_time: str | None = None


class _Batch(msgspec.Struct, frozen=True):
    message_count: int
    messages: tuple[_Entry, ...]


class SpeaksQueue1(ProtocolSession):
    """Aries queue 1.0."""

    async def queue_status(self) -> QueueStatus:
        """Query the status and the limits of the queue."""
        answer = await self.request(f"{_PROTOCOL}/status-request", "status")
        return record_of(answer.get("status"), QueueStatus)

    async def update_queue(self, **update: object) -> QueueStatus:
        """Ask for other limits, by their names on the wire (``message_count_limit=100``)."""
        answer = await self.request(f"{_PROTOCOL}/status-update-request", "status", update=update)
        return record_of(answer.get("status"), QueueStatus)

    async def queue_fetch(self, limit: int | None = None) -> list[Fetched]:
        """Fetch messages, oldest first, ``limit`` at most."""
        bound = {} if limit is None else {"message_count_limit": limit}
        answer = await self.request(f"{_PROTOCOL}/fetch-request", "batch", **bound)
        return [
            Fetched(one.id, envelope_of(one.msg), one.added_time)
            for one in record_of(answer, _Batch).messages
        ]
