"""Hosts in this process for a placer: they live, die, fall silent and start anew by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from actors.core.limits import HostLimits
from actors.core.partitioning import (
    DEDICATED_HOST_PREFIX,
    HOST_PREFIX,
    Placement,
    dedicated_host_name,
)
from actors.core.placement_table import PlacementTable, merged
from actors.host.identity_host import HostOptions
from actors.host.port import (
    A,
    AdoptPartitions,
    AnyQuestion,
    EndHost,
    Expect,
    HandOut,
    HostQuestion,
    HostUnavailable,
    OwnerPort,
    QueryHoldings,
    ReleasePartitions,
    SetDraining,
    StartDedicated,
    TakeIn,
)
from actors.placement.dedication import DedicationRules
from actors.placement.placer import Placer
from eventstore.log.errors import LogError
from tests.called_host import CalledHost

SHARDS = [f"shard-{index}" for index in range(8)]
_AT_ONCE = (QueryHoldings, SetDraining)
"""What a host answers though its writer or its log hangs."""
_TURNS = 20
_T = TypeVar("_T")
NOW_MS = 1_700_000_000_000
SILENT_S = 10.0
IDENTITIES_MAX = 3
ABOVE_PER_S = 40.0
QUIET_S = 20.0


class LocalCluster:
    """Hosts of one log, found by name, and a placer for each database that knows only its hosts."""

    def __init__(self, directory: Path, databases: int = 1) -> None:
        self.placement = Placement(len(SHARDS), hosts=1, databases=databases)
        self._dsns = [f"sqlite:{directory / f'log-{place}.db'}" for place in range(databases)]
        self._dsn_of: dict[str, str] = {}
        self._silent: dict[str, asyncio.Event] = {}
        self._every: list[CalledHost] = []
        self.hosts: dict[str, CalledHost] = {}
        self._asked: set[asyncio.Task[Any]] = set()
        self.steps: list[tuple[str, str, tuple[str, ...]]] = []
        self.released = asyncio.Event()
        self.now_s = 0.0
        self.now_ms = NOW_MS
        """By the clocks of the hosts, which stand still unless a test says otherwise."""
        self.placers: list[Placer] = []
        for database in range(databases):
            self.new_placer(database)

    @property
    def placer(self) -> Placer:
        """The placer of the first database."""
        return self.placers[0]

    def placer_of(self, did: str) -> Placer:
        """The placer of an identity's database."""
        return self.placers[self.placement.database_of(did)]

    def new_placer(self, database: int = 0, **policy: Any) -> Placer:
        """A placer that knows nothing, in place of the last."""
        rules = DedicationRules(
            placement=self.placement,
            database=database,
            silent_s_max=SILENT_S,
            identities_max=IDENTITIES_MAX,
            above_per_s=ABOVE_PER_S,
            quiet_s=QUIET_S,
        )
        rules = msgspec.structs.replace(rules, **policy)
        shards = HostsOfKind(self, HOST_PREFIX, database)
        identities = HostsOfKind(self, DEDICATED_HOST_PREFIX, database)
        placer = Placer(shards, identities, rules, version=1)
        self.placers[database : database + 1] = [placer]
        return placer

    async def lose_placer(self) -> None:
        """The placer dies in the middle of what it does; the next one knows nothing of it."""
        (placer,) = self.placers
        running = [*placer._tasks._under_way]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *self._asked, return_exceptions=True)
        self.new_placer()

    async def asks(self, run: Callable[..., _T], *arguments: Any) -> _T:
        """What a host answers; it does so also when the caller has given up."""
        request = asyncio.create_task(asyncio.to_thread(run, *arguments))
        self._asked.add(request)
        request.add_done_callback(self._asked.discard)
        return await asyncio.shield(request)

    def start(self, name: str, node: str) -> None:
        """A new host, which owns nothing."""
        self.start_on(self._dsns[self.placement.database_of_host(name)], name, node)

    def start_on(self, dsn: str, name: str, node: str) -> None:
        """A new host on this database, which owns nothing."""
        limits = HostLimits(dedicate_above_commands_per_s=ABOVE_PER_S)
        options = HostOptions(name, dsn, None, limits, node)
        self._dsn_of[name] = dsn
        self.hosts[name] = CalledHost(options, lambda *_: None, clock=lambda: self.now_ms)
        self._every.append(self.hosts[name])

    def found_in(self, database: int) -> Collection[str]:
        """The hosts with rows in this database."""
        return [name for name in self.hosts if self._dsn_of[name] == self._dsns[database]]

    def start_dedicated(self, did: str, beside: str) -> None:
        """A new dedicated host on the node of another host, unless there is one."""
        node = self.hosts[beside].holdings().node
        name = dedicated_host_name(did, node)
        if name not in self.hosts:
            self.steps.append(("start", name, ()))
            self.start_on(self._dsn_of[beside], name, node)

    def end(self, name: str) -> None:
        """The host ends as the placer orders it."""
        self.steps.append(("end", name, ()))
        self.kill(name)

    def kill(self, name: str) -> None:
        """The host is gone, and its name with it."""
        del self.hosts[name]

    def silence(self, name: str) -> None:
        """The host answers nothing until it is woken, while its name stays."""
        self._silent[name] = asyncio.Event()

    def wake(self, name: str) -> None:
        """The host answers again, also what it was asked meanwhile."""
        self._silent.pop(name).set()

    async def stop(self) -> None:
        """End whatever was started."""
        for placer in self.placers:
            await placer.close()
        for host in self._every:
            await asyncio.to_thread(host.stop)

    async def tick(self, passed_s: float = 0.5) -> None:
        """Let the placer look once, and finish what it began."""
        self.now_s += passed_s
        for placer in self.placers:
            await placer.tick(self.now_s)
            await placer.close()

    async def look(self, passed_s: float) -> None:
        """Let the placer look once, and hosts answer it; what it began earlier may go on."""
        earlier = {*self._asked}
        self.now_s += passed_s
        await self.placer.tick(self.now_s)
        for _ in range(_TURNS):
            if questions := self._asked - earlier:
                await asyncio.wait(questions)
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the placer look until nothing changes any more."""
        steps = -1
        while len(self.steps) != steps:
            steps = len(self.steps)
            await self.tick()
            await self.tick()

    async def table(self) -> dict[str, str]:
        """Who owns what, as edges see it."""
        return {shard: owner.host for shard, owner in (await self.whole_table()).owners.items()}

    async def sessions(self) -> dict[str, str]:
        """The ids of the sessions of every shard, as edges see it."""
        return {shard: owner.sessions for shard, owner in (await self.whole_table()).owners.items()}

    async def whole_table(self) -> PlacementTable:
        """The tables of all placers as one, as edges see it."""
        return merged([await placer.table(-1, seconds_max=0) for placer in self.placers])

    async def counts(self) -> dict[str, int]:
        """How many shards each living host has, as edges see it."""
        owners = list((await self.table()).values())
        return {name: owners.count(name) for name in sorted(self.hosts)}

    async def reach(self, name: str) -> CalledHost:
        """A host that answers now. Raises: HostUnavailable."""
        while name in self._silent:
            await self._silent[name].wait()
        if name not in self.hosts:
            raise HostUnavailable(name)
        return self.hosts[name]


class HostsOfKind:
    """The hosts of a kind and a database among those of a cluster."""

    def __init__(self, cluster: LocalCluster, prefix: str, database: int) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._database = database

    async def names(self) -> Collection[str]:
        """The hosts that live, for the placer."""
        found = self._cluster.found_in(self._database)
        return {name for name in found if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The way to a host, for the placer."""
        return _Port(self._cluster, name)


