"""Several clients wait for one another, and one alone never waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.host.writer import CommitDelay

TOOK_S = 0.01


def after(*transactions: int, wait_s_max: float = 1.0, took_s: float = TOOK_S) -> CommitDelay:
    commit_delay = CommitDelay(wait_s_max)
    for items in transactions:
        commit_delay.committed(items, took_s)
    return commit_delay


def test_several_clients_wait_as_long_as_the_last_transaction_took() -> None:
    commit_delay = after(8)
    assert commit_delay.wait_s(1, 0.0) == TOOK_S
    assert commit_delay.wait_s(1, TOOK_S / 4) == pytest.approx(TOOK_S * 3 / 4)
    assert commit_delay.wait_s(1, TOOK_S) == 0


def test_no_transaction_waits_longer_than_the_limit() -> None:
    assert after(8, wait_s_max=0.002).wait_s(1, 0.0) == 0.002
    assert after(8, wait_s_max=0.0).wait_s(1, 0.0) == 0


def test_a_transaction_with_enough_commands_waits_no_longer() -> None:
    assert after(8).wait_s(7, 0.0) > 0
    assert after(8).wait_s(8, 0.0) == 0


@given(st.integers(min_value=0, max_value=1_000))
def test_one_client_alone_never_waits(transactions: int) -> None:
    assert after(*[1] * transactions).wait_s(1, 0.0) == 0


def test_a_crowd_is_forgotten() -> None:
    assert after(1_000, *[1] * 8).wait_s(1, 0.0) > 0
    assert after(1_000, *[1] * 9).wait_s(1, 0.0) == 0


@given(
    st.lists(st.integers(min_value=1, max_value=1_000)),
    st.integers(min_value=1, max_value=1_000),
    st.floats(min_value=0, max_value=10),
)
def test_no_wait_is_negative_or_beyond_the_limit(
    transactions: list[int], items: int, waited_s: float
) -> None:
    assert 0 <= after(*transactions, wait_s_max=0.02).wait_s(items, waited_s) <= 0.02
