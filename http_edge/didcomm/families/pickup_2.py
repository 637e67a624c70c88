"""Message pickup 2.0 (RFC 0685): status, delivery, acknowledgement and live mode.

Every message must allow a return route. Without one there is no answer, for neither a status nor a
delivery may wait in the queue; only an acknowledgement still takes effect. Nothing leaves the queue
before ``messages-received`` names it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.clock import Clock, NewId
from actors.refusals import Refusal
from actors.replies import Delivery, QueueState
from http_edge.config import DidComm
from http_edge.didcomm.deliveries import attachments, of_no_key, pickup_2_status
from http_edge.didcomm.handling import NOTHING, Asked, Family, Live, Outcome
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.keys import base58, read_key
from http_edge.didcomm.messages import ID_CHARS_MAX, Json, reply
from http_edge.didcomm.own_queue import OwnQueue, read_ids
from http_edge.didcomm.problems import Problem, problem_of, problem_report

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
        self,
        identities: Identities,
        settings: DidComm,
        *,
        edge: str,
        clock: Clock,
        new_id: NewId,
    ) -> None:
        """Pickup over the queues behind ``identities``; live sessions are held by ``edge``."""
        self._queue = OwnQueue(identities, settings, CHANNEL)
        self._edge = edge
        self._clock = clock
        self._new_id = new_id

    def family(self) -> Family:
        """The table of its messages."""
        handlers = {
            "status-request": self._status,
            "delivery-request": self._deliver,
            "messages-received": self._received,
            "live-delivery-change": self._live,
        }
        return Family("messagepickup", 2, (0,), ("mediator",), handlers)

    async def _status(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        narrowed = _narrowed(asked)
        if narrowed is None:
            return self._problem(asked, Problem.INVALID_MESSAGE)
        return await self._standing(asked, narrowed)

    async def _deliver(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        limit, narrowed = asked.message.whole("limit"), _narrowed(asked)
        if limit is None or limit < 0 or narrowed is None:
            return self._problem(asked, Problem.INVALID_MESSAGE)
        if limit == 0 or narrowed.to_nothing:
            return await self._standing(asked, narrowed)
        found = await self._queue.deliver(asked, limit, recipient_key=narrowed.key)
        if not isinstance(found, Delivery):
            return self._refused(asked, found)
        if not found.messages:
            # What is out on lease is not counted: a wallet asks again until the count is 0.
            left = msgspec.structs.replace(found.state, messages=found.state.available)
            return self._answer(asked, "status", self._status_of(left, narrowed))
        members = {**narrowed.echo, "~attach": attachments(found.messages)}
        return self._answer(asked, "delivery", members)

    async def _received(self, asked: Asked) -> Outcome:
        ids = read_ids(asked.message.body.get("message_id_list"))
        if ids is None:
            return self._problem(asked, Problem.INVALID_MESSAGE) if asked.routable else NOTHING
        state = await self._queue.acknowledge(asked, ids)
        if not asked.routable:
            return NOTHING
        if not isinstance(state, QueueState):
            return self._refused(asked, state)
        return self._answer(asked, "status", pickup_2_status(state, self._clock()))

    async def _live(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        wanted = asked.message.body.get("live_delivery")
        if not isinstance(wanted, bool):
            return self._problem(asked, Problem.INVALID_MESSAGE)
        if not asked.persistent:
            if wanted:
                return self._problem(asked, Problem.LIVE_MODE_NOT_SUPPORTED)
            return await self._standing(asked, _Narrowed(None, None))
        state = await self._queue.live(asked, self._edge if wanted else None)
        if not isinstance(state, QueueState):
            return self._refused(asked, state)
        outcome = self._answer(asked, "status", pickup_2_status(state, self._clock()))
        return msgspec.structs.replace(outcome, live=Live(on=wanted, version=state.version))

    async def _standing(self, asked: Asked, narrowed: _Narrowed) -> Outcome:
        """A status as the queue stands."""
        state = await self._queue.state(asked, narrowed.key)
        if not isinstance(state, QueueState):
            return self._refused(asked, state)
        if narrowed.to_nothing:
            state = of_no_key(state)
        return self._answer(asked, "status", self._status_of(state, narrowed))

    def _status_of(self, state: QueueState, narrowed: _Narrowed) -> Json:
        return {**narrowed.echo, **pickup_2_status(state, self._clock())}

    def _answer(self, asked: Asked, name: str, members: Json) -> Outcome:
        answer = reply(asked.message, name, self._new_id(), **members)
        return Outcome(answer, may_wait=False, explicit=True)

    def _problem(self, asked: Asked, problem: Problem) -> Outcome:
        report = problem_report(asked.message, problem, self._new_id())
        return Outcome(report, may_wait=False, explicit=True, refused=problem.refused)

    def _refused(self, asked: Asked, refusal: Refusal) -> Outcome:
        return self._problem(asked, problem_of(refusal))


def _narrowed(asked: Asked) -> _Narrowed | None:
    """What the message says of ``recipient_key``, or None when that is no text to be echoed."""
    spelling = asked.message.body.get("recipient_key")
    if spelling is None:
        return _Narrowed(None, None)
    if not isinstance(spelling, str) or len(spelling) > ID_CHARS_MAX:
        return None
    key = read_key(spelling)
    return _Narrowed(spelling, None if key is None else base58(key))
