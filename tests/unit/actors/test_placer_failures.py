"""A process that fails to look at the placer's lease looks again, and takes the role then."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from actors.host.host_finder import HostFinder
from actors.placement.placer_link import PlacerLink
from eventstore.stores.open_log import open_host_leases
from tests.unit.actors.cluster_of_hosts import SHARDS, LocalCluster
from tests.unit.actors.test_placer_role import PLACER, Process, placing


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
