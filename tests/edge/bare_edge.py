"""A listener of a few routes, and raw connections to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
from aiohttp import WSMsgType, hdrs, web

from actors.host.clock import Clock, system_clock
from http_edge.listener.connection import Connection, peer_of
from http_edge.listener.in_flight import InFlight
from http_edge.listener.listener import HttpListener
from http_edge.listener.outgoing import Outgoing
from http_edge.listener.routes import BodyRoute, PlainRoute, Route, RouteGroup, SocketRoute
from http_edge.listener.transfers import Cut
from http_edge.listener.written_answers import PiecedBody, SmallAnswer
from http_edge.settings.settings import Limits, Rates, Settings
from http_edge.telemetry.edge_measures import EdgeMeasures
from http_edge.telemetry.refusal_counts import DECENTRL, RefusalCounts
from tests.edge.mediator import WAIT_S

MIB: Final = 1_048_576
ANSWER: Final = bytes(4 * MIB)
"""More than the kernels of both sides take."""


async def download(_: web.Request) -> web.Response:
    return web.Response(body=ANSWER)


async def pieces(_: web.Request) -> web.Response:
    size = len(ANSWER) // 32
    parts = [ANSWER[start : start + size] for start in range(1, len(ANSWER), size)]
    parts.append(ANSWER[:1])  # the kernel takes the last piece at once
    return web.Response(body=PiecedBody(parts, content_type="text/plain"))


async def echo(_: web.Request, body: bytes) -> web.Response:
    return web.Response(body=body or ANSWER)


async def brief(_: web.Request, body: bytes) -> web.StreamResponse:
    return SmallAnswer(HTTPStatus.OK, body, "text/plain")


async def ahead(request: web.Request, body: bytes) -> web.StreamResponse:
    """An answer that is written before its handler is done."""
    response = await brief(request, body)
    await response.prepare(request)
    await response.write_eof()
    return response


async def read(request: web.Request) -> web.Response:
    """An answer whose handler reads the body itself."""
    return web.Response(body=await request.read())


async def headed(request: web.Request, body: bytes) -> web.StreamResponse:
    """An answer to which its handler adds a header."""
    response = await brief(request, body)
    response.headers[hdrs.RETRY_AFTER] = "7"
    return response


async def held(handles: asyncio.Semaphore, request: web.Request, body: bytes) -> web.StreamResponse:
    """An answer that waits until ``handles`` lets it go."""
    await handles.acquire()
    return await brief(request, body)


async def push(request: web.Request) -> web.WebSocketResponse:
    """A socket that is sent more than its client reads."""
    pushed = web.WebSocketResponse(writer_limit=0)
    await pushed.prepare(request)
    outgoing = Outgoing(pushed, peer=peer_of(request), bytes_max=2 * len(ANSWER))
    outgoing.put(ANSWER)
    running = asyncio.get_running_loop().create_task(outgoing.run())
    await pushed.receive()
    await outgoing.finish(running, seconds_max=WAIT_S)
    return pushed


async def silent(request: web.Request) -> web.WebSocketResponse:
    """A socket that is sent nothing."""
    opened = web.WebSocketResponse()
    await opened.prepare(request)
    await opened.receive()
    return opened


async def patient(handles: asyncio.Semaphore, request: web.Request) -> web.WebSocketResponse:
    """A socket that handles a message whenever ``handles`` lets it."""
    opened = web.WebSocketResponse()
    await opened.prepare(request)
    while not opened.closed:
        message = await opened.receive()
        if message.type is WSMsgType.BINARY:
            await handles.acquire()
            peer_of(request).handled(len(message.data))
    return opened


ROUTES: Final[list[Route]] = [
    PlainRoute("GET", "/download", download),
    PlainRoute("GET", "/pieces", pieces),
    BodyRoute("/echo", echo),
    BodyRoute("/brief", brief),
    BodyRoute("/ahead", ahead),
    BodyRoute("/headed", headed),
    PlainRoute("POST", "/read", read),
    SocketRoute("/push", push),
    SocketRoute("/silent", silent),
]
REQUESTS: Final = {
    "GET": b"GET /download HTTP/1.1\r\nHost: x\r\n\r\n",
    "in pieces": b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "WebSocket": b"GET /push HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
}


class Edge:
    """A listener of these routes, and raw connections to it."""

    def __init__(
        self,
        data_dir: Path,
        clock: Clock = system_clock,
        rates: Rates | None = None,
        /,
        **limits: Any,
    ) -> None:
        self.settings = Settings(data_dir=data_dir, limits=Limits(**limits), rates=rates or Rates())
        self.in_flight = InFlight(self.settings.limits)
        self.measures = EdgeMeasures()
        self.handles = asyncio.Semaphore(0)
        routes = [
            *ROUTES,
            BodyRoute("/held", partial(held, self.handles)),
            SocketRoute("/patient", partial(patient, self.handles)),
        ]
        self.listener = HttpListener(
            self.settings,
            [RouteGroup(DECENTRL, routes)],
            self.in_flight,
            clock=clock,
            refusals=RefusalCounts(entries_max=64, senders_bytes_max=1_024, clock=lambda: 0),
            measures=self.measures,
            error_body=lambda reason: b'"%b"' % reason.encode(),
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._clients: list[socket.socket] = []

    @property
    def unread_bytes(self) -> int:
        return self.listener.connections.leaving.size_bytes

    @property
    def open_connections(self) -> list[Connection]:
        return cast("list[Connection]", list(self.listener.connections._open))

    def cuts(self, cause: Cut) -> float:
        value = self.measures.registry.get_sample_value(
            "poste_connections_cut_total", {"cause": cause.value}
        )
        return value or 0.0

    async def connect(self, request: bytes, address: str = "127.0.0.1") -> socket.socket:
        """A client of an address that has sent this, and reads nothing by itself."""
        client = socket.socket()
        client.bind((address, 0))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        self._clients.append(client)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, request)
        return client

    async def start(self) -> None:
        await self.listener.start(self._listening)

    async def stop(self) -> None:
        for client in self._clients:
            client.close()
        await self.listener.stop()
        self._listening.close()


@asynccontextmanager
async def edge_with(
    data_dir: Path,
    clock: Clock = system_clock,
    rates: Rates | None = None,
    /,
    **limits: Any,
) -> AsyncIterator[Edge]:
    edge = Edge(data_dir, clock, rates, **limits)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.stop()


async def ended(client: socket.socket) -> None:
    """Read until the connection ends, or fail."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_S):
        try:
            while await loop.sock_recv(client, 65_536):
                pass
        except ConnectionResetError:
            pass


async def until(is_so: Any) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - what other tasks and the kernel do sets no event
            await asyncio.sleep(0)


async def status(client: socket.socket) -> int:
    """The status of the next answer."""
    async with asyncio.timeout(WAIT_S):
        answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
    return int(answer.split()[1])


async def served(edge: Edge) -> bytes:
    """Another client is served."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{edge.port}/echo", data=b"x") as answer,
    ):
        return await answer.read()
