"""What the model of a cluster says: held against measurements, and for larger clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from http_edge.cli.output import print_table
from tests.bench.report import Report
from tests.bench.scale_fit import CLAIM_S, Checked, Measured, checked, fit, fit_idle
from tests.bench.scale_model import (
    BUSY,
    CONNECTIONS_MAX,
    HOST_CONNECTIONS,
    Deployment,
    IdleCosts,
    UnitCosts,
    carried,
    database_connections,
    edge_host_connections,
    failover_s,
    idle_node_cores,
    placer_cores,
)

MEASURED: Final = Path(__file__).parent / "measured"
"""Reports of ``cluster`` and ``idle`` with one node, two and three; see their machine."""
ERROR_MAX: Final = 0.2
"""By what share a prediction may be wrong."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What one deployment carries and takes.

    Attributes:
        kind: Of commands.
        per_s: Commands a second, no part used beyond its share.
        bound: What breaks first: the part that is used most by then.
        command_ms: From request to answer by then, in milliseconds.
        edge_host_connections: Of all edges together.
        connections_per_database: Of all processes to one database.
        idle_node_percent: Of a core, what a node takes that does nothing.
        placer_percent: Of a core, what the placer takes while nothing happens.
        killed_s: From the kill of a node until others own its shards.
        lost_s: The same when its machine is cut off, or stands still.
        also: What has to be set before, or cannot be used.
    """

    nodes: int
    databases: int
    kind: str
    per_s: float
    bound: str
    command_ms: float
    edge_host_connections: int
    connections_per_database: float
    idle_node_percent: float
    placer_percent: float
    killed_s: float
    lost_s: float
    also: str


class Model(msgspec.Struct, frozen=True):
    """The unit costs, how far they are from what was measured, and what follows for clusters."""

    costs: Mapping[str, UnitCosts]
    idle: IdleCosts
    checked: Sequence[Checked]
    predicted: Sequence[Predicted]

    @property
    def wrong(self) -> Sequence[Checked]:
        """What was predicted with a larger error than is wanted."""
        return [one for one in self.checked if abs(one.error) > ERROR_MAX]


def read(paths: Sequence[Path]) -> Measured:
    """What reports in these files have measured.

    Raises:
        OSError: a file cannot be read.
        msgspec.DecodeError: it is no report.
        ValueError: nothing of a cluster was measured, or nothing of nodes that do nothing.
    """
    found = Measured.of(msgspec.json.decode(path.read_bytes(), type=Report) for path in paths)
    if not found.lines or not found.idle:
        raise ValueError("reports of both are needed: of cluster, and of idle")
    return found


def model(measured: Measured, deployments: Sequence[Deployment]) -> Model:
    """Everything that the model says; its costs are read off all that was measured."""
    costs, idle = fit(measured.lines), fit_idle(measured.idle)
    per_node = measured.fewest.database_connections / measured.fewest.nodes
    predicted = [
        _predicted(kind, of, deployment, idle, per_node)
        for deployment in deployments
        for kind, of in costs.items()
    ]
    return Model(costs, idle, checked(measured), predicted)


def _predicted(
    kind: str,
    costs: UnitCosts,
    deployment: Deployment,
    idle: IdleCosts,
    per_node: float,
) -> Predicted:
    most = carried(costs, deployment)
    connections = database_connections(deployment, per_node)
    return Predicted(
        nodes=deployment.nodes,
        databases=deployment.databases,
        kind=kind,
        per_s=most.per_s,
        bound=most.bound,
        command_ms=most.command_s * 1000,
        edge_host_connections=edge_host_connections(deployment),
        connections_per_database=connections,
        idle_node_percent=100 * idle_node_cores(idle, deployment),
        placer_percent=100 * placer_cores(idle, deployment),
        killed_s=failover_s(costs, deployment, claim_s=CLAIM_S, was_killed=True),
        lost_s=failover_s(costs, deployment, claim_s=CLAIM_S, was_killed=False),
        also=", ".join(_also(deployment, connections, placer_cores(idle, deployment))),
    )


def _also(deployment: Deployment, connections: float, placer: float) -> Iterator[str]:
    wanted = deployment.nodes * deployment.hosts_per_node
    if connections > CONNECTIONS_MAX - HOST_CONNECTIONS:
        yield "max_connections"
    if placer > BUSY:
        yield "the placer fills its core"
    if wanted > deployment.hosts_of_database:
        yield f"{wanted - deployment.hosts_of_database} hosts of each database without a shard"


def print_model(found: Model) -> None:
    """The tables, on stdout."""
    print_table(
        "Unit costs, microseconds",
        ("cost", *found.costs),
        [
            (name, *(f"{getattr(costs, name) * 1e6:,.1f}" for costs in found.costs.values()))
            for name in UnitCosts.__struct_fields__
            if name.endswith("_s")
        ],
    )
    print_table(
        "Predicted and measured",
        ("what", "nodes", "figure", "measured", "predicted", "error", "read off"),
        [
            (
                *(one.kind, str(one.nodes), one.figure),
                *(f"{one.measured:,.3f}", f"{one.predicted:,.3f}", f"{one.error:+.1%}"),
                "no" if one.is_held_out else "yes",
            )
            for one in found.checked
        ],
    )
    print_table(
        "Larger clusters",
        (
            *("nodes", "databases", "what", "per s", "breaks first", "ms"),
            *("edge-host", "per database", "idle %", "placer %", "killed s", "lost s", "also"),
        ),
        [
            (
                *(str(one.nodes), str(one.databases), one.kind, f"{one.per_s:,.0f}", one.bound),
                *(f"{one.command_ms:,.0f}", f"{one.edge_host_connections:,}"),
                *(f"{one.connections_per_database:,.0f}", f"{one.idle_node_percent:.1f}"),
                f"{one.placer_percent:.1f}",
                *(f"{one.killed_s:.1f}", f"{one.lost_s:.1f}", one.also),
            )
            for one in found.predicted
        ],
    )
    wrong = len(found.wrong)
    print_table(
        f"{wrong} of {len(found.checked)} predictions are wrong by more than {ERROR_MAX:.0%}",
        ("what", "nodes", "figure", "error"),
        [(one.kind, str(one.nodes), one.figure, f"{one.error:+.1%}") for one in found.wrong],
    )
