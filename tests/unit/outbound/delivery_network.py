"""Delivery workers over real hosts in this process, and the queues that they empty."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from typing_extensions import override

from actors.core.commands import (
    Command,
    Connect,
    Connection,
    DeliverMessages,
    PurgeQueue,
    QueryQueue,
    QueueEnvelopes,
    StartLive,
)
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, Done, EnvelopeQueued, Purged, QueueState, Reply
from actors.host.port import HostPort
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.outbound.destinations import Destinations
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.worker import DeliveryQueue
from http_edge.dids.addresses import Lookup
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.outbox import GatewayLimits
from http_edge.dispatch.routes import FixedRoutes
from http_edge.server.hosts import placement_of
from http_edge.settings.settings import Outbound, Settings
from tests.edge.local_host import LocalHosts
from tests.unit.outbound.agent_host import WAIT_S

LOOPBACK: Final = "127.0.0.1"
_KEY: Final = b"c" * 16
_LIMITS: Final = GatewayLimits(
    outbox_items_max=10_000,
    batch_items_max=100,
    batch_bytes_max=10_000_000,
    reads_in_flight_max=2,
    move_wait_s_max=1,
)
_R = TypeVar("_R", bound=Reply)


def raw_key(number: int) -> bytes:
    """The raw public key number so-and-so."""
    return KeyPair.from_seed(number.to_bytes(32, "big")).public


ALICE: Final = did_key(raw_key(1))
BOB: Final = did_key(raw_key(2))


def envelopes(count: int, first: int = 0) -> list[bytes]:
    """Envelopes in their order."""
    return [b'{"number":%d}' % number for number in range(first, first + count)]


class Watched(Identities):
    """Identities that tell which commands were answered, and can be out of reach for some."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._answered = asyncio.Condition()
        self.counts: Counter[type[Command]] = Counter()
        self.seen: list[Command] = []
        self.lost: set[type[Command]] = set()
        self.before_answer: dict[type[Command], Callable[[], Awaitable[None]]] = {}
        """What happens between the next answer to a kind of command and its arrival."""

    @override
    async def ask(
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        *,
        can_linger: bool = False,
        by_owner: bool = False,
        by_mediator: bool = False,
    ) -> _R | Refusal:
        self.seen.append(command)
        if type(command) in self.lost:
            answer: _R | Refusal = Refusal.TEMPORARILY_UNAVAILABLE
        else:
            answer = await super().ask(
                target,
                command,
                key,
                reply,
                can_linger=can_linger,
                by_owner=by_owner,
                by_mediator=by_mediator,
            )
        if type(command) in self.before_answer:
            await self.before_answer.pop(type(command))()
        self.counts[type(command)] += 1
        async with self._answered:
            self._answered.notify_all()
        return answer

    async def answered(self, kind: type[Command], times: int = 1) -> None:
        """Return when so many commands of a kind have been answered."""
        async with asyncio.timeout(WAIT_S), self._answered:
            await self._answered.wait_for(lambda: self.counts[kind] >= times)


