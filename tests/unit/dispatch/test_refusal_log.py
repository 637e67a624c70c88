"""Counts of refused commands reach the log once, whatever becomes of the calls that carry them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typing_extensions import override

from actors.host.port import HostPort, HostUnavailable
from eventstore.log.codec import decode
from eventstore.log.events import RefusalsCounted
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_log
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.refusal_log import RefusalLog
from http_edge.dispatch.routes import Routes
from http_edge.server.hosts import placement_of
from http_edge.settings.settings import Settings
from http_edge.telemetry.refusal_counts import RefusalCounts
from tests.edge.local_host import LocalHostPort, LocalHosts
from tests.unit.actors.given import HandClock
from tests.unit.dispatch.test_gateway import LIMITS

EDGE = "edge-0"
HOST = "host-0"


class LossyPort(LocalHostPort):
    """A port whose answers can be lost, after the command has been run."""

    loses_answers = False

    @override
    async def submit(self, batch: bytes) -> bytes:
        answer = await super().submit(batch)
        if self.loses_answers:
            raise HostUnavailable(HOST)
        return answer


class Scene:
    """The refusals of an edge on a log of its own."""

    def __init__(self, data_dir: Path) -> None:
        self.settings = Settings.model_validate({"data_dir": data_dir})
        self.clock = HandClock()
        ids = (f"id-{number}" for number in itertools.count(1))
        self.hosts = LocalHosts(self.settings, clock=self.clock, new_id=lambda: next(ids))
        self.port = LossyPort(self.hosts, EDGE, HOST)
        self.gateway = Gateway(
            Routes.fixed(placement_of(self.settings)),
            self._port,
            LIMITS,
            on_push=lambda _: None,
            on_new_incarnation=lambda _: None,
        )
        self.counts = RefusalCounts(entries_max=16, senders_bytes_max=500, clock=self.clock)
        self.refusals = self.run_of("first")

    def run_of(self, incarnation: str) -> RefusalLog:
        """One run of the edge process."""
        return RefusalLog(EDGE, incarnation, self.counts, self.gateway)

    def refuse(self, times: int) -> None:
        """Refuse so many commands."""
        for _ in range(times):
            self.clock.now_ms += 1_000
            self.counts.count("decentrl", "", "INVALID_COMMAND")

    def stored(self) -> list[int]:
        """The counts of each event in the log."""
        log = open_log(self.settings.log_dsn)
        try:
            rows = log.read_stream(identity_stream(f"edge:{EDGE}"))
        finally:
            log.close()
        events = [decode(row.topic, row.state) for row in rows]
        return [
            sum(entry.count for entry in event.refusals)
            for event in events
            if isinstance(event, RefusalsCounted)
        ]

    def _port(self, host: str) -> HostPort:
        assert host == HOST
        return self.port


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    scene.hosts.start()
    yield scene
    await scene.gateway.drained()
    await scene.hosts.stop()


async def test_counts_are_stored_and_counting_starts_anew(scene: Scene) -> None:
    scene.refuse(3)
    await scene.refusals.record()
    scene.refuse(2)
    await scene.refusals.record()
    assert scene.stored() == [3, 2]


async def test_nothing_refused_is_nothing_asked_of_the_log(scene: Scene) -> None:
    scene.hosts.cut(HOST)
    await scene.refusals.record()
    scene.hosts.mend(HOST)
    await scene.refusals.record()
    assert scene.stored() == []


async def test_what_the_log_took_is_sent_no_more(scene: Scene) -> None:
    scene.refuse(1)
    await scene.refusals.record()
    again = scene.hosts.hold(b"CountRefusals")
    again.released.set()
    await scene.refusals.record()
    assert not again.arrived.is_set()
    assert scene.stored() == [1]


async def test_what_the_log_did_not_take_is_sent_again_and_nothing_is_lost(scene: Scene) -> None:
    scene.refuse(3)
    scene.hosts.cut(HOST)
    await scene.refusals.record()
    scene.refuse(2)
    await scene.refusals.record()
    scene.hosts.mend(HOST)
    assert scene.stored() == []
    await scene.refusals.record()
    assert scene.stored() == [3, 2]


async def test_an_answer_that_was_lost_counts_nothing_twice(scene: Scene) -> None:
    scene.refuse(3)
    scene.port.loses_answers = True
    await scene.refusals.record()
    await scene.refusals.record()
    scene.refuse(2)
    await scene.refusals.record()
    scene.port.loses_answers = False
    await scene.refusals.record()
    await scene.refusals.record()
    assert scene.stored() == [3, 2]


async def test_who_is_stopped_while_recording_counts_nothing_twice(scene: Scene) -> None:
    scene.refuse(3)
    held = scene.hosts.hold(b"CountRefusals")
    periodic = asyncio.create_task(scene.refusals.run(0.001))
    await asyncio.wait_for(held.arrived.wait(), 5)
    periodic.cancel()
    await asyncio.wait([periodic])
    scene.refuse(1)
    held.released.set()
    await scene.refusals.record()
    assert scene.stored() == [3, 1]


async def test_runs_of_one_edge_are_distinguished(scene: Scene) -> None:
    scene.refuse(1)
    await scene.refusals.record()
    scene.refuse(1)
    await scene.run_of("second").record()
    assert scene.stored() == [1, 1]
