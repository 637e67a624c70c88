"""Slots for deliveries under way, allotted so that no endpoint holds up another.

A stranger names an endpoint, and it is not known beforehand whether the endpoint will answer. So
its responsiveness decides which pool its slots come from: quick (it answered quickly the last
time), new, or slow. New endpoints may use a share of the slots; slow endpoints have slots of
their own. An endpoint is remembered per agent, so that no agent can spoil another's at the same
host. If all slots of a pool are held, sources get them in turn: the network of an endpoint, or the
domain of a name that is looked up. A stranger has any number of agents, and of names in a domain.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from http_edge.didcomm.outbound.responsiveness import RememberedEndpoints, Responsiveness
from http_edge.settings.settings import Outbound

_IPV4_NETWORK_BITS: Final = 24
_IPV6_NETWORK_BITS: Final = 48
_DOMAIN_LABELS: Final = 2
_R = TypeVar("_R")


class Slots:
    """The slots of one edge, and the responsiveness of the endpoints that it delivered to."""

    def __init__(self, settings: Outbound) -> None:
        self.slow_s = settings.slow_s
        whole = SharedSlots(settings.in_flight_max)
        self._pools = {
            Responsiveness.QUICK: _Pool(settings, whole),
            Responsiveness.NEW: _Pool(settings, SharedSlots(settings.in_flight_new_max), whole),
            Responsiveness.SLOW: _Pool(settings, SharedSlots(settings.in_flight_slow_max)),
        }
        self._known = RememberedEndpoints(settings.endpoints_remembered_max)

    @asynccontextmanager
    async def turn(self, agent: str, endpoint: str) -> AsyncIterator[Turn]:
        """Open a turn for an agent's endpoint; its slots are given back when the context ends.

        The turn begins without slots: see ``Turn.take``.
        """
        turn = Turn(self, _name(agent, endpoint))
        try:
            yield turn
        finally:
            turn.give_back()

    def responsiveness(self, name: str) -> Responsiveness:
        """Return the responsiveness of an endpoint by the name under which it is remembered."""
        return self._known.get(name)

    def is_quick(self, agent: str, endpoint: str) -> bool:
        """Did an agent's endpoint answer quickly the last time?"""
        return self.responsiveness(_name(agent, endpoint)) is Responsiveness.QUICK

    def remember(
        self, name: str, addresses: Collection[str], responsiveness: Responsiveness
    ) -> None:
        """Remember the responsiveness of an endpoint at these addresses, or of its look-up."""
        self._known.set(name, _source(addresses), responsiveness)

    def of(
        self, responsiveness: Responsiveness, addresses: Collection[str]
    ) -> Sequence[SharedSlots]:
        """Return the slots that a delivery to these addresses takes, in the order for all."""
        return self._pools[responsiveness].slots(addresses)


class SharedSlots:
    """A number of slots. The sources that wait for one get it in turn, one each."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def locked(self) -> bool:
        """Are all slots held?"""
        return not self._free

    async def acquire(self, source: str) -> None:
        """Take a slot; wait for one if all are held."""
        if self._free:
            self._free -= 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(source, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                self._leave(source, slot)
            else:
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back: to the source whose turn it is, if any waits."""
        while self._waiting:
            source = next(iter(self._waiting))
            slot = self._waiting[source][0]
            self._waiting.move_to_end(source)
            self._leave(source, slot)
            if not slot.cancelled():
                slot.set_result(None)
                return
        self._free += 1

    def _leave(self, source: str, slot: asyncio.Future[None]) -> None:
        line = self._waiting.get(source, deque())
        if slot in line:
            line.remove(slot)
            if not line:
                del self._waiting[source]


