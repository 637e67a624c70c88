from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

from http_edge.clients.didcomm import Wallet
from tests.unit.wallet.scripted_mediator import ScriptedMediator


@pytest_asyncio.fixture
async def mediator() -> AsyncIterator[ScriptedMediator]:
    scripted = ScriptedMediator()
    async with scripted.server:
        yield scripted


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture
async def wallet(mediator: ScriptedMediator, session: aiohttp.ClientSession) -> Wallet:
    """A connected wallet; the mediator has forgotten the handshake."""
    wallet = await Wallet.connect(mediator.invitation(), session=session)
    mediator.received.clear()
    return wallet
