"""Answers that must not tell by their time who is registered."""

from __future__ import annotations

import pytest

from http_edge.didcomm.answer_times import UNOPENED_S, AnswerTimes


class Time:
    """Stands still until it is moved."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def times(time: Time) -> AnswerTimes:
    return AnswerTimes(time)


def stored(times: AnswerTimes, time: Time, *seconds: float) -> None:
    for each in seconds:
        arrived_s = times.now_s()
        time.now_s += each
        times.stored(arrived_s)


def test_before_any_forward_was_stored_a_usual_time_is_waited(times: AnswerTimes) -> None:
    assert 0 < times.left_as_stored_s(times.now_s()) < 0.01


def test_unknown_names_are_answered_after_the_times_of_stored_forwards_and_no_others(
    times: AnswerTimes, time: Time
) -> None:
    stored(times, time, *[0.5] * 64)  # which are forgotten
    lately = [number / 1000 for number in range(1, 65)]
    stored(times, time, *lately)
    waited = [times.left_as_stored_s(times.now_s()) for _ in lately]
    assert sorted(waited) == pytest.approx(lately)


def test_what_was_spent_already_is_not_waited_again(times: AnswerTimes, time: Time) -> None:
    stored(times, time, *[0.010] * 64)
    arrived_s = times.now_s()
    time.now_s += 0.004
    assert times.left_as_stored_s(arrived_s) == pytest.approx(0.006)
    time.now_s += 1
    assert times.left_as_stored_s(arrived_s) == 0


def test_a_log_that_stands_still_is_not_waited_for(times: AnswerTimes, time: Time) -> None:
    stored(times, time, *[30.0] * 64)
    assert times.left_as_stored_s(times.now_s()) == 1


def test_what_cannot_be_opened_is_answered_at_one_time(times: AnswerTimes, time: Time) -> None:
    arrived_s = times.now_s()
    assert times.left_unopened_s(arrived_s) == pytest.approx(UNOPENED_S)
    time.now_s += UNOPENED_S / 2
    assert times.left_unopened_s(arrived_s) == pytest.approx(UNOPENED_S / 2)
    time.now_s += 1
    assert times.left_unopened_s(arrived_s) == 0
