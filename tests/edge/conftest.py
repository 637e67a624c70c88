"""Fixtures: a mediator for each test, and identities that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from actors.host import identity_host
from actors.host.disk_floor import DiskSpace, MeasureDisk
from tests.edge.identities import Identity, Json
from tests.edge.mediator import LAYOUTS, HandClock, Mediator

StartMediator = Callable[..., Awaitable[Mediator]]


class Disk:
    """The disk of the log, whose free bytes a test says."""

    total_bytes = free_bytes = 10**12

    def of(self, _folder: Path) -> MeasureDisk:
        return lambda: DiskSpace(self.free_bytes, self.total_bytes)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Only of mediators that start later."""
    disk = Disk()
    monkeypatch.setattr(identity_host, "disk_of", disk.of)
    return disk


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def layout() -> str:
    """Where the hosts own what; parametrised where placement could matter."""
    return "one host"


@pytest.fixture
def settings() -> Json:
    """What differs from the defaults; parametrised by the tests of settings."""
    return {}


@pytest.fixture
async def start_mediator(
    tmp_path: Path, clock: HandClock, layout: str
) -> AsyncIterator[StartMediator]:
    """Starts a mediator with settings of the test's own; one at a time."""
    async with AsyncExitStack() as running:

        async def start(**settings: Any) -> Mediator:
            mediator = Mediator(tmp_path, clock, **{**LAYOUTS[layout], **settings})
            await mediator.start()
            running.push_async_callback(mediator.stop)
            return mediator

        yield start


@pytest.fixture
async def mediator(start_mediator: StartMediator, settings: Json) -> Mediator:
    return await start_mediator(**settings)


@pytest.fixture
def alice() -> Identity:
    return Identity("alice")


@pytest.fixture
def bob() -> Identity:
    return Identity("bob")


@pytest.fixture
def carol() -> Identity:
    return Identity("carol")


@pytest.fixture
async def friends(mediator: Mediator, alice: Identity, bob: Identity) -> None:
    """Alice and Bob are registered and may write to one another."""
    await mediator.register(alice, bob)
    await mediator.befriend(alice, bob)
    await mediator.befriend(bob, alice)
