"""Wallets at a real ``poste serve``, in each of its layouts."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from http_edge.clients.didcomm import (
    ConnectionLost,
    Live,
    NoAnswer,
    Picked,
    ProblemReported,
    Socket,
    Wallet,
)
from http_edge.crypto.mediator_keys import operators_token
from http_edge.server.exits import Exit
from tests.cluster.commands import poste
from tests.cluster.conftest import OUTBOUND
from tests.cluster.server import DEDICATED, HOST, Server, send
from tests.cluster.test_placement import noting
from tests.cluster.wallets import MediatedAgent, served
from tests.ports import free_port

# Some take the server of all clusters, by the name in a parameter.
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("server")]
TEXTS: Final = [f"message {number}" for number in range(7)]
ARRIVED_S_MAX: Final = 60.0


@pytest.fixture(scope="module")
def dedicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = OUTBOUND | {"placement": "dedicated"}
    with Server(tmp_path_factory.mktemp("wallets") / "data", **settings) as server:
        yield server


@pytest.fixture(params=["sharded", "two hosts and edges"])
def layout(request: pytest.FixtureRequest) -> Server:
    """A server in each layout; as many as there are run at once."""
    names = {"sharded": "server", "two hosts and edges": "two_by_two"}
    found: Server = request.getfixturevalue(names[request.param])
    return found


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_every_proof_of_the_demo_holds(layout: Server) -> None:
    answered = await asyncio.to_thread(poste, "demo", "didcomm", f"--url={layout.url}", "--json")
    assert json.loads(answered)["held"]


async def test_each_generation_takes_its_part_of_one_queue_in_order(
    layout: Server, session: aiohttp.ClientSession
) -> None:
    bob = await MediatedAgent.arrive(session, layout.url, handshake="connections/1.0")
    await bob.write(*TEXTS)
    got = bob.texts(await bob.wallet.batch(1))
    got.append(bob.read(await bob.wallet.noop()))
    got += bob.texts(await bob.wallet.queue_fetch(1))
    implicit = await bob.wallet.implicit()
    assert implicit is not None
    got.append(bob.read(implicit))
    picked = await bob.wallet.fetch(1)
    await bob.wallet.received([picked[0].id])
    got += bob.texts(picked)
    async with bob.wallet.implicit_socket() as received:
        for _ in range(2):
            envelope = await received.receive()
            assert isinstance(envelope, bytes)
            got.append(bob.read(envelope))
        # A wallet that leaves before the pong is given what it received once more.
        await served(lambda: is_empty(bob.wallet))
    assert got == TEXTS


async def is_empty(wallet: Wallet) -> bool:
    return (await wallet.status()).message_count == 0


def reaching(server: Server) -> list[str]:
    """The options by which an operator's command finds a server."""
    return [f"--data-dir={server.data_dir}"]


async def test_an_operator_sees_a_queue_and_empties_it(
    layout: Server, session: aiohttp.ClientSession
) -> None:
    bob = await MediatedAgent.arrive(session, layout.url, label="Bob's wallet")
    await bob.write(*TEXTS)
    await bob.wallet.fetch(2)
    shown = json.loads(poste("queue", "show", bob.did, *reaching(layout), "--json"))
    (row,) = shown["queues"]
    assert (row["did"], row["messages"], row["outbound"]) == (bob.did, len(TEXTS), False)
    agent = shown["agent"]
    assert (agent["label"], agent["mediated"]) == ("Bob's wallet", True)
    assert (agent["messages"], agent["leased"]) == (len(TEXTS), 2)

    said = poste("queue", "purge", bob.did, "--yes", *reaching(layout))
    assert said == f"{len(TEXTS)} messages removed\n"
    assert await bob.drained() == []
    await bob.write("after")
    assert await bob.drained() == ["after"]


