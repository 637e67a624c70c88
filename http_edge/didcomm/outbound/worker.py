"""Delivery of one agent's queue: query the queue, lease messages, deliver in order, remove.

A message is removed as soon as the endpoint has accepted it, while the next one is being sent. A
message that the endpoint did not accept stays in the queue:

- if the endpoint could not be reached, or does not work, the lease ends at once, and the worker
  tries again after a growing pause, with only one message until the endpoint works;
- if the endpoint refused this message (a stranger can send an agent a message that it cannot open),
  the message is set aside under a long lease, so that it does not hold up later messages;
- if it may be the endpoint that failed, or this message alone, those behind it are tried, at once
  after 404 and 410, else from the ninth try on. If the endpoint accepts one of them, the message is
  sent once more after 404 and 410, and set aside like a refused one if that fails, too; if it
  accepts none, all stay in their order, after 404 and 410 for eleven tries.

A lease of another session means that another edge delivers, or that the agent fetches its messages
itself: the worker then waits for a while, because two deliveries at once would not keep the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from cachetools import LRUCache

from actors.core.commands import (
    Connection,
    DeliverMessages,
    QueryConnection,
    QueryQueue,
    ReleaseLeases,
    RemoveMessages,
)
from actors.core.message_queue import DELIVERED
from actors.core.refusals import Refusal
from actors.core.replies import Connected, DeliveredMessage, Delivery, Done, QueueState
from actors.host.clock import Clock, new_id
from http_edge.didcomm.delivery.hand_out import packed
from http_edge.didcomm.envelopes.agent_documents import AgentDocument
from http_edge.didcomm.envelopes.versions import wrap
from http_edge.didcomm.identities import NO_ACCOUNT, Identities
from http_edge.didcomm.outbound.destinations import (
    DeliveryOutcome,
    Destination,
    Destinations,
    hostname_of,
    read_endpoint,
)
from http_edge.didcomm.outbound.retry_schedule import pause_s
from http_edge.dids.document import Fetch
from http_edge.dids.fetched import FetchedDids
from http_edge.dispatch.slots import slot_in
from http_edge.settings.settings import Outbound
from http_edge.telemetry.logs import LinePace

_LOG = logging.getLogger(__name__)
CHANNEL: Final = "outbound"
BATCH_MESSAGES_MAX: Final = 20
"""Messages leased at once. A batch ends early after ``slow_s``: other agents wait for its slot.
It ends after ``timeout_s`` at the latest, so that its last message is still leased when sent."""
_BATCH_BYTES_MAX: Final = 1_048_576
"""Bytes of messages leased at once, at least one message: the memory of one delivery."""
_MARGIN_MS: Final = 10_000
"""Added to a lease beyond the time for sending, for the calls to the host."""
QUERYING_MAX: Final = 64
"""Workers of an edge, of those that have not failed, that query their queues at once, two commands
each. A sweep starts thousands, whose queries would fill a host's outbox: it refuses others then."""
_QUERY_S_MAX: Final = 2.0
"""A host that hangs leaves the slot to agents of others; its queries end with their calls."""
_OTHERS_S_MAX: Final = 5.0
"""Longest pause while another session delivers: each look is two queries to the host."""
ASIDE_MS: Final = 600_000
"""A message that the endpoint refused is not tried again for this long."""
HURRIES_MAX: Final = 8
"""Tries in ``retry_s_max`` that messages of the agent bring forward. An agent whose endpoint fails
can send any number, and each try is work for the edge and a row of the log."""
_TRIES_MAX: Final = 8
"""Failed tries in a row, whatever began them, before the messages behind the first are tried."""
_PASSED_MAX: Final = 10_000
"""Remembered failed messages of all agents, some 2 MB."""
_REFUSALS_MAX: Final = 3
"""Completely refused batches in a row before the messages of the next are set aside."""
_ACCEPTED: Final = DeliveryOutcome.ACCEPTED
_AT_FIRST: Final = (frozenset({DeliveryOutcome.REFUSED}), frozenset({DeliveryOutcome.DECLINED}))
_PASSING: Final = (
    frozenset({DeliveryOutcome.REFUSED, DeliveryOutcome.DECLINED}),
    frozenset({DeliveryOutcome.UNAVAILABLE}),
)
"""Outcomes that refuse a message, and others after which the messages behind it are tried."""


