from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

import pytest_asyncio

from http_edge.clients.decentrl import Account, Backoff, Identity, MediatorClient, Sources
from tests.unit.client.scripted_mediator import ScriptedMediator

NOW_MS = 1_700_000_000_000


@dataclass
class World:
    """Sources under the test's control: waiting is written down instead of done."""

    now_ms: int = NOW_MS
    waits_s: list[float] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def sources(self) -> Sources:
        return Sources(
            now_ms=lambda: self.now_ms,
            new_nonce=lambda: f"00000000-0000-4000-8000-{next(self.numbers):012}",
            chance=lambda: 0.5,
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)


@pytest_asyncio.fixture
async def mediator() -> AsyncIterator[ScriptedMediator]:
    scripted = ScriptedMediator()
    async with scripted.server:
        yield scripted


@pytest_asyncio.fixture
async def world() -> World:
    return World()


@pytest_asyncio.fixture
async def client(mediator: ScriptedMediator, world: World) -> AsyncIterator[MediatorClient]:
    backoff = Backoff(attempts_max=3, first_s=1.0, pause_s_max=10.0)
    async with MediatorClient(mediator.url, sources=world.sources(), backoff=backoff) as client:
        yield client


@pytest_asyncio.fixture
async def alice(client: MediatorClient, mediator: ScriptedMediator) -> Account:
    return client.as_(Identity.create("alice", mediator.did))


@pytest_asyncio.fixture
async def bob(client: MediatorClient, mediator: ScriptedMediator) -> Account:
    return client.as_(Identity.create("bob", mediator.did))
