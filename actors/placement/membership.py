"""Membership: which hosts exist, what each reported last, what it owns, and whether it is silent.

Names come from the rows of the living hosts, everything else from the hosts themselves. So a new
``Membership`` knows everything again as soon as each host has answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from actors.core.placement_table import HostHoldings, PartitionOwner, begun_by
from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_finder import HostFinder
from actors.host.port import (
    A,
    AdoptPartitions,
    HostQuestion,
    HostUnavailable,
    OwnerPort,
    QueryHoldings,
    ReleasePartitions,
    SetDraining,
)
from actors.host.tasks import Tasks

_LOG = logging.getLogger(__name__)
_ANSWER_S: Final = 0.4
"""How long to wait for the answers of all hosts; a later answer counts when it comes."""


class Hosts(Protocol):
    """Finds hosts: by their rows, or in this process."""

    async def names(self) -> Collection[str]:
        """The living hosts.

        Raises:
            HostUnavailable: the living hosts cannot be found out now.
        """

    def port(self, name: str) -> OwnerPort:
        """The port of the host with this name."""


class LeasedHosts:
    """The hosts of a database whose names have the same prefix, reached by connections."""

    def __init__(self, prefix: str, finder: HostFinder, caller: Caller, database: int) -> None:
        self._prefix = prefix
        self._finder = finder
        self._caller = caller
        self._database = database

    async def names(self) -> Collection[str]:
        """Those with rows in the database. Raises: HostUnavailable."""
        living = await self._finder.living_in(self._database)
        return {name for name in living if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The port of the host with this name."""
        return ConnectedHostPort(self._caller, name, self._finder)


class _Entry(msgspec.Struct):
    """One host. ``steps`` counts the starts and the ends of our changes to its holdings."""

    port: OwnerPort
    answered_s: float
    holdings: HostHoldings | None = None
    is_silent: bool = False
    steps: int = 0
    asking: asyncio.Task[None] | None = None


