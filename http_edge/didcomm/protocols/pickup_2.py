"""Message pickup 2.0 (RFC 0685): status, delivery, acknowledgement and live mode.

Every message must allow a return route. Without one there is no answer, for neither a status nor a
delivery may wait in the queue; only an acknowledgement still takes effect. Nothing leaves the queue
before ``messages-received`` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from actors.host.clock import Clock
from http_edge.didcomm.envelopes.keys import base58, read_key
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, NewMessage, Reply
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.own_queue import (
    IDS_MAX,
    OwnQueue,
    attachments,
    seconds_since,
    times,
)
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.didcomm.protocols.protocol import (
    NOTHING,
    Family,
    LiveModeChange,
    Outcome,
    Request,
    refusal,
)
from http_edge.settings.settings import DidComm

CHANNEL: Final = "pickup/2.0"


class _Narrowed(msgspec.Struct, frozen=True):
    """What a message says of ``recipient_key``: its spelling, and the key in base58.

    Both are None where it says nothing. ``key`` alone is None where the text is no key at all: then
    nothing waits for it, as for every key that is not of this queue.
    """

    spelling: str | None
    key: str | None

    @property
    def to_nothing(self) -> bool:
        """Is it narrowed to a key that does not exist?"""
        return self.spelling is not None and self.key is None

    @property
    def echo(self) -> Json:
        """The member for the answer, in the asker's own spelling."""
        return {} if self.spelling is None else {"recipient_key": self.spelling}


class Pickup2:
    """The mediator of RFC 0685."""

    def __init__(
        self, identities: Identities, settings: DidComm, *, edge: str, clock: Clock
    ) -> None:
        """Pickup over the queues behind ``identities``; live sessions are held by ``edge``."""
        self._queue = OwnQueue(identities, settings, CHANNEL)
        self._edge = edge
        self._clock = clock

    def family(self) -> Family:
        """The table of its messages."""
        handlers = {
            "status-request": self._status,
            "delivery-request": self._deliver,
            "messages-received": self._received,
            "live-delivery-change": self._live,
        }
        return Family("messagepickup", 2, (0,), ("mediator",), handlers)

    async def _status(self, request: Request) -> Outcome:
        if not request.routable:
            return NOTHING
        narrowed = _narrowed(request.message)
        if isinstance(narrowed, InvalidMember):
            return _refused(narrowed)
        return await self._status_reply(request, narrowed)

    async def _deliver(self, request: Request) -> Outcome:
        if not request.routable:
            return NOTHING
        limit, narrowed = request.message.count("limit"), _narrowed(request.message)
        if isinstance(limit, InvalidMember):
            return _refused(limit)
        if isinstance(narrowed, InvalidMember):
            return _refused(narrowed)
        if limit == 0 or narrowed.to_nothing:
            return await self._status_reply(request, narrowed)
        found = await self._queue.deliver(request, limit, recipient_key=narrowed.key)
        if not isinstance(found, Delivery):
            return _refused(found)
        if not found.messages:
            # What is out on lease is not counted: a wallet asks again until the count is 0.
            left = msgspec.structs.replace(found.state, messages=found.state.available)
            return _answer(Reply("status", self._status_of(left, narrowed)))
        return _answer(Reply("delivery", narrowed.echo, attachments(found.messages)))

    async def _received(self, request: Request) -> Outcome:
        ids = request.message.texts("message_id_list", IDS_MAX)
        if isinstance(ids, InvalidMember):
            return _refused(ids) if request.routable else NOTHING
        state = await self._queue.acknowledge(request, ids)
        if not request.routable:
            return NOTHING
        if not isinstance(state, QueueState):
            return _refused(state)
        return _answer(Reply("status", status_of(state, self._clock())))

    async def _live(self, request: Request) -> Outcome:
        if not request.routable:
            return NOTHING
        wanted = request.message.flag("live_delivery")
        if isinstance(wanted, InvalidMember):
            return _refused(wanted)
        if not request.persistent:
            if wanted:
                return _refused(Problem.LIVE_MODE_NOT_SUPPORTED)
            return await self._status_reply(request, _Narrowed(None, None))
        state = await self._queue.live(request, self._edge if wanted else None)
        if not isinstance(state, QueueState):
            return _refused(state)
        outcome = _answer(Reply("status", status_of(state, self._clock())))
        live = LiveModeChange(live_delivery if wanted else None, version=state.version)
        return msgspec.structs.replace(outcome, live=live)

    async def _status_reply(self, request: Request, narrowed: _Narrowed) -> Outcome:
        """The queue as it is now."""
        state = await self._queue.state(request, narrowed.key)
        if not isinstance(state, QueueState):
            return _refused(state)
        if narrowed.to_nothing:
            state = of_no_key(state)
        return _answer(Reply("status", self._status_of(state, narrowed)))

    def _status_of(self, state: QueueState, narrowed: _Narrowed) -> Json:
        return {**narrowed.echo, **status_of(state, self._clock())}


def live_delivery(messages: Sequence[DeliveredMessage]) -> NewMessage:
    """A delivery that answers no request, so without a thread (RFC 0685, live mode)."""
    return NewMessage("messagepickup/2.0/delivery", attachments=attachments(messages))


def status_of(state: QueueState, now_ms: int) -> Json:
    """All attributes of a status but ``recipient_key``, which is the sender's own text."""
    return {
        "message_count": state.messages,
        "longest_waited_seconds": seconds_since(state.oldest_ms, now_ms),
        **times(newest_received_time=state.newest_ms, oldest_received_time=state.oldest_ms),
        "total_bytes": state.bytes,
        "live_delivery": state.live,
    }


def of_no_key(state: QueueState) -> QueueState:
    """The state as seen through a key that is not of this queue: nothing waits for it."""
    return msgspec.structs.replace(
        state, messages=0, bytes=0, available=0, oldest_ms=0, newest_ms=0
    )


def _answer(reply: Reply) -> Outcome:
    return Outcome(reply, may_wait=False, explicit=True)


def _refused(problem: Problem | InvalidMember | Refusal) -> Outcome:
    if isinstance(problem, Refusal):
        problem = problem_of(problem)
    return refusal(problem, may_wait=False, explicit=True)


def _narrowed(message: Message) -> _Narrowed | InvalidMember:
    """What the message says of ``recipient_key``."""
    spelling = message.optional_text("recipient_key")
    if isinstance(spelling, InvalidMember):
        return spelling
    if spelling is None:
        return _Narrowed(None, None)
    key = read_key(spelling)
    return _Narrowed(spelling, None if key is None else base58(key))
