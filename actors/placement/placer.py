"""The placer of a database: gives each of its shards one owner, and publishes the owners.

The placer stores nothing. It knows the living hosts from their rows, and the owners from the hosts;
if two hosts believe that they own a shard, the log has fenced one of them off. So a placer may die
at any time: the next one asks every host and goes on, and meanwhile each host keeps its shards.

A shard without an owner gets one at once. Owned shards are moved only when a host comes, goes or is
to be drained; until then a shard stays where an operator moved it.

A host works on one database of the log. So each database has a placer of its own, which knows only
the hosts, shards and dedicated identities of that database, and works whether or not another
database can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from actors.core.placement_table import PlacementTable
from actors.host.port import HostUnavailable
from actors.host.tasks import Tasks
from actors.placement.assignment import Move, assign
from actors.placement.dedicated_places import DedicatedPlaces
from actors.placement.dedication import DedicationRules
from actors.placement.membership import Hosts, Membership
from actors.placement.port import HostPlace, Placed, Places, ShardPlace

_LOG = logging.getLogger(__name__)
_TOGETHER: Final = 4
"""Shards that move in one step: a step costs two commits, but each shard waits for all of them."""


class Placer:
    """Decides which host owns which shard, and moves the shards."""

    def __init__(
        self,
        hosts: Hosts,
        dedicated_hosts: Hosts,
        rules: DedicationRules,
        *,
        version: int,
    ) -> None:
        """A placer that knows of no host yet; see ``tick``.

        Args:
            hosts: finds the hosts of shards, all of them of ``rules.database``.
            dedicated_hosts: finds the hosts of single identities, also of that database alone.
            rules: the shards, and when identities are dedicated.
            version: of the first table; above that of every earlier placer.
        """
        placement = rules.placement
        shards = self._shards = placement.shards_of(rules.database)
        self._tasks = Tasks()
        self._moving: dict[str, Move] = {}
        self._membership = Membership(
            hosts, self._moving, self._tasks, silent_s_max=rules.silent_s_max
        )
        self._owners = self._membership.owners
        self._seen_owned: set[str] = set()
        self._locks = {shard: asyncio.Lock() for shard in shards}
        self.dedicated = DedicatedPlaces(
            self._membership,
            self._locks,
            dedicated_hosts,
            rules,
            tasks=self._tasks,
            on_change=self._publish,
        )
        """Places dedicated identities, and takes operators' orders about them."""
        self._spread_over: dict[str, bool] | None = None
        self._table = PlacementTable(version, {}, {})
        self._changed = asyncio.Event()
        self._is_complete = asyncio.Event()

    async def tick(self, now_s: float) -> None:
        """Ask every host and start the moves that are due; ``now_s`` never goes back."""
        with contextlib.suppress(HostUnavailable):
            await asyncio.gather(self._membership.ask(now_s), self.dedicated.membership.ask(now_s))
            self._start(self._due())
            self.dedicated.act(now_s)
            if self._membership.is_complete and self.dedicated.membership.is_complete:
                self._is_complete.set()
        self._publish()

    async def knows_hosts(self, *, seconds_max: float) -> bool:
        """Wait until every host has answered or been given up; does the placer know its hosts?

        A caller that acted on an earlier answer would take every host for lost. After
        ``seconds_max`` one known host is enough.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._is_complete.wait()
        return self._is_complete.is_set() or bool(self._membership.names())

    async def table(self, known_version: int, *, seconds_max: float) -> PlacementTable:
        """Wait until the table has another version than ``known_version``; return the table.

        After ``seconds_max`` return the same table again.
        """
        if self._table.version == known_version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._changed.wait()
        return self._table

    def places(self) -> Places:
        """The places of all shards and dedicated identities, and the living hosts."""
        living = sorted(self._membership.living(), key=lambda host: (host.node, host.name))
        nodes = {host.name: host.node for host in living}
        owners = {shard: owner.host for shard, owner in self._owners.items()}
        moving = {shard: move.to for shard, move in self._moving.items()}
        held = list(owners.values())
        return Places(
            [
                ShardPlace(s, host := owners.get(s), nodes.get(host or ""), moving.get(s))
                for s in self._shards
            ],
            [HostPlace(h.name, h.node, held.count(h.name), h.draining) for h in living],
            self.dedicated.places(),
        )

    async def move(self, shard: str, to: str) -> Placed:
        """Move a shard to a host, or to a node's host with the fewest shards; wait for the end."""
        if shard not in self._shards:
            return Placed.NO_SUCH_SHARD
        hosts = sorted(
            (h for h in self.places().hosts if to in {h.host, h.node}), key=lambda h: h.shards
        )
        if not hosts:
            return Placed.NO_SUCH_HOST
        if shard in self._moving:
            return Placed.MOVING_NOW
        owner = self._owners.get(shard)
        if owner is not None and owner.host in {host.host for host in hosts}:
            return Placed.DONE
        target = hosts[0].host
        frm = None if owner is None else owner.host
        await asyncio.gather(*self._start([Move(shard, frm, target)]))
        now = self._owners.get(shard)
        return Placed.DONE if now and now.host == target else Placed.DID_NOT_ANSWER

    async def drain(self, node: str, *, draining: bool) -> Placed:
        """Begin or end draining the hosts of a node; the moves follow with the next tick.

        A node whose hosts are empty may be stopped without an interruption. A node is not drained
        if every other one is being drained: its shards would stay.
        """
        living = self._membership.living()
        if not any(host.node == node for host in living):
            return Placed.NO_SUCH_NODE
        if draining and all(h.node == node or h.draining for h in living):
            return Placed.NO_OTHER_NODE
        try:
            await self._membership.drain(node, draining=draining)
        except HostUnavailable:
            return Placed.DID_NOT_ANSWER
        return Placed.DONE

    @property
    def is_settled(self) -> bool:
        """Has every host just answered, and is nothing under way, due or ordered?

        Then another placer that begins now has nothing to make good.
        """
        owners = {shard: owner.host for shard, owner in self._owners.items()}
        # A placer that begins spreads the shards evenly, which would undo an operator's moves.
        is_even = not assign(self._shards, owners, self._membership.living())
        is_placed = self._spread_over is not None and is_even
        is_idle = not len(self._tasks) and not self.dedicated.has_orders
        views = self._membership, self.dedicated.membership
        return is_placed and is_idle and all(view.has_answered for view in views)

    async def close(self) -> None:
        """Wait for the moves that are under way."""
        await self._tasks.finish()

    def _due(self) -> list[Move]:
        """The moves to begin now."""
        self._seen_owned |= self._owners.keys()
        living = self._membership.living()
        owners = {shard: owner.host for shard, owner in self._owners.items()}
        owners |= {shard: move.to for shard, move in self._moving.items()}
        moves = assign(self._shards, owners, living)
        spread_over = {host.name: host.draining for host in living}
        if spread_over != self._spread_over:
            self._spread_over = None
        if not self._membership.is_complete:
            # A host that has not answered yet may own a shard that looks unowned.
            moves = [m for m in moves if m.frm is None and m.shard in self._seen_owned]
        elif self._spread_over is not None:
            moves = [move for move in moves if move.frm is None]
        elif not moves and not self._moving:
            self._spread_over = spread_over
        # Move only to hosts that edges had time to connect to: they would miss earlier pushes.
        known = self._table.hosts
        moves = [move for move in moves if move.frm is None or move.to in known]
        return [move for move in moves if move.shard not in self._moving]

    def _start(self, moves: Sequence[Move]) -> list[asyncio.Task[None]]:
        ways: defaultdict[tuple[str | None, str], list[str]] = defaultdict(list)
        for move in moves:
            ways[move.frm, move.to].append(move.shard)
            self._moving[move.shard] = move
        together = [
            (way, shards[first : first + _TOGETHER])
            for way, shards in ways.items()
            for first in range(0, len(shards), _TOGETHER)
        ]
        return [self._tasks.run(self._carry(frm, to, shards)) for (frm, to), shards in together]

    async def _carry(self, frm: str | None, to: str, shards: Sequence[str]) -> None:
        """Hand shards over; after a failure the next tick plans them again.

        The locks keep an identity from leaving a shard, or coming back to it, meanwhile. A shard
        without an owner has nothing to hand over and waits for no lock.
        """
        try:
            async with contextlib.AsyncExitStack() as turns:
                handover = None
                if frm is not None:
                    for shard in shards:
                        await turns.enter_async_context(self._locks[shard])
                    handover = await self._membership.release(frm, shards)
                await self._membership.adopt(to, shards, handover)
            _LOG.info("moved %s from %s to %s", ", ".join(shards), frm or "no host", to)
        except HostUnavailable as error:
            _LOG.warning("could not move %s from %s to %s: %s", ", ".join(shards), frm, to, error)
        finally:
            for shard in shards:
                del self._moving[shard]
            self._publish()

    def _publish(self) -> None:
        """Publish the table if it has changed; in it a moving shard stays with its old owner.

        Edges would learn nothing from its absence: they wait as soon as the old owner refuses a
        command. For a shard whose host is gone they wait at once.
        """
        moving = {
            shard: owner
            for shard, owner in self._table.owners.items()
            if shard in self._moving and self._moving[shard].frm == owner.host
        }
        hosts = {host.name: host.node for host in self._membership.living()}
        table = PlacementTable(self._table.version, {**moving, **self._owners}, hosts)
        table = self.dedicated.shown_in(table)
        if table != self._table:
            self._table = msgspec.structs.replace(table, version=table.version + 1)
            self._changed.set()
            self._changed = asyncio.Event()
