"""Message pickup 1.0: RFC 0212 with the extension for long polls (``~timing.delay_milli``).

There is no acknowledgement in 1.0: what a ``batch`` or a ``noop`` handed over leaves the queue once
it is written to the transport, and comes back when that failed. A ``list-pickup`` is "a request to
read": what it names stays in the queue until a ``batch-pickup`` or a ``noop`` takes it. Every
answer needs a return route; without one there is none, and nothing is handed out.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from actors.clock import Clock, NewId
from actors.refusals import Refusal
from actors.replies import Delivery, QueueState
from http_edge.config import DidComm
from http_edge.didcomm.deliveries import batch_items, pickup_1_status
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.messages import Json, reply
from http_edge.didcomm.own_queue import OwnQueue, read_ids
from http_edge.didcomm.problems import Problem, problem_of
from http_edge.didcomm.waiting import Waiting

CHANNEL: Final = "pickup/1.0"
EMPTY_QUEUE: Final = "empty_queue"
TIMEOUT_OCCURRED: Final = "timeout_occurred"
INVALID_REQUEST: Final = "invalid_request"
TEMPORARILY_UNAVAILABLE: Final = "temporarily_unavailable"
"""Not in the document, which knows no failing holder; a lie about the queue would be worse."""
_REFUSED: Final = {INVALID_REQUEST: Problem.INVALID_MESSAGE.refused}
"""The other codes refuse nothing: an empty queue is an answer."""
_EXPLAIN: Final = {
    EMPTY_QUEUE: "Message queue is empty",
    TIMEOUT_OCCURRED: "Message queue is empty, timeout occurred",
    TEMPORARILY_UNAVAILABLE: "The message holder cannot answer now, try again",
}


class Pickup1:
    """The message holder and batch sender of RFC 0212."""

    def __init__(
        self,
        identities: Identities,
        settings: DidComm,
        waiting: Waiting,
        *,
        clock: Clock,
        new_id: NewId,
    ) -> None:
        """Pickup over the queues behind ``identities``; long polls wait in ``waiting``."""
        self._queue = OwnQueue(identities, settings, CHANNEL)
        self._delay_s_max = settings.delay_s_max
        self._waiting = waiting
        self._clock = clock
        self._new_id = new_id

    def family(self) -> Family:
        """The table of its messages; every other name is an ``invalid_request``."""
        handlers = {
            "status-request": self._status,
            "batch-pickup": self._batch,
            "list-pickup": self._list,
            "noop": self._noop,
            "problem_report": _ignore,
        }
        roles = ("message_holder", "batch_sender")
        return Family("messagepickup", 1, (0,), roles, handlers, self._unexpected)

    async def _status(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        state = await self._queue.state(asked)
        if not isinstance(state, QueueState):
            return self._refused(asked, state)
        return self._answer(asked, "status", pickup_1_status(state, self._clock()))

    async def _batch(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        size = asked.message.whole("batch_size")
        if size is None or size < 0:
            return self._problem(asked, INVALID_REQUEST, "batch_size is a count of messages")
        found = await self._collect(asked, size)
        if not isinstance(found, Delivery):
            return self._refused(asked, found)
        return self._answer(
            asked,
            "batch",
            {"messages~attach": batch_items(found.messages)},
            handed_over=[message.message_id for message in found.messages],
        )

    async def _list(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        ids = read_ids(asked.message.body.get("message_ids"))
        if ids is None:
            return self._problem(asked, INVALID_REQUEST, "message_ids is a list of message ids")
        found = await self._queue.show(asked, ids)
        if not isinstance(found, Delivery):
            return self._refused(asked, found)
        return self._answer(
            asked, "list-response", {"messages~attach": batch_items(found.messages)}
        )

    async def _noop(self, asked: Asked) -> Outcome:
        """One message as it is. It neither starts nor ends implicit pickup on a socket."""
        if not asked.routable:
            return NOTHING
        found = await self._collect(asked, 1)
        if not isinstance(found, Delivery):
            return self._refused(asked, found)
        if found.messages:
            [message] = found.messages
            return Outcome(envelope=message.payload, handed_over=[message.message_id])
        code = EMPTY_QUEUE if asked.message.delay_ms is None else TIMEOUT_OCCURRED
        return self._problem(asked, code, _EXPLAIN[code])

    async def _unexpected(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        return self._problem(asked, INVALID_REQUEST, "Unknown request type")

    async def _collect(self, asked: Asked, size: int) -> Delivery | Refusal:
        """Up to ``size`` messages: at once when that many wait, else when the delay is over."""
        wished_s = (asked.message.delay_ms or 0) / 1000 if asked.patient else 0
        delay_s = min(wished_s, self._delay_s_max)
        if size == 0 or delay_s <= 0:
            return await self._queue.deliver(asked, size)
        found = await self._queue.deliver(asked, size, at_least=size)
        if not _nothing_yet(found):
            return found
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + delay_s
        async with self._waiting.listening(asked.sender.did) as wake:
            # Whatever came before it listened has woken nobody, so it is asked for once more.
            found = await self._queue.deliver(asked, size, at_least=size)
            while _nothing_yet(found) and (left_s := ends_s - now_s()) > 0:
                if not await wake.next(left_s):
                    break
                found = await self._queue.deliver(asked, size, at_least=size)
        return await self._queue.deliver(asked, size) if _nothing_yet(found) else found

    def _answer(
        self, asked: Asked, name: str, members: Json, *, handed_over: list[str] | None = None
    ) -> Outcome:
        answer = reply(asked.message, name, self._new_id(), **members)
        return Outcome(answer, may_wait=False, handed_over=handed_over or (), explicit=True)

    def _problem(self, asked: Asked, code: str, explain: str) -> Outcome:
        """The protocol's own problem report, which is older than RFC 0035."""
        members: Json = {"problem-code": code, "explain": explain}
        report = reply(asked.message, "problem_report", self._new_id(), **members)
        return Outcome(report, may_wait=False, refused=_REFUSED.get(code, ""))

    def _refused(self, asked: Asked, refusal: Refusal) -> Outcome:
        if refusal is Refusal.TEMPORARILY_UNAVAILABLE:
            return self._problem(asked, TEMPORARILY_UNAVAILABLE, _EXPLAIN[TEMPORARILY_UNAVAILABLE])
        explain = "There is no connection to hold messages for"
        outcome = self._problem(asked, INVALID_REQUEST, explain)
        return msgspec.structs.replace(outcome, refused=problem_of(refusal).refused)


async def _ignore(_asked: Asked) -> Outcome:
    """Two agents that answered one another's problem reports would never end."""
    return NOTHING


def _nothing_yet(found: Delivery | Refusal) -> bool:
    return isinstance(found, Delivery) and not found.messages
