"""Nodes that share a database and nothing else: none of them is special, whichever is lost."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from http_edge.clients.decentrl import MediatorClient
from http_edge.server.exits import Exit
from tests.cluster.accounts import client
from tests.cluster.load import Load
from tests.cluster.server import HOST, MEDIATOR_DID, Server, own_environment, send, serve_command
from tests.postgres import Server as Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
NODES = ("first", "second")
PAIRS = 8
SERVED_S_MAX = 12.0


@pytest.fixture(scope="module")
def settings(
    postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE own_rays")
    keys_file = tmp_path_factory.mktemp("keys") / "mediator-keys.json"
    dsn = postgres_server.get_uri("own_rays")
    yield {"log": dsn, "keys_file": str(keys_file), "shards": "8"}
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP DATABASE own_rays WITH (FORCE)")


@pytest.fixture(scope="module")
def nodes(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    made = {
        name: Server(
            tmp_path_factory.mktemp(name), node=name, node_address=f"127.0.7.{number}", **settings
        )
        for number, name in enumerate(NODES, 1)
    }
    with made["first"], made["second"]:
        yield made


@pytest.fixture
async def mediators(nodes: dict[str, Server]) -> AsyncIterator[dict[str, MediatorClient]]:
    async with AsyncExitStack() as opened:
        yield {
            name: await opened.enter_async_context(client(node.url)) for name, node in nodes.items()
        }


async def test_whichever_node_is_lost_or_paused_the_other_serves_all_and_nothing_is_lost(
    nodes: dict[str, Server], mediators: dict[str, MediatorClient]
) -> None:
    load = await Load.of([*mediators.values()], PAIRS)
    for lost, left in (("first", "second"), ("second", "first")):
        load.write_to(mediators[left])
        async with load:
            since = time.monotonic()
            nodes[lost].kill_everything()
            took_s = await load.served_again(since, SERVED_S_MAX)
        print(f"all served again {took_s:.1f} s after the loss of the {lost} node")  # noqa: T201 - a figure
        nodes[lost].start()
    # A host that stands still answers no one, and when it goes on it has no say any more.
    (host,) = nodes["first"].pids(HOST)
    load.write_to(mediators["second"])
    async with load:
        send(host, signal.SIGSTOP)
        took_s = await load.served_again(time.monotonic(), SERVED_S_MAX)
        print(f"all served again {took_s:.1f} s after the pause of a host")  # noqa: T201 - a figure
        send(host, signal.SIGCONT)
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    load.write_to(mediators["first"])
    async with load:
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    await load.check()


def test_a_node_does_not_start_under_the_name_of_one_that_lives(
    nodes: dict[str, Server], settings: dict[str, str], tmp_path: Path
) -> None:
    command = serve_command(
        tmp_path,
        listen="127.0.0.1:0",
        node="first",
        node_address="127.0.7.3",
        did=MEDIATOR_DID,
        **settings,
    )
    ended = subprocess.run(
        command, capture_output=True, text=True, env=own_environment(), check=False, timeout=60
    )
    assert ended.returncode == Exit.USAGE
    assert "Another node of the cluster has the name of this one" in ended.stderr
