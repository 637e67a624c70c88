"""What hosts report and what the placer changes cross each other: the change counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from actors.core.partitioning import HOST_PREFIX
from actors.host.port import A, AdoptPartitions, HostQuestion, OwnerPort, QueryHoldings
from actors.host.tasks import Tasks
from actors.placement.membership import Membership
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import SHARDS, SILENT_S, HostsOfKind, LocalCluster

SHARD = SHARDS[0]


class _LateReports:
    """Hosts whose reports are made at once, and arrive when ``arrive`` is set."""

    def __init__(self, hosts: HostsOfKind) -> None:
        self.hosts = hosts
        self.made: asyncio.Queue[str] = asyncio.Queue()
        self.arrive = asyncio.Event()

    async def names(self) -> Collection[str]:
        return await self.hosts.names()

    def port(self, name: str) -> OwnerPort:
        return _LatePort(self, name)


class _LatePort:
    def __init__(self, late: _LateReports, name: str) -> None:
        self._late = late
        self._name = name
        self._port = late.hosts.port(name)

    async def ask(self, question: HostQuestion[A]) -> A:
        answer = await self._port.ask(question)
        if isinstance(question, QueryHoldings):
            self._late.made.put_nowait(self._name)
            await self._late.arrive.wait()
        return answer

    async def submit(self, batch: bytes) -> bytes:
        return await self._port.submit(batch)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Two hosts on two nodes, which own all shards."""
    cluster = LocalCluster(tmp_path)
    for node in ("a", "b"):
        cluster.start(f"host-{node}-0", node)
    await cluster.settle()
    yield cluster
    await cluster.stop()


async def test_a_report_from_before_a_move_that_arrives_after_it_changes_nothing(
    pair: LocalCluster,
) -> None:
    moving, tasks = set[str](), Tasks()
    late = _LateReports(HostsOfKind(pair, HOST_PREFIX, 0))
    membership = Membership(late, moving, tasks, silent_s_max=SILENT_S)
    late.arrive.set()
    await membership.ask(0.0)
    late.arrive.clear()
    former = membership.owners[SHARD].host
    (to,) = {*membership.names()} - {former}
    asking = asyncio.create_task(membership.ask(0.5))
    async with asyncio.timeout(10):
        for _ in range(2 * len(pair.hosts)):  # both reports of each
            await late.made.get()
    moving.add(SHARD)
    handover = await membership.release(former, [SHARD])
    assert SHARD not in membership.owners
    await membership.adopt(to, [SHARD], handover)
    moving.discard(SHARD)
    steps = len(pair.steps)
    late.arrive.set()
    await asking
    for _ in range(9):
        await asyncio.sleep(0)
    await tasks.finish()
    assert membership.owners[SHARD].host == to
    assert len(membership.owners) == len(SHARDS)
    assert len(pair.steps) == steps


async def test_a_placer_that_knows_nothing_believes_the_later_of_two_claims(
    pair: LocalCluster,
) -> None:
    hosts, tasks = HostsOfKind(pair, HOST_PREFIX, 0), Tasks()
    owners = {s: owner.host for s, owner in (await pair.whole_table()).owners.items()}
    first, second = sorted(await hosts.names())
    stale = [next(s for s in SHARDS if owners[s] == host) for host in (first, second)]
    for shard, other in zip(stale, (second, first), strict=True):  # as its host did not answer
        await hosts.port(other).ask(AdoptPartitions([shard], None))
    membership = Membership(hosts, set[str](), tasks, silent_s_max=SILENT_S)
    for now_s in (0.0, 0.5):
        await membership.ask(now_s)
        await tasks.finish()
    assert [membership.owners[shard].host for shard in stale] == [second, first]
    held = [(await hosts.port(name).ask(QueryHoldings())).shards for name in (first, second)]
    assert [[shard in shards for shard in stale] for shards in held] == [
        [False, True],
        [True, False],
    ]


async def test_a_host_that_does_not_answer_is_asked_once_until_it_does(
    pair: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.placement.membership._ANSWER_S", 0)
    late = _LateReports(HostsOfKind(pair, HOST_PREFIX, 0))
    membership = Membership(late, set(), Tasks(), silent_s_max=SILENT_S)
    for now_s in range(3):
        await membership.ask(now_s)
        for _ in range(9):
            await asyncio.sleep(0)
    assert sorted(late.made.get_nowait() for _ in range(late.made.qsize())) == sorted(pair.hosts)
    late.arrive.set()
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(membership.living()) == len(pair.hosts)


async def test_a_node_is_drained_though_a_host_of_another_one_has_not_answered_yet(
    pair: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.placement.membership._ANSWER_S", 0)
    pair.start("host-c-0", "c")
    pair.silence("host-c-0")
    await pair.placer.tick(pair.now_s)
    assert await pair.placer.drain("a", draining=True) is Placed.DONE
    assert {h.host: h.draining for h in pair.placer.places().hosts} == {
        "host-a-0": True,
        "host-b-0": False,
    }
    pair.wake("host-c-0")
