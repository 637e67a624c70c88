"""A node whose clock is not that of the database does not start, and one that drifts says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from eventstore.log.host_leases import HostLeases
from eventstore.stores.open_log import open_host_leases
from http_edge.server import clock_watch
from http_edge.server.clock_watch import ClockWatch
from http_edge.server.exits import Exit, Stop

pytestmark = pytest.mark.postgres
ALLOWED_S = 5.0


@pytest.fixture
def leases(postgres_url: str) -> Iterator[HostLeases]:
    with closing(open_host_leases(postgres_url)) as found:
        yield found


class Skewed:
    """The clock of this machine, wrong by some seconds."""

    def __init__(self, by_s: float) -> None:
        self.by_s = by_s

    def __call__(self) -> int:
        return system_clock() + round(self.by_s * 1000)


@pytest.mark.parametrize(
    ("by_s", "said"),
    [(90.0, r"(89\.9|90\.0) s ahead of that of the database"), (-90.0, r"\d s behind that")],
)
def test_a_clock_that_is_off_stops_the_start_and_says_by_how_much(
    leases: HostLeases, by_s: float, said: str
) -> None:
    leases.clock_s()  # connects: the time of the answer is taken off what is said
    with pytest.raises(Stop, match=said) as stopped:
        ClockWatch(leases, ALLOWED_S, Skewed(by_s)).check()
    assert stopped.value.exit_code == Exit.UNSAFE
    assert "limits.clock_off_s_max" in stopped.value.remedy


@pytest.mark.parametrize(("by_s", "allowed_s"), [(0.0, 5.0), (2.0, 5.0), (9_000.0, 0.0)])
def test_a_clock_within_what_is_allowed_serves(
    leases: HostLeases, by_s: float, allowed_s: float
) -> None:
    ClockWatch(leases, allowed_s, Skewed(by_s)).check()


def test_the_time_that_the_answer_takes_is_not_held_against_a_clock(leases: HostLeases) -> None:
    slow = iter([system_clock() - 60_000, system_clock() + 60_000])
    assert ClockWatch(leases, ALLOWED_S, lambda: next(slow)).off_s() == 0.0


def test_a_clock_that_drifts_is_said_once_and_so_is_its_return(
    leases: HostLeases, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Skewed(0.0)
    watch = ClockWatch(leases, ALLOWED_S, clock)
    with caplog.at_level(logging.INFO, "http_edge.server.clock_watch"):
        for by_s in (0.0, 60.0, 60.0, 0.0, 0.0):
            clock.by_s = by_s
            watch.look()
    first, second = caplog.messages
    assert "ahead of that of the database" in first
    assert "agrees with that of the database again" in second


async def test_a_watch_for_which_there_is_no_thread_looks_again_later(
    leases: HostLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([RuntimeError("can't start new thread"), asyncio.CancelledError()])

    async def no_thread(_look: object) -> None:
        raise next(looks)

    monkeypatch.setattr(clock_watch, "_LOOK_S", 0)
    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    with pytest.raises(asyncio.CancelledError):
        await ClockWatch(leases, ALLOWED_S, Skewed(0.0)).run()


def test_a_database_that_does_not_answer_stops_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    nowhere = f"postgresql://localhost/x?host={tmp_path}"
    with closing(open_host_leases(nowhere)) as leases:
        watch = ClockWatch(leases, ALLOWED_S, Skewed(90.0))
        watch.check()
        watch.look()
    assert len(caplog.messages) == 1
    assert "was not compared" in caplog.messages[0]


def test_a_log_on_this_machine_has_no_other_clock(tmp_path: Path) -> None:
    with closing(open_host_leases(f"sqlite:{tmp_path / 'log.db'}")) as leases:
        ClockWatch(leases, ALLOWED_S, Skewed(1e9)).check()
