"""A load balancer before the nodes of a cluster: clients know its address and no other.

It passes connections on to nodes whose edges answer, in turn, and ends those to a node that has
stopped to answer. A node that is asked stands still or is cut off without any of its sockets
breaking, so silence has to count. What a node has sent by then reaches the client: the node knows
that it has arrived, and without an acknowledgement in the protocol a message has left its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from typing import Final, Self

import aiohttp

_CHECK: Final = "/readyz"
_CHECK_EVERY_S: Final = 0.25
_CHECK_S_MAX: Final = 2.0
_CHUNK_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class _Node:
    url: str
    answers: bool = False
    connections: set[asyncio.Task[None]] = field(default_factory=set)


class Balancer:
    """Listens on loopback as long as this context lasts; see ``serve``."""

    def __init__(self) -> None:
        """A balancer that knows no node yet."""
        self._nodes: dict[str, _Node] = {}
        self._turn = 0
        self._working: list[asyncio.Task[None]] = []
        self._listening: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        assert self._listening is not None
        return f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def serve(self, *urls: str) -> None:
        """Pass connections on to these nodes, as soon and as long as they answer."""
        for url in urls:
            self._nodes[url] = _Node(url)
            self._working.append(asyncio.create_task(self._watch(self._nodes[url])))

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for node in self._nodes.values():
            self._working += node.connections
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def _watch(self, node: _Node) -> None:
        bound = aiohttp.ClientTimeout(total=_CHECK_S_MAX)
        async with aiohttp.ClientSession(timeout=bound) as session:
            while True:
                try:
                    async with session.get(node.url + _CHECK) as response:
                        node.answers = response.ok
                except (aiohttp.ClientError, TimeoutError):
                    node.answers = False
                if not node.answers:
                    self.end(node.url)
                await asyncio.sleep(_CHECK_EVERY_S)

    def end(self, url: str) -> None:
        """End the connections to a node."""
        for task in self._nodes[url].connections:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            for node in self._in_turn():
                address, _, port = node.url.removeprefix("http://").rpartition(":")
                try:
                    there = await asyncio.open_connection(address, int(port))
                except OSError:
                    continue
                node.connections.add(task)
                try:
                    await _joined((reader, writer), there)
                finally:
                    node.connections.discard(task)
                    writer.write(await _rest(*there))
                    there[1].transport.abort()
                break
        writer.close()

    def _in_turn(self) -> list[_Node]:
        self._turn += 1
        nodes = [node for node in self._nodes.values() if node.answers]
        first = self._turn % len(nodes) if nodes else 0
        return nodes[first:] + nodes[:first]


async def _joined(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass on what either side says until one of them ends."""
    ways = [
        asyncio.create_task(_pass(one[0], other[1])),
        asyncio.create_task(_pass(other[0], one[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What has arrived and was not read; nothing is waited for."""
    with contextlib.suppress(RuntimeError):  # the connection is closing
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    reader.feed_eof()
    rest = await reader.read()
    with contextlib.suppress(OSError):
        while chunk := os.read(writer.get_extra_info("socket").fileno(), _CHUNK_BYTES):
            rest += chunk
    return rest


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
