from __future__ import annotations

from logging import DEBUG, WARNING

from http_edge.telemetry.logs import LINES_APART_MS, LinePace


def test_of_many_lines_one_in_a_while_keeps_its_level() -> None:
    pace = LinePace()
    times_ms = (1_000, 1_000, 999 + LINES_APART_MS, 1_000 + LINES_APART_MS, 1_001 + LINES_APART_MS)
    levels = [pace.level(WARNING, now_ms) for now_ms in times_ms]
    assert levels == [WARNING, DEBUG, DEBUG, WARNING, DEBUG]


def test_a_clock_that_is_set_back_silences_no_line_for_longer() -> None:
    pace = LinePace()
    assert pace.level(WARNING, 10 * LINES_APART_MS) == WARNING
    assert pace.level(WARNING, 1_000) == WARNING
    assert pace.level(WARNING, 1_001) == DEBUG
