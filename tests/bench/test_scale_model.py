"""Each term of the model of a cluster, and how far it is from what was measured."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from tests.bench.__main__ import bench
from tests.bench.report import Measurement, Report
from tests.bench.scale_fit import Idle, Measured, fit, fit_idle, height, slope
from tests.bench.scale_model import (
    ANSWER_S,
    BUSY,
    COMMAND_S_MAX,
    COMMIT_DELAY_S,
    LEASE_S,
    Deployment,
    IdleCosts,
    UnitCosts,
    batch_at,
    carried,
    closed_loop,
    command_s,
    cycle_s,
    database_connections,
    database_s,
    edge_host_connections,
    edge_s,
    failover_s,
    host_connections,
    host_s,
    idle_node_cores,
    load_s,
    placer_cores,
    shared_by,
    used,
    visits,
)
from tests.bench.scale_report import ERROR_MAX, MEASURED, model, read

FORWARDS = UnitCosts(
    has_two_owners=False,
    edge_command_s=200e-6,
    edge_call_s=500e-6,
    host_visit_s=50e-6,
    host_commit_s=1e-3,
    database_command_s=40e-6,
    database_commit_s=800e-6,
    load_command_s=20e-6,
    load_call_s=50e-6,
    append_s=2e-3,
    append_visit_s=40e-6,
    waiting_share=0.6,
)
MESSAGES = msgspec.structs.replace(FORWARDS, has_two_owners=True)
TEN = Deployment(nodes=10, edges_per_node=2)
ONE = Deployment(nodes=1)


def without(costs: UnitCosts, *names: str) -> UnitCosts:
    """The same, with some that cost nothing."""
    return msgspec.structs.replace(costs, **dict.fromkeys(names, 0.0))


def test_connections_grow_with_edges_times_hosts() -> None:
    assert edge_host_connections(TEN) == 20 * 10
    assert edge_host_connections(msgspec.structs.replace(TEN, nodes=20)) == 4 * 20 * 10
    assert edge_host_connections(msgspec.structs.replace(TEN, databases=4)) == 20 * 40
    assert host_connections(TEN, 1) == 20 * 10 + 10
    # No host has a connection that owns nothing.
    assert edge_host_connections(Deployment(nodes=100, databases=16)) == 100 * 64 * 16
    assert database_connections(ONE, 7) == 7
    assert database_connections(Deployment(nodes=5, edges_per_node=3, hosts_per_node=2), 7) == 65


def test_a_command_passes_two_hosts_unless_chance_has_it_that_they_are_one() -> None:
    assert visits(FORWARDS, TEN) == visits(MESSAGES, ONE) == 1
    assert visits(MESSAGES, Deployment(nodes=2)) == 1.5
    assert visits(MESSAGES, TEN) == pytest.approx(1.9)


def test_a_cycle_is_that_of_the_host_or_the_turns_of_all_hosts_of_its_database() -> None:
    took_s = 2e-3 + 10 * 40e-6 + 10 * 50e-6 + 1e-3
    assert cycle_s(FORWARDS, ONE, 10) == pytest.approx(2 * took_s)
    long_s = 2e-3 + 400 * 40e-6 + 400 * 50e-6 + 1e-3
    assert cycle_s(FORWARDS, ONE, 400) == pytest.approx(long_s + COMMIT_DELAY_S)
    assert cycle_s(FORWARDS, TEN, 10) == pytest.approx(10 * 2.4e-3)
    # A node has a host for each database: with more of these the turns are no shorter.
    assert cycle_s(FORWARDS, Deployment(nodes=10, databases=10), 10) == pytest.approx(24e-3)
    assert cycle_s(FORWARDS, Deployment(nodes=2), 10) == pytest.approx(2 * took_s)


def test_what_is_shared_costs_each_command_a_part() -> None:
    shared = shared_by(MESSAGES, Deployment(nodes=2), 10)
    assert (shared.visits, shared.commits, shared.calls) == (1.5, 0.15, 0.3)
    assert edge_s(MESSAGES, shared) == pytest.approx(200e-6 + 0.3 * 500e-6)
    assert host_s(MESSAGES, shared) == pytest.approx(1.5 * 50e-6 + 0.15e-3)
    assert database_s(MESSAGES, shared) == pytest.approx(40e-6 + 0.15 * 800e-6)
    assert load_s(MESSAGES, shared) == pytest.approx(20e-6 + 0.3 * 50e-6)
    # A call for each command at most, however many edges there are.
    many = shared_by(FORWARDS, Deployment(nodes=100), 4)
    assert many.calls == 1


def test_a_closed_loop_is_bound_by_what_is_least() -> None:
    waits = closed_loop(FORWARDS, ONE, clients=8, cores=16)
    assert waits.bound == "waiting"
    assert waits.per_s == pytest.approx(0.6 * 8 / waits.shared.cycle_s)
    assert closed_loop(FORWARDS, ONE, clients=64, cores=0.5).bound == "cores"
    half = closed_loop(FORWARDS, ONE, clients=64, cores=0.25)
    assert half.per_s * 2 == pytest.approx(closed_loop(FORWARDS, ONE, clients=64, cores=0.5).per_s)
    quick = without(FORWARDS, "append_s", "append_visit_s", "host_visit_s", "host_commit_s")
    quick = msgspec.structs.replace(quick, host_visit_s=1e-6)
    busy = closed_loop(quick, ONE, clients=1_000, cores=16)
    assert busy.bound == "edges"
    assert busy.per_s == pytest.approx(1 / edge_s(quick, busy.shared))


def test_a_transaction_has_what_comes_in_a_cycle() -> None:
    assert batch_at(FORWARDS, TEN, 1) == 1
    batch = batch_at(FORWARDS, TEN, 8_000)
    assert batch == pytest.approx(800 * cycle_s(FORWARDS, TEN, batch))


def test_more_databases_carry_more_until_edges_are_too_few() -> None:
    found = [carried(MESSAGES, msgspec.structs.replace(TEN, databases=n)) for n in (1, 2, 4, 8)]
    rates = [one.per_s for one in found]
    assert found[0].bound == "turns of appends"
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.1)
    assert found[-1].bound == "edges"
    more = msgspec.structs.replace(TEN, databases=8, edges_per_node=4)
    assert carried(MESSAGES, more).per_s > rates[-1]
    # More databases without more edges: each call carries less.
    assert carried(MESSAGES, msgspec.structs.replace(TEN, databases=16)).per_s < rates[-1]


def test_the_turns_of_one_database_bind_however_many_nodes_there_are() -> None:
    ten, twenty = (carried(FORWARDS, Deployment(nodes=n, edges_per_node=8)) for n in (10, 20))
    assert ten.bound == twenty.bound == "turns of appends"
    assert ten.per_s == pytest.approx(twenty.per_s) == pytest.approx(BUSY / 40e-6)
    assert twenty.command_s > ten.command_s


def test_so_many_hosts_of_one_database_wait_too_long_for_each_other() -> None:
    deployment = Deployment(nodes=400, edges_per_node=8)
    found = carried(FORWARDS, deployment)
    assert found.bound == "time of a command"
    assert found.command_s == pytest.approx(COMMAND_S_MAX, rel=0.05)
    # As long as few commands come, appends do not meet.
    assert command_s(FORWARDS, deployment, 10) < 0.01
    assert command_s(FORWARDS, deployment, 300) > command_s(FORWARDS, deployment, 10)


def test_nothing_is_used_beyond_its_share_of_what_is_carried() -> None:
    for nodes in (1, 10, 100):
        for databases in (1, 4, 16):
            deployment = Deployment(nodes=nodes, databases=databases, edges_per_node=8)
            most = carried(MESSAGES, deployment)
            shares = used(MESSAGES, deployment, most.per_s)
            assert max(shares.values()) == pytest.approx(BUSY, rel=0.05)
            # The disk and the cores that there are count by database and by node.
            disk = most.per_s * MESSAGES.written_bytes / databases / deployment.disk_bytes_per_s
            assert shares["disks of databases"] == pytest.approx(disk)


AT_REST = IdleCosts(
    edge_cores=0.01,
    host_cores=0.02,
    ray_cores=0.005,
    ray_host_cores=0.001,
    stand_by_cores=0.003,
    placer_cores=0.002,
    placer_host_cores=0.0005,
)


def test_an_idle_node_takes_what_its_processes_take_and_its_part_of_the_placer() -> None:
    assert placer_cores(AT_REST, ONE) == pytest.approx(0.003 + 0.002 + 0.0005)
    assert idle_node_cores(AT_REST, ONE) == pytest.approx(0.01 + 0.02 + 0.006 + 0.0055)
    larger = Deployment(nodes=10, databases=4, edges_per_node=2)
    assert placer_cores(AT_REST, larger) == pytest.approx(0.005 + 40 * 0.0005)
    alone = 0.02 + 0.08 + 0.005 + 0.004 + 0.003
    assert idle_node_cores(AT_REST, larger) == pytest.approx(alone + (0.002 + 0.02) / 10)


def test_what_processes_take_that_do_nothing_is_found_again() -> None:
    runs = [(1, 1), (2, 1), (3, 1), (1, 8)]
    found = fit_idle([at_rest(nodes, hosts) for nodes, hosts in runs])
    for name in IdleCosts.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(AT_REST, name)), name


def at_rest(nodes: int, hosts: int) -> Idle:
    """A run as ``tests.bench idle`` sees it, if the model were right in everything."""
    cost = AT_REST
    placer = placer_cores(cost, Deployment(nodes=nodes, hosts_per_node=hosts))
    cores = {
        "edges": nodes * cost.edge_cores,
        "hosts": nodes * hosts * cost.host_cores,
        "ray": nodes * (cost.ray_cores + hosts * cost.ray_host_cores),
        "serve": (nodes - 1) * cost.stand_by_cores + placer,
    }
    return Idle(nodes, hosts, cores, 0, 0)


def test_a_lost_machine_is_known_by_its_lease_and_a_killed_process_before() -> None:
    killed, lost = (
        failover_s(FORWARDS, TEN, claim_s=0.01, was_killed=killed) for killed in (True, False)
    )
    assert lost - killed == pytest.approx(LEASE_S * 7 / 8 + ANSWER_S - 0.5)
    two = failover_s(FORWARDS, Deployment(nodes=2), claim_s=0.01, was_killed=True)
    assert two > killed + 0.01 * 400  # 512 shards go to one, and not 103 to nine


def test_unit_costs_are_the_lines_through_what_was_measured() -> None:
    assert slope([[(1, 5), (2, 7)], [(1, 1), (3, 5)]]) == pytest.approx(2)
    assert slope([[(1, 5)]]) == slope([[(1, 5), (2, 1)]]) == 0
    assert height([(1, 5), (2, 7)], 2) == 3
    assert height([(1, 1)], 2) == 0


@pytest.mark.parametrize("true", [FORWARDS, MESSAGES])
def test_what_the_model_itself_has_measured_is_found_again(true: UnitCosts) -> None:
    kind = "Decentrl messages" if true.has_two_owners else "forwards"
    lines = [played(true, kind, nodes) for nodes in (1, 2, 3)]
    report = Report({}, {"connections": 64}, lines)
    found = fit(Measured.of([report]).lines)[kind]
    for name in UnitCosts.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(true, name)), name


def played(costs: UnitCosts, kind: str, nodes: int) -> Measurement:
    """A run as ``tests.bench cluster`` reports it, if the model were right in everything."""
    said = closed_loop(costs, Deployment(nodes=nodes), clients=64, cores=1.0)
    shared = said.shared
    spent = {"edges": edge_s(costs, shared), "hosts": host_s(costs, shared)}
    spent |= {"database": database_s(costs, shared), "load": load_s(costs, shared)}
    figures = {f"{layer}_cpu_s_per_1000": seconds * 1000 for layer, seconds in spent.items()}
    figures |= {"nodes": nodes, "cores_free": 1.0, "visits_per_1000": shared.visits * 1000}
    figures |= {"commits_per_1000": shared.commits * 1000, "calls_per_1000": shared.calls * 1000}
    figures["commit_ms"] = (costs.append_s + shared.batch * costs.append_visit_s) * 1000
    return Measurement(
        name=f"{kind}, so many", count=1, seconds=1.0, per_s=said.per_s, figures=figures
    )


def test_the_model_is_near_what_was_measured() -> None:
    files = sorted(MEASURED.glob("*.json"))
    found = model(read(files), [TEN])
    held_out = [one for one in found.checked if one.is_held_out]
    assert {(one.kind, one.nodes) for one in held_out} == {
        *((kind, 3) for kind in ("Decentrl messages", "forwards", "idle, hosts: 1")),
        ("fail-over", 2),
    }
    assert [one for one in found.checked if abs(one.error) > ERROR_MAX] == []


def test_the_program_says_so_for_each_deployment() -> None:
    ran = CliRunner().invoke(bench, ["model", "--nodes", "10", "--databases", "4", "--json"])
    assert ran.exit_code == 0, ran.output
    found = msgspec.json.decode(ran.stdout)
    assert [(one["nodes"], one["databases"]) for one in found["predicted"]] == [(10, 4)] * 2
    shown = CliRunner().invoke(bench, ["model", "--nodes", "10"])
    assert "breaks first" in shown.stdout
