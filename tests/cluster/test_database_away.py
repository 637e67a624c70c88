"""A node that starts while one of several databases is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from http_edge.clients.decentrl import Account, MediatorClient
from http_edge.server.exits import Exit
from tests.cluster.accounts import befriend, client, message, post, until
from tests.cluster.commands import ended, poste_json
from tests.cluster.load import Load, Pair
from tests.cluster.nodes import Nodes
from tests.cluster.test_databases import SETTINGS, SHARDS, person_in
from tests.database_server import DatabaseServer, database_directory
from tests.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
_NODE: Final = 1
_UNSAFE: Final = ["-cfsync=off"]
_ANSWERS: Final = 3


class Two(NamedTuple):
    """Two databases, the nodes on them, and where they keep their files."""

    first: DatabaseServer
    second: DatabaseServer
    nodes: Nodes


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with database_directory() as directory:
        first, second = (DatabaseServer.new(directory / name) for name in ("first", "second"))
        log = f"{first.url} {second.url}"
        with Nodes(tmp_path_factory.mktemp("away"), log, shards=str(SHARDS)) as nodes:
            yield Two(first, second, nodes)


@pytest.fixture
async def two(both: Two) -> Two:
    """Both databases run, and the first node alone serves all of them, whatever was before."""
    for database in (both.first, both.second):
        database.resume()
        if not database.runs:
            database.start()
    living = [n for n, server in both.nodes.servers.items() if server.exit_code(0) is None]
    for number in living:
        if number != _NODE:
            assert (await asyncio.to_thread(both.nodes.servers[number].terminate))[0] == Exit.OK
    if _NODE not in living:
        await asyncio.to_thread(both.nodes.serve, _NODE)
    data_dir = both.nodes.servers[_NODE].data_dir

    async def has_all() -> bool:
        done = await asyncio.to_thread(ended, "shards", "list", "--json", "--data-dir", data_dir)
        if done.code != Exit.OK:
            return False
        return {shard["node"] for shard in json.loads(done.out)["shards"]} == {"node-1"}

    await until(has_all)
    return both


def status(two: Two) -> dict[str, Any]:
    return poste_json("status", "--data-dir", two.nodes.servers[_NODE].data_dir)


async def health_by(two: Two, check: str) -> tuple[int, dict[str, Any]]:
    """What a check of health answers operators."""
    url, token = two.nodes.servers[_NODE].operators()
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url + check, headers=headers) as said,
    ):
        return said.status, await said.json()


@asynccontextmanager
async def again(two: Two) -> AsyncIterator[MediatorClient]:
    """A client of the node after another start of it."""
    server = await asyncio.to_thread(two.nodes.serve, _NODE)
    async with client(server.url) as mediator:
        yield mediator


async def is_taken(mediator: MediatorClient, person: Account) -> bool:
    """Does a message of this person to itself, which it may not write, reach its shard?"""
    return (await post(mediator, message(person, person, "hello")))[0] != 503


async def is_served(two: Two, mediator: MediatorClient, here: Account, there: Account) -> None:
    """Wait until the database of ``there`` is served too, and nothing is said of it any more."""

    async def served() -> bool:
        return await is_taken(mediator, there)

    await until(served)
    assert await is_taken(mediator, here)

    async def is_well() -> bool:
        said = await asyncio.to_thread(status, two)
        return "databases_away" not in said and (await health_by(two, "/health"))[0] == 200

    await until(is_well)


async def test_a_node_starts_without_a_database_and_serves_it_when_it_is_back_and_right(
    two: Two,
) -> None:
    log = two.nodes.servers[_NODE].data_dir / "stderr"
    said_before = len(log.read_text())
    async with client(two.nodes.servers[_NODE].url) as mediator:
        here, there = await person_in(0, mediator), await person_in(1, mediator)
        await befriend(here, there)
    two.nodes.kill_everything()
    two.second.stop()
    async with again(two) as mediator:
        assert await is_taken(mediator, here)
        async with mediator.transport.session.post(
            mediator.transport.at("/"), data=message(there, here, "hello")
        ) as refused:
            assert (refused.status, "Retry-After" in refused.headers) == (503, True)
        assert (await health_by(two, "/readyz"))[0] == 200
        unwell, explained = await health_by(two, "/health")
        assert unwell == 503
        for text in (
            explained["detail"],
            (await asyncio.to_thread(status, two))["databases_away"]["1"],
        ):
            assert f"port {two.second.port} failed" in text
        two.second.start(_UNSAFE)

        async def is_found_wrong() -> bool:
            why = (await asyncio.to_thread(status, two))["databases_away"]["1"]
            return "fsync=off" in why

        await until(is_found_wrong)
        assert await is_taken(mediator, here), "the others are served"
        assert not await is_taken(mediator, there)
        two.second.stop()
        two.second.start()
        await is_served(two, mediator, here, there)
    said = log.read_text()[said_before:]
    assert said.count("database 1 is away and not served") == 1
    assert "database 1 is not served: PostgreSQL: fsync=off" in said


async def test_a_first_start_needs_all_databases(two: Two) -> None:
    two.first.run("CREATE DATABASE empty")
    empty = two.first.url.removesuffix("postgres") + "empty"
    nowhere = two.second.url.replace(str(two.second.port), str(port := free_port()))
    log = f"{empty} {nowhere}"
    code, said = await asyncio.to_thread(two.nodes.refused, 2, **SETTINGS, log=log)
    assert code == Exit.UNREACHABLE, said
    assert f"port {port} failed" in said


async def test_a_node_does_not_start_without_a_database_that_other_nodes_serve(two: Two) -> None:
    urls = [two.first.url, two.second.url]
    ports = [free_port(), free_port()]
    away = [
        each.url.replace(str(each.port), str(port))
        for each, port in zip((two.first, two.second), ports, strict=True)
    ]
    for number, log in enumerate((f"{away[0]} {urls[1]}", f"{urls[0]} {away[1]}")):
        code, said = await asyncio.to_thread(two.nodes.refused, 2, node="node-2", log=log)
        assert code == Exit.UNREACHABLE
        assert f"Database {number} of the log cannot be opened here, and other nodes have" in said
        assert f"port {ports[number]} failed" in said
    code, said = await asyncio.to_thread(two.nodes.refused, 2, log=" ".join(away))
    assert code == Exit.UNREACHABLE, "no database answers"
    assert f"port {ports[0]} failed" in said


async def test_no_database_is_special_and_its_shards_get_other_owners_while_another_is_away(
    two: Two,
) -> None:
    async with client(two.nodes.servers[_NODE].url) as mediator:
        here, there = await person_in(0, mediator), await person_in(1, mediator)
        await befriend(there, here)
    other = await asyncio.to_thread(two.nodes.serve, 2)
    two.first.stop()
    two.nodes.servers[_NODE].kill_everything()
    async with client(other.url) as mediator:

        async def is_served_here() -> bool:
            return await is_taken(mediator, there)

        await until(is_served_here)
        assert not await is_taken(mediator, here)
        async with again(two) as returned:

            async def is_served_there() -> bool:
                return await is_taken(returned, there)

            await until(is_served_there)
            assert not await is_taken(returned, here)
            assert "0" in (await asyncio.to_thread(status, two))["databases_away"]
            two.first.start()
            await is_served(two, returned, there, here)


@pytest.mark.parametrize("drained", [1, 2], ids=["which is the placer", "which stands by"])
async def test_a_node_is_drained_of_what_can_move_while_a_database_hangs_and_later_of_the_rest(
    two: Two, drained: int
) -> None:
    """It takes connections and never answers."""
    stays = 3 - drained
    await asyncio.to_thread(two.nodes.serve, 2)
    servers = two.nodes.servers
    named = f"--data-dir={servers[stays].data_dir}"

    async def nodes_of(database: int) -> set[str | None]:
        shards = (await asyncio.to_thread(poste_json, "shards", "list", named))["shards"]
        return {shard["node"] for shard in shards[database::2]}

    async def has_both_hosts() -> bool:
        hosts = (await asyncio.to_thread(poste_json, "shards", "list", named))["hosts"]
        return {f"host-node-{number}-1-0" for number in (1, 2)} <= {host["host"] for host in hosts}

    async def drain() -> tuple[int, str]:
        done = await asyncio.to_thread(ended, "shards", "drain", f"node-{drained}", named)
        return done.code, done.err

    async with client(servers[stays].url) as mediator, client(servers[drained].url) as other:
        here, there = [
            Pair(await person_in(number, mediator), await person_in(number, mediator))
            for number in (0, 1)
        ]
        back = Pair(here.reader, here.writer)
        for pair in (here, back, there):
            await befriend(pair.writer, pair.reader)
        load = Load([here, back], [mediator, other])
        async with load:
            two.second.pause()

            async def is_given_up() -> bool:
                return await nodes_of(1) == {None}

            await until(is_given_up)
            code, said = await drain()
            assert code == Exit.UNREACHABLE
            assert "The placer of database 1 (2 shards) did not answer" in said
            assert f"node-{drained} is empty as far as the other databases are concerned" in said
            assert await nodes_of(0) == {f"node-{stays}"}
            await load.answers(_ANSWERS)
            two.second.resume()

            async def is_served_again() -> bool:
                is_here = await is_taken(mediator, there.writer) and None not in await nodes_of(1)
                # The hosts have ended with their leases; one that begins first gets all shards.
                return is_here and await has_both_hosts()

            await until(is_served_again)
            assert await drain() == (Exit.OK, "")
            assert await nodes_of(0) == await nodes_of(1) == {f"node-{stays}"}
            await load.answers(_ANSWERS)
        assert load.refusals() == []
        await load.check()
    undrained = await asyncio.to_thread(ended, "shards", "undrain", f"node-{drained}", named)
    assert undrained.code == Exit.OK
