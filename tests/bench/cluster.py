"""The benchmark of a cluster on one machine: what a second node costs, and what moving shards does.

One node, two and more take turns within one run, so that all see the same machine: those that do
not serve are drained. Moves are made one shard each at a time, several shards at once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from actors.core.partitioning import shard_name
from actors.placement.port import Placed
from http_edge.cli.output import ProgressBar
from http_edge.cli.running_mediator import ask
from http_edge.clients.load.agents import Agents
from http_edge.clients.load.closed_loop import LoadResult, Post, closed_loop, percentile
from http_edge.server.exits import Stop
from tests.bench.agents import AGENTS, decentrl_agents, didcomm_agents
from tests.bench.load import Run, connected, run_apart
from tests.bench.processes import ProcessTree, accepted_at, busy_s, children_s, cpu_s
from tests.bench.report import Measurement, Report, measured, report
from tests.bench.scraped import (
    CALLS,
    COMMIT_S,
    COMMITS,
    FRESH_S,
    SETTINGS,
    VISITS,
    Counts,
    plus,
    scraped,
)
from tests.bench.server import UNLIMITED
from tests.cluster.nodes import Nodes
from tests.cluster.server import EDGE, HOST, Server
from tests.database_server import DatabaseServer, database_directory

SHARDS: Final = 16
CONNECTIONS: Final = 64
_POOL: Final = 1_024
CORES: Final = len(os.sched_getaffinity(0))
_GENERATORS: Final = 2
_IN_WORDS: Final = {1: "one", 2: "two", 3: "three"}
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
        nodes: How many serve in a turn, one number after the other.
        rounds: How often these take turns.
        count: Messages of each protocol in each turn, at most.
        seconds_max: How long each turn may take.
        moves: Shards moved under load.
        calm_s: How long the same load runs without moves.
    """

    nodes: tuple[int, ...] = (1, 2)
    rounds: int
    count: int
    seconds_max: float
    moves: int
    calm_s: float


def plan(*, quick: bool, moves: int | None, nodes: Sequence[int] = (1, 2)) -> Plan:
    """The usual plan of some minutes, or one that shows whether all of it works."""
    if quick:
        return Plan(
            nodes=tuple(nodes),
            rounds=1,
            count=400,
            seconds_max=2.0,
            moves=20 if moves is None else moves,
            calm_s=1.0,
        )
    return Plan(
        nodes=tuple(nodes),
        rounds=3,
        count=16_000,
        seconds_max=8.0,
        moves=1_000 if moves is None else moves,
        calm_s=15.0,
    )


async def run(wanted: Plan, bar: ProgressBar) -> Report:
    """Measure a cluster and a PostgreSQL server that are started for this.

    Raises:
        AssertionError, RuntimeError, ClientError, WalletError: something did not start, or refused.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="poste-")))
        database = DatabaseServer.new(stack.enter_context(database_directory()) / "one")
        await asyncio.to_thread(database.start)
        settings: dict[str, Any] = {**UNLIMITED, **SETTINGS, "shards": str(SHARDS)}
        nodes = stack.enter_context(Nodes(folder, database.url, **settings))
        everyone = range(1, max(wanted.nodes) + 1)
        await asyncio.to_thread(nodes.start, *everyone)
        cluster = Cluster(nodes, database)
        await cluster.spread(*everyone)
        loads: dict[str, Agents] = {
            "Decentrl messages": await stack.enter_async_context(decentrl_agents(cluster.first)),
            "forwards": await stack.enter_async_context(didcomm_agents(cluster.first)),
        }
        lines = await _throughput(cluster, loads, wanted, bar)
        if wanted.moves and len(everyone) > 1:
            lines += await _moves(cluster, loads, wanted, bar)
    facts = {"log": "PostgreSQL", "hosts_and_edges_per_node": 1, "shards": SHARDS}
    return report(wanted, lines, **facts, connections=CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Some nodes, and what an operator orders of them."""

    nodes: Nodes
    database: DatabaseServer

    @property
    def first(self) -> Server:
        """The mediator that is asked for everything that only one is asked."""
        return self.nodes.servers[1]

    def spent_s(self) -> dict[str, float]:
        """As ``spent_s`` of all nodes."""
        return spent_s(self.nodes.servers.values(), ProcessTree(self.database.pid))

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
        names = {number: f"node-{number}" for number in self.nodes.servers}
        for number, name in names.items():
            order = "undrain" if number in serving else "drain"
            await self.order("POST", f"/shards/{order}", node=name)
        wanted = {names[number] for number in serving}
        async with asyncio.timeout(_SPREAD_S_MAX):
            while True:
                owned = Counter((await self.owners()).values())
                if owned.keys() == wanted and max(owned.values()) - min(owned.values()) <= 1:
                    return
                await asyncio.sleep(_POLL_S)

    def connections(self) -> dict[str, float]:
        """How many there are: to all hosts, and to the database."""
        hosts = self.database.run(
            "SELECT convert_from(address, 'UTF8'), port FROM host_leases"
            " WHERE convert_from(name, 'UTF8') LIKE 'host-%'"
        )
        # One is that of the question itself.
        ((sessions,),) = self.database.run(
            "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        return {
            "host_connections": accepted_at({(address, port) for address, port in hosts}),
            "database_connections": sessions,
        }


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
    """All turns of one protocol on so many nodes.

    ``others_s`` are CPU seconds of the machine that neither a mediator, a database nor a generator
    has spent.
    """

    nodes: int
    results: list[LoadResult] = field(default_factory=list)
    seconds: float = 0.0
    wall_s: float = 0.0
    spent_s: Counter[str] = field(default_factory=Counter)
    counted: Counts = field(default_factory=dict)
    others_s: float = 0.0

    def measurement(self, name: str, ratio_to: Measurement | None) -> Measurement:
        """One line of all turns, with its rate as a share of another's."""
        latencies, refused = array("Q"), Counter[str]()
        for result in self.results:
            latencies.extend(result.latencies)
            refused.update(result.refused)
        thousands = max(1, len(latencies)) / 1000
        load_s = sum(result.cpu_s for result in self.results)
        figures: dict[str, float] = {"nodes": self.nodes}
        figures |= {f"{layer}_cpu_s_per_1000": s / thousands for layer, s in self.spent_s.items()}
        figures |= {
            "load_cpu_s_per_1000": load_s / thousands,
            "commits_per_1000": self.counted[COMMITS] / thousands,
            "commit_ms": self.counted[COMMIT_S] / max(1, self.counted[COMMITS]) * 1000,
            "calls_per_1000": self.counted[CALLS] / thousands,
            "visits_per_1000": self.counted[VISITS] / thousands,
            "cores_free": CORES - self.others_s / max(0.001, self.wall_s),
        }
        if ratio_to is not None and ratio_to.per_s:
            figures["ratio"] = len(latencies) / self.seconds / ratio_to.per_s
        return measured(name, latencies, self.seconds, figures=figures, refused=refused)

    async def add(self, cluster: Cluster, agents: Agents, bodies: _Bodies, run: Run) -> None:
        """One more turn, on the nodes that serve."""
        servers = cluster.nodes.servers.values()
        counted = await asyncio.to_thread(scraped, servers)
        before, began_s, busy, load_s = cluster.spent_s(), time.monotonic(), busy_s(), children_s()
        results = await _fire(cluster, agents, bodies, run, self.nodes)
        after, wall_s = cluster.spent_s(), time.monotonic() - began_s
        spent = {layer: after[layer] - before[layer] for layer in after}
        ours_s = sum(spent.values()) + children_s() - load_s
        self.others_s += busy_s() - busy - ours_s
        self.results += results
        self.seconds += max(result.elapsed_s for result in results)
        self.wall_s += wall_s
        self.spent_s.update(spent)
        await asyncio.sleep(FRESH_S)
        turn = plus(await asyncio.to_thread(scraped, servers), counted, -1)
        self.counted = plus(self.counted, turn)


