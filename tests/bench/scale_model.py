"""A model of a cluster: what so many nodes and databases carry, and what breaks first. Pure.

Budgets of CPU and of the turns that appends take, put together of unit costs that were measured
(``tests.bench.scale_fit``). Each term is one line with its reason. Times are in seconds, rates in
a second; a *visit* is a command at a host, of which a command has one or two; a *call* is a batch
of an edge to a host; a *cycle* is the time from one transaction of a host to its next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

COMMIT_DELAY_S: Final = 0.02
"""The most that a transaction waits for more commands: ``limits.commit_delay_s_max``."""
LEASE_S: Final = 4.0
"""``limits.host_lease_s``."""
RENEWALS: Final = 4
"""How often a host renews its lease in that time."""
TICK_S: Final = 0.5
"""How often the placer looks who lives."""
ANSWER_S: Final = 0.4
"""How long it waits for an answer of each host, of all at once."""
RETRY_S: Final = 0.25
"""After how long an edge asks again what is for a shard without an owner."""
SHARDS_MAX: Final = 1_024
CONNECTIONS_MAX: Final = 100
"""``max_connections`` of PostgreSQL, unless it is set."""
HOST_CONNECTIONS: Final = 4
"""Of a host to its database; ``postgres.connections_max`` and its lease at most."""
EDGE_CONNECTIONS: Final = 1
"""Of an edge to each database, by which it finds hosts."""
BUSY: Final = 0.7
"""The share of a process, a core or a turn that is planned to be used."""
COMMAND_S_MAX: Final = 1.0
"""How long a command may take, from request to answer."""
_STEPS: Final = 60


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """So many nodes and databases; edges of a node, and hosts of a node for each database.

    ``cores`` and ``database_cores`` are those of a node and of a server of PostgreSQL, each
    database having a server of its own; ``disk_bytes_per_s`` is what that may write.
    """

    nodes: int
    databases: int = 1
    edges_per_node: int = 1
    hosts_per_node: int = 1
    shards: int = SHARDS_MAX
    cores: int = 16
    database_cores: int = 16
    disk_bytes_per_s: float = 500e6

    @property
    def edges(self) -> int:
        """Edge processes."""
        return self.nodes * self.edges_per_node

    @property
    def hosts_of_database(self) -> int:
        """Hosts of one database that own a shard: no more than it has shards."""
        return min(self.nodes * self.hosts_per_node, self.shards // self.databases)

    @property
    def hosts(self) -> int:
        """Hosts that own a shard."""
        return self.hosts_of_database * self.databases


class UnitCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of one kind of command cost, as measured; seconds of CPU where not said.

    Attributes:
        has_two_owners: The nonce of its sender is its own host's, the effect the target's.
        append_s: Time that one append holds the others up, whatever it carries.
        append_visit_s: The same for each visit in it.
        waiting_share: Of the commands under way, those that a transaction finds at its host.
        written_bytes: What the disk of a database writes for a command, its log included.
    """

    has_two_owners: bool
    edge_command_s: float
    edge_call_s: float
    host_visit_s: float
    host_commit_s: float
    database_command_s: float
    database_commit_s: float
    load_command_s: float
    load_call_s: float
    append_s: float
    append_visit_s: float
    waiting_share: float
    written_bytes: float = 10_547


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """How many commands share what: commits and calls of one command, visits of a transaction."""

    visits: float
    batch: float
    commits: float
    calls: float
    cycle_s: float


def visits(costs: UnitCosts, deployment: Deployment) -> float:
    """Hosts that a command passes: sender and target are of one host by chance alone."""
    return 2 - 1 / deployment.hosts if costs.has_two_owners else 1.0


def edge_host_connections(deployment: Deployment) -> int:
    """Each edge has one to each host, since any client may write to any identity."""
    return deployment.edges * deployment.hosts


def host_connections(deployment: Deployment, others: float) -> float:
    """All that hosts have accepted; ``others`` are those of one host that no edge has made."""
    return edge_host_connections(deployment) + deployment.hosts * others


def database_connections(deployment: Deployment, per_node: float) -> float:
    """Of all processes to one database; ``per_node`` is that of a node of one host and one edge."""
    of_serve = max(0.0, per_node - HOST_CONNECTIONS - EDGE_CONNECTIONS)
    of_hosts = deployment.hosts_per_node * HOST_CONNECTIONS
    return deployment.nodes * (of_hosts + deployment.edges_per_node * EDGE_CONNECTIONS + of_serve)


