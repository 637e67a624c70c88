"""The figures of a log for reports: asked once at a time, and never waited for."""

from __future__ import annotations

import threading

import pytest

from actors.host_report import LogWatch
from eventstore.errors import LogUnavailable
from eventstore.log import EventLog
from tests.log.faulty_log import FaultyLog


def test_a_log_that_fails_or_hangs_has_no_figures_and_holds_nobody_up(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyLog(log)
    released = threading.Event()
    asked: list[str] = []

    def hang() -> None:
        asked.append("")
        assert released.wait(30)
        raise LogUnavailable("gone")

    monkeypatch.setattr(faulty, "figures", hang)
    watch = LogWatch(faulty)
    assert [watch.figures(0.01) for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    released.set()
    watch.close()
    assert watch.figures(30) is None

    fresh = LogWatch(log)
    assert fresh.figures(30) == log.figures()
    fresh.close()
