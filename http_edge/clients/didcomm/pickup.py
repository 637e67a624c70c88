"""Pickup 2.0, 3.0 and 4.0: status, delivery, acknowledgement, live mode (RFC 0685, didcomm.org)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import orjson
from cachetools import FIFOCache

from http_edge.clients.didcomm.connection import Key, MediatorConnection, spelled
from http_edge.clients.didcomm.errors import NoAnswer, UnexpectedAnswer
from http_edge.clients.didcomm.protocol_session import (
    ProtocolSession,
    check_problem,
    new_id,
    record_of,
)
from http_edge.clients.didcomm.transport import ANSWER_S_MAX, Socket
from http_edge.crypto.encoding import b64decode
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json, read_type

_FAMILIES: Final = frozenset({"messagepickup", "message-pickup"})
LIMIT: Final = 10
"""The default number of messages in a delivery, as in other wallets."""
_ACKNOWLEDGED_MAX: Final = 10_000
"""Acknowledged messages whose copies are known: as many as a mediator may have in flight."""


class PickupVersion(NamedTuple):
    """A version of pickup: its protocol, and its member names for a recipient and the limit.

    ``answers_receipt`` means that the mediator answers an acknowledgement with the status.
    """

    protocol: str
    recipient: str
    limit: str
    answers_receipt: bool = True


PICKUP_2: Final = PickupVersion("messagepickup/2.0", "recipient_key", "limit")
PICKUP_3: Final = PickupVersion("messagepickup/3.0", "recipient_did", "limit")
PICKUP_4: Final = PickupVersion(
    "message-pickup/4.0", "recipient_did", "message_count_limit", answers_receipt=False
)


@dataclass(frozen=True, slots=True)
class Picked:
    """A delivered message: the id for its acknowledgement, and its unopened envelope."""

    id: str
    envelope: bytes


class Status(msgspec.Struct, frozen=True):
    """The status of the queue; only the count is always given.

    Times are text in pickup 2.0, Unix seconds in 3.0, Unix milliseconds in 4.0.
    """

    message_count: int
    recipient_key: str | None = None
    recipient_did: str | None = None
    longest_waited_s: int | None = msgspec.field(default=None, name="longest_waited_seconds")
    newest_received_time: str | int | None = None
    oldest_received_time: str | int | None = None
    total_bytes: int | None = None
    live_delivery: bool | None = None


class _Data(msgspec.Struct, frozen=True):
    base64: str | None = None
    json: Json | None = None


class _Attachment(msgspec.Struct, frozen=True):
    data: _Data
    id: str = msgspec.field(name="@id")


class SpeaksPickup(ProtocolSession):
    """Pickup with acknowledgements, in the version ``pickup``.

    Recipients in the filter are keys in bytes, written as did:key, or text in any spelling.
    """

    pickup: PickupVersion = PICKUP_2

    async def status(self, recipient: Key | None = None) -> Status:
        """Query the status of the queue, or of one recipient's messages in it."""
        return await self._status("status-request", **self._only(recipient))

    async def fetch(self, limit: int = LIMIT, recipient: Key | None = None) -> list[Picked]:
        """Fetch up to ``limit`` messages, oldest first; empty if none can be delivered.

        They stay in the queue until ``received`` acknowledges them.
        """
        answer = await self.request(
            f"{self.pickup.protocol}/delivery-request",
            "delivery|status",
            **{self.pickup.limit: limit},
            **self._only(recipient),
        )
        return delivered(answer) if "~attach" in answer else []

    async def received(self, ids: Sequence[str]) -> Status:
        """Acknowledge messages, which removes them; return the status of the queue without them.

        Raises:
            ProblemReported: the acknowledgement was refused.
            MediatorRefused: so it was, over HTTP in a version that does not answer it.
        """
        answer = await self._acknowledge(ids)
        if isinstance(answer, Status):
            return answer
        status = await self.status()
        self._check_received(answer)
        return status

    async def acknowledge(self, ids: Sequence[str]) -> Status | None:
        """Acknowledge messages; return the status only in a version that answers with it.

        Raises:
            ProblemReported, MediatorRefused: it was refused, as for ``received``; over a socket
                without an answer nothing is raised here, but by ``next`` of ``Live``.
        """
        answer = await self._acknowledge(ids)
        return answer if isinstance(answer, Status) else None

    async def _acknowledge(self, ids: Sequence[str]) -> Status | str:
        """Acknowledge; return the status, or without an answer the id of the message that did."""
        if self.pickup.answers_receipt:
            return await self._status("messages-received", message_id_list=list(ids))
        message: Json = {
            "@type": f"{NEW_PREFIX}{self.pickup.protocol}/messages-received",
            "@id": new_id(),
            "message_id_list": list(ids),
        }
        await self.ask(message, return_route="none")
        return str(message["@id"])

    def _check_received(self, sent: str) -> None:
        """Raise if an acknowledgement without an answer, before the last request, was refused.

        Answers come in the order of the requests: a problem report has come by now.

        Raises: ProblemReported.
        """
        if (report := self.transport.came_about(sent)) is not None:
            check_problem(report)

    async def drain(
        self, limit: int = LIMIT, recipient: Key | None = None
    ) -> AsyncIterator[Picked]:
        """Iterate over all messages, fetched ``limit`` at a time.

        A delivery is acknowledged when the caller asks for the message after its last one, so a
        caller that fails in between is offered the delivery again: over HTTP once its lease is over
        (``didcomm.lease_s`` of the mediator, 30 s by default), before that an empty queue.

        Raises:
            ProblemReported, MediatorRefused: an acknowledgement was refused, as for ``received``.
            UnexpectedAnswer: a message is offered again after it was acknowledged.
        """
        acknowledged: frozenset[str] = frozenset()
        sent = ""
        while True:
            picked = await self.fetch(limit, recipient)
            if sent:
                self._check_received(sent)
            if not picked:
                return
            ids = [one.id for one in picked]
            if not acknowledged.isdisjoint(ids):
                raise UnexpectedAnswer("a message is offered again after its acknowledgement")
            for one in picked:
                yield one
            answer = await self._acknowledge(ids)
            sent = answer if isinstance(answer, str) else ""
            acknowledged = frozenset(ids)

    async def live_delivery(self, *, on: bool) -> Status:
        """Turn live mode on or off; only a socket has it.

        Raises:
            ProblemReported: ``e.m.live-mode-not-supported`` over HTTP.
        """
        return await self._status("live-delivery-change", live_delivery=on)

    async def _status(self, name: str, **members: object) -> Status:
        answer = await self.request(f"{self.pickup.protocol}/{name}", "status", **members)
        return record_of(answer, Status)

    def _only(self, recipient: Key | None) -> Json:
        return {} if recipient is None else {self.pickup.recipient: spelled(recipient)}


