"""Orders about dedicated identities, of operators and by load: which are taken, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.core.commands import Register
from actors.core.partitioning import shard_of
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import (
    ABOVE_PER_S,
    IDENTITIES_MAX,
    QUIET_S,
    SHARDS,
    LocalCluster,
)
from tests.unit.actors.test_dedicated_places import (
    DID,
    DIDS,
    contract,
    dedicate,
    hosts_after_a_while,
    ordered,
    own,
    release,
    reply_to,
)

HOST = "host-a-0"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """One node, and registered identities."""
    cluster = LocalCluster(tmp_path)
    cluster.start(HOST, "a")
    await cluster.settle()
    for did in DIDS:
        await reply_to(cluster, did, Register(contract(did)))
    yield cluster
    await cluster.stop()


def busy(cluster: LocalCluster, *dids: str) -> None:
    """Have the host of all shards report these as above the bound, and no others."""
    rates = dict.fromkeys(dids, ABOVE_PER_S + 1)
    cluster.hosts[HOST]._host.rates.reported = rates


async def test_an_order_for_an_identity_that_is_not_known_starts_no_process(
    cluster: LocalCluster,
) -> None:
    steps = len(cluster.steps)
    assert await dedicate(cluster, "did:x:unknown") is Placed.NO_SUCH_IDENTITY
    assert cluster.steps[steps:] == []


async def test_a_placer_that_does_not_know_yet_what_is_dedicated_carries_out_no_order(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    orders = cluster.new_placer().dedicated
    assert await orders.dedicate(DID) is Placed.DID_NOT_ANSWER
    assert await orders.release(DID) is Placed.DID_NOT_ANSWER


async def test_an_order_about_an_identity_that_is_moving_is_refused(cluster: LocalCluster) -> None:
    orders = cluster.placer.dedicated
    first = asyncio.create_task(orders.dedicate(DID))
    await cluster.look(0.5)
    assert await orders.release(DID) is Placed.MOVING_NOW
    assert await orders.dedicate(DID) is Placed.MOVING_NOW
    assert await ordered(cluster, first) is Placed.DONE


async def test_an_order_for_what_is_so_already_says_so(cluster: LocalCluster) -> None:
    assert await release(cluster) is Placed.ALREADY_SO
    await dedicate(cluster)
    assert await dedicate(cluster) is Placed.ALREADY_SO


async def test_an_identity_without_its_host_is_not_released_before_it_has_another(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    ((host, _),) = (await own(cluster)).values()
    cluster.kill(str(host))
    await cluster.look(0.5)
    assert await cluster.placer.dedicated.release(DID) is Placed.MOVING_NOW
    assert await hosts_after_a_while(cluster) == [host]
    assert await release(cluster) is Placed.DONE


async def test_a_placer_that_does_not_know_yet_what_is_dedicated_publishes_nothing_of_it(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    placer = cluster.new_placer()
    await placer.tick(cluster.now_s)
    assert (await placer.table(-1, seconds_max=0)).dedicated is None
    await cluster.settle()
    assert set(await own(cluster)) == {DID}


async def test_load_dedicates_no_more_identities_than_there_is_room_for(
    cluster: LocalCluster,
) -> None:
    busy(cluster, *DIDS)
    assert len(await hosts_after_a_while(cluster)) == IDENTITIES_MAX
    assert len(await own(cluster)) == IDENTITIES_MAX


async def test_who_is_dedicated_by_its_load_stays_by_an_order_though_there_is_no_room(
    cluster: LocalCluster,
) -> None:
    cluster.new_placer(identities_max=1)
    busy(cluster, DID)
    await hosts_after_a_while(cluster)
    assert await dedicate(cluster) is Placed.DONE
    assert await dedicate(cluster, DIDS[1]) is Placed.TOO_MANY


async def test_an_order_of_an_operator_is_answered_though_load_calls_for_the_same(
    cluster: LocalCluster,
) -> None:
    order = asyncio.create_task(cluster.placer.dedicated.dedicate(DID))
    await cluster.look(0.5)
    busy(cluster, DID)
    async with asyncio.timeout(20):
        assert await ordered(cluster, order) is Placed.DONE
    (place,) = cluster.placer.places().identities
    assert place.by == "operator"


async def test_an_identity_that_has_lost_its_host_gets_another_however_quiet_it_is(
    cluster: LocalCluster,
) -> None:
    busy(cluster, DID)
    (host,) = await hosts_after_a_while(cluster)
    busy(cluster)
    cluster.kill(host)
    await cluster.look(QUIET_S)
    assert await hosts_after_a_while(cluster) == [host]


async def test_who_is_quiet_goes_back_once_however_long_that_takes(cluster: LocalCluster) -> None:
    busy(cluster, DID)
    await hosts_after_a_while(cluster)
    busy(cluster)
    async with cluster.placer._locks[shard_of(DID, len(SHARDS))]:  # its shard is moving
        for _ in range(6):
            await cluster.look(QUIET_S)
    assert await hosts_after_a_while(cluster) == []
    assert [step for step, _, dids in cluster.steps if dids == (DID,)].count("expect") == 1
