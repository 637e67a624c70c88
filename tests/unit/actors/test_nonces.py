"""The window of nonces: kept long enough, never shorter, and forgotten for nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.nonces import BUCKET_MS, NonceWindow, expiry_ms
from tests.unit.actors.given import NOW_MS

WINDOW_MS = 300_000
KEY, OTHER = b"k" * 16, b"o" * 16


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
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
            nonces.sweep(NOW_MS + sweep_ms)
    replayed_ms = NOW_MS + later_ms
    let_in = abs(replayed_ms - timestamp_ms) <= WINDOW_MS
    assert nonces.holds(KEY, replayed_ms) or not let_in


def test_trap_27_a_lookup_ignores_what_has_expired_whether_swept_or_not() -> None:
    nonces = NonceWindow()
    nonces.add(KEY, NOW_MS)
    past_ms = NOW_MS + 2 * BUCKET_MS
    assert nonces.holds(KEY, NOW_MS)
    assert not nonces.holds(KEY, past_ms)
    assert len(nonces) == 1
    nonces.sweep(past_ms)
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
        nonces.sweep(now_ms)
        for offset_ms in range(0, 10 * BUCKET_MS, 1_000):
            if NOW_MS + offset_ms >= now_ms:
                assert nonces.holds(offset_ms.to_bytes(16, "big"), now_ms)
    assert len(nonces) == 0


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(0, 10 * BUCKET_MS)))
def test_a_packed_window_is_the_same_window(keys: dict[bytes, int]) -> None:
    nonces, copy = NonceWindow(), NonceWindow()
    for key, offset_ms in keys.items():
        nonces.add(key, NOW_MS + offset_ms)
    copy.add_packed(nonces.packed(), NOW_MS)
    assert len(copy) == len(nonces)
    assert copy.packed().keys() == nonces.packed().keys()
    assert all(copy.holds(key, NOW_MS) for key in keys)


def test_expired_keys_of_a_packed_window_are_left_out() -> None:
    nonces, copy = NonceWindow(), NonceWindow()
    nonces.add(KEY, NOW_MS)
    nonces.add(OTHER, NOW_MS + 3 * BUCKET_MS)
    copy.add_packed(nonces.packed(), NOW_MS + 2 * BUCKET_MS)
    assert len(copy) == 1
    assert copy.holds(OTHER, NOW_MS + 2 * BUCKET_MS)
