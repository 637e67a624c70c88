"""The edge's way to the hosts: finds the owner of each submission, and waits for one if need be.

A host that does not own a shard has done nothing: the submission waits until a host does, and is
sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from actors.core.commands import GrantMediation, Read, Register, Submission
from actors.core.partitioning import Placement
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Done, Push, Refused, Reply
from actors.host.port import (
    PAGE_TOO_LARGE,
    HostNotReached,
    HostPort,
    HostUnavailable,
    ReadPages,
)
from eventstore.log.event_log import PublicEventsFilter
from http_edge.dispatch.outbox import GatewayLimits, Outbox
from http_edge.dispatch.routes import Routes
from http_edge.telemetry.edge_measures import EdgeMeasures

_LOG = logging.getLogger(__name__)
_OUTBOXES_MAX: Final = 4_096
_ASK_AGAIN_S: Final = 0.25
"""A host that does not own a shard may own it again before a table says so: try again then."""
_DRAIN_POLL_S: Final = 0.02
_REGISTRATIONS: Final = (Register, GrantMediation)
_ENCODER: Final = msgspec.msgpack.Encoder()
_UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
_PAGE_TOO_LARGE: Final = Refused(Refusal.INVALID_COMMAND)
_NOT_OWNER: Final = Refused(Refusal.NOT_OWNER)

Ports: TypeAlias = Callable[[str], HostPort]
"""Finds the port of a host by name."""


class _Step(msgspec.Struct):
    """What is to be sent next of a submission, for which partitions, and to whom."""

    host: str | None
    partitions: tuple[str, ...]
    submission: Submission


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
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._outboxes: dict[str, Outbox] = {}
        self._incarnations: dict[str, str] = {}
        self._running = 0
        self._unrouted = 0
        self._has_registered = False

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
            reply = await self._submit(submission, size_bytes, can_linger=can_linger)
        finally:
            self._running -= 1
        if not self._has_registered and isinstance(submission.command, _REGISTRATIONS):
            self._note_registration(submission, reply)
        return reply

    def _note_registration(self, submission: Submission, reply: Reply) -> None:
        """Show operators once that clients reach this edge, and can register."""
        if not isinstance(reply, Refused):
            self._has_registered = True
            _LOG.info("first registration since the start", extra={"did": submission.target_did})

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
                    submission = msgspec.structs.replace(submission, claim=None, charge=0.0)
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
        alone = msgspec.structs.replace(submission, command=None, cost=1.0)
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
        if left_s <= 0 or self._unrouted >= self._limits.outbox_items_max:
            return False
        self._unrouted += 1
        try:
            wait_s = min(left_s, _ASK_AGAIN_S) if asks_again else left_s
            return await self.routes.moved(is_so, seconds_max=wait_s)
        finally:
            self._unrouted -= 1

    async def read(self, read: Read) -> memoryview | Refused:
        """A page that is read beside the commands, from the host that owns the identity.

        It is packed as it came (``unpack_page``): large ones are not unpacked on the event loop.
        """

        def owner() -> str | None:
            return self.routes.host_of(self.partition_of(read.owner_did))

        def another_than(host: str | None) -> Callable[[], bool]:
            return lambda: owner() not in {None, host}

        ends_at = asyncio.get_running_loop().time() + self._limits.move_wait_s_max
        page: memoryview | None = None
        while page is None:
            host = owner()
            if host is not None:
                try:
                    async with self._turn_of(read), self._reads:
                        (page,) = await self.port(host).ask(ReadPages([read]))
                    continue
                except HostNotReached:
                    pass
                except HostUnavailable:
                    return _UNAVAILABLE
            asks_again = host is not None
            if not await self._changed(another_than(host), ends_at, asks_again=asks_again):
                return _UNAVAILABLE
        if page == PAGE_TOO_LARGE:
            return _PAGE_TOO_LARGE
        return page or _UNAVAILABLE

    def _turn_of(self, read: Read) -> asyncio.Lock | nullcontext[None]:
        """Its owner's turn to read a history: one page after the other, for each may be large.

        Public events are read by strangers, of whom none waits for another.
        """
        if isinstance(read.where, PublicEventsFilter):
            return nullcontext()
        return self._turns.setdefault(read.owner_did, asyncio.Lock())

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

    def give_up(self, host: str) -> None:
        """Wait no more for what a host that was lost was asked; it may only stand still."""
        if host in self._outboxes:
            self._outboxes[host].port.close()

    def forget(self, host: str) -> None:
        """A host is no more: another one of its name has nothing to do with it."""
        self._incarnations.pop(host, None)

    async def drained(self) -> None:
        """Return when every command taken has been answered."""
        while self._running:
            for outbox in list(self._outboxes.values()):
                await outbox.drained()
            await asyncio.sleep(_DRAIN_POLL_S if self._unrouted else 0)

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
        """Dedicated hosts come and go, and each that was ever sent something has an outbox.

        Those that live keep theirs: with its connection sessions there would end.
        """
        living = {*self.routes.hosts(), *self.routes.dedicated_hosts()}
        for host in self._outboxes.keys() - living:
            if self._outboxes[host].is_idle:
                self._outboxes.pop(host).port.close()

    def _took_result(self, host: str, result: BatchResult) -> None:
        self.saw_incarnation(host, result.incarnation)
        for push in result.pushes:
            self._on_push(push)
