"""The benchmark of a cluster on one machine: what a second node costs, and what moving shards does.

One node and two nodes take turns within one run, so that both see the same machine: where one
serves, the other is drained. Moves are made one shard each at a time, several shards at once.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from actors.core.partitioning import shard_name
from actors.placement.port import Placed
from http_edge.cli.running_mediator import ask
from http_edge.clients.load import Agents, LoadResult, Post, closed_loop
from http_edge.server.exits import Stop
from tests.bench.agents import AGENTS, decentrl_agents, didcomm_agents
from tests.bench.load import Run, connected, run_apart
from tests.bench.processes import ProcessTree, cpu_s
from tests.bench.report import Measurement, ProgressBar, Report, measured, percentile, report
from tests.bench.server import UNLIMITED
from tests.cluster.nodes import Nodes
from tests.cluster.server import EDGE, HOST, Server
from tests.database_server import DatabaseServer, database_directory

SHARDS: Final = 16
CONNECTIONS: Final = 64
_POOL: Final = 1_024
_GENERATORS: Final = 2
"""One for each node; as many on one node, so that the load is made in the same way."""
_WARM_UP: Final = Run(CONNECTIONS // _GENERATORS, 200, 3.0)
_MOVE_CONNECTIONS: Final = 8
"""Of each protocol, through each node."""
_MOVE_PAUSE_S: Final = 0.02
_LOAD_S_MAX: Final = 3_600.0
_MOVERS: Final = 4
_SPREAD_S_MAX: Final = 90.0
_MOVE_S_MAX: Final = 20
_POLL_S: Final = 0.1
_NS_PER_MS: Final = 1_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        rounds: How often one node and two nodes take turns.
        count: Messages of each protocol in each turn, at most.
        seconds_max: How long each turn may take.
        moves: Shards moved under load.
        calm_s: How long the same load runs without moves.
    """

    rounds: int
    count: int
    seconds_max: float
    moves: int
    calm_s: float


def plan(*, quick: bool, moves: int | None) -> Plan:
    """The usual plan of some minutes, or one that shows whether all of it works."""
    if quick:
        return Plan(rounds=1, count=400, seconds_max=2.0, moves=moves or 20, calm_s=1.0)
    return Plan(rounds=3, count=16_000, seconds_max=8.0, moves=moves or 1_000, calm_s=15.0)


