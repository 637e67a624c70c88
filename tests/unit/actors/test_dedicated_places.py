"""Dedicated identities in a cluster: each on a host of its own, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from actors.core.commands import Command, Contract, OpenSession, Register
from actors.core.partitioning import (
    dedicated_host_name,
    identity_of_host,
    shard_of,
)
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Refused, Registered, Reply
from actors.core.submissions import Submission
from actors.host.measures import CommandRates
from actors.placement.dedication import ANY_LOAD_PER_S, NAMED_S
from actors.placement.orders import ORDER_S_MAX
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import (
    ABOVE_PER_S,
    IDENTITIES_MAX,
    QUIET_S,
    SHARDS,
    SILENT_S,
    LocalCluster,
)

DIDS = [f"did:x:{number}" for number in range(6)]
DID = DIDS[0]
EDGE = "edge"
WAIT_S = 20
DATABASES = 2
NOT_OWNER = Refused(Refusal.NOT_OWNER)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Two nodes, and some identities that have sockets."""
    cluster = LocalCluster(tmp_path)
    for node in ("a", "b"):
        cluster.start(f"host-{node}-0", node)
    await cluster.settle()
    for did in DIDS:
        await reply_to(cluster, did, Register(contract(did)))
        await reply_to(cluster, did, OpenSession(EDGE))
    yield cluster
    await cluster.stop()


def contract(did: str) -> Contract:
    """A registration for long."""
    return Contract(did, "did:x:mediator", 2**40, did.encode(), b"signed")


async def reply_to(cluster: LocalCluster, did: str, command: Command) -> Reply:
    """What the owner of an identity answers, found as edges find it."""
    table = await cluster.whole_table()
    dedicated = table.dedicated or {}
    partition = did if did in dedicated else shard_of(did, len(SHARDS))
    owner = dedicated.get(did) or table.owners[partition]
    batch = msgspec.msgpack.encode([Submission(partition, did, did.encode(), command=command)])
    said = await asyncio.to_thread(cluster.hosts[owner.host].submit, EDGE, batch)
    (reply,) = msgspec.msgpack.decode(said, type=BatchResult).replies
    return reply


async def ordered(cluster: LocalCluster, order: asyncio.Task[Placed]) -> Placed:
    """The end of an order, while time passes."""
    for _ in range(100):
        await asyncio.sleep(0)
        if order.done():
            break
        await cluster.tick()
    return await order


async def dedicate(cluster: LocalCluster, did: str = DID) -> Placed:
    placer = cluster.placer_of(did)
    return await ordered(cluster, asyncio.create_task(placer.dedicated.dedicate(did)))


async def release(cluster: LocalCluster, did: str = DID) -> Placed:
    return await ordered(cluster, asyncio.create_task(cluster.placer.dedicated.release(did)))


async def own(cluster: LocalCluster) -> dict[str, tuple[str | None, str | None]]:
    """The dedicated identities, each with its host and the id of its sessions."""
    found = (await cluster.whole_table()).dedicated
    assert found is not None
    return {
        did: (None, None) if owner is None else (owner.host, owner.sessions)
        for did, owner in found.items()
    }


async def serves(cluster: LocalCluster, did: str = DID) -> bool:
    """Does whom the edges take for the owner answer, and know the sessions?"""
    return isinstance(await reply_to(cluster, did, OpenSession(EDGE)), Registered)


def sessions(cluster: LocalCluster) -> dict[str, int]:
    """How many identities have sockets by host."""
    return {name: len(host._host.registry.sessions) for name, host in cluster.hosts.items()}


async def hosts_after_a_while(cluster: LocalCluster) -> list[str]:
    """The names of hosts of single identities once nothing is left to be done."""
    for _ in range(12):
        await cluster.tick()
    return sorted(name for name in cluster.hosts if name.startswith("identity@"))


