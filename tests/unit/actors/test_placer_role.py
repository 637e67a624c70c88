"""One process has the role of the placer at a time, and the next one takes it over by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from actors.core.commands import Contract, Register
from actors.core.partitioning import dedicated_host_name, shard_of
from actors.core.submissions import Submission
from actors.host.connected_host import ignored
from actors.host.host_connection import Answered, HostServer
from actors.host.host_finder import HostFinder
from actors.host.port import HostUnavailable
from actors.placement import placer_role
from actors.placement.placer import Placer
from actors.placement.placer_link import PlacerLink
from actors.placement.placer_role import PlacerRole
from actors.placement.port import (
    Dedicate,
    DrainNode,
    MoveShard,
    Placed,
    PlacerLease,
    PlacerQuestion,
    Succeeded,
)
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases
from eventstore.stores.open_log import open_host_leases
from tests.cluster.accounts import until
from tests.unit.actors.cluster_of_hosts import SHARDS, HostsOfKind, LocalCluster

LOOPBACK = "127.0.0.1"
LONG_S = 600.0
LOOK_S = 0.02
LEFT_S_MAX = 10.0
LEASE = PlacerLease.of(0, databases=1)
PLACER = LEASE.name
DID = "did:x:registered"


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer_role, "_TICK_S", LOOK_S)
    monkeypatch.setattr(placer_role, "_STAND_BY_S", LOOK_S)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path)
    cluster.start("host-a-0", "a")
    yield cluster
    await cluster.stop()


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[HostLeases]:
    leases = open_host_leases(f"sqlite:{tmp_path / 'log.db'}")
    yield leases
    leases.close()


def no_batches(*_: object) -> None:
    raise AssertionError("a placer gets no batches")


async def nothing_served() -> list[int]:
    return []


class CutOffLeases(HostLeases):
    """The leases as a node sees them that can be cut off from the database."""

    def __init__(self, leases: HostLeases) -> None:
        self._leases = leases
        self.is_cut_off = False
        self.has_renewed = threading.Event()
        self.has_taken = threading.Event()
        self.may_fail: threading.Event | None = None
        """If set, an answer that the lease is stored is lost, once this has happened."""
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def _there(self) -> HostLeases:
        if self.is_cut_off:
            raise LogUnavailable("cut off")
        return self._leases

    @override
    def take(self, lease: HostLease, seconds: float) -> None:
        self._there.take(lease, seconds)
        self.has_taken.set()
        self._answer()

    @override
    def renew(self, lease: HostLease, seconds: float) -> bool:
        is_ours = self._there.renew(lease, seconds)
        self.has_renewed.set()
        assert self.may_answer.wait(LEFT_S_MAX)
        if is_ours:
            self._answer()
        return is_ours

    def _answer(self) -> None:
        if self.may_fail is not None:
            assert self.may_fail.wait(LEFT_S_MAX)
            raise LogUnavailable("the answer was lost")

    @override
    def living(self) -> Sequence[HostLease]:
        return self._there.living()

    @override
    def leave(self, lease: HostLease) -> None:
        self._there.leave(lease)

    @override
    def clock_s(self) -> float | None:
        return self._there.clock_s()

    @override
    def close(self) -> None:
        self._leases.close()


class Process:
    """One that stands by as the placer."""

    def __init__(self, cluster: LocalCluster, node: str, tmp_path: Path) -> None:
        self.leases = CutOffLeases(open_host_leases(f"sqlite:{tmp_path / 'log.db'}"))
        self.role = PlacerRole(
            LEASE, cluster.new_placer, self.leases, nothing_served, node=node, lease_s=LONG_S
        )
        self.running = asyncio.create_task(self.role.run(LOOPBACK))

    async def lose_lease(self) -> None:
        """Its lease ends for this process, which is cut off, and then for others."""
        assert self.leases.is_cut_off
        assert self.role._lease is not None

        async def is_no_placer() -> bool:
            self.role._term.ended()
            return self.role._placer is None

        await until(is_no_placer)
        # Not before: a renewal that was under way would store it again.
        self.leases._leases.leave(self.role._lease)

    async def leave(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.role.leave()


async def placing(link: PlacerLink) -> dict[str, str]:
    """Who owns what, once a placer says that all have an owner."""

    async def owners() -> dict[str, str]:
        try:
            table = await link.table(0)
        except HostUnavailable:
            return {}
        found = {shard: owner.host for shard, owner in table.owners.items()}
        return found if len(found) == len(SHARDS) else {}

    return await until(owners)


async def watches(standby: Process, placer: Process) -> None:
    """Return when a process knows another one as the placer, which it will name itself to."""

    async def knows() -> bool:
        former, now = standby.role._former, placer.role._lease
        is_known = former and now and former.incarnation == now.incarnation
        return bool(is_known) and standby.role._placing is not None

    await until(knows)


async def another_placer(cluster: LocalCluster, last: Placer) -> None:
    """Return when a process has taken the role."""

    async def is_there() -> bool:
        return cluster.placer is not last

    await until(is_there)


async def test_who_leaves_gives_the_role_to_the_next_and_both_place_what_there_is(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path
) -> None:
    link = PlacerLink("edge-0", HostFinder([leases]), PLACER)
    everything = dict.fromkeys(SHARDS, "host-a-0")
    with pytest.raises(HostUnavailable):
        await link.places()
    first = Process(cluster, "a", tmp_path)
    assert await placing(link) == everything
    second = Process(cluster, "b", tmp_path)
    assert await link.order(MoveShard("shard-99", "b")) is Placed.NO_SUCH_SHARD
    assert await link.order(DrainNode("elsewhere", draining=True)) is Placed.NO_SUCH_NODE
    (row,) = leases.living()
    assert (row.name, row.node) == (PLACER, "a")
    await first.leave()
    assert await placing(link) == everything
    (row,) = leases.living()
    assert (row.name, row.node) == (PLACER, "b")
    await second.leave()
    assert leases.living() == []


async def test_who_leaves_before_it_hears_that_it_has_the_role_leaves_no_lease(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path
) -> None:
    process = Process(cluster, "a", tmp_path)
    process.leases.may_answer.clear()
    assert await asyncio.to_thread(process.leases.has_renewed.wait, LEFT_S_MAX)
    process.running.cancel()
    await asyncio.gather(process.running, return_exceptions=True)
    process.leases.may_answer.set()
    await process.role.leave()
    assert leases.living() == []


async def test_an_edge_that_is_cut_off_with_the_placer_follows_the_next_one_through_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    first = Process(cluster, "a", tmp_path)
    link = PlacerLink("edge-0", HostFinder([first.leases]), PLACER)
    assert await placing(link) != {}
    second = Process(cluster, "b", tmp_path)
    await watches(second, first)
    last = cluster.placer
    first.leases.is_cut_off = True
    await first.lose_lease()
    await another_placer(cluster, last)
    cluster.kill("host-a-0")
    cluster.start("host-b-0", "b")

    async def follows() -> bool:
        return set((await placing(link)).values()) == {"host-b-0"}

    await until(follows)
    assert await link.order(MoveShard("shard-99", "b")) is Placed.NO_SUCH_SHARD
    first.leases.is_cut_off = False
    last = cluster.placer
    await second.leave()
    await another_placer(cluster, last)
    assert await placing(link) != {}
    await first.leave()


async def test_the_next_placer_names_itself_again_if_the_former_one_just_ends_all_connections(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path
) -> None:
    """It does so once it notices that it has lost the role, just then."""
    named: list[PlacerQuestion] = []
    is_named = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(question: bytes, answered: Answered) -> None:
        named.append(msgspec.msgpack.decode(question, type=PlacerQuestion))
        if len(named) == 1:
            former.close()
        else:
            answered(msgspec.msgpack.encode(None))
            loop.call_soon_threadsafe(is_named.set)

    former = HostServer(no_batches, ask, ignored)
    lease = former.listen(LOOPBACK, PLACER, "a", "former", protocol=LEASE.protocol)
    leases.take(lease, LONG_S)
    process = Process(cluster, "b", tmp_path)

    async def stands_by() -> bool:
        return process.role._placing is not None

    await until(stands_by)
    leases.leave(lease)
    async with asyncio.timeout(LEFT_S_MAX):
        await is_named.wait()
    assert process.role._lease is not None
    assert named == [Succeeded(process.role._lease)] * 2
    await process.leave()
    former.stop()


async def test_a_former_placer_passes_questions_on_to_the_last_that_named_itself(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The one before has the role no more, and would pass them back."""
    first, second, third = (Process(cluster, node, tmp_path) for node in "abc")

    async def has(process: Process, last: Process | None) -> None:
        """Return when this one alone is the placer."""
        for other in (first, second, third):
            other.leases.is_cut_off = other is not process
        if last is not None:
            await last.lose_lease()

        async def is_placer() -> bool:
            return process.role._placer is not None and process.role._term.is_running()

        await until(is_placer)

    await has(first, None)
    link = PlacerLink("edge-0", HostFinder([first.leases]), PLACER)
    assert await placing(link) != {}, "this process is found by its row"
    last = first
    for process in (second, first, third):
        process.leases.is_cut_off = False
        await watches(process, last)
        await has(process, last)
        last = process
        assert await placing(link) != {}
        # As a standby it would watch another process than the placer's.
        assert process.role._placing is None
    for process in (first, second, third):
        await process.leave()


