"""Rates: never more than promised, never forgotten, and the wait that is answered is true."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.core.rate_limits import RateLimit

KEYS = st.sampled_from([f"key-{number}" for number in range(8)])
STEPS_S = st.integers(0, 400).map(lambda hundredths: hundredths / 100)
REQUESTS = st.lists(st.tuples(KEYS, STEPS_S), max_size=200)
RATES = st.sampled_from([0.25, 1.0, 4.0, 100.0])
BURSTS_S = st.sampled_from([1.0, 5.0])


def _accepted(limit: RateLimit, requests: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Which of the requests, each some seconds after the one before, got a token, and when."""
    now_s, accepted = 1_000.0, []
    for key, step_s in requests:
        now_s += step_s
        if limit.take(key, now_s) is None:
            accepted.append((key, now_s))
    return accepted


def _holds(times_s: list[float], per_s: float, burst_s: float, buckets: int = 1) -> bool:
    """Is every window of these times within its tokens?"""
    full = max(per_s * burst_s, 1)
    return all(
        last - first + 1 <= buckets * (per_s * (times_s[last] - times_s[first]) + full) + 1e-6
        for first in range(len(times_s))
        for last in range(first, len(times_s))
    )


@given(REQUESTS, RATES, BURSTS_S)
def test_no_window_holds_more_tokens_than_its_seconds_and_one_bucket(
    requests: list[tuple[str, float]], per_s: float, burst_s: float
) -> None:
    accepted = _accepted(RateLimit(per_s, burst_s=burst_s, keys_max=8), requests)
    for key in {key for key, _ in accepted}:
        assert _holds([at_s for other, at_s in accepted if other == key], per_s, burst_s)


@given(REQUESTS, RATES, BURSTS_S, st.integers(1, 4))
def test_more_keys_than_buckets_get_no_more_than_the_buckets_and_the_shared_one(
    requests: list[tuple[str, float]], per_s: float, burst_s: float, keys_max: int
) -> None:
    limit = RateLimit(per_s, burst_s=burst_s, keys_max=keys_max)
    times_s = [at_s for _, at_s in _accepted(limit, requests)]
    assert _holds(times_s, per_s, burst_s, buckets=keys_max + 1)
    assert len(limit) <= keys_max + 1


@given(REQUESTS, RATES, BURSTS_S)
def test_a_client_that_waits_as_long_as_answered_is_served_and_not_earlier(
    requests: list[tuple[str, float]], per_s: float, burst_s: float
) -> None:
    limit = RateLimit(per_s, burst_s=burst_s, keys_max=8)
    now_s = 1_000.0
    for key, step_s in requests:
        now_s += step_s
        wait_s = limit.take(key, now_s)
        if wait_s is not None:
            assert wait_s > 0
            early_s = limit.take(key, now_s + 0.9 * wait_s)
            assert early_s is not None
            now_s += wait_s
            assert limit.take(key, now_s) is None


@given(REQUESTS, RATES, BURSTS_S)
def test_with_a_bucket_for_each_the_keys_do_not_touch_each_other(
    requests: list[tuple[str, float]], per_s: float, burst_s: float
) -> None:
    together = RateLimit(per_s, burst_s=burst_s, keys_max=8)
    alone = {key: RateLimit(per_s, burst_s=burst_s, keys_max=1) for key, _ in requests}
    now_s = 1_000.0
    for key, step_s in requests:
        now_s += step_s
        assert together.take(key, now_s) == alone[key].take(key, now_s)


def test_a_quiet_key_has_its_whole_burst_and_no_more() -> None:
    limit = RateLimit(10, burst_s=2, keys_max=1)
    answers = [limit.take("key", 5.0) for _ in range(21)]
    assert Counter(answer is None for answer in answers) == {True: 20, False: 1}
    assert answers[-1] is not None
    assert abs(answers[-1] - 0.1) < 1e-9


def test_a_token_that_is_given_back_is_there_again_and_makes_no_bucket_deeper() -> None:
    limit = RateLimit(1, burst_s=2, keys_max=1)
    assert [limit.take("a", 10.0) for _ in range(2)] == [None, None]
    assert not limit.has("a", 10.0, 1)
    limit.give_back("a", 10.0)
    assert limit.has("a", 10.0, 1)
    assert not limit.has("a", 10.0, 2)
    for _ in range(3):
        limit.give_back("a", 11.0)
    assert limit.has("a", 11.0, 2)
    assert not limit.has("a", 11.0, 3)
    assert limit.take("newcomer", 11.0) is None
    assert limit.has("a", 11.0, 1), "a full bucket makes room"


