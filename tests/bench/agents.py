"""The agents of a benchmark, and a load that keeps to a pace."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from http_edge.clients.decentrl import Identity, MediatorClient
from http_edge.clients.load.agents import Agents
from http_edge.clients.load.closed_loop import Post, no_progress
from http_edge.clients.load.decentrl_agents import DecentrlAgents, Pair
from http_edge.clients.load.didcomm_agents import DidComm2Agents, DidCommAgents
from tests.bench.report import Measurement, measured
from tests.bench.server import Costs, MeasuredServer
from tests.cluster.server import Server

AGENTS: Final = 64
DRAIN_CONNECTIONS: Final = 16
_LAST_S_MAX: Final = 10.0
_NS_PER_S: Final = 1_000_000_000


@asynccontextmanager
async def decentrl_agents(
    server: Server, count: int = AGENTS, progress: Callable[[int], None] = no_progress
) -> AsyncIterator[DecentrlAgents]:
    """So many recipients and senders of a server. Raises: ClientError."""
    async with MediatorClient(server.url) as client:
        yield await DecentrlAgents.registered(client, count, progress)


@asynccontextmanager
async def didcomm_agents(
    server: Server, count: int = AGENTS, progress: Callable[[int], None] = no_progress
) -> AsyncIterator[DidCommAgents]:
    """So many wallets of a server. Raises: WalletError."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield await DidCommAgents.registered(session, server.url, count, progress)


@asynccontextmanager
async def didcomm_2_agents(
    server: Server, count: int = AGENTS, progress: Callable[[int], None] = no_progress
) -> AsyncIterator[DidComm2Agents]:
    """So many wallets of DIDComm v2 of a server. Raises: WalletError."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield await DidComm2Agents.registered(session, server.url, count, progress)


async def unregistered(client: MediatorClient, count: int = AGENTS) -> DecentrlAgents:
    """Senders and recipients that the mediator does not know. Raises: ClientError."""
    did = (await client.document()).did
    pairs = [
        Pair(
            Identity.create(f"sender-{n}", did), client.as_(Identity.create(f"recipient-{n}", did))
        )
        for n in range(count)
    ]
    return DecentrlAgents(client, pairs)


async def drained(
    name: str,
    agents: Agents,
    server: MeasuredServer,
    *,
    expected: int,
    page_size: int = 100,
    progress: Callable[[int], None] = no_progress,
) -> Measurement:
    """Everything that waits is fetched; the latencies are those of a page with its removal.

    Raises:
        RuntimeError: it was not the number of messages that were accepted.
        ClientError, WalletError: the mediator refused.
    """
    with server.spending() as costs:
        found = await agents.drain(
            connections=DRAIN_CONNECTIONS, page_size=page_size, progress=progress
        )
    if found.messages != expected:
        raise RuntimeError(f"{expected} messages were accepted and {found.messages} fetched")
    per_1000 = costs.cpu_s / max(1, found.messages) * 1000
    return measured(
        name,
        found.latencies_ns,
        found.elapsed_s,
        figures={
            "messages": found.messages,
            "messages_per_s": found.messages / found.elapsed_s,
            "server_cpu_s_per_1000_messages": per_1000,
        },
    )


class PacedLoad:
    """So many messages in a second; the time from when each was due until it arrived."""

    def __init__(
        self, count: int, per_s: int, progress: Callable[[int], None] = no_progress
    ) -> None:
        self.latencies = array("Q")
        self.refused = 0
        self._due_ns = [0] * count
        self._per_s = per_s
        self._progress = progress
        self._all_arrived = asyncio.Event()

    def arrived(self, number: int, at_ns: int) -> None:
        """Message ``number`` arrived at this time of ``time.perf_counter_ns``."""
        self.latencies.append(at_ns - self._due_ns[number])
        self._progress(len(self.latencies))
        self._settle()

    async def send(self, posts: Sequence[Post], bodies: Iterable[bytes]) -> None:
        """Send each body when it is due, and wait for the last to arrive, for 10 s at most."""
        free: asyncio.Queue[Post] = asyncio.Queue()
        for post in posts:
            free.put_nowait(post)
        started_ns = time.perf_counter_ns()

        async def one(body: bytes, post: Post) -> None:
            self.refused += await post(body) is not None
            self._settle()
            free.put_nowait(post)

        async with asyncio.TaskGroup() as sending:
            for number, body in enumerate(bodies):
                due_ns = started_ns + number * _NS_PER_S // self._per_s
                self._due_ns[number] = due_ns
                await asyncio.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / _NS_PER_S))
                sending.create_task(one(body, await free.get()))
        try:
            async with asyncio.timeout(_LAST_S_MAX):
                await self._all_arrived.wait()
        except TimeoutError:
            return

    def _settle(self) -> None:
        if len(self.latencies) + self.refused >= len(self._due_ns):
            self._all_arrived.set()

    def measurement(self, name: str, seconds: float, costs: Costs, **figures: float) -> Measurement:
        """What became of it; ``missing`` are those that did not arrive."""
        missing = len(self._due_ns) - len(self.latencies) - self.refused
        return measured(
            name,
            self.latencies,
            seconds,
            costs=costs,
            figures={"missing": missing, **figures},
            refused={"refused": self.refused} if self.refused else {},
        )
