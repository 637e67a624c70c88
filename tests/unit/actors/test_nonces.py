"""The window of nonces: kept long enough, never shorter, and forgotten for nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.core.nonces import BUCKET_MS, SENDERS_MAX, NonceWindow, UnprovenNonces, expiry_ms
from tests.examples import examples
from tests.unit.actors.given import NOW_MS

WINDOW_MS = 300_000
KEY, OTHER = b"k" * 16, b"o" * 16


@examples(300)
@given(
    drift_ms=st.integers(-WINDOW_MS, WINDOW_MS),
    later_ms=st.integers(0, 3 * WINDOW_MS),
    sweeps_ms=st.lists(st.integers(0, 3 * WINDOW_MS), max_size=3),
)
def test_a_command_that_the_window_lets_in_again_is_still_known(
    drift_ms: int, later_ms: int, sweeps_ms: list[int]
) -> None:
    """Whatever the stamp and whenever the sweeps: no replay fits between the two checks."""
    timestamp_ms = NOW_MS + drift_ms
    nonces = NonceWindow()
    nonces.add(KEY, expiry_ms(NOW_MS, timestamp_ms, WINDOW_MS))
    for sweep_ms in sorted(sweeps_ms):
        if sweep_ms <= later_ms:
            nonces.sweep(NOW_MS + sweep_ms, WINDOW_MS)
    replayed_ms = NOW_MS + later_ms
    let_in = abs(replayed_ms - timestamp_ms) <= WINDOW_MS
    assert nonces.holds(KEY, replayed_ms) or not let_in


def test_a_nonce_is_kept_for_a_window_after_its_receipt_and_after_its_timestamp() -> None:
    for drift_ms in (-WINDOW_MS, WINDOW_MS):
        kept_ms = max(NOW_MS, NOW_MS + drift_ms) + WINDOW_MS
        assert expiry_ms(NOW_MS, NOW_MS + drift_ms, WINDOW_MS) > kept_ms


def test_trap_27_a_lookup_ignores_what_has_expired_whether_swept_or_not() -> None:
    nonces = NonceWindow()
    nonces.add(KEY, NOW_MS)
    past_ms = NOW_MS + 2 * BUCKET_MS
    assert nonces.holds(KEY, NOW_MS)
    assert not nonces.holds(KEY, past_ms)
    assert len(nonces) == 1
    nonces.sweep(past_ms, WINDOW_MS)
    assert not nonces.holds(KEY, past_ms)
    assert len(nonces) == 0


def test_a_key_is_counted_once_per_bucket_and_others_are_not_held() -> None:
    nonces = NonceWindow()
    for _ in range(2):
        nonces.add(KEY, NOW_MS)
    assert len(nonces) == 1
    assert not nonces.holds(OTHER, NOW_MS)


def test_a_sweep_forgets_nothing_that_is_in_force() -> None:
    nonces = NonceWindow()
    for offset_ms in range(0, 10 * BUCKET_MS, 1_000):
        nonces.add(offset_ms.to_bytes(16, "big"), NOW_MS + offset_ms)
    for now_ms in range(NOW_MS, NOW_MS + 11 * BUCKET_MS, 7_000):
        nonces.sweep(now_ms, WINDOW_MS)
        for offset_ms in range(0, 10 * BUCKET_MS, 1_000):
            if NOW_MS + offset_ms >= now_ms:
                assert nonces.holds(offset_ms.to_bytes(16, "big"), now_ms)
    assert len(nonces) == 0


@examples(100)
@given(st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(0, 10 * BUCKET_MS)))
def test_a_packed_window_is_the_same_window(keys: dict[bytes, int]) -> None:
    nonces, copy = NonceWindow(), NonceWindow()
    for key, offset_ms in keys.items():
        nonces.add(key, NOW_MS + offset_ms)
    copy.add_packed(nonces.packed())
    assert len(copy) == len(nonces)
    assert copy.packed().keys() == nonces.packed().keys()
    assert all(copy.holds(key, NOW_MS) for key in keys)


def test_what_counts_for_a_sender_counts_as_long_as_it_is_kept() -> None:
    nonces = NonceWindow()
    nonces.add(KEY, NOW_MS)
    nonces.add(OTHER, NOW_MS, counted_for=b"a")
    nonces.add(OTHER, NOW_MS, counted_for=b"a")
    nonces.add(b"l" * 16, NOW_MS + 2 * BUCKET_MS, counted_for=b"a")
    assert (nonces.counted_for(b"a"), nonces.counted_for(b"b"), len(nonces)) == (2, 0, 3)
    nonces.sweep(NOW_MS + BUCKET_MS, WINDOW_MS)
    assert (nonces.counted_for(b"a"), len(nonces)) == (1, 1)
    nonces.add(KEY, NOW_MS)
    before_ms = nonces.forgotten_before_ms
    nonces.sweep(NOW_MS + 3 * BUCKET_MS, WINDOW_MS)
    assert (nonces.counted_for(b"a"), len(nonces)) == (0, 0)
    assert nonces.forgotten_before_ms == before_ms + 2 * BUCKET_MS


def test_more_senders_than_are_counted_apart_are_counted_as_one() -> None:
    nonces = NonceWindow()
    senders = [number.to_bytes(16, "big") for number in range(SENDERS_MAX + 3)]
    for sender in senders:
        nonces.add(sender, NOW_MS, counted_for=sender)
    assert [nonces.counted_for(sender) for sender in senders[:SENDERS_MAX]] == [1] * SENDERS_MAX
    assert [nonces.counted_for(sender) for sender in (*senders[-3:], b"new")] == [3] * 4
    nonces.sweep(NOW_MS + BUCKET_MS, WINDOW_MS)
    # Their room to be counted apart is free again.
    nonces.add(b"new", NOW_MS + 2 * BUCKET_MS, counted_for=b"new")
    assert (nonces.counted_for(b"new"), nonces.counted_for(b"newer")) == (1, 0)


@examples(300)
@given(
    drift_ms=st.integers(-WINDOW_MS, WINDOW_MS),
    clocks_ms=st.lists(st.integers(-4 * WINDOW_MS, 4 * WINDOW_MS), max_size=4),
    replayed_ms=st.integers(-4 * WINDOW_MS, 4 * WINDOW_MS),
)
def test_what_was_forgotten_by_any_clock_is_too_old_for_every_clock(
    drift_ms: int, clocks_ms: list[int], replayed_ms: int
) -> None:
    timestamp_ms = NOW_MS + drift_ms
    nonces = NonceWindow()
    nonces.add(KEY, expiry_ms(NOW_MS, timestamp_ms, WINDOW_MS))
    for clock_ms in clocks_ms:
        nonces.sweep(NOW_MS + clock_ms, WINDOW_MS)
    let_in = (
        abs(NOW_MS + replayed_ms - timestamp_ms) <= WINDOW_MS
        and timestamp_ms >= nonces.forgotten_before_ms
    )
    assert nonces.holds(KEY, NOW_MS + replayed_ms) or not let_in


@examples(300)
@given(passed_ms=st.lists(st.integers(0, WINDOW_MS), max_size=8))
def test_under_a_clock_that_goes_on_forgetting_refuses_nothing_new(passed_ms: list[int]) -> None:
    nonces, now_ms = NonceWindow(), NOW_MS
    for step_ms in passed_ms:
        nonces.add(KEY, expiry_ms(now_ms, now_ms, WINDOW_MS))
        now_ms += step_ms
        nonces.sweep(now_ms, WINDOW_MS)
        assert nonces.forgotten_before_ms <= now_ms - WINDOW_MS


def test_the_oldest_nonces_without_effect_make_room() -> None:
    unproven = UnprovenNonces(10)
    keys = [number.to_bytes(16, "big") for number in range(100)]
    for number, key in enumerate(keys):
        unproven.add(key, NOW_MS)
        assert all(unproven.holds(known, NOW_MS) for known in keys[max(0, number - 4) : number])
        assert len(unproven) <= 10
    assert not unproven.holds(keys[0], NOW_MS)


def test_trap_27_a_nonce_without_effect_counts_until_it_expires() -> None:
    unproven = UnprovenNonces(10)
    unproven.add(KEY, NOW_MS)
    assert unproven.holds(KEY, NOW_MS)
    assert not unproven.holds(KEY, NOW_MS + 1)
    assert not unproven.holds(OTHER, NOW_MS)
