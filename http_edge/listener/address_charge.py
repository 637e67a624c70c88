"""Charge each request to the rate limit of the client address that it came from.

An *unproven* request has no valid signature or a nonce that was used before, is not an envelope, or
is for an unknown recipient and is answered as such.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

from actors.core.rate_limits import RateLimit
from http_edge.dispatch.slots import counted
from http_edge.settings.settings import Rates

UNPROVEN_BYTES: Final = 16_384
"""Bytes of an unproven request that cost ``unproven_tokens`` once more."""
PUBLIC_BYTES: Final = 1_024
"""Bytes of a public answer that cost one token."""
PART_BYTES: Final = 4_096
"""Bytes of a body, of a message on a socket, or of an answer to a proven request, that cost one
token. A second of per_address_per_s pays for 8 MiB: reading and packing them for an answer takes
80 ms, and parsing the worst JSON of that length most of a core (``http_edge.crypto.strict_json``).
"""
WORK_UNITS: Final = 4.0
"""Units of a command (``actors.core.cost``) that cost one token: the writer of a host does 14,000 a
second, and a second of per_address_per_s pays for about half of that, whatever the commands."""
KEY_TOKENS: Final = 2
"""Tokens for each key that a message adds to a keylist or removes from it: some commands to the
owner of the key, of 0.1 ms of a host and of an edge each, and a row that stays."""
ORDINARY_WORK: Final = 2
"""Key agreements and signature checks that open a message which names its sender."""
LARGE_ANSWERS_MAX: Final = 32
"""Large answers, or changes of many keys, for which requests of one address wait at once. At 2 MiB
each the last one waits 8 s, and wallets wait 15 s; each holds one of ``commands_in_flight_max``
slots, even if its client has gone."""
_TURN_S_MAX: Final = 15.0
"""Wallets wait this long for an answer. Meanwhile a host that hangs may hold the turn of an
address."""
_OWING_S: Final = 0.1
"""Seconds between two checks whether an address has paid its debt."""


class AddressRates:
    """The rate limits of client addresses: requests, and registrations of identities."""

    def __init__(self, rates: Rates, edges: int) -> None:
        """The share of one edge of ``edges`` in the rates."""
        self.requests = rate_of(rates.per_address_per_s, rates, edges)
        self.unproven_tokens = rates.unproven_tokens
        self.is_limited = rates.per_address_per_s > 0
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.page_turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock]
        self.page_turns = WeakValueDictionary()
        self.large_answers: Counter[str] = Counter()
        self._registrations_of = rate_of(rates.registrations_per_address_per_s, rates, edges)
        self._registrations = rate_of(rates.registrations_per_s, rates, edges)

    def has_unproven(self, address: str, now_s: float, requests: int) -> bool:
        """Does an address have the tokens for this many unproven requests?"""
        return self.requests.has(address, now_s, requests * (1 + self.unproven_tokens))

    def registration_wait_s(self, address: str, now_s: float) -> float | None:
        """Count a registration; return the seconds to wait, or None if it may go ahead."""
        wait_s = self._registrations_of.take(address, now_s)
        return self._registrations.take("", now_s) if wait_s is None else wait_s

    def uncount_registration(self, address: str, now_s: float) -> None:
        """Count a registration no longer for which ``registration_wait_s`` returned None."""
        self._registrations_of.give_back(address, now_s)
        self._registrations.give_back("", now_s)


def rate_of(per_s: float, rates: Rates, edges: int) -> RateLimit:
    """The share of one edge in a rate: an address may reach any edge."""
    return RateLimit(per_s / edges, burst_s=rates.burst_s, keys_max=rates.keys_max)


class AddressCharge:
    """Charges one request to its address, in these rates."""

    __slots__ = ("address", "now_s", "rates")

    def __init__(self, rates: AddressRates, address: str, now_s: Callable[[], float]) -> None:
        self.rates = rates
        self.address = address
        self.now_s = now_s

    @property
    def is_owing(self) -> bool:
        """Does the address owe tokens for earlier requests?"""
        return not self.rates.requests.has(self.address, self.now_s(), 0)

    def take(self, tokens: float) -> None:
        """Take tokens even if the address has too few: the work that they pay for is done."""
        self.rates.requests.charge(self.address, self.now_s(), tokens)

    def take_unproven(self, size_bytes: int) -> None:
        """Take the price of an unproven request of this size."""
        self.take(self.rates.unproven_tokens * (1 + size_bytes / UNPROVEN_BYTES))


_UNLIMITED: Final = Rates(
    per_address_per_s=0, registrations_per_s=0, registrations_per_address_per_s=0
)
_FREE: Final = AddressCharge(AddressRates(_UNLIMITED, 1), "", lambda: 0.0)
"""Pays for work of the mediator itself."""
_CHARGE: Final[ContextVar[AddressCharge]] = ContextVar("charge", default=_FREE)


def charged_to(charge: AddressCharge) -> None:
    """Let ``charge`` pay for the current request, which begins now."""
    _CHARGE.set(charge)


def paying_address() -> str | None:
    """The address that pays for the current request, for a share that each address has.

    It is empty for work of the mediator itself, and None if no address has a rate.
    """
    charge = _CHARGE.get()
    return charge.address if charge.rates.is_limited or charge is _FREE else None


def charge_unproven(size_bytes: int) -> None:
    """Charge the current request the price of an unproven request of this size."""
    _CHARGE.get().take_unproven(size_bytes)


def charge_bytes(size_bytes: int) -> None:
    """Charge the current request for this many bytes as ``charge_unproven`` does.

    They are of a document, of a sender beyond its rate, or of a message refused at another price.
    """
    charge = _CHARGE.get()
    charge.take(charge.rates.unproven_tokens * size_bytes / UNPROVEN_BYTES)


def charge_opening(work: int) -> None:
    """Charge for a message that took this many key agreements and signature checks to open.

    A token each, about what one takes; those of an ordinary message are in the request's own token.
    """
    _CHARGE.get().take(max(0, work - ORDINARY_WORK))


def registration_wait_s() -> float | None:
    """Count a registration by the current request; return the seconds to wait, or None.

    Its address also pays the price of an unproven request: another identity costs only a key.
    """
    charge = _CHARGE.get()
    charge.take_unproven(0)
    return charge.rates.registration_wait_s(charge.address, charge.now_s())


def uncount_registration() -> None:
    """Count the registration by the current request no longer, because its invitation is used up.

    Only the invitation's owner can say that, after the registration was counted. If it stayed
    counted, those who hold a used invitation could keep the invited waiting.
    """
    charge = _CHARGE.get()
    charge.rates.uncount_registration(charge.address, charge.now_s())


def is_owing() -> bool:
    """Does the address of the current request owe tokens for earlier requests?"""
    return _CHARGE.get().is_owing


def page_turn(*, is_public: bool = False) -> AbstractAsyncContextManager[None]:
    """Let an address with a rate read one large page at a time, whose price is known afterwards.

    The holder of the turn reads nothing while ``is_owing``, and charges before the turn ends. Pages
    of public events have a turn of their own: most are small, and a holder of the other turn waits
    until its address has paid.
    """
    charge = _CHARGE.get()
    if not charge.rates.is_limited:
        return nullcontext()
    return charge.rates.page_turns.setdefault((charge.address, is_public), asyncio.Lock())


@contextmanager
def large_answer() -> Iterator[bool]:
    """Reserve a slot for a large answer; yield False if the address has too many waiting."""
    charge = _CHARGE.get()
    if not charge.rates.is_limited:
        yield True
        return
    waiting, address = charge.rates.large_answers, charge.address
    if waiting[address] >= LARGE_ANSWERS_MAX:
        yield False
        return
    with counted(waiting, address):
        yield True


async def until_paid() -> None:
    """Wait until the address of the current request has paid for its earlier requests.

    One request of an address polls at a time; the others wait for its lock.
    """
    if (charge := _CHARGE.get()).is_owing:
        async with charge.rates.turns.setdefault(charge.address, asyncio.Lock()):
            while charge.is_owing:  # noqa: ASYNC110 - time alone pays
                await asyncio.sleep(_OWING_S)


@asynccontextmanager
async def paid_turn() -> AsyncIterator[bool]:
    """Wait until the address may do large work for a wallet: one at a time, and none while it owes.

    False: too many of its requests wait, or its turn comes too late for a wallet.
    """
    has_turn = False
    with large_answer() as has_slot:
        async with AsyncExitStack() as turn:
            if has_slot:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TURN_S_MAX):
                        await turn.enter_async_context(page_turn())
                        await until_paid()
                        has_turn = True
            yield has_turn


def charge_keys(count: int) -> None:
    """Charge for this many changes of keys by a proven message, which itself costs one token.

    As for answers, the rate of each sender alone bounds nothing.
    """
    _CHARGE.get().take(KEY_TOKENS * count)


def charge_work(units: float) -> None:
    """Charge for the work of a proven command, the first units of which the request's token paid.

    As for keys, the rate of each sender alone bounds nothing.
    """
    _CHARGE.get().take(max(0.0, units / WORK_UNITS - 1))


def charge_body(size_bytes: int) -> None:
    """Charge the current request for its body, whatever becomes of it; a short one costs nothing.

    Before a body is parsed no one knows whose it is, and it may hold more than is used. The body of
    a request for a Decentrl socket is the first message on it.
    """
    if (tokens := _part_tokens(size_bytes)) > 0:
        _CHARGE.get().take(tokens)


def charge_message(size_bytes: int) -> None:
    """Charge a message on the socket of the current request: it costs as much as a request."""
    _CHARGE.get().take(1 + _part_tokens(size_bytes))


def charge_answer(size_bytes: int, *, read_bytes: int = 0) -> None:
    """Charge for an answer of this size to a proven request; a short one costs nothing more.

    ``read_bytes`` were charged when they were read: only what the answer costs beyond them is due.
    A rate for each sender bounds nothing here: a stranger can have very many identities.
    """
    tokens = _part_tokens(size_bytes) - _part_tokens(read_bytes)
    if tokens > 0:
        _CHARGE.get().take(tokens)


def _part_tokens(size_bytes: int) -> float:
    return size_bytes / PART_BYTES if size_bytes >= PART_BYTES else 0.0


def charge_public(size_bytes: int) -> None:
    """Charge for an answer of this size to a public request."""
    _CHARGE.get().take(size_bytes / PUBLIC_BYTES)
