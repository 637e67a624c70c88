"""A clock that is ahead for a while lets nothing expire; all that lasts counts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.commands import Page, QueryMessages
from actors.core.limits import HostLimits
from actors.core.replies import Registered
from actors.host import clock_steps
from actors.host.clock import system_clock, uptime_s
from actors.host.clock_steps import ClockSteps, newest_ms
from actors.host.identity_host import HostOptions
from actors.ray import processes
from eventstore.stores.open_log import open_log
from tests.unit.actors.didcomm import ME
from tests.unit.actors.given import NOW_S, HandClock, host, registration, run, submission

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
YEARS_S: Final = 730 * DAY_S


class Machine:
    """A machine whose wall clock shows the true time, or is off."""

    def __init__(
        self, settles_s: float = HOUR_S, *, off_s: int = 0, idle_s: int | None = None
    ) -> None:
        self.true_s, self.off_s = 1_800_000_000, off_s
        self.steps = ClockSteps(
            self.clock,
            settles_s,
            newest_ms=None if idle_s is None else (self.true_s - idle_s) * 1000,
            uptime_s=lambda: self.true_s - 1_700_000_000,
        )

    def clock(self) -> int:
        return (self.true_s + self.off_s) * 1000

    def expiring_s(self) -> float:
        """The time by which things expire, compared with the true one."""
        ahead_ms = self.steps.ahead_ms()
        return (self.clock() - ahead_ms) / 1000 - self.true_s


@pytest.mark.parametrize("step_s", [600, 3 * DAY_S, YEARS_S])
def test_nothing_expires_by_a_step_ahead_that_is_corrected_in_time(step_s: int) -> None:
    machine = Machine()
    machine.off_s = step_s
    for _ in range(HOUR_S // 10):
        assert machine.expiring_s() == 0
        machine.true_s += 10
    machine.true_s -= 1
    machine.off_s = 0
    assert machine.expiring_s() == 0


@pytest.mark.parametrize("step_s", [600, 3 * DAY_S, YEARS_S])
def test_a_step_ahead_that_lasts_counts_in_the_end(step_s: int) -> None:
    machine = Machine()
    machine.off_s = step_s
    assert machine.expiring_s() == 0
    machine.true_s += HOUR_S
    assert machine.expiring_s() == step_s
    machine.true_s += 1
    assert machine.expiring_s() == step_s


@pytest.mark.parametrize("step_s", [-600, -3 * DAY_S, -YEARS_S])
def test_what_expires_follows_a_clock_that_is_set_back_at_once(step_s: int) -> None:
    machine = Machine()
    machine.off_s = step_s
    assert machine.expiring_s() == step_s


@pytest.mark.parametrize("slept_s", [1, HOUR_S, 30 * DAY_S])
def test_time_that_passed_while_the_process_or_the_machine_slept_is_no_step(slept_s: int) -> None:
    machine = Machine()
    machine.true_s += slept_s
    assert machine.expiring_s() == 0


@pytest.mark.parametrize("off_s", [600, 3 * DAY_S, YEARS_S])
def test_nothing_expires_by_a_clock_that_is_ahead_at_the_start_and_corrected_in_time(
    off_s: int,
) -> None:
    machine = Machine(off_s=off_s, idle_s=30)
    for _ in range(HOUR_S // 10):
        assert machine.expiring_s() <= 0
        machine.true_s += 10
    machine.true_s -= 1
    machine.off_s = 0
    assert machine.expiring_s() == 0


@pytest.mark.parametrize("idle_s", [None, -YEARS_S, 0, 59, 60, DAY_S, YEARS_S])
def test_after_an_hour_the_time_before_the_start_counts_too(idle_s: int | None) -> None:
    machine = Machine(idle_s=idle_s)
    assert machine.expiring_s() == -(idle_s if idle_s and idle_s >= 60 else 0)
    machine.true_s += HOUR_S
    assert machine.expiring_s() == 0


def test_without_the_wait_every_step_counts_at_once() -> None:
    machine = Machine(settles_s=0)
    machine.off_s = YEARS_S
    assert machine.expiring_s() == YEARS_S


def test_each_step_counts_once_it_has_lasted_itself() -> None:
    machine = Machine()
    machine.off_s = 600
    assert machine.expiring_s() == 0
    machine.true_s += HOUR_S - 1
    machine.off_s = YEARS_S
    assert machine.expiring_s() == 0
    machine.true_s += HOUR_S - 1
    assert machine.expiring_s() == 600
    machine.true_s += 1
    assert machine.expiring_s() == YEARS_S


def test_pauses_of_a_virtual_machine_keep_nothing_longer_than_those_of_an_hour() -> None:
    machine = Machine(idle_s=YEARS_S)
    for _ in range(48):
        # Its uptime stands still while it is paused, and a time service then corrects its clock.
        machine.true_s += HOUR_S // 2
        machine.off_s += 120
        machine.expiring_s()
    assert machine.off_s - machine.expiring_s() == 2 * 120


_MOVES: Final = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0, 600, HOUR_S, 3 * DAY_S, YEARS_S])),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(_MOVES)
def test_things_expire_early_only_by_what_the_clock_was_ahead_for_an_hour(
    moves: list[tuple[int, int]],
) -> None:
    machine = Machine()
    shown = [(machine.true_s, 0)]
    for minutes, off_s in moves:
        shown.append((machine.true_s, off_s))
        machine.off_s = off_s
        # What the clock showed when the hour began, and each time that it showed since.
        hour_ago_s = machine.true_s - HOUR_S
        begun = max(at for at, (since_s, _) in enumerate(shown) if since_s <= hour_ago_s or not at)
        assert machine.expiring_s() <= min(off for _, off in shown[begun:])
        machine.true_s += minutes * 60


def test_each_step_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING):
        for off_s in (0, 59, 0, 7_200, 7_200, 0, -120, -120, 0, 0):
            machine.off_s = off_s
            machine.steps.ahead_ms()
            machine.true_s += 60
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the clock of this machine went ahead by 7200 s",
        "the clock of this machine is back from its step ahead",
        "the clock of this machine was set back by 120 s",
        "the clock of this machine went ahead by 120 s",
    ]


@pytest.mark.parametrize("settles_s", [0, HOUR_S])
@pytest.mark.parametrize(("behind_s", "is_said"), [(59, False), (60, True), (YEARS_S, True)])
def test_a_clock_behind_the_newest_record_is_said_at_the_start(
    caplog: pytest.LogCaptureFixture, *, behind_s: int, is_said: bool, settles_s: float
) -> None:
    with caplog.at_level(logging.WARNING):
        Machine(settles_s, idle_s=-behind_s)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"the clock of this machine is {behind_s} s behind the newest record"
    ] * is_said


def _with_a_record(dsn: str) -> None:
    """A log with a record of now and, behind it, seals by a clock that was ahead."""
    clock = HandClock()
    clock.now_ms = system_clock()
    log = open_log(dsn)
    register = submission(ME, registration(ME, NOW_S * 2), timestamp_ms=clock.now_ms)
    assert run(host(log, clock=clock), register) == [Registered(NOW_S * 2)]
    clock.now_ms += YEARS_S * 1000
    host(log, clock=clock)
    log.close()


def test_the_newest_record_is_found_behind_any_seals_of_starts(tmp_path: Path) -> None:
    dsn = f"sqlite:{tmp_path / 'log.db'}"
    log = open_log(dsn)
    assert newest_ms(log) is None
    host(log)
    assert newest_ms(log) is None
    _with_a_record(dsn)
    for _ in range(200):
        host(log)
    found_ms = newest_ms(log)
    assert found_ms is not None
    assert 0 <= system_clock() - found_ms < DAY_S * 1000
    log.close()


def test_a_log_with_questions_alone_at_its_end_is_as_old_as_the_first_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_steps, "_PAGES_MAX", 1)
    clock, log = HandClock(), open_log(f"sqlite:{tmp_path / 'log.db'}")
    register = submission(ME, registration(ME, NOW_S * 2), timestamp_ms=clock.now_ms)
    owner = host(log, clock=clock)
    assert run(owner, register) == [Registered(NOW_S * 2)]
    for _ in range(300):
        clock.now_ms += 1_000
        run(owner, submission(ME, QueryMessages(Page(0, 10)), timestamp_ms=clock.now_ms))
    found_ms = newest_ms(log)
    assert found_ms is not None
    assert 200_000 < clock.now_ms - found_ms < 300_000
    log.close()


def test_a_host_watches_the_clock_of_its_machine_from_the_newest_record_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = f"sqlite:{tmp_path / 'log.db'}"
    _with_a_record(dsn)
    off_ms = [3 * DAY_S * 1000]
    monkeypatch.setattr(processes, "system_clock", lambda: system_clock() + off_ms[0])
    watching = processes.RayIdentityHost(
        HostOptions("host", dsn, [], HostLimits()), lambda _name: None
    )
    try:
        for _ in range(2):
            for ahead_ms in (watching._host._ahead_ms, watching._expiry._ahead_ms):
                assert ahead_ms() == pytest.approx(off_ms[0], abs=3_600_000)
            off_ms[0] *= 2
    finally:
        watching.stop()


def test_the_uptime_of_a_machine_passes() -> None:
    before_s = uptime_s()
    assert 0 < before_s <= uptime_s()
