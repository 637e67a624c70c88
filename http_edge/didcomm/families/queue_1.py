"""Queue management 1.0, the Aries draft: status, the owner's own rules, and batches.

The draft leaves open whether a fetch removes. Here a ``fetch-request`` removes what it handed over
once the batch is written to the transport; what could not be written is offered again. It needs a
return route, for a batch may not wait in the queue that it came from. A status may: the draft lets
messages of the mediator itself enter the queue.
"""

from __future__ import annotations

from typing import Final, TypeGuard

from actors.clock import Clock, NewId
from actors.commands import QueryQueue, SetQueuePolicy
from actors.refusals import Refusal
from actors.replies import Delivery, QueueState
from http_edge.config import DidComm
from http_edge.didcomm.deliveries import queue_1_status, queue_items
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.messages import reply
from http_edge.didcomm.own_queue import OwnQueue
from http_edge.didcomm.problems import Problem, problem_of, problem_report

CHANNEL: Final = "queue/1.0"


class Queue1:
    """The queue-providing agent of the draft."""

    def __init__(
        self, identities: Identities, settings: DidComm, *, clock: Clock, new_id: NewId
    ) -> None:
        """Queues behind ``identities``."""
        self._queue = OwnQueue(identities, settings, CHANNEL)
        self._messages_max = settings.delivery_messages_max
        self._clock = clock
        self._new_id = new_id

    def family(self) -> Family:
        """The table of its messages; the draft names no roles."""
        handlers = {
            "status-request": self._status,
            "status-update-request": self._update,
            "fetch-request": self._fetch,
        }
        return Family("queue", 1, (0,), (), handlers)

    async def _status(self, asked: Asked) -> Outcome:
        return self._standing(asked, await self._queue.state(asked))

    async def _update(self, asked: Asked) -> Outcome:
        command = _policy(asked.message.body.get("update")) or QueryQueue()
        return self._standing(asked, await self._queue.change(asked, command))

    async def _fetch(self, asked: Asked) -> Outcome:
        if not asked.routable:
            return NOTHING
        limit = asked.message.body.get("message_count_limit")
        limit = self._messages_max if limit is None else limit
        if not _is_count(limit):
            return self._problem(asked, Problem.INVALID_MESSAGE)
        found = await self._queue.deliver(asked, limit)
        if not isinstance(found, Delivery):
            return self._problem(asked, problem_of(found))
        batch = reply(
            asked.message,
            "batch",
            self._new_id(),
            message_count=len(found.messages),
            messages=queue_items(found.messages),
        )
        handed_over = [message.message_id for message in found.messages]
        return Outcome(batch, may_wait=False, handed_over=handed_over, explicit=True)

    def _standing(self, asked: Asked, state: QueueState | Refusal) -> Outcome:
        if not isinstance(state, QueueState):
            return self._problem(asked, problem_of(state))
        status = queue_1_status(state, self._clock())
        return Outcome(reply(asked.message, "status", self._new_id(), status=status), explicit=True)

    def _problem(self, asked: Asked, problem: Problem) -> Outcome:
        report = problem_report(asked.message, problem, self._new_id())
        return Outcome(report, explicit=True, refused=problem.refused)


def _policy(update: object) -> SetQueuePolicy | None:
    """The rules that an update asks for, or None when it asks for none.

    A value that is none is discarded, as the draft allows: the status tells what is in force.
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
    return value if _is_count(value) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
