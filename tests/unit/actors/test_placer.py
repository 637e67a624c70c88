"""The placer: every shard has one owner, whichever host comes, goes, falls silent or is emptied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.core.partitioning import Placement
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import SHARDS, SILENT_S, LocalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path)
    yield cluster
    await cluster.stop()


@pytest.fixture
async def pair(cluster: LocalCluster) -> LocalCluster:
    """Two hosts on two nodes, with four shards each."""
    cluster.start("host-a-0", "a")
    cluster.start("host-b-0", "b")
    await cluster.settle()
    assert await cluster.counts() == {"host-a-0": 4, "host-b-0": 4}
    return cluster


DATABASES = 2
PLACEMENT = Placement(len(SHARDS), hosts=1, databases=DATABASES)


@pytest.fixture
async def divided(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Two nodes with a host for each of two databases, and two shards on each host."""
    cluster = LocalCluster(tmp_path, DATABASES)
    for name, node in (("a-0", "a"), ("a-1", "a"), ("b-0", "b"), ("b-1", "b")):
        cluster.start(f"host-{name}-0", node)
    await cluster.settle()
    yield cluster
    await cluster.stop()


def hosts_of_database(database: int, owners: dict[str, str]) -> set[str]:
    return {owners[s] for s in PLACEMENT.shards_of(database)}


async def test_the_first_host_gets_all_shards_in_the_look_that_finds_it(
    cluster: LocalCluster,
) -> None:
    cluster.start("host-a-0", "a")
    await cluster.tick()
    assert await cluster.counts() == {"host-a-0": 8}


async def test_a_joining_host_gets_its_part_with_the_sessions(pair: LocalCluster) -> None:
    before = await pair.sessions()
    pair.start("host-c-0", "c")
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 3, "host-b-0": 3, "host-c-0": 2}
    assert await pair.sessions() == before


async def test_no_sessions_go_to_a_host_before_the_edges_could_connect_to_it(
    pair: LocalCluster,
) -> None:
    steps = list(pair.steps)
    pair.start("host-c-0", "c")
    await pair.tick()
    assert "host-c-0" in (await pair.placer.table(-1, seconds_max=0)).hosts
    assert pair.steps == steps
    await pair.tick()
    assert (await pair.counts())["host-c-0"] == 2


async def test_the_shards_of_a_dead_host_are_claimed_in_the_next_look(pair: LocalCluster) -> None:
    before = await pair.sessions()
    lost = [shard for shard, host in (await pair.table()).items() if host == "host-a-0"]
    pair.kill("host-a-0")
    await pair.placer.tick(pair.now_s)
    assert (await pair.table()).keys() == {*SHARDS} - {*lost}  # so that edges wait
    await pair.placer.close()
    assert await pair.counts() == {"host-b-0": 8}
    after = await pair.sessions()
    assert {shard for shard in SHARDS if after[shard] != before[shard]} == set(lost)


async def test_a_host_that_starts_anew_gets_its_shards_back_without_sessions(
    pair: LocalCluster,
) -> None:
    before, owners = await pair.sessions(), await pair.table()
    pair.start("host-a-0", "a")  # in place of the first
    await pair.settle()
    assert await pair.table() == owners
    after = await pair.sessions()
    changed = {shard for shard in SHARDS if after[shard] != before[shard]}
    assert changed == {shard for shard, host in owners.items() if host == "host-a-0"}


@pytest.mark.thorough
async def test_a_silent_host_keeps_its_shards_for_a_while_and_then_loses_them(
    pair: LocalCluster,
) -> None:
    pair.silence("host-a-0")
    await pair.tick(SILENT_S)
    assert await pair.counts() == {"host-a-0": 4, "host-b-0": 4}
    await pair.tick(1)
    await pair.tick()
    assert await pair.counts() == {"host-a-0": 0, "host-b-0": 8}

    # The zombie still believes; it is notified, and gets its part like a new host.
    pair.wake("host-a-0")
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 4, "host-b-0": 4}
    assert ("release", "host-a-0") in {(step, host) for step, host, _ in pair.steps}


async def test_a_drained_node_is_empty_and_gets_nothing_until_it_is_undrained(
    pair: LocalCluster,
) -> None:
    before = await pair.sessions()
    assert await pair.placer.drain("a", draining=True) is Placed.DONE
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 0, "host-b-0": 8}
    pair.start("host-a-0", "a")  # a host that starts anew is to be emptied still
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 0, "host-b-0": 8}
    assert await pair.placer.drain("a", draining=False) is Placed.DONE
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 4, "host-b-0": 4}
    assert await pair.sessions() == before


