"""The role of the placer: the candidate process that holds the lease ``placer`` has it.

That process watches the hosts and answers questions. The others stand by, and one of them takes
over the role when the lease expires, or at once when the placer's process ends. A new placer knows
nothing from its predecessor: it asks every host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
from typing_extensions import override

from actors.core.placement_table import PlacementTable
from actors.host.clock import new_id
from actors.host.connected_host import Caller, ConnectedHostPort, ignored
from actors.host.host_client import HostClient, HostConnectionLost, connect_to_host
from actors.host.host_connection import Answered, HostServer
from actors.host.host_finder import HostFinder
from actors.host.host_term import HostTerm
from actors.host.port import A, HostQuestion, HostUnavailable
from actors.placement.placer import Placer
from actors.placement.port import (
    Dedicate,
    DrainNode,
    MoveShard,
    Order,
    Placed,
    PlacerPort,
    Places,
    Release,
)
from actors.placement.tasks import Tasks
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases

PLACER: Final = "placer"
_LOG = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_STAND_BY_S: Final = 1.0
"""How often a standby looks at the lease: a quarter of the lease time. The end of the placer's
process it notices at once, by the end of its connection."""
_TABLE_S: Final = 1.0
"""How long the placer holds back its answer to a question for a newer table; a caller without any
answer looks for another placer."""
_HOSTS_S_MAX: Final = 1.0
"""Time for the hosts to answer a new placer, which answers no question before."""
_ANSWER_S_MAX: Final = 3.0
_FINISH_S_MAX: Final = 3.0
"""Time to finish moves before the role is given up: a host that hangs could take longer, and the
next placer finds the moves that broke off."""
_ORDER_S_MAX: Final = 60.0
"""Time for an order, which may have to start a process and move shards."""


class FollowTable(HostQuestion[PlacementTable], frozen=True):
    """Wait for a table with another version than this one."""

    known_version: int


class QueryPlaces(HostQuestion[Places], frozen=True):
    """Query the places of all shards and dedicated identities."""


_Question = FollowTable | QueryPlaces | Order
_QUESTIONS: Final = msgspec.msgpack.Decoder[_Question](_Question)


class PlacerRole:
    """A process that can have the role of the placer."""

    def __init__(
        self, make_placer: Callable[[], Placer], leases: HostLeases, *, node: str, lease_s: float
    ) -> None:
        """A process without the role yet; see ``run``. ``make_placer`` makes a new placer."""
        self._make_placer = make_placer
        self._leases = leases
        self._node = node
        self._term = HostTerm(lease_s)
        self._placer: Placer | None = None
        self._lease: HostLease | None = None
        self._placing: HostClient | None = None
        self._answering = Tasks()

    async def run(self, address: str) -> None:
        """Listen at this address, and be the placer whenever no other process is, until cancelled.

        Raises:
            OSError: the address is not of this machine.
        """
        loop = asyncio.get_running_loop()

        def ask(question: bytes, answered: Answered) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(
                    lambda: self._answering.run(self._answer(question, answered))
                )

        server = HostServer(_no_batches, ask, ignored)
        self._lease = server.listen(address, PLACER, self._node, new_id())
        try:
            while True:
                if not await self._looked(self._lease):
                    server.close()  # so that callers look for the placer elsewhere
                await self._pause()
        finally:
            server.stop()
            if self._placing is not None:
                self._placing.close()

    async def leave(self) -> None:
        """Give the role up; finish moves under way, for ``_FINISH_S_MAX`` at most."""
        self._term.ended()
        if self._placer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_S_MAX):
                    await self._placer.close()
        if self._lease is not None:
            with contextlib.suppress(LogUnavailable):
                await asyncio.to_thread(self._leases.leave, self._lease)
        await asyncio.to_thread(self._leases.close)

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
        try:
            if await asyncio.to_thread(self._leases.renew, lease, self._term.lease_s):
                self._term.renewed(sent_s)
            elif await self._has_ended():
                # If two processes notice this at once, both take the lease, and one of them has it.
                await asyncio.to_thread(self._leases.take, lease, self._term.lease_s)
                self._term.renewed(sent_s)
            else:
                self._term.ended()
        except LogUnavailable as error:
            _LOG.debug("%s", error)
        if not self._term.is_running():
            was_placer, self._placer = self._placer is not None, None
            if was_placer:
                _LOG.warning("this process is no longer the placer")
            return not was_placer
        if self._placer is None:
            _LOG.info("this process is now the placer")
            self._placer = self._make_placer()
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
        for other in await asyncio.to_thread(self._leases.living):
            if other.name == PLACER:
                try:
                    name = f"standby {self._node} {new_id()}"
                    self._placing = await connect_to_host(other, name, ignored)
                except ConnectionRefusedError:
                    return True
                except (HostConnectionLost, OSError) as error:
                    _LOG.debug("the placer cannot be reached: %s", error)
        return False

    async def _answer(self, question: bytes, answered: Answered) -> None:
        placer = self._placer
        answer = None
        if placer is not None and self._term.is_running():
            try:
                if await placer.knows_hosts(seconds_max=_HOSTS_S_MAX):
                    said = await _answer_of(placer, _QUESTIONS.decode(question))
                    answer = msgspec.msgpack.encode(said)
            except Exception:  # noqa: BLE001 - an empty answer reports any failure to the caller
                _LOG.exception("the placer could not answer")
        answered(answer)


async def _answer_of(placer: Placer, question: _Question) -> PlacementTable | Places | Placed:
    match question:
        case FollowTable(known_version):
            return await placer.table(known_version, seconds_max=_TABLE_S)
        case QueryPlaces():
            return placer.places()
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


class PlacerLink(PlacerPort):
    """The port to the process that has the role of the placer."""

    def __init__(self, name: str, finder: HostFinder) -> None:
        caller = Caller(f"{name} {new_id()}", _ORDER_S_MAX)
        self._port = ConnectedHostPort(caller, PLACER, finder)

    async def table(self, known_version: int) -> PlacementTable:
        """See ``Placer.table``. Raises: HostUnavailable."""
        return await self._ask(FollowTable(known_version))

    @override
    async def places(self) -> Places:
        return await self._ask(QueryPlaces())

    @override
    async def order(self, order: Order) -> Placed:
        return await self._ask(order, _ORDER_S_MAX)

    async def _ask(self, question: HostQuestion[A], seconds_max: float = _ANSWER_S_MAX) -> A:
        try:
            async with asyncio.timeout(seconds_max):
                return await self._port.ask(question)
        except (HostUnavailable, TimeoutError) as error:
            # The process may hang, or have lost the role: look up the lease again.
            self._port.close()
            raise HostUnavailable(PLACER) from error