class Membership:
    """The last report of every host, and the owners of partitions by reports and by our moves."""

    def __init__(
        self, hosts: Hosts, moving: Container[str], tasks: Tasks, *, silent_s_max: float
    ) -> None:
        """An empty membership.

        Args:
            hosts: finds the hosts.
            moving: the partitions that are being moved; hosts' reports on them are ignored.
            tasks: holds the requests under way.
            silent_s_max: a host that is silent for longer is given up until it answers again.
        """
        self._hosts = hosts
        self._moving = moving
        self._tasks = tasks
        self._silent_s_max = silent_s_max
        self._entries: dict[str, _Entry] = {}
        self._draining: dict[str, HostHoldings] = {}
        self._now_s = 0.0
        self._owners: dict[str, PartitionOwner] = {}

    @property
    def owners(self) -> Mapping[str, PartitionOwner]:
        """The owner of each partition: as the hosts report, and of a moving one by its moves."""
        return self._owners

    async def ask(self, now_s: float) -> None:
        """Find the hosts, ask each for its holdings, and note which have been silent too long.

        Raises:
            HostUnavailable: the hosts could not be found; nothing has changed.
        """
        names = await self._hosts.names()
        self._now_s = now_s
        for name in self._entries.keys() - names:
            if (asking := self._entries.pop(name).asking) is not None:
                asking.cancel()
        for name in sorted(names - self._entries.keys()):
            self._entries[name] = _Entry(self._hosts.port(name), now_s)
        for entry in self._entries.values():
            if entry.asking is None or entry.asking.done():
                entry.asking = asyncio.create_task(self._query(entry))
        queries = [entry.asking for entry in self._entries.values() if entry.asking is not None]
        if queries:
            await asyncio.wait(queries, timeout=_ANSWER_S)
        for entry in self._entries.values():
            entry.is_silent = now_s - entry.answered_s > self._silent_s_max
        self._disown_if(lambda _, owner: not self.lives(owner.host))

    def living(self) -> list[HostHoldings]:
        """The last holdings of each host that has answered and is not given up."""
        entries = [entry for entry in self._entries.values() if not entry.is_silent]
        return [entry.holdings for entry in entries if entry.holdings is not None]

    def lives(self, name: str) -> bool:
        """Has this host answered, and is it not given up?"""
        entry = self._entries.get(name)
        return entry is not None and entry.holdings is not None and not entry.is_silent

    def names(self) -> Collection[str]:
        """All known hosts, including those that have not answered yet."""
        return self._entries.keys()

    def is_silent(self, name: str) -> bool:
        """Is this host given up?"""
        return self._entries[name].is_silent

    @property
    def is_complete(self) -> bool:
        """Has every known host either answered or been given up?"""
        return all(entry.holdings or entry.is_silent for entry in self._entries.values())

    @property
    def has_answered(self) -> bool:
        """Has every known host answered the last look?"""
        entries = self._entries.values()
        return all(entry.holdings and entry.answered_s == self._now_s for entry in entries)

    def port(self, name: str) -> OwnerPort:
        """The port of a host, for questions that do not change its holdings.

        Raises:
            HostUnavailable: there is no such host any more.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise HostUnavailable(name)
        return entry.port

    async def release(self, name: str, partitions: Sequence[str]) -> bytes:
        """Have a host give up moving partitions; return the handover for their next owner.

        Raises:
            HostUnavailable: there is no such host any more, or it did not answer; it stays owner.
        """
        handover = await self._change(name, ReleasePartitions([*partitions]))
        self.disown(partitions)
        return handover

    async def adopt(self, name: str, partitions: Sequence[str], handover: bytes | None) -> None:
        """Have a host own moving partitions, with what the handover holds, if there is one.

        Raises:
            HostUnavailable: there is no such host any more, or it did not answer.
        """
        sessions = await self._change(name, AdoptPartitions([*partitions], handover))
        self._owners |= {one: PartitionOwner(name, sessions[one]) for one in partitions}

    def disown(self, partitions: Sequence[str]) -> None:
        """Note that moving partitions have no owner now."""
        for partition in partitions:
            self._owners.pop(partition, None)

    async def _change(self, name: str, question: HostQuestion[A]) -> A:
        """Ask a host to change its holdings; holdings that it reports before the end are ignored.

        Raises: HostUnavailable.
        """
        self._stepped(name)
        try:
            return await self.port(name).ask(question)
        finally:
            self._stepped(name)

    def _stepped(self, name: str) -> None:
        if name in self._entries:
            self._entries[name].steps += 1

    async def drain(self, node: str, *, draining: bool) -> None:
        """Set or clear the draining flag of the living hosts of a node.

        Raises:
            HostUnavailable: a host of the node did not answer.
        """
        names = [host.name for host in self.living() if host.node == node]
        if not draining:
            self._draining = {n: said for n, said in self._draining.items() if said.node != node}
        await asyncio.gather(*[self._change(name, SetDraining(draining)) for name in names])
        for entry in self._entries.values():
            if entry.holdings is not None and entry.holdings.name in names:
                self._keep(entry, msgspec.structs.replace(entry.holdings, draining=draining))

    async def _query(self, entry: _Entry) -> None:
        steps = entry.steps
        try:
            holdings = await entry.port.ask(QueryHoldings())
            before = self._draining.get(holdings.name, holdings)
            if before.incarnation != holdings.incarnation and not holdings.draining:
                # The host was draining and has restarted: it goes on draining.
                await entry.port.ask(SetDraining(draining=True))
                holdings = msgspec.structs.replace(holdings, draining=True)
        except HostUnavailable:
            return
        entry.answered_s = self._now_s
        entry.is_silent = False
        if entry.holdings is None or entry.steps == steps:
            self._keep(entry, holdings)
            self._take(holdings)

    def _keep(self, entry: _Entry, holdings: HostHoldings) -> None:
        entry.holdings = holdings
        if holdings.draining:
            self._draining[holdings.name] = holdings
        else:
            self._draining.pop(holdings.name, None)

    def _take(self, holdings: HostHoldings) -> None:
        """Take over the partitions that a host reports, and release those that others own now."""
        name = holdings.name
        self._disown_if(lambda partition, o: o.host == name and partition not in holdings.shards)
        strays = []
        for partition, sessions in holdings.shards.items():
            owner = self._owners.get(partition)
            if partition in self._moving:
                continue
            # A host that claims it because the owner is silent begins new sessions.
            is_newer = owner is not None and 0 < begun_by(owner.sessions) < begun_by(sessions)
            if owner is None or is_newer or owner.host == name or not self.lives(owner.host):
                self._owners[partition] = PartitionOwner(name, sessions)
            else:
                strays.append(partition)
        if strays:
            # Do not log its name, which may contain a DID.
            _LOG.warning("a host still claims %d partitions that it has lost", len(strays))
            _ = self._tasks.run(self._take_from(name, strays))

    def _disown_if(self, is_lost: Callable[[str, PartitionOwner], bool]) -> None:
        self.disown([p for p, o in self._owners.items() if p not in self._moving and is_lost(p, o)])

    async def _take_from(self, name: str, strays: list[str]) -> None:
        """Tell a host that it no longer owns these partitions, as the log says already."""
        with contextlib.suppress(HostUnavailable):
            await self._change(name, ReleasePartitions(strays))