async def test_a_node_whose_shards_no_other_could_take_is_not_drained(pair: LocalCluster) -> None:
    assert await pair.placer.drain("a", draining=True) is Placed.DONE
    await pair.settle()
    assert await pair.placer.drain("b", draining=True) is Placed.NO_OTHER_NODE
    assert {h.host: h.draining for h in pair.placer.places().hosts} == {
        "host-a-0": True,
        "host-b-0": False,
    }
    assert await pair.placer.drain("a", draining=False) is Placed.DONE
    assert await pair.placer.drain("b", draining=True) is Placed.DONE


async def test_a_host_that_was_being_emptied_and_is_lost_comes_back_to_be_emptied(
    pair: LocalCluster,
) -> None:
    assert await pair.placer.drain("a", draining=True) is Placed.DONE
    for is_empty in (False, True):
        pair.kill("host-a-0")
        await pair.tick()
        pair.start("host-a-0", "a")
        await pair.settle()
        assert (await pair.counts())["host-a-0"] == 0, is_empty
    assert await pair.placer.drain("a", draining=False) is Placed.DONE
    await pair.settle()
    assert (await pair.counts())["host-a-0"] > 0


async def test_a_host_that_was_lost_as_its_node_was_undrained_comes_back_to_be_filled(
    pair: LocalCluster,
) -> None:
    pair.start("host-a-1", "a")
    await pair.settle()
    await pair.placer.drain("a", draining=True)
    await pair.settle()
    pair.kill("host-a-1")
    await pair.tick()
    assert await pair.placer.drain("a", draining=False) is Placed.DONE
    pair.start("host-a-1", "a")
    await pair.settle()
    assert (await pair.counts())["host-a-1"] > 0


async def test_draining_and_undraining_at_once_leaves_the_shards_even(pair: LocalCluster) -> None:
    pair.start("host-c-0", "c")
    await pair.settle()
    await pair.placer.drain("c", draining=True)
    await pair.tick()
    await pair.placer.drain("c", draining=False)
    await pair.settle()
    assert sorted((await pair.counts()).values()) == [2, 3, 3]


async def test_what_an_operator_moved_stays_until_a_host_comes_or_goes(pair: LocalCluster) -> None:
    before = await pair.sessions()
    shard = next(s for s, host in (await pair.table()).items() if host == "host-a-0")
    assert await pair.placer.move(shard, "b") is Placed.DONE
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 3, "host-b-0": 5}
    assert await pair.sessions() == before
    pair.start("host-c-0", "c")
    await pair.settle()
    assert sorted((await pair.counts()).values()) == [2, 3, 3]


@pytest.mark.parametrize("to", ["host-a-0", "a"])
async def test_an_order_to_move_a_shard_to_where_it_is_moves_nothing(
    pair: LocalCluster, to: str
) -> None:
    shard = next(shard for shard, host in (await pair.table()).items() if host == "host-a-0")
    steps = list(pair.steps)
    assert await pair.placer.move(shard, to) is Placed.DONE
    assert pair.steps == steps


async def test_an_order_for_a_shard_that_is_moving_is_refused(pair: LocalCluster) -> None:
    shard = next(shard for shard, host in (await pair.table()).items() if host == "host-a-0")
    first = asyncio.create_task(pair.placer.move(shard, "b"))
    await asyncio.sleep(0)
    assert await pair.placer.move(shard, "b") is Placed.MOVING_NOW
    assert await first is Placed.DONE
    assert [step for step, _, shards in pair.steps if shard in shards].count("release") == 1


async def test_a_shard_moves_only_once_no_identity_leaves_it_or_comes_back(
    pair: LocalCluster,
) -> None:
    shard = next(shard for shard, host in (await pair.table()).items() if host == "host-a-0")
    steps = list(pair.steps)
    async with pair.placer._locks[shard]:  # an identity is on its way
        moving = asyncio.create_task(pair.placer.move(shard, "b"))
        await pair.look(0.5)
        assert pair.steps == steps
    assert await moving is Placed.DONE


async def test_orders_that_cannot_be_carried_out_are_refused(pair: LocalCluster) -> None:
    assert await pair.placer.move("shard-99", "b") is Placed.NO_SUCH_SHARD
    assert await pair.placer.move("shard-0", "unknown") is Placed.NO_SUCH_HOST
    assert await pair.placer.drain("unknown", draining=True) is Placed.NO_SUCH_NODE
    assert await pair.placer.drain("host-a-0", draining=True) is Placed.NO_SUCH_NODE


async def test_a_new_placer_learns_everything_from_the_hosts_and_moves_nothing(
    pair: LocalCluster,
) -> None:
    owners, sessions = await pair.table(), await pair.sessions()
    steps = list(pair.steps)
    pair.new_placer()
    await pair.settle()
    assert (await pair.table(), await pair.sessions()) == (owners, sessions)
    assert pair.steps == steps


