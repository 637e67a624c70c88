"""A push service on this machine: what the mediator's notifications arrive at."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import orjson
from aiohttp import web

from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S

PATH: Final = "/notify"


class PushService:
    """Keeps every notification; a context manager that starts and stops it."""

    def __init__(self) -> None:
        self.port = 0
        self.statuses: list[int] = []
        """The statuses of the next answers; then 204."""
        self.released = asyncio.Event()
        self.released.set()
        self.received: list[Json] = []
        self._news = asyncio.Condition()
        app = web.Application()
        app.router.add_post(PATH, self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    @property
    def url(self) -> str:
        """Where notifications are posted."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def wait_for(self, number: int) -> list[Json]:
        """All notifications, as soon as there are so many."""
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: len(self.received) >= number)
        return self.received

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.released.set()
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body: Json = orjson.loads(await request.read())
        async with self._news:
            self.received.append(body)
            self._news.notify_all()
        await self.released.wait()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)
