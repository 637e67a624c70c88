"""The older generations of pickup: Pickup 1.0 (RFC 0212) and Aries queue 1.0 (draft).

There is no acknowledgement: a delivered message has left the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import orjson

from http_edge.clients.didcomm.errors import UnexpectedAnswer
from http_edge.clients.didcomm.pickup import Picked
from http_edge.clients.didcomm.protocol_session import ProtocolSession, check_problem, record_of
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json

_PICKUP: Final = "messagepickup/1.0"
_QUEUE: Final = "queue/1.0"


class Pickup1Status(msgspec.Struct, frozen=True):
    """The status of the queue; only the count is always given."""

    message_count: int
    duration_waited_s: int | None = msgspec.field(default=None, name="duration_waited")
    last_added_time: str | None = None
    last_delivered_time: str | None = None
    last_removed_time: str | None = None
    total_bytes: int | None = msgspec.field(default=None, name="total_size")


class _Attached(msgspec.Struct, frozen=True):
    """The RFC writes ``@id``, Credo reads ``id``; the message may be an object or its text."""

    message: Json | str
    rfc_id: str | None = msgspec.field(default=None, name="@id")
    id: str | None = None


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


class SpeaksOlderPickup(ProtocolSession):
    """Pickup 1.0 and Aries queue 1.0.

    ``delay_ms`` lets the mediator wait for messages for that many milliseconds (RFC 0032).
    """

    async def pickup1_status(self) -> Pickup1Status:
        """Query the status of the queue."""
        answer = await self.request(f"{_PICKUP}/status-request", "status")
        return record_of(answer, Pickup1Status)

    async def batch(self, size: int, delay_ms: int | None = None) -> list[Picked]:
        """Fetch up to ``size`` messages, oldest first; with a delay the mediator waits for more."""
        answer = await self.request(
            f"{_PICKUP}/batch-pickup", "batch", batch_size=size, **_timing(delay_ms)
        )
        return _attached(answer)

    async def list_pickup(self, ids: Sequence[str]) -> list[Picked]:
        """Fetch the messages with these ids; unknown ids are ignored."""
        answer = await self.request(
            f"{_PICKUP}/list-pickup", "list-response", message_ids=list(ids)
        )
        return _attached(answer)

    async def noop(self, delay_ms: int | None = None) -> bytes:
        """Fetch the oldest message as a raw envelope; with a delay the mediator waits for one.

        It may be an answer of the mediator that waited; ``connection.open`` opens that.

        Raises:
            ProblemReported: ``empty_queue``, or after a delay ``timeout_occurred``.
        """
        message: Json = {"@type": f"{NEW_PREFIX}{_PICKUP}/noop", **_timing(delay_ms)}
        answer = await self.exchange(message, raw=True)
        if isinstance(answer, bytes):
            return answer
        check_problem(answer or {})
        raise UnexpectedAnswer("a noop was not answered with an envelope")

    async def queue_status(self) -> QueueStatus:
        """Query the status and the limits of the queue."""
        answer = await self.request(f"{_QUEUE}/status-request", "status")
        return record_of(answer.get("status"), QueueStatus)

    async def update_queue(self, **update: object) -> QueueStatus:
        """Ask for other limits, by their names on the wire (``message_count_limit=100``)."""
        answer = await self.request(f"{_QUEUE}/status-update-request", "status", update=update)
        return record_of(answer.get("status"), QueueStatus)

    async def queue_fetch(self, limit: int | None = None) -> list[Fetched]:
        """Fetch messages, oldest first, ``limit`` at most."""
        bound = {} if limit is None else {"message_count_limit": limit}
        answer = await self.request(f"{_QUEUE}/fetch-request", "batch", **bound)
        return [
            Fetched(one.id, _envelope(one.msg), one.added_time)
            for one in record_of(answer, _Batch).messages
        ]


def _timing(delay_ms: int | None) -> Json:
    return {} if delay_ms is None else {"~timing": {"delay_milli": delay_ms}}


def _attached(answer: Json) -> list[Picked]:
    """Raises: UnexpectedAnswer."""
    picked = []
    for one in record_of(answer.get("messages~attach"), list[_Attached]):
        found = one.rfc_id or one.id
        if found is None:
            raise UnexpectedAnswer("a message without an id")
        picked.append(Picked(found, _envelope(one.message)))
    return picked


def _envelope(message: Json | str) -> bytes:
    """A message that is written as an object, or as its text."""
    return message.encode() if isinstance(message, str) else orjson.dumps(message)