async def test_an_identity_goes_to_a_host_of_its_own_and_back_with_its_sessions(
    cluster: LocalCluster,
) -> None:
    of_shard = (await cluster.sessions())[shard_of(DID, len(SHARDS))]
    assert await dedicate(cluster) is Placed.DONE
    ((did, (host, id_)),) = (await own(cluster)).items()
    assert (did, host) == (DID, dedicated_host_name(DID, "a"))
    assert id_ is not None
    assert id_.startswith(of_shard + "/")
    assert sessions(cluster)[str(host)] == 1
    assert await serves(cluster)
    (place,) = cluster.placer.places().identities
    assert (place.did, place.by, place.host, place.node) == (DID, "operator", host, "a")

    assert await release(cluster) is Placed.DONE
    assert await own(cluster) == {}
    table = await cluster.placer.table(-1, seconds_max=0)
    assert table.returned == {DID: id_}
    assert sum(sessions(cluster).values()) == len(DIDS)
    assert await serves(cluster)
    assert await hosts_after_a_while(cluster) == []


async def test_orders_that_come_at_once_are_all_answered_and_keep_to_the_bound(
    cluster: LocalCluster,
) -> None:
    twice = [asyncio.create_task(cluster.placer.dedicated.dedicate(DID)) for _ in range(2)]
    async with asyncio.timeout(WAIT_S):
        placed = [await ordered(cluster, order) for order in twice]
    assert sorted(placed) == [Placed.DONE, Placed.MOVING_NOW]

    all_at_once = [asyncio.create_task(cluster.placer.dedicated.dedicate(did)) for did in DIDS[1:]]
    async with asyncio.timeout(WAIT_S):
        placed = [await ordered(cluster, order) for order in all_at_once]
    assert placed.count(Placed.DONE) == IDENTITIES_MAX - 1
    assert placed.count(Placed.TOO_MANY) == len(DIDS) - IDENTITIES_MAX
    assert len(await own(cluster)) == IDENTITIES_MAX


async def test_who_comes_late_to_a_host_that_is_not_needed_hears_so(cluster: LocalCluster) -> None:
    await dedicate(cluster)
    batch = [Submission(DID, DID, b"", command=OpenSession(EDGE))]
    await release(cluster)
    await cluster.tick()
    late = cluster.hosts[dedicated_host_name(DID, "a")].submit(EDGE, msgspec.msgpack.encode(batch))
    assert msgspec.msgpack.decode(late, type=BatchResult).replies == [NOT_OWNER]


async def test_identities_are_spread_over_the_nodes_up_to_the_bound(cluster: LocalCluster) -> None:
    for did in DIDS[:IDENTITIES_MAX]:
        assert await dedicate(cluster, did) is Placed.DONE
    nodes = [place.node for place in cluster.placer.places().identities]
    assert sorted(map(str, nodes)) == ["a", "a", "b"]
    assert await dedicate(cluster, DIDS[5]) is Placed.TOO_MANY
    assert await dedicate(cluster) is Placed.ALREADY_SO
    assert await release(cluster, DIDS[5]) is Placed.ALREADY_SO
    assert await release(cluster) is Placed.DONE
    assert await dedicate(cluster, DIDS[5]) is Placed.DONE
    assert await dedicate(cluster, "did:x:stranger") is Placed.TOO_MANY
    assert await release(cluster, DIDS[5]) is Placed.DONE
    assert await dedicate(cluster, "did:x:stranger") is Placed.NO_SUCH_IDENTITY


async def test_identities_that_lose_their_hosts_together_are_spread_again(
    cluster: LocalCluster,
) -> None:
    for did in DIDS[:IDENTITIES_MAX]:
        await dedicate(cluster, did)
    for name in await hosts_after_a_while(cluster):
        cluster.kill(name)
    nodes = [name.partition(":")[0] for name in await hosts_after_a_while(cluster)]
    assert nodes == ["identity@a", "identity@a", "identity@b"]


async def test_who_had_nothing_in_its_shard_loses_nothing(cluster: LocalCluster) -> None:
    did = "did:x:quiet"
    await reply_to(cluster, did, Register(contract(did)))
    assert await dedicate(cluster, did) is Placed.DONE
    ((_, id_),) = (await own(cluster)).values()
    assert str(id_).startswith((await cluster.sessions())[shard_of(did, len(SHARDS))] + "/")
    cluster.kill(dedicated_host_name(did, "a"))
    await hosts_after_a_while(cluster)
    assert [id_ for _, id_ in (await own(cluster)).values()] == ["own-2"]


