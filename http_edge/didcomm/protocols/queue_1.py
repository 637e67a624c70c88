"""Queue management 1.0, the Aries draft: status, the owner's own rules, and batches.

The draft leaves open whether a fetch removes messages. Here a ``fetch-request`` removes the batch
from the queue once it is written to the transport; messages that could not be written are offered
again. A fetch needs a return route, because a batch may not wait in the queue that it came from. A
status may wait there: the draft lets messages of the mediator itself enter the queue. If an update
is why it may not, the update is accepted without it.
"""

from __future__ import annotations

from typing import Final

import orjson

from actors.core.commands import QueryQueue, SetQueuePolicy
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from actors.host.clock import Clock
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Reply, read_whole
from http_edge.didcomm.protocols.own_queue import (
    OwnQueue,
    duration_waited_s,
    last_times,
    time_text,
)
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, refusal, with_route
from http_edge.settings.settings import DidComm

CHANNEL: Final = "queue/1.0"


class Queue1:
    """The queue-providing agent of the draft."""

    def __init__(self, settings: DidComm, *, clock: Clock) -> None:
        self._queue = OwnQueue(settings, CHANNEL)
        self._messages_max = settings.delivery_messages_max
        self._clock = clock

    def family(self) -> Family:
        """Return the protocol with its handlers; the draft names no roles."""
        handlers = {
            "status-request": self._status,
            "status-update-request": self._update,
            "fetch-request": with_route(self._fetch),
        }
        return Family("queue", 1, (0,), (), handlers)

    async def _status(self, request: Request) -> Outcome:
        return self._status_reply(await request.ask_account(QueryQueue(), QueueState))

    async def _update(self, request: Request) -> Outcome:
        command = _policy(request.message.body.get("update")) or QueryQueue()
        return self._status_reply(await request.ask_account(command, QueueState), may_drop=True)

    async def _fetch(self, request: Request) -> Outcome:
        limit = request.message.count("message_count_limit", self._messages_max)
        if isinstance(limit, InvalidMember):
            return refusal(limit)
        found = await self._queue.deliver(request, limit)
        if not isinstance(found, Delivery):
            return refusal(found)
        body: Json = {
            "message_count": len(found.messages),
            "messages": list(map(item_of, found.messages)),
        }
        handed_over = [message.message_id for message in found.messages]
        batch = Reply("batch", body, delivered_bytes=found.size_bytes)
        return Outcome(batch, may_wait=False, handed_over=handed_over)

    def _status_reply(self, state: QueueState | Refusal, *, may_drop: bool = False) -> Outcome:
        if not isinstance(state, QueueState):
            return refusal(state)
        body: Json = {"status": status_of(state, self._clock())}
        return Outcome(Reply("status", body), may_drop=may_drop)


def status_of(state: QueueState, now_ms: int) -> Json:
    """Return all properties of a ``status``; a limit of 0 is no limit. Sizes are in bytes."""
    policy = state.policy
    return {
        "duration_limit": policy.age_s_max,
        "duration_waited": duration_waited_s(state, now_ms),
        **last_times(state),
        "message_count": state.messages,
        "message_count_limit": policy.messages_max,
        "message_size_limit": policy.message_bytes_max,
        "size": state.bytes,
        "size_limit": policy.bytes_max,
        "will_queue": policy.will_queue,
    }


def item_of(message: DeliveredMessage) -> Json:
    """Return a message as an item of a batch; only JSON is queued (``MessageReader``)."""
    return {
        "id": message.message_id,
        "msg": orjson.Fragment(message.payload),
        "added_time": time_text(message.at_ms),
    }


def _policy(update: object) -> SetQueuePolicy | None:
    """Return the rules that an update asks for, or None if it asks for none.

    An invalid value is discarded, as the draft allows: the status says which rules are in force.
    """
    if not isinstance(update, dict):
        return None
    will_queue = update.get("will_queue")
    command = SetQueuePolicy(
        will_queue if isinstance(will_queue, bool) else None,
        _count(update.get("duration_limit")),
        _count(update.get("message_count_limit")),
        _count(update.get("message_size_limit")),
        _count(update.get("size_limit")),
    )
    return None if command == SetQueuePolicy() else command


def _count(value: object) -> int | None:
    count = read_whole(value)
    return None if count is None or count < 0 else count
