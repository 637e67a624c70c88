"""The rounds of one agent: look what waits, lease some of it, deliver it in order, remove it.

A message is removed as soon as the endpoint has accepted it, while the next one is on its way.
What the endpoint did not accept stays in the queue:

- it could not be reached, or does not work: the lease ends at once, and the agent is tried again
  after a pause that grows, with one message alone until it works;
- it refused this message (a stranger can send an agent what it cannot open): the message is set
  aside under a long lease, so that it does not hold up those behind it.

A lease of somebody else means that another edge delivers, or that the agent fetches its messages
itself: these rounds wait for a while then, because two at once would not keep the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeVar

from actors.clock import Clock, NewId
from actors.commands import (
    Command,
    Connection,
    DeliverMessages,
    QueryConnection,
    QueryQueue,
    ReleaseLeases,
    RemoveMessages,
)
from actors.refusals import Refusal
from actors.replies import Connected, DeliveredMessage, Delivery, Done, QueueState, Reply
from eventstore.seal import command_key
from http_edge.config import Outbound
from http_edge.didcomm.identities import Identities
from http_edge.outbound.backoff import pause_s
from http_edge.outbound.delivery import Deliveries, Destination, Outcome
from http_edge.outbound.endpoint import host_of, read_endpoint
from http_edge.outbound.wrapping import wrap

_LOG = logging.getLogger(__name__)
CHANNEL: Final = "outbound"
DELIVERED: Final = "delivered"
BATCH_MESSAGES_MAX: Final = 20
"""Messages leased at once. A batch ends early after ``timeout_s``: others wait for its place."""
_BATCH_BYTES_MAX: Final = 1_048_576
"""Bytes of messages leased at once, one message at least: what one delivery holds in memory."""
_MARGIN_MS: Final = 10_000
"""What a lease has beyond the time for sending, for the ways to the host and back."""
ASIDE_MS: Final = 600_000
"""A message that the endpoint refused is not tried again for this long."""
_REFUSALS_MAX: Final = 3
"""Batches that were refused whole before their messages are set aside."""
_R = TypeVar("_R", bound=Reply)


@dataclass(frozen=True, slots=True)
class Office:
    """What the rounds of all agents of one edge share."""

    edge: str
    settings: Outbound
    identities: Identities
    deliveries: Deliveries
    clock: Clock
    new_id: NewId
    counts: Counter[str] = field(default_factory=Counter)
    asleep: dict[Rounds, None] = field(default_factory=dict)
    """Those that wait for their next try, the longest asleep first."""


class _Round(Enum):
    """How a round ended."""

    DELIVERED = auto()
    NOTHING = auto()
    """Nothing waits that may be handed out now."""
    FAILED = auto()
    OTHERS = auto()
    """Somebody else hands out messages."""
    GONE = auto()
    """The agent has no endpoint, or is none."""


class Rounds:
    """Everything that waits for one agent, delivered. ``run`` ends when nothing is left."""

    def __init__(self, did: str, office: Office) -> None:
        """Rounds for the agent ``did``; see ``run``."""
        self.did = did
        self._office = office
        timeout_ms = round(office.settings.timeout_s * 1000)
        self._sending_ms = timeout_ms
        # The last message of a batch may begin just before the end of its time.
        self._lease_ms = 2 * timeout_ms + _MARGIN_MS
        self._woken = asyncio.Event()
        self._alive = asyncio.Event()
        self._ending = False
        self._failures = 0
        self._refusing = False
        self._refusals = 0
        self._accepted: dict[str, None] = {}
        self._removing: asyncio.Task[bool] | None = None
        self._aside: list[tuple[int, int]] = []
        """Until when (Unix ms) how many refused messages are leased."""
        self._patience_until_ms = 0

    def wake(self) -> None:
        """There may be something new for the agent."""
        self._woken.set()

    def try_again(self) -> None:
        """The agent is alive: its failures are forgotten, and it is tried at once."""
        self._woken.set()
        self._alive.set()

    def end(self) -> None:
        """Finish the message that is on its way, and ``run`` ends."""
        self._ending = True
        self.try_again()

    async def run(self) -> None:
        """Deliver until nothing is left."""
        try:
            while not self._ending:
                self._woken.clear()
                self._alive.clear()
                if not await self._go_on(await self._round()):
                    return
        finally:
            if self._removing is not None:
                self._removing.cancel()

    async def _go_on(self, ended: _Round) -> bool:
        """Wait as long as the end of a round asks for; is there another one?"""
        settings = self._office.settings
        match ended:
            case _Round.DELIVERED:
                self._failures = 0
                self._refusing = False
            case _Round.NOTHING if self._woken.is_set():
                pass  # something came after the look
            case _Round.NOTHING if self._aside:
                until_ms = min(until_ms for until_ms, _ in self._aside)
                await self._sleep(self._woken, (until_ms - self._office.clock()) / 1000)
            case _Round.FAILED:
                self._failures += 1
                seconds = pause_s(
                    self._failures,
                    f"{self._office.edge} {self.did}",
                    first_s=settings.retry_s_min,
                    longest_s=settings.retry_s_max,
                )
                await self._sleep(self._alive, seconds)
                if self._alive.is_set():
                    self._failures = 0
            case _Round.OTHERS:
                await self._sleep(self._alive, settings.retry_s_min)
            case _:
                return False
        return True

    async def _sleep(self, until: asyncio.Event, seconds: float) -> None:
        self._office.asleep[self] = None
        try:
            async with asyncio.timeout(seconds):
                await until.wait()
        except TimeoutError:
            pass
        finally:
            self._office.asleep.pop(self, None)

    async def _round(self) -> _Round:
        connected, state = await asyncio.gather(
            self._ask(QueryConnection(), Connected), self._ask(QueryQueue(), QueueState)
        )
        if isinstance(connected, Refusal) or isinstance(state, Refusal):
            is_gone = Refusal.NOT_CONNECTED in (connected, state)
            return _Round.GONE if is_gone else _Round.FAILED
        connection = connected.connection
        if not connection.endpoint:
            return _Round.GONE
        if not await self._remove_accepted():
            return _Round.FAILED
        now_ms = self._office.clock()
        self._aside = [(until_ms, count) for until_ms, count in self._aside if until_ms > now_ms]
        if state.live or not state.available:
            return _Round.NOTHING
        if self._others_deliver(state, now_ms):
            return _Round.OTHERS
        endpoint = read_endpoint(connection.endpoint)
        if endpoint is None:
            return self._failed("", "no endpoint")
        async with self._office.deliveries.to(endpoint) as destination:
            if destination is None:
                return self._failed(host_of(endpoint), "no permitted address")
            outcome = await self._batch(destination, connection)
        if isinstance(outcome, Outcome):
            return self._failed(host_of(endpoint), outcome.value)
        return outcome

    def _others_deliver(self, state: QueueState, now_ms: int) -> bool:
        """Does somebody else hold messages, and not for longer than a delivery takes?"""
        own = sum(count for _, count in self._aside)
        if state.messages - state.available <= own:
            self._patience_until_ms = 0
            return False
        self._patience_until_ms = self._patience_until_ms or now_ms + self._lease_ms
        return now_ms < self._patience_until_ms

    async def _batch(self, destination: Destination, connection: Connection) -> _Round | Outcome:
        """Lease some messages and deliver them; an ``Outcome`` is why the endpoint failed."""
        office = self._office
        session = f"{office.edge}/{CHANNEL}/{office.new_id()}"
        send_until_ms = office.clock() + self._sending_ms
        probing = self._failures > 0 and not self._refusing
        leased = await self._lease(session, 1 if probing else BATCH_MESSAGES_MAX, self._lease_ms)
        if isinstance(leased, Refusal):
            await self._release(session)
            return _Round.FAILED
        if not leased:
            return _Round.NOTHING
        refused: list[str] = []
        delivered = 0
        for message in leased:
            if self._ending or office.clock() >= send_until_ms:
                await self._release(session)
                break
            outcome = await self._send(destination, connection, message)
            if outcome is Outcome.ACCEPTED:
                delivered += 1
                self._accept(message.message_id)
            elif outcome is Outcome.REFUSED:
                refused.append(message.message_id)
            else:
                await self._remove_accepted()
                await self._release(session)
                return outcome
        return await self._close_batch(session, delivered, refused)

    async def _close_batch(
        self, session: str, delivered: int, refused: Sequence[str]
    ) -> _Round | Outcome:
        if delivered:
            self._refusals = 0
        if refused and not delivered and self._refusals < _REFUSALS_MAX:
            # An endpoint that takes nothing at all is out of order rather than particular.
            self._refusals += 1
            await self._release(session)
            return Outcome.REFUSED
        if refused:
            await self._set_aside(session, refused)
        if not await self._remove_accepted():
            return _Round.FAILED
        if refused and not delivered:
            self._refusing = True
            return Outcome.REFUSED
        return _Round.DELIVERED

    async def _send(
        self, destination: Destination, connection: Connection, message: DeliveredMessage
    ) -> Outcome:
        wrapped = wrap(message.payload, self.did, connection.routing_keys, self._office.new_id)
        outcome = Outcome.REFUSED if wrapped is None else await destination.send(wrapped)
        self._office.counts["delivered" if outcome is Outcome.ACCEPTED else "failed"] += 1
        return outcome

    def _failed(self, host: str, reason: str) -> _Round:
        if not self._failures:  # the first of a row, so that a dead endpoint fills no log
            _LOG.info("outbound delivery failed", extra={"host": host, "reason": reason})
        return _Round.FAILED

    # ---- the queue

    async def _lease(
        self, session: str, limit: int, lease_ms: int, ids: Sequence[str] | None = None
    ) -> list[DeliveredMessage] | Refusal:
        message_ids = None if ids is None else list(ids)
        command = DeliverMessages(
            session, CHANNEL, limit, _BATCH_BYTES_MAX, lease_ms, message_ids=message_ids
        )
        delivery = await self._ask(command, Delivery)
        return delivery if isinstance(delivery, Refusal) else delivery.messages

    async def _set_aside(self, session: str, refused: Sequence[str]) -> None:
        """Lease refused messages for a long time; what the session did not finish is offered."""
        until_ms = self._office.clock() + ASIDE_MS
        again = await self._lease(session, len(refused), ASIDE_MS, refused)
        if not isinstance(again, Refusal) and again:
            self._aside.append((until_ms, len(again)))

    async def _release(self, session: str) -> None:
        # If this fails the lease ends by itself.
        await self._ask(ReleaseLeases(session), Done)

    def _accept(self, message_id: str) -> None:
        self._accepted[message_id] = None
        if self._removing is None or self._removing.done():
            self._removing = asyncio.create_task(self._remove())

    async def _remove_accepted(self) -> bool:
        """Is everything removed that was accepted?"""
        if self._removing is not None:
            await self._removing
            self._removing = None
        return await self._remove()

    async def _remove(self) -> bool:
        while self._accepted:
            ids = list(self._accepted)
            removed = await self._ask(RemoveMessages(ids, DELIVERED), QueueState)
            if isinstance(removed, Refusal) and removed is not Refusal.NOT_CONNECTED:
                return False
            for message_id in ids:
                del self._accepted[message_id]
        return True

    async def _ask(self, command: Command, reply: type[_R]) -> _R | Refusal:
        key = command_key(self.did, self._office.new_id())
        return await self._office.identities.ask(self.did, command, key, reply)
