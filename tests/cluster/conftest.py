"""One server for all tests that leave it as they found it; accounts to use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from http_edge.clients.decentrl import MediatorClient
from tests.cluster.accounts import client
from tests.cluster.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cluster") / "data") as server:
        yield server


@pytest.fixture
async def mediator(server: Server) -> AsyncIterator[MediatorClient]:
    async with client(server.url) as mediator:
        yield mediator
