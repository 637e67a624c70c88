"""Links to the placers: one for each database of the log, found by the rows of their processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from typing_extensions import override

from actors.core.partitioning import Placement, shard_name
from actors.core.placement_table import PlacementTable
from actors.host.clock import new_id
from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_finder import HostFinder
from actors.host.port import A, HostQuestion, HostUnavailable
from actors.placement.port import (
    Dedicate,
    Drained,
    DrainNode,
    FollowTable,
    MoveShard,
    Order,
    Placed,
    PlacerLease,
    PlacerPort,
    Places,
    PlacesOfAll,
    QueryPlaces,
    QueryServed,
    Release,
    ShardPlace,
    Silent,
)

_ANSWER_S_MAX: Final = 3.0
_ORDER_S_MAX: Final = 60.0
"""Time for an order, which may have to start a process and move shards."""


class PlacerLink:
    """The link to the process that has the role of the placer of one database."""

    def __init__(self, name: str, finder: HostFinder, placer: str) -> None:
        """A link of the process ``name`` to ``placer``, see ``PlacerLease``; it connects later."""
        caller = Caller(f"{name} {new_id()}", _ORDER_S_MAX)
        self._port = ConnectedHostPort(caller, placer, finder)
        self._placer = placer

    async def table(self, known_version: int) -> PlacementTable:
        """See ``Placer.table``. Raises: HostUnavailable."""
        return await self._ask(FollowTable(known_version))

    async def places(self) -> Places:
        """See ``Placer.places``. Raises: HostUnavailable."""
        return await self._ask(QueryPlaces())

    async def served(self) -> list[int]:
        """The databases each of whose shards has an owner, as that process learns from all placers.

        Raises: HostUnavailable.
        """
        return await self._ask(QueryServed(), 2 * _ANSWER_S_MAX)

    async def order(self, order: Order | DrainNode) -> Placed:
        """Carry out an order. Raises: HostUnavailable."""
        return await self._ask(order, _ORDER_S_MAX)

    async def _ask(self, question: HostQuestion[A], seconds_max: float = _ANSWER_S_MAX) -> A:
        try:
            async with asyncio.timeout(seconds_max):
                return await self._port.ask(question)
        except (HostUnavailable, TimeoutError) as error:
            # The process may hang, or have lost the role: look up the lease again.
            self._port.close()
            raise HostUnavailable(self._placer) from error


class PlacerLinks(PlacerPort):
    """The placers of all databases, as one to an operator."""

    def __init__(self, name: str, finder: HostFinder, placement: Placement) -> None:
        """Links of the process ``name``; they connect later."""
        self._placement = placement
        count = placement.databases
        self.each: Final = [
            PlacerLink(name, finder, PlacerLease.of(number, count).name) for number in range(count)
        ]
        """The link to the placer of each database, in their order."""

    @override
    async def places(self) -> PlacesOfAll:
        said = await self._of_each(PlacerLink.places)
        silent = self._silent(said)
        known = [places for places in said if places is not None]
        shards = {place.shard: place for places in known for place in places.shards}
        return PlacesOfAll(
            [shards.get(s, ShardPlace(s, None, None)) for s in self._names()],
            sorted((h for p in known for h in p.hosts), key=lambda host: (host.node, host.host)),
            sorted((i for p in known for i in p.identities), key=lambda identity: identity.did),
            silent,
        )

    async def served(self) -> list[int]:
        """The databases each of whose shards has an owner."""
        return [
            number
            for number, places in enumerate(await self._of_each(PlacerLink.places))
            if places is not None and all(place.host for place in places.shards)
        ]

    @override
    async def order(self, order: Order) -> Placed:
        match order:
            case MoveShard(shard, to):
                if shard not in self._names():
                    return Placed.NO_SUCH_SHARD
                placed = await self.each[self._placement.database_of_shard(shard)].order(order)
                if placed is Placed.NO_SUCH_HOST and await self._lives(to):
                    return Placed.OTHER_DATABASE
                return placed
            case Dedicate(did) | Release(did):
                return await self.each[self._placement.database_of(did)].order(order)

    @override
    async def drain(self, order: DrainNode) -> Drained:
        # A placer knows no node that has no hosts of its database.
        placed = await self._of_each(lambda link: link.order(order))
        silent = self._silent(placed)
        worst_first = (Placed.DID_NOT_ANSWER, Placed.NO_OTHER_NODE, Placed.DONE)
        worst = next((one for one in worst_first if one in placed), Placed.NO_SUCH_NODE)
        return Drained(worst, silent)

    def _silent(self, said: Sequence[object | None]) -> Silent:
        """The databases whose placers did not answer. Raises: HostUnavailable: all of them."""
        silent = [number for number, one in enumerate(said) if one is None]
        if len(silent) == len(said):
            raise HostUnavailable("no placer answers")
        return {number: [*self._placement.shards_of(number)] for number in silent}

    async def _lives(self, name: str) -> bool:
        """Is there a living host, of any database, with this name or on a node of this name?"""
        return any(name in {place.host, place.node} for place in (await self.places()).hosts)

    async def _of_each(self, ask: Callable[[PlacerLink], Awaitable[A]]) -> Sequence[A | None]:
        """What each placer answers, in the order of databases; None if it does not."""

        async def answer(link: PlacerLink) -> A | None:
            try:
                return await ask(link)
            except HostUnavailable:
                return None

        return await asyncio.gather(*map(answer, self.each))

    def _names(self) -> Sequence[str]:
        return [shard_name(number) for number in range(self._placement.shards)]
