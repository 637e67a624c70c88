"""What was handed out and not acknowledged, when the edge that handed it out is killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest

from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import MessagesDelivered
from http_edge.clients.didcomm import Picked
from http_edge.clients.didcomm.protocol_session import prepared
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from tests.cluster.server import EDGE, Server, send
from tests.cluster.wallets import MediatedAgent, served
from tests.crash.conftest import Report

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
LEASE_S: Final = 3.0
TEXTS: Final = [f"message {number}" for number in range(5)]
BATCHES: Final = 14
TEXT_BYTES: Final = 6_000
SEGMENT_BYTES: Final = 1_000
"""Small segments, and a small window below, make the kernel take little of what is not read."""
_ROUND_TRIPS: Final = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"didcomm.lease_s": f"{LEASE_S}"}
    with Server(tmp_path_factory.mktemp("leases") / "data", **settings) as server:
        yield server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def kill_edge(server: Server, agent: MediatedAgent) -> None:
    """Kill the edge, and return when there is another one."""
    (edge,) = server.pids(EDGE)
    send(edge, signal.SIGKILL)
    await served(lambda: _answers(agent))


async def _answers(agent: MediatedAgent) -> bool:
    await agent.wallet.ping()
    return True


async def test_what_an_edge_had_handed_out_when_it_was_killed_is_offered_again_after_the_lease(
    server: Server, session: aiohttp.ClientSession
) -> None:
    poller = await MediatedAgent.arrive(session, server.url)
    listener = await MediatedAgent.arrive(session, server.url)
    await poller.write(*TEXTS)
    async with listener.wallet.live() as live:
        leased_s = time.monotonic()
        first = await poller.wallet.fetch(len(TEXTS))
        assert poller.texts(first) == TEXTS
        pushed: list[Picked] = []
        for text in TEXTS:
            await listener.write(text)
            pushed += await live.next()
        assert listener.texts(pushed) == TEXTS
        await poller.wallet.received([first[0].id])
        await kill_edge(server, poller)

    for agent, before in ((poller, first[1:]), (listener, pushed)):
        again: list[Picked] = []
        while len(again) < len(before):
            offered = await served(partial(agent.wallet.fetch, len(TEXTS)))
            assert time.monotonic() >= leased_s + LEASE_S, "offered to two at a time"
            # At once: the leases end one after the other, and the first might end once more.
            await agent.wallet.received([one.id for one in offered])
            again += offered
        assert again == before, "another id, order or text"
        assert (await agent.wallet.status()).message_count == 0


class Stalled:
    """An HTTP request whose answer is not read for now."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    async def ask(cls, url: str, envelope: bytes) -> Stalled:
        """POST an envelope over a connection that carries little."""
        parts = urlsplit(url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (parts.hostname, parts.port))
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Length: {len(envelope)}\r\n\r\n"
        )
        await loop.sock_sendall(connection, head.encode() + envelope)
        return cls(connection)

    async def answer(self) -> bytes | None:
        """Read what there is: the body, or None when it ends before it should."""
        loop = asyncio.get_running_loop()
        said = bytearray()
        with closing(self._connection):
            try:
                while chunk := await loop.sock_recv(self._connection, 65_536):
                    said += chunk
                    head, found, body = bytes(said).partition(b"\r\n\r\n")
                    if found and len(body) == _length(head):
                        return body
            except ConnectionResetError:
                pass
        return None


def _length(head: bytes) -> int:
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    return next(int(value) for name, _, value in lines if name == b"content-length")


async def test_an_answer_that_was_cut_off_by_a_kill_costs_none_of_its_messages(
    server: Server, session: aiohttp.ClientSession, report: Report
) -> None:
    agent = await MediatedAgent.arrive(session, server.url)
    count = sum(range(1, BATCHES + 1))
    texts = [f"{number} ".ljust(TEXT_BYTES, ".") for number in range(count)]
    await agent.write(*texts)
    with closing(server.log()) as log:
        position = log.position()
        stalled: list[Stalled] = []
        for size in range(1, BATCHES + 1):
            request = {"@type": NEW_PREFIX + "messagepickup/1.0/batch-pickup", "batch_size": size}
            envelope = agent.wallet.connection.pack(prepared(request, "all"))
            stalled.append(await Stalled.ask(agent.recipient.address.endpoint, envelope))
            await served(partial(handed_out, log, position, sum(range(size + 1))))
        for _ in range(_ROUND_TRIPS):
            # A removal under way is in the log before the answer to a later question.
            await agent.wallet.status()
        await kill_edge(server, agent)

    arrived = await asyncio.gather(*(one.answer() for one in stalled))
    got = [text for body in arrived if body is not None for text in texts_in(agent, body)]
    again: list[str] = []
    while (await agent.wallet.status()).message_count:
        again += await agent.drained()
    report(f"{arrived.count(None)} of {BATCHES} answers cut off, {len(again)} messages again")
    assert arrived.count(None) > 0, "the kernel took all of it"
    lost = set(texts) - set(got) - set(again)
    assert not lost, f"{len(lost)} lost"
    assert len(set(again)) == len(again)


async def handed_out(log: EventLog, after: int, count: int) -> bool:
    """Have so many messages been handed out since then?"""
    events = [decode(row.topic, row.state) for row in log.read_log(after=after)]
    found = [event.message_ids for event in events if isinstance(event, MessagesDelivered)]
    return sum(map(len, found)) == count


def texts_in(agent: MediatedAgent, body: bytes) -> Sequence[str]:
    """The texts in the answer to a batch-pickup."""
    batch = agent.wallet.connection.open(body)
    assert isinstance(batch, dict)
    attached = batch["messages~attach"]
    assert isinstance(attached, list)
    return [agent.read(orjson.dumps(one["message"])) for one in attached]
