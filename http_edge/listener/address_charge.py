"""Who pays for a request while it is worked on: the address that it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

from actors.core.rate_limits import RateLimit
from http_edge.settings.settings import Rates

UNPROVEN_BYTES: Final = 16_384
"""So many bytes that prove nothing cost as much again as the request that brought them."""
PUBLIC_BYTES: Final = 1_024
"""So many bytes of an answer that anybody may ask for cost one token."""
_OWING_S: Final = 0.1
"""Time between two looks whether an address has paid."""


class AddressRates:
    """What addresses have to pay with: requests, and of all new identities their share."""

    def __init__(self, rates: Rates, edges: int) -> None:
        """The part of one edge of ``edges``."""
        self.requests = rate_of(rates.per_address_per_s, rates, edges)
        self.unproven_tokens = rates.unproven_tokens
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._registrations_of = rate_of(rates.registrations_per_address_per_s, rates, edges)
        self._registrations = rate_of(rates.registrations_per_s, rates, edges)

    def has_unproven(self, address: str, now_s: float, requests: int) -> bool:
        """Has an address the tokens for so many requests that prove nothing?"""
        return self.requests.has(address, now_s, requests * (1 + self.unproven_tokens))

    def registration_wait_s(self, address: str, now_s: float) -> float | None:
        """Count a registration; after how many seconds it may be tried, if that is not now."""
        wait_s = self._registrations_of.take(address, now_s)
        return self._registrations.take("", now_s) if wait_s is None else wait_s


def rate_of(per_s: float, rates: Rates, edges: int) -> RateLimit:
    """The part of one edge of a rate: an address may reach any of them."""
    return RateLimit(per_s / edges, burst_s=rates.burst_s, keys_max=rates.keys_max)


class AddressCharge:
    """The tokens of one address, for one request."""

    __slots__ = ("_address", "_now_s", "_rates")

    def __init__(self, rates: AddressRates, address: str, now_s: Callable[[], float]) -> None:
        self._rates = rates
        self._address = address
        self._now_s = now_s

    def registration_wait_s(self) -> float | None:
        """See ``AddressRates``."""
        return self._rates.registration_wait_s(self._address, self._now_s())

    @property
    def is_owing(self) -> bool:
        """Has the address to pay for what it had before?"""
        return not self._rates.requests.has(self._address, self._now_s(), 0)

    @property
    def turn(self) -> asyncio.Lock:
        """To be held by who waits until the address has paid."""
        return self._rates.turns.setdefault(self._address, asyncio.Lock())

    def take(self, tokens: float) -> None:
        """Take tokens whether or not they are there: what they are for is done already."""
        self._rates.requests.charge(self._address, self._now_s(), tokens)

    def take_unproven(self, size_bytes: int) -> None:
        """Take what so many bytes cost that prove nothing."""
        self.take(self._rates.unproven_tokens)
        self.take_bytes(size_bytes)

    def take_bytes(self, size_bytes: int) -> None:
        """Take what it costs to read so many bytes."""
        self.take(self._rates.unproven_tokens * size_bytes / UNPROVEN_BYTES)


_CHARGE: Final[ContextVar[AddressCharge | None]] = ContextVar("charge", default=None)


def charged_to(charge: AddressCharge) -> None:
    """A request begins that ``charge`` pays for."""
    _CHARGE.set(charge)


def charge_unproven(size_bytes: int) -> None:
    """The current request proved nothing: its address pays for having it read."""
    if (charge := _CHARGE.get()) is not None:
        charge.take_unproven(size_bytes)


def charge_bytes(size_bytes: int) -> None:
    """The current request was read for nothing: its sender, who is proven, sends too much."""
    if (charge := _CHARGE.get()) is not None:
        charge.take_bytes(size_bytes)


def registration_wait_s() -> float | None:
    """The current request registers an identity: for how long it is too early, if it is.

    Its address pays besides as for what proves nothing: the next identity costs a key alone.
    """
    charge = _CHARGE.get()
    if charge is None:
        return None
    charge.take_unproven(0)
    return charge.registration_wait_s()


def is_owing() -> bool:
    """Has the address of the current request to pay for others that came before it?"""
    charge = _CHARGE.get()
    return charge is not None and charge.is_owing


async def until_paid() -> None:
    """Return when the address of the current request has paid for all that came before.

    Of all that wait for the same address one looks; the others have their turns behind it.
    """
    if (charge := _CHARGE.get()) is not None and charge.is_owing:
        async with charge.turn:
            while charge.is_owing:  # noqa: ASYNC110 - time alone pays
                await asyncio.sleep(_OWING_S)


def charge_message() -> None:
    """The socket of the current request has brought a message: it costs what a request does."""
    if (charge := _CHARGE.get()) is not None:
        charge.take(1)


def charge_public(size_bytes: int) -> None:
    """The current request, which anybody may send, is answered with so many bytes."""
    if (charge := _CHARGE.get()) is not None:
        charge.take(size_bytes / PUBLIC_BYTES)
