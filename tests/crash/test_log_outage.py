"""A database that cannot be reached for a while refuses commands for that while, not longer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import psycopg
import pytest

from http_edge.clients.decentrl import MediatorClient
from tests.cluster.accounts import (
    befriend,
    client,
    healthy,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.server import HOST, Server, ended, send
from tests.postgres import Server as Postgres

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.postgres]
UNAVAILABLE = (503, {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"})
Allow: TypeAlias = Callable[[bool], None]


@pytest.fixture
def allow(postgres_server: Postgres, postgres_url: str) -> Allow:
    """Lets the mediator's database take connections, or ends them all and takes none."""
    name = urlsplit(postgres_url).path.removeprefix("/")

    def switch(allowed: bool) -> None:
        with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}".encode())
            if not allowed:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    (name,),
                )

    return switch


async def test_service_returns_with_the_database_even_to_a_host_that_was_killed_meanwhile(
    tmp_path: Path, postgres_url: str, allow: Allow
) -> None:
    with Server(tmp_path / "data", log=postgres_url) as server:
        async with client(server.url) as mediator:
            writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
            await befriend(writer, reader)
            assert await writer.send(reader.identity.did, "before")

            allow(False)
            assert await post(mediator, message(writer, reader, "lost")) == UNAVAILABLE
            allow(True)
            await until(lambda: writer.send(reader.identity.did, "between"))

            allow(False)
            (host,) = server.pids(HOST)
            send(host, signal.SIGKILL)
            assert await asyncio.to_thread(ended, host, 30)
            await until(lambda: unhealthy(mediator))
            allow(True)
            await until(lambda: healthy(mediator))
            assert await writer.send(reader.identity.did, "after")
            waiting = await waiting_payloads(reader)
            assert [text for text in waiting if text != "lost"] == ["before", "between", "after"]


async def unhealthy(mediator: MediatorClient) -> bool:
    return not await healthy(mediator)
