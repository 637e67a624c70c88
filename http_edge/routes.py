"""Routes: which host to ask about a partition, fixed or as a table tells.

A gateway asks them for every submission, so they answer from memory; ``moved`` waits for a table
that says something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from actors.partitions import Placement, dedicated_host_name, is_shard
from actors.placement_table import Owner, Table

_NOTICED_S_MAX: Final = 15.0
"""A broken line is noticed within 11 s (``actors.line_frames``), and told by the next probe."""


class Routes(Protocol):
    """Which host owns which partition, as far as this edge knows."""

    @property
    def placement(self) -> Placement:
        """Which partition holds which identity."""

    def hosts(self) -> Sequence[str]:
        """The hosts of shards that live."""

    def host_of(self, partition: str) -> str | None:
        """The host that owns a partition; None as long as nobody is known to."""

    def unowned(self) -> int:
        """How many shards nobody is known to own."""

    def just_left(self, host: str) -> Collection[str]:
        """The shards that went from this host to another some seconds ago, with their sessions."""

    async def moved(
        self, partitions: Collection[str], host: str | None, *, seconds_max: float
    ) -> bool:
        """Wait until a host other than ``host`` owns one of the partitions; False if none ever can.

        True as well after ``seconds_max``: the host may have become the owner.
        """


class FixedRoutes:
    """Routes that follow from the placement alone and never change."""

    def __init__(self, placement: Placement) -> None:
        """The routes of a placement with a fixed number of hosts."""
        self.placement: Final = placement
        self._hosts = placement.host_names

    def hosts(self) -> Sequence[str]:
        """The hosts of shards."""
        return self._hosts

    def host_of(self, partition: str) -> str | None:
        """The host that owns a partition."""
        return self.placement.host_of(partition)

    def unowned(self) -> int:
        """No shard is without an owner."""
        return 0

    def just_left(self, host: str) -> Collection[str]:
        """No shard ever leaves its host."""
        del host
        return ()

    async def moved(
        self, partitions: Collection[str], host: str | None, *, seconds_max: float
    ) -> bool:
        """Nobody else will ever own them."""
        del partitions, host, seconds_max
        return False


class LiveRoutes:
    """Routes that follow the newest table."""

    def __init__(
        self, placement: Placement, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Routes that know no owner yet; ``placement.hosts`` does not matter."""
        self.placement: Final = placement
        self._clock_s = clock_s
        self._left: dict[str, tuple[str, float]] = {}
        self._owners: Mapping[str, Owner] = {}
        self._hosts: Sequence[str] = []
        self._known: dict[str, Owner] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}

    def update(self, table: Table) -> Collection[str]:
        """Follow this table from now on; the shards whose sessions were lost since the last.

        Tables are taken in the order in which they come.
        """
        now_s, lost = self._clock_s(), set()
        for shard, owner in table.owners.items():
            before = self._known.get(shard, owner)
            if before.sessions != owner.sessions:
                lost.add(shard)
            elif before.host != owner.host:
                self._left[shard] = (before.host, now_s)
        self._known.update(table.owners)
        self._owners, self._hosts = table.owners, sorted(table.hosts)
        # In the order in which they came, and to look for themselves whether it concerns them.
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        return lost

    def hosts(self) -> Sequence[str]:
        """The hosts of shards that live."""
        return self._hosts

    def host_of(self, partition: str) -> str | None:
        """The host that owns a partition; None as long as nobody is known to."""
        owner = self._owners.get(partition)
        if owner is not None:
            return owner.host
        return None if is_shard(partition) else dedicated_host_name(partition)

    def unowned(self) -> int:
        """How many shards nobody is known to own."""
        return max(0, self.placement.shards - len(self._owners))

    def just_left(self, host: str) -> Collection[str]:
        """The shards that went from this host to another some seconds ago.

        What the host had lost when they left was not in their handover: an edge whose line to it
        is found broken only now must not believe that their sessions are whole.
        """
        since = self._clock_s() - _NOTICED_S_MAX
        return [s for s, (left, at) in self._left.items() if left == host and at >= since]

    async def moved(
        self, partitions: Collection[str], host: str | None, *, seconds_max: float
    ) -> bool:
        """Wait until a host other than ``host`` owns one of the partitions, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while all(self.host_of(partition) in {None, host} for partition in partitions):
                    await self._next_table()
        return True

    async def _next_table(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)
