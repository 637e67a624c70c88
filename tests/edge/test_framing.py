"""What stands around and within bodies is bounded; what is malformed is answered."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

import pytest

from actors.host.clock import system_clock
from http_edge.listener.transfers import Cut
from http_edge.settings.settings import Rates
from tests.edge.bare_edge import edge_with, ended, served, status, until
from tests.edge.mediator import WAIT_S

FLOODS: Final = {
    "a chunk with a long extension": (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"a" * 5_000,
    ),
    "trailers": (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        b"A: %b\r\n" % (b"b" * 5_000),
    ),
    "chunks of one byte": (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1;aaaa\r\nx\r\n" * 500,
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_what_is_no_body_is_bounded_wherever_it_stands(tmp_path: Path, flood: str) -> None:
    head, part = FLOODS[flood]
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(head)
        await until(lambda: len(edge.listener.connections) == 1)
        with pytest.raises(ConnectionError):
            await loop.sock_sendall(client, part * 1_000)
        assert edge.cuts(Cut.FRAMING) == 1
        assert await served(edge) == b"x"


async def test_a_head_that_is_too_long_is_answered_and_costs_its_address_a_request(
    tmp_path: Path,
) -> None:
    """A proxy takes a connection that ends without an answer for a fault of the node."""
    now_ms = system_clock()
    two = Rates(per_address_per_s=1, burst_s=2, limited_answer_s=0)
    head = b"GET /brief HTTP/1.1\r\nHost: x\r\n" + 6 * (b"A: %b\r\n" % (b"a" * 10_000))
    async with edge_with(tmp_path, lambda: now_ms, two) as edge:
        for expected in (400, 400, 429):
            client = await edge.connect(head, "127.0.0.2")
            assert await status(client) == expected
            await ended(client)
        assert edge.in_flight.bodies.size_bytes == 0
        assert await served(edge) == b"x"


async def test_a_head_without_end_is_read_no_further_than_it_is_answered(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionError):
            await loop.sock_sendall(client, (b"A: %b\r\n" % (b"b" * 5_000)) * 1_000)
        await until(lambda: not len(edge.listener.connections))
        assert await served(edge) == b"x"


async def test_each_head_of_a_connection_counts_before_it_is_whole(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"")
        for _ in range(2):
            await loop.sock_sendall(client, b"GET /brief HTTP/1.1\r\nA: " + b"a" * 10_000)
            await until(lambda: edge.in_flight.bodies.size_bytes > 10_000)
            await loop.sock_sendall(client, b"\r\nHost: x\r\n\r\n")
            await until(lambda: edge.in_flight.bodies.size_bytes == 0)
            assert await status(client) == 405


async def test_a_head_counts_from_its_first_byte_after_a_body_whose_reading_was_paused(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"")
        await until(lambda: edge.open_connections)
        (connection,) = edge.open_connections
        head = b"POST /brief HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        connection.data_received(head + bytes(100_000))
        assert connection._reading_paused
        assert await status(client) == 200
        await loop.sock_sendall(client, b"GET /brief HTTP/1.1\r\nA: " + b"a" * 10_000)
        await until(lambda: edge.in_flight.bodies.size_bytes > 10_000)


async def test_requests_that_come_at_once_are_answered_after_bodies_that_came_late(
    tmp_path: Path,
) -> None:
    """Their client waits for the answers, so no further byte has the rest of them parsed."""
    loop = asyncio.get_running_loop()
    head = b"POST /brief HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"")
        await until(lambda: edge.open_connections)
        (connection,) = edge.open_connections
        for _ in range(3):
            await loop.sock_sendall(client, head)
            await until(lambda: connection._arriving and not connection._messages)
            await loop.sock_sendall(client, b"x" + 3 * (head + b"x"))
            await answered(client, 4)
        await loop.sock_sendall(client, 3 * (head + b"x"))
        await answered(client, 3)


async def answered(client: socket.socket, requests: int) -> None:
    """Read the answers to so many requests."""
    answers = b""
    async with asyncio.timeout(WAIT_S):
        while answers.count(b"HTTP/1.1 200 ") < requests:
            answers += await asyncio.get_running_loop().sock_recv(client, 65_536)


async def test_few_requests_are_parsed_while_one_is_handled(tmp_path: Path) -> None:
    head = b"POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    async with edge_with(tmp_path) as edge:
        await edge.connect(head + b"x")
        await until(lambda: edge.in_flight.bodies.size_bytes == 1)
        (connection,) = edge.open_connections
        connection.data_received(head)
        connection.data_received(b"x" + 5 * (head + b"x"))
        assert len(connection._messages) == 2


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_connection_is_kept_after_a_body_longer_than_any_head(
    tmp_path: Path, chunked: bool
) -> None:
    loop = asyncio.get_running_loop()
    chunk = b"100\r\n" + bytes(256) + b"\r\n"
    head = b" HTTP/1.1\r\nHost: x\r\n"
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"")
        await until(lambda: edge.open_connections)
        (connection,) = edge.open_connections
        for _ in range(2):
            await loop.sock_sendall(client, b"POST /brief")
            await until(lambda: connection._framing_bytes <= len(b"POST /brief"))
            if chunked:
                await loop.sock_sendall(client, head + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(2_000):
                    await loop.sock_sendall(client, chunk)
                await loop.sock_sendall(client, b"0\r\n\r\n")
            else:
                await loop.sock_sendall(client, head + b"Content-Length: 512000\r\n\r\n")
                await loop.sock_sendall(client, bytes(512_000))
            answer = b""
            async with asyncio.timeout(WAIT_S):
                while len(answer.partition(b"\r\n\r\n")[2]) < 512_000:
                    answer += (received := await loop.sock_recv(client, 1_000_000))
                    assert received
            assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_grows_too_large_is_refused_while_it_comes(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path, body_bytes_max=64 * 1_024) as edge:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        client = await edge.connect(head + b"8000\r\n" + bytes(0x8000) + b"\r\n8000\r\n")
        await until(lambda: edge.in_flight.bodies.size_bytes == 0x8000)
        await loop.sock_sendall(client, bytes(0x8000) + b"\r\n1\r\n")
        await until(lambda: edge.in_flight.bodies.size_bytes == 64 * 1_024)
        await loop.sock_sendall(client, b"x\r\n")
        assert await status(client) == 413


async def test_a_long_head_leaves_its_body_as_much_framing_as_any(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(b"POST /brief HTTP/1.1\r\nA: " + b"a" * 10_000)
        await until(lambda: edge.in_flight.bodies.size_bytes > 10_000)
        (connection,) = edge.open_connections
        head = b"\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await loop.sock_sendall(client, head)
        await until(lambda: connection._arriving)
        await loop.sock_sendall(client, b"1\r\nx\r\n")
        await until(lambda: connection._arriving and connection._arriving.total_bytes == 1)
        await loop.sock_sendall(client, b"0\r\n\r\n")
        assert await status(client) == 200


async def test_what_follows_a_request_that_asks_for_a_socket_and_waits_is_bounded(
    tmp_path: Path,
) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    post = b"POST /held HTTP/1.1\r\nHost: x\r\n" + upgrade + b"Content-Length: 1\r\n\r\nx"
    async with edge_with(tmp_path) as edge:
        await edge.connect(post)
        await until(lambda: edge.in_flight.bodies.size_bytes == 1)
        edge.open_connections[0].data_received(bytes(200_000))
        assert edge.cuts(Cut.FRAMING) == 1
        await until(lambda: not edge.open_connections)
        assert await served(edge) == b"x"


async def test_a_body_in_crumbs_is_cut_before_much_of_it_is_read(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        client = await edge.connect(head)
        await until(lambda: any(each._arriving for each in edge.open_connections))
        (connection,) = edge.open_connections
        arriving = connection._arriving
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(client, b"1\r\nx\r\n" * 400_000))
        await until(lambda: edge.cuts(Cut.FRAMING) == 1)
        await asyncio.gather(sending, return_exceptions=True)
        assert arriving is not None
        assert arriving.total_bytes < 4_096
        assert not arriving._buffer
        assert await served(edge) == b"x"


@pytest.mark.parametrize("path", [b"/echo", b"/read"])
async def test_a_body_whose_framing_breaks_is_answered_when_it_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: bytes
) -> None:
    loop = asyncio.get_running_loop()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    async with edge_with(tmp_path, transfer_grace_s=2 * WAIT_S) as edge:
        client = await edge.connect(head + b"2\r\nx")
        await until(lambda: any(each._arriving for each in edge.open_connections))
        await loop.sock_sendall(client, b"xyz\r\n")
        answer = await loop.sock_recv(client, 65_536)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b'"MALFORMED"')
        await ended(client)
        assert edge.in_flight.bodies.size_bytes == 0
        assert not edge.in_flight._bodies_of
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