@pytest.mark.thorough
async def test_a_new_placer_claims_and_moves_nothing_while_a_host_has_not_answered(
    pair: LocalCluster,
) -> None:
    shard = next(s for s, host in (await pair.table()).items() if host == "host-a-0")
    await pair.placer.move(shard, "b")
    pair.silence("host-a-0")
    pair.start("host-c-0", "c")  # which would get a part of what b has
    steps = list(pair.steps)
    pair.new_placer()
    await pair.tick(SILENT_S / 2)
    await pair.tick(SILENT_S / 2)
    assert pair.steps == steps
    assert await pair.counts() == {"host-a-0": 0, "host-b-0": 5, "host-c-0": 0}
    await pair.tick(1 + SILENT_S)
    await pair.tick()
    assert await pair.counts() == {"host-a-0": 0, "host-b-0": 4, "host-c-0": 4}


async def test_a_move_whose_target_dies_is_made_good(pair: LocalCluster) -> None:
    pair.start("host-c-0", "c")
    await pair.settle()
    shard = next(s for s, host in (await pair.table()).items() if host == "host-a-0")
    pair.silence("host-c-0")
    pair.released.clear()
    moving = asyncio.create_task(pair.placer.move(shard, "host-c-0"))
    await pair.released.wait()
    # Its former owner is what edges know until it has a new one: they wait as it refuses.
    assert (await pair.table())[shard] == "host-a-0"
    pair.kill("host-c-0")
    await pair.placer.tick(pair.now_s)
    pair.wake("host-c-0")
    assert await moving is Placed.DID_NOT_ANSWER
    await pair.settle()
    assert await pair.counts() == {"host-a-0": 4, "host-b-0": 4}


async def test_a_table_is_published_as_soon_as_it_changes(pair: LocalCluster) -> None:
    known = await pair.placer.table(-1, seconds_max=0)
    await pair.tick()
    assert (await pair.placer.table(-1, seconds_max=0)).version == known.version
    asking = asyncio.create_task(pair.placer.table(known.version, seconds_max=60))
    await asyncio.sleep(0)
    pair.kill("host-a-0")
    await pair.tick()
    answered = await asking
    assert answered.version > known.version
    assert (await pair.placer.table(answered.version, seconds_max=0)).version >= answered.version


async def test_a_shard_is_with_a_host_of_its_database_whichever_comes_and_goes(
    divided: LocalCluster,
) -> None:
    async def placed() -> tuple[set[str], set[str]]:
        owners = await divided.table()
        return hosts_of_database(0, owners), hosts_of_database(1, owners)

    assert set((await divided.counts()).values()) == {2}
    assert await placed() == ({"host-a-0-0", "host-b-0-0"}, {"host-a-1-0", "host-b-1-0"})
    before = await divided.sessions()
    # What belongs to the other database has nothing to do with it.
    divided.start("host-c-1-0", "c")
    await divided.settle()
    assert sorted((await divided.counts()).values()) == [1, 1, 2, 2, 2]
    assert await divided.sessions() == before
    divided.kill("host-b-0-0")
    await divided.settle()
    assert await placed() == ({"host-a-0-0"}, {"host-a-1-0", "host-b-1-0", "host-c-1-0"})
    divided.kill("host-a-0-0")
    await divided.settle()
    owners = await divided.table()
    assert owners.keys() == set(PLACEMENT.shards_of(1))
    divided.start("host-a-0-0", "a")
    await divided.settle()
    assert await placed() == ({"host-a-0-0"}, {"host-a-1-0", "host-b-1-0", "host-c-1-0"})


async def test_what_a_placer_is_ordered_concerns_its_database_alone(divided: LocalCluster) -> None:
    before = await divided.sessions()
    assert await divided.placers[1].drain("a", draining=True) is Placed.DONE
    await divided.settle()
    assert await divided.counts() == {
        "host-a-0-0": 2,
        "host-a-1-0": 0,
        "host-b-0-0": 2,
        "host-b-1-0": 4,
    }
    assert await divided.sessions() == before
    first, second = divided.placers
    assert await first.move("shard-1", "b") is Placed.NO_SUCH_SHARD
    assert await second.move("shard-1", "host-b-0-0") is Placed.NO_SUCH_HOST
    assert [place.shard for place in second.places().shards] == [*PLACEMENT.shards_of(1)]


async def test_a_placer_works_while_the_hosts_of_another_database_are_silent(
    divided: LocalCluster,
) -> None:
    divided.silence("host-a-0-0")
    divided.silence("host-b-0-0")
    divided.new_placer(0)
    divided.new_placer(1)
    divided.kill("host-a-1-0")
    for _ in range(3):
        await divided.tick()
    table = await divided.placers[1].table(-1, seconds_max=0)
    assert {owner.host for owner in table.owners.values()} == {"host-b-1-0"}
    assert table.owners.keys() == {*PLACEMENT.shards_of(1)}
    assert await divided.placers[1].knows_hosts(seconds_max=0)
    assert not (await divided.placers[0].table(-1, seconds_max=0)).owners
    divided.wake("host-a-0-0")
    divided.wake("host-b-0-0")
