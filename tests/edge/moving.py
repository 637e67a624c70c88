"""A mediator whose shards change hands while it serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from typing_extensions import override

from actors.core.commands import Command, DedicateIdentity, DedicationReason, ReleaseIdentity
from actors.core.partitioning import DEDICATED_HOST_PREFIX, dedicated_host_name, host_name
from actors.core.placement_table import PartitionOwner, PlacementTable
from actors.core.replies import BatchResult, Dedication
from actors.core.submissions import Submission
from actors.host.identity_host import HostOptions
from actors.host.port import AdoptPartitions, Expect, HandOut, ReleasePartitions, TakeIn
from http_edge.dispatch.routes import Routes
from http_edge.server.hosts import host_options, placement_of
from tests.called_host import CalledHost
from tests.edge.mediator import Mediator


class NotedRoutes(Routes):
    """Routes that count how often a command had to wait for an owner."""

    waits = 0

    @override
    async def wait_until(self, is_so: Callable[[], bool], *, seconds_max: float) -> bool:
        NotedRoutes.waits += 1
        return await super().wait_until(is_so, seconds_max=seconds_max)


class MovingMediator(Mediator):
    """A mediator of two hosts whose edges get tables of who owns what."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.owners: dict[str, PartitionOwner] = {}
        self.dedicated: dict[str, PartitionOwner | None] = {}
        self.returned: dict[str, str] = {}
        self.hosts.is_placed = True
        self._versions = itertools.count(1)

    @override
    def routes(self) -> Routes:
        return NotedRoutes(placement_of(self.settings))

    @override
    async def start(self) -> None:
        await super().start()
        NotedRoutes.waits = 0
        placement = placement_of(self.settings)
        for index in range(self.settings.hosts):
            await self.adopt(host_name(index), list(placement.partitions_of(index)), None)
        self.publish_table()

    async def release(self, host: str, shards: list[str]) -> bytes:
        """Let a host give shards away; their handover."""
        for shard in shards:
            del self.owners[shard]
        return await asyncio.to_thread(self.hosts.running[host].ask, ReleasePartitions(shards))

    async def adopt(self, host: str, shards: list[str], handover: bytes | None) -> None:
        """Let a host take shards over from any owner."""
        ids = await asyncio.to_thread(
            self.hosts.running[host].ask, AdoptPartitions(shards, handover)
        )
        self.owners.update((shard, PartitionOwner(host, id_)) for shard, id_ in ids.items())

    async def move(self, shard: str) -> None:
        """A planned move to the other host."""
        owner = self.owners[shard].host
        handover = await self.release(owner, [shard])
        await self.adopt(self.other_than(owner), [shard], handover)
        self.publish_table()

    async def seize(self, shard: str) -> str:
        """The other host takes a shard from its owner, which is not informed; the former owner."""
        former = self.owners[shard].host
        await self.adopt(self.other_than(former), [shard], None)
        return former

    def publish_table(self) -> None:
        """Give every edge a table of who owns what."""
        own = {name: "" for name in self.hosts.running if name.startswith(DEDICATED_HOST_PREFIX)}
        hosts = dict.fromkeys(self.hosts.running.keys() - own, "")
        for edge in self.edges:
            edge.take_table(
                PlacementTable(
                    next(self._versions),
                    dict(self.owners),
                    hosts,
                    dict(self.dedicated),
                    own,
                    dict(self.returned),
                )
            )

    async def dedicate(self, did: str, node: str = "a") -> None:
        """Give an identity a host of its own."""
        shard = self.shard_of(did)
        owner = self.hosts.running[self.owners[shard].host]
        await self._ask(owner, did, shard, DedicateIdentity(DedicationReason.OPERATOR))
        handover = await asyncio.to_thread(owner.ask, HandOut(did, shard))
        await self._adopt_own(did, node, handover or None)

    async def move_own(self, did: str, node: str) -> None:
        """Move a dedicated identity to a host on another node."""
        owner = self.dedicated[did]
        assert owner is not None
        handover = await asyncio.to_thread(
            self.hosts.running[owner.host].ask, ReleasePartitions([did])
        )
        await self._adopt_own(did, node, handover)

    async def give_back(self, did: str) -> None:
        """Give a dedicated identity back to its shard."""
        owner = self.dedicated[did]
        assert owner is not None
        host, shard = self.hosts.running[owner.host], self.shard_of(did)
        to = self.hosts.running[self.owners[shard].host]
        await asyncio.to_thread(to.ask, Expect(did))
        await self._ask(host, did, did, ReleaseIdentity(DedicationReason.OPERATOR))
        handover = await asyncio.to_thread(host.ask, ReleasePartitions([did]))
        assert await asyncio.to_thread(to.ask, TakeIn(did, shard, handover))
        del self.dedicated[did]
        self.returned[did] = owner.sessions
        self.publish_table()

    async def _adopt_own(self, did: str, node: str, handover: bytes | None) -> None:
        name = dedicated_host_name(did, node)
        if name not in self.hosts.running:
            limits = host_options(self.settings, 0).limits
            self.hosts.run(HostOptions(name, self.settings.log_dsn, None, limits, node))
        host = self.hosts.running[name]
        ids = await asyncio.to_thread(host.ask, AdoptPartitions([did], handover))
        self.dedicated[did] = PartitionOwner(name, ids[did])
        self.publish_table()

    @staticmethod
    async def _ask(host: CalledHost, did: str, partition: str, command: Command) -> None:
        batch = msgspec.msgpack.encode([Submission(partition, did, b"", command=command)])
        said = await asyncio.to_thread(host.submit, "placer", batch)
        (reply,) = msgspec.msgpack.decode(said, type=BatchResult).replies
        assert isinstance(reply, Dedication)
        assert reply.changed

    def held_by(self, host: str) -> set[str]:
        """What a host says that it owns."""
        said = self.hosts.running[host].holdings()
        assert said.name == host
        return set(said.shards)

    def other_than(self, host: str) -> str:
        """The host that is not this one."""
        names = [host_name(index) for index in range(self.settings.hosts)]
        return next(name for name in names if name != host)

    def shard_of(self, did: str) -> str:
        """The shard of an identity."""
        return placement_of(self.settings).partition_of(did)
