"""Message pickup 1.0: RFC 0212 with the extension for long polls (timing, RFC 0032).

Version 1.0 has no acknowledgement: messages handed over in a ``batch`` or for a ``noop`` leave the
queue once they are written to the transport, and are offered again if that fails. A ``list-pickup``
is "a request to read", by ids that the owner learned in another way (a push, an envelope): it shows
the messages that it names, leased or not, and they stay in the queue until a ``batch-pickup`` or a
``noop`` takes them. Every answer needs a return route; without one, nothing is handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from actors.core.commands import QueryQueue
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, QueueState
from actors.host.clock import Clock
from http_edge.didcomm.delivery.waiting import Waiting
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, Reply
from http_edge.didcomm.protocols.own_queue import (
    IDS_MAX,
    OwnQueue,
    attachments,
    duration_waited_s,
    last_times,
)
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.didcomm.protocols.protocol import (
    NOTHING,
    Family,
    Outcome,
    Request,
    no_answer,
    with_route,
)
from http_edge.settings.settings import DidComm

CHANNEL: Final = "pickup/1.0"
_POLLS: Final = frozenset({"batch-pickup", "noop"})
"""The requests that wait for messages, if they have a delay."""


class Pickup1:
    """The message holder and batch sender of RFC 0212."""

    def __init__(self, settings: DidComm, waiting: Waiting, *, clock: Clock) -> None:
        self._queue = OwnQueue(settings, CHANNEL)
        self._delay_s_max = settings.delay_s_max
        self._waiting = waiting
        self._clock = clock

    def family(self) -> Family:
        """Return the protocol; every name without a handler is an ``invalid_request``."""
        handlers = {
            "status-request": with_route(self._status),
            "batch-pickup": with_route(self._batch),
            "list-pickup": with_route(self._list),
            "noop": with_route(self._noop),
            "problem_report": no_answer,
        }
        roles = ("message_holder", "batch_sender")
        unexpected = with_route(partial(_unexpected, ", ".join(handlers)))
        return Family("messagepickup", 1, (0,), roles, handlers, unexpected)

    async def _status(self, request: Request) -> Outcome:
        state = await request.ask_account(QueryQueue(), QueueState)
        if not isinstance(state, QueueState):
            return _refused(state)
        return _answer(Reply("status", status_of(state, self._clock())))

    async def _batch(self, request: Request) -> Outcome:
        size = request.message.count("batch_size")
        if isinstance(size, InvalidMember):
            return _invalid(size.sentence)
        found = await self._collect(request, size)
        if not isinstance(found, Delivery):
            return _refused(found)
        handed_over = [message.message_id for message in found.messages]
        return _answer(_messages("batch", found), handed_over=handed_over)

    async def _list(self, request: Request) -> Outcome:
        ids = request.message.texts("message_ids", IDS_MAX)
        if isinstance(ids, InvalidMember):
            return _invalid(ids.sentence)
        found = await self._queue.show(request, ids)
        if not isinstance(found, Delivery):
            return _refused(found)
        return _answer(_messages("list-response", found))

    async def _noop(self, request: Request) -> Outcome:
        """Send one message unchanged; neither start nor end implicit pickup on a socket.

        What that sends meanwhile is the answer.
        """
        pump = request.peer.pump
        sent_before = 0 if pump is None else pump.sent_implicitly

        def comes(found: Delivery) -> bool:
            return pump is not None and (
                pump.sent_implicitly > sent_before
                or (pump.is_implicit and found.state.available > 0)
            )

        found = await self._collect(request, 1, comes)
        if not isinstance(found, Delivery):
            return _refused(found)
        if found.messages:
            [message] = found.messages
            return Outcome(envelope=message.payload, handed_over=[message.message_id])
        if comes(found):
            return NOTHING
        if request.message.delay_ms is None:
            return _problem("empty_queue", "Message queue is empty")
        return _problem("timeout_occurred", "Message queue is empty, timeout occurred")

    async def _collect(
        self, request: Request, size: int, comes: Callable[[Delivery], bool] = lambda _: False
    ) -> Delivery | Refusal:
        """Lease up to ``size`` messages: at once if that many wait, else when the delay is over.

        If they come in another way, as ``comes`` says, return nothing at once.
        """

        def is_open(found: Delivery | Refusal) -> bool:
            return isinstance(found, Delivery) and not found.messages and not comes(found)

        wished_s = (request.message.delay_ms or 0) / 1000 if request.peer.patient else 0
        delay_s = min(wished_s, self._delay_s_max)
        if size == 0 or delay_s <= 0:
            return await self._take(request, size)
        found = await self._take(request, size, at_least=size)
        if not is_open(found):
            return found
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + delay_s
        async with self._waiting.listening(request.sender.did) as wake:
            # Ask once more: a message that came before we listened woke no waiter.
            found = await self._take(request, size, at_least=size)
            while is_open(found) and (left_s := ends_s - now_s()) > 0:
                if request.peer.pump is not None:
                    request.peer.pump.let_go()
                if not await wake.next(left_s):
                    break
                found = await self._take(request, size, at_least=size)
        return await self._take(request, size) if is_open(found) else found

    async def _take(self, request: Request, size: int, *, at_least: int = 0) -> Delivery | Refusal:
        """Lease messages, but none that implicit pickup sends on the same socket."""
        if request.peer.pump is None or not request.peer.pump.is_implicit:
            return await self._queue.deliver(request, size, at_least=at_least)
        state = await request.ask_account(QueryQueue(), QueueState)
        return state if isinstance(state, Refusal) else Delivery([], state)


def waits(message: Message) -> bool:
    """Say whether a message is a long poll, which the next one on its socket may overtake.

    A delay means nothing in any other message, which keeps its place.
    """
    kind = message.type
    is_poll = (kind.family, kind.major) == ("messagepickup", 1) and kind.name in _POLLS
    return is_poll and message.delay_ms is not None


async def _unexpected(supported: str, _request: Request) -> Outcome:
    return _invalid(f"Unknown request type; supported: {supported}")


def status_of(state: QueueState, now_ms: int) -> Json:
    """Return all attributes of a status; ``total_size`` is in bytes."""
    return {
        "message_count": state.messages,
        "duration_waited": duration_waited_s(state, now_ms),
        **last_times(state),
        "total_size": state.bytes,
    }


def _messages(name: str, found: Delivery) -> Reply:
    return Reply(
        name,
        attachments=attachments(found.messages, "messages", inlined=True),
        delivered_bytes=found.size_bytes,
    )


def _answer(reply: Reply, *, handed_over: Sequence[str] = ()) -> Outcome:
    return Outcome(reply, may_wait=False, handed_over=handed_over)


def _problem(code: str, explain: str, refused: str = "", problem: Problem | None = None) -> Outcome:
    """Answer with the protocol's own problem report, which is older than RFC 0035.

    ``refused`` is empty for an answer that is no refusal: an empty queue, for example.
    ``problem`` as in ``Outcome``.
    """
    report = Reply("problem_report", {"problem-code": code, "explain": explain})
    return Outcome(report, may_wait=False, refused=refused, problem=problem)


def _invalid(explain: str, refused: str = Problem.INVALID_MESSAGE.refused) -> Outcome:
    return _problem("invalid_request", explain, refused)


def _refused(refusal: Refusal) -> Outcome:
    problem = problem_of(refusal)
    if problem.who_retries == "you":
        # RFC 0212 defines no failing holder; a false status would be worse.
        return _problem("temporarily_unavailable", problem.sentence, problem.refused, problem)
    return _invalid(problem.sentence, problem.refused)
