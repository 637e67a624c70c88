"""Finds the live hosts by their rows in the log's databases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from actors.host.port import HostUnavailable
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_READ_S_MAX: Final = 1.0
"""A database that works answers within milliseconds; one that hangs does not for seconds."""


class HostFinder:
    """The hosts of all databases of a log, for one process.

    If a database does not answer, its last rows stay valid, or it has no hosts if there are none:
    its hosts serve nothing meanwhile, and the hosts of other databases are not affected.
    """

    def __init__(
        self,
        databases: Sequence[HostLeases],
        unserved: Callable[[], Container[int]] = tuple,
        *,
        answer_s_max: float = _READ_S_MAX,
    ) -> None:
        """A finder that reads none of the databases that are ``unserved`` by their numbers.

        Such a database may be another log's, whose processes have the same names as ours. One that
        is there answers within ``answer_s_max``, in seconds.
        """
        self._databases = databases
        self._unserved = unserved
        self._answer_s_max = answer_s_max
        # Of its own for each: one that hangs keeps its thread, and must take none from another.
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"finder-{place}")
            for place in range(len(databases))
        ]
        self._rows: list[Sequence[HostLease] | None] = [None] * len(databases)
        self._ended: set[str] = set()
        self._reads: dict[int, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def living(self) -> Mapping[str, HostLease]:
        """The live hosts by name.

        Raises:
            HostUnavailable: no database has ever answered.
        """
        await self._read_anew()
        known = [rows for rows in self._rows if rows is not None]
        if not known:
            raise HostUnavailable("no host is known: no database of the log answers")
        return self._living(known)

    async def living_in(self, database: int) -> Mapping[str, HostLease]:
        """The live hosts with rows in one database, by name; other databases do not matter.

        Raises:
            HostUnavailable: that database has never answered.
        """
        await self._read_anew()
        rows = self._rows[database]
        if rows is None:
            raise HostUnavailable(f"database {database} of the log does not answer")
        return self._living([rows])

    def _living(self, of: Sequence[Sequence[HostLease]]) -> Mapping[str, HostLease]:
        self._ended &= {lease.incarnation for rows in self._rows for lease in rows or ()}
        found = (lease for rows in of for lease in rows)
        return {lease.name: lease for lease in found if lease.incarnation not in self._ended}

    async def find(self, name: str) -> HostLease | None:
        """The live host of this name; None if there is none.

        Raises:
            HostUnavailable: it may be in a database that has never answered.
        """
        lease = (await self.living()).get(name)
        if lease is None and None in self._rows:
            raise HostUnavailable(f"{name}: a database of the log does not answer")
        return lease

    async def is_there(self, database: int) -> bool:
        """Does a database answer now? One that has ended the connection is asked once more."""
        ask = self._databases[database].clock_s
        try:
            async with asyncio.timeout(self._answer_s_max):  # also if a read hangs before it
                try:
                    await self._aside(database, ask)
                except LogUnavailable:  # so says a connection that was cut off since it was used
                    await self._aside(database, ask)
        except (LogUnavailable, TimeoutError):
            return False
        return True

    def refused(self, lease: HostLease) -> None:
        """Note that nothing listens there: the process has ended, though its lease still runs."""
        self._ended.add(lease.incarnation)

    def close(self) -> None:
        """End all connections to the databases."""
        for leases in self._databases:
            leases.close()

    async def _read_anew(self) -> None:
        """Read the rows stored by now; concurrent callers share one read."""
        under_way = self._reading
        if under_way is not None and not under_way.done():
            # This read may have begun too early; the next one has not.
            await asyncio.shield(under_way)
        if self._reading is under_way or self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        """Read what each database has; one that hangs is read once at a time.

        Each read is waited for for a moment, and longer as long as no host is known.
        """
        begun: list[asyncio.Task[None]] = []
        unserved = self._unserved()
        for place in range(len(self._databases)):
            if place not in self._reads and place not in unserved:
                self._reads[place] = asyncio.create_task(self._read_one(place))
                begun.append(self._reads[place])
        if begun:
            done, _ = await asyncio.wait(begun, timeout=_READ_S_MAX)
            for read in done:
                read.result()
        if self._reads and not any(rows is not None for rows in self._rows):
            await asyncio.wait([*self._reads.values()], return_when=asyncio.FIRST_COMPLETED)

    async def _read_one(self, place: int) -> None:
        try:
            self._rows[place] = await self._aside(place, self._databases[place].living)
        except LogUnavailable as error:
            _LOG.debug("%s", error)
        finally:
            del self._reads[place]

    async def _aside(self, place: int, ask: Callable[[], _T]) -> _T:
        """Call a database in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[place], ask)