def test_a_key_in_use_is_not_forgotten_for_newcomers() -> None:
    limit = RateLimit(1, burst_s=1, keys_max=2)
    assert [limit.take(key, 0.0) for key in ("old", "older")] == [None, None]
    assert [limit.take(f"new-{number}", 0.0) is None for number in range(3)] == [True, False, False]
    assert limit.take("old", 0.5) is not None


def test_newcomers_owe_what_is_charged_to_the_bucket_that_they_share() -> None:
    limit = RateLimit(10, burst_s=5, keys_max=2)
    for key in ("old", "older"):
        limit.charge(key, 0, 30)
    limit.charge("new", 0, 60)
    assert not limit.has("new", 0, 0)
    assert not limit.has("newer", 0.9, 0)
    assert limit.has("newer", 1, 0)
    assert limit.has("old", 0, 20)
    # The old keys' buckets are full, so there is room for one of its own.
    assert limit.has("newest", 3, 50)


def test_newcomers_get_buckets_again_once_the_old_keys_are_quiet() -> None:
    limit = RateLimit(1, burst_s=1, keys_max=2)
    for key in ("a", "b", "c"):
        limit.take(key, 0.0)
    assert [limit.take(f"new-{number}", 1.0) for number in range(2)] == [None, None]
    assert len(limit) == 2


def test_a_key_that_never_rests_keeps_no_newcomer_from_the_bucket_of_one_that_does() -> None:
    limit = RateLimit(1, burst_s=5, keys_max=2)
    assert limit.take("busy", 1_000.0) is None
    assert limit.take("quiet", 1_000.0, 5) is None
    for now_s in (1_002.0, 1_004.0, 1_006.0):
        assert limit.take("busy", now_s, 2) is None
    assert limit.take("newcomer", 1_006.0, 5) is None
    assert limit.take("another", 1_006.0, 5) is None, "in the bucket that newcomers share"
    assert len(limit) == 3


def test_a_rate_below_one_per_burst_still_serves_one() -> None:
    limit = RateLimit(0.1, burst_s=1, keys_max=1)
    assert limit.take("key", 0.0) is None
    assert limit.take("key", 9.0) is not None
    assert limit.take("key", 10.0) is None


def test_rate_zero_is_no_limit_and_no_memory() -> None:
    limit = RateLimit(0, burst_s=1, keys_max=1)
    assert all(limit.take("key", 0.0) is None for _ in range(1_000))
    assert len(limit) == 0


def test_a_clock_set_back_makes_no_client_wait_for_it() -> None:
    limit = RateLimit(1, burst_s=2, keys_max=2)
    for key in ("a", "b"):
        assert limit.take(key, 5_000.0) is None
    assert [limit.take("a", 1_000.0) for _ in range(3)] == [None, None, 1.0]
    assert limit.take("new", 1_000.0) is None


@given(REQUESTS, RATES, BURSTS_S, st.integers(1, 20))
def test_what_costs_more_is_had_less_often(
    requests: list[tuple[str, float]], per_s: float, burst_s: float, tokens: int
) -> None:
    dear = RateLimit(per_s, burst_s=burst_s, keys_max=8)
    depth = max(per_s * burst_s, 1)
    now_s, spent = 1_000.0, 0.0
    for _, step_s in requests:
        now_s += step_s
        if dear.take("key", now_s, tokens) is None:
            spent += min(tokens, depth)
    assert spent <= depth + per_s * (now_s - 1_000.0) + 1e-6


def test_who_is_charged_for_what_it_did_owes_another_bucket_at_most() -> None:
    limit = RateLimit(4, burst_s=5, keys_max=8)
    limit.charge("key", 0.0, 19)
    assert limit.take("key", 0.0) is None
    assert limit.take("key", 0.0) == 0.25
    assert limit.has("key", 0.0, 0)
    assert not limit.has("key", 0.0, 1)
    assert limit.has("key", 1.0, 4)
    assert not limit.has("key", 1.0, 5)
    assert limit.has("other", 0.0, 20)
    limit.charge("key", 0.0, 1_000_000)
    assert not limit.has("key", 0.0, 0)
    assert limit.take("key", 0.0) == 5.25
    assert limit.take("other", 0.0) is None
    assert limit.has("key", 5.0, 0)
    assert limit.take("key", 10.0, 1_000_000) is None


@given(RATES, st.integers(1, 40), st.integers(1, 50))
def test_coming_often_makes_nothing_cheaper_that_is_paid_for_afterwards(
    per_s: float, price: int, per_token: int
) -> None:
    limit = RateLimit(per_s, burst_s=5, keys_max=8)
    depth, steps, served = max(5 * per_s, 1), 2_000, 0
    for step in range(steps):
        now_s = step / per_s / per_token
        if limit.take("key", now_s) is None:
            served += 1
            limit.charge("key", now_s, price)
    assert (served - 1) * min(price + 1, depth) <= 2 * depth + steps / per_token + 1
