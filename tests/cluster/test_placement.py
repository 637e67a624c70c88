"""The answers are the same for every owner of an identity and every edge."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing

import aiohttp
import pytest
from aiohttp.connector import AddrInfoType

from actors.core.partitioning import Placement
from http_edge.clients.decentrl import ONCE, Account, CommandRefused, Identity, MediatorClient
from tests.cluster.accounts import (
    Socket,
    befriend,
    client,
    in_flight,
    message,
    newcomer,
    post,
    register,
    until,
    waiting_payloads,
)
from tests.cluster.server import DEDICATED, HOST, MEDIATOR_DID, Server, ended, send
from tests.cluster.test_start_and_stop import ray_folders

pytestmark = pytest.mark.cluster
TWO_HOSTS = Placement(shards=16, hosts=2)
DUPLICATE = (401, {"type": "ERROR", "code": "DUPLICATE_NONCE"})
UNAVAILABLE = (503, {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"})


@pytest.fixture
async def edges(two_by_two: Server) -> AsyncIterator[dict[int, MediatorClient]]:
    """A client of each edge process, and of that one alone: each keeps to one connection.

    The kernel picks an edge for each connection, so connections are made until each has one.
    """
    found: dict[int, MediatorClient] = {}
    async with AsyncExitStack() as opened:
        while len(found) < 2:
            ports: list[int] = []
            connector = aiohttp.TCPConnector(limit=1, socket_factory=noting(ports))
            session = await opened.enter_async_context(aiohttp.ClientSession(connector=connector))
            candidate = MediatorClient(two_by_two.url, backoff=ONCE, session=session)
            await candidate.document()
            (port,) = ports
            found.setdefault(two_by_two.edge_of(port), candidate)
        yield found


def noting(ports: list[int]) -> Callable[[AddrInfoType], socket.socket]:
    """Makes sockets whose local port is known before they connect."""

    def make(address: AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        made.bind(("127.0.0.1", 0))
        ports.append(made.getsockname()[1])
        return made

    return make


async def socket_on(edge: int, server: Server, reader: Account) -> Socket:
    """A socket of the reader at this edge process: opened until the kernel picks it."""
    while True:
        opened = await Socket.open(reader)
        if server.edge_of(opened.local_port) == edge:
            return opened
        await opened.close()


async def newcomer_on(host: str, mediator: MediatorClient) -> Account:
    """A registered identity that this host owns."""
    while True:
        identity = Identity.create("stranger", MEDIATOR_DID)
        if TWO_HOSTS.host_of(TWO_HOSTS.partition_of(identity.did)) == host:
            return await register(mediator.as_(identity))


@pytest.mark.parametrize(
    ("writers", "readers"), list(itertools.product(["host-0", "host-1"], repeat=2))
)
async def test_a_message_is_pushed_stored_and_not_repeated_across_hosts_and_edges(
    two_by_two: Server, edges: dict[int, MediatorClient], writers: str, readers: str
) -> None:
    async with client(two_by_two.url) as mediator:
        writer, reader = await newcomer_on(writers, mediator), await newcomer_on(readers, mediator)
        await befriend(writer, reader)
        opened = await socket_on(min(edges), two_by_two, reader)
        for number, edge in edges.items():
            body = message(writer, reader, f"{number}")
            assert (await post(edge, body))[0] == 200
            assert await opened.pushed() == [f"{number}"]
            assert [await post(other, body) for other in edges.values()] == [DUPLICATE] * 2
        assert await waiting_payloads(reader) == [f"{number}" for number in edges]
        await opened.close()


async def test_a_refused_effect_on_one_host_uses_up_the_nonce_on_the_other(
    two_by_two: Server, edges: dict[int, MediatorClient]
) -> None:
    async with client(two_by_two.url) as mediator:
        stranger = await newcomer_on("host-0", mediator)
        reader = await newcomer_on("host-1", mediator)
    body = message(stranger, reader, "unasked")
    here, there = edges.values()
    status, answer = await post(here, body)
    assert (status, answer["code"]) == (404, "COMMUNICATION_CONTRACT_NOT_FOUND")
    assert await post(there, body) == DUPLICATE


async def test_a_host_that_hangs_holds_up_its_own_identities_alone(two_by_two: Server) -> None:
    async with client(two_by_two.url) as mediator:
        readers = [await newcomer_on(host, mediator) for host in ("host-0", "host-1")]
        host = two_by_two.pids(HOST)[0]
        send(host, signal.SIGSTOP)
        request = {asyncio.create_task(waiting_payloads(reader)) for reader in readers}
        served, held_up = await asyncio.wait(request, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in served] == [[]]
        assert len(held_up) == 1
        send(host, signal.SIGKILL)
        await asyncio.wait(held_up)
        error = held_up.pop().exception()
        # An edge that had no connection to it yet has sent nothing, and asks the next owner.
        assert error is None or "TEMPORARILY_UNAVAILABLE" in str(error)
        again = await until(lambda: asyncio.gather(*map(waiting_payloads, readers)))
        assert again == [[], []]


@pytest.fixture(scope="module")
def dedicating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose identities have hosts of their own while they are in use."""
    settings = {"placement": "dedicated", "limits.dedicated_quiet_s": "10"}
    with Server(tmp_path_factory.mktemp("dedicated") / "data", **settings) as server:
        yield server


