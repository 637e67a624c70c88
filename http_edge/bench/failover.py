"""The benchmark of faults: how soon everybody is served again, and that nothing is lost.

Two Ray nodes with a ``poste serve`` each; the second is what is killed, since Ray's head is on the
first. People of both protocols write through both nodes all the time; after each fault everything
is fetched and held against what they heard.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from http_edge.bench.answers import unaccepted
from http_edge.bench.cluster import commands
from http_edge.bench.ending import kill_all
from http_edge.bench.layers import EDGE_TITLE, HOST_TITLE
from http_edge.bench.machine import machine
from http_edge.bench.measurement import Measurement
from http_edge.bench.own_cluster import SHARDS, OwnCluster
from http_edge.bench.own_database import OwnDatabase, database
from http_edge.bench.progress import ProgressBar
from http_edge.bench.ray_node import Node
from http_edge.bench.report import Report
from http_edge.bench.subject import Subject, document_at
from http_edge.bench.writers import Writers

_SERVED_S_MAX: Final = 90.0
_POLL_S: Final = 0.1
_FAULTS: Final = 6


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long everything is watched.

    Attributes:
        writers: People of each protocol who are written to.
        calm_s: How long they write before each fault.
        settled_s: For how long everybody must be served before a fault counts as over.
        database_away_s: How long PostgreSQL is away.
    """

    writers: int
    calm_s: float
    settled_s: float
    database_away_s: float


def plan(*, quick: bool) -> Plan:
    """The usual plan of some minutes, or one that shows whether all of it works."""
    if quick:
        return Plan(writers=4, calm_s=0.5, settled_s=1.0, database_away_s=0.5)
    return Plan(writers=16, calm_s=3.0, settled_s=5.0, database_away_s=2.0)


def run(dsn: str | None, wanted: Plan, bar: ProgressBar) -> Report:
    """Kill one part after the other of a cluster started for this.

    A database that was named is not killed: that fault is left out.

    Raises:
        RuntimeError: something did not start, or not everybody was served again.
    """
    with (
        tempfile.TemporaryDirectory(prefix="poste-") as folder,
        database(dsn) as held,
        OwnCluster(Path(folder), held) as cluster,
    ):
        cluster.start(1, 2)
        cluster.until_spread(1, 2)
        progress = bar("faults", _FAULTS)
        measurements = uvloop.run(_Faults(cluster, wanted).measured(held, progress))
    where = {
        "log": "PostgreSQL, named" if dsn else "PostgreSQL, started for this",
        "nodes": 2,
        "hosts_and_edges_per_node": 1,
        "shards": SHARDS,
    }
    return Report(machine(), {**where, **msgspec.to_builtins(wanted)}, measurements)


class _Faults:
    """The faults, each on a cluster that is whole again."""

    def __init__(self, cluster: OwnCluster, wanted: Plan) -> None:
        self._cluster = cluster
        self._wanted = wanted

    async def measured(self, held: object, progress: Callable[[int], None]) -> list[Measurement]:
        first, second = self._cluster.nodes[1], self._cluster.nodes[2]
        mediator = await asyncio.to_thread(document_at, first.target)
        self._writers = await Writers.arrive(
            [first.target, second.target],
            Subject(first.target, mediator),
            self._wanted.writers,
        )
        lines = [await self._fault("kill -9 of a host", lambda: _kill(second, HOST_TITLE))]
        progress(len(lines))
        await self._whole(2)
        lines += [await self._fault("kill -9 of an edge", lambda: self._edge(second))]
        progress(len(lines))
        await self._whole(2)
        lines += [await self._fault("kill -9 of a serve process", lambda: _kill_serve(second))]
        progress(len(lines))
        await asyncio.to_thread(self._cluster.serve, second)
        await self._whole(2)
        lines += [await self._fault("kill -9 of a whole node", lambda: _kill_node(second))]
        progress(len(lines))
        await asyncio.to_thread(self._cluster.forget, 2)
        await asyncio.to_thread(self._cluster.start, 3)
        await self._whole(3)
        if isinstance(held, OwnDatabase):
            lines += [await self._fault("kill -9 of PostgreSQL", lambda: self._outage(held))]
            progress(len(lines))
            await self._whole(3)
        lines += [
            await self._fault(
                "drain and stop of a node", lambda: self._leave(self._cluster.nodes[3])
            )
        ]
        progress(_FAULTS)
        return lines

    async def _fault(self, name: str, strike: Callable[[], object]) -> Measurement:
        """Strike while everybody writes, and wait until everybody is served for good.

        ``struck_for_s`` is how long the strike takes: that of an edge until its node answers again,
        that of the database until it is back, the drain until the node has stopped.

        Raises:
            RuntimeError: they are not after 90 s.
        """
        began_s = time.monotonic()
        async with self._writers as writers:
            await asyncio.sleep(self._wanted.calm_s)
            struck_s = time.monotonic()
            await asyncio.to_thread(strike)
            done_s = time.monotonic()
            while not self._is_over(struck_s, done_s):
                if time.monotonic() - struck_s > _SERVED_S_MAX:
                    raise RuntimeError(f"{name}: not everybody is served after 90 s")
                await asyncio.sleep(_POLL_S)
        over_s = time.monotonic()
        served_s = writers.served_again_s(struck_s)
        answers = writers.sent(began_s, over_s)
        figures = {
            "served_again_s": 0.0 if served_s is None else served_s,
            "struck_for_s": done_s - struck_s,
            "not_accepted": sum(unaccepted(answers).values()),
            **(await writers.judgement())._asdict(),
        }
        return commands(name, answers, over_s - began_s, figures)

    def _is_over(self, struck_s: float, done_s: float) -> bool:
        served_s = self._writers.served_again_s(struck_s)
        if served_s is None:
            return False
        calm_since_s = max(struck_s + served_s, done_s)
        return time.monotonic() - calm_since_s > self._wanted.settled_s

    async def _whole(self, second: int) -> None:
        """Return when both nodes serve their part again, and writers know of both."""
        await asyncio.to_thread(self._cluster.until_spread, 1, second)
        self._writers.nodes = [self._cluster.nodes[number].target for number in (1, second)]

    def _edge(self, node: Node) -> None:
        """Kill the edge of a node, and wait until the node answers again."""
        _kill(node, EDGE_TITLE)
        deadline = time.monotonic() + _SERVED_S_MAX
        while self._cluster.orders.places(node.target) is None:
            if time.monotonic() > deadline:
                raise RuntimeError("a node has no edge again after 90 s")
            time.sleep(_POLL_S)

    def _outage(self, held: OwnDatabase) -> None:
        held.kill()
        time.sleep(self._wanted.database_away_s)
        held.start()

    def _leave(self, node: Node) -> None:
        """What an operator does: move the shards away, take the node out of the proxy, stop it."""
        first = self._cluster.nodes[1].target
        self._cluster.orders.drain(first, node.name, draining=True)
        self._cluster.until_spread(1)
        self._writers.nodes = [first]
        time.sleep(self._wanted.calm_s)
        assert node.serve is not None
        node.serve.stop()


def _kill(node: Node, title: str) -> None:
    kill_all([seen.pid for seen in node.ray.processes(title)][:1])


def _kill_serve(node: Node) -> None:
    assert node.serve is not None
    node.serve.kill_first()


def _kill_node(node: Node) -> None:
    node.ray.kill()
    if node.serve is not None:
        node.serve.kill()
