"""None of the nodes is special, whichever is lost or stands still."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import psycopg
import pytest

from http_edge.clients.decentrl import MediatorClient
from tests.cluster.accounts import client
from tests.cluster.load import Load
from tests.cluster.nodes import Nodes
from tests.cluster.server import HOST, send
from tests.postgres import Server as Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
PAIRS: Final = 8
SERVED_S_MAX: Final = 12.0


@pytest.fixture
def nodes(postgres_server: Postgres, tmp_path: Path) -> Iterator[Nodes]:
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE lost_nodes")
        with Nodes(tmp_path, postgres_server.get_uri("lost_nodes"), shards="8") as nodes:
            nodes.start(1, 2)
            yield nodes
        connection.execute("DROP DATABASE lost_nodes WITH (FORCE)")


@pytest.fixture
async def mediators(nodes: Nodes) -> AsyncIterator[dict[int, MediatorClient]]:
    async with AsyncExitStack() as opened:
        yield {
            number: await opened.enter_async_context(client(node.url))
            for number, node in nodes.servers.items()
        }


async def test_whichever_node_is_lost_or_paused_the_other_serves_all_and_nothing_is_lost(
    nodes: Nodes, mediators: dict[int, MediatorClient]
) -> None:
    load = await Load.of([*mediators.values()], PAIRS)
    for lost, left in ((1, 2), (2, 1)):
        load.write_to(mediators[left])
        async with load:
            since = time.monotonic()
            nodes.servers[lost].kill_everything()
            took_s = await load.served_again(since, SERVED_S_MAX)
        print(f"all served again {took_s:.1f} s after the loss of node {lost}")  # noqa: T201 - a figure
        nodes.serve(lost)
    # A host that stands still answers no one, and when it goes on it has no say any more.
    (host,) = nodes.servers[1].pids(HOST)
    load.write_to(mediators[2])
    async with load:
        send(host, signal.SIGSTOP)
        took_s = await load.served_again(time.monotonic(), SERVED_S_MAX)
        print(f"all served again {took_s:.1f} s after the pause of a host")  # noqa: T201 - a figure
        send(host, signal.SIGCONT)
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    load.write_to(mediators[1])
    async with load:
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    await load.check()