async def test_a_dedicated_identity_has_a_process_for_as_long_as_it_is_used(
    dedicating: Server,
) -> None:
    server, others = dedicating, moves_of(dedicating)
    async with client(server.url) as mediator:
        writer, reader = [await newcomer(mediator, name) for name in ("writer", "reader")]
        await befriend(writer, reader)
        opened = await Socket.open(reader)
        own = await processes_of(server, writer, reader, since=others)
        accepted = message(writer, reader, "one")
        assert (await post(mediator, accepted))[0] == 200
        assert await opened.pushed() == ["one"], "its socket has moved with it"
        (event,) = (await reader.query_pending_events()).items
        await reader.acknowledge_pending_events([event.id])
        assert await writer.send(reader.identity.did, "two")

        stranger = mediator.as_(Identity.create("stranger", MEDIATOR_DID))
        with pytest.raises(CommandRefused, match="UNAUTHORIZED_COMMAND"):
            await stranger.query_pending_events()
        with pytest.raises(CommandRefused, match="RECIPIENT_NOT_REGISTERED"):
            await writer.send(stranger.identity.did, "to no one")
        assert set(server.pids(DEDICATED)) <= own

        ends = [asyncio.to_thread(ended, process, 60) for process in own]
        assert all(await asyncio.gather(*ends))
        assert server.pids(DEDICATED) == []
        assert await waiting_payloads(reader) == ["two"]
        assert await post(mediator, accepted) == DUPLICATE
        assert await writer.send(reader.identity.did, "three")
        assert [*await opened.pushed(), *await opened.pushed()] == ["two", "three"]


async def test_a_killed_dedicated_process_costs_the_commands_in_flight_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data_dir = tmp_path_factory.mktemp("dedicated") / "data"
    reader_key = Identity.create("reader", MEDIATOR_DID)
    with Server(data_dir, dedicated_dids=reader_key.did) as server:
        async with client(server.url) as mediator:
            writer = await newcomer(mediator, "writer")
            reader = mediator.as_(reader_key)
            await register(reader)
            await befriend(writer, reader)
            (process,) = await processes_of(server, reader)
            assert await writer.send(reader.identity.did, "before")
            opened = await Socket.open(reader)
            send(process, signal.SIGSTOP)
            with closing(server.log()) as log:
                before = log.position()

                async def has_claimed() -> bool:
                    return log.position() > before

                (request,) = await in_flight(mediator, [message(writer, reader, "lost")])
                # Its nonce comes first, at the host of all others.
                await until(has_claimed)
            await mediator.document()  # and it has gone on from there
            send(process, signal.SIGKILL)
            assert await request == UNAVAILABLE
            assert await until(lambda: writer.send(reader.identity.did, "after"))
            assert await opened.close_code() == 1012
            assert await waiting_payloads(reader) == ["before", "after"]


async def test_no_file_of_ray_names_an_identity_that_has_a_host_of_its_own(
    dedicating: Server,
) -> None:
    others = moves_of(dedicating)
    async with client(dedicating.url) as mediator:
        reader = await newcomer(mediator, "reader")
        (process,) = await processes_of(dedicating, reader, since=others)
        assert ended(process, 60)
    (folder,) = ray_folders(dedicating)
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(b"RayDedicatedHost" in content for content in contents.values())
    did = reader.identity.did.encode()
    assert [path.name for path, content in contents.items() if did in content] == []


def moves_of(server: Server) -> int:
    """How often an identity has moved to a host of its own so far."""
    return (server.data_dir / "stderr").read_text().count("now on a dedicated host")


async def processes_of(server: Server, *accounts: Account, since: int = 0) -> set[int]:
    """The processes of dedicated hosts, as soon as each of these accounts has moved to one.

    ``since``: how many others had by then.
    """

    async def started() -> set[int]:
        await asyncio.gather(*map(waiting_payloads, accounts))
        is_done = moves_of(server) >= since + len(accounts)
        return set(server.pids(DEDICATED)) if is_done else set()

    return await until(started)
