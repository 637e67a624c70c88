"""Routes: which host owns a partition, by the newest placement table.

A gateway queries the routes for every submission, so they answer from memory; ``moved`` waits for a
table that changes the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Self

from actors.core.partitioning import Placement, is_shard, shard_name
from actors.core.placement_table import PartitionOwner, PlacementTable, goes_on

_NOTICED_S_MAX: Final = 8.0
"""A broken host connection is noticed within 5 s (``actors.host.host_connection``), and reported
by the next probe."""


class Routes:
    """Which host owns which partition, by the newest table; without a placer, by the first one.

    ``fixed`` makes those of a mediator without a placer.
    """

    def __init__(
        self, placement: Placement, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Routes that know no owner yet; ``placement.hosts`` does not matter."""
        self.placement: Final = placement
        """What names alone determine: shards, databases, and the partitions of nonces."""
        self._has_placer = True
        self._clock_s = clock_s
        self._left: dict[str, tuple[str, float]] = {}
        self._owners: Mapping[str, PartitionOwner] = {}
        self._dedicated: Mapping[str, PartitionOwner | None] = {}
        self._returned: Mapping[str, str] = {}
        self._hosts: Sequence[str] = []
        self._dedicated_hosts: Sequence[str] = []
        self._known: dict[str, PartitionOwner] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._answered_s = clock_s()
        self.lost_hosts: set[str] = set()
        """Hosts that are dead by the last table and whose partitions other hosts own without a
        handover: they will not answer calls in flight."""

    @classmethod
    def fixed(cls, placement: Placement) -> Self:
        """The routes of a mediator without a placer: each shard has its host by the placement."""
        shards = map(shard_name, range(placement.shards))
        owners = {shard: PartitionOwner(placement.host_of(shard), "") for shard in shards}
        routes = cls(placement)
        routes.update(PlacementTable(0, owners, {}))
        routes._hosts, routes._has_placer = placement.host_names, False
        return routes

    def update(self, table: PlacementTable) -> Collection[str]:
        """Follow this table; return the partitions whose sessions were lost since the last one.

        Tables take effect in the order of their arrival.
        """
        self.placer_answered()
        now_s = self._clock_s()
        since = now_s - _NOTICED_S_MAX
        self._left = {s: left for s, left in self._left.items() if left[1] >= since}
        lost = self._back_in_shards(table)
        self.lost_hosts.clear()
        for partition, owner in self._owners_in(table).items():
            before = self._known.get(partition) or self._in_shard(partition, owner)
            if before.sessions != owner.sessions:
                lost.add(partition)
                self.lost_hosts |= {before.host} - table.hosts.keys() - table.dedicated_hosts.keys()
            elif before.host != owner.host:
                self._left[partition] = (before.host, now_s)
        self._known.update(self._owners_in(table))
        self._owners, self._hosts = table.owners, sorted(table.hosts)
        self._dedicated_hosts = sorted(table.dedicated_hosts)
        if table.dedicated is not None:
            self._dedicated, self._returned = table.dedicated, table.returned
        # Wake the waiters in the order of their arrival; each checks its own condition.
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        return lost

    def placer_answered(self) -> None:
        """Note that the placer has answered just now."""
        self._answered_s = self._clock_s()

    def silent_s(self) -> float:
        """Seconds since the last answer of the placer; 0 without a placer."""
        return self._clock_s() - self._answered_s if self._has_placer else 0.0

    @staticmethod
    def _owners_in(table: PlacementTable) -> Mapping[str, PartitionOwner]:
        own = {did: owner for did, owner in (table.dedicated or {}).items() if owner is not None}
        return own | table.owners

    def _in_shard(self, partition: str, owner: PartitionOwner) -> PartitionOwner:
        """The previous owner of a partition that is new in the table: the owner of its shard."""
        shard = partition if is_shard(partition) else self.placement.partition_of(partition)
        before = self._known.get(shard)
        if before is None:
            return owner
        is_whole = goes_on(owner.sessions, before.sessions)
        return PartitionOwner(before.host, owner.sessions) if is_whole else before

    def _back_in_shards(self, table: PlacementTable) -> set[str]:
        """Forget identities that are no longer dedicated; return those whose sessions were lost."""
        lost: set[str] = set()
        if table.dedicated is None:
            return lost
        gone = {did for did in self._known.keys() - table.dedicated if not is_shard(did)}
        for did in gone:
            before = self._known.pop(did)
            if table.returned.get(did) == before.sessions:
                self._left[did] = (before.host, self._clock_s())
            else:
                lost.add(did)
        for did, sessions in table.returned.items():
            # Dedicated and returned between two tables, so that no table named its owner.
            shard = self._known.get(self.placement.partition_of(did))
            is_news = did not in gone and self._returned.get(did) != sessions
            if is_news and shard is not None and not goes_on(sessions, shard.sessions):
                lost.add(did)
        return lost

    def partition_of(self, did: str) -> str:
        """The partition that holds the state of an identity now."""
        return did if did in self._dedicated else self.placement.partition_of(did)

    def hosts(self) -> Sequence[str]:
        """The live hosts of shards."""
        return self._hosts

    def dedicated_hosts(self) -> Sequence[str]:
        """The live dedicated hosts that a placer has named."""
        return self._dedicated_hosts

    def host_of(self, partition: str) -> str | None:
        """The host that owns a partition; None as long as no owner is known."""
        owner = self._owners.get(partition) or self._dedicated.get(partition)
        return None if owner is None else owner.host

    def unowned(self) -> int:
        """How many shards have no known owner."""
        return self.placement.shards - len(self._owners)

    def just_left(self, host: str) -> Collection[str]:
        """The partitions that moved with their sessions from this host in the last seconds.

        An edge that only now finds its connection to the host broken must not trust their sessions:
        the handover did not contain what the host had lost before it.
        """
        since = self._clock_s() - _NOTICED_S_MAX
        return [s for s, (left, at) in self._left.items() if left == host and at >= since]

    async def wait_until(self, is_so: Callable[[], bool], *, seconds_max: float) -> bool:
        """Wait until a change of owners makes ``is_so`` true; return whether to look again.

        False if owners never change. True even if ``seconds_max`` have passed without such a
        change: a host may own the partition unnoticed.
        """
        if not self._has_placer:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while not is_so():
                    await self._next_table()
        return True

    async def _next_table(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)
