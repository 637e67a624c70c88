"""The role of a database's placer: the candidate process that holds the placer's lease has it.

The lease is a row in that database. That process watches the hosts and answers questions. The
others stand by, and one of them takes over the role when the lease expires, or at once when the
placer's process ends. A new placer knows nothing from its predecessor: it asks every host. It names
itself to the former one, which may have lost the role because its node is cut off from the
database, and passes questions on from then on: the edges of that node cannot find the new one by
its row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from actors.core.placement_table import PlacementTable
from actors.host.clock import new_id
from actors.host.connected_host import ignored
from actors.host.host_client import HostClient, HostConnectionLost, QuestionFailed, connect_to_host
from actors.host.host_connection import Answered, HostServer
from actors.host.host_term import HostTerm
from actors.host.tasks import Tasks
from actors.placement.placer import Placer
from actors.placement.port import (
    Dedicate,
    DrainNode,
    FollowTable,
    MoveShard,
    Placed,
    PlacerLease,
    PlacerQuestion,
    Places,
    QueryPlaces,
    QueryServed,
    Release,
    Succeeded,
)
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_STAND_BY_S: Final = 1.0
"""How often a standby looks at the lease: a quarter of the lease time. The end of the placer's
process it notices at once, by the end of its connection."""
_GATHER_LOOKS: Final = 3
"""A standby that asks for the role has reached the database in so many looks before, so a database
that it reaches now and then does not have the role come and go."""
_TABLE_S: Final = 1.0
"""How long the placer holds back its answer to a question for a newer table; a caller without any
answer looks for another placer."""
_HOSTS_S_MAX: Final = 1.0
"""Time for the hosts to answer a new placer, which answers no question before."""
_ANNOUNCED_S_MAX: Final = 3.0
_FINISH_S_MAX: Final = 3.0
"""Time to finish moves before the role is given up: a host that hangs could take longer, and the
next placer finds the moves that broke off."""
_QUESTIONS: Final = msgspec.msgpack.Decoder[PlacerQuestion](PlacerQuestion)


class PlacerRole:
    """A process that can have the role of one database's placer."""

    def __init__(  # noqa: PLR0913 - the last one only with several databases
        self,
        lease: PlacerLease,
        make_placer: Callable[[], Placer],
        leases: HostLeases,
        served: Callable[[], Awaitable[list[int]]],
        *,
        node: str,
        lease_s: float,
        lowest: Callable[[], int | None] = lambda: None,
    ) -> None:
        """A process without the role yet; see ``run``.

        Args:
            lease: which placer's.
            make_placer: makes a new placer.
            leases: the leases in the database of the placer.
            served: answers ``QueryServed``.
            node: of this process.
            lease_s: how long the lease lasts without renewal, in seconds.
            lowest: the lowest number of a database whose placer this process is, None without any.
        """
        self._name, self._protocol = lease
        self._make_placer = make_placer
        self._leases = leases
        self._served = served
        self._node = node
        self._lowest = lowest
        # Not the default executor: waits for other databases must not delay a renewal.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=lease.name)
        self._term = HostTerm(lease_s)
        self._has_unknown_lease = False
        """May a lease be stored that ``run`` does not know of? It may be cancelled meanwhile."""
        self._placer: Placer | None = None
        self._lease: HostLease | None = None
        self._placing: HostClient | None = None
        self._former: HostLease | None = None
        self._successor: HostLease | None = None
        self._heir: HostLease | None = None
        self._looks = 0
        self._next: HostClient | None = None
        self._connecting = asyncio.Lock()
        self._answering = Tasks()

    async def run(self, address: str) -> None:
        """Listen at this address, and be the placer whenever no other process is, until cancelled.

        Raises:
            OSError: the address is not of this machine.
            RuntimeError: the process may have no more threads.
        """
        loop = asyncio.get_running_loop()

        def ask(question: bytes, answered: Answered) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(
                    lambda: self._answering.run(self._answer(question, answered))
                )

        server = HostServer(_no_batches, ask, ignored)
        self._lease = server.listen(
            address, self._name, self._node, new_id(), protocol=self._protocol
        )
        try:
            while True:
                if not await self._looked(self._lease):
                    server.close()  # so that callers look for the placer elsewhere
                await self._pause()
        finally:
            server.stop()
            for client in (self._placing, self._next):
                if client is not None:
                    client.close()

    @property
    def is_placer(self) -> bool:
        """Does this process have the role?"""
        return self._placer is not None and self._term.is_running()

    async def leave(self) -> None:
        """Give the role up; finish moves under way, for ``_FINISH_S_MAX`` at most.

        Without the role, and a lease that may be stored, no database is queried: one that hangs
        would hold up the end of the process.
        """
        if self._placer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_S_MAX):
                    await self._placer.close()
        await self._aside(self._leave)
        self._thread.shutdown(wait=False)

    def _renew(self, lease: HostLease) -> bool:
        self._has_unknown_lease = True  # also if only the answer of the database is lost
        self._has_unknown_lease = self._leases.renew(lease, self._term.lease_s)
        return self._has_unknown_lease

    def _take(self, lease: HostLease) -> None:
        self._has_unknown_lease = True  # as in _renew
        self._leases.take(lease, self._term.lease_s)

    def _renewed(self, sent_s: float) -> None:
        self._has_unknown_lease = False
        self._term.renewed(sent_s)

    def _leave(self) -> None:
        if self._lease is not None and (self._term.is_running() or self._has_unknown_lease):
            with contextlib.suppress(LogUnavailable):
                self._leases.leave(self._lease)
        self._leases.close()

    async def _aside(self, run: Callable[..., _T], *arguments: object) -> _T:
        """Call the database in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, run, *arguments)

    async def _pause(self) -> None:
        """Wait for the next look at the lease, but no longer than the placer's process lives."""
        placing = self._placing
        if self._placer is not None or placing is None or not placing.is_open:
            await asyncio.sleep(_TICK_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STAND_BY_S):
                await placing.ended()

    async def _looked(self, lease: HostLease) -> bool:
        """Renew the lease, and run the placer if it is ours; return False once it is lost."""
        sent_s = time.monotonic()
        looks, self._looks = self._looks, 0
        try:
            await self._hand_over()
            if await self._aside(self._renew, lease):
                self._renewed(sent_s)
            elif await self._has_ended():
                # If two processes notice this at once, both take the lease, and one of them has it.
                await self._aside(self._take, lease)
                self._renewed(sent_s)
            else:
                self._term.ended()
                self._looks = looks + 1
                _ = self._answering.run(self._apply(lease))
        except LogUnavailable as error:
            _LOG.debug("%s", error)
        except Exception:  # noqa: BLE001 - the next look may succeed
            _LOG.exception("failed to look at the lease of the %s", self._name)
        if not self._term.is_running():
            former, self._placer = self._placer, None
            if former is not None:
                former.dedicated.give_up()
                _LOG.warning("this process is no longer the %s", self._name)
            return former is None
        if self._placer is None:
            _LOG.info("this process is now the %s", self._name)
            self._placer, self._successor = self._make_placer(), None
            _ = self._answering.run(self._announce(lease))
        try:
            await self._placer.tick(time.monotonic())
        except Exception:  # noqa: BLE001 - the next tick may succeed
            _LOG.exception("the placer failed to check the hosts")
        return True

    async def _has_ended(self) -> bool:
        """Has the placer's process ended, though its lease has not expired yet?

        While that process lives, this one has a connection to it. The connection ends with the
        process; then a new one is refused.
        """
        if self._placing is not None and self._placing.is_open:
            return False
        for other in await self._aside(self._leases.living):
            if other.name == self._name:
                self._former = other
                try:
                    self._placing = await self._connected(other)
                except ConnectionRefusedError:
                    return True
                except (HostConnectionLost, OSError) as error:
                    _LOG.debug("the placer cannot be reached: %s", error)
        return False

    async def _hand_over(self) -> None:
        """Give the role to the process that has applied since the last look, if nothing is wrong.

        The row is that process's at once: a third one could be faster than both.
        """
        placer, heir, self._heir = self._placer, self._heir, None
        if heir is not None and placer is not None and self.is_placer and placer.is_settled:
            _LOG.info("node %s is to have the %s, beside another placer", heir.node, self._name)
            self._term.ended()
            self._has_unknown_lease = True  # as in _renew
            await self._aside(self._leases.take, heir, self._term.lease_s)

    async def _apply(self, lease: HostLease) -> None:
        """Apply to the placer for its role, if this process is the placer of another database.

        With all placers in one process, a cut between nodes leaves them all on the same side.
        """
        placing, lowest = self._placing, self._lowest()
        if placing is not None and lowest is not None and self._looks >= _GATHER_LOOKS:
            with contextlib.suppress(HostConnectionLost, QuestionFailed):
                await placing.ask(msgspec.msgpack.encode(Succeeded(lease, lowest)))

    async def _announce(self, lease: HostLease) -> None:
        """Name this process to the former placer's, if that one can be reached, and leave it.

        The former one ends all connections once it notices that it has lost the role, perhaps just
        now: then it is reached by another one.
        """
        placing, self._placing = self._placing, None
        try:
            async with asyncio.timeout(_ANNOUNCED_S_MAX):
                while placing is None or not await self._is_named(lease, placing):
                    if self._former is None:
                        return
                    placing = await self._connected(self._former)
        except (HostConnectionLost, QuestionFailed, OSError) as error:  # so is a time-out
            _LOG.debug("the former placer cannot be reached: %s", error)

    async def _is_named(self, lease: HostLease, placing: HostClient) -> bool:
        """Name this process over a connection, and close it; False if it was lost before."""
        try:
            await placing.ask(msgspec.msgpack.encode(Succeeded(lease)))
        except HostConnectionLost:
            return False
        finally:
            placing.close()
        return True

    async def _connected(self, process: HostLease) -> HostClient:
        """Connect to a process that is the placer, or was it. Raises as ``connect_to_host``."""
        return await connect_to_host(process, f"standby {self._node} {new_id()}", ignored)

    async def _answer(self, question: bytes, answered: Answered) -> None:
        answer: bytes | None = None
        try:
            placer = self._placer
            if placer is None or not self._term.is_running():
                answer = await self._passed_on(question)
            elif await placer.knows_hosts(seconds_max=_HOSTS_S_MAX):
                said = await self._answer_of(placer, _QUESTIONS.decode(question))
                answer = msgspec.msgpack.encode(said)
        except Exception:  # noqa: BLE001 - an empty answer reports any failure to the caller
            _LOG.exception("the placer could not answer")
        answered(answer)

    async def _passed_on(self, question: bytes) -> bytes | None:
        """The answer of the next placer, if it has named itself; None if there is none."""
        asks = _QUESTIONS.decode(question)
        if isinstance(asks, Succeeded):
            if asks.lowest is None:
                self._successor = asks.lease
                if self._next is not None:
                    self._next.close()
            return msgspec.msgpack.encode(None)
        if self._successor is None:
            return None
        try:
            async with self._connecting:  # concurrent questions share one connection
                if self._next is None or not self._next.is_open:
                    self._next = await self._connected(self._successor)
            return bytes(await self._next.ask(question))
        except (HostConnectionLost, QuestionFailed, OSError) as error:
            _LOG.debug("the next placer cannot be reached, or does not answer: %s", error)
            return None

    async def _answer_of(
        self, placer: Placer, question: PlacerQuestion
    ) -> PlacementTable | Places | Placed | list[int] | None:
        match question:
            case Succeeded(heir, lowest):
                # Of any two processes the same one gets the roles of the other. Without ``lowest``:
                # by its own clock this one still is the placer.
                if lowest is not None and lowest < (self._lowest() or 0):
                    self._heir = heir
                return None
            case FollowTable(known_version):
                return await placer.table(known_version, seconds_max=_TABLE_S)
            case QueryPlaces():
                return placer.places()
            case QueryServed():
                return await self._served()
            case MoveShard(shard, to):
                return await placer.move(shard, to)
            case DrainNode(node, draining):
                return await placer.drain(node, draining=draining)
            case Dedicate(did):
                return await placer.dedicated.dedicate(did)
            case Release(did):
                return await placer.dedicated.release(did)


def _no_batches(edge: str, batch: bytes, answer: Callable[[bytes], None], incarnation: str) -> None:
    del batch, answer, incarnation
    _LOG.error("%s has sent commands to the placer", edge)