class _Pool:
    """Slots at each address and each network, then those of the pool as a whole."""

    def __init__(self, settings: Outbound, *whole: SharedSlots) -> None:
        self._per_address = settings.in_flight_per_host_max
        self._per_network = settings.in_flight_per_network_max
        self._whole = whole
        self.at: WeakValueDictionary[str, SharedSlots] = WeakValueDictionary()

    def slots(self, addresses: Collection[str]) -> Sequence[SharedSlots]:
        # In one order for all, or two deliveries could wait for each other. A delivery waits for an
        # address before it takes a slot of the whole pool, which others can use meanwhile.
        networks = sorted({_network(address) for address in addresses})
        return [
            *[self._at(address, self._per_address) for address in sorted(addresses)],
            *[self._at(network, self._per_network) for network in networks],
            *self._whole,
        ]

    def _at(self, name: str, size: int) -> SharedSlots:
        return self.at.setdefault(name, SharedSlots(size))


class Turn:
    """The turn of one agent's endpoint, and the slots that it holds."""

    def __init__(self, slots: Slots, name: str) -> None:
        """Begin a turn without slots, for the endpoint remembered as ``name``."""
        self._slots = slots
        self._name = name
        self.responsiveness = slots.responsiveness(name)
        """The endpoint's responsiveness when the turn began, or slow if it has become slow."""
        self._addresses: Collection[str] = ()
        self._held: list[SharedSlots] = []
        self._late = False

    async def take(self, addresses: Collection[str]) -> None:
        """Wait for slots for these addresses, or for the name that is looked up for them."""
        self._addresses = addresses
        for slot in self._slots.of(self.responsiveness, addresses):
            await slot.acquire(_source(addresses))
            self._held.append(slot)

    def give_back(self) -> None:
        """Give back all held slots."""
        held, self._held = self._held, []
        for slot in held:
            slot.release()

    def give_back_after(self, work: asyncio.Future[Any]) -> None:
        """Give back all held slots when ``work`` has ended, which nothing can stop."""
        held, self._held = self._held, []

        def ended(_: asyncio.Future[Any]) -> None:
            for slot in held:
                slot.release()
            if not work.cancelled():
                work.exception()  # seen here, or a failure that no one waits for would be logged

        work.add_done_callback(ended)

    async def timed(self, work: Coroutine[Any, Any, _R]) -> _R | None:
        """Run work for this endpoint and return its result; move slow work to a slow slot.

        Return None if the work was cancelled because it was slow and no slow slot was free.
        """
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._slots.slow_s)
            self._late = not done
            if self._late and not await self._slow_down():
                return None
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def answered(self) -> None:
        """Remember the endpoint as quick if its answer to the last work was not late."""
        if not self._late:
            self._slots.remember(self._name, self._addresses, Responsiveness.QUICK)

    def timed_out(self) -> None:
        """Remember the endpoint as slow, because the last work ended without an answer."""
        self._slots.remember(self._name, self._addresses, Responsiveness.SLOW)

    async def _slow_down(self) -> bool:
        """Change to slow slots; False if any of them is taken."""
        self._slots.remember(self._name, self._addresses, Responsiveness.SLOW)
        if self.responsiveness is Responsiveness.SLOW:
            return True
        wanted = self._slots.of(Responsiveness.SLOW, self._addresses)
        if any(slot.locked() for slot in wanted):
            return False
        for slot in wanted:
            # Never waits: all are free, and no other task runs meanwhile.
            await slot.acquire(_source(self._addresses))
        self.give_back()
        self._held = [*wanted]
        self.responsiveness = Responsiveness.SLOW
        return True


def _name(agent: str, endpoint: str) -> str:
    """Return the name under which an agent's endpoint is remembered."""
    return f"{agent} {endpoint}"


def _source(addresses: Collection[str]) -> str:
    return _network(min(addresses))


def _network(address: str) -> str:
    """Return what usually belongs to one operator: /24 of IPv4, /48 of IPv6, a name's domain."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ".".join(["*", *address.split(".")[-_DOMAIN_LABELS:]])
    bits = _IPV4_NETWORK_BITS if isinstance(parsed, IPv4Address) else _IPV6_NETWORK_BITS
    return str(ip_network((parsed, bits), strict=False))
