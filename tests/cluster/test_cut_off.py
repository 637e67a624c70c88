"""Two nodes, one in a network namespace, lose one way of many: to a host, to the database."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from http_edge.clients.decentrl import MediatorClient
from tests.cluster.accounts import client, until
from tests.cluster.load import Load
from tests.cluster.namespace import Namespace, is_permitted
from tests.cluster.nodes import Nodes, apart
from tests.crash.cluster_faults import FIRST, SECOND, Harm
from tests.database_server import DatabaseServer, database_directory

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.postgres,
    pytest.mark.skipif(not is_permitted(), reason="no network namespaces without root"),
]
PAIRS = 8
SHARDS = 8
ANSWERS = 5
SERVED_S_MAX = 12.0
SAID_S_MAX = 3.0
"""Far below what a command may wait for the next owner (10 s); a second where nothing else runs."""


class CutCluster(NamedTuple):
    """A cluster, and what can be cut in it."""

    nodes: Nodes
    namespace: Namespace
    harm: Harm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutCluster]:
    with ExitStack() as stack:
        namespace = stack.enter_context(Namespace())
        folder = stack.enter_context(database_directory())
        database = DatabaseServer.new(folder / "one", namespace.database.address(1))
        database.start()
        places = dict(zip((FIRST, SECOND), apart(namespace), strict=True))
        directory = tmp_path_factory.mktemp("cut")
        nodes = Nodes(directory, database.url, places=places, shards=str(SHARDS))
        stack.enter_context(nodes)
        nodes.start(FIRST)  # has the placer, which reaches all hosts then
        nodes.start(SECOND)
        chance = random.Random(1)  # noqa: S311 - of what is killed, which is nothing here
        yield CutCluster(nodes, namespace, Harm(nodes, [database], namespace, chance))


@pytest.fixture
async def outside(cluster: CutCluster) -> AsyncIterator[MediatorClient]:
    async with client(cluster.nodes.url(FIRST)) as mediator:
        yield mediator


@pytest.fixture
async def inside(cluster: CutCluster) -> AsyncIterator[MediatorClient]:
    async with client(cluster.nodes.url(SECOND)) as mediator:
        yield mediator


async def spread(cluster: CutCluster) -> None:
    """Wait until both nodes have their half of the shards."""

    async def is_spread() -> bool:
        return sorted((await cluster.harm.counts()).values()) == [SHARDS // 2, SHARDS // 2]

    await until(is_spread)


async def test_an_edge_that_cannot_reach_a_host_says_so_at_once_and_the_others_serve_all(
    cluster: CutCluster, outside: MediatorClient, inside: MediatorClient
) -> None:
    await spread(cluster)
    load = await Load.of([inside], PAIRS)
    async with load:
        await load.answers(1)
        assert load.refusals() == []
        cluster.namespace.outward.cut()
        first_s = await load.answers(ANSWERS)
        then_s = await load.answers(ANSWERS)
    assert set(load.refusals()) == {503}
    assert max(first_s, then_s) <= SAID_S_MAX
    print(f"said after {first_s:.2f} s at first, {then_s:.2f} s then")  # noqa: T201 - figures

    load.write_to(outside)
    refused = len(load.refusals())
    async with load:
        await load.answers(ANSWERS)
    assert len(load.refusals()) == refused, "an edge that is not cut off refused"

    load.write_to(inside)
    async with load:
        cluster.namespace.outward.heal()
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    await load.check()


async def test_a_host_that_is_cut_off_from_its_database_alone_gives_its_shards_to_others(
    cluster: CutCluster, outside: MediatorClient, inside: MediatorClient
) -> None:
    await spread(cluster)
    load = await Load.of([outside, inside], PAIRS)
    async with load:
        await load.answers(1)
        since = time.monotonic()
        cluster.namespace.database.cut()
        took_s = await load.served_again(since, SERVED_S_MAX)
        print(f"all served again {took_s:.1f} s after the cut")  # noqa: T201 - a figure
        assert sorted((await cluster.harm.counts()).values()) == [SHARDS]
        cluster.namespace.database.heal()
        await spread(cluster)
        await load.served_again(time.monotonic(), SERVED_S_MAX)
    await load.check()
