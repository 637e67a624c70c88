"""Bounds the bytes in transfer to or from clients, and names the causes of all cuts (``Cut``).

A transfer has a least pace, and a connection can also be cut that transfers nothing.

The bytes that a client does not read, and those of a body that is still incomplete, take memory of
this edge. When an address exceeds its share, its newest transfer is cut, so that the older ones can
finish; when all together exceed the total, the newest transfer of the address that holds the most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import Enum

import msgspec


class Cut(Enum):
    """Why this edge ended a transfer or a connection; the values are counted and logged."""

    SLOW = "slow"
    """A transfer moved fewer bytes than the least pace asks for, or took too long."""
    BYTES_PER_ADDRESS = "bytes_per_address"
    """The client's address makes this edge hold more bytes than its share."""
    BYTES_PER_SOCKET = "bytes_per_socket"
    """More frames wait for one WebSocket than may."""
    FRAMING = "framing"
    """The chunk framing of a body, or what follows a request, is longer than allowed."""
    IDLE = "idle"
    """The connection was idle longest when there was no room for another connection."""
    CONNECTIONS_PER_ADDRESS = "connections_per_address"
    """The client's address has its maximum of connections, and none of them is idle."""
    OWING = "owing"
    """The client's address exceeds its rate, and many of its connections wait already."""
    CONNECTIONS = "connections"
    """This edge has its maximum of connections, and none of them is idle."""
    UNREAD = "unread"
    """The client went on sending a body that was refused."""
    STOP = "stop"
    """The edge stops, and the client has not read its last answer in time."""
    BYTES = "bytes"
    """All clients together make this edge hold too many bytes, this one's address the most."""


class Pace(msgspec.Struct, frozen=True):
    """How slow a transfer may be.

    It must move ``bytes_per_s_min`` after the first ``grace_s``, and end within ``seconds_max``.
    """

    grace_s: float
    bytes_per_s_min: float
    seconds_max: float

    def is_kept(self, elapsed_s: float, moved_bytes: int) -> bool:
        """Whether a transfer that moved so much in this time may go on."""
        due_bytes = (elapsed_s - self.grace_s) * self.bytes_per_s_min
        return elapsed_s <= self.seconds_max and moved_bytes >= due_bytes


class Transfer:
    """Bytes that this edge holds until one client has read them, or has sent the rest.

    ``cut`` is called when the transfer is cut. ``left_bytes``, if given, returns how many of the
    bytes have not moved yet.
    """

    __slots__ = ("address", "cut", "left_bytes", "moved_bytes", "since_s", "size_bytes")

    def __init__(
        self,
        address: str,
        since_s: float,
        cut: Callable[[Cut], None],
        left_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.address = address
        self.since_s = since_s
        self.cut = cut
        self.left_bytes = left_bytes
        self.moved_bytes = 0
        self.size_bytes = 0


class _Share:
    """The bytes that one address holds, and its transfers that can be cut, oldest first."""

    __slots__ = ("size_bytes", "waiting")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.waiting: dict[Transfer, None] = {}


class Transfers:
    """The transfers of one direction; ``size_bytes`` is the bytes that all of them hold."""

    def __init__(self, *, bytes_max: int, bytes_per_address_max: int, pace: Pace) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._bytes_per_address_max = bytes_per_address_max
        self._pace = pace
        self._shares: defaultdict[str, _Share] = defaultdict(_Share)

    def begin(self, transfer: Transfer, size_bytes: int = 0) -> None:
        """Begin a transfer, which waits for its client until ``end``."""
        self._shares[transfer.address].waiting[transfer] = None
        self.grow(transfer, size_bytes)

    def grow(self, transfer: Transfer, more_bytes: int) -> None:
        """Hold more bytes; cut transfers, this one perhaps, if they are too many."""
        share = self._shares.get(transfer.address)
        if share is None or transfer not in share.waiting:
            return  # cut or ended
        transfer.size_bytes += more_bytes
        share.size_bytes += more_bytes
        self.size_bytes += more_bytes
        while share.size_bytes > self._bytes_per_address_max and share.waiting:
            newest = next(reversed(share.waiting))
            if newest.size_bytes == share.size_bytes:
                break  # one answer may be larger than a share
            self._cut(newest, Cut.BYTES_PER_ADDRESS)
        self._make_room(0)

    def end(self, transfer: Transfer) -> None:
        """End a transfer and release its bytes; does nothing after a cut."""
        if self.settle(transfer):
            self.release(transfer.address, transfer.size_bytes)
            transfer.size_bytes = 0

    def no_room_for(self, address: str, size_bytes: int) -> Cut | None:
        """Why a transfer of this size would be cut if it began now; None if it would not."""
        held_bytes = self._held_bytes(address)
        if held_bytes and held_bytes + size_bytes > self._bytes_per_address_max:
            return Cut.BYTES_PER_ADDRESS
        if self.size_bytes + size_bytes <= self._bytes_max:
            return None
        largest_bytes = max((each.size_bytes for each in self._shares.values()), default=0)
        return Cut.BYTES if held_bytes + size_bytes > largest_bytes else None

    def settle(self, transfer: Transfer) -> bool:
        """Mark a transfer as complete: no cut can end it, and its bytes count until ``release``.

        False if it was cut before.
        """
        share = self._shares.get(transfer.address)
        if share is None or transfer not in share.waiting:
            return False
        del share.waiting[transfer]
        return True

    def take(self, address: str, size_bytes: int) -> Cut | None:
        """Reserve bytes until ``release``; return None, or the reason if there is no room.

        The bytes arrived all at once. Transfers that wait for their clients are cut to make room.
        """
        held_bytes = self._held_bytes(address)
        if held_bytes + size_bytes > self._bytes_per_address_max:
            return Cut.BYTES_PER_ADDRESS
        if not self._make_room(size_bytes):
            return Cut.BYTES
        self._shares[address].size_bytes += size_bytes
        self.size_bytes += size_bytes
        return None

    def release(self, address: str, size_bytes: int) -> None:
        """Release bytes of an address."""
        share = self._shares[address]
        share.size_bytes -= size_bytes
        self.size_bytes -= size_bytes
        if not share.size_bytes and not share.waiting:
            del self._shares[address]

    def cut_slow(self, now_s: float) -> None:
        """Cut every transfer that is slower than the pace."""
        for share in list(self._shares.values()):
            for transfer in list(share.waiting):
                if transfer.left_bytes is not None:
                    more = transfer.left_bytes() - transfer.size_bytes
                    transfer.moved_bytes -= min(more, 0)
                    self.grow(transfer, more)
                if not self._pace.is_kept(now_s - transfer.since_s, transfer.moved_bytes):
                    self._cut(transfer, Cut.SLOW)

    def cut_all(self, cause: Cut) -> None:
        """Cut all transfers that wait for their clients."""
        for share in list(self._shares.values()):
            for transfer in list(share.waiting):
                self._cut(transfer, cause)

    def _held_bytes(self, address: str) -> int:
        share = self._shares.get(address)
        return 0 if share is None else share.size_bytes

    def _make_room(self, size_bytes: int) -> bool:
        """Cut transfers until so many more bytes fit; False if none is left to cut."""
        while self.size_bytes + size_bytes > self._bytes_max:
            waiting = [share for share in self._shares.values() if share.waiting]
            if not waiting:
                return False
            largest = max(waiting, key=lambda share: share.size_bytes)
            self._cut(next(reversed(largest.waiting)), Cut.BYTES)
        return True

    def _cut(self, transfer: Transfer, cause: Cut) -> None:
        self.end(transfer)
        transfer.cut(cause)