@dataclass(frozen=True, slots=True)
class DeliveryQueue:
    """The port to the queues of agents, and the state that the workers of one edge share."""

    edge: str
    settings: Outbound
    identities: Identities
    destinations: Destinations
    clock: Clock
    fetched: FetchedDids[AgentDocument] | None = None
    """Fetcher of mediators' DID documents, if the operator allows fetching."""
    counts: Counter[str] = field(default_factory=Counter)
    failure_lines: LinePace = field(default_factory=LinePace)
    passed: LRUCache[tuple[str, str], None] = field(default_factory=lambda: LRUCache(_PASSED_MAX))
    """Agents with ids of messages that failed while their endpoint accepted others."""
    querying: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(QUERYING_MAX))
    waiting: dict[DeliveryWorker, asyncio.Task[None]] = field(default_factory=dict)
    """The tasks of workers that lease nothing and may be cancelled for another agent; those that
    have waited for longest first."""

    async def lease(self, did: str, session: str, limit: int, lease_ms: int) -> Delivery | Refusal:
        """Lease up to ``limit`` messages of the agent to ``session``."""
        command = DeliverMessages(session, CHANNEL, limit, _BATCH_BYTES_MAX, lease_ms)
        return await self.identities.ask_unprompted(did, command, Delivery)

    async def set_aside(self, did: str, session: str, ids: list[str]) -> bool:
        """Have no session hold these messages for a long time; return whether any was leased."""
        command = DeliverMessages(
            *(session, CHANNEL, len(ids), _BATCH_BYTES_MAX, ASIDE_MS),
            message_ids=ids,
            sets_aside=True,
        )
        delivery = await self.identities.ask_unprompted(did, command, Delivery)
        return not isinstance(delivery, Refusal) and bool(delivery.messages)

    async def learn(self, routing_keys: Sequence[str]) -> bool:
        """Fetch the documents of mediators among ``routing_keys``, if fetching is allowed.

        Return False if one may be fetched later: its host did not answer, or all slots are taken.
        """
        fetched = self.fetched
        if fetched is None:
            return True
        dids = {key.partition("#")[0] for key in routing_keys}
        for did in dids:
            await fetched.resolve_in_turn(did)
        return not any(isinstance(fetched.known(did), Fetch) for did in dids)

    async def release(self, did: str, session: str) -> None:
        """End the leases of a session. If this fails, they end by themselves."""
        await self.identities.ask_unprompted(did, ReleaseLeases(session), Done)


class _Round(Enum):
    """How a round ended."""

    DELIVERED = auto()
    NOTHING = auto()
    """No message waits that may be delivered now."""
    FAILED = auto()
    OTHERS = auto()
    """Another session delivers messages."""
    GONE = auto()
    """The agent has no endpoint, or the identity is no agent."""


