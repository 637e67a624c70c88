"""Orders about dedicated identities, of operators and by load: which are taken, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.core.commands import DedicateIdentity, DedicationReason, Register
from actors.core.partitioning import shard_of
from actors.host.port import ReleasePartitions
from actors.placement.orders import DedicationOrders
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import (
    ABOVE_PER_S,
    IDENTITIES_MAX,
    QUIET_S,
    SHARDS,
    SILENT_S,
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


def steps_of(cluster: LocalCluster) -> list[str]:
    """What hosts were asked about the identity alone."""
    return [step for step, _, dids in cluster.steps if dids == (DID,)]


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
    back = asyncio.create_task(orders.release(DID))
    await asyncio.sleep(0)
    assert await orders.release(DID) is Placed.MOVING_NOW
    assert await orders.dedicate(DID) is Placed.MOVING_NOW
    assert await back is Placed.DONE


async def test_an_identity_that_its_host_has_lost_is_released_once_it_has_another(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    ((host, _),) = (await own(cluster)).values()
    await asyncio.to_thread(cluster.hosts[str(host)].ask, ReleasePartitions([DID]))
    assert await cluster.placer.dedicated.release(DID) is Placed.DID_NOT_ANSWER
    assert await hosts_after_a_while(cluster) == [host]
    assert await release(cluster) is Placed.DONE
    assert (await cluster.whole_table()).returned.keys() == {DID}
    await dedicate(cluster)
    assert (await cluster.whole_table()).returned == {}


async def test_an_identity_that_no_host_can_take_waits_for_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.placement.membership._ANSWER_S", 0)
    await dedicate(cluster)
    (host,) = await hosts_after_a_while(cluster)
    cluster.silence(HOST)
    await cluster.look(SILENT_S + 1)
    cluster.kill(host)
    await cluster.look(0.5)
    cluster.wake(HOST)
    assert await hosts_after_a_while(cluster) == [host]


async def test_an_order_that_is_not_waited_for_any_more_ends_like_others() -> None:
    orders = DedicationOrders()
    orders.take(DID, DedicationReason.OPERATOR, 0).cancel()
    orders.answer(DID, Placed.DONE)
    assert DID not in orders


async def test_an_identity_without_its_host_is_not_released_before_it_has_another(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    ((host, _),) = (await own(cluster)).values()
    cluster.kill(str(host))
    await cluster.look(0.5)
    (place,) = cluster.placer.places().identities
    assert (place.host, place.node) == (None, None)
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


async def test_load_dedicates_the_busiest_identities_as_far_as_there_is_room(
    cluster: LocalCluster,
) -> None:
    rates = {did: ABOVE_PER_S + number for number, did in enumerate(DIDS, 1)}
    cluster.hosts[HOST]._host.rates.reported = rates
    assert len(await hosts_after_a_while(cluster)) == IDENTITIES_MAX
    assert list(await own(cluster)) == DIDS[-IDENTITIES_MAX:]


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


async def test_an_identity_goes_back_only_after_it_was_quiet_for_long_without_a_break(
    cluster: LocalCluster,
) -> None:
    busy(cluster, DID)
    (host,) = await hosts_after_a_while(cluster)
    busy(cluster)
    before, rates = steps_of(cluster), cluster.hosts[host]._host.rates
    for _ in range(2):
        rates.reported = {DID: ABOVE_PER_S}
        await cluster.look(0.5)
        rates.reported = {}
        await cluster.look(0.5)
        await cluster.look(QUIET_S - 1)
    assert steps_of(cluster) == before


async def test_without_a_bound_for_load_what_load_has_dedicated_goes_back(
    cluster: LocalCluster,
) -> None:
    busy(cluster, DID)
    assert len(await hosts_after_a_while(cluster)) == 1
    cluster.new_placer(above_per_s=0)
    await cluster.settle()
    await cluster.look(QUIET_S)
    assert await hosts_after_a_while(cluster) == []


async def test_what_an_operator_dedicated_is_served_without_a_pause_however_quiet_it_is(
    cluster: LocalCluster,
) -> None:
    await dedicate(cluster)
    before = steps_of(cluster)
    for _ in range(3):
        await cluster.look(QUIET_S)
    assert steps_of(cluster) == before


async def test_who_is_quiet_goes_back_once_however_long_that_takes(cluster: LocalCluster) -> None:
    busy(cluster, DID)
    await hosts_after_a_while(cluster)
    busy(cluster)
    async with cluster.placer._locks[shard_of(DID, len(SHARDS))]:  # its shard is moving
        for _ in range(6):
            await cluster.look(QUIET_S)
        assert steps_of(cluster).count("expect") == 0
    assert await hosts_after_a_while(cluster) == []
    assert steps_of(cluster).count("expect") == 1


async def test_load_gives_nothing_back_that_an_operator_has_dedicated_meanwhile(
    cluster: LocalCluster,
) -> None:
    busy(cluster, DID)
    (host,) = await hosts_after_a_while(cluster)
    busy(cluster)
    await cluster.look(0.5)
    await reply_to(cluster, DID, DedicateIdentity(DedicationReason.OPERATOR))
    before = steps_of(cluster)
    await cluster.look(QUIET_S)
    assert await hosts_after_a_while(cluster) == [host]
    assert steps_of(cluster) == [*before, "expect"]


async def test_what_a_former_placer_had_dedicated_is_found_out_by_the_order_that_it_refuses(
    cluster: LocalCluster,
) -> None:
    await reply_to(cluster, DID, DedicateIdentity(DedicationReason.OPERATOR))
    order = asyncio.create_task(cluster.placer.dedicated.dedicate(DID))
    for _ in range(9):
        await cluster.look(0)
    assert await order is Placed.DID_NOT_ANSWER
    await cluster.look(0)
    assert set(await own(cluster)) == {DID}
