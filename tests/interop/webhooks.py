"""A receiver of what ACA-Py agents report to their owner."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, Self

from aiohttp import web

MESSAGES: Final = "basicmessages"


class Webhooks:
    """An HTTP server on loopback that keeps the texts of the messages each agent received.

    A context manager that starts and stops it. Every text is kept as often as it came.
    """

    def __init__(self) -> None:
        self.port = 0
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._news = asyncio.Condition()
        app = web.Application()
        app.router.add_post("/{agent}/topic/{topic}/", self._take)
        self._runner = web.AppRunner(app, access_log=None)

    def url(self, agent: str) -> str:
        """Where this agent sends its webhooks."""
        return f"http://127.0.0.1:{self.port}/{agent}"

    def texts(self, agent: str) -> list[str]:
        """Texts that this agent received, in the order in which it said so."""
        return list(self._texts[agent])

    async def wait_for(
        self, agent: str, enough: Callable[[list[str]], bool], seconds_max: float
    ) -> bool:
        """Wait until the agent has received enough: did it in time?"""
        try:
            async with asyncio.timeout(seconds_max), self._news:
                await self._news.wait_for(lambda: enough(self._texts[agent]))
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        event: dict[str, Any] = await request.json()
        if request.match_info["topic"] == MESSAGES:
            async with self._news:
                self._texts[request.match_info["agent"]].append(str(event["content"]))
                self._news.notify_all()
        return web.Response()
