"""One server for all tests that leave it as they found it; accounts to use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from http_edge.clients.decentrl import MediatorClient
from tests.cluster.accounts import client
from tests.cluster.server import Server

OUTBOUND: Final = {
    "outbound.allowed_networks": "127.0.0.0/8",
    "outbound.retry_s_max": "1",
    "outbound.sweep_s": "1",
}


@pytest.fixture(scope="package")  # an idle Ray costs whatever runs later
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose leases of messages end by themselves after all tests alone."""
    settings = {"didcomm.lease_s": "3600"}
    with Server(tmp_path_factory.mktemp("cluster") / "data", **settings) as server:
        yield server


@pytest.fixture(scope="package")
def two_by_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with two hosts and two edges, which sends to endpoints on this machine."""
    settings = OUTBOUND | {"hosts": "2", "edges": "2"}
    with Server(tmp_path_factory.mktemp("two") / "data", **settings) as server:
        yield server


@pytest.fixture
async def mediator(server: Server) -> AsyncIterator[MediatorClient]:
    async with client(server.url) as mediator:
        yield mediator