def append_s(costs: UnitCosts, batch: float) -> float:
    """How long the lock of appends is held by a transaction of so many visits."""
    return costs.append_s + batch * costs.append_visit_s


def cycle_s(costs: UnitCosts, deployment: Deployment, batch: float) -> float:
    """From one transaction of a host to its next, when there is always something to do."""
    decided_s = batch * costs.host_visit_s + costs.host_commit_s  # one thread does it all
    took_s = decided_s + append_s(costs, batch)  # and appends afterwards
    # It waits for more commands as long as the last one took.
    alone_s = took_s + min(took_s, COMMIT_DELAY_S)
    turns_s = deployment.hosts_of_database * append_s(costs, batch)  # appends take turns
    return max(alone_s, turns_s)


def shared_by(costs: UnitCosts, deployment: Deployment, batch: float) -> Shared:
    """What a command's part is of commits and calls, if a transaction has so many visits."""
    passed = visits(costs, deployment)
    commits = passed / batch
    # Each commit answers one call of each edge, if it has so many commands.
    calls = commits * min(deployment.edges, batch)
    cycle = cycle_s(costs, deployment, batch)
    return Shared(visits=passed, batch=batch, commits=commits, calls=calls, cycle_s=cycle)


def edge_s(costs: UnitCosts, shared: Shared) -> float:
    """CPU of an edge for a command: what it checks itself, and its part of a call."""
    return costs.edge_command_s + shared.calls * costs.edge_call_s


def host_s(costs: UnitCosts, shared: Shared) -> float:
    """CPU of hosts for a command: each visit, and its part of a commit."""
    return shared.visits * costs.host_visit_s + shared.commits * costs.host_commit_s


def database_s(costs: UnitCosts, shared: Shared) -> float:
    """CPU of the database for a command: its rows, and its part of a commit."""
    return costs.database_command_s + shared.commits * costs.database_commit_s


def load_s(costs: UnitCosts, shared: Shared) -> float:
    """CPU of what makes the load: answers that come together are read together."""
    return costs.load_command_s + shared.calls * costs.load_call_s


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """What so many clients get through that send when they were answered, and what binds them."""

    per_s: float
    bound: str
    shared: Shared


def closed_loop(
    costs: UnitCosts, deployment: Deployment, *, clients: int, cores: float
) -> ClosedLoop:
    """The load of a benchmark: everything on one machine, of which so many cores are free."""
    batch = max(1.0, costs.waiting_share * clients / deployment.hosts)
    shared = shared_by(costs, deployment, batch)
    cpu_s = (
        edge_s(costs, shared)
        + host_s(costs, shared)
        + database_s(costs, shared)
        + load_s(costs, shared)
    )
    bounds = {
        "cores": cores / cpu_s,
        "edges": deployment.edges / edge_s(costs, shared),  # a process has one interpreter
        "hosts": deployment.hosts / host_s(costs, shared),
        "waiting": deployment.hosts * batch / shared.visits / shared.cycle_s,
    }
    bound = min(bounds, key=lambda name: bounds[name])
    return ClosedLoop(per_s=bounds[bound], bound=bound, shared=shared)


def batch_at(costs: UnitCosts, deployment: Deployment, per_s: float) -> float:
    """Visits in a transaction at so many commands a second: what comes in a cycle, one at least."""
    arriving = per_s * visits(costs, deployment) / deployment.hosts
    batch = 1.0
    for _ in range(_STEPS):  # the cycle depends on the batch, and the batch on the cycle
        batch = max(1.0, arriving * cycle_s(costs, deployment, batch))
    return batch


def command_s(costs: UnitCosts, deployment: Deployment, per_s: float) -> float:
    """From request to answer: at each host a command waits for a part of a cycle, then for one."""
    shared = shared_by(costs, deployment, batch_at(costs, deployment, per_s))
    each_s = append_s(costs, shared.batch)
    turns_used = per_s / deployment.databases * shared.commits * each_s
    waited_s = shared.cycle_s
    if turns_used < 1:  # others are not always there: a queue with one server
        waited_s = min(
            waited_s, costs.host_visit_s + costs.host_commit_s + each_s / (1 - turns_used)
        )
    waits_s = shared.visits * waited_s / costs.waiting_share
    return waits_s + edge_s(costs, shared) + host_s(costs, shared)


