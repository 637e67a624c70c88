"""The edge's way to the hosts: one outbox per host with natural batching.

While a call to a host is in flight, new submissions wait in its outbox and leave together in the
next call; when many wait, a second call leaves beside the first. An idle edge sends at once,
batches grow with load; only what can linger is kept a moment for company. Any failure of a call is
"outcome unknown" for every submission in it. A host that does not own a shard has done nothing: the
submission waits until somebody does, and is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from typing import Final, TypeAlias

import msgspec

from actors.commands import Read, Submission
from actors.host_port import HostPort, HostUnavailable
from actors.partitions import Placement
from actors.refusals import Refusal
from actors.replies import BatchResult, Done, Push, Refused, Reply
from actors.transaction import request_ids
from eventstore.log import PublicEventsPage, SavedEventsPage
from http_edge.edge_report import EdgeMeasures
from http_edge.routes import Routes

_LOG = logging.getLogger(__name__)
_CALLS_IN_FLIGHT_MAX: Final = 2
_OUTBOXES_MAX: Final = 4_096
_SECOND_CALL_ITEMS: Final = 24
"""A second call leaves beside the first only when it is worth its cost. Measured: a call costs
about a millisecond of CPU on both sides together, whatever it carries, and an item 0.1 ms."""
_LINGER_S: Final = 0.004
"""A call and its commit take about this long: what can linger is not answered much later, and most
of the time shares both with something else."""
_ASK_AGAIN_S: Final = 0.25
"""Who does not own a shard may own it again before a table tells: it is asked again after this."""
_DRAIN_POLL_S: Final = 0.02
_ENCODER: Final = msgspec.msgpack.Encoder()
_RESULT_DECODER: Final = msgspec.msgpack.Decoder(BatchResult)
_PAGE_DECODER: Final[msgspec.msgpack.Decoder[SavedEventsPage | PublicEventsPage]] = (
    msgspec.msgpack.Decoder(SavedEventsPage | PublicEventsPage)
)
_UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
_NOT_OWNER: Final = Refused(Refusal.NOT_OWNER)

Ports: TypeAlias = Callable[[str], HostPort]
"""Finds the port of a host by name."""


class GatewayLimits(msgspec.Struct, frozen=True):
    """How much may wait for one host, and how much one call carries.

    ``move_wait_s_max`` is how long a submission waits for its shard to have an owner again.
    """

    outbox_items_max: int
    batch_items_max: int
    batch_bytes_max: int
    reads_in_flight_max: int
    move_wait_s_max: float


class _Waiting(msgspec.Struct):
    submission: Submission
    reply: asyncio.Future[Reply]
    size_bytes: int
    since_s: float


class _Step(msgspec.Struct):
    """What is to be sent next of a submission, for which partitions, and to whom."""

    host: str | None
    partitions: tuple[str, ...]
    submission: Submission


class Outbox:
    """Submissions on their way to one host, and the replies on their way back."""

    def __init__(
        self,
        name: str,
        port: HostPort,
        limits: GatewayLimits,
        measures: EdgeMeasures,
        *,
        on_result: Callable[[str, BatchResult], None],
    ) -> None:
        """An empty outbox. ``on_result`` sees the pushes and the incarnation of each answer."""
        self.port = port
        self._name = name
        self._limits = limits
        self._measures = measures
        self._on_result = on_result
        self._waiting: deque[_Waiting] = deque()
        self._lingering: deque[_Waiting] = deque()
        self._linger: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._flush_is_due = False
        self._is_silent = False

    def __len__(self) -> int:
        """How many submissions wait for a call."""
        return len(self._waiting) + len(self._lingering)

    async def submit(
        self, submission: Submission, size_bytes: int, *, can_linger: bool = False
    ) -> Reply:
        """The host's reply, or TEMPORARILY_UNAVAILABLE when it is full or did not answer.

        What ``can_linger`` leaves with the next submission that cannot, or after a moment.
        """
        if len(self) >= self._limits.outbox_items_max:
            return _UNAVAILABLE
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        waiting = _Waiting(submission, reply, size_bytes, perf_counter())
        if can_linger:
            self._lingering.append(waiting)
            if self._linger is None:
                self._linger = loop.call_later(_LINGER_S, self._stop_lingering, context=Context())
            return await reply
        self._waiting.append(waiting)
        if not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush, context=Context())
        return await reply

    @property
    def is_idle(self) -> bool:
        """Does nothing wait and is nothing in flight?"""
        return not self._calls and not self._waiting and not self._lingering

    async def drained(self) -> None:
        """Return when nothing waits and nothing is in flight."""
        while not self.is_idle:
            self._stop_lingering()
            if self._calls:
                await asyncio.wait(self._calls)
            else:
                await asyncio.sleep(0)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._waiting += self._lingering
        self._lingering.clear()
        self._flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._waiting and self._lingering:
            self._stop_lingering()
            return
        while self._waiting and len(self._calls) < self._calls_max():
            call = self._call(self._next_batch())
            # Of no request: the batch holds many.
            task = asyncio.get_running_loop().create_task(call, context=Context())
            self._calls.add(task)
            task.add_done_callback(self._called, context=Context())

    def _calls_max(self) -> int:
        return _CALLS_IN_FLIGHT_MAX if len(self._waiting) >= _SECOND_CALL_ITEMS else 1

    def _called(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._flush()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size_bytes = 0
        while self._waiting and len(batch) < self._limits.batch_items_max:
            size_bytes += self._waiting[0].size_bytes
            if batch and size_bytes > self._limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _call(self, batch: list[_Waiting]) -> None:
        started_s = perf_counter()
        self._measures.call_items.observe(len(batch))
        for waiting in batch:
            self._measures.outbox.observe(started_s - waiting.since_s)
        try:
            encoded = _ENCODER.encode([waiting.submission for waiting in batch])
            result = _RESULT_DECODER.decode(await self.port.submit(encoded))
        except HostUnavailable:
            # One line for an outage, not one for every call that fails in it.
            level = logging.DEBUG if self._is_silent else logging.WARNING
            _LOG.log(level, "a host does not answer, outcome unknown", extra=self._about(batch))
            self._is_silent = True
            self._settle(batch, [_UNAVAILABLE] * len(batch))
            return
        except Exception:  # noqa: BLE001 - whatever failed, nobody may wait for ever
            _LOG.exception("call to a host failed", extra=self._about(batch))
            self._settle(batch, [_UNAVAILABLE] * len(batch))
            return
        finally:
            self._measures.call.observe(perf_counter() - started_s)
        self._is_silent = False
        self._settle(batch, result.replies)
        self._on_result(self._name, result)

    def _about(self, batch: list[_Waiting]) -> dict[str, object]:
        asked = request_ids([(self._name, waiting.submission) for waiting in batch])
        return {"host": self._name, "request_ids": asked, "commands": len(batch)}

    @staticmethod
    def _settle(batch: list[_Waiting], replies: list[Reply]) -> None:
        for waiting, reply in zip(batch, replies, strict=True):
            if not waiting.reply.done():
                waiting.reply.set_result(reply)


class Gateway:
    """Routes submissions and reads to the hosts that own their partitions."""

    def __init__(
        self,
        routes: Routes,
        ports: Ports,
        limits: GatewayLimits,
        *,
        on_push: Callable[[Push], None],
        on_new_incarnation: Callable[[str], None],
        measures: EdgeMeasures | None = None,
    ) -> None:
        """A gateway to the hosts that ``routes`` name and ``ports`` finds.

        ``on_push`` gets every push; ``on_new_incarnation`` gets the name of a host that was seen
        to have started anew: it has forgotten its sessions. ``measures`` are those of the edge.
        """
        self.routes = routes
        self._ports = ports
        self._limits = limits
        self._on_push = on_push
        self._on_new_incarnation = on_new_incarnation
        self._measures = measures or EdgeMeasures()
        self._reads = asyncio.Semaphore(limits.reads_in_flight_max)
        self._outboxes: dict[str, Outbox] = {}
        self._incarnations: dict[str, str] = {}
        self._running = 0
        self._homeless = 0

    @property
    def placement(self) -> Placement:
        """What follows from names alone: shards, databases, and where nonces are."""
        return self.routes.placement

    def partition_of(self, did: str) -> str:
        """The partition that holds the state of an identity now."""
        return self.routes.partition_of(did)

    async def submit(
        self, submission: Submission, size_bytes: int = 0, *, can_linger: bool = False
    ) -> Reply:
        """Run one submission: the nonce in the sender's partition, then the command.

        Where one host owns both it is one item of one call. ``size_bytes`` is roughly what the
        submission carries; ``can_linger``: its answer may come a few milliseconds later.
        """
        self._running += 1
        try:
            return await self._submit(submission, size_bytes, can_linger=can_linger)
        finally:
            self._running -= 1

    async def _submit(self, submission: Submission, size_bytes: int, *, can_linger: bool) -> Reply:
        ends_at: float | None = None
        while True:
            step = self._next_step(submission)
            if step.host is not None:
                is_last = step.submission is submission
                reply = await self._outbox(step.host).submit(
                    step.submission, size_bytes if is_last else 0, can_linger=can_linger and is_last
                )
                if is_last and reply != _NOT_OWNER:
                    return reply
                if isinstance(reply, Done):
                    submission = msgspec.structs.replace(submission, claim=None)
                    continue
                if reply != _NOT_OWNER:
                    return reply
            if ends_at is None:
                ends_at = asyncio.get_running_loop().time() + self._limits.move_wait_s_max
            if not await self._moved(submission, step, ends_at):
                return _UNAVAILABLE
            submission = self._aimed(submission)

    def _next_step(self, submission: Submission) -> _Step:
        """The nonce first, if another host owns it; nothing as long as an owner is unknown."""
        claim, partition = submission.claim, submission.partition
        host = self.routes.host_of(partition)
        if claim is None or host is None:
            return _Step(host, (partition,), submission)
        claim_host = self.routes.host_of(claim.partition)
        if claim_host == host:
            return _Step(host, (partition, claim.partition), submission)
        alone = msgspec.structs.replace(submission, command=None)
        return _Step(claim_host, (claim.partition,), alone)

    def _aimed(self, submission: Submission) -> Submission:
        """The same for the partition that its target belongs to by now."""
        if submission.command is None:
            return submission
        partition = self.partition_of(submission.target_did)
        if partition == submission.partition:
            return submission
        return msgspec.structs.replace(submission, partition=partition)

    async def _moved(self, submission: Submission, step: _Step, ends_at: float) -> bool:
        """Wait for another owner; False when there is no more time, or too many wait."""

        def is_so() -> bool:
            now = self._next_step(self._aimed(submission))
            before = (step.host, step.partitions)
            return now.host is not None and (now.host, now.partitions) != before

        return await self._changed(is_so, ends_at, asks_again=step.host is not None)

    async def _changed(
        self, is_so: Callable[[], bool], ends_at: float, *, asks_again: bool
    ) -> bool:
        left_s = ends_at - asyncio.get_running_loop().time()
        if left_s <= 0 or self._homeless >= self._limits.outbox_items_max:
            return False
        self._homeless += 1
        try:
            wait_s = min(left_s, _ASK_AGAIN_S) if asks_again else left_s
            return await self.routes.moved(is_so, seconds_max=wait_s)
        finally:
            self._homeless -= 1

    async def read(self, read: Read) -> SavedEventsPage | PublicEventsPage | Refused:
        """A page of a read model, from the host that owns the identity."""

        def owner() -> str | None:
            return self.routes.host_of(self.partition_of(read.owner_did))

        ends_at = asyncio.get_running_loop().time() + self._limits.move_wait_s_max
        while (host := owner()) is None:
            if not await self._changed(lambda: owner() is not None, ends_at, asks_again=False):
                return _UNAVAILABLE
        async with self._reads:
            try:
                (page,) = await self.port(host).read(_ENCODER.encode([read]))
            except HostUnavailable:
                return _UNAVAILABLE
        return _PAGE_DECODER.decode(page) if page else _UNAVAILABLE

    @property
    def waiting_items(self) -> int:
        """How many submissions wait for a call to their host."""
        return sum(len(outbox) for outbox in self._outboxes.values())

    def port(self, host: str) -> HostPort:
        """The port of a host."""
        return self._outbox(host).port

    def saw_incarnation(self, host: str, incarnation: str) -> None:
        """Note a host's incarnation; a new one, or none, means that it forgot its sessions."""
        known = self._incarnations.get(host, "")
        self._incarnations[host] = incarnation
        if known not in ("", incarnation):
            self._on_new_incarnation(host)

    def forget(self, host: str) -> None:
        """A host is no more: another one of its name has nothing to do with it."""
        self._incarnations.pop(host, None)

    async def drained(self) -> None:
        """Return when every command taken has been answered."""
        while self._running:
            for outbox in list(self._outboxes.values()):
                await outbox.drained()
            await asyncio.sleep(_DRAIN_POLL_S if self._homeless else 0)

    def _outbox(self, host: str) -> Outbox:
        outbox = self._outboxes.get(host)
        if outbox is None:
            if len(self._outboxes) >= _OUTBOXES_MAX:
                self._forget_idle()
            outbox = self._outboxes[host] = Outbox(
                host,
                self._ports(host),
                self._limits,
                self._measures,
                on_result=self._took_result,
            )
        return outbox

    def _forget_idle(self) -> None:
        """With dedicated hosts every DID that somebody names has an outbox of its own."""
        for host in [host for host, outbox in self._outboxes.items() if outbox.is_idle]:
            del self._outboxes[host]

    def _took_result(self, host: str, result: BatchResult) -> None:
        if result.incarnation:  # nobody is awake to have one, else
            self.saw_incarnation(host, result.incarnation)
        for push in result.pushes:
            self._on_push(push)
