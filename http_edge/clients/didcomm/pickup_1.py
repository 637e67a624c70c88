"""Pickup 1.0, with the delay that a wallet may allow for an answer (RFC 0212, RFC 0032).

There is no acknowledgement: a delivered message has left the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from http_edge.clients.didcomm.errors import UnexpectedAnswer
from http_edge.clients.didcomm.pickup import Picked, envelope_of
from http_edge.clients.didcomm.protocol_session import ProtocolSession, check_problem, record_of
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json

_PROTOCOL: Final = "messagepickup/1.0"


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


class SpeaksPickup1(ProtocolSession):
    """Pickup 1.0. ``delay_ms`` lets the mediator wait for messages for that many milliseconds."""

    async def pickup1_status(self) -> Pickup1Status:
        """Query the status of the queue."""
        answer = await self.request(f"{_PROTOCOL}/status-request", "status")
        return record_of(answer, Pickup1Status)

    async def batch(self, size: int, delay_ms: int | None = None) -> list[Picked]:
        """Fetch up to ``size`` messages, oldest first; with a delay the mediator waits for more."""
        answer = await self.request(
            f"{_PROTOCOL}/batch-pickup", "batch", batch_size=size, **_timing(delay_ms)
        )
        return _attached(answer)

    async def list_pickup(self, ids: Sequence[str]) -> list[Picked]:
        """Fetch the messages with these ids; unknown ids are ignored."""
        answer = await self.request(
            f"{_PROTOCOL}/list-pickup", "list-response", message_ids=list(ids)
        )
        return _attached(answer)

    async def noop(self, delay_ms: int | None = None) -> bytes:
        """Fetch the oldest message as a raw envelope; with a delay the mediator waits for one.

        It may be an answer of the mediator that waited; ``connection.open`` opens that.

        Raises:
            ProblemReported: ``empty_queue``, or after a delay ``timeout_occurred``.
        """
        message: Json = {"@type": f"{NEW_PREFIX}{_PROTOCOL}/noop", **_timing(delay_ms)}
        answer = await self.exchange(message, raw=True)
        if isinstance(answer, bytes):
            return answer
        check_problem(answer or {})
        raise UnexpectedAnswer("a noop was not answered with an envelope")


def _timing(delay_ms: int | None) -> Json:
    return {} if delay_ms is None else {"~timing": {"delay_milli": delay_ms}}


def _attached(answer: Json) -> list[Picked]:
    """Raises: UnexpectedAnswer."""
    picked = []
    for one in record_of(answer.get("messages~attach"), list[_Attached]):
        found = one.rfc_id or one.id
        if found is None:
            raise UnexpectedAnswer("a message without an id")
        picked.append(Picked(found, envelope_of(one.message)))
    return picked
