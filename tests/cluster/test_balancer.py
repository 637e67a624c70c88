"""The balancer of the cluster tests loses nothing that a node knows to have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tests.cluster.accounts import until
from tests.cluster.balancer import Balancer

_BYTES_MAX: Final = 1024
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_ANSWER: Final = b"a message that has left its queue"


@asynccontextmanager
async def _node() -> AsyncIterator[tuple[str, asyncio.Queue[asyncio.StreamWriter]]]:
    """A node that is ready: its URL, and its side of each connection with another question."""
    questioned: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while question := await reader.read(_BYTES_MAX):
            if question.startswith(b"GET /readyz"):
                writer.write(_OK)
            else:
                questioned.put_nowait(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", questioned


async def test_what_a_node_has_sent_reaches_the_client_though_its_connections_are_ended() -> None:
    async with _node() as (url, questioned), Balancer() as balancer:
        balancer.serve(url)
        host, _, port = balancer.url.removeprefix("http://").rpartition(":")
        clients: list[asyncio.StreamWriter] = []

        async def ask() -> tuple[asyncio.StreamWriter, asyncio.Task[bytes]] | None:
            reader, writer = await asyncio.open_connection(host, int(port))
            clients.append(writer)
            writer.write(b"a question")
            arrived = asyncio.create_task(questioned.get())
            answered = asyncio.create_task(reader.read())
            await asyncio.wait({arrived, answered}, return_when=asyncio.FIRST_COMPLETED)
            if arrived.done():
                return arrived.result(), answered
            arrived.cancel()  # the balancer does not know yet that the node is ready
            await asyncio.gather(answered, return_exceptions=True)
            return None

        found = await until(ask)
        assert found is not None
        node, answered = found
        node.write(_ANSWER)  # sent at once, and the balancer has not looked yet
        balancer.end(url)
        assert await answered == _ANSWER
        for writer in clients:
            writer.close()
            with suppress(ConnectionError):  # it was refused
                await writer.wait_closed()
