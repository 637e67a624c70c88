"""Pauses of a notifier in the hand of a test."""

from __future__ import annotations

import asyncio

from tests.unit.outbound.agent_host import WAIT_S


class Pauses:
    """Pauses of a notifier, which end when the test says so."""

    def __init__(self) -> None:
        self._began: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        ended = asyncio.Event()
        self._began.put_nowait((seconds, ended))
        await ended.wait()

    async def begun(self) -> tuple[float, asyncio.Event]:
        """The next pause, once it has begun: its length in seconds, and what ends it."""
        async with asyncio.timeout(WAIT_S):
            return await self._began.get()

    async def end_next(self) -> float:
        """End the next pause; its length in seconds."""
        seconds, ended = await self.begun()
        ended.set()
        return seconds
