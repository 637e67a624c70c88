"""PostgreSQL is restarted, away and failed over under load: it costs time, nothing else.

The mediator is not notified of any of it. Every command is answered within a bound meanwhile, and
service returns by itself. A server that is killed or paused and comes back itself is one of the
faults of ``test_cluster_under_faults``.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from http_edge.clients.decentrl import ONCE, Account, MediatorClient, TransportLimits
from tests.cluster.accounts import befriend, client, healthy, message, newcomer, post, until
from tests.cluster.server import HOST, Server, ended, send
from tests.crash.conftest import Report
from tests.crash.kill_under_load import Load, Outcomes, Target, endure, kill
from tests.database_server import DatabaseServer, database_directory
from tests.ports import free_port

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.postgres]
ANSWERED_S_MAX: Final = 35.0
"""``limits.host_call_s_max`` and a little."""
SERVED_AGAIN_S_MAX: Final = 15.0
SERVED_AFTER_PAUSE_S_MAX: Final = 30.0
"""The statement that was under way is given up after ``postgres.answer_s_max``, and then each
idle connection is found to be dead."""
FURTHER_ACKS: Final = 40
SETTINGS: Final = {
    "hosts": "2",
    "edges": "2",
    # Less than half of what they are by default: a paused server is waited for as long.
    "postgres.lock_s_max": "4",
    "postgres.answer_s_max": "6",
}
_AWAY_S: Final = 6.0
_ENDED_S_MAX: Final = 30.0
_PROBE_S: Final = 0.1
_PAUSE_S: Final = 0.1
"""Between two messages of a writer: the database and its standby need the machine to come back."""


class Watch:
    """Sends messages without pause, and keeps how long each answer took and how it was.

    One is always on its way, so that a fault finds it there, and more if it is not answered soon.
    The status of a message without an answer is 0.
    """

    def __init__(self, writer: Account, reader: Account) -> None:
        self._writer, self._reader = writer, reader
        self._working: set[asyncio.Task[None]] = set()
        self.longest_s = 0.0
        self.statuses: set[int] = set()

    async def run(self) -> None:
        """Send until it is cancelled."""
        try:
            while True:
                self._working.add(task := asyncio.create_task(self._ask()))
                task.add_done_callback(self._working.discard)
                await asyncio.wait([task], timeout=_PROBE_S)
        finally:
            await asyncio.gather(*self._working)

    async def _ask(self) -> None:
        started = time.monotonic()
        body = message(self._writer, self._reader, "watched")
        status = 0
        try:
            with suppress(aiohttp.ClientError, TimeoutError):
                status, _ = await post(self._writer.mediator, body)
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            self.statuses.add(status)


class Outage:
    """Measures the time from a fault's end until the load is served again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.seconds: dict[str, float] = {}

    async def is_over(self, name: str, within_s: float) -> None:
        """Wait until the load is served, and then for some more."""
        started = time.monotonic()
        await self._load.accepted(1)
        self.seconds[name] = time.monotonic() - started
        assert self.seconds[name] <= within_s, str(self)
        await self._load.accepted(FURTHER_ACKS)

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())


@pytest.fixture
def directory() -> Iterator[Path]:
    with database_directory() as found:
        yield found


@pytest.fixture
def database(directory: Path) -> DatabaseServer:
    server = DatabaseServer.new(directory / "one")
    server.start()
    return server


@pytest.mark.timeout(300)
async def test_restarts_outages_and_fail_overs_of_the_database_cost_time_alone(
    tmp_path: Path, directory: Path, database: DatabaseServer, report: Report
) -> None:
    first = database
    # Where the standby will be; until then the mediator finds nothing there.
    second = DatabaseServer(directory / "two", free_port())

    async def faults(load: Load, outage: Outage) -> None:
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(first.start)
        await outage.is_over("restart", SERVED_AGAIN_S_MAX)
        async with client(server.url) as mediator:
            await asyncio.to_thread(first.stop)
            await _host_is_lost_meanwhile(server, mediator)
            await asyncio.to_thread(first.start)
            await outage.is_over(f"{_AWAY_S:.0f} s away", SERVED_AGAIN_S_MAX)
            await until(lambda: healthy(mediator))
        await fail_over(load, outage)

    async def fail_over(load: Load, outage: Outage) -> None:
        await asyncio.to_thread(first.standby, directory / "two", port=second.port)
        await asyncio.to_thread(second.start)
        await asyncio.to_thread(first.require_standby)
        await load.accepted(FURTHER_ACKS)
        first.kill()
        await asyncio.to_thread(second.promote)
        await outage.is_over("primary killed", SERVED_AGAIN_S_MAX)
        third = second.standby(directory / "three", port=first.port)
        await asyncio.to_thread(third.start)
        await asyncio.to_thread(second.require_standby)
        await load.accepted(FURTHER_ACKS)
        second.pause()
        await asyncio.to_thread(third.promote)
        await outage.is_over("primary paused", SERVED_AFTER_PAUSE_S_MAX)
        # Two primaries: what the old one was about to confirm, no client waits for any more.
        second.resume()
        await load.accepted(FURTHER_ACKS)

    with Server(tmp_path / "data", log=first.url_with(second), **SETTINGS) as server:
        assert (await endured(server, faults, report)).is_clean


async def _host_is_lost_meanwhile(server: Server, mediator: MediatorClient) -> None:
    """A host ends while the database is away, and the next one finds no log to open."""
    away_since = time.monotonic()
    (host, *_) = server.pids(HOST)
    send(host, signal.SIGKILL)
    assert await asyncio.to_thread(ended, host, _ENDED_S_MAX)
    await until(lambda: _is_unhealthy(mediator))
    await asyncio.sleep(max(0.0, away_since + _AWAY_S - time.monotonic()))


async def _is_unhealthy(mediator: MediatorClient) -> bool:
    return not await healthy(mediator)


async def endured(
    server: Server, faults: Callable[[Load, Outage], Awaitable[None]], report: Report
) -> Outcomes:
    """The reckoning after these faults under load, every answer of which came in time."""
    load = Load(server, random.Random(1), pause_s=_PAUSE_S)  # noqa: S311 - repeatable
    outage = Outage(load)

    async def watched(load: Load) -> None:
        # Its own bound is later than the one under test, or else it would hide a later answer.
        limits = TransportLimits(answer_s_max=2 * ANSWERED_S_MAX)
        async with MediatorClient(server.url, backoff=ONCE, limits=limits) as mediator:
            writer, reader = await newcomer(mediator, "watcher"), await newcomer(mediator, "seen")
            await befriend(writer, reader)
            watch = Watch(writer, reader)
            watching = asyncio.create_task(watch.run())
            try:
                await load.accepted(FURTHER_ACKS)
                await faults(load, outage)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        report(f"served again: {outage}; longest answer {watch.longest_s:.1f} s")
        assert {200} <= watch.statuses <= {200, 503}
        assert watch.longest_s <= ANSWERED_S_MAX
        await kill(server, Target.EVERYTHING, load.chance)

    outcomes = await endure(load, watched, {Target.EVERYTHING.value: 1})
    report(str(outcomes))
    return outcomes