async def test_a_drained_node_loses_its_identities_too_with_their_sessions(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    ((_, before),) = (await own(cluster)).values()
    assert await cluster.placer.drain("a", draining=True) is Placed.DONE
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "b")]
    assert (await own(cluster))[DID] == (dedicated_host_name(DID, "b"), before)
    assert await serves(cluster)
    # Where all hosts are to be emptied they stay.
    await cluster.placer.drain("b", draining=True)
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "b")]


@pytest.mark.thorough
async def test_a_host_that_is_slow_to_start_is_waited_for(cluster: LocalCluster) -> None:
    await dedicate(cluster)
    cluster.silence(dedicated_host_name(DID, "b"))
    await cluster.placer.drain("a", draining=True)
    for _ in range(12):
        await cluster.tick()
    assert ("end", dedicated_host_name(DID, "b"), ()) not in cluster.steps
    assert (await own(cluster))[DID][0] == dedicated_host_name(DID, "a")
    cluster.wake(dedicated_host_name(DID, "b"))
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "b")]


async def test_an_identity_whose_host_or_node_dies_gets_another_without_its_sessions(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    cluster.kill(dedicated_host_name(DID, "a"))
    await cluster.tick()
    assert (await own(cluster))[DID] == (None, None)
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "a")]
    assert (await own(cluster))[DID] == (dedicated_host_name(DID, "a"), "own-2")
    assert await serves(cluster)
    cluster.kill(dedicated_host_name(DID, "a"))
    cluster.kill("host-a-0")
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "b")]
    assert (await own(cluster))[DID] == (dedicated_host_name(DID, "b"), "own-3")
    assert await serves(cluster)


async def test_where_no_mediator_serves_any_more_an_identity_leaves_with_its_sessions(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    ((_, before),) = (await own(cluster)).values()
    cluster.kill("host-a-0")
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "b")]
    assert (await own(cluster))[DID] == (dedicated_host_name(DID, "b"), before)


async def test_with_the_last_host_of_shards_all_others_end(cluster: LocalCluster) -> None:
    await dedicate(cluster)
    for node in ("a", "b"):
        cluster.kill(f"host-{node}-0")
    assert await hosts_after_a_while(cluster) != []
    await cluster.tick(SILENT_S)
    assert await hosts_after_a_while(cluster) == []


async def test_none_ends_because_the_hosts_of_shards_renew_their_rows_after_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dedicate(cluster)
    before, steps = await own(cluster), list(cluster.steps)
    cluster.new_placer()
    with monkeypatch.context() as away:
        away.setattr(cluster, "found_in", lambda _: [dedicated_host_name(DID, "a")])
        await cluster.tick()
        await cluster.tick(SILENT_S / 2)
    await cluster.settle()
    assert await own(cluster) == before
    assert cluster.steps == steps


