"""Fixtures: a mediator for each test, and identities that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.edge.identities import Identity, Json
from tests.edge.mediator import LAYOUTS, HandClock, Mediator

StartMediator = Callable[..., Awaitable[Mediator]]


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
