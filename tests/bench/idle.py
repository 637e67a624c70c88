"""What a node costs that does nothing, and what it would cost among a hundred.

Nodes are started one after the other with one PostgreSQL, and each number of them is watched for a
while. What each layer costs is a part that is there anyway and a part for each node of the cluster:
a line through what was measured, and read off where there are more.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import linear_regression
from typing import Any, Final

import msgspec

from http_edge.cli.output import ProgressBar
from tests.bench.cluster import Cluster
from tests.bench.report import Measurement, Report, report, timed, with_figures
from tests.bench.server import UNLIMITED
from tests.cluster.nodes import Nodes
from tests.database_server import DatabaseServer, database_directory

SHARDS: Final = 64
_SETTLED_S: Final = 6.0
"""Shards move, and what a start has put off is done."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes, with how many hosts each, for how long, and how many to read off."""

    nodes: tuple[int, ...]
    hosts: int = 1
    seconds: float
    among: int


def plan(*, quick: bool, nodes: Sequence[int], among: int, hosts: int = 1) -> Plan:
    """The usual plan of a few minutes, or one that shows whether all of it works."""
    if quick:
        return Plan(nodes=(1, 2), hosts=hosts, seconds=2.0, among=among)
    return Plan(nodes=tuple(nodes), hosts=hosts, seconds=30.0, among=among)


async def run(wanted: Plan, bar: ProgressBar) -> Report:
    """Measure nodes that are started for this, with one edge each.

    Raises:
        AssertionError, RuntimeError: something did not start.
    """
    progress, done = bar("nodes that do nothing", sum(wanted.nodes)), 0
    lines = []
    seen: list[Mapping[str, float]] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="poste-")))
        database = DatabaseServer.new(stack.enter_context(database_directory()) / "one")
        await asyncio.to_thread(database.start)
        settings: dict[str, Any] = {**UNLIMITED, "shards": str(SHARDS), "hosts": str(wanted.hosts)}
        nodes = stack.enter_context(Nodes(folder, database.url, **settings))
        cluster = Cluster(nodes, database)
        for count in sorted(wanted.nodes):
            await asyncio.to_thread(nodes.start, *range(len(nodes.servers) + 1, count + 1))
            await asyncio.sleep(_SETTLED_S)
            before = cluster.spent_s()
            await asyncio.sleep(wanted.seconds)
            after = cluster.spent_s()
            seen.append({name: (after[name] - before[name]) / wanted.seconds for name in after})
            connections = await asyncio.to_thread(cluster.connections)
            lines.append(
                with_figures(
                    _line(f"{count} nodes", count, seen[-1], wanted.seconds),
                    hosts_per_node=wanted.hosts,
                    **connections,
                )
            )
            done += count
            progress(done)
    counts = sorted(wanted.nodes)
    lines.append(
        _line(
            f"{wanted.among} nodes, by the line",
            wanted.among,
            among(wanted.among, counts, seen),
            0.0,
        )
    )
    return report(wanted, lines, log="PostgreSQL", shards=SHARDS)


def among(
    nodes: int, counts: Sequence[int], seen: Sequence[Mapping[str, float]]
) -> Mapping[str, float]:
    """Cores that each layer takes in all of so many nodes, by what was seen of ``counts`` nodes.

    Layers do what they do for themselves, and for each other node: two parts of what one costs, so
    all of them together cost a line times their number. The placer is one, so what ``serve`` costs
    is a line itself.
    """
    found = {}
    for layer in seen[0]:
        per_node = [cores[layer] / count for cores, count in zip(seen, counts, strict=True)]
        slope, base = linear_regression(counts, per_node) if len(counts) > 1 else (0.0, per_node[0])
        found[layer] = nodes * max(0.0, base + max(0.0, slope) * nodes)
    return found


def _line(name: str, nodes: int, cores: Mapping[str, float], seconds: float) -> Measurement:
    figures = {f"{layer}_percent_of_a_core": 100 * value / nodes for layer, value in cores.items()}
    of_a_node = sum(value for layer, value in cores.items() if layer != "database") / nodes
    return timed(name, nodes, seconds, **figures, node_percent_of_a_core=100 * of_a_node)
