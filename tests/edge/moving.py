"""A mediator whose shards change hands while it serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from typing_extensions import override

from actors.commands import Command, DedicateIdentity, ReleaseIdentity, Submission, Wish
from actors.identity_host import HostOptions, IdentityHost
from actors.partitions import OWN_HOST_PREFIX, host_name, own_host_name
from actors.placement_table import HostHolds, Owner, Table
from actors.replies import BatchResult, Dedication
from http_edge.edge import placement_of
from http_edge.routes import LiveRoutes, Routes
from http_edge.serve import host_options
from tests.edge.mediator import Mediator


class NotedRoutes(LiveRoutes):
    """Routes that count how often somebody had to wait for an owner."""

    waits = 0

    @override
    async def moved(self, is_so: Callable[[], bool], *, seconds_max: float) -> bool:
        NotedRoutes.waits += 1
        return await super().moved(is_so, seconds_max=seconds_max)


class MovingMediator(Mediator):
    """A mediator of two hosts whose edges are told by tables who owns what."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.owners: dict[str, Owner] = {}
        self.dedicated: dict[str, Owner | None] = {}
        self.returned: dict[str, str] = {}
        self.hosts.is_placed = True
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
        own = {name: "" for name in self.hosts.running if name.startswith(OWN_HOST_PREFIX)}
        hosts = dict.fromkeys(self.hosts.running.keys() - own, "")
        for edge in self.edges:
            edge.take_table(
                Table(
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
        await self._ask(owner, did, shard, DedicateIdentity(Wish.OPERATOR))
        handover = await asyncio.to_thread(owner.hand_out, did, shard)
        await self._adopt_own(did, node, handover or None)

    async def move_own(self, did: str, node: str) -> None:
        """Move a dedicated identity to a host on another node."""
        owner = self.dedicated[did]
        assert owner is not None
        handover = await asyncio.to_thread(self.hosts.running[owner.host].release, [did])
        await self._adopt_own(did, node, handover)

    async def give_back(self, did: str) -> None:
        """Give a dedicated identity back to its shard."""
        owner = self.dedicated[did]
        assert owner is not None
        host, shard = self.hosts.running[owner.host], self.shard_of(did)
        to = self.hosts.running[self.owners[shard].host]
        await asyncio.to_thread(to.expect, did)
        await self._ask(host, did, did, ReleaseIdentity(Wish.OPERATOR))
        handover = await asyncio.to_thread(host.release, [did])
        assert await asyncio.to_thread(to.take_in, did, shard, handover)
        del self.dedicated[did]
        self.returned[did] = owner.sessions
        self.tell()

    async def _adopt_own(self, did: str, node: str, handover: bytes | None) -> None:
        name = own_host_name(did, node)
        if name not in self.hosts.running:
            limits = host_options(self.settings, 0).limits
            self.hosts.run(HostOptions(name, self.settings.log_dsn, [], limits, node))
        host = self.hosts.running[name]
        ids = await asyncio.to_thread(host.adopt, [did], handover)
        self.dedicated[did] = Owner(name, ids[did])
        self.tell()

    @staticmethod
    async def _ask(host: IdentityHost, did: str, partition: str, command: Command) -> None:
        batch = msgspec.msgpack.encode([Submission(partition, did, b"", command=command)])
        said = await asyncio.to_thread(host.submit, "placer", batch)
        (reply,) = msgspec.msgpack.decode(said, type=BatchResult).replies
        assert isinstance(reply, Dedication)
        assert reply.changed

    def held_by(self, host: str) -> set[str]:
        """What a host says that it owns."""
        said = msgspec.msgpack.decode(self.hosts.running[host].owned(), type=HostHolds)
        assert said.name == host
        return set(said.shards)

    def other_than(self, host: str) -> str:
        """The host that is not this one."""
        names = [host_name(index) for index in range(self.settings.hosts)]
        return next(name for name in names if name != host)

    def shard_of(self, did: str) -> str:
        """The shard of an identity."""
        return placement_of(self.settings).partition_of(did)
