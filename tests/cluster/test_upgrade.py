"""A loaded cluster goes to this release and back to the previous one, node by node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
import psycopg
import pytest

from http_edge.cli.running_mediator import ask
from http_edge.server.exits import Stop
from tests.cluster import previous_release
from tests.cluster.accounts import client, until
from tests.cluster.load import Load
from tests.cluster.nodes import Nodes
from tests.cluster.wallets import MediatedAgent
from tests.postgres import Server as Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.thorough]
PAIRS: Final = 6
SHARDS: Final = 8
ANSWERS: Final = 5
NODES: Final = (1, 2)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    folder = tmp_path / "previous"
    folder.mkdir()
    try:
        previous_release.unpack(folder)
    except previous_release.NotThere as error:
        pytest.skip(f"no previous release: {error}")
    return folder


@pytest.fixture
def cluster(postgres_server: Postgres, tmp_path: Path, previous: Path) -> Iterator[Nodes]:
    """Both nodes of the previous release."""
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE upgrade")
    with Nodes(tmp_path, postgres_server.get_uri("upgrade"), shards=str(SHARDS)) as cluster:
        for number in NODES:
            cluster.run_from(number, previous)
        cluster.start(*NODES)
        yield cluster
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP DATABASE upgrade WITH (FORCE)")


async def spread(cluster: Nodes) -> None:
    """Wait until both nodes have their half of the shards."""

    async def is_spread() -> bool:
        url, token = cluster.servers[1].operators()
        try:
            listed = await asyncio.to_thread(ask, "GET", url, "/shards", token=token)
        except Stop:
            return False
        counts = Counter(place["node"] for place in listed["shards"])
        return sorted(counts.values()) == [SHARDS // 2, SHARDS // 2]

    await until(is_spread)


async def replaced(cluster: Nodes, number: int, tree: Path | None) -> None:
    """End a node in order, and start it from another checkout."""
    code, _ = await asyncio.to_thread(cluster.servers[number].terminate)
    assert code == 0
    cluster.run_from(number, tree)
    await asyncio.to_thread(cluster.serve, number)
    await spread(cluster)


async def test_a_loaded_cluster_is_upgraded_and_taken_back_without_a_refusal_or_a_loss(
    cluster: Nodes, previous: Path
) -> None:
    async with AsyncExitStack() as stack:
        nodes = {
            number: await stack.enter_async_context(client(cluster.servers[number].url))
            for number in NODES
        }
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await spread(cluster)
        load = await Load.of([*nodes.values()], PAIRS)
        agents = {
            number: await MediatedAgent.arrive(session, cluster.servers[number].url)
            for number in NODES
        }
        written: list[str] = []
        for tree in (None, previous):
            for number in NODES:
                # As by a balancer, which sends nothing more to a node that is to be stopped.
                load.write_to(*[node for other, node in nodes.items() if other != number])
                async with load:
                    await replaced(cluster, number, tree)
                # Each edge and each host with those of the other release.
                load.write_to(*nodes.values())
                async with load:
                    await load.answers(ANSWERS)
                written.append(f"{number} from {tree}")
                for agent in agents.values():
                    await agent.write(written[-1])
        assert load.refusals() == []
        await load.check()
        for agent in agents.values():
            assert await agent.drained() == written
