"""Fixtures: a mediator that can be reached at its public URL, and its wallets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.edge.conftest import StartMediator
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import Mediator
from tests.ports import free_port


@pytest.fixture
async def mediator(start_mediator: StartMediator, settings: Json) -> Mediator:
    # Documents and invitations name the URL, so the port is known before it listens.
    listen = f"127.0.0.1:{free_port()}"
    return await start_mediator(listen=listen, public_url=f"http://{listen}", **settings)


@pytest.fixture
async def network(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WalletNetwork]:
    """Its wallets outlive a restart of the mediator, and have its clock.

    By the clock of this machine they give up their DIDs in its future, from 2027-01-15 on.
    """
    monkeypatch.setattr("http_edge.clients.didcomm.wallet._now_ms", mediator.clock)
    async with aiohttp.ClientSession() as session:
        yield WalletNetwork(mediator, session)


@pytest.fixture
async def bob(network: WalletNetwork) -> Bob:
    return await network.bob()
