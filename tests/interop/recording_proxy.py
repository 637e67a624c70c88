"""A proxy before an agent's endpoint: what is posted to it passes here, so its order is known."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import Final, Self

import aiohttp
from aiohttp import web

from tests.ports import free_port

_HOST: Final = "127.0.0.1"


def digest(envelope: bytes) -> str:
    """What an envelope is remembered by."""
    return hashlib.sha256(envelope).hexdigest()


class RecordingProxy:
    """A reverse proxy on loopback before one agent; closed, it refuses connections.

    Attributes:
        url: The agent's endpoint, as its peers know it.
        taken: Digests of the envelopes that the agent accepted, in the order in which they came.
    """

    def __init__(self) -> None:
        self.taken: list[str] = []
        self._port = free_port()
        self.url = f"http://{_HOST}:{self._port}"
        self._behind = ""
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None

    def before(self, port: int) -> None:
        """Say where the agent listens."""
        self._behind = f"http://{_HOST}:{port}/"

    async def open(self) -> None:
        """Let posts pass."""
        app = web.Application()
        app.router.add_post("/", self._pass)
        self._client = aiohttp.ClientSession()
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, self._port).start()

    async def close(self) -> None:
        """Refuse connections from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._client is not None:
            await self._client.close()
        self._runner = self._client = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _pass(self, request: web.Request) -> web.Response:
        assert self._client is not None
        envelope = await request.read()
        kept = {"Content-Type": request.headers.get("Content-Type", "")}
        try:
            async with self._client.post(self._behind, data=envelope, headers=kept) as answer:
                body = await answer.read()
        except aiohttp.ClientError:
            return web.Response(status=HTTPStatus.BAD_GATEWAY)
        if answer.ok:
            self.taken.append(digest(envelope))
        return web.Response(status=answer.status, body=body)
