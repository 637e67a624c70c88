from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from http_edge.clients.decentrl import Backoff


@given(
    attempt=st.integers(1, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
    asked_s=st.none() | st.floats(0, 1e9),
)
def test_no_pause_is_longer_than_the_bound(
    attempt: int, chance: float, asked_s: float | None
) -> None:
    pause_s = Backoff(first_s=0.1, pause_s_max=10.0).pause_s(attempt, chance, asked_s)
    assert 0 <= pause_s <= 10.0
    assert pause_s >= min(asked_s or 0.0, 10.0)


def test_pauses_double_and_spread() -> None:
    backoff = Backoff(first_s=1.0, pause_s_max=10.0)
    assert [backoff.pause_s(attempt, 0.5) for attempt in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]
    assert backoff.pause_s(3, 0.0) == 0