async def _throughput(
    cluster: Cluster, loads: Mapping[str, Agents], wanted: Plan, bar: ProgressBar
) -> list[Measurement]:
    """Both protocols on one node and on more, in an order that turns round each time."""
    run = Run(CONNECTIONS // _GENERATORS, wanted.count // _GENERATORS, wanted.seconds_max)
    pool = list(loads["forwards"].messages(_POOL))
    for name, agents in loads.items():
        bodies = _bodies(agents, pool if name == "forwards" else None, _WARM_UP)
        await _fire(cluster, agents, bodies, _WARM_UP, max(wanted.nodes))
    turns = {(name, nodes): _Turns(nodes) for name in loads for nodes in wanted.nodes}
    progress, done = bar("one node and more", wanted.rounds * len(turns)), 0
    for number in range(wanted.rounds):
        for nodes in wanted.nodes if number % 2 == 0 else wanted.nodes[::-1]:
            await cluster.spread(*range(1, nodes + 1))
            for name, agents in loads.items():
                bodies = _bodies(agents, pool if name == "forwards" else None, run)
                await turns[name, nodes].add(cluster, agents, bodies, run)
                done += 1
                progress(done)
    await cluster.spread(*cluster.nodes.servers)
    for agents in loads.values():
        await agents.drain(connections=CONNECTIONS // _GENERATORS)
    lines = []
    for name in loads:
        first = None
        for nodes in wanted.nodes:
            title = f"{name}, {_IN_WORDS.get(nodes, nodes)} node{'s' * (nodes > 1)}"
            lines.append(turns[name, nodes].measurement(title, first))
            first = first or lines[-1]
    return lines


class _Bodies(NamedTuple):
    """What each generator posts; ``are_numbered`` as in ``run_apart``."""

    each: Sequence[Sequence[bytes]]
    are_numbered: bool


def _bodies(agents: Agents, pool: Sequence[bytes] | None, run: Run) -> _Bodies:
    """Bodies for a run; with a pool, those of it."""
    each = [pool or list(agents.messages(run.count)) for _ in range(_GENERATORS)]
    return _Bodies(each, pool is not None)


async def _fire(
    cluster: Cluster, agents: Agents, bodies: _Bodies, run: Run, nodes: int
) -> list[LoadResult]:
    """A run from each of two generators, each through so many nodes in turn."""
    endpoints = [_endpoint(cluster, agents, number) for number in range(1, nodes + 1)]
    return await asyncio.gather(*[
        asyncio.to_thread(
            run_apart,
            agents,
            bodies.each[number],
            run,
            numbered=bodies.are_numbered,
            # Each begins with another one: connections need not divide evenly.
            endpoints=endpoints[number % nodes :] + endpoints[: number % nodes],
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

    def percentile_ms(self, percent: int) -> float:
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
