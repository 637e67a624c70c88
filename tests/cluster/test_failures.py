"""What a killed process costs: commands in flight are unknown, nothing else."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from eventstore.stores.open_log import open_host_leases
from http_edge.clients.decentrl import Account, MediatorClient, Reconnected
from tests.cluster.accounts import (
    Socket,
    befriend,
    healthy,
    in_flight,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.server import EDGE, HOST, Server, send

pytestmark = pytest.mark.cluster
UNAVAILABLE = (503, {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"})


@pytest.fixture
async def writer(mediator: MediatorClient) -> Account:
    return await newcomer(mediator, "writer")


@pytest.fixture
async def reader(mediator: MediatorClient, writer: Account) -> Account:
    reader = await newcomer(mediator, "reader")
    await befriend(writer, reader)
    return reader


async def test_a_killed_host_makes_commands_in_flight_unknown_and_comes_back_by_itself(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    (host,), edges = server.pids(HOST), server.pids(EDGE)
    stored = message(writer, reader, "before")
    assert (await post(mediator, stored))[0] == 200
    socket = await Socket.open(reader)

    send(host, signal.SIGSTOP)
    request = await in_flight(mediator, [message(writer, reader, f"{n}") for n in range(20)])
    send(host, signal.SIGKILL)

    # The host was asked about some of them; the others waited at the edge for their turn.
    answers = [await task for task in request]
    assert answers[0] == UNAVAILABLE
    accepted = [f"{n}" for n, (status, _) in enumerate(answers) if status == 200]
    assert answers.count(UNAVAILABLE) == 20 - len(accepted)
    assert await socket.close_code() == 1012
    await until(lambda: healthy(mediator))
    assert await writer.send(reader.identity.did, "after")
    assert await waiting_payloads(reader) == ["before", *accepted, "after"]
    assert await post(mediator, stored) == (401, {"type": "ERROR", "code": "DUPLICATE_NONCE"})
    assert server.pids(EDGE) == edges
    assert server.pids(HOST) != [host]
    await socket.close()


async def test_a_client_hears_of_a_restarted_host_and_finds_what_it_missed(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    async with reader.socket() as notices:
        (host,) = server.pids(HOST)
        send(host, signal.SIGKILL)
        await until(lambda: writer.send(reader.identity.did, "missed"))
        async for notice in notices:
            assert isinstance(notice, Reconnected)
            break
        assert "missed" in await waiting_payloads(reader)


async def test_a_killed_edge_serves_again_on_the_same_address(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    (edge,), hosts = server.pids(EDGE), server.pids(HOST)
    assert await writer.send(reader.identity.did, "before")
    send(edge, signal.SIGKILL)
    await until(lambda: healthy(mediator))
    assert await writer.send(reader.identity.did, "after")
    assert await waiting_payloads(reader) == ["before", "after"]
    assert server.pids(HOST) == hosts
    assert server.pids(EDGE) != [edge]


async def test_an_edge_that_misses_its_keys_makes_no_others_and_serves_when_they_are_back(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    keys, away = server.data_dir / "mediator-keys.json", server.data_dir / "away"
    stderr = server.data_dir / "stderr"
    written = stderr.stat().st_size
    (edge,) = server.pids(EDGE)
    keys.rename(away)
    try:
        send(edge, signal.SIGKILL)

        async def has_failed_or_serves() -> bool:
            failed = "the start failed" in stderr.read_text()[written:]
            return failed or await healthy(mediator)

        await until(has_failed_or_serves)
        assert not keys.exists()
    finally:
        away.rename(keys)
    await until(lambda: healthy(mediator))
    assert await writer.send(reader.identity.did, "after")


async def test_a_host_whose_restart_fails_is_started_again_until_it_serves(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    """A table is missing for some time: the log answers, and no host can use it."""
    stderr = server.data_dir / "stderr"
    written = stderr.stat().st_size

    async def has_failed() -> bool:
        return "ReadModelsMissing" in stderr.read_text()[written:]

    with closing(sqlite3.connect(server.data_dir / "log.db")) as table:
        table.execute("ALTER TABLE queue_depths RENAME TO kept")
        try:
            (host,) = server.pids(HOST)
            send(host, signal.SIGKILL)
            await until(has_failed)
        finally:
            table.execute("ALTER TABLE kept RENAME TO queue_depths")
    await until(lambda: healthy(mediator))
    assert await writer.send(reader.identity.did, "after")


async def test_a_host_without_a_placer_that_was_paused_serves_on_and_says_nothing_else(
    server: Server, mediator: MediatorClient, writer: Account, reader: Account
) -> None:
    """Its lease has ended meanwhile, but no other host may have taken its shards."""
    (host,), written = server.pids(HOST), (server.data_dir / "stderr").stat().st_size
    with closing(open_host_leases(server.dsn)) as leases:

        async def has_lease() -> bool:
            return bool(leases.living())

        async def has_none() -> bool:
            return not await has_lease()

        send(host, signal.SIGSTOP)
        await until(has_none)
        send(host, signal.SIGCONT)
        assert await until(lambda: writer.send(reader.identity.did, "after"))
        await until(has_lease)
    assert server.pids(HOST) == [host]
    assert "serves nothing" not in (server.data_dir / "stderr").read_text()[written:]
