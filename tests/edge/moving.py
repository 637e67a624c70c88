"""A mediator whose shards change hands while it serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from typing import Any

import msgspec
from typing_extensions import override

from actors.partitions import host_name
from actors.placement_table import HostHolds, Owner, Table
from http_edge.edge import placement_of
from http_edge.routes import LiveRoutes, Routes
from tests.edge.mediator import Mediator


class NotedRoutes(LiveRoutes):
    """Routes that count how often somebody had to wait for an owner."""

    waits = 0

    @override
    async def moved(
        self, partitions: Collection[str], host: str | None, *, seconds_max: float
    ) -> bool:
        NotedRoutes.waits += 1
        return await super().moved(partitions, host, seconds_max=seconds_max)


class MovingMediator(Mediator):
    """A mediator of two hosts whose edges are told by tables who owns what."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.owners: dict[str, Owner] = {}
        self._versions = itertools.count(1)

    @override
    def routes(self) -> Routes | None:
        return NotedRoutes(placement_of(self.settings))

    @override
    async def start(self) -> None:
        await super().start()
        NotedRoutes.waits = 0
        placement = placement_of(self.settings)
        for index in range(self.settings.hosts):
            await self.adopt(host_name(index), list(placement.partitions_of(index)), None)
        self.tell()

    async def release(self, host: str, shards: list[str]) -> bytes:
        """Let a host give shards away; their handover."""
        for shard in shards:
            del self.owners[shard]
        return await asyncio.to_thread(self.hosts.running[host].release, shards)

    async def adopt(self, host: str, shards: list[str], handover: bytes | None) -> None:
        """Let a host take shards over, whoever has them."""
        ids = await asyncio.to_thread(self.hosts.running[host].adopt, shards, handover)
        self.owners.update((shard, Owner(host, id_)) for shard, id_ in ids.items())

    async def move(self, shard: str) -> None:
        """A planned move to the other host."""
        owner = self.owners[shard].host
        handover = await self.release(owner, [shard])
        await self.adopt(self.other_than(owner), [shard], handover)
        self.tell()

    async def seize(self, shard: str) -> str:
        """The other host takes a shard from its owner, which is not told; the former owner."""
        former = self.owners[shard].host
        await self.adopt(self.other_than(former), [shard], None)
        return former

    def tell(self) -> None:
        """Tell every edge who owns what."""
        hosts = dict.fromkeys(self.hosts.running, "")
        for edge in self.edges:
            edge.take_table(Table(next(self._versions), dict(self.owners), hosts))

    def held_by(self, host: str) -> set[str]:
        """What a host says that it owns."""
        said = msgspec.msgpack.decode(self.hosts.running[host].owned(), type=HostHolds)
        assert said.name == host
        return set(said.shards)

    def other_than(self, host: str) -> str:
        """The host that is not this one."""
        return next(name for name in self.hosts.running if name != host)

    def shard_of(self, did: str) -> str:
        """The shard of an identity."""
        return placement_of(self.settings).partition_of(did)