def used(costs: UnitCosts, deployment: Deployment, per_s: float) -> Mapping[str, float]:
    """The share of each part that so many commands a second use; 1 is all of it."""
    shared = shared_by(costs, deployment, batch_at(costs, deployment, per_s))
    edges_s, hosts_s = per_s * edge_s(costs, shared), per_s * host_s(costs, shared)
    of_database = per_s / deployment.databases
    return {
        "edges": edges_s / deployment.edges,
        "hosts": hosts_s / deployment.hosts,
        "cores of nodes": (edges_s + hosts_s) / deployment.nodes / deployment.cores,
        "cores of databases": of_database * database_s(costs, shared) / deployment.database_cores,
        # What is left of a second is for the part of appends that does not grow with the load.
        "turns of appends": of_database * shared.visits * costs.append_visit_s,
        "disks of databases": of_database * costs.written_bytes / deployment.disk_bytes_per_s,
        "time of a command": BUSY * command_s(costs, deployment, per_s) / COMMAND_S_MAX,
    }


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a deployment carries, what it is bound by, and how long a command takes."""

    per_s: float
    bound: str
    command_s: float


def carried(costs: UnitCosts, deployment: Deployment) -> Carried:
    """Commands a second with which no part is used beyond ``BUSY``."""
    least, most = 0.0, 1.0
    while max(used(costs, deployment, most).values()) < BUSY:
        least, most = most, most * 2
    for _ in range(_STEPS):
        middle = (least + most) / 2
        if max(used(costs, deployment, middle).values()) < BUSY:
            least = middle
        else:
            most = middle
    shares = used(costs, deployment, most)
    bound = max(shares, key=lambda name: shares[name])
    return Carried(per_s=least, bound=bound, command_s=command_s(costs, deployment, least))


class IdleCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Cores of processes that do nothing.

    Attributes:
        edge_cores: An edge.
        host_cores: A host, which renews its lease and answers the placer.
        ray_cores: What Ray has on a node, without what it has for each host.
        ray_host_cores: That, for each host of the node.
        stand_by_cores: A ``poste serve`` that is not the placer.
        placer_cores: What the placer takes besides.
        placer_host_cores: What it takes for each host of the cluster, which it asks all the time.
    """

    edge_cores: float
    host_cores: float
    ray_cores: float
    ray_host_cores: float
    stand_by_cores: float
    placer_cores: float
    placer_host_cores: float


def placer_cores(costs: IdleCosts, deployment: Deployment) -> float:
    """The process that is the placer: it asks every host, also those that own nothing."""
    hosts = deployment.nodes * deployment.hosts_per_node * deployment.databases
    return costs.stand_by_cores + costs.placer_cores + hosts * costs.placer_host_cores


def idle_node_cores(costs: IdleCosts, deployment: Deployment) -> float:
    """What a node takes on average that does nothing, without its part of the databases."""
    hosts = deployment.hosts_per_node * deployment.databases
    of_processes = deployment.edges_per_node * costs.edge_cores + hosts * costs.host_cores
    of_ray = costs.ray_cores + hosts * costs.ray_host_cores
    stand_by = (deployment.nodes - 1) * costs.stand_by_cores  # all but the placer
    of_serve = (stand_by + placer_cores(costs, deployment)) / deployment.nodes
    return of_processes + of_ray + of_serve


def failover_s(
    costs: UnitCosts, deployment: Deployment, *, claim_s: float, was_killed: bool
) -> float:
    """From the loss of a node until others own its shards; ``claim_s`` is for one shard.

    A killed process refuses connections: one look of the placer finds that out, the next one gives
    its shards away. Of a machine that is cut off or stands still the lease has to end, which it
    renewed half a renewal ago on average.
    """
    noticed_s = TICK_S if was_killed else LEASE_S * (1 - 1 / (2 * RENEWALS)) + ANSWER_S
    looked_s = (TICK_S + RETRY_S) / 2  # until the placer looks, and an edge tries again
    of_host = -(-deployment.shards // deployment.databases // deployment.hosts_of_database)
    lost = of_host * deployment.hosts_per_node
    others = max(1, deployment.hosts_of_database - deployment.hosts_per_node)
    each = -(-lost // others)  # those of one host go to as many others as there are
    return noticed_s + looked_s + each * claim_s + min(lost, others) * costs.append_s
