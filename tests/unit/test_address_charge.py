"""What the requests of an address cost it besides their own token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from functools import partial

import pytest

from http_edge.listener import address_charge
from http_edge.listener.address_charge import (
    LARGE_ANSWERS_MAX,
    ORDINARY_WORK,
    PART_BYTES,
    PUBLIC_BYTES,
    UNPROVEN_BYTES,
    AddressCharge,
    AddressRates,
    charge_answer,
    charge_body,
    charge_bytes,
    charge_keys,
    charge_message,
    charge_opening,
    charge_public,
    charge_unproven,
    charged_to,
    is_owing,
    large_answer,
    page_turn,
    paying_address,
    registration_wait_s,
    until_paid,
)
from http_edge.settings.settings import Rates

TOKENS = 100


class Address:
    """An address with ``TOKENS``, and a request of it."""

    def __init__(
        self, per_address_per_s: float = TOKENS, *, edges: int = 1, unproven_tokens: float = 16
    ) -> None:
        rates = Rates(
            per_address_per_s=per_address_per_s, burst_s=1, unproven_tokens=unproven_tokens
        )
        self.rates = AddressRates(rates, edges)
        self.now_s = 0.0
        self.looks = 0
        """How often a request has looked at the clock."""
        self.request = self.request_of("a")

    def request_of(self, address: str) -> Context:
        request = copy_context()
        request.run(charged_to, AddressCharge(self.rates, address, self._now_s))
        return request

    def has_exactly(self, tokens: float) -> bool:
        has = self.rates.requests.has
        return has("a", self.now_s, tokens) and not has("a", self.now_s, tokens + 0.01)

    def _now_s(self) -> float:
        self.looks += 1
        return self.now_s


@pytest.mark.parametrize(
    ("charge", "much", "tokens"),
    [
        (charge_answer, PART_BYTES - 1, 0),
        (charge_answer, PART_BYTES, 1),
        (charge_answer, 3 * PART_BYTES // 2, 1.5),
        (charge_body, PART_BYTES - 1, 0),
        (charge_body, 3 * PART_BYTES // 2, 1.5),
        (charge_message, PART_BYTES - 1, 1),
        (charge_message, 3 * PART_BYTES // 2, 2.5),
        (charge_public, PUBLIC_BYTES // 2, 0.5),
        (charge_bytes, UNPROVEN_BYTES // 4, 4),
        (charge_unproven, 0, 16),
        (charge_unproven, UNPROVEN_BYTES, 32),
        (charge_keys, 20, 40),
        (charge_opening, 0, 0),
        (charge_opening, ORDINARY_WORK, 0),
        (charge_opening, ORDINARY_WORK + 5, 5),
    ],
)
def test_bytes_and_keys_have_their_price(charge: object, much: int, tokens: float) -> None:
    address = Address()
    assert callable(charge)
    address.request.run(charge, much)
    assert address.has_exactly(TOKENS - tokens)
    charge(much)  # outside of a request
    assert address.has_exactly(TOKENS - tokens)


@pytest.mark.parametrize("read_bytes", [0, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES - 1])
def test_a_page_that_is_charged_as_it_is_read_costs_in_all_what_its_answer_costs(
    read_bytes: int,
) -> None:
    address = Address()
    address.request.run(charge_answer, read_bytes)
    address.request.run(partial(charge_answer, 2 * PART_BYTES, read_bytes=read_bytes))
    assert address.has_exactly(TOKENS - 2)
    address.request.run(partial(charge_answer, 1, read_bytes=read_bytes))
    assert address.has_exactly(TOKENS - 2)


def test_a_message_costs_as_much_as_a_request_and_a_registration_what_proves_nothing() -> None:
    address = Address()
    address.request.run(charge_message, 0)
    assert address.has_exactly(TOKENS - 1)
    assert address.request.run(registration_wait_s) is None
    assert address.has_exactly(TOKENS - 1 - 16)
    charge_message(0)
    assert registration_wait_s() is None
    assert address.has_exactly(TOKENS - 1 - 16)


def test_who_pays_is_known_where_addresses_have_a_rate() -> None:
    limited = Address()
    assert limited.request.run(paying_address) == "a"
    assert copy_context().run(paying_address) == "", "the mediator itself"
    free = AddressRates(Rates(per_address_per_s=0), edges=1)
    limited.request.run(charged_to, AddressCharge(free, "a", lambda: 0.0))
    assert limited.request.run(paying_address) is None


def test_an_address_owes_as_soon_as_it_has_less_than_nothing() -> None:
    address = Address()
    address.request.run(charge_answer, TOKENS * PART_BYTES)
    assert not address.request.run(is_owing)
    address.request.run(charge_message, 0)
    assert address.request.run(is_owing)
    assert not is_owing()


@pytest.mark.parametrize("tokens", [TOKENS, 2 * TOKENS, 10_000])
def test_an_address_that_one_unproven_request_costs_its_bucket_is_served_once_it_has_paid(
    tokens: float,
) -> None:
    address = Address(unproven_tokens=tokens)
    address.request.run(charge_message, 0)
    address.request.run(charge_unproven, 0)
    owed = min(1 + tokens - TOKENS, TOKENS)
    address.now_s += (owed - 0.01) / TOKENS
    assert address.request.run(is_owing)
    address.now_s += 0.01 / TOKENS
    assert not address.request.run(is_owing)


def test_an_edge_has_its_share_of_a_rate_and_newcomers_are_counted_as_unproven() -> None:
    address = Address(edges=2)
    assert address.has_exactly(TOKENS / 2)
    assert Address().rates.has_unproven("a", 0.0, 5)
    assert not Address().rates.has_unproven("a", 0.0, 6)


def test_registrations_have_a_rate_for_each_address_and_one_for_all() -> None:
    rates = Rates(registrations_per_address_per_s=1, registrations_per_s=2, burst_s=1)
    all_of = AddressRates(rates, edges=1)
    assert all_of.registration_wait_s("a", 0.0) is None
    assert all_of.registration_wait_s("a", 0.0) == pytest.approx(1)
    assert all_of.registration_wait_s("b", 0.0) is None, "what was refused counts for none"
    assert all_of.registration_wait_s("c", 0.0) == pytest.approx(0.5)


@contextmanager
def _waits(request: Context) -> Iterator[bool]:
    """Let a request wait for a large answer within the block."""
    place = request.run(large_answer)
    has_place = request.run(place.__enter__)
    try:
        yield has_place
    finally:
        request.run(place.__exit__, None, None, None)


def test_large_answers_of_one_address_that_wait_are_bounded_and_forgotten_whatever_happens() -> (
    None
):
    address = Address()
    other = address.request_of("b")
    with ExitStack() as waiting:
        places = [
            waiting.enter_context(_waits(address.request)) for _ in range(LARGE_ANSWERS_MAX + 2)
        ]
        assert places == [True] * LARGE_ANSWERS_MAX + [False] * 2
        with _waits(other) as has_place:
            assert has_place
        with pytest.raises(ZeroDivisionError), _waits(other):
            raise ZeroDivisionError
        assert address.rates.large_answers == {"a": LARGE_ANSWERS_MAX}
    with _waits(address.request):
        with _waits(address.request):
            assert address.rates.large_answers == {"a": 2}
        assert address.rates.large_answers == {"a": 1}
    assert address.rates.large_answers == {}


async def test_an_address_reads_a_large_page_at_a_time_and_a_public_one_beside_it() -> None:
    address = Address()
    other = address.request_of("b")
    async with address.request.run(page_turn):
        same = asyncio.create_task(_enter(address.request))
        async with asyncio.timeout(10):
            await _enter(other)
            await _enter(address.request, is_public=True)
        assert not same.done()
    await same
    assert not address.rates.page_turns


async def _enter(request: Context, *, is_public: bool = False) -> None:
    async with request.run(lambda: page_turn(is_public=is_public)):
        pass


async def test_where_addresses_have_no_rate_no_large_page_or_answer_waits_for_another() -> None:
    free = Address(0)
    async with asyncio.timeout(10), free.request.run(page_turn):
        await _enter(free.request)
    with ExitStack() as waiting:
        for _ in range(LARGE_ANSWERS_MAX + 1):
            assert waiting.enter_context(_waits(free.request))


async def test_who_owes_waits_until_it_has_paid_and_one_of_its_requests_looks_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address_charge, "_OWING_S", 0)
    address = Address()
    address.request.run(charge_unproven, TOKENS * UNPROVEN_BYTES)
    other = address.request_of("b")
    other.run(charge_answer, 3 * TOKENS * PART_BYTES // 2)
    waiting = [asyncio.create_task(until_paid(), context=address.request.copy()) for _ in range(9)]
    await asyncio.sleep(0)
    address.looks = 0
    for _ in range(20):
        await asyncio.sleep(0)
    assert 0 < address.looks <= 20
    owes_less = asyncio.create_task(until_paid(), context=other)
    await asyncio.sleep(0)
    assert not owes_less.done()
    address.now_s = 0.6
    async with asyncio.timeout(10):
        await owes_less
    assert not any(task.done() for task in waiting)
    address.now_s = 1.01
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert not address.rates.turns
