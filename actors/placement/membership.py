"""Membership: which hosts exist, what each reported last, and since when it is silent.

Names come from the rows of the hosts that live, everything else from the hosts themselves, so a new
``Membership`` knows all of it again as soon as each host has answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import msgspec

from actors.core.placement_table import HostHoldings
from actors.host.port import HostUnavailable, OwnerPort, QueryHoldings, SetDraining
from actors.placement.assignment import HostSeen

_ANSWER_S: Final = 0.4
"""How long all wait for the answers; a later one counts when it comes."""


class Hosts(Protocol):
    """Where hosts are found: by their rows, or in this process."""

    async def names(self) -> Collection[str]:
        """The hosts that live.

        Raises:
            HostUnavailable: that cannot be found out now.
        """

    def port(self, name: str) -> OwnerPort:
        """The way to the host of this name."""


class _Entry(msgspec.Struct):
    """One host. ``steps`` counts the beginnings and ends of moves that concern it."""

    port: OwnerPort
    answered_s: float
    holdings: HostHoldings | None = None
    is_silent: bool = False
    steps: int = 0
    asking: asyncio.Task[None] | None = None


class Membership:
    """What is known of every host."""

    def __init__(
        self, hosts: Hosts, on_holdings: Callable[[HostHoldings], None], *, silent_s_max: float
    ) -> None:
        """An empty membership.

        ``on_holdings`` gets what a host owns by its answer, unless a move has changed it since.
        A host that is silent for more than ``silent_s_max`` is given up until it answers again.
        """
        self._hosts = hosts
        self._take_holdings = on_holdings
        self._silent_s_max = silent_s_max
        self._entries: dict[str, _Entry] = {}
        self._lost_draining: set[str] = set()
        self._now_s = 0.0

    async def ask(self, now_s: float) -> None:
        """Look who there is, ask each what it owns, and note who has been silent for too long.

        Raises:
            HostUnavailable: who there is could not be found out; nothing has changed.
        """
        names = await self._hosts.names()
        self._now_s = now_s
        for name in self._entries.keys() - names:
            self._forget(self._entries.pop(name))
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

    def living(self) -> list[HostSeen]:
        """The hosts that have answered and are not given up."""
        return [
            HostSeen(holdings.name, holdings.node, holdings.draining)
            for entry in self._entries.values()
            if (holdings := entry.holdings) is not None and not entry.is_silent
        ]

    def lives(self, name: str) -> bool:
        """Has this host answered, and is it not given up?"""
        entry = self._entries.get(name)
        return entry is not None and entry.holdings is not None and not entry.is_silent

    def names(self) -> Collection[str]:
        """The hosts that there are, those that have not answered yet among them."""
        return self._entries.keys()

    def holdings(self) -> list[HostHoldings]:
        """What each host that is not given up reported last."""
        entries = [entry for entry in self._entries.values() if not entry.is_silent]
        return [entry.holdings for entry in entries if entry.holdings is not None]

    def is_silent(self, name: str) -> bool:
        """Is this host given up?"""
        return self._entries[name].is_silent

    @property
    def is_complete(self) -> bool:
        """Has every host that there is either answered or been given up?"""
        return all(entry.holdings or entry.is_silent for entry in self._entries.values())

    @property
    def is_empty(self) -> bool:
        """Is there no host?"""
        return not self._entries

    def port(self, name: str) -> OwnerPort:
        """The port of a host, for what changes no ownership.

        Raises:
            HostUnavailable: there is no such host any more.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise HostUnavailable(name)
        return entry.port

    def step(self, name: str) -> OwnerPort:
        """The port of a host for a step of a move; answers from before count no more.

        Raises:
            HostUnavailable: there is no such host any more.
        """
        port = self.port(name)
        self._entries[name].steps += 1
        return port

    def stepped(self, names: Sequence[str | None]) -> None:
        """A step is over: answers from during it count no more."""
        for name in names:
            if name in self._entries:
                self._entries[name].steps += 1

    async def drain(self, name: str, *, draining: bool) -> None:
        """Set or clear the flag of a host.

        Raises:
            HostUnavailable: it did not answer.
        """
        await self.step(name).ask(SetDraining(draining))
        self._lost_draining.discard(name)
        entry = self._entries.get(name)
        if entry is not None and entry.holdings is not None:
            entry.holdings = msgspec.structs.replace(entry.holdings, draining=draining)
            entry.steps += 1

    def _forget(self, entry: _Entry) -> None:
        """A host lives no more; started anew it is to be emptied still, unless its node is new."""
        if entry.asking is not None:
            entry.asking.cancel()
        if entry.holdings is not None and entry.holdings.draining:
            self._lost_draining.add(entry.holdings.name)

    async def _query(self, entry: _Entry) -> None:
        steps = entry.steps
        try:
            holdings = await entry.port.ask(QueryHoldings())
            if self._forgot_to_drain(entry, holdings):
                await entry.port.ask(SetDraining(draining=True))
                self._lost_draining.discard(holdings.name)
                holdings = msgspec.structs.replace(holdings, draining=True)
        except HostUnavailable:
            return
        entry.answered_s = self._now_s
        entry.is_silent = False
        if entry.holdings is None or entry.steps == steps:
            entry.holdings = holdings
            self._take_holdings(holdings)

    def _forgot_to_drain(self, entry: _Entry, holdings: HostHoldings) -> bool:
        """A host that was being emptied and started anew is to be emptied still."""
        before = entry.holdings
        if before is None:
            return holdings.name in self._lost_draining and not holdings.draining
        if not before.draining or holdings.draining:
            return False
        return before.incarnation != holdings.incarnation