async def test_a_new_placer_learns_where_identities_are_and_moves_nothing(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    before, steps = await own(cluster), list(cluster.steps)
    cluster.new_placer()
    await cluster.settle()
    assert await own(cluster) == before
    assert cluster.steps == steps


STEPS = ["start", "submit", "hand out", "adopt", "expect", "release", "take in"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_placer_that_dies_after_any_step_is_made_good_by_the_next(
    cluster: LocalCluster, step: str
) -> None:
    dying = asyncio.create_task(dedicate(cluster))
    first = len(cluster.steps)
    if step in {"expect", "release", "take in"}:
        assert await dying is Placed.DONE
        first = len(cluster.steps)
        dying = asyncio.create_task(release(cluster))
    async with asyncio.timeout(WAIT_S):
        while step not in {done for done, _, _ in cluster.steps[first:]}:  # noqa: ASYNC110 - threads
            await asyncio.sleep(0.001)
    # What it had asked for is carried out, and answered to no one.
    dying.cancel()
    await cluster.lose_placer()
    cluster.now_ms += 10_000
    await hosts_after_a_while(cluster)
    assert await serves(cluster)
    is_dedicated = bool(await own(cluster))
    expected = [dedicated_host_name(DID, "a")] if is_dedicated else []
    assert await hosts_after_a_while(cluster) == expected
    # What was expected only may be dedicated still or not: its own host was being asked.
    assert step == "expect" or is_dedicated is (step not in {"start", "release", "take in"})


async def test_what_gets_many_commands_gets_a_host_for_as_long_as_that_lasts(
    cluster: LocalCluster,
) -> None:
    def busy(host: str, did: str, per_s: float) -> None:
        rates = cluster.hosts[host]._host.rates
        rates.reported = {did: per_s}

    host = (await cluster.table())[shard_of(DID, len(SHARDS))]
    busy(host, DID, ABOVE_PER_S)
    assert await hosts_after_a_while(cluster) == []
    busy(host, DID, ABOVE_PER_S + 1)
    name = dedicated_host_name(DID, "a")
    assert await hosts_after_a_while(cluster) == [name]
    (place,) = cluster.placer.places().identities
    assert place.by == "load"
    busy(host, "", 0)
    busy(name, DID, ABOVE_PER_S / 4)
    await cluster.tick(QUIET_S)
    await cluster.tick(QUIET_S)
    assert await hosts_after_a_while(cluster) == [name]
    busy(name, DID, ABOVE_PER_S / 4 - 1)
    await cluster.tick(QUIET_S)
    assert await hosts_after_a_while(cluster) == [name]
    await cluster.tick(QUIET_S)
    # What its shard's host reports of it may be from before.
    busy(host, DID, ABOVE_PER_S + 1)
    assert await hosts_after_a_while(cluster) == []
    assert await serves(cluster)
    await cluster.tick(QUIET_S)
    assert await hosts_after_a_while(cluster) == [name]


async def test_with_any_load_as_the_bound_every_identity_is_dedicated_while_it_is_used(
    cluster: LocalCluster,
) -> None:
    cluster.new_placer(above_per_s=ANY_LOAD_PER_S)
    await cluster.settle()
    for host in cluster.hosts.values():
        host._host.rates = CommandRates(ANY_LOAD_PER_S, host._host.now_ms())
    used, unused = DIDS[0], DIDS[1]
    await reply_to(cluster, used, OpenSession(EDGE))
    for host in cluster.hosts.values():
        host._host.rates.report(host._host.now_ms() + 3_000, host._host.stats)
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(used, "a")]
    assert await serves(cluster, used)
    assert await serves(cluster, unused)
    for host in cluster.hosts.values():
        host._host.rates.reported = {}
    await cluster.tick(QUIET_S)
    await cluster.tick(QUIET_S)
    assert await hosts_after_a_while(cluster) == []
    assert await serves(cluster, used)


async def test_who_is_named_is_dedicated_as_soon_as_it_has_registered(
    cluster: LocalCluster,
) -> None:
    later = "did:x:later"
    cluster.new_placer(named=frozenset({DID, later}))
    await cluster.settle()
    expected = [dedicated_host_name(DID, "a")]
    assert await hosts_after_a_while(cluster) == expected
    assert (await release(cluster)) is Placed.DONE
    await reply_to(cluster, later, Register(contract(later)))
    await cluster.tick(NAMED_S)
    places = await hosts_after_a_while(cluster)
    assert sorted(identity_of_host(name)[0] for name in places) == sorted([DID, later])
    assert {place.by for place in cluster.placer.places().identities} == {"operator"}
    assert await serves(cluster, later)


async def test_named_identities_without_room_are_said_once_and_take_it_once_there_is_some(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.new_placer(named=frozenset(DIDS), identities_max=len(DIDS) - 1)
    await cluster.settle()
    for _ in range(3):
        assert len(await hosts_after_a_while(cluster)) == len(DIDS) - 1
        await cluster.tick(NAMED_S)
    warned = [line.message for line in caplog.records if "dedicated_dids" in line.message]
    assert len(warned) == 1
    cluster.new_placer(named=frozenset(DIDS), identities_max=len(DIDS))
    await cluster.settle()
    assert len(await hosts_after_a_while(cluster)) == len(DIDS)


async def test_whatever_is_published_while_an_identity_goes_back_its_sessions_are_never_missing(
    cluster: LocalCluster,
) -> None:
    assert await dedicate(cluster) is Placed.DONE
    order = asyncio.create_task(cluster.placer.dedicated.release(DID))
    while not order.done():
        # As the end of a step for another identity does, at any time.
        cluster.placer._publish()
        table = cluster.placer._table
        assert table.dedicated is not None
        assert DID in table.dedicated or table.returned.get(DID)
        await asyncio.sleep(0)
    assert await order is Placed.DONE
    assert await serves(cluster)


async def test_who_is_named_stays_though_its_load_dedicated_it_before(
    cluster: LocalCluster,
) -> None:
    host = (await cluster.table())[shard_of(DID, len(SHARDS))]
    cluster.hosts[host]._host.rates.reported = {DID: ABOVE_PER_S + 1}
    await hosts_after_a_while(cluster)
    cluster.hosts[host]._host.rates.reported = {}
    cluster.new_placer(named=frozenset({DID}))
    await cluster.settle()
    steps = len(cluster.steps)
    for _ in range(3):
        await cluster.tick(QUIET_S)
    assert {step for step, _, _ in cluster.steps[steps:]} <= {"submit"}
    (place,) = cluster.placer.places().identities
    assert place.by == "operator"


async def test_an_order_that_is_overdue_before_its_turn_changes_nothing(
    cluster: LocalCluster,
) -> None:
    order = asyncio.create_task(cluster.placer.dedicated.dedicate(DID))
    async with cluster.placer._locks[shard_of(DID, len(SHARDS))]:  # its shard is moving
        for _ in range(8):
            await cluster.look(ORDER_S_MAX / 6)
        assert order.done()
        assert await order is Placed.DID_NOT_ANSWER
    await cluster.placer.close()
    assert await own(cluster) == {}
    assert await hosts_after_a_while(cluster) == []


async def test_what_an_operator_dedicated_stays_however_quiet_it_is(cluster: LocalCluster) -> None:
    host = (await cluster.table())[shard_of(DID, len(SHARDS))]
    cluster.hosts[host]._host.rates.reported = {DID: ABOVE_PER_S + 1}
    await hosts_after_a_while(cluster)
    assert await dedicate(cluster) is Placed.DONE
    (place,) = cluster.placer.places().identities
    assert place.by == "operator"
    cluster.hosts[host]._host.rates.reported = {}
    for _ in range(3):
        await cluster.tick(QUIET_S)
    assert await hosts_after_a_while(cluster) == [dedicated_host_name(DID, "a")]


async def test_an_identity_gets_a_host_that_works_on_its_database(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, DATABASES)
    for name, node in (("a-0", "a"), ("b-1", "b"), ("c-1", "c")):
        cluster.start(f"host-{name}-0", node)
    await cluster.settle()
    try:
        identities = [f"did:x:{number}" for number in range(30)]
        of = {d: cluster.placement.database_of(d) for d in identities}
        first, second = (next(d for d in identities if of[d] == place) for place in (0, 1))
        for did in (first, second):
            await reply_to(cluster, did, Register(contract(did)))
            assert await dedicate(cluster, did) is Placed.DONE
            assert await serves(cluster, did)
        one, other = cluster.placers
        assert [(p.did, p.node) for p in one.places().identities] == [(first, "a")]
        assert [(p.did, p.node) for p in other.places().identities] == [(second, "b")]
        # No other host works on the first database: there is nowhere to go.
        assert await one.drain("a", draining=True) is Placed.NO_OTHER_NODE
        assert await other.drain("b", draining=True) is Placed.DONE
        await hosts_after_a_while(cluster)
        assert [(p.did, p.node) for p in one.places().identities] == [(first, "a")]
        assert [(p.did, p.node) for p in other.places().identities] == [(second, "c")]
        for database in range(DATABASES):
            cluster.new_placer(database)
        await cluster.settle()
        assert set(await own(cluster)) == {first, second}
    finally:
        await cluster.stop()
