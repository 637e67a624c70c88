"""Identities on hosts of their own in a real cluster: they come, move, lose their node and go."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any, Self

import aiohttp
import click
import psycopg
import pytest
from click.testing import CliRunner

from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from http_edge.cli.identities import identities
from http_edge.cli.shards import shards
from http_edge.clients.decentrl import MediatorClient
from http_edge.clients.didcomm import Live, NoAnswer
from http_edge.server.exits import Exit
from tests.cluster.accounts import Socket, client, newcomer, until
from tests.cluster.load import Load
from tests.cluster.nodes import Nodes
from tests.cluster.server import DEDICATED, send
from tests.cluster.wallets import MediatedAgent
from tests.postgres import Server as Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
PAIRS = 4
SERVED_S_MAX = 15.0
SHORT_S = 0.5
PAUSE_S = 0.1
BUSY_PER_S = 60
TOGETHER = 20


@pytest.fixture(scope="module")
def dsn(postgres_server: Postgres) -> Iterator[str]:
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE dedicated")
        yield postgres_server.get_uri("dedicated")
        connection.execute("DROP DATABASE dedicated WITH (FORCE)")


@pytest.fixture(scope="module")
def cluster(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings: dict[str, Any] = {"limits.dedicate_above_commands_per_s": str(BUSY_PER_S)}
    directory = tmp_path_factory.mktemp("dedicated")
    with Nodes(directory, dsn, shards="4", **settings) as cluster:
        cluster.start(1, 2)
        yield cluster


@pytest.fixture
async def first(cluster: Nodes) -> AsyncIterator[MediatorClient]:
    async with client(cluster.servers[1].url) as mediator:
        yield mediator


@pytest.fixture
async def second(cluster: Nodes) -> AsyncIterator[MediatorClient]:
    async with client(cluster.servers[2].url) as mediator:
        yield mediator


async def poste(cluster: Nodes, command: click.Group, *words: str, code: Exit = Exit.OK) -> str:
    """A command as an operator on the first node runs it."""
    options = [f"--data-dir={cluster.servers[1].data_dir}"]
    done = await asyncio.to_thread(CliRunner().invoke, command, [*words, *options])
    assert done.exit_code == code, done.output
    return done.stdout


async def nodes_of(cluster: Nodes) -> dict[str, str | None]:
    """The dedicated identities, each with the node that it is on."""
    listed = json.loads(await poste(cluster, identities, "list", "--json"))
    found: list[dict[str, Any]] = listed["identities"]
    return {place["did"]: place["node"] for place in found}


async def all_on(cluster: Nodes, *nodes: str) -> None:
    """Wait until the dedicated identities are on these nodes."""

    async def found() -> bool:
        try:
            return sorted(map(str, (await nodes_of(cluster)).values())) == sorted(nodes)
        except AssertionError:  # the placer is just moving
            return False

    await until(found)


class Letters:
    """Letters to a wallet in live mode, one after the other, each picked up as it comes."""

    def __init__(self, agent: MediatedAgent, live: Live) -> None:
        self._agent = agent
        self._live = live
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self.written: list[str] = []
        self.read: list[str] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _write(self) -> None:
        while not self._over:
            text = f"letter {len(self.written)}"
            await self._agent.write(text)
            self.written.append(text)
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        silent_since = time.monotonic()
        while not (self._over and self._tasks[0].done() and self.read == self.written):
            try:
                picked = await self._live.next(SHORT_S)
            except NoAnswer:
                assert time.monotonic() - silent_since < SERVED_S_MAX, self.read
                continue
            silent_since = time.monotonic()
            self.read += self._agent.texts(picked)
            await self._live.received([one.id for one in picked])


async def test_who_gets_many_commands_gets_a_host_of_its_own(
    cluster: Nodes, first: MediatorClient
) -> None:
    busy = await newcomer(first, "busy")
    await newcomer(first, "idle")
    is_over = False

    async def ask() -> None:
        while not is_over:
            await busy.query_pending_events()

    asking = [asyncio.create_task(ask()) for _ in range(TOGETHER)]

    async def is_dedicated() -> bool:
        return list(await nodes_of(cluster)) == [busy.identity.did]

    try:
        await until(is_dedicated)
    finally:
        is_over = True
        await asyncio.gather(*asking)
    listed = json.loads(await poste(cluster, identities, "list", "--json"))["identities"]
    assert [place["by"] for place in listed] == ["load"]
    await poste(cluster, identities, "release", busy.identity.did)
    await all_on(cluster)
    assert (await busy.query_pending_events()).items == ()


async def test_identities_come_and_go_and_lose_their_node_and_nothing_is_lost(
    cluster: Nodes, first: MediatorClient, second: MediatorClient
) -> None:
    load = await Load.of([first, second], PAIRS)
    reader, writer = load.pairs[0].reader, load.pairs[1].writer
    sockets = [await Socket.open(account) for account in (reader, load.pairs[2].reader)]
    async with aiohttp.ClientSession() as session:
        bob = await MediatedAgent.arrive(session, cluster.servers[1].url)
        dids = [reader.identity.did, writer.identity.did, bob.did]
        async with bob.wallet.live() as live, load, Letters(bob, live) as letters:
            await _planned(cluster, dids)
        assert letters.read == letters.written
        assert load.refusals() == []
        await load.check()
        # A listening account has received everything on the connection that it had.
        received = await asyncio.gather(*[socket.closed_within(SHORT_S) for socket in sockets])
        assert received == [None, None]
        assert await bob.drained() == []

        await _unplanned(cluster, first, load, dids)
        await bob.write("after all")
        assert await bob.drained() == ["after all"]
    await load.check()
    with closing(open_log(cluster.servers[1].dsn)) as log:
        *findings, summary = verify(log)
        assert isinstance(summary, Summary)
        assert (findings, len(log.dedicated())) == ([], 0)


async def _planned(cluster: Nodes, dids: list[str]) -> None:
    """Everything that an operator may wish."""
    for did in dids:
        await poste(cluster, identities, "dedicate", did)
    await poste(cluster, identities, "dedicate", dids[0], code=Exit.USAGE)
    await poste(cluster, identities, "dedicate", "did:x:unknown", code=Exit.FINDING)
    await all_on(cluster, "node-1", "node-1", "node-2")
    await poste(cluster, shards, "drain", "node-1")
    await all_on(cluster, *["node-2"] * len(dids))
    await poste(cluster, shards, "undrain", "node-1")
    await poste(cluster, identities, "release", dids[0])
    await poste(cluster, identities, "release", dids[0], code=Exit.USAGE)
    await poste(cluster, identities, "dedicate", dids[0])
    assert len(await nodes_of(cluster)) == len(dids)


async def _unplanned(cluster: Nodes, first: MediatorClient, load: Load, dids: list[str]) -> None:
    """The processes of identities die, and a node with all that is on it."""
    load.write_to(first)
    async with load:
        for node in (1, 2):
            for pid in cluster.servers[node].pids(DEDICATED):
                send(pid, signal.SIGKILL)
        await load.served_again(time.monotonic(), SERVED_S_MAX)

        async def everybody_has_one() -> bool:
            return None not in (await nodes_of(cluster)).values()

        await until(everybody_has_one)
        cluster.servers[2].kill_everything()
        await load.served_again(time.monotonic(), SERVED_S_MAX)
        await all_on(cluster, *["node-1"] * len(dids))
    before = len(load.refusals())
    async with load:
        for did in dids:
            await poste(cluster, identities, "release", did)

        async def none_is_left() -> bool:
            return not cluster.servers[1].pids(DEDICATED)

        await until(none_is_left)
    assert len(load.refusals()) == before