class DeliveryWorker:
    """Delivers all waiting messages of one agent. ``run`` ends when none is left."""

    def __init__(self, did: str, queue: DeliveryQueue, *, is_in_turn: bool = False) -> None:
        """``is_in_turn``: it took another's place, and leaves it to others if its try fails."""
        self.did = did
        self._queue = queue
        timeout_s, longest_s = queue.settings.timeout_s, queue.settings.retry_s_max
        self._first_s = longest_s if is_in_turn else queue.settings.retry_s_min
        self._sending_s = min(queue.settings.slow_s, timeout_s)
        self._lease_ms = round(2 * timeout_s * 1000) + _MARGIN_MS
        self._woken = asyncio.Event()
        self._alive = asyncio.Event()
        self._ending = asyncio.Event()
        self._failures = 0
        self._hurried_s: deque[float] = deque(maxlen=HURRIES_MAX)
        """When messages of the agent brought tries forward (loop time)."""
        self._tries = 0
        """Failed tries since a message was accepted, also those of which ``_failures`` forgets."""
        self._refusing = False
        self._refusals = 0
        self._accepted: dict[str, None] = {}
        self._removing: asyncio.Task[bool] | None = None
        self._aside: list[int] = []
        """When the messages that were set aside can be tried again (Unix ms)."""
        self._patience_until_ms = 0
        self._others_s = queue.settings.retry_s_min

    @property
    def has_failed(self) -> bool:
        """Has it had a try, and the last one failed?"""
        return self._failures > 0

    def wake(self) -> None:
        """Look for new messages of the agent."""
        self._woken.set()

    def try_again(self) -> None:
        """Forget the agent's failures and try it at once, because it is alive; if not too often."""
        self._woken.set()
        self._alive.set()

    def end(self) -> None:
        """Let ``run`` end after the message that is being sent."""
        self._ending.set()
        self.try_again()

    async def run(self) -> None:
        """Deliver until no message is left."""
        try:
            while not self._ending.is_set():
                self._woken.clear()
                self._alive.clear()
                if not await self._go_on(await self._round()):
                    return
        finally:
            if self._removing is not None:
                self._removing.cancel()

    async def _go_on(self, ended: _Round) -> bool:
        """Wait as the end of a round requires; return whether there is another round."""
        settings = self._queue.settings
        others_s, self._others_s = self._others_s, settings.retry_s_min
        match ended:
            case _Round.DELIVERED:
                self._failures, self._refusing, self._first_s = 0, False, settings.retry_s_min
            case _Round.NOTHING | _Round.GONE if self._woken.is_set():
                pass  # a message or an endpoint may have come after the queries
            case _Round.NOTHING if self._aside:
                await self._sleep(self._woken, (min(self._aside) - self._queue.clock()) / 1000)
            case _Round.FAILED:
                self._failures += 1
                name, longest_s = f"{self._queue.edge} {self.did}", settings.retry_s_max
                seconds = pause_s(self._failures, name, first_s=self._first_s, longest_s=longest_s)
                may_hurry = self._may_hurry()
                await self._sleep(self._alive if may_hurry else self._ending, seconds)
                if may_hurry and self._alive.is_set():
                    self._failures = 0
                    self._hurried_s.append(asyncio.get_running_loop().time())
            case _Round.OTHERS:
                await self._sleep(self._alive, others_s)
                self._others_s = max(others_s, min(2 * others_s, _OTHERS_S_MAX))
            case _:
                return False
        return True

    def _may_hurry(self) -> bool:
        """Say whether a message of the agent may bring the next try forward."""
        since_s = asyncio.get_running_loop().time() - self._queue.settings.retry_s_max
        return len(self._hurried_s) < HURRIES_MAX or self._hurried_s[0] <= since_s

    async def _sleep(self, until: asyncio.Event, seconds: float) -> None:
        with self._may_be_stopped(), suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until.wait()

    @contextmanager
    def _may_be_stopped(self) -> Iterator[None]:
        """Let this worker be stopped within the block, where it only waits."""
        task = asyncio.current_task()
        assert task is not None, "a worker runs in a task"
        self._queue.waiting[self] = task
        try:
            yield
        finally:
            self._queue.waiting.pop(self, None)

    async def _round(self) -> _Round:
        connected, state = await self._query()
        if isinstance(connected, Refusal) or isinstance(state, Refusal):
            is_gone = any(each in (connected, state) for each in NO_ACCOUNT)
            return _Round.GONE if is_gone else _Round.FAILED
        connection = connected.connection
        if not connection.endpoint:
            return _Round.GONE
        if not await self._remove_accepted():
            return _Round.FAILED
        now_ms = self._queue.clock()
        # If the clock was set back, the host has its leases end earlier by as much.
        latest_ms = now_ms + ASIDE_MS
        self._aside = [min(end, latest_ms) for end in self._aside if end > now_ms]
        if state.live or not state.available:
            return _Round.NOTHING
        if self._others_deliver(state, now_ms):
            return _Round.OTHERS
        endpoint = read_endpoint(connection.endpoint)
        if endpoint is None:
            return self._failed("", "no endpoint")
        with self._may_be_stopped():
            is_learned = await self._queue.learn(connection.routing_keys)
        if not is_learned:
            return self._failed("", "no document of a mediator")
        destinations = self._queue.destinations
        is_quick = destinations.is_quick(endpoint, self.did)
        async with AsyncExitStack() as turn:
            # A stranger's endpoints may all be slow: what waits for them must not be all there is.
            with nullcontext() if is_quick else self._may_be_stopped():
                destination = await turn.enter_async_context(destinations.to(endpoint, self.did))
            if destination is None:
                self._queue.counts["failed"] += 1  # a try, although no message was taken for it
                return self._failed(hostname_of(endpoint), "no permitted address")
            outcome = await self._batch(destination, connection)
        if isinstance(outcome, DeliveryOutcome):
            return self._failed(hostname_of(endpoint), outcome.value)
        return outcome

    def _others_deliver(self, state: QueueState, now_ms: int, leased: int = 0) -> bool:
        """Say whether another session holds messages, for no longer yet than a delivery takes."""
        if state.messages - state.available - state.held_back - state.set_aside <= leased:
            self._patience_until_ms = 0
            return False
        latest_ms = now_ms + self._lease_ms  # by a clock that was set back as well
        self._patience_until_ms = min(self._patience_until_ms or latest_ms, latest_ms)
        return now_ms < self._patience_until_ms

    async def _batch(
        self, destination: Destination, connection: Connection
    ) -> _Round | DeliveryOutcome:
        """Lease some messages and deliver them; return a ``DeliveryOutcome`` if that failed."""
        queue, time_s = self._queue, asyncio.get_running_loop().time
        session = f"{queue.edge}/{CHANNEL}/{new_id()}"
        is_passing = self._tries >= _TRIES_MAX
        refusals, doubts = _PASSING if is_passing else _AT_FIRST
        probing = self._failures > 0 and not self._refusing and not is_passing
        leased = await self._leased(session, 1 if probing else BATCH_MESSAGES_MAX)
        if isinstance(leased, _Round):
            return leased
        send_until_s = time_s() + self._sending_s
        if not leased:
            return _Round.NOTHING
        refused: list[str] = []
        failed: list[DeliveredMessage] = []  # since the last one that was accepted
        last: DeliveryOutcome | None = None  # the outcome of the last of them
        delivered = 0
        for index, message in enumerate(leased):
            # The first one is always sent, so that a batch delivers something. The second one shows
            # whether the first one failed alone, however long that took.
            is_late = time_s() >= send_until_s and index > (1 if failed else 0)
            if self._ending.is_set() or is_late:
                break
            outcome = await self._send(destination, connection, message)
            if outcome is _ACCEPTED:
                delivered += 1
                self._accept(message.message_id)
                alone, unsent = [each.message_id for each in failed], 0
                # The endpoint works, so these failed for what they are.
                self._queue.passed.update(dict.fromkeys((self.did, each) for each in alone))
                if not is_passing:
                    alone, unsent = await self._again(destination, connection, failed, send_until_s)
                    delivered += len(failed) - len(alone) - unsent
                refused += alone
                failed, last = [], None
            elif outcome in refusals or (self.did, message.message_id) in self._queue.passed:
                refused.append(message.message_id)
            else:
                failed.append(message)
                last = outcome
                if outcome not in doubts:
                    break
        if delivered + len(refused) < len(leased):
            await self._remove_accepted()
            await self._queue.release(self.did, session)
        return await self._close_batch(session, delivered, refused, last)

    async def _leased(self, session: str, limit: int) -> list[DeliveredMessage] | _Round:
        """Lease messages for a batch, unless another session has leased some since the query."""
        time_s = asyncio.get_running_loop().time
        began_s = time_s()  # not by the clock, which may be set back
        delivery = await self._queue.lease(self.did, session, limit, self._lease_ms)
        if isinstance(delivery, Refusal) or time_s() - began_s > _MARGIN_MS / 1000:
            # After a slower answer the lease may end before the sending does.
            ended = _Round.FAILED
        elif (leased := delivery.messages) and self._others_deliver(
            delivery.state, self._queue.clock(), len(leased)
        ):
            ended = _Round.OTHERS
        else:
            return delivery.messages
        await self._queue.release(self.did, session)
        return ended

    async def _again(
        self,
        destination: Destination,
        connection: Connection,
        failed: Sequence[DeliveredMessage],
        until_s: float,
    ) -> tuple[list[str], int]:
        """Send them once more, none after ``until_s``, which the next batch begins with.

        One answer is no proof that an endpoint refuses a message: it may have been starting.
        Return the ids of those that have failed twice, and how many were not sent.
        """
        alone = list[str]()
        for number, message in enumerate(failed):
            if self._ending.is_set() or asyncio.get_running_loop().time() >= until_s:
                return alone, len(failed) - number
            if await self._send(destination, connection, message) is _ACCEPTED:
                self._accept(message.message_id)
            else:
                alone.append(message.message_id)
        return alone, 0

    async def _close_batch(
        self,
        session: str,
        delivered: int,
        refused: Sequence[str],
        failed: DeliveryOutcome | None,
    ) -> _Round | DeliveryOutcome:
        """Set refused messages aside; ``failed`` is the outcome of the last one that failed."""
        if delivered:
            self._refusals = self._tries = self._failures = 0
        if failed is not None:
            self._tries += 1
            self._refusing = self._refusing or failed is DeliveryOutcome.DECLINED
            if not delivered:
                return failed
        if refused and not delivered and self._refusals < _REFUSALS_MAX:
            # An endpoint that refuses every message is probably out of order.
            self._refusals += 1
            await self._queue.release(self.did, session)
            return DeliveryOutcome.REFUSED
        if refused:
            # Later messages can be delivered meanwhile, by other edges as well.
            until_ms = self._queue.clock() + ASIDE_MS
            if await self._queue.set_aside(self.did, session, [*refused]):
                self._aside.append(until_ms)
        if not await self._remove_accepted():
            return _Round.FAILED
        if refused and not delivered:
            self._refusing = True
            return DeliveryOutcome.REFUSED
        return failed or _Round.DELIVERED

    async def _send(
        self, destination: Destination, connection: Connection, message: DeliveredMessage
    ) -> DeliveryOutcome:
        fetched = self._queue.fetched
        payload, routing_keys = message.payload, connection.routing_keys
        known = None if fetched is None else fetched.known
        # A stranger names the keys. The first forward costs twice as much: it reads the message.
        wrapped = await packed(
            2 * len(payload) * len(routing_keys),
            lambda: wrap(payload, self.did, connection.peer_did, routing_keys, new_id, known),
        )
        outcome = DeliveryOutcome.REFUSED if wrapped is None else await destination.send(wrapped)
        self._queue.counts["delivered" if outcome is _ACCEPTED else "failed"] += 1
        return outcome

    def _failed(self, host: str, reason: str) -> _Round:
        if not self._failures:  # only the first in a row
            level = self._queue.failure_lines.level(logging.INFO, self._queue.clock())
            _LOG.log(level, "outbound delivery failed", extra={"host": host, "reason": reason})
        return _Round.FAILED

    # ---- the queue

    async def _query(self) -> tuple[Connected | Refusal, QueueState | Refusal]:
        ask = self._queue.identities.ask_unprompted
        async with AsyncExitStack() as slot:
            if not self._failures:  # pauses spread what follows a failure
                with self._may_be_stopped():
                    await slot.enter_async_context(slot_in(self._queue.querying, _QUERY_S_MAX))
            return await asyncio.gather(
                ask(self.did, QueryConnection(), Connected), ask(self.did, QueryQueue(), QueueState)
            )

    def _accept(self, message_id: str) -> None:
        self._accepted[message_id] = None
        if self._removing is None or self._removing.done():
            self._removing = asyncio.create_task(self._remove())

    async def _remove_accepted(self) -> bool:
        """Remove all accepted messages from the queue; False if that failed."""
        if self._removing is not None:
            await self._removing
        return await self._remove()

    async def _remove(self) -> bool:
        while self._accepted:
            ids = list(self._accepted)
            removal = RemoveMessages(ids, DELIVERED)
            ask = self._queue.identities.ask_unprompted
            removed = await ask(self.did, removal, QueueState)
            if isinstance(removed, Refusal) and removed not in NO_ACCOUNT:
                return False
            for message_id in ids:
                del self._accepted[message_id]
        return True
