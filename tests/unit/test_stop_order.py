"""The end of ``poste serve``: nothing is stopped before what needs it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.ray import processes
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server import serve
from http_edge.server.exits import Exit
from http_edge.settings.settings import Settings

WAIT_S = 10.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Step = Callable[..., Coroutine[Any, Any, None]]


class Steps:
    """Notes which steps begin and end; each takes some turns of the loop."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def step(self, name: str) -> Step:
        async def run(*_: object) -> None:
            self.noted.append(f"{name} begins")
            for _turn in range(5):
                await asyncio.sleep(0)
            self.noted.append(f"{name} ends")

        return run

    def endless(self, name: str) -> Step:
        async def run(*_: object) -> None:
            self.noted.append(f"{name} begins")
            await asyncio.Event().wait()

        return run

    async def serving(self) -> None:
        """Watches over an edge until it is cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.noted.append("watch ends")

    def at(self, *names: str) -> list[int]:
        return [self.noted.index(name) for name in names]


class Remote:
    """An actor of Ray as its caller sees it."""

    def __init__(self, stop: Step) -> None:
        self.stop = self
        self.remote = stop


class Node:
    """What leaves a cluster, and is its placer no longer."""

    def __init__(self, leave: Step, stop: Step) -> None:
        self.leave, self.stop = leave, stop


@pytest.fixture
def steps() -> Steps:
    return Steps()


async def stop(steps: Steps, **other: Step) -> None:
    """Stop a mediator of two edges and two hosts in a cluster; ``other`` steps in place of some."""
    run = {name: steps.step(name) for name in ("leave", "placer", "edge 0", "host 0")} | other
    settings = Settings.model_validate({"limits": {"drain_s_max": 0.2}})
    nothing: Any = object()  # which is only kept
    parts: Any = {}, None, nothing, nothing, nothing
    mediator: Any = serve._Mediator(settings, *parts, prepare=nothing, started_s=0)
    mediator._node = Node(run["leave"], run["placer"])
    mediator._edges = {"0": Remote(run["edge 0"]), "1": Remote(steps.step("edge 1"))}
    mediator._hosts = {"0": Remote(run["host 0"]), "1": Remote(steps.step("host 1"))}
    watch = asyncio.create_task(steps.serving())
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await mediator._stop([watch])


async def test_shards_leave_then_edges_drain_then_hosts_end_and_edges_are_watched_to_the_last(
    steps: Steps,
) -> None:
    await stop(steps)
    order = [
        {"leave begins"},
        {"leave ends"},
        {"edge 0 begins", "edge 1 begins", "placer begins"},
        {"edge 0 ends", "edge 1 ends", "placer ends"},
        {"host 0 begins", "host 1 begins"},
        {"host 0 ends", "host 1 ends"},
        {"watch ends"},
    ]
    noted = iter(steps.noted)
    assert [{next(noted) for _ in stage} for stage in order] == order
    assert list(noted) == []


@pytest.mark.parametrize("stuck", ["leave", "placer", "edge 0"])
async def test_a_step_that_does_not_end_lets_the_next_one_come_when_its_time_is_over(
    steps: Steps, stuck: str
) -> None:
    await stop(steps, **{stuck: steps.endless(stuck)})
    begun, host, watch = steps.at(f"{stuck} begins", "host 0 ends", "watch ends")
    assert begun < host < watch


@contextmanager
def handlers_of_signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPS}
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def test_ray_ends_and_the_stop_is_clean_although_a_file_of_the_data_directory_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    load_or_create(settings.keys_path)
    settings.operators_address_path.mkdir()  # which is not removed as a file
    folder = tmp_path / "ray"

    def stopped_at_its_start(_: Path) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        folder.mkdir()
        return folder

    monkeypatch.setattr(serve, "_start_ray", stopped_at_its_start)
    nothing: Any = object()  # which is only kept
    with handlers_of_signals_kept():
        code = serve._served(settings, {}, None, nothing, nothing, started_s=0)
    assert code == Exit.OK
    assert not folder.exists(), "the end of Ray removes it"


@pytest.mark.parametrize("number", STOPS)
def test_another_signal_to_stop_does_not_cut_the_end_of_ray_short(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    load_or_create(settings.keys_path)
    cut_short: list[int] = []

    def stopped_at_its_start(_: Path) -> Path:
        os.kill(os.getpid(), number)
        return tmp_path / "ray"

    def ending(_: Path | None, *, code: int) -> None:
        # Ray, too, restores the default action of SIGTERM at its end.
        signal.signal(number, lambda came, _: cut_short.append(came))
        signal.raise_signal(number)
        assert code == Exit.OK

    monkeypatch.setattr(serve, "_start_ray", stopped_at_its_start)
    monkeypatch.setattr(processes, "stop", ending)
    nothing: Any = object()  # which is only kept
    with handlers_of_signals_kept():
        assert serve._served(settings, {}, None, nothing, nothing, started_s=0) == Exit.OK
        assert cut_short == []
        assert signal.sigtimedwait([number], 0) is not None


@pytest.mark.parametrize("is_below_nohup", [False, True])
def test_a_closed_terminal_stops_the_mediator_unless_it_was_started_by_nohup(
    *, is_below_nohup: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    load_or_create(settings.keys_path)
    stops: list[str] = []
    is_ignored: list[bool] = []

    def started(_: Path) -> Path:
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        return tmp_path / "ray"

    monkeypatch.setattr(serve, "_start_ray", started)
    monkeypatch.setattr(processes, "stop", lambda *_, **_options: None)
    stop_on = serve._Mediator._stop_on

    def noted(mediator: Any, number: signal.Signals) -> None:
        stops.append(number.name)
        is_ignored.append(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
        stop_on(mediator, number)

    monkeypatch.setattr(serve._Mediator, "_stop_on", noted)
    nothing: Any = object()  # which is only kept
    with handlers_of_signals_kept():
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_below_nohup else signal.SIG_DFL)
        assert serve._served(settings, {}, None, nothing, nothing, started_s=0) == Exit.OK
    assert stops == ["SIGTERM" if is_below_nohup else "SIGHUP"]
    assert is_ignored == [is_below_nohup], "while it serves"


@pytest.mark.parametrize("number", STOPS)
def test_of_signals_that_are_ignored_only_that_of_a_closed_terminal_stays_so(
    number: signal.Signals,
) -> None:
    with handlers_of_signals_kept():
        signal.signal(number, signal.SIG_IGN)
        noted = serve._noted_stops()
        os.kill(os.getpid(), number)
    assert noted == ([] if number == signal.SIGHUP else [number])