async def test_queues_are_shown_with_the_keys_alone(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    bob = await MediatedAgent.arrive(session, server.url)
    await bob.write(*TEXTS)
    (listed,) = [row for row in rows(server) if row["did"] == bob.did]
    assert listed["messages"] == len(TEXTS)
    for method, path in (("GET", "/queues"), ("POST", f"/queues/purge?did={bob.did}")):
        async with session.request(method, server.operators()[0] + path) as response:
            assert response.status == 401
    others = [f"--url={server.operators()[0]}", f"--data-dir={tmp_path}"]
    poste("queue", "purge", bob.did, "--yes", *others, code=Exit.USAGE)
    operators_token(tmp_path / "operators-token")
    poste("queue", "purge", bob.did, "--yes", *others, code=Exit.UNREACHABLE)
    assert await bob.drained() == TEXTS


def rows(server: Server) -> list[dict[str, Any]]:
    """What ``poste queue show`` says of all queues."""
    answered = poste("queue", "show", "--limit=10000", *reaching(server), "--json")
    found: list[dict[str, Any]] = json.loads(answered)["queues"]
    return found


async def test_an_invitation_of_the_command_line_is_for_one_wallet(
    server: Server, session: aiohttp.ClientSession
) -> None:
    made = json.loads(
        await asyncio.to_thread(
            poste,
            "invite",
            "--single-use",
            "--expires=1h",
            "--label=Front desk",
            f"--data-dir={server.data_dir}",
            "--json",
        )
    )
    bob = await Wallet.connect(made["short_url"], session=session)  # as the QR code has it
    assert (await bob.request_mediation()).endpoint == f"{server.url}/didcomm"
    with pytest.raises(ProblemReported):
        await Wallet.connect(made["url"], session=session)
    await bob.ping()


async def test_what_was_handed_out_is_offered_again_at_once_when_its_host_starts_anew(
    server: Server, session: aiohttp.ClientSession
) -> None:
    poller = await MediatedAgent.arrive(session, server.url)
    listener = await MediatedAgent.arrive(session, server.url)
    await poller.write(*TEXTS)
    async with listener.wallet.live() as live:
        await listener.write("pushed")
        pushed = await live.next()
        first = await poller.wallet.fetch(len(TEXTS))
        await poller.wallet.received([first[0].id])
        assert await poller.wallet.fetch() == []
        (host,) = server.pids(HOST)
        send(host, signal.SIGKILL)
        assert await served(poller.wallet.fetch) == first[1:]
        with pytest.raises(ConnectionLost) as lost:
            await live.next()
        assert lost.value.close_code == 1012
    assert await served(listener.wallet.fetch) == pushed


class Doors:
    """The edges of a server, each reached on its own: the kernel picks one for a connection."""

    def __init__(self, server: Server, stack: AsyncExitStack) -> None:
        self._server = server
        self._stack = stack
        self.sessions: dict[int, aiohttp.ClientSession] = {}

    async def open(self) -> None:
        """Make connections until each edge has one."""
        while len(self.sessions) < 2:
            ports: list[int] = []
            connector = aiohttp.TCPConnector(limit=1, socket_factory=noting(ports))
            session = aiohttp.ClientSession(connector=connector)
            await self._stack.enter_async_context(session)
            async with session.get(f"{self._server.url}/health") as response:
                await response.read()
            self.sessions.setdefault(self._server.edge_of(ports[0]), session)

    @asynccontextmanager
    async def live(self, edge: int, wallet: Wallet) -> AsyncIterator[Live]:
        """A socket in live mode at this edge."""
        async with AsyncExitStack() as sockets:
            while True:
                opened = await sockets.enter_async_context(wallet.socket())
                if self._server.edge_of(local_port(opened)) == edge:
                    break
            live = Live(wallet.connection, opened)
            await live.live_delivery(on=True)
            yield live


def local_port(opened: Socket) -> int:
    port: int = opened.websocket.get_extra_info("sockname")[1]
    return port


@pytest.fixture
async def doors(two_by_two: Server) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        doors = Doors(two_by_two, stack)
        await doors.open()
        yield doors


async def test_a_forward_at_one_edge_is_pushed_by_the_other(
    two_by_two: Server, session: aiohttp.ClientSession, doors: Doors
) -> None:
    for _ in range(2):  # of whichever host they are
        bob = await MediatedAgent.arrive(session, two_by_two.url)
        for edge in doors.sessions:
            async with doors.live(edge, bob.wallet) as live:
                for other, over in doors.sessions.items():
                    await bob.write(f"through {other}", over=over)
                    picked = await live.next()
                    assert bob.texts(picked) == [f"through {other}"]
                    assert (await live.received([picked[0].id])).message_count == 0


async def test_a_second_socket_at_another_edge_takes_over_the_live_mode(
    two_by_two: Server, session: aiohttp.ClientSession, doors: Doors
) -> None:
    first_edge, second_edge = doors.sessions
    bob = await MediatedAgent.arrive(session, two_by_two.url)
    async with doors.live(first_edge, bob.wallet) as first:
        await bob.write("in flight")
        pushed = await first.next()
        async with doors.live(second_edge, bob.wallet) as second:
            assert await second.fetch() == pushed, "what was in flight is offered to the second"
            await bob.write("new")
            assert bob.texts(await second.next()) == ["new"]
            with pytest.raises(NoAnswer):
                await first.next(0.3)
            await second.live_delivery(on=False)
        assert (await first.status()).message_count == 2


class Endpoint:
    """An agent's own HTTP endpoint, which can be down and come up at the same address."""

    def __init__(self) -> None:
        self._port = free_port()
        self.received: list[bytes] = []
        self._arrived = asyncio.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}/agent"

    async def _take(self, request: web.Request) -> web.Response:
        self.received.append(await request.read())
        self._arrived.set()
        return web.Response(status=202)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """It answers within the context."""
        app = web.Application()
        app.router.add_post("/agent", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def got(self, count: int) -> None:
        """Return when so many messages have come."""
        async with asyncio.timeout(ARRIVED_S_MAX):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()


async def test_an_agent_with_an_endpoint_gets_everything_in_order_and_once(
    two_by_two: Server, session: aiohttp.ClientSession
) -> None:
    endpoint = Endpoint()
    bob = await MediatedAgent.arrive(session, two_by_two.url, endpoint=endpoint.url)
    async with endpoint.up():
        await bob.write("at once")
        await endpoint.got(1)
    await bob.write(*TEXTS)
    await asyncio.to_thread(two_by_two.kill_everything)
    await asyncio.to_thread(two_by_two.start)
    await served(lambda: is_waiting(bob, len(TEXTS)))

    async with endpoint.up():
        await endpoint.got(1 + len(TEXTS))
        await served(lambda: is_empty(bob.wallet))
    assert [bob.read(envelope) for envelope in endpoint.received] == ["at once", *TEXTS]


async def is_waiting(agent: MediatedAgent, count: int) -> bool:
    return (await agent.wallet.status()).message_count == count


async def test_a_dedicated_wallet_has_a_process_of_its_own_and_outlives_it(
    dedicated: Server, session: aiohttp.ClientSession
) -> None:
    bob = await MediatedAgent.arrive(session, dedicated.url)

    async def has_its_own() -> bool:
        await bob.wallet.status()
        return bool(dedicated.pids(DEDICATED))

    await served(has_its_own)
    (own,) = dedicated.pids(DEDICATED)
    await bob.write(*TEXTS)
    picked: list[Picked] = await bob.wallet.fetch(2)
    await bob.wallet.received([one.id for one in picked])
    send(own, signal.SIGKILL)
    assert await served(bob.drained) == TEXTS[2:]