class Live(SpeaksPickup):
    """A socket in live mode: iterate over arriving messages, acknowledge them, or send requests.

    Messages that waited before are not pushed: ``fetch`` them. Acknowledge each message with
    ``received``; otherwise it comes again. A copy that came before the acknowledgement is dropped,
    and at once (``Socket``) while the message itself waits to be received: the mediator pushes
    again what lies here, unread, for longer than its lease.
    """

    def __init__(
        self, connection: MediatorConnection, socket: Socket, pickup: PickupVersion = PICKUP_2
    ) -> None:
        super().__init__(connection, socket)
        self.socket: Final = socket
        self.pickup = pickup
        self._acknowledged: FIFOCache[str, int] = FIFOCache(_ACKNOWLEDGED_MAX)

    async def _acknowledge(self, ids: Sequence[str]) -> Status | str:
        answer = await super()._acknowledge(ids)
        # What comes later is no copy: an acknowledgement without an answer may be refused.
        self._acknowledged.update(dict.fromkeys(ids, self.socket.arrived))
        return answer

    async def next(self, seconds: float | None = ANSWER_S_MAX) -> list[Picked]:
        """The messages in the next delivery; a raw envelope has no id and no acknowledgement.

        Raises:
            NoAnswer: nothing was delivered in time.
            ProblemReported: the mediator reported a problem meanwhile.
            ConnectionLost, UnexpectedAnswer: the reason for the end of the socket.
        """
        try:
            # One time-out for all: a message that is no delivery must not restart the wait.
            async with asyncio.timeout(seconds):
                while True:
                    received = await self.socket.receive(None)
                    if isinstance(received, bytes):
                        return [Picked("", received)]
                    check_problem(received)
                    kind = read_type(received.get("@type"))
                    if kind is None or kind.family not in _FAMILIES or kind.name != "delivery":
                        continue
                    if picked := self._without_copies(delivered(received)):
                        return picked
        except TimeoutError as error:
            raise NoAnswer(f"nothing was delivered for {seconds} s") from error

    def _without_copies(self, picked: list[Picked]) -> list[Picked]:
        number, acknowledged = self.socket.taken, self._acknowledged
        return [one for one in picked if acknowledged.get(one.id, 0) < number]

    async def __aiter__(self) -> AsyncIterator[Picked]:
        """Iterate over messages as they arrive, without a time limit; raise as ``next``."""
        while True:
            for picked in await self.next(None):
                yield picked


def delivered(delivery: Json) -> list[Picked]:
    """Read the messages attached to a delivery, as base64 of any dialect or as JSON.

    Raises:
        UnexpectedAnswer: an attachment has another shape.
    """
    attachments = record_of(delivery.get("~attach"), list[_Attachment])
    return [Picked(one.id, _envelope(one.data)) for one in attachments]


def _envelope(data: _Data) -> bytes:
    if data.base64 is None:
        if data.json is None:
            raise UnexpectedAnswer("an attachment without data")
        return orjson.dumps(data.json)
    try:
        return b64decode(data.base64)
    except ValueError as error:
        raise UnexpectedAnswer(f"an attachment that is no base64: {error}") from error
