"""Agents with an endpoint on this machine: what outbound deliveries arrive at."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

NAME: Final = "agent.example"
WAIT_S: Final = 10.0
"""How long a test waits for what must come; it passes as soon as it has come."""
Answer = Callable[[bytes], Awaitable[web.StreamResponse]]


async def accept(_: bytes) -> web.StreamResponse:
    """As ACA-Py answers."""
    return web.Response(status=200)


def status(code: int, **headers: str) -> Answer:
    """Always this status."""

    async def answer(_: bytes) -> web.StreamResponse:
        return web.Response(status=code, headers=headers)

    return answer


def in_turn(*codes: int) -> Answer:
    """These statuses, one each time, and then as ``accept``."""
    left = list(codes)

    async def answer(envelope: bytes) -> web.StreamResponse:
        return web.Response(status=left.pop(0)) if left else await accept(envelope)

    return answer


class Gate:
    """Answers of a host that are held back until they are let go."""

    def __init__(self, answer: Answer = accept) -> None:
        self.released = asyncio.Event()
        self._answer = answer

    async def __call__(self, envelope: bytes) -> web.StreamResponse:
        await self.released.wait()
        return await self._answer(envelope)


class AgentHost:
    """Takes envelopes over HTTP and WebSocket, as configured; reached by any name at ``port``."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._runner: web.AppRunner | None = None
        self._arrived = asyncio.Condition()
        self.answer: Answer = accept
        self.close_code = 1000
        self.requests: list[web.Request] = []
        self.received: list[bytes] = []
        self.accepted: list[bytes] = []
        self.frames: list[WSMsgType] = []
        self.under_way = 0
        self.under_way_most = 0
        self.addresses: Sequence[str] = ("127.0.0.1",)
        self.looked_up: list[tuple[str, int]] = []

    def url(self, scheme: str = "http", host: str = NAME) -> str:
        """Its endpoint."""
        return f"{scheme}://{host}:{self.port}/in?token=secret"

    async def start(self) -> None:
        """Answer from now on; before, its port is closed."""
        application = web.Application(client_max_size=8 * 1_048_576)
        application.router.add_post("/{path:.*}", self._post)
        application.router.add_get("/{path:.*}", self._socket)
        self._runner = web.AppRunner(application, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def stop(self) -> None:
        """Close its port."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._listener.close()

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        """In place of the name service: every name is ``addresses``."""
        self.looked_up.append((host, port))
        return self.addresses

    async def has(self, count: int) -> None:
        """Return when so many envelopes have arrived, accepted or not."""
        async with asyncio.timeout(WAIT_S), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)

    async def notifications(self, count: int) -> list[Any]:
        """All that has arrived at a push service, as soon as there is so much."""
        await self.has(count)
        return [orjson.loads(body) for body in self.received]

    async def _take(self, envelope: bytes) -> web.StreamResponse:
        self.received.append(envelope)
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            async with self._arrived:
                self._arrived.notify_all()
            response = await self.answer(envelope)
        finally:
            self.under_way -= 1
        if response.status < 300:
            self.accepted.append(envelope)
        return response

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self._take(await request.read())

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if request.headers.get("Upgrade") != "websocket":
            return await self._take(b"a plain GET")
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for frame in websocket:
            self.frames.append(frame.type)
            response = await self._take(frame.data)
            if response.status >= 300:
                await websocket.close(code=self.close_code)
        return websocket


@asynccontextmanager
async def agent_host(*, running: bool = True) -> AsyncIterator[AgentHost]:
    """A host of agents; started by the test itself if it is not ``running``."""
    host = AgentHost()
    try:
        if running:
            await host.start()
        yield host
    finally:
        await host.stop()
