"""Nodes with one PostgreSQL: shards follow the nodes, and the loss of a node loses nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from actors.core.partitioning import shard_of
from http_edge.cli.shards import shards
from http_edge.clients.decentrl import MediatorClient
from http_edge.server.exits import Exit
from tests.cluster.accounts import Socket, client, until
from tests.cluster.load import Load
from tests.cluster.nodes import Nodes
from tests.cluster.server import HOST, send
from tests.postgres import Server as Postgres

pytestmark = pytest.mark.cluster
SHARDS = 8
PAIRS = 8
SERVED_S_MAX = 15.0
SERVED_BY_OTHERS_S_MAX = 12.0
SHORT_S = 0.5


@pytest.fixture(scope="module")
def cluster(postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE nodes")
    directory = tmp_path_factory.mktemp("nodes")
    dsn = postgres_server.get_uri("nodes")
    with Nodes(directory, dsn, shards=str(SHARDS)) as cluster:
        cluster.start(1, 2)
        yield cluster
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP DATABASE nodes WITH (FORCE)")


@pytest.fixture
async def first(cluster: Nodes) -> AsyncIterator[MediatorClient]:
    async with client(cluster.servers[1].url) as mediator:
        yield mediator


@pytest.fixture
async def second(cluster: Nodes) -> AsyncIterator[MediatorClient]:
    async with client(cluster.servers[2].url) as mediator:
        yield mediator


async def poste(cluster: Nodes, *words: str) -> str:
    """``poste shards`` as an operator on the first node runs it."""
    options = [f"--data-dir={cluster.servers[1].data_dir}"]
    done = await asyncio.to_thread(CliRunner().invoke, shards, [*words, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


async def counts(cluster: Nodes) -> dict[str, int]:
    """How many shards each node has."""
    listed: dict[str, Any] = json.loads(await poste(cluster, "list", "--json"))
    nodes = dict.fromkeys((host["node"] for host in listed["hosts"]), 0)
    for place in listed["shards"]:
        if place["node"] is not None:
            nodes[place["node"]] += 1
    return nodes


async def shards_of(cluster: Nodes, node: str) -> set[str]:
    """The shards of a node."""
    listed: dict[str, Any] = json.loads(await poste(cluster, "list", "--json"))
    return {place["shard"] for place in listed["shards"] if place["node"] == node}


async def settled(cluster: Nodes) -> bool:
    """Is no shard on its way?"""
    listed: dict[str, Any] = json.loads(await poste(cluster, "list", "--json"))
    return all(place["to"] is None for place in listed["shards"])


async def spread(cluster: Nodes, *expected: int) -> None:
    """Wait until the nodes have so many shards each."""

    async def found() -> bool:
        try:
            return sorted((await counts(cluster)).values()) == sorted(expected)
        except AssertionError:  # the placer is just moving
            return False

    await until(found)


async def test_who_does_not_agree_with_the_others_does_not_start(
    cluster: Nodes, tmp_path: Path
) -> None:
    other_keys, same_name, no_cluster = await asyncio.gather(
        asyncio.to_thread(cluster.refused, 3, keys_file=str(tmp_path / "keys.json")),
        asyncio.to_thread(cluster.refused, 3, node="node-2"),
        asyncio.to_thread(cluster.refused, 3, log=f"sqlite:{tmp_path}/log.db"),
    )
    assert (other_keys[0], same_name[0], no_cluster[0]) == (Exit.UNSAFE, Exit.USAGE, Exit.USAGE)
    assert "the log belongs to the key" in other_keys[1]
    assert "Another node of the cluster has the same name" in same_name[1]
    assert f'"event": "stopped", "exit_code": {Exit.USAGE:d}' in same_name[1]
    assert "cannot share a SQLite log" in no_cluster[1]


async def test_shards_follow_the_nodes_and_the_loss_of_a_node_loses_nothing(
    cluster: Nodes, first: MediatorClient, second: MediatorClient
) -> None:
    await spread(cluster, 4, 4)
    load = await Load.of([first, second], PAIRS)
    sockets = [await Socket.open(pair.reader) for pair in load.pairs]
    async with load:
        await _a_node_comes_and_goes(cluster)
    assert load.refusals() == []
    await load.check()

    # What ends in order hands sessions over whole: their sockets do not notice, not even as a host
    # of the same name starts anew.
    assert await _closed(sockets) == [None] * PAIRS
    load.write_to(first)
    stay = await shards_of(cluster, "node-1")
    async with load:
        # Its main process alone: Ray ends the hosts and edges that it had started.
        cluster.servers[3].kill()
        await load.served_again(time.monotonic(), SERVED_S_MAX)
        await spread(cluster, 4, 4)

        cluster.servers[2].kill_everything()
        await load.served_again(time.monotonic(), SERVED_S_MAX)
        await spread(cluster, 8)
    await load.check()

    # Sockets on the node that is left were closed where sessions were lost, and no others.
    readers = [pair.reader.identity.did for pair in load.pairs]
    assert await _closed(sockets) == [
        None if shard_of(did, SHARDS) in stay else 1012 for did in readers
    ]
    await Socket.open(load.pairs[0].reader)

    await asyncio.to_thread(cluster.serve, 2)
    await spread(cluster, 4, 4)
    await _a_host_of_the_first_stands_still(cluster, load, first, second)
    await load.check()
    await _the_first_is_lost(cluster, load, second)
    await load.check(second)


async def _closed(sockets: Sequence[Socket]) -> list[int | None]:
    """The close code of each, None for those that are open."""
    return await asyncio.gather(*[socket.closed_within(SHORT_S) for socket in sockets])


async def _a_node_comes_and_goes(cluster: Nodes) -> None:
    await asyncio.to_thread(cluster.serve, 3)
    await spread(cluster, 3, 3, 2)

    await poste(cluster, "drain", "node-3")
    assert (await counts(cluster))["node-3"] == 0
    await until(lambda: settled(cluster))
    await poste(cluster, "move", "shard-0", "node-3")
    assert (await counts(cluster))["node-3"] == 1
    options = [f"--data-dir={cluster.servers[1].data_dir}"]
    for order in (["move", "shard-99", "node-1"], ["move", "shard-0", "x"], ["drain", "x"]):
        refused = await asyncio.to_thread(CliRunner().invoke, shards, [*order, *options])
        assert refused.exit_code == Exit.USAGE
    await poste(cluster, "undrain", "node-3")
    await spread(cluster, 3, 3, 2)

    code, _ = await asyncio.to_thread(cluster.servers[3].terminate)
    assert code == 0
    await spread(cluster, 4, 4)
    await asyncio.to_thread(cluster.serve, 3)
    await spread(cluster, 3, 3, 2)


async def _a_host_of_the_first_stands_still(
    cluster: Nodes, load: Load, first: MediatorClient, second: MediatorClient
) -> None:
    """It answers no one, and when it goes on it has no say any more."""
    (host,) = cluster.servers[1].pids(HOST)
    load.write_to(second)
    async with load:
        send(host, signal.SIGSTOP)
        took_s = await load.served_again(time.monotonic(), SERVED_BY_OTHERS_S_MAX)
        print(f"all served again {took_s:.1f} s after the pause of a host")  # noqa: T201 - a figure
        send(host, signal.SIGCONT)
        await load.served_again(time.monotonic(), SERVED_BY_OTHERS_S_MAX)
    load.write_to(first)
    async with load:
        await load.served_again(time.monotonic(), SERVED_BY_OTHERS_S_MAX)


async def _the_first_is_lost(cluster: Nodes, load: Load, second: MediatorClient) -> None:
    """The node that all others have followed is no other than they are."""
    load.write_to(second)
    async with load:
        since = time.monotonic()
        cluster.servers[1].kill_everything()
        took_s = await load.served_again(since, SERVED_BY_OTHERS_S_MAX)
    print(f"all served again {took_s:.1f} s after the loss of a node")  # noqa: T201 - a figure
