"""The placers of several databases gather in one process as long as nothing is wrong.

A cut between nodes then leaves all of them on one side, as with a single database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from actors.core.commands import DedicationReason
from actors.core.partitioning import dedicated_host_name
from actors.host.connected_host import ignored
from actors.host.host_client import connect_to_host
from actors.host.host_connection import HostServer
from actors.host.port import HostQuestion
from actors.placement import membership, placer_role
from actors.placement.placer import Placer
from actors.placement.placer_role import PlacerRole
from actors.placement.port import Placed, PlacerLease, Succeeded
from eventstore.log.host_leases import HostLease
from eventstore.stores.open_log import open_host_leases
from tests.cluster.accounts import until
from tests.unit.actors.cluster_of_hosts import LocalCluster
from tests.unit.actors.test_placer_role import (
    LEFT_S_MAX,
    LONG_S,
    LOOK_S,
    LOOPBACK,
    CutOffLeases,
    no_batches,
    nothing_served,
)

DATABASES = 3
LOOKS = 20
"""Of a standby; far more than it needs to apply for the role."""
DID = "did:x:registered"


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer_role, "_TICK_S", LOOK_S)
    monkeypatch.setattr(placer_role, "_STAND_BY_S", LOOK_S)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Two nodes with hosts of each database; the placers have nothing more to move."""
    cluster = LocalCluster(tmp_path, DATABASES)
    for database in range(DATABASES):
        for node in "ab":
            cluster.start(f"host-{node}-{database}-0", node)
    await cluster.settle()
    yield cluster
    await cluster.stop()


class Leases(CutOffLeases):
    """The leases of one database, as one process sees them, which counts its looks."""

    def __init__(self, dsn: str) -> None:
        super().__init__(open_host_leases(dsn))
        self.looks = 0
        self.taken: list[HostLease] = []
        self.is_reached_now_and_then = False

    @override
    def renew(self, lease: HostLease, seconds: float) -> bool:
        self.looks += 1
        if self.is_reached_now_and_then:
            self.is_cut_off = not self.is_cut_off
        return super().renew(lease, seconds)

    @override
    def take(self, lease: HostLease, seconds: float) -> None:
        super().take(lease, seconds)
        self.taken.append(lease)


class Process:
    """One that stands by as the placer of each database that it is to know of."""

    def __init__(self, cluster: LocalCluster, node: str, tmp_path: Path) -> None:
        self.node = node
        self.leases = [Leases(f"sqlite:{tmp_path / f'log-{n}.db'}") for n in range(DATABASES)]
        self.roles: dict[int, PlacerRole] = {}
        self._cluster = cluster
        self._running: list[asyncio.Task[None]] = []

    def stand_by(self, *databases: int) -> None:
        for database in databases:
            role = self.roles[database] = PlacerRole(
                PlacerLease.of(database, DATABASES),
                partial(self._cluster.new_placer, database),
                self.leases[database],
                nothing_served,
                node=self.node,
                lease_s=LONG_S,
                lowest=lambda: min(self.places, default=None),
            )
            self._running.append(asyncio.create_task(role.run(LOOPBACK)))

    @property
    def places(self) -> set[int]:
        """The databases whose placer it is."""
        return {number for number, role in self.roles.items() if role.is_placer}

    def lease(self, database: int) -> HostLease:
        lease = self.roles[database]._lease
        assert lease is not None
        return lease

    async def has(self, *databases: int) -> None:
        """Return when it is the placer of these, and of no other."""

        async def has() -> bool:
            return self.places == {*databases}

        await until(has)

    async def looks(self, database: int) -> None:
        """Return when it has looked often at one database."""
        last = self.leases[database].looks + LOOKS

        async def has_looked() -> bool:
            return self.leases[database].looks >= last

        await until(has_looked)

    async def leave(self) -> None:
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*[role.leave() for role in self.roles.values()])


