"""The outbox of submissions for one host, with natural batching.

While a call to a host is in flight, new submissions wait in its outbox and leave together in the
next call; when many wait, a second call runs beside the first. An idle edge sends at once, and
batches grow with load; only submissions that can linger wait for the next batch. When a call fails
after it was sent, the outcome of every submission in it is unknown. When it has no answer in time,
and no other call had one meanwhile, what waits for a call is refused as well: no submission waits
much longer than a call may take.

A host answers a batch as a whole, so a batch has a bound of work, and each costly submission has a
call of its own and delays no other; a few of these calls run at once. If not all that waits fits in
a call, client addresses take turns, each as much work as the others, and so do the senders of one
address, in which a stranger may register any number. What one sender sends from one address keeps
its order. Work that no request causes, and sessions, take the turns of their senders alone, so that
the end of a session follows its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from typing import Final

import msgspec

from actors.core.commands import Listen, OpenSession
from actors.core.cost import COSTLY
from actors.core.replies import NOT_OWNER, UNAVAILABLE, BatchResult, Reply
from actors.core.submissions import Submission
from actors.core.turns import GroupedTurns
from actors.host.port import HostCutOff, HostNotReached, HostPort, HostUnavailable
from actors.host.transaction import request_ids
from http_edge.settings.settings import Limits
from http_edge.telemetry.edge_measures import EdgeMeasures

_LOG = logging.getLogger(__name__)
_CALLS_IN_FLIGHT_MAX: Final = 2
_SECOND_CALL_ITEMS: Final = 24
"""Waiting submissions that make a second call worth its cost. Measured: a call costs about a
millisecond of CPU on both sides together, whatever it carries, and an item 0.1 ms."""
_SHARES: Final = 4
"""A call has a quarter of its work from one address at most: by default 64 units, 5 ms of the host.
The next command of another address waits for two such calls."""
_COSTLY_CALLS_MAX: Final = 4
"""Enough that the host never waits for the next call; each may take a megabyte of its memory."""
_LINGER_S: Final = 0.004
"""About as long as a call and its commit take: the answer to a submission that lingers is not much
later, and the submission usually shares its call and commit with others."""
_SLOW_S: Final = 2.0
"""Above the 1.5 s that the append of a host under full load may take. A host that hangs and gets
2,000 commands a second has most of ``commands_in_flight_max`` by then."""
SESSIONS: Final = (OpenSession, Listen)
"""Commands of sockets outside of any request, which hold none of ``commands_in_flight_max``."""
_RESULT_DECODER: Final = msgspec.msgpack.Decoder(BatchResult)
_ENCODER: Final = msgspec.msgpack.Encoder()


class _Waiting(msgspec.Struct):
    """A submission, and the address whose turns it takes; those of its sender if that is empty."""

    submission: Submission
    address: str
    reply: asyncio.Future[Reply]
    size_bytes: int
    since_s: float


class Outbox:
    """Queues submissions for one host, sends them in batches, and returns the replies."""

    def __init__(
        self,
        name: str,
        port: HostPort,
        limits: Limits,
        measures: EdgeMeasures,
        *,
        on_result: Callable[[str, BatchResult], None],
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """An empty outbox. ``on_result`` sees the pushes and the incarnation of each answer.

        While ``is_crowded``, no more submissions wait for a host that is slow.
        """
        self.port = port
        self._name = name
        self._limits = limits
        self._measures = measures
        self._on_result = on_result
        self._is_crowded = is_crowded
        self._waiting: GroupedTurns[_Waiting] = GroupedTurns()
        self._waiting_bytes = 0
        self._costly: GroupedTurns[_Waiting] = GroupedTurns()
        self._costly_calls: set[asyncio.Task[None]] = set()
        self._lingering: deque[_Waiting] = deque()
        self._linger: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._flush_is_due = False
        self._is_silent = False
        self._answered_s = -math.inf
        self.unanswered = 0
        """Submissions that wait for a call or for its answer, but those that open sessions."""
        self.is_slow = False
        """Has the host answered no call since one that took longer than ``_SLOW_S``?"""

    def __len__(self) -> int:
        """How many submissions wait for a call."""
        return len(self._waiting) + len(self._lingering) + len(self._costly)

    async def submit(
        self,
        submission: Submission,
        size_bytes: int,
        *,
        can_linger: bool = False,
        address: str | None = None,
    ) -> Reply:
        """Send a submission, in the turns of a client address if it has one; return the reply.

        The reply is TEMPORARILY_UNAVAILABLE if the outbox is full, if the host does not answer, or
        if it is slow and ``is_crowded``; and NOT_OWNER if the host was not reached. A
        submission that ``can_linger`` leaves with the next one that cannot, or after ``_LINGER_S``.
        """
        is_full = len(self) >= self._limits.outbox_items_max
        # One that is idle sends its first submission, which shows whether the host is still slow.
        if is_full or (self.is_slow and not self.is_idle and self._is_crowded()):
            return UNAVAILABLE
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        is_session = isinstance(submission.command, SESSIONS)
        self.unanswered += not is_session
        try:
            payer = "" if is_session else address or ""
            waiting = _Waiting(submission, payer, reply, size_bytes, perf_counter())
            self._put(waiting, can_linger=can_linger)
            return await reply
        finally:
            self.unanswered -= not is_session

    def _put(self, waiting: _Waiting, *, can_linger: bool) -> None:
        loop, submission = asyncio.get_running_loop(), waiting.submission
        if submission.cost > COSTLY:
            _put_in(self._costly, waiting)
            self._send_costly()
        elif can_linger:
            self._lingering.append(waiting)
            if self._linger is None:
                self._linger = loop.call_later(_LINGER_S, self._stop_lingering)
        else:
            self._put_cheap(waiting)
            if not self._flush_is_due:
                self._flush_is_due = True
                loop.call_soon(self._flush)

    def _put_cheap(self, waiting: _Waiting) -> None:
        _put_in(self._waiting, waiting)
        self._waiting_bytes += waiting.size_bytes

    @property
    def is_idle(self) -> bool:
        """Does nothing wait and is nothing in flight?"""
        return not self._calls and not self._costly_calls and not len(self)

    async def drained(self) -> None:
        """Return when nothing waits and nothing is in flight."""
        while not self.is_idle:
            self._stop_lingering()
            if calls := self._calls | self._costly_calls:
                await asyncio.wait(calls)
            else:
                await asyncio.sleep(0)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        for waiting in self._lingering:
            self._put_cheap(waiting)
        self._lingering.clear()
        self._flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._waiting and self._lingering:
            self._stop_lingering()
            return
        while self._waiting and len(self._calls) < self._calls_max():
            self._start(self._next_batch(), self._calls, self._flush)

    def _send_costly(self) -> None:
        while self._costly and len(self._costly_calls) < _COSTLY_CALLS_MAX:
            self._start([self._costly.take()], self._costly_calls, self._send_costly)

    def _start(
        self, batch: list[_Waiting], calls: set[asyncio.Task[None]], go_on: Callable[[], None]
    ) -> None:
        def called(task: asyncio.Task[None]) -> None:
            calls.discard(task)
            go_on()

        # An empty context: the batch holds submissions of many requests.
        task = asyncio.get_running_loop().create_task(self._call(batch), context=Context())
        calls.add(task)
        task.add_done_callback(called)

    def _calls_max(self) -> int:
        return _CALLS_IN_FLIGHT_MAX if len(self._waiting) >= _SECOND_CALL_ITEMS else 1

    def _next_batch(self) -> list[_Waiting]:
        """The next submissions within the bounds of a call; at least one."""
        work_max, bytes_max = self._limits.batch_items_max, self._limits.batch_bytes_max
        share_max = work_max / _SHARES
        if self._waiting_bytes <= bytes_max and (all_of_it := self._waiting.take_all(share_max)):
            self._waiting_bytes = 0
            return all_of_it
        batch: list[_Waiting] = []
        size_bytes, work = 0, 0.0
        work_of: defaultdict[str, float] = defaultdict(float)
        while self._waiting:
            following = self._waiting.next
            size_bytes += following.size_bytes
            work += following.submission.cost
            if following.address:
                work_of[following.address] += following.submission.cost
            is_over = work > work_max or work_of[following.address] > share_max
            if batch and (is_over or size_bytes > bytes_max):
                break
            batch.append(self._waiting.take())
            self._waiting_bytes -= following.size_bytes
        return batch

    async def _call(self, batch: list[_Waiting]) -> None:
        started_s = perf_counter()
        self._measures.call_items.observe(len(batch))
        for waiting in batch:
            self._measures.outbox.observe(started_s - waiting.since_s)
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._note_slow, started_s)
        try:
            encoded = _ENCODER.encode([waiting.submission for waiting in batch])
            result = _RESULT_DECODER.decode(await self.port.submit(encoded))
            self._settle(batch, result.replies)
        except HostUnavailable as error:
            is_there = not isinstance(error, HostNotReached)
            # Warn once per outage, not for every call that fails in it.
            level = logging.DEBUG if self._is_silent else logging.WARNING
            what = "does not answer, outcome unknown" if is_there else "is not there"
            if isinstance(error, HostCutOff):
                what = "lives and cannot be reached from here"
            _LOG.log(level, "a host %s", what, extra=self._about(batch))
            self._is_silent = True
            # A batch that was not sent can go to the next owner. A host that lives but is cut off
            # has no next owner.
            self._settle(batch, [UNAVAILABLE if is_there else NOT_OWNER] * len(batch))
            if isinstance(error.__cause__, TimeoutError) and self._answered_s < started_s:
                self._refuse_waiting()
            return
        except Exception:  # noqa: BLE001 - whatever failed, no caller may wait for ever
            _LOG.exception("call to a host failed", extra=self._about(batch))
            self._settle(batch, [UNAVAILABLE] * len(batch))
            return
        finally:
            slow.cancel()
            self._measures.call.observe(perf_counter() - started_s)
        self._is_silent = self.is_slow = False
        self._answered_s = perf_counter()
        self._on_result(self._name, result)

    def _note_slow(self, started_s: float) -> None:
        """Note that a call takes long, unless the host has answered another one since its start."""
        if self._answered_s < started_s:
            self.is_slow = True
            if self._is_crowded():
                self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Answer all that waits for a host that hangs, and was not sent to it.

        Each further call may take as long, and what waits for it twice as long in all.
        """
        waiting = list(self._lingering)
        self._lingering.clear()
        self._waiting_bytes = 0
        for turns in (self._waiting, self._costly):
            waiting += [turns.take() for _ in range(len(turns))]
        self._settle(waiting, [UNAVAILABLE] * len(waiting))

    def _about(self, batch: list[_Waiting]) -> dict[str, object]:
        ids = request_ids([(self._name, waiting.submission) for waiting in batch])
        return {"host": self._name, "request_ids": ids, "commands": len(batch)}

    @staticmethod
    def _settle(batch: list[_Waiting], replies: list[Reply]) -> None:
        for waiting, reply in zip(batch, replies, strict=True):
            if not waiting.reply.done():
                waiting.reply.set_result(reply)


def _put_in(turns: GroupedTurns[_Waiting], waiting: _Waiting) -> None:
    submission = waiting.submission
    turns.put(waiting.address or submission.source, submission.source, submission.cost, waiting)
