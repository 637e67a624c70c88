"""Bound what one edge works on at once: requests, bodies, sockets.

A request that waits for messages (a long poll) does not count: see ``parked``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from http_edge.dids.address_slots import AddressSlots
from http_edge.dispatch.slots import counted
from http_edge.listener.connection import Connection
from http_edge.listener.transfers import Pace, Transfer, Transfers
from http_edge.settings.settings import Limits

PARKED_BODY_BYTES_MAX: Final = 8_192
"""Bytes of a body that may wait with its request for messages: it counts in ``bodies_bytes_max``
until it is answered, and those of all ``waiters_max`` requests leave a third of that to others. A
request for messages is smaller, also in an envelope from a long did:peer."""


class InFlight:
    """Counts requests in progress, bodies, and open sockets, and says whether there is room.

    ``draining`` is set when the edge stops: from then on there is no room. ``slots`` are those of
    the requests in progress; ``bodies`` holds their bodies and those still arriving; ``sockets``
    counts the open sockets by protocol.
    """

    def __init__(self, limits: Limits) -> None:
        self.draining = False
        self.slots = AddressSlots(limits.commands_in_flight_max)
        self.bodies = Transfers(
            bytes_max=limits.bodies_bytes_max,
            bytes_per_address_max=limits.bodies_bytes_per_address_max,
            pace=Pace(
                limits.transfer_grace_s, limits.transfer_bytes_per_s_min, limits.body_read_s_max
            ),
        )
        self.sockets: Counter[str] = Counter()
        self._limits = limits
        self._bodies_of: Counter[str] = Counter()
        self._sockets_of: Counter[str] = Counter()

    @property
    def has_room(self) -> bool:
        """Is there room for one more request?"""
        return not self.draining and self.slots.free > 0

    @property
    def requests(self) -> int:
        """How many requests are in progress."""
        return self._limits.commands_in_flight_max - self.slots.free

    def request_of(
        self, connection: Connection | None = None, body_bytes: int = 0, address: str | None = None
    ) -> AbstractContextManager[None]:
        """Hold a slot for a request of this connection and address within the block."""
        return _Current(self.slots, connection, body_bytes, address)

    def has_room_for_body(self, address: str) -> bool:
        """May one more body of this client address arrive at the same time?"""
        return self._bodies_of[address] < self._limits.bodies_per_address_max

    @contextmanager
    def body_of(self, body: Transfer) -> Iterator[None]:
        """Count a body that arrives within the block; a complete one is held after the block."""
        with counted(self._bodies_of, body.address):
            self.bodies.begin(body)
            try:
                yield
            except BaseException:
                self.bodies.end(body)
                raise
            self.bodies.settle(body)

    def has_room_for_socket(self, address: str) -> bool:
        """May this client address open one more socket?"""
        return (
            not self.draining
            and self.sockets.total() < self._limits.sockets_max
            and self._sockets_of[address] < self._limits.sockets_per_address_max
        )

    @contextmanager
    def socket_of(self, address: str, protocol: str) -> Iterator[None]:
        """Count a socket of this client address that is open within the block."""
        self.sockets[protocol] += 1
        try:
            with counted(self._sockets_of, address):
                yield
        finally:
            self.sockets[protocol] -= 1


class _Current(NamedTuple):
    """A request that counts within the block; as a generator it would cost each 1 % of its time."""

    slots: AddressSlots
    connection: Connection | None
    body_bytes: int
    address: str | None

    def __enter__(self) -> None:
        self.slots.take(self.address)
        _CURRENT.set(self)

    def __exit__(self, *_: object) -> None:
        _CURRENT.set(None)
        self.slots.give_back(self.address)


_CURRENT: Final[ContextVar[_Current | None]] = ContextVar("in_flight", default=None)


def may_park() -> bool:
    """Is the body of the current request small enough to wait with it for messages?"""
    current = _CURRENT.get()
    return current is None or current.body_bytes <= PARKED_BODY_BYTES_MAX


@contextmanager
def parked(end: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Do not count the current request within the block, where it only waits.

    ``end`` has to end the wait: it is called once the client sends no more. Until something is
    written to it, a client that is gone looks like one that reads on.
    """
    if (current := _CURRENT.get()) is None:
        yield
        return
    slots, connection, _, address = current
    slots.give_back(address)
    if connection is not None:
        connection.when_left = end
        if connection.has_left:
            end()
    try:
        yield
    finally:
        if connection is not None:
            connection.when_left = None
        slots.take(address)
