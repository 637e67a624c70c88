"""Hosts in this process for a placer: they live, die, fall silent and start anew by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from actors.host_port import HostUnavailable, OwnerPort
from actors.identity_host import HostOptions, IdentityHost
from actors.limits import HostLimits
from actors.partitions import database_of_host
from actors.placer import Placer
from eventstore.errors import LogError

SHARDS = [f"shard-{index}" for index in range(8)]
SILENT_S = 10.0


class LocalCluster:
    """Hosts of one log, found by name, and a placer that knows of nothing but them."""

    def __init__(self, directory: Path, databases: int = 1) -> None:
        self._dsns = [f"sqlite:{directory / f'log-{place}.db'}" for place in range(databases)]
        self._silent: dict[str, asyncio.Event] = {}
        self._every: list[IdentityHost] = []
        self.hosts: dict[str, IdentityHost] = {}
        self.steps: list[tuple[str, str, tuple[str, ...]]] = []
        self.released = asyncio.Event()
        self.now_s = 0.0
        self.placer = self.new_placer()

    def new_placer(self) -> Placer:
        """A placer that knows nothing, in place of the last."""
        self.placer = Placer(
            SHARDS, self, silent_s_max=SILENT_S, version=1, databases=len(self._dsns)
        )
        return self.placer

    def start(self, name: str, node: str) -> None:
        """A new host, which owns nothing."""
        dsn = self._dsns[database_of_host(name, len(self._dsns))]
        options = HostOptions(name, dsn, [], HostLimits(), node)
        self.hosts[name] = IdentityHost(options, lambda *_: None)
        self._every.append(self.hosts[name])

    def kill(self, name: str) -> None:
        """The host is gone, and its name with it."""
        del self.hosts[name]

    def silence(self, name: str) -> None:
        """The host answers nobody until it is woken, while its name stays."""
        self._silent[name] = asyncio.Event()

    def wake(self, name: str) -> None:
        """The host answers again, also what it was asked meanwhile."""
        self._silent.pop(name).set()

    async def stop(self) -> None:
        """End whatever was started."""
        await self.placer.close()
        for host in self._every:
            await asyncio.to_thread(host.stop)

    async def tick(self, passed_s: float = 0.5) -> None:
        """Let the placer look once, and finish what it began."""
        self.now_s += passed_s
        await self.placer.tick(self.now_s)
        await self.placer.close()

    async def settle(self) -> None:
        """Let the placer look until nothing changes any more."""
        steps = -1
        while len(self.steps) != steps:
            steps = len(self.steps)
            await self.tick()
            await self.tick()

    async def table(self) -> dict[str, str]:
        """Who owns what, as edges are told."""
        owners = (await self.placer.table(-1, seconds_max=0)).owners
        return {shard: owner.host for shard, owner in owners.items()}

    async def sessions(self) -> dict[str, str]:
        """The ids of the sessions of every shard, as edges are told."""
        owners = (await self.placer.table(-1, seconds_max=0)).owners
        return {shard: owner.sessions for shard, owner in owners.items()}

    async def counts(self) -> dict[str, int]:
        """How many shards each living host has, as edges are told."""
        owners = list((await self.table()).values())
        return {name: owners.count(name) for name in sorted(self.hosts)}

    async def names(self) -> Collection[str]:
        """The hosts that live, for the placer."""
        return set(self.hosts)

    def port(self, name: str) -> OwnerPort:
        """The way to a host, for the placer."""
        return _Port(self, name)

    async def reach(self, name: str) -> IdentityHost:
        """A host that answers now. Raises: HostUnavailable."""
        while name in self._silent:
            await self._silent[name].wait()
        if name not in self.hosts:
            raise HostUnavailable(name)
        return self.hosts[name]


class _Port:
    """The way to a host by its name, whichever has it now."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def owned(self) -> bytes:
        host = await self._cluster.reach(self._name)
        return host.owned()

    async def release(self, shards: Sequence[str]) -> bytes:
        host = await self._cluster.reach(self._name)
        self._cluster.steps.append(("release", self._name, tuple(shards)))
        handover = await asyncio.to_thread(host.release, shards)
        self._cluster.released.set()
        return handover

    async def adopt(self, shards: Sequence[str], handover: bytes | None) -> dict[str, str]:
        host = await self._cluster.reach(self._name)
        self._cluster.steps.append(("adopt", self._name, tuple(shards)))
        try:
            return await asyncio.to_thread(host.adopt, shards, handover)
        except LogError as error:
            raise HostUnavailable(self._name) from error

    async def drain(self, *, draining: bool) -> None:
        host = await self._cluster.reach(self._name)
        host.drain(draining=draining)
