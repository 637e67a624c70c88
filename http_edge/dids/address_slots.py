"""A number of slots that client addresses share, so that none of them takes them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SHARES: Final = 4
"""A client address may take a quarter of the slots that stay free: of 32 slots, 4 addresses that
take all they can leave 12, and 8 leave 4."""


class AddressSlots:
    """Slots by client address; an address that is None has no rate, and no share."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._held: Counter[str] = Counter()

    def has_one_for(self, address: str | None) -> bool:
        """Is a slot free, and may this address take it?"""
        return _SHARES * (0 if address is None else self._held[address]) < self.free

    def take(self, address: str | None) -> None:
        """Take a slot, whether or not there is one for the address."""
        self.free -= 1
        if address is not None:
            self._held[address] += 1

    def give_back(self, address: str | None) -> None:
        """Give a slot back; forget an address that holds none."""
        self.free += 1
        if address is not None:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]

    @contextmanager
    def held_by(self, address: str | None) -> Iterator[None]:
        """Hold a slot for the address within the block."""
        self.take(address)
        try:
            yield
        finally:
            self.give_back(address)
