"""This node's part in a cluster: how it joins, stands by as placer of each database, and leaves.

A cluster consists of the nodes whose hosts have rows in the same log. A node leaves by giving its
shards away.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from actors.core.partitioning import DEDICATED_HOST_PREFIX, HOST_PREFIX
from actors.host.clock import new_id, system_clock
from actors.host.connected_host import Caller
from actors.host.port import HostUnavailable
from actors.placement.membership import LeasedHosts
from actors.placement.placer import Placer
from actors.placement.placer_link import PlacerLink, PlacerLinks
from actors.placement.placer_role import PlacerRole
from actors.placement.port import DrainNode, Placed, PlacerLease
from http_edge.server.exits import Exit, Stop
from http_edge.server.hosts import dedication_rules, host_finder, host_leases, placement_of
from http_edge.settings.settings import Settings

_POLL_S: Final = 0.1
_LATE_S: Final = 1.0
"""How long a host goes on answering after it has given its shards away: until an edge knows the new
owner, it may send commands to the old one, whose answer redirects them."""
_NAME_CHARS_MAX: Final = 63
ENDING_S_MAX: Final = 6.0
"""Time for the processes of a killed node to end: until then they renew their leases."""
_CALL_S_MAX: Final = 10.0
"""Time for a step of a move, which waits for a running transaction and then stores a claim."""
Vital: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Runs a coroutine in a task whose failure ends the process."""


def node_name() -> str:
    """The name of this machine, in the letters that a node's name may have."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower())
    return name[:_NAME_CHARS_MAX].strip(".-") or "node"


class ClusterNode:
    """One node of a cluster, or the only node of a mediator with a placer."""

    def __init__(self, settings: Settings, away: Collection[int] = (), *, vital: Vital) -> None:
        """A node that has not joined yet; ``settings.node`` is its name, None if it is alone.

        ``away`` are the databases that it does not serve now: the caller removes one that has
        passed the checks of a start, and calls ``stand_by``. Roles run as ``vital``: a node that
        went on without one could never take it over.
        """
        self.name = settings.node or ""
        self._settings = settings
        self._away = away
        self._vital = vital
        self._finder = host_finder(settings, lambda: away)
        self._placers = PlacerLinks(f"serve-{self.name}", self._finder, placement_of(settings))
        # All placers of this process share a name: a new one's connections end the old one's.
        self._caller = Caller(f"placer {new_id()}", _CALL_S_MAX)
        self._roles: dict[int, PlacerRole] = {}
        self._is_leaving = False
        self._name_s_max = settings.limits.host_lease_s + ENDING_S_MAX
        self._running: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Stand by as each placer, or become it, once no other living node has this node's name.

        Raises:
            Stop: another node keeps the name for longer than a killed node would.
        """
        deadline_s = time.monotonic() + self._name_s_max
        while self.name and (other := await self._namesake()) is not None:
            if time.monotonic() > deadline_s:
                raise Stop(
                    Exit.USAGE,
                    f"Another node of the cluster has the same name: {other} is running.",
                    "Give each node a name of its own: --set node=NAME.",
                )
            await asyncio.sleep(_POLL_S)
        for database in range(len(self._settings.log_dsns)):
            if database not in self._away:
                self.stand_by(database)

    def stand_by(self, database: int) -> None:
        """Stand by as the placer of a database that has passed the checks of a start."""
        role = self._role(database)
        self._roles[database] = role
        self._running.append(self._vital(role.run(self._settings.host_address)))

    async def _namesake(self) -> str | None:
        """A living host of shards on a node of this name: an earlier process, or another node."""
        try:
            living = await self._finder.living()
        except HostUnavailable:
            return None
        hosts = [name for name in living if name.startswith(HOST_PREFIX)]
        return next((name for name in hosts if living[name].node == self.name), None)

    async def served_elsewhere(self) -> Collection[int]:
        """Databases unreachable from here that, according to another node, are fully served.

        This node cannot reach their placers; the process of any other placer can.
        """
        for number, link in enumerate(self._placers.each):
            if number not in self._away:
                with contextlib.suppress(HostUnavailable):
                    return [database for database in await link.served() if database in self._away]
        return ()

    async def until_served(self) -> None:
        """Return when every shard has an owner, and no host of this node is being drained.

        A node that was drained and stopped gets shards again when it starts. Shards of databases
        that are away need no owner.
        """
        await self._of_each(self._is_served)

    async def leave(self) -> None:
        """Give all shards to other nodes; return when none is left here or no node takes them.

        A placer or a host that does not answer is asked again: the caller limits the time. This
        node has no shards of databases that are away, and none can move in one that does not answer
        any more.
        """
        self._is_leaving = True
        await self._of_each(self._has_left)

    async def _of_each(self, is_done: Callable[[int, PlacerLink], Awaitable[bool]]) -> None:
        """Return once ``is_done`` is true of each database that is not away, by its number."""

        async def done(number: int, placer: PlacerLink) -> None:
            while True:
                with contextlib.suppress(HostUnavailable):
                    if await is_done(number, placer):
                        return
                await asyncio.sleep(_POLL_S)

        links = enumerate(self._placers.each)
        await asyncio.gather(
            *[done(number, link) for number, link in links if number not in self._away]
        )

    async def _is_served(self, _: int, placer: PlacerLink) -> bool:
        """Does every shard of this placer have an owner? First end the draining of this node."""
        places = await placer.places()
        here = [host for host in places.hosts if host.node == self.name]
        if any(host.draining for host in here):
            await placer.order(DrainNode(self.name, draining=False))
            return False
        return bool(here) and all(place.host for place in places.shards)

    async def _has_left(self, database: int, placer: PlacerLink) -> bool:
        """Order to drain this node; is no shard of this placer left, or can none be taken?"""
        if not await self._finder.is_there(database):
            return True
        places = await placer.places()
        here = [host for host in places.hosts if host.node == self.name]
        others = [h for h in places.hosts if h.node != self.name and not h.draining]
        left = [place for place in places.identities if place.node == self.name]
        if not left and not any(host.shards for host in here):
            await asyncio.sleep(_LATE_S)
            return True
        if not others:
            return True
        if all(host.draining for host in here):
            return False
        placed = await placer.order(DrainNode(self.name, draining=True))
        return placed not in {Placed.DONE, Placed.DID_NOT_ANSWER}

    async def stop(self) -> None:
        """Give up the roles of placers, and stop standing by."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*[role.leave() for role in self._roles.values()])
        await asyncio.to_thread(self._finder.close)

    def _role(self, database: int) -> PlacerRole:
        """This process's part in placing one database."""
        settings, count = self._settings, len(self._settings.log_dsns)
        return PlacerRole(
            PlacerLease.of(database, count),
            partial(self._new_placer, database),
            host_leases(settings, database),
            self._placers.served,
            node=self.name,
            lease_s=settings.limits.host_lease_s,
            lowest=self._lowest_placed,
        )

    def _lowest_placed(self) -> int | None:
        """The lowest number of a database whose placer this process is, and will be for a while."""
        if self._is_leaving:
            return None
        return min((n for n, role in self._roles.items() if role.is_placer), default=None)

    def _new_placer(self, database: int) -> Placer:
        return Placer(
            LeasedHosts(HOST_PREFIX, self._finder, self._caller, database),
            LeasedHosts(DEDICATED_HOST_PREFIX, self._finder, self._caller, database),
            dedication_rules(self._settings, database),
            version=system_clock(),
        )
