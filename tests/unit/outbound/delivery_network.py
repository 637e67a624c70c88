"""Delivery workers over real hosts in this process, and the queues that they empty."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from actors.core.commands import (
    Connect,
    Connection,
    DeliverMessages,
    EndAccount,
    NameSpeaker,
    PurgeQueue,
    QueryQueue,
    QueueEnvelopes,
    ReleaseLeases,
    StartLive,
)
from actors.core.replies import (
    AccountOver,
    Delivery,
    Done,
    EnvelopeQueued,
    Purged,
    QueueState,
)
from eventstore.log.event_log import WaitingQueue
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.outbound.destinations import Destinations
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.worker import DeliveryQueue
from http_edge.didcomm.unknown_dids import AgentDids
from http_edge.dids.addresses import Lookup, Permitted
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.whole_log import outbound_queues
from http_edge.settings.settings import Outbound, Settings
from tests.edge.local_host import LocalHosts
from tests.unit.outbound.agent_host import WAIT_S
from tests.unit.watched_identities import WatchedIdentities

LOOPBACK: Final = "127.0.0.1"
_KEY: Final = b"c" * 16


def on_loopback(address: str, _port: int) -> bool:
    """The one address that most tests may reach."""
    return address == LOOPBACK


def raw_key(number: int) -> bytes:
    """The raw public key number so-and-so."""
    return KeyPair.from_seed(number.to_bytes(32, "big")).public


ALICE: Final = did_key(raw_key(1))
BOB: Final = did_key(raw_key(2))


def envelopes(count: int, first: int = 0) -> list[bytes]:
    """Envelopes in their order."""
    return [b'{"number":%d}' % number for number in range(first, first + count)]


class DeliveryNetwork:
    """One log, as many edges as are asked for, and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_800_000_000_000
        self._ids = itertools.count(1)
        self._settings = Settings(data_dir=folder)
        self.hosts = LocalHosts(self._settings, clock=self.clock, new_id=self.new_id)
        self._edges: dict[str, tuple[Gateway, WatchedIdentities]] = {}
        self._pools: list[DeliveryWorkers] = []

    def clock(self) -> int:
        """Unix milliseconds."""
        return self.now_ms

    def new_id(self) -> str:
        """The next id."""
        return f"id-{next(self._ids)}"

    def identities(self, edge: str = "edge-0") -> WatchedIdentities:
        """The identities as one edge sees them."""
        if edge not in self._edges:
            gateway = self.hosts.gateway(edge)
            self._edges[edge] = gateway, WatchedIdentities(gateway)
        return self._edges[edge][1]

    async def outbound_queues(
        self, limit: int, after: WaitingQueue | None
    ) -> Sequence[WaitingQueue]:
        """The waiting queues of agents with an endpoint, as an edge finds them."""
        self.identities()
        return await outbound_queues(self._edges["edge-0"][0], limit, after)

    def workers(
        self,
        lookup: Lookup,
        *,
        edge: str = "edge-0",
        permitted: Permitted | None = on_loopback,
        fetched: AgentDids | None = None,
        wakes: str = "",
        **settings: Any,
    ) -> DeliveryWorkers:
        """Delivery workers that may reach this machine, as long as the test lasts; wake one."""
        # Failures are tried again when the test says so, and not before; and no batch ends early
        # because this machine is slow.
        outbound = Outbound.model_validate({"retry_s_min": 60, "slow_s": 60, **settings})
        destinations = Destinations(outbound, lookup=lookup, permitted=permitted)
        queue = DeliveryQueue(
            edge, outbound, self.identities(edge), destinations, self.clock, fetched
        )
        workers = DeliveryWorkers(queue)
        self._pools.append(workers)
        if wakes:
            workers.wake(wakes)
        return workers

    async def connect(
        self,
        did: str,
        endpoint: str,
        routing_keys: Sequence[str] = (),
        *,
        queued: Sequence[bytes] = (),
    ) -> None:
        """The agent connects, and names its endpoint; these envelopes wait for it."""
        said = Connection(did, "", endpoint, list(routing_keys), "didexchange/1.1", "")
        assert await self.identities().ask(did, Connect(said), _KEY, Done) == Done()
        await self.queue(did, *queued)

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

    async def give_back(self, did: str, session: str) -> None:
        """Another session ends its leases."""
        assert await self.identities().ask(did, ReleaseLeases(session), _KEY, Done) == Done()

    async def begin_to_speak(self, did: str, account: str) -> None:
        """The agent's own account ends, and its DID is to speak for another one."""
        ask, at_s = self.identities().ask, self.now_ms // 1000
        assert isinstance(await ask(did, EndAccount(did, at_s), _KEY, AccountOver), AccountOver)
        assert await ask(did, NameSpeaker(account), _KEY, Done) == Done()

    async def purge(self, did: str) -> None:
        """Remove everything that waits for the agent."""
        purged = await self.identities().ask(did, PurgeQueue(), _KEY, Purged)
        assert isinstance(purged, Purged), purged

    async def go_live(self, did: str) -> None:
        """The agent has a socket in live mode."""
        command = StartLive("edge-0", "a socket")
        state = await self.identities().ask(did, command, _KEY, QueueState)
        assert isinstance(state, QueueState), state
        since = state.version
        fetch = DeliverMessages(
            "a socket", "live", 1, 1_000_000, 30_000, after_version=since, live=True
        )
        await self.identities().ask(did, fetch, _KEY, Delivery)

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


async def sleeps(workers: DeliveryWorkers) -> None:
    """Return when a worker waits for its next try, or for what it set aside."""
    async with asyncio.timeout(WAIT_S):
        while not workers._queue.waiting:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a test and its end have logged as errors, such as the failure of a task."""
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    return [each.getMessage() for each in records if each.levelno >= logging.ERROR]


@asynccontextmanager
async def delivery_network(folder: Path) -> AsyncIterator[DeliveryNetwork]:
    """Delivery over an empty log."""
    network = DeliveryNetwork(folder)
    network.hosts.start()
    try:
        yield network
    finally:
        await network.stop()
