"""Who pays for a request while it is worked on: the address that it came from."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from actors.core.rate_limits import RateLimit

UNPROVEN_BYTES: Final = 16_384
"""So many bytes that prove nothing cost as much again as the request that brought them."""
PUBLIC_BYTES: Final = 4_096
"""So many bytes of an answer that anybody may ask for cost one token."""


class AddressCharge:
    """The tokens of one address, for one request."""

    __slots__ = ("_address", "_now_s", "_rate", "_unproven_tokens")

    def __init__(
        self, rate: RateLimit, address: str, now_s: Callable[[], float], unproven_tokens: float
    ) -> None:
        """``unproven_tokens`` is what a request costs that proves nothing."""
        self._rate = rate
        self._address = address
        self._now_s = now_s
        self._unproven_tokens = unproven_tokens

    def take(self, tokens: float) -> None:
        """Take tokens whether or not they are there: what they are for is done already."""
        self._rate.charge(self._address, self._now_s(), tokens)

    def take_unproven(self, size_bytes: int) -> None:
        """Take what so many bytes cost that prove nothing."""
        self.take(self._unproven_tokens * (1 + size_bytes / UNPROVEN_BYTES))


_CHARGE: Final[ContextVar[AddressCharge | None]] = ContextVar("charge", default=None)


def charged_to(charge: AddressCharge) -> None:
    """A request begins that ``charge`` pays for."""
    _CHARGE.set(charge)


def charge_unproven(size_bytes: int) -> None:
    """The current request proved nothing: its address pays for having it read."""
    if (charge := _CHARGE.get()) is not None:
        charge.take_unproven(size_bytes)


def charge_public(size_bytes: int) -> None:
    """The current request, which anybody may send, is answered with so many bytes."""
    if (charge := _CHARGE.get()) is not None:
        charge.take(size_bytes / PUBLIC_BYTES)
