"""The gateway of an edge to the hosts: sends each submission to the owner of its partition.

A host that does not own the partition refuses the submission and changes nothing. The gateway then
waits until a host owns it, and sends the submission again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from actors.core.commands import GrantMediation, Register
from actors.core.partitioning import is_shard
from actors.core.refusals import Refusal
from actors.core.replies import NOT_OWNER, UNAVAILABLE, BatchResult, Done, Push, Refused, Reply
from actors.core.submissions import PAID, Read, Submission
from actors.host.port import (
    PAGE_TOO_LARGE,
    HostNotReached,
    HostPort,
    HostUnavailable,
    ReadPages,
)
from actors.host.question_threads import HISTORY, THREADS
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter
from http_edge.dispatch.outbox import SESSIONS, Outbox
from http_edge.dispatch.routes import Routes
from http_edge.dispatch.slots import TurnSlots, counted, slot_in
from http_edge.settings.settings import Limits
from http_edge.telemetry.edge_measures import EdgeMeasures

_LOG = logging.getLogger(__name__)
_OUTBOXES_MAX: Final = 4_096
_ASK_AGAIN_S: Final = 0.25
"""How soon to retry a host that did not own a shard: it may own it again before a table says so."""
_DRAIN_POLL_S: Final = 0.02
READS_WAITING_MAX: Final = 32
"""Reads of histories for one address at once, most of which wait. Counting a long history takes 10
ms, and with many tags seconds, and each read holds one of ``commands_in_flight_max`` slots, even if
its client has gone."""
_READS_OF_HOST_MAX: Final = THREADS["read"]
_SLOT_S_MAX: Final = 5.0
"""Above what a page takes at a host that works. Reads at hosts that hang last six times as long."""
_REGISTRATIONS: Final = (Register, GrantMediation)
_PAGE_TOO_LARGE: Final = Refused(Refusal.INVALID_COMMAND)
_RATE_LIMITED: Final = Refused(Refusal.RATE_LIMITED)

Ports: TypeAlias = Callable[[str], HostPort]
"""Finds the port of a host by name."""
AddressOf: TypeAlias = Callable[[], str | None]
"""The client address of the current request; None or empty if there is none, or it has no rate."""


class _Step(msgspec.Struct):
    """The next part of a submission to send, its partition, and the host that owns it."""

    host: str | None
    partition: str
    submission: Submission


class Gateway:
    """Routes submissions and reads to the hosts that own their partitions."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        routes: Routes,
        ports: Ports,
        limits: Limits,
        *,
        on_push: Callable[[Push], None],
        on_new_incarnation: Callable[[str], None],
        measures: EdgeMeasures | None = None,
        address_of: AddressOf = lambda: None,
    ) -> None:
        """A gateway to the hosts that ``routes`` name and ``ports`` finds.

        ``on_push`` gets every push. ``on_new_incarnation`` gets the name of each host whose
        incarnation has changed: it has lost its sessions. ``measures`` are those of the edge.
        The addresses that ``address_of`` returns take turns, and pay for reads of histories.
        """
        self.routes = routes
        self._ports = ports
        self._limits = limits
        self._on_push = on_push
        self._on_new_incarnation = on_new_incarnation
        self._measures = measures or EdgeMeasures()
        self._address_of = address_of
        self._reads = asyncio.Semaphore(limits.reads_in_flight_max)
        self._reads_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._history_reads = asyncio.Semaphore(limits.reads_in_flight_max // 2)
        self._histories_of: WeakValueDictionary[str, TurnSlots] = WeakValueDictionary()
        self._turns: WeakValueDictionary[tuple[str, type], asyncio.Lock] = WeakValueDictionary()
        self._histories: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()
        self._outboxes: dict[str, Outbox] = {}
        self._incarnations: dict[str, str] = {}
        self._running = 0
        self._unrouted = {False: 0, True: 0}
        self._has_registered = False

    async def submit(
        self, submission: Submission, size_bytes: int = 0, *, can_linger: bool = False
    ) -> Reply:
        """Run one submission: the nonce in the sender's partition, then the command.

        If one host owns both partitions, the submission is one item of one call. ``size_bytes`` is
        the approximate size of the submission; with ``can_linger`` its answer may come a few
        milliseconds later.
        """
        self._running += 1
        try:
            reply = await self._submit(submission, size_bytes, can_linger=can_linger)
        finally:
            self._running -= 1
        if not self._has_registered and isinstance(submission.command, _REGISTRATIONS):
            self._has_registered = not isinstance(reply, Refused)
            if self._has_registered:  # it shows operators that clients can reach this edge
                about = {"did": submission.target_did}
                _LOG.info("first registration since the start", extra=about)
        return reply

    async def _submit(self, submission: Submission, size_bytes: int, *, can_linger: bool) -> Reply:
        ends_at: float | None = None
        is_claimed = False
        while True:
            step = self._next_step(submission)
            if step.host is not None:
                is_last = step.submission is submission
                reply = await self._outbox(step.host).submit(
                    step.submission,
                    size_bytes if is_last else 0,
                    can_linger=can_linger and is_last,
                    address=self._address_of(),
                )
                if is_last and reply != NOT_OWNER:
                    return _after_claim(reply) if is_claimed else reply
                if isinstance(reply, Done):
                    is_claimed, charge = True, min(submission.charge, PAID)
                    submission = msgspec.structs.replace(submission, claim=None, charge=charge)
                    continue
                if reply != NOT_OWNER:
                    return reply
            if ends_at is None:
                ends_at = asyncio.get_running_loop().time() + self._limits.move_wait_s_max
            if not await self._wait_for_another(submission, step, ends_at):
                return UNAVAILABLE
            submission = self._aimed(submission)

    def _next_step(self, submission: Submission) -> _Step:
        """The next step: first the nonce if another host owns it; no host while one is unknown."""
        claim, partition = submission.claim, submission.partition
        host = self.routes.host_of(partition)
        if claim is None or host is None:
            return _Step(host, partition, submission)
        claim_host = self.routes.host_of(claim.partition)
        if claim_host == host:
            return _Step(host, partition, submission)
        alone = msgspec.structs.replace(submission, command=None, cost=1.0)
        return _Step(claim_host, claim.partition, alone)

    def _aimed(self, submission: Submission) -> Submission:
        """The submission, addressed to the partition that holds its target now.

        One to a shard that is not the target's stays so: it is about rows of another database.
        """
        partition = self.routes.partition_of(submission.target_did)
        if submission.command is None or partition == submission.partition:
            return submission
        shard = self.routes.placement.partition_of(submission.target_did)
        if is_shard(submission.partition) and submission.partition != shard:
            return submission
        return msgspec.structs.replace(submission, partition=partition)

    async def _wait_for_another(self, submission: Submission, step: _Step, ends_at: float) -> bool:
        """Wait until another host than that of ``step`` is next; return as ``_wait_until``."""

        def is_so() -> bool:
            now = self._next_step(self._aimed(submission))
            return (now.host, now.partition) != (step.host, step.partition)

        is_session = isinstance(submission.command, SESSIONS)
        return await self._wait_until(
            is_so, ends_at, asks_again=step.host is not None, is_session=is_session
        )

    async def _wait_until(
        self,
        is_so: Callable[[], bool],
        ends_at: float,
        *,
        asks_again: bool,
        is_session: bool = False,
    ) -> bool:
        """Return whether to try again: not if the time is up, or if too many wait already.

        Requests leave half of the slots of all requests for shards that have owners. Sessions of
        sockets hold no such slot, and count by themselves.
        """
        waiting_max = self._limits.outbox_items_max
        if not is_session:
            waiting_max = min(waiting_max, self._half_of_slots)
        left_s = ends_at - asyncio.get_running_loop().time()
        if left_s <= 0 or self._unrouted[is_session] >= waiting_max:
            return False
        self._unrouted[is_session] += 1
        try:
            wait_s = min(left_s, _ASK_AGAIN_S) if asks_again else left_s
            return await self.routes.wait_until(is_so, seconds_max=wait_s)
        finally:
            self._unrouted[is_session] -= 1

    async def read(
        self, read: Read, *, is_owing: Callable[[], bool] = lambda: False
    ) -> memoryview | Refused:
        """Read a page from the host that owns the identity, outside of its command batches.

        The read waits for its turn, and is refused as RATE_LIMITED if then the reader ``is_owing``,
        or if ``READS_WAITING_MAX`` reads of histories are under way for the address of the request,
        or for their owner if there is none. The page stays packed (see ``unpack_page``), so that
        the event loop unpacks no large page.
        """
        if not isinstance(read.where, SavedEventsFilter):
            return await self._read(read, is_owing)
        payer = self._payer_of(read)
        if self._histories[payer] >= READS_WAITING_MAX:
            return _RATE_LIMITED
        with counted(self._histories, payer):
            return await self._read(read, is_owing)

    def _payer_of(self, read: Read) -> str:
        return self._address_of() or read.owner_did

    async def _read(self, read: Read, is_owing: Callable[[], bool]) -> memoryview | Refused:
        def owner() -> str | None:
            return self.routes.host_of(self.routes.partition_of(read.owner_did))

        def another_than(host: str | None) -> Callable[[], bool]:
            return lambda: owner() != host

        ends_at = asyncio.get_running_loop().time() + self._limits.move_wait_s_max
        while True:
            host = owner()
            if host is not None:
                try:
                    return await self._read_at(host, read, is_owing) or UNAVAILABLE
                except HostNotReached:
                    pass
                except HostUnavailable:
                    return UNAVAILABLE
            asks_again = host is not None
            if not await self._wait_until(another_than(host), ends_at, asks_again=asks_again):
                return UNAVAILABLE

    async def _read_at(
        self, host: str, read: Read, is_owing: Callable[[], bool]
    ) -> memoryview | Refused:
        """Read a page at this host; empty if the host cannot read it.

        Reads leave three quarters of the slots of all requests for other hosts, if there are any,
        and those of histories half of the rest for others.

        Raises:
            HostUnavailable: the host has not answered.
        """
        parts = 8 if isinstance(read.where, SavedEventsFilter) else 4
        reads_max = max(1, self._limits.commands_in_flight_max // parts)
        if self._reading[host] >= reads_max and len(self._living) > 1:
            return UNAVAILABLE
        with counted(self._reading, host):
            async with self._turn_of(read), self._slots_at(host, read):
                if is_owing():
                    return _RATE_LIMITED
                (page,) = await self.port(host).ask(ReadPages([read]))
                return _PAGE_TOO_LARGE if page == PAGE_TOO_LARGE else page

    @asynccontextmanager
    async def _slots_at(self, host: str, read: Read) -> AsyncIterator[None]:
        """Wait for a slot among the reads of a host, then for one among the reads of all hosts.

        The second ends after ``_SLOT_S_MAX``, so that hosts that hang, however many, leave slots to
        the others. Histories take other slots at a host, in turn, and half of all at most.
        """
        async with AsyncExitStack() as slots:
            if isinstance(read.where, SavedEventsFilter):
                own = self._histories_of.setdefault(host, TurnSlots(THREADS[HISTORY]))
                await slots.enter_async_context(own.slot(self._payer_of(read), 1.0))
                await slots.enter_async_context(slot_in(self._history_reads, _SLOT_S_MAX))
            else:
                others = self._reads_of.setdefault(host, asyncio.Semaphore(_READS_OF_HOST_MAX))
                await slots.enter_async_context(others)
            await slots.enter_async_context(slot_in(self._reads, _SLOT_S_MAX))
            yield

    def _turn_of(self, read: Read) -> asyncio.Lock | nullcontext[None]:
        """The lock that lets an owner read one page of a kind at a time: pages may be large.

        Reads of public events take no lock: strangers send them, and must not wait for each other.
        """
        if isinstance(read.where, PublicEventsFilter):
            return nullcontext()
        return self._turns.setdefault((read.owner_did, type(read.where)), asyncio.Lock())

    @property
    def _half_of_slots(self) -> int:
        return max(1, self._limits.commands_in_flight_max // 2)

    @property
    def waiting_items(self) -> int:
        """How many submissions wait for a call to their host."""
        return sum(len(outbox) for outbox in self._outboxes.values())

    def port(self, host: str) -> HostPort:
        """The port of a host."""
        return self._outbox(host).port

    def saw_incarnation(self, host: str, incarnation: str) -> None:
        """Note a host's incarnation; a changed or empty one means that it has lost its sessions."""
        known = self._incarnations.get(host, "")
        self._incarnations[host] = incarnation
        if known not in ("", incarnation):
            self._on_new_incarnation(host)

    def give_up(self, host: str) -> None:
        """Stop waiting for the answers of a lost host: it may hang with its connection open."""
        if host in self._outboxes:
            self._outboxes[host].port.close()

    def forget(self, host: str) -> None:
        """Forget the incarnation of a host that has ended; its name may be used again."""
        self._incarnations.pop(host, None)

    async def drained(self) -> None:
        """Return when every submission taken has been answered."""
        while self._running:
            for outbox in list(self._outboxes.values()):
                await outbox.drained()
            await asyncio.sleep(_DRAIN_POLL_S if any(self._unrouted.values()) else 0)

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
                is_crowded=self._is_crowded,
            )
        return outbox

    def _is_crowded(self) -> bool:
        """Do submissions to slow hosts take half of the slots of all requests?

        Never with one host: there is no other to leave slots for.
        """
        slow = (outbox for outbox in self._outboxes.values() if outbox.is_slow)
        return (
            sum(outbox.unanswered for outbox in slow) >= self._half_of_slots
            and len(self._living) > 1
        )

    @property
    def _living(self) -> set[str]:
        return {*self.routes.hosts(), *self.routes.dedicated_hosts()}

    def _forget_idle(self) -> None:
        """Close the idle outboxes of dead hosts: dedicated hosts come and go, and each gets one.

        Live hosts keep their outboxes: closing a connection would end the sessions at the host.
        """
        for host in self._outboxes.keys() - self._living:
            if self._outboxes[host].is_idle:
                self._outboxes.pop(host).port.close()

    def _took_result(self, host: str, result: BatchResult) -> None:
        self.saw_incarnation(host, result.incarnation)
        for push in result.pushes:
            self._on_push(push)


def _after_claim(reply: Reply) -> Reply:
    """The reply to a command whose nonce another host has used up, which RATE_LIMITED denies."""
    if isinstance(reply, Refused) and reply.code is Refusal.RATE_LIMITED:
        return Refused(Refusal.TEMPORARILY_UNAVAILABLE, reply.retry_after_s)
    return reply
