"""The figures of a log for reports: asked once at a time, and never waited for."""

from __future__ import annotations

import threading

import pytest

from actors.host.measures import LogWatch
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from tests.log.faulty_log import FaultyLog


def test_a_log_that_fails_or_hangs_has_no_figures_and_delays_no_report(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyLog(log)
    began, released = threading.Event(), threading.Event()
    request: list[str] = []

    def hang() -> None:
        request.append("")
        began.set()
        assert released.wait(30)
        raise LogUnavailable("gone")

    monkeypatch.setattr(faulty, "figures", hang)
    watch = LogWatch(faulty)
    assert [watch.figures(0.01) for _ in range(3)] == [None] * 3
    assert began.wait(30)  # its thread may be late
    assert len(request) == 1
    released.set()
    watch.close()
    assert watch.figures(30) is None

    fresh = LogWatch(log)
    assert fresh.figures(30) == log.figures()
    fresh.close()
