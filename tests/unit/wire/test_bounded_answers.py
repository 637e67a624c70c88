from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from http_edge.dids.addresses import CheckedNames
from http_edge.dids.bounded_answers import BoundedConnector
from tests.unit.wire.https_host import NAME, HttpsHost, https_host

WAIT_S: Final = 10.0


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HttpsHost]:
    async with https_host(tmp_path) as running:
        yield running


def connector(host: HttpsHost) -> BoundedConnector:
    """Connections to the host that end after 5 MB of an answer."""
    names = CheckedNames(host.lookup, lambda *_: True)
    return BoundedConnector(5_000_000, ssl=host.trust, resolver=names)


async def test_a_long_answer_is_read_whole_even_if_much_of_it_waits_to_be_decrypted(
    host: HttpsHost,
) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(4_194_304))

    host.answer = answer
    url = f"https://{NAME}:{host.port}/"
    async with (
        aiohttp.ClientSession(connector=connector(host)) as session,
        session.get(url) as response,
    ):
        assert response.connection is not None
        transport: Any = response.connection.transport
        async with asyncio.timeout(WAIT_S):
            while not transport._ssl_protocol._ssl_reading_paused:  # noqa: ASYNC110 - no event of it
                await asyncio.sleep(0)
        assert len(await response.read()) == 4_194_304


async def test_a_request_that_ends_in_the_moment_of_its_handshake_leaves_no_connection(
    host: HttpsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = connector(host)
    answers = connections._factory()
    monkeypatch.setattr(connections, "_factory", lambda: answers)
    made, lost = answers.connection_made, answers.closed

    def shaken(transport: asyncio.BaseTransport) -> None:
        made(transport)
        request.cancel()

    monkeypatch.setattr(answers, "connection_made", shaken)
    async with aiohttp.ClientSession(connector=connections) as session:

        async def get() -> None:
            async with session.get(f"https://{NAME}:{host.port}/"):
                pass

        request = asyncio.create_task(get())
        with pytest.raises(asyncio.CancelledError):
            await request
    assert lost is not None
    await asyncio.wait_for(lost, WAIT_S)


async def test_a_host_that_never_ends_its_side_of_tls_keeps_no_connection(
    host: HttpsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = writer.transport
        await reader.readuntil(b"\r\n\r\n")
        transport.pause_reading()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        await over.wait()
        transport.abort()

    silent = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=host.tls)
    port = silent.sockets[0].getsockname()[1]
    connections = connector(host)
    answers = connections._factory()
    lost = answers.closed
    monkeypatch.setattr(connections, "_factory", lambda: answers)
    async with (
        aiohttp.ClientSession(connector=connections) as session,
        session.get(f"https://{NAME}:{port}/") as response,
    ):
        assert response.status == 200
    assert lost is not None
    await asyncio.wait_for(lost, WAIT_S)
    over.set()
    silent.close()