async def run(wanted: Plan, bar: ProgressBar) -> Report:
    """Measure a cluster and a PostgreSQL server that are started for this.

    Raises:
        AssertionError, RuntimeError, ClientError, WalletError: something did not start, or refused.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="poste-")))
        database = DatabaseServer.new(stack.enter_context(database_directory()) / "one")
        await asyncio.to_thread(database.start)
        settings: dict[str, Any] = {**UNLIMITED, "shards": str(SHARDS), "hosts": "1", "edges": "1"}
        nodes = stack.enter_context(Nodes(folder, database.url, **settings))
        await asyncio.to_thread(nodes.start, 1, 2)
        cluster = Cluster(nodes, ProcessTree(database.pid))
        await cluster.spread(1, 2)
        loads: dict[str, Agents] = {
            "Decentrl messages": await stack.enter_async_context(decentrl_agents(cluster.first)),
            "forwards": await stack.enter_async_context(didcomm_agents(cluster.first)),
        }
        lines = [*await _throughput(cluster, loads, wanted, bar)]
        lines += await _moves(cluster, loads, wanted, bar)
    facts = {"log": "PostgreSQL", "nodes": 2, "hosts_and_edges_per_node": 1, "shards": SHARDS}
    return report(wanted, lines, **facts, connections=CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two nodes, and what an operator orders of them."""

    nodes: Nodes
    database: ProcessTree

    @property
    def first(self) -> Server:
        """The mediator that is asked for everything that only one is asked."""
        return self.nodes.servers[1]

    def spent_s(self) -> dict[str, float]:
        """As ``spent_s`` of all nodes."""
        return spent_s(self.nodes.servers.values(), self.database)

    async def order(self, method: str, path: str, **query: str) -> dict[str, object]:
        """What the cluster answers an operator. Raises: Stop: it does not."""
        address, token = self.first.operators()
        order = f"{path}?{urlencode(query)}" if query else path
        return await asyncio.to_thread(
            ask, method, address, order, token=token, seconds_max=_MOVE_S_MAX
        )

    async def owners(self) -> dict[str, str | None]:
        """The node of each shard. Raises: Stop."""
        listed = await self.order("GET", "/shards")
        return {place["shard"]: place["node"] for place in listed["shards"]}  # type: ignore[attr-defined]

    async def spread(self, *serving: int) -> None:
        """Have these nodes, and no others, own the shards in equal parts. Raises: TimeoutError."""
        names = {number: f"node-{number}" for number in (1, 2)}
        for number, name in names.items():
            order = "undrain" if number in serving else "drain"
            await self.order("POST", f"/shards/{order}", node=name)
        wanted = {names[number]: SHARDS // len(serving) for number in serving}
        async with asyncio.timeout(_SPREAD_S_MAX):
            while True:
                if Counter((await self.owners()).values()) == wanted:
                    return
                await asyncio.sleep(_POLL_S)


def spent_s(servers: Iterable[Server], database: ProcessTree) -> dict[str, float]:
    """CPU seconds so far of each layer of these servers, of those processes that live."""
    pids: dict[str, list[int]] = {"edges": [], "hosts": [], "serve": [], "ray": []}
    for server in servers:
        for pid, title in server.processes():
            layer = {EDGE: "edges", HOST: "hosts"}.get(title.partition(".")[0], "ray")
            pids["serve" if pid == server.pid else layer].append(pid)
    pids["database"] = database.pids()
    return {layer: cpu_s(found) for layer, found in pids.items()}


@dataclass(slots=True)
class _Turns:
    """All turns of one protocol on so many nodes."""

    results: list[LoadResult] = field(default_factory=list)
    seconds: float = 0.0
    spent_s: Counter[str] = field(default_factory=Counter)

    def measurement(self, name: str, ratio_to: Measurement | None) -> Measurement:
        """One line of all turns, with its rate as a share of another's."""
        latencies, refused = array("Q"), Counter[str]()
        for result in self.results:
            latencies.extend(result.latencies)
            refused.update(result.refused)
        figures = {
            f"{layer}_cpu_s_per_1000": spent_s / max(1, len(latencies)) * 1000
            for layer, spent_s in self.spent_s.items()
        }
        if ratio_to is not None and ratio_to.per_s:
            figures["ratio"] = len(latencies) / self.seconds / ratio_to.per_s
        return measured(name, latencies, self.seconds, figures=figures, refused=refused)


async def _throughput(
    cluster: Cluster, loads: Mapping[str, Agents], wanted: Plan, bar: ProgressBar
) -> Iterator[Measurement]:
    """Both protocols on one node and on two, in an order that turns round each time."""
    run = Run(CONNECTIONS // _GENERATORS, wanted.count // _GENERATORS, wanted.seconds_max)
    pool = list(loads["forwards"].messages(_POOL))
    for name, agents in loads.items():
        await _fire(cluster, agents, pool if name == "forwards" else None, _WARM_UP, 2)
    turns = {(name, nodes): _Turns() for name in loads for nodes in (1, 2)}
    progress, done = bar("one and two nodes", wanted.rounds * len(turns)), 0
    for number in range(wanted.rounds):
        for nodes in (1, 2) if number % 2 == 0 else (2, 1):
            await cluster.spread(*range(1, nodes + 1))
            for name, agents in loads.items():
                before = cluster.spent_s()
                bodies = pool if name == "forwards" else None
                results = await _fire(cluster, agents, bodies, run, nodes)
                turn = turns[name, nodes]
                turn.results += results
                turn.seconds += max(result.elapsed_s for result in results)
                after = cluster.spent_s()
                turn.spent_s.update({layer: after[layer] - before[layer] for layer in after})
                done += 1
                progress(done)
    await cluster.spread(1, 2)
    for agents in loads.values():
        await agents.drain(connections=CONNECTIONS // _GENERATORS)
    lines = []
    for name in loads:
        one = turns[name, 1].measurement(f"{name}, one node", None)
        lines += [one, turns[name, 2].measurement(f"{name}, two nodes", one)]
    return iter(lines)


async def _fire(
    cluster: Cluster, agents: Agents, pool: Sequence[bytes] | None, run: Run, nodes: int
) -> list[LoadResult]:
    """A run from each of two generators, through so many nodes in turn."""
    bodies = [pool or list(agents.messages(run.count)) for _ in range(_GENERATORS)]
    return await asyncio.gather(*[
        asyncio.to_thread(
            run_apart,
            agents,
            bodies[number],
            run,
            numbered=pool is not None,
            endpoint=_endpoint(cluster, agents, number % nodes + 1),
        )
        for number in range(_GENERATORS)
    ])  # fmt: skip


def _endpoint(cluster: Cluster, agents: Agents, node: int) -> str:
    """Where a node takes the messages of these agents."""
    return cluster.nodes.servers[node].url + urlsplit(agents.endpoint).path


async def _moves(
    cluster: Cluster, loads: Mapping[str, Agents], wanted: Plan, bar: ProgressBar
) -> list[Measurement]:
    """The same load without and with moves, and what was lost of it."""
    calm, calm_s = await _loaded(cluster, loads, lambda: asyncio.sleep(wanted.calm_s))
    moved = _Moved(bar("moves", wanted.moves))
    moving, moving_s = await _loaded(cluster, loads, lambda: _move(cluster, wanted.moves, moved))
    accepted = sum(result.accepted for result in (*calm, *moving))
    refused = [
        sum((Counter(one.refused) for one in some), Counter[str]()) for some in (calm, moving)
    ]
    drained = 0
    for agents in loads.values():
        drained += (await agents.drain(connections=_MOVE_CONNECTIONS)).messages
    figures = {
        "moves": len(moved.latencies_ns),
        "moves_not_done": moved.failed,
        "moves_per_s": len(moved.latencies_ns) / moving_s,
        "move_p50_ms": moved.percentile_ms(50),
        "move_p99_ms": moved.percentile_ms(99),
        "lost": max(0, accepted - drained),
        "unexpected": max(0, drained - accepted - sum(map(Counter.total, refused))),
    }
    return [
        _line("commands without moves", calm, calm_s, {}, refused[0]),
        _line("commands during moves", moving, moving_s, figures, refused[1]),
    ]


def _line(
    name: str,
    results: Sequence[LoadResult],
    seconds: float,
    figures: Mapping[str, float],
    refused: Mapping[str, int],
) -> Measurement:
    latencies = array("Q")
    for result in results:
        latencies.extend(result.latencies)
    longest = {"longest_ms": max(latencies) / _NS_PER_MS} if latencies else {}
    return measured(name, latencies, seconds, figures={**longest, **figures}, refused=refused)


async def _loaded(
    cluster: Cluster, loads: Mapping[str, Agents], meanwhile: Callable[[], object]
) -> tuple[list[LoadResult], float]:
    """What a light load of both protocols through both nodes measured meanwhile, and how long."""
    over = False

    def bodies(agents: Agents) -> Iterator[bytes]:
        for _ in numbers():
            if over:
                return
            yield from agents.messages(AGENTS)

    def unhurried(post: Post) -> Post:
        async def paused(body: bytes) -> str | None:
            refusal = await post(body)
            await asyncio.sleep(_MOVE_PAUSE_S)
            return refusal

        return paused

    async with AsyncExitStack() as stack:
        running = []
        for agents in loads.values():
            for node in (1, 2):
                endpoint = _endpoint(cluster, agents, node)
                posts = await stack.enter_async_context(
                    connected(endpoint, agents.media_type, _MOVE_CONNECTIONS)
                )
                load = closed_loop(
                    list(map(unhurried, posts)), bodies(agents), seconds_max=_LOAD_S_MAX
                )
                running.append(asyncio.create_task(load))
        started_s = time.monotonic()
        await meanwhile()  # type: ignore[misc]
        seconds = time.monotonic() - started_s
        over = True
        return list(await asyncio.gather(*running)), seconds


@dataclass(slots=True)
class _Moved:
    progress: Callable[[int], None]
    latencies_ns: list[int] = field(default_factory=list)
    failed: int = 0

    def percentile_ms(self, percent: float) -> float:
        """Of the moves that were made; 0 without any."""
        ordered = sorted(self.latencies_ns)
        return percentile(ordered, percent) / _NS_PER_MS if ordered else 0.0


async def _move(cluster: Cluster, count: int, moved: _Moved) -> None:
    """Move shards to and fro, each mover its own."""
    where, left = await cluster.owners(), iter(range(count))

    async def move(mover: int) -> None:
        own = [shard_name(index) for index in range(mover, SHARDS, _MOVERS)]
        for turn, _ in enumerate(left):
            shard = own[turn % len(own)]
            to = "node-1" if where[shard] == "node-2" else "node-2"
            began_ns = time.perf_counter_ns()
            try:
                answer = await cluster.order("POST", "/shards/move", shard=shard, to=to)
            except Stop:
                answer = {}
            if answer.get("placed") == Placed.DONE:
                where[shard] = to
                moved.latencies_ns.append(time.perf_counter_ns() - began_ns)
            else:
                moved.failed += 1
            moved.progress(len(moved.latencies_ns) + moved.failed)

    await asyncio.gather(*map(move, range(_MOVERS)))
