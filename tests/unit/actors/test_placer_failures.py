"""The role of the placer though a look at its lease, an answer to it, or the placer has failed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from actors.host.connected_host import ignored
from actors.host.host_connection import HostServer
from actors.host.host_finder import HostFinder
from actors.placement.placer_link import PlacerLink
from eventstore.log.host_leases import HostLease, HostLeases
from eventstore.stores.open_log import open_host_leases
from tests.ports import free_port
from tests.unit.actors.cluster_of_hosts import SHARDS, LocalCluster
from tests.unit.actors.test_placer_role import (
    LEASE,
    LEFT_S_MAX,
    LONG_S,
    LOOPBACK,
    PLACER,
    Process,
    _frequent_looks,
    cluster,
    leases,
    no_batches,
    placing,
)

__all__ = ["_frequent_looks", "cluster", "leases"]


class FullAtFirst(ThreadPoolExecutor):
    """A thread that cannot be started for the first call, because the process has too many."""

    has_failed = False

    @override
    def submit(self, *call: Any, **options: Any) -> Future[Any]:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("can't start new thread")
        return super().submit(*call, **options)


async def test_a_process_that_had_no_thread_to_look_with_takes_the_role_at_a_later_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.start("host-a-0", "a")
    with closing(open_host_leases(f"sqlite:{tmp_path / 'log.db'}")) as leases:
        link = PlacerLink("edge-0", HostFinder([leases]), PLACER)
        process = Process(cluster, "a", tmp_path)
        process.role._thread = FullAtFirst(1)
        assert await placing(link) == dict.fromkeys(SHARDS, "host-a-0")
        await process.leave()
    await cluster.stop()
    said = next(line for line in caplog.messages if "placer" in line)
    assert said == "failed to look at the lease of the placer"


@pytest.mark.parametrize("kind", ["taking", "renewal"])
async def test_who_leaves_after_the_answer_that_it_has_the_lease_was_lost_leaves_no_lease(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, kind: str
) -> None:
    if kind == "taking":
        leases.take(HostLease(PLACER, "a", "ended", LOOPBACK, free_port(), b"token"), LONG_S)
    process = Process(cluster, "b", tmp_path)
    process.leases.may_fail = threading.Event()
    is_stored = process.leases.has_taken if kind == "taking" else process.leases.has_renewed
    assert await asyncio.to_thread(is_stored.wait, LEFT_S_MAX)
    process.running.cancel()
    await asyncio.gather(process.running, return_exceptions=True)
    process.leases.may_fail.set()
    await process.role.leave()
    assert leases.living() == []


@pytest.mark.parametrize("is_watched", [False, True])
async def test_the_role_of_a_process_that_has_ended_is_taken_before_its_lease_is_over(
    cluster: LocalCluster, leases: HostLeases, tmp_path: Path, *, is_watched: bool
) -> None:
    former = HostServer(no_batches, no_batches, ignored)
    leases.take(former.listen(LOOPBACK, PLACER, "a", "ended", protocol=LEASE.protocol), LONG_S)
    link = PlacerLink("edge-0", HostFinder([leases]), PLACER)
    second = Process(cluster, "b", tmp_path)
    async with asyncio.timeout(LEFT_S_MAX):
        while is_watched and second.role._placing is None:  # noqa: ASYNC110 - another task's
            await asyncio.sleep(0)
    connection = second.role._placing
    for _ in range(2 if is_watched else 0):
        second.leases.has_renewed.clear()
        assert await asyncio.to_thread(second.leases.has_renewed.wait, LEFT_S_MAX)
    assert second.role._placing is connection
    former.stop()
    assert await placing(link) == dict.fromkeys(SHARDS, "host-a-0")
    await second.leave()
