from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.outbound.retry_schedule import pause_s


@given(st.integers(1, 10_000), st.text())
def test_a_pause_doubles_up_to_its_bound_and_is_never_less_than_half(
    attempt: int, name: str
) -> None:
    ceiling_s = min(60.0, 0.5 * 2.0 ** min(attempt - 1, 32))
    pause = pause_s(attempt, name, first_s=0.5, longest_s=60)
    assert ceiling_s / 2 <= pause <= ceiling_s


def test_agents_that_fail_together_do_not_come_back_together() -> None:
    pauses = {pause_s(3, f"agent {number}", first_s=0.5, longest_s=60) for number in range(100)}
    assert len(pauses) == 100
    assert max(pauses) - min(pauses) > 0.8
