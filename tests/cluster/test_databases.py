"""``poste serve`` on a log of two databases: one mediator to its clients, two stores to keep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import psycopg
import pytest

from actors.core.partitioning import Placement
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.clients.decentrl import Account, Identity, MediatorClient
from http_edge.server.exits import Exit
from http_edge.server.log_check import MEDIATOR_KEY, check_log
from http_edge.server.status_files import archive_figures, export_figures
from http_edge.settings.settings import Settings
from tests.cluster.accounts import (
    befriend,
    client,
    message,
    post,
    register,
    until,
    waiting_payloads,
)
from tests.cluster.commands import ended, poste_json
from tests.cluster.load import Load
from tests.cluster.nodes import Nodes
from tests.cluster.server import EDGE, MEDIATOR_DID, Server, send
from tests.cluster.server import ended as process_ended
from tests.cluster.test_start_and_stop import refusal
from tests.crash.owner import here
from tests.database_server import DatabaseServer, database_directory
from tests.export.samples import catalog_of
from tests.postgres import Server as Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
SHARDS = 4
PLACEMENT = Placement(shards=SHARDS, hosts=1, databases=2)
PAIRS = 6
SERVED_S_MAX = 15.0
ENDED_S_MAX = 30.0
SETTINGS = {"shards": str(SHARDS), "did": MEDIATOR_DID}


@pytest.fixture
def four(postgres_server: Postgres) -> Iterator[list[str]]:
    """The URLs of four empty databases."""
    names = [f"log_{uuid4().hex}" for _ in range(4)]
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE DATABASE {name}".encode())
        yield [postgres_server.get_uri(name) for name in names]
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def person_in(database: int, mediator: MediatorClient) -> Account:
    """A registered identity whose shard is in this database."""
    while True:
        identity = Identity.create("writer", MEDIATOR_DID)
        if PLACEMENT.database_of(identity.did) == database:
            return await register(mediator.as_(identity))


@pytest.mark.spark
async def test_people_of_two_databases_meet_and_are_restored_database_by_database(
    spark_here: SparkSession,
    tmp_path: Path,
    four: list[str],
) -> None:
    log, data_dir = " ".join(four[:2]), tmp_path / "data"
    with Server(data_dir, log=log, **SETTINGS) as server:
        async with client(server.url) as mediator:
            here, there = await person_in(0, mediator), await person_in(1, mediator)
            await befriend(here, there)
            await befriend(there, here)
            sent = message(here, there, "to the second")
            assert (await post(mediator, sent))[0] == 200
            assert await there.send(here.identity.did, "to the first")
            assert await waiting_payloads(there) == ["to the second"]
        queues = poste_json("queue", "show", "--data-dir", data_dir)["queues"]
        assert {queue["did"] for queue in queues} == {here.identity.did, there.identity.did}
        status = poste_json("status", "--data-dir", data_dir)
        assert (status["identities"], status["queue_messages"]) == (2, 2)
        assert {row["shard"]: row["host"] for row in status["shards"]} == {
            "shard-0": "host-0-0",
            "shard-1": "host-1-0",
            "shard-2": "host-0-0",
            "shard-3": "host-1-0",
        }
        _memory_is_what_was_exported(log, data_dir, tmp_path / "export")
    for number, dsn in enumerate(four[:2]):
        with closing(open_log(dsn)) as opened:
            assert opened.figures().identities == 1
            assert opened.settings()["database"] == str(number)

    named: list[str | Path] = ["--log", log, "--data-dir", data_dir]
    checked = poste_json("log", "verify", *named, "--set", f"shards={SHARDS}")["databases"]
    assert [one["summary"]["findings"] for one in checked] == [0, 0]
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"databases": checked}))
    poste_json("log", "verify", *named, "--set", f"shards={SHARDS}", "--known", known)
    exported = poste_json(
        "export", *named, "--to", tmp_path / "export", "--set", f"did={MEDIATOR_DID}"
    )
    assert len(exported["databases"]) == 2

    new = tmp_path / "new"
    for number, dsn in enumerate(four[2:]):
        export = tmp_path / "export" / f"db-{number}"
        poste_json("verify", "--from", export, "--data-dir", data_dir)
        keys = data_dir / "mediator-keys.json"
        poste_json("restore", "--from", export, "--to", dsn, "--data-dir", new, "--keys", keys)
    assert "belongs to another database" in refusal(
        tmp_path / "other", log=" ".join(four[:1:-1]), listen="127.0.0.1:0", **SETTINGS
    )
    with Server(new, log=" ".join(four[2:]), **SETTINGS) as restored:
        async with client(restored.url) as again:
            assert await waiting_payloads(again.as_(here.identity)) == ["to the first"]
            assert await waiting_payloads(again.as_(there.identity)) == ["to the second"]
            status_code, answer = await post(again, sent)
            assert (status_code, answer["code"]) == (401, "DUPLICATE_NONCE")


def _memory_is_what_was_exported(log: str, data_dir: Path, export: Path) -> None:
    """Of two people with one message each."""
    named: list[str | Path] = ["--log", log, "--data-dir", data_dir]
    said = poste_json("verify", "--live", "--from", export, *named)
    assert said["findings"] == said["databases"][0]["findings"] == []
    compared = said["live"]
    assert (compared["differences"], len(compared["positions"])) == (0, 2)
    rows = {table["name"]: table["rows"] for table in compared["tables"]}
    assert (rows["registrations"], rows["queues"], rows["seals"]) == (2, 2, SHARDS)


async def test_an_edge_that_starts_while_one_database_hangs_serves_the_others(
    tmp_path: Path,
) -> None:
    with database_directory() as directory:
        works, hangs = (DatabaseServer.new(directory / name) for name in ("works", "hangs"))
        works.start()
        hangs.start()
        log = f"{works.url} {hangs.url}"
        with Server(tmp_path / "data", log=log, **SETTINGS) as server:
            async with client(server.url) as mediator:
                writer, reader = await person_in(0, mediator), await person_in(0, mediator)
                await befriend(writer, reader)

                async def is_served() -> bool:
                    with contextlib.suppress(aiohttp.ClientError):
                        return (await post(mediator, message(writer, reader, "hello")))[0] == 200
                    return False

                hangs.pause()
                (edge,) = server.pids(EDGE)
                send(edge, signal.SIGKILL)
                assert await asyncio.to_thread(process_ended, edge, ENDED_S_MAX)
                await until(is_served)
                hangs.resume()


def test_the_databases_of_a_log_are_named_all_and_in_their_order(
    tmp_path: Path, four: list[str]
) -> None:
    first, second, third, _ = four
    data_dir, log = tmp_path / "data", f"{first} {second}"
    data_dir.mkdir()
    check_log(Settings(shards=SHARDS, did=MEDIATOR_DID, log=log, data_dir=data_dir))
    for dsn in (first, second):
        with closing(open_log(dsn)) as opened:
            assert MEDIATOR_KEY in opened.settings(), "its export would be signed by any key"
    with here(first):
        pass  # owned a shard of it, which is a row
    for wrong in (f"{second} {first}", first, f"{first} {second} {third}", f"{first} {third}"):
        said = refusal(data_dir, log=wrong, listen="127.0.0.1:0", **SETTINGS)
        assert "in the order in which it was created" in said, wrong


async def _stands_by(data_dir: Path) -> bool:
    """Does the node of this directory leave both exports to another one?"""
    return all(export_figures(data_dir, None, 0, number)["standby"] for number in (0, 1))


async def _exports(data_dir: Path) -> bool:
    """Has it said that it does not? It does after its first step."""
    return not await _stands_by(data_dir)


async def _are_archived(data_dir: Path) -> bool:
    """Has the node of this directory found rows of both databases old enough to leave?"""
    return all(archive_figures(data_dir, 0, number)["position"] for number in (0, 1))


async def test_nodes_share_each_database_and_one_takes_over_what_another_had_of_both(
    tmp_path: Path, four: list[str]
) -> None:
    exporting: Any = {"export.to": f"{tmp_path}/export", "export.lag_s_max": "2"}
    exporting |= {"archive.enabled": "on", "archive.rows_age_s_min": "0", "archive.every_s": "15"}
    with Nodes(tmp_path, " ".join(four[:2]), shards=str(SHARDS), **exporting) as cluster:
        await asyncio.to_thread(cluster.serve, 2)
        url = (await asyncio.to_thread(cluster.serve, 1)).url
        named = [f"--data-dir={cluster.servers[1].data_dir}"]

        async def placed(*expected: set[str]) -> None:
            """Wait until these are the hosts of the shards, database by database."""

            async def found() -> bool:
                shards = (await asyncio.to_thread(poste_json, "shards", "list", *named))["shards"]
                return [{s["host"] for s in shards[place::2]} for place in (0, 1)] == [*expected]

            await until(found)

        async def all_is_exported() -> bool:
            """Whichever node exported what, nothing is missing and nothing is there twice."""
            for number, dsn in enumerate(four[:2]):
                place = open_place(f"{tmp_path}/export/db-{number}")
                with closing(open_log(dsn)) as opened:
                    catalog = catalog_of(place, None)
                    if catalog.last < opened.position():
                        return False
            return True

        def of_nodes(place: int, *nodes: int) -> set[str]:
            return {f"host-node-{node}-{place}-0" for node in nodes}

        await placed(of_nodes(0, 1, 2), of_nodes(1, 1, 2))

        async def order(*words: str) -> int:
            return (await asyncio.to_thread(ended, "shards", *words, *named)).code

        async with client(url) as mediator:
            load = await Load.of([mediator], PAIRS)
            async with load:
                assert await order("drain", "node-1") == Exit.OK
                await placed(of_nodes(0, 2), of_nodes(1, 2))
                assert await order("move", "shard-0", "host-node-1-1-0") == Exit.USAGE
                assert await order("undrain", "node-1") == Exit.OK
                await placed(of_nodes(0, 1, 2), of_nodes(1, 1, 2))
            assert load.refusals() == []
            await until(partial(_stands_by, cluster.servers[1].data_dir))
            async with load:
                cluster.servers[2].kill_everything()
                await load.served_again(time.monotonic(), SERVED_S_MAX)
                await placed(of_nodes(0, 1), of_nodes(1, 1))
            await load.check()
            await until(all_is_exported)
            await until(partial(_are_archived, cluster.servers[1].data_dir))
            await until(partial(_exports, cluster.servers[1].data_dir))
