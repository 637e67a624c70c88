"""The faults of a cluster: what is killed, paused or cut off, and how that ends."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Final

from http_edge.cli.running_mediator import ask
from http_edge.server.exits import Stop
from tests.cluster.namespace import Link, Namespace
from tests.cluster.nodes import Nodes
from tests.cluster.server import EDGE, GCS, HOST, send
from tests.database_server import DatabaseServer

FIRST: Final = 1
SECOND: Final = 2
DATABASE_PAUSED_S: Final = 4.0
ZOMBIE_S: Final = 12.0
"""Longer than every time-out: a lease, a host connection's (5 s), those of hosts."""


class Fault(Enum):
    """What happens to which part."""

    EDGE = "edge-killed"
    HOST = "host-killed"
    SERVE = "serve-killed"
    NODE = "node-killed"
    RAY = "ray-killed"
    DATABASE = "database-killed"
    PAUSED_DATABASE = "database-paused"
    FAIL_OVER = "database-failed-over"
    PAUSED_NODE = "node-paused"
    CUT_NODE = "node-cut-off"
    CUT_DATABASE = "node-cut-off-from-its-database"
    CUT_EDGE = "edge-cut-off-from-a-host"
    EVERYTHING = "everything-killed"

    @property
    def is_of_database(self) -> bool:
        """Does it strike a database, so that its identities are not served as long as it lasts?"""
        return self in {Fault.DATABASE, Fault.PAUSED_DATABASE, Fault.FAIL_OVER}

    @property
    def lasts(self) -> bool:
        """Do the others serve while it lasts?"""
        return self is Fault.PAUSED_NODE or self in NEEDS_NAMESPACE


NEEDS_NAMESPACE: Final = frozenset({Fault.CUT_NODE, Fault.CUT_DATABASE, Fault.CUT_EDGE})


class Harm:
    """Does harm to a cluster, and ends what does not end by itself."""

    def __init__(
        self,
        nodes: Nodes,
        databases: Sequence[DatabaseServer],
        namespace: Namespace | None,
        chance: random.Random,
        standby: DatabaseServer | None = None,
    ) -> None:
        """Without a namespace nothing can be cut off, without a standby nothing fails over.

        ``standby`` is where a copy of the first database is made before it is needed. The one that
        was failed over from stays away, and there the next standby is made.
        """
        self._nodes = nodes
        self._databases = [*databases]
        self._standby = standby
        self.struck = 0
        """The number of the database that the last fault of one has struck."""
        self._namespace = namespace
        self._began_s = 0.0
        self.chance = chance

    @property
    def can_cut(self) -> bool:
        """Can a node be cut off?"""
        return self._namespace is not None

    async def begin(self, fault: Fault) -> None:
        """Let it happen."""
        self._began_s = time.monotonic()
        if fault.is_of_database:
            which = range(1 if fault is Fault.FAIL_OVER else len(self._databases))
            self.struck = self.chance.choice(which)
        await asyncio.to_thread(self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        nodes = self._nodes
        match fault:
            case Fault.EDGE | Fault.HOST:
                title = EDGE if fault is Fault.EDGE else HOST
                node = self.chance.choice([FIRST, SECOND])
                send(self.chance.choice(nodes.servers[node].pids(title)), signal.SIGKILL)
            case Fault.SERVE:
                nodes.servers[FIRST].kill()
            case Fault.NODE:
                nodes.servers[FIRST].kill_everything()
            case Fault.RAY:
                (gcs,) = nodes.servers[FIRST].pids(GCS)
                send(gcs, signal.SIGKILL)
            case Fault.PAUSED_DATABASE:
                self._databases[self.struck].pause()
            case Fault.DATABASE | Fault.FAIL_OVER:
                self._lose_database(has_standby=fault is Fault.FAIL_OVER)
            case Fault.PAUSED_NODE:
                nodes.send(SECOND, signal.SIGSTOP)
            case Fault.EVERYTHING:
                nodes.lose_everything()
            case _:
                for link in self._links(fault):
                    link.cut()

    def _lose_database(self, *, has_standby: bool) -> None:
        """Kill it, and give it a standby before where one is due, which has all it confirms."""
        database = self._databases[self.struck]
        if has_standby:
            assert self._standby is not None
            database.copy_to(self._standby).start()
            database.require_standby()
        database.kill()

    async def end(self, fault: Fault) -> None:
        """End it, in due time."""
        lasts_s = {
            Fault.PAUSED_DATABASE: DATABASE_PAUSED_S,
            Fault.PAUSED_NODE: ZOMBIE_S,
            **dict.fromkeys(NEEDS_NAMESPACE, ZOMBIE_S),
        }.get(fault, 0.0)
        await asyncio.sleep(max(0.0, self._began_s + lasts_s - time.monotonic()))
        await asyncio.to_thread(self._end, fault)

    def _end(self, fault: Fault) -> None:
        match fault:
            case Fault.DATABASE:
                self._databases[self.struck].start()
            case Fault.PAUSED_DATABASE:
                self._databases[self.struck].resume()
            case Fault.FAIL_OVER:
                assert self._standby is not None
                self._standby.promote()
                self._databases[0], self._standby = self._standby, self._databases[0]
            case Fault.PAUSED_NODE:
                self._nodes.send(SECOND, signal.SIGCONT)
            case _ if fault in NEEDS_NAMESPACE:
                for link in self._links(fault):
                    link.heal()
            case _:
                pass

    def _links(self, fault: Fault) -> Sequence[Link]:
        assert self._namespace is not None
        inward, outward = self._namespace.inward, self._namespace.outward
        return {
            Fault.CUT_NODE: [inward, outward],
            Fault.CUT_DATABASE: [self._namespace.database],
            Fault.CUT_EDGE: [outward],
        }[fault]

    def operators(self) -> tuple[str, str]:
        """Where the first node answers operators, and their token."""
        return self._nodes.servers[FIRST].operators()

    async def counts(self) -> Counter[str]:
        """How many shards each node has; nothing as long as that is unknown."""
        try:
            url, token = self.operators()
            listed = await asyncio.to_thread(ask, "GET", url, "/shards", token=token)
        except Stop:
            return Counter()
        counts = Counter({host["node"]: 0 for host in listed["hosts"]})
        counts.update(place["node"] for place in listed["shards"])
        return Counter() if None in counts else counts