class _Port:
    """The way to a host by its name, whichever has it now."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def ask(self, question: HostQuestion[A]) -> A:
        host = await self._cluster.reach(self._name)
        if type(question) in _AT_ONCE:
            return host.ask(question)
        if isinstance(question, StartDedicated):
            return cast("A", self._cluster.start_dedicated(question.did, self._name))
        if isinstance(question, EndHost):
            return cast("A", self._cluster.end(self._name))
        self._note(cast("AnyQuestion", question))
        try:
            answer: A = await self._cluster.asks(host.ask, question)
        except LogError as error:
            raise HostUnavailable(self._name) from error
        if isinstance(question, ReleasePartitions):
            self._cluster.released.set()
        return answer

    def _note(self, question: AnyQuestion) -> None:
        match question:
            case ReleasePartitions(names):
                self._cluster.steps.append(("release", self._name, tuple(names)))
            case AdoptPartitions(names):
                self._cluster.steps.append(("adopt", self._name, tuple(names)))
            case HandOut(did):
                self._cluster.steps.append(("hand out", self._name, (did,)))
            case Expect(did):
                self._cluster.steps.append(("expect", self._name, (did,)))
            case TakeIn(did):
                self._cluster.steps.append(("take in", self._name, (did,)))
            case _:
                pass

    async def submit(self, batch: bytes) -> bytes:
        host = await self._cluster.reach(self._name)
        self._cluster.steps.append(("submit", self._name, ()))
        return await self._cluster.asks(host.submit, "placer", batch)
