"""A process that hangs is killed; one that starts, or belongs to a machine that paused, is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from ray import exceptions as ray_errors

from actors.ray import hang_watch
from actors.ray.hang_watch import keep_answering

LOOK_S, SILENT_S = 0.01, 0.03
HOUR_S = 3_600.0
NUMBER = 7


class Process:
    """A process that answers when the test says so."""

    def __init__(self) -> None:
        self.questions = asyncio.Queue[asyncio.Future[int]]()
        self.kills = asyncio.Queue[int]()
        self.has_ended = False

    def ask(self) -> Awaitable[int]:
        """A question, which waits for its answer."""
        question: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait(question)
        return question

    def kill(self, number: int) -> None:
        """Note that it is to be killed, whether it lives or not."""
        self.kills.put_nowait(number)
        if self.has_ended:
            raise ProcessLookupError

    async def answers(self) -> None:
        """Answer the next question."""
        (await self.questions.get()).set_result(NUMBER)

    async def ends(self) -> None:
        """Fail the next question, as Ray does if the process has ended or is starting."""
        (await self.questions.get()).set_exception(ray_errors.RayError())


@asynccontextmanager
async def watched(*processes: Process, silent_s_max: float = SILENT_S) -> AsyncIterator[None]:
    """These processes are watched within the block."""
    tasks = [
        asyncio.create_task(keep_answering("host-0", each.ask, silent_s_max, each.kill))
        for each in processes
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "_LOOK_S", LOOK_S)
    monkeypatch.setattr(hang_watch, "_PAUSE_S", 0.0)


async def test_a_process_that_stops_answering_is_killed_and_again_if_it_does_not_end() -> None:
    hangs = Process()
    async with watched(hangs):
        await hangs.answers()
        assert [await hangs.kills.get() for _ in range(2)] == [NUMBER] * 2
        assert not (await hangs.questions.get()).done()
        assert hangs.questions.empty(), "it is asked once for as long as it does not answer"


async def test_a_process_that_starts_may_take_any_time() -> None:
    hangs, starts, starts_again = Process(), Process(), Process()
    async with watched(hangs, starts, starts_again):
        await starts_again.answers()
        await starts_again.ends()
        await hangs.answers()
        for _ in range(3):
            await hangs.kills.get()
        assert starts.kills.empty()
        assert starts_again.kills.empty()
        await starts_again.answers()
        await starts_again.kills.get()


async def test_a_process_that_ended_between_two_questions_is_not_killed_while_the_next_one_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its number may be that of any other process by then."""
    hangs, ended = Process(), Process()
    ended.has_ended = True
    async with watched(ended):
        await ended.answers()
        await ended.kills.get()
        assert not caplog.messages
        async with watched(hangs):
            await hangs.answers()
            for _ in range(3):
                await hangs.kills.get()
        assert ended.kills.empty()


async def test_a_machine_that_was_paused_kills_nothing_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, loop = Process(), asyncio.get_running_loop()
    goes_on = clock_set_ahead(loop, monkeypatch)
    monkeypatch.setattr(hang_watch, "_LOOK_S", HOUR_S / 2)
    async with watched(process, silent_s_max=0.75 * HOUR_S):
        await process.answers()
        question = await process.questions.get()
        has_looked = asyncio.Event()
        loop.call_later(HOUR_S, has_looked.set)
        goes_on(HOUR_S)
        await has_looked.wait()
        question.set_result(NUMBER)
        await process.answers()
        assert process.kills.empty()


def clock_set_ahead(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """A function that sets the clock of this loop ahead by some seconds, as a pause does."""
    ahead_s, time = 0.0, loop.time

    def set_ahead(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    monkeypatch.setattr(loop, "time", lambda: time() + ahead_s)
    return set_ahead