class DeliveryNetwork:
    """One log, as many edges as are asked for, and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_800_000_000_000
        self._ids = itertools.count(1)
        self._settings = Settings(data_dir=folder)
        self.hosts = LocalHosts(self._settings, clock=self.clock, new_id=self.new_id)
        self._edges: dict[str, tuple[Gateway, Watched]] = {}
        self._pools: list[DeliveryWorkers] = []

    def clock(self) -> int:
        """Unix milliseconds."""
        return self.now_ms

    def new_id(self) -> str:
        """The next id."""
        return f"id-{next(self._ids)}"

    def identities(self, edge: str = "edge-0") -> Watched:
        """The identities as one edge sees them."""
        if edge not in self._edges:
            ports: dict[str, HostPort] = {}
            find = self.hosts.ports_of(edge)
            gateway = Gateway(
                FixedRoutes(placement_of(self._settings)),
                lambda host: ports.setdefault(host, find(host)),
                _LIMITS,
                on_push=lambda _: None,
                on_new_incarnation=lambda _: None,
            )
            self._edges[edge] = gateway, Watched(gateway)
        return self._edges[edge][1]

    def workers(
        self,
        lookup: Lookup,
        *,
        edge: str = "edge-0",
        permitted: Callable[[str], bool] | None = LOOPBACK.__eq__,
        **settings: Any,
    ) -> DeliveryWorkers:
        """Delivery workers that may reach this machine, for as long as the test lasts."""
        # Failures are tried again when the test says so, and not before.
        outbound = Outbound.model_validate({"retry_s_min": 60, **settings})
        destinations = Destinations(outbound, lookup=lookup, permitted=permitted)
        queue = DeliveryQueue(
            edge, outbound, self.identities(edge), destinations, self.clock, self.new_id
        )
        workers = DeliveryWorkers(queue)
        self._pools.append(workers)
        return workers

    async def connect(self, did: str, endpoint: str, routing_keys: Sequence[str] = ()) -> None:
        """The agent connects, and names its endpoint."""
        said = Connection(did, "", endpoint, list(routing_keys), "didexchange/1.1", "")
        assert await self.identities().ask(did, Connect(said), _KEY, Done) == Done()

    async def queue(self, did: str, *envelopes: bytes) -> None:
        """Let envelopes wait for the agent."""
        for envelope in envelopes:
            queued = await self.identities().ask(
                did, QueueEnvelopes("", [envelope]), _KEY, EnvelopeQueued
            )
            assert isinstance(queued, EnvelopeQueued), queued

    async def delay(self, did: str, envelope: bytes, delay_ms: int) -> None:
        """Let an envelope wait that is not to be handed out yet."""
        command = QueueEnvelopes("", [envelope], delay_ms=delay_ms)
        queued = await self.identities().ask(did, command, b"delayed".ljust(16), EnvelopeQueued)
        assert isinstance(queued, EnvelopeQueued), queued

    async def state(self, did: str) -> QueueState:
        """How the agent's queue stands."""
        state = await self.identities().ask(did, QueryQueue(), _KEY, QueueState)
        assert isinstance(state, QueueState), state
        return state

    async def waiting(self, did: str) -> int:
        """How many envelopes wait for the agent, on their way or not."""
        return (await self.state(did)).messages

    async def offers(self, did: str) -> None:
        """Return when something can be handed out: the host ends leases between its batches."""
        async with asyncio.timeout(WAIT_S):
            while not (await self.state(did)).available:
                pass

    async def lease(self, did: str, session: str, limit: int) -> None:
        """Another session fetches messages."""
        command = DeliverMessages(session, "pickup", limit, 1_000_000, 30_000)
        delivery = await self.identities().ask(did, command, _KEY, Delivery)
        assert isinstance(delivery, Delivery), delivery
        assert len(delivery.messages) == limit

    async def purge(self, did: str) -> None:
        """Remove everything that waits for the agent."""
        purged = await self.identities().ask(did, PurgeQueue(), _KEY, Purged)
        assert isinstance(purged, Purged), purged

    async def go_live(self, did: str) -> None:
        """The agent has a socket in live mode."""
        command = StartLive("edge-0", "a socket")
        state = await self.identities().ask(did, command, _KEY, QueueState)
        assert isinstance(state, QueueState), state

    async def stop(self) -> None:
        """End all workers, then the hosts."""
        for workers in self._pools:
            await asyncio.wait_for(workers.close(WAIT_S), WAIT_S)
        for gateway, _ in self._edges.values():
            await asyncio.wait_for(gateway.drained(), WAIT_S)
        await self.hosts.stop()


async def idle(workers: DeliveryWorkers) -> None:
    """Return when no worker runs."""
    async with asyncio.timeout(WAIT_S):
        while workers._tasks:
            await asyncio.wait(workers._tasks)
    assert workers.figures()["agents"] == 0


@asynccontextmanager
async def delivery_network(folder: Path) -> AsyncIterator[DeliveryNetwork]:
    """Delivery over an empty log."""
    network = DeliveryNetwork(folder)
    network.hosts.start()
    try:
        yield network
    finally:
        await network.stop()
