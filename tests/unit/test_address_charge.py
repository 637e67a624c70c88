"""What the requests of an address cost it besides their own token."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial

import pytest

from http_edge.listener.address_charge import (
    ANSWER_BYTES,
    PUBLIC_BYTES,
    UNPROVEN_BYTES,
    AddressCharge,
    AddressRates,
    charge_answer,
    charge_bytes,
    charge_message,
    charge_public,
    charge_unproven,
    charged_to,
    is_owing,
    page_turn,
    paying_address,
    registration_wait_s,
)
from http_edge.settings.settings import Rates

TOKENS = 100


class Address:
    """An address with ``TOKENS``, and a request of it."""

    def __init__(self) -> None:
        rates = Rates(per_address_per_s=TOKENS, burst_s=1, unproven_tokens=16)
        self.rates = AddressRates(rates, edges=1)
        self.request = copy_context()
        self.request.run(charged_to, AddressCharge(self.rates, "a", lambda: 0.0))

    def has_exactly(self, tokens: float) -> bool:
        has = self.rates.requests.has
        return has("a", 0.0, tokens) and not has("a", 0.0, tokens + 0.01)


@pytest.mark.parametrize(
    ("charge", "size_bytes", "tokens"),
    [
        (charge_answer, ANSWER_BYTES - 1, 0),
        (charge_answer, ANSWER_BYTES, 1),
        (charge_answer, 3 * ANSWER_BYTES // 2, 1.5),
        (charge_public, PUBLIC_BYTES // 2, 0.5),
        (charge_bytes, UNPROVEN_BYTES // 4, 4),
        (charge_unproven, 0, 16),
        (charge_unproven, UNPROVEN_BYTES, 32),
    ],
)
def test_bytes_have_their_price(charge: object, size_bytes: int, tokens: float) -> None:
    address = Address()
    assert callable(charge)
    address.request.run(charge, size_bytes)
    assert address.has_exactly(TOKENS - tokens)
    charge(size_bytes)  # outside of a request
    assert address.has_exactly(TOKENS - tokens)


def test_a_message_costs_as_much_as_a_request_and_a_registration_what_proves_nothing() -> None:
    address = Address()
    address.request.run(charge_message)
    assert address.has_exactly(TOKENS - 1)
    assert address.request.run(registration_wait_s) is None
    assert address.has_exactly(TOKENS - 1 - 16)
    charge_message()
    assert registration_wait_s() is None
    assert address.has_exactly(TOKENS - 1 - 16)


def test_an_address_reads_one_large_page_at_a_time_and_waits_for_no_other() -> None:
    address = Address()
    turn = address.request.run(page_turn)
    assert address.request.run(page_turn) is turn
    assert address.request.run(partial(page_turn, is_public=True)) is not turn
    address.request.run(charged_to, AddressCharge(address.rates, "b", lambda: 0.0))
    assert address.request.run(page_turn) is not turn


def test_who_pays_is_known_where_addresses_have_a_rate() -> None:
    limited = Address()
    assert limited.request.run(paying_address) == "a"
    assert copy_context().run(paying_address) == "", "the mediator itself"
    free = AddressRates(Rates(per_address_per_s=0), edges=1)
    limited.request.run(charged_to, AddressCharge(free, "a", lambda: 0.0))
    assert limited.request.run(paying_address) is None


def test_an_address_owes_as_soon_as_it_has_less_than_nothing() -> None:
    address = Address()
    address.request.run(charge_answer, TOKENS * ANSWER_BYTES)
    assert not address.request.run(is_owing)
    address.request.run(charge_message)
    assert address.request.run(is_owing)
    assert not is_owing()