@pytest.fixture
async def processes(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[list[Process]]:
    """Three that do not stand by yet."""
    processes = [Process(cluster, node, tmp_path) for node in "abc"]
    yield processes
    for process in processes:
        await process.leave()


async def apart(first: Process, second: Process, *databases: int) -> None:
    """The first process is the placer of database 0, the second of others; both stand by."""
    first.stand_by(0)
    await first.has(0)
    second.stand_by(*databases)
    await second.has(*databases)
    first.stand_by(*databases)
    second.stand_by(0)


async def test_the_placer_of_the_lowest_number_gets_the_roles_of_all_others(
    cluster: LocalCluster, processes: list[Process]
) -> None:
    first, second, third = processes
    steps = [*cluster.steps]
    await apart(first, second, 1, 2)
    third.stand_by(*range(DATABASES))
    await first.has(0, 1, 2)
    assert not second.places | third.places
    for database in (1, 2):
        lease = first.lease(database)
        # No third process can be faster: the row is that of the next placer at once.
        assert second.leases[database].taken == [lease]
        (row,) = first.leases[database].living()
        assert row.incarnation == lease.incarnation
    assert cluster.steps == steps, "no shard has moved"


async def test_placers_gather_while_the_lowest_database_is_away_and_again_when_it_is_back(
    processes: list[Process],
) -> None:
    first, second, _ = processes
    first.stand_by(1)
    await first.has(1)
    second.stand_by(2)
    await second.has(2)
    first.stand_by(2)
    second.stand_by(1)
    await first.has(1, 2)
    second.stand_by(0)
    await second.has(0, 1, 2)
    assert not first.places


async def test_who_does_not_reach_a_database_always_leaves_its_placer_where_it_is(
    processes: list[Process],
) -> None:
    """Or else the role would come and go with what it reaches."""
    first, second, _ = processes
    first.leases[1].is_reached_now_and_then = True
    await apart(first, second, 1)
    await first.looks(1)
    first.leases[1].is_reached_now_and_then = False
    first.leases[1].is_cut_off = True
    await first.looks(1)
    assert second.places == {1}
    assert not second.leases[1].taken
    first.leases[1].is_cut_off = False
    await first.has(0, 1)


async def test_a_placer_keeps_its_role_as_long_as_anything_is_wrong_with_its_hosts(
    cluster: LocalCluster, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_ANSWER_S", LOOK_S)
    first, second, _ = processes
    first.leases[1].is_cut_off = True
    await apart(first, second, 1)

    async def is_settled() -> bool:
        placer = second.roles[1]._placer
        return placer is not None and placer.is_settled

    await until(is_settled)
    cluster.silence("host-b-1-0")
    await second.looks(1)
    first.leases[1].is_cut_off = False
    await first.looks(1)
    await second.looks(1)
    assert second.places == {1}
    cluster.wake("host-b-1-0")
    await first.has(0, 1)


async def test_a_handover_undoes_no_move_of_an_operator(
    cluster: LocalCluster, processes: list[Process]
) -> None:
    """The next placer would spread the shards evenly, as any that begins."""
    first, second, _ = processes
    first.leases[1].is_cut_off = True
    await apart(first, second, 1)
    placer = second.roles[1]._placer
    assert placer is not None
    for shard in cluster.placement.shards_of(1):
        assert await placer.move(shard, "b") is Placed.DONE
    steps = [*cluster.steps]
    first.leases[1].is_cut_off = False
    await first.looks(1)
    await second.looks(1)
    assert (second.places, cluster.steps) == ({1}, steps)
    assert await placer.move("shard-1", "a") is Placed.DONE
    steps = [*cluster.steps]
    await first.has(0, 1)
    await first.looks(1)
    assert cluster.steps == steps


async def test_who_has_given_the_role_away_takes_no_application_for_the_name_of_the_next_placer(
    processes: list[Process],
) -> None:
    first, second, third = processes
    await apart(first, second, 1)
    third.stand_by(1)
    await first.has(0, 1)

    async def knows_the_next() -> bool:
        return second.roles[1]._successor == first.lease(1)

    await until(knows_the_next)
    client = await connect_to_host(second.lease(1), "late", ignored)
    await client.ask(msgspec.msgpack.encode(Succeeded(third.lease(1), 0)))
    assert await knows_the_next()
    client.close()


async def test_the_role_comes_back_at_once_from_a_process_that_has_ended(
    processes: list[Process],
) -> None:
    first, second, _ = processes
    await apart(first, second, 1)
    await first.has(0, 1)
    ended = HostServer(no_batches, lambda *_: None, ignored)
    gone = ended.listen(LOOPBACK, PlacerLease.of(1, DATABASES).name, "gone", "gone")
    ended.stop()
    client = await connect_to_host(first.lease(1), "gone", ignored)
    await client.ask(msgspec.msgpack.encode(Succeeded(gone, -1)))

    async def is_given() -> bool:
        return gone in first.leases[1].taken

    await until(is_given)
    await first.has(0, 1)
    client.close()


class _Former(HostQuestion[None], frozen=True, tag="Succeeded"):
    """``Succeeded`` in a build before this promise."""

    lease: HostLease


def test_a_placer_of_an_earlier_build_reads_the_question_as_one_that_it_does_not_heed() -> None:
    lease = HostLease("placer-1", "a", "incarnation", LOOPBACK, 1, b"token")
    sent = msgspec.msgpack.encode(Succeeded(lease, 0))
    assert msgspec.msgpack.decode(sent, type=_Former) == _Former(lease)
    before = msgspec.msgpack.encode(_Former(lease))
    assert msgspec.msgpack.decode(before, type=Succeeded) == Succeeded(lease)


async def test_what_an_earlier_build_says_of_its_role_takes_none_away(
    processes: list[Process],
) -> None:
    first, second, _ = processes
    await apart(first, second, 1)
    await first.has(0, 1)
    client = await connect_to_host(first.lease(1), "former build", ignored)
    await client.ask(msgspec.msgpack.encode(_Former(second.lease(1))))
    await first.looks(1)
    assert first.places == {0, 1}
    client.close()


async def look(cluster: LocalCluster, placer: Placer) -> None:
    """Let a placer look once, and do not wait for what it begins."""
    cluster.now_s += 0.5
    await placer.tick(cluster.now_s)


def settled(placer: Placer) -> bool:
    """Is nothing wrong, as this placer sees it?"""
    return placer.is_settled


async def test_a_placer_is_settled_only_if_its_hosts_answer_and_nothing_is_to_be_done(
    cluster: LocalCluster,
) -> None:
    placer = cluster.placers[1]
    assert settled(placer)
    cluster.silence("host-a-1-0")
    await look(cluster, placer)
    assert not settled(placer), "a host does not answer"
    assert not placer._membership.has_answered
    cluster.wake("host-a-1-0")
    await cluster.tick()
    assert settled(placer)
    cluster.kill("host-a-1-0")
    await look(cluster, placer)
    assert not settled(placer), "shards have lost their owner"
    await cluster.settle()
    assert settled(placer)
    cluster.start("host-a-1-0", "a")
    await look(cluster, placer)
    assert not settled(placer), "a host has come, and gets shards in the next looks"
    await cluster.settle()
    assert settled(placer)
    placer._membership.disown(["shard-1"])
    assert not settled(placer), "its host has given a shard up"


async def test_a_placer_with_an_order_a_move_or_a_silent_dedicated_host_is_not_settled(
    cluster: LocalCluster,
) -> None:
    did = next(
        name
        for name in (f"{DID}-{number}" for number in range(LOOKS))
        if cluster.placement.database_of(name) == 1
    )
    placer = cluster.placer_of(did)
    order = placer.dedicated._orders.take(did, DedicationReason.OPERATOR, cluster.now_s)
    assert not settled(placer), "an order is to be carried out"
    placer.dedicated._orders.answer(did, Placed.DONE)
    assert await asyncio.wait_for(order, LEFT_S_MAX) is Placed.DONE
    assert settled(placer)
    moving = asyncio.create_task(placer.move("shard-1", "b"))
    await asyncio.sleep(0)
    assert not settled(placer), "a shard is moving"
    assert await moving is Placed.DONE
    await cluster.settle()
    assert settled(placer)
    host = dedicated_host_name(did, "a")
    cluster.start_dedicated(did, "host-a-1-0")
    cluster.silence(host)
    await look(cluster, placer)
    await placer.close()
    assert not settled(placer), "a dedicated host does not answer"
    cluster.wake(host)