async def test_who_never_had_the_role_or_lost_it_leaves_without_asking_the_database(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Process(cluster, "a", tmp_path)
    assert await placing(PlacerLink("edge-0", HostFinder([leases]), PLACER)) != {}
    second = Process(cluster, "b", tmp_path)

    async def stands_by() -> bool:
        return second.role._placing is not None

    await until(stands_by)
    left: list[str] = []
    for process in (first, second):
        node = process.role._node
        monkeypatch.setattr(process.role._leases, "leave", lambda _, node=node: left.append(node))
    await second.leave()
    first.running.cancel()
    await asyncio.gather(first.running, return_exceptions=True)
    await first.role._aside(lambda: None)  # the end of a renewal that had begun
    first.role._renewed(float("-inf"))
    await first.leave()
    assert left == []


async def begin_a_move(cluster: LocalCluster) -> None:
    """Have the placer move shards to a new host, which goes on as long as the old one is silent."""
    cluster.silence("host-a-0")
    cluster.start("host-b-0", "b")

    async def moves() -> bool:
        return bool(cluster.placer._moving)

    await until(moves)


async def test_moves_under_way_end_before_the_role_is_given_up(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Process(cluster, "a", tmp_path)
    assert await placing(PlacerLink("edge-0", HostFinder([leases]), PLACER)) != {}
    await begin_a_move(cluster)
    give_up = first.role._leases.leave
    moving: list[bool] = []

    def noted(lease: HostLease) -> None:
        moving.append(bool(cluster.placer._moving))
        give_up(lease)

    monkeypatch.setattr(placer_role, "_FINISH_S_MAX", LONG_S)
    monkeypatch.setattr(first.role._leases, "leave", noted)
    leaving = asyncio.create_task(first.leave())
    await asyncio.wait({first.running})
    cluster.wake("host-a-0")
    await leaving
    assert moving == [False]
    assert leases.living() == []


async def test_the_role_is_given_up_though_a_move_goes_on_for_ever(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placer_role, "_FINISH_S_MAX", 0.1)
    first = Process(cluster, "a", tmp_path)
    assert await placing(PlacerLink("edge-0", HostFinder([leases]), PLACER)) != {}
    await begin_a_move(cluster)
    await asyncio.wait_for(first.leave(), LEFT_S_MAX)
    assert leases.living() == []
    cluster.wake("host-a-0")


async def test_who_has_just_taken_the_role_says_nothing_before_every_host_has_answered(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.settle()
    cluster.silence("host-a-0")
    monkeypatch.setattr(placer_role, "_HOSTS_S_MAX", LONG_S)
    link, last = PlacerLink("edge-0", HostFinder([leases]), PLACER), cluster.placer
    first = Process(cluster, "a", tmp_path)
    await another_placer(cluster, last)
    table, places = asyncio.create_task(link.table(0)), asyncio.create_task(link.places())

    async def both_wait() -> bool:
        return len(first.role._answering._under_way) == 2

    await until(both_wait)
    cluster.wake("host-a-0")
    assert set((await table).owners) == set(SHARDS)
    assert {place.host for place in (await places).shards} == {"host-a-0"}
    await first.leave()


async def test_who_cannot_find_out_which_hosts_there_are_is_no_placer_to_anyone(
    cluster: LocalCluster,
    leases: HostLeases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unknown(_: HostsOfKind) -> Collection[str]:
        raise HostUnavailable("a database does not answer")

    monkeypatch.setattr(HostsOfKind, "names", unknown)
    monkeypatch.setattr(placer_role, "_HOSTS_S_MAX", 0.05)
    link, last = PlacerLink("edge-0", HostFinder([leases]), PLACER), cluster.placer
    first = Process(cluster, "a", tmp_path)
    await another_placer(cluster, last)
    for answer in (link.table(0), link.places(), link.order(DrainNode("a", draining=True))):
        with pytest.raises(HostUnavailable):
            await answer
    monkeypatch.undo()
    assert await placing(link) == dict.fromkeys(SHARDS, "host-a-0")
    await first.leave()


def give_to_another(leases: HostLeases) -> None:
    """Another process takes the lease of the placer, whose process lives on."""
    (row,) = leases.living()
    leases.take(msgspec.structs.replace(row, incarnation="another", token=b"its own"), LONG_S)


async def test_who_has_lost_the_role_answers_no_more(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path
) -> None:
    link = PlacerLink("edge-0", HostFinder([leases]), PLACER)
    first = Process(cluster, "a", tmp_path)
    await placing(link)
    give_to_another(leases)

    async def is_refused() -> bool:
        try:
            return not (await link.places()).shards
        except HostUnavailable:
            return True

    await until(is_refused)
    await first.leave()


async def register(cluster: LocalCluster, owners: dict[str, str]) -> None:
    """Have the owner of its shard register an identity."""
    shard = shard_of(DID, len(SHARDS))
    registration = Register(Contract(DID, "did:x:mediator", 2**40, b"contract", b"signed"))
    batch = msgspec.msgpack.encode([Submission(shard, DID, b"key", command=registration)])
    await asyncio.to_thread(cluster.hosts[owners[shard]].submit, "edge-0", batch)


@pytest.mark.parametrize("silent", ["host-a-0", dedicated_host_name(DID, "a")])
async def test_an_order_under_way_ends_with_the_role(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, silent: str
) -> None:
    """Whichever host it waits for: the owner of the shard, before it is taken, or the new one."""
    link = PlacerLink("edge-0", HostFinder([leases]), PLACER)
    first = Process(cluster, "a", tmp_path)
    await register(cluster, await placing(link))
    former, steps = cluster.placer, list(cluster.steps)
    cluster.silence(silent)
    order = asyncio.create_task(link.order(Dedicate(DID)))

    async def waits() -> bool:
        return silent in cluster.hosts and len(first.role._answering) == 1

    await until(waits)
    give_to_another(leases)
    with pytest.raises(HostUnavailable):
        await order
    cluster.wake(silent)
    async with asyncio.timeout(LEFT_S_MAX):
        await first.role._answering.finish()
    assert not [*former.dedicated._orders]
    assert ("submit", "host-a-0", ()) not in cluster.steps[len(steps) :]
    await first.leave()
