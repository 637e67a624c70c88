"""Unit costs for the model of a cluster, from what was measured, and how well it tells the rest.

Costs are read off the runs with few nodes; those with the most nodes are predicted by them and held
against what was measured (``is_held_out``). A layer's CPU for a command is a line over how many
commits, or calls, a command has its part of: its slope is what one of these costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tests.bench.report import Measurement, Report
from tests.bench.scale_model import (
    Deployment,
    IdleCosts,
    Shared,
    UnitCosts,
    closed_loop,
    database_connections,
    database_s,
    edge_s,
    failover_s,
    host_connections,
    host_s,
    idle_node_cores,
)

Point: TypeAlias = tuple[float, float]
_TWO_OWNERS: Final = "Decentrl"
"""Its commands have the nonce of a sender; forwards have none."""
_PERCENT: Final = "_percent_of_a_core"
CLAIM_S: Final = 0.008
"""For one shard: its newest 500 seals are read, and one is stored (``tests.bench identities``)."""
_SERVED_AGAIN_S: Final = {"after the kill of a node, s": 1.0, "after a host stood still, s": 4.07}
"""Of two nodes with eight shards: means of three runs of ``tests/cluster/test_nodes.py`` on the
machine of the other measurements."""
_LAYERS: Final = ("edges", "hosts", "serve", "ray")


class Load(NamedTuple):
    """One kind of command on so many nodes of one host and one edge; per command, in seconds."""

    kind: str
    nodes: int
    per_s: float
    clients: int
    cores_free: float
    spent_s: Mapping[str, float]
    visits: float
    commits: float
    calls: float
    commit_s: float


class Idle(NamedTuple):
    """So many nodes that do nothing: cores of all by layer, and connections."""

    nodes: int
    hosts_per_node: int
    cores: Mapping[str, float]
    host_connections: float
    database_connections: float


class Measured(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    lines: Sequence[Load]
    idle: Sequence[Idle]

    @property
    def fewest(self) -> Idle:
        """The fewest nodes that did nothing, with the fewest hosts."""
        return min(self.idle, key=lambda one: (one.nodes, one.hosts_per_node))

    @classmethod
    def of(cls, reports: Iterable[Report]) -> Measured:
        """What stands in reports of ``cluster`` and ``idle``."""
        lines, idle = [], []
        for report in reports:
            for found in report.measurements:
                if "commits_per_1000" in found.figures:
                    clients = int(str(report.run["connections"]))
                    lines.append(_line(found, clients))
                elif "database_connections" in found.figures:
                    idle.append(_idle(found))
        return cls(lines, idle)


def _line(found: Measurement, clients: int) -> Load:
    figures, per_1000 = found.figures, "_per_1000"
    spent = f"_cpu_s{per_1000}"
    return Load(
        kind=found.name.partition(",")[0],
        nodes=int(figures["nodes"]),
        per_s=found.per_s,
        clients=clients,
        cores_free=figures["cores_free"],
        spent_s={
            name.removesuffix(spent): value / 1000
            for name, value in figures.items()
            if name.endswith(spent)
        },
        visits=figures[f"visits{per_1000}"] / 1000,
        commits=figures[f"commits{per_1000}"] / 1000,
        calls=figures[f"calls{per_1000}"] / 1000,
        commit_s=figures["commit_ms"] / 1000,
    )


def _idle(found: Measurement) -> Idle:
    figures, nodes = found.figures, found.count
    cores = {name: figures[f"{name}{_PERCENT}"] / 100 * nodes for name in _LAYERS}
    connections = (figures[f"{name}_connections"] for name in ("host", "database"))
    return Idle(nodes, int(figures.get("hosts_per_node", 1)), cores, *connections)


def slope(groups: Iterable[Sequence[Point]]) -> float:
    """That of lines through groups of points, each with a height of its own; 0 at least."""
    covariance = variance = 0.0
    for points in groups:
        x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
        covariance += sum((x - x_mean) * (y - y_mean) for x, y in points)
        variance += sum((x - x_mean) ** 2 for x, _ in points)
    return max(0.0, covariance / variance) if variance else 0.0


def height(points: Sequence[Point], by: float) -> float:
    """Of a line with this slope through points, where it begins; 0 at least."""
    return max(0.0, fmean(y - by * x for x, y in points))


def fit(lines: Sequence[Load]) -> Mapping[str, UnitCosts]:
    """The unit costs of each kind of command."""
    kinds = {kind: [line for line in lines if line.kind == kind] for kind in
             dict.fromkeys(line.kind for line in lines)}  # fmt: skip
    edges = {kind: [(one.calls, one.spent_s["edges"]) for one in of] for kind, of in kinds.items()}
    hosts = {
        kind: [(one.commits / one.visits, one.spent_s["hosts"] / one.visits) for one in of]
        for kind, of in kinds.items()
    }
    databases = {
        kind: [(one.commits, one.spent_s["database"]) for one in of] for kind, of in kinds.items()
    }
    loads = {kind: [(one.calls, one.spent_s["load"]) for one in of] for kind, of in kinds.items()}
    # A call is a call and a commit a commit, whatever is in it.
    call_s, commit_s, stored_s, sent_s = (
        slope(points.values()) for points in (edges, hosts, databases, loads)
    )
    found = {}
    for kind, of in kinds.items():
        fewest = min(of, key=lambda line: line.nodes)
        database_command_s = height(databases[kind], stored_s)
        # What a row costs the database it costs with the lock of appends in hand.
        rows_s = fewest.visits / fewest.commits * database_command_s
        found[kind] = UnitCosts(
            has_two_owners=kind.startswith(_TWO_OWNERS),
            edge_command_s=height(edges[kind], call_s),
            edge_call_s=call_s,
            host_visit_s=height(hosts[kind], commit_s),
            host_commit_s=commit_s,
            database_command_s=database_command_s,
            database_commit_s=stored_s,
            load_command_s=height(loads[kind], sent_s),
            load_call_s=sent_s,
            append_s=max(0.0, fewest.commit_s - rows_s),
            append_visit_s=database_command_s,
            waiting_share=fmean(one.visits / one.commits * one.nodes / one.clients for one in of),
        )
    return found


def fit_idle(idle: Sequence[Idle]) -> IdleCosts:
    """What processes take that do nothing; one node with several hosts has to be among them."""
    single = [one for one in idle if one.hosts_per_node == 1]
    # One node: whatever is more with more hosts is theirs, in the placer too.
    alone = [one for one in idle if one.nodes == 1]
    ray_host, serve_host = (
        slope([[(one.hosts_per_node, one.cores[name]) for one in alone]])
        for name in ("ray", "serve")
    )
    serve = [(one.nodes, one.cores["serve"] - serve_host * one.nodes) for one in single]
    stand_by = slope([serve])
    return IdleCosts(
        edge_cores=fmean(one.cores["edges"] / one.nodes for one in single),
        host_cores=fmean(one.cores["hosts"] / one.nodes / one.hosts_per_node for one in idle),
        ray_cores=fmean(one.cores["ray"] / one.nodes - ray_host for one in single),
        ray_host_cores=ray_host,
        stand_by_cores=stand_by,
        placer_cores=height(serve, stand_by),
        placer_host_cores=serve_host,
    )


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, predicted and measured; ``is_held_out``: nothing was read off this run."""

    kind: str
    nodes: int
    figure: str
    measured: float
    predicted: float
    is_held_out: bool

    @property
    def error(self) -> float:
        """By what share the prediction is too large."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


def checked(measured: Measured) -> list[Checked]:
    """Every figure of every run beside what the model says of it."""
    most = max(line.nodes for line in measured.lines)
    few = [line for line in measured.lines if line.nodes < most] or list(measured.lines)
    costs, at_rest = fit(few), fit_idle([one for one in measured.idle if one.nodes < most])
    found: list[Checked] = []
    for line in measured.lines:
        deployment = Deployment(nodes=line.nodes)
        figures = _figures(line, costs[line.kind], deployment, at_rest)
        found += _beside(line.kind, line.nodes, figures, is_held_out=line not in few)
    for one in measured.idle:
        kind = f"idle, hosts: {one.hosts_per_node}"
        figures = _idle_figures(one, at_rest, measured.fewest)
        found += _beside(kind, one.nodes, figures, is_held_out=one.nodes >= most)
    of_any = next(iter(costs.values()))
    return [*found, *_beside("fail-over", 2, _failover_figures(of_any), is_held_out=True)]


def _failover_figures(costs: UnitCosts) -> Iterator[tuple[str, float, float]]:
    two = Deployment(nodes=2, shards=8)
    for was_killed, (name, seen) in zip((True, False), _SERVED_AGAIN_S.items(), strict=True):
        yield name, seen, failover_s(costs, two, claim_s=CLAIM_S, was_killed=was_killed)


def _beside(
    kind: str, nodes: int, figures: Iterable[tuple[str, float, float]], *, is_held_out: bool
) -> Iterator[Checked]:
    for name, seen, said in figures:
        yield Checked(
            kind=kind,
            nodes=nodes,
            figure=name,
            measured=seen,
            predicted=said,
            is_held_out=is_held_out,
        )


def _idle_figures(
    one: Idle, at_rest: IdleCosts, fewest: Idle
) -> Iterator[tuple[str, float, float]]:
    deployment = Deployment(nodes=one.nodes, hosts_per_node=one.hosts_per_node)
    cores = sum(one.cores.values()) / one.nodes
    yield "cores of a node", cores, idle_node_cores(at_rest, deployment)
    others = fewest.host_connections / fewest.nodes - fewest.nodes
    yield "connections to hosts", one.host_connections, host_connections(deployment, others)
    per_node = fewest.database_connections / fewest.nodes
    said = database_connections(deployment, per_node)
    yield "connections to the database", one.database_connections, said


def _figures(
    line: Load,
    costs: UnitCosts,
    deployment: Deployment,
    at_rest: IdleCosts,
) -> Iterator[tuple[str, float, float]]:
    """The name of each figure of a run, what was measured, and what the model says."""
    cores = line.cores_free - line.nodes * idle_node_cores(at_rest, deployment)
    said = closed_loop(costs, deployment, clients=line.clients, cores=cores)
    shared: Shared = said.shared
    yield "commands per s", line.per_s, said.per_s
    yield "visits", line.visits, shared.visits
    yield "commits", line.commits, shared.commits
    yield "calls", line.calls, shared.calls
    yield "edges, CPU us", line.spent_s["edges"] * 1e6, edge_s(costs, shared) * 1e6
    yield "hosts, CPU us", line.spent_s["hosts"] * 1e6, host_s(costs, shared) * 1e6
    yield "database, CPU us", line.spent_s["database"] * 1e6, database_s(costs, shared) * 1e6
