"""Frames on their way to one WebSocket: in order, without waiting, within a byte bound.

Whoever puts a frame never waits for the reader. A reader that falls behind by more than the bound
is closed: what it missed waits in its queue, so it loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from aiohttp import WSMsgType, web


class Outgoing:
    """The writing half of a socket."""

    def __init__(
        self, socket: web.WebSocketResponse, *, bytes_max: int, abort: Callable[[], None]
    ) -> None:
        """A writer that holds frames back until ``run``; ``abort`` drops the connection."""
        self._socket = socket
        self._abort = abort
        self._bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._close_code: int | None = None

    def put(self, frame: bytes) -> None:
        """Queue a text frame behind those that wait."""
        if self._close_code is not None:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        if self._bytes > self._bytes_max:
            # A close frame would wait behind what the reader does not read.
            self._frames.clear()
            self._close_code = 0
            self._abort()
        self._wake.set()

    def put_first(self, frame: bytes) -> None:
        """Queue a frame before those that wait: AUTH_SUCCESS precedes every push."""
        self._frames.appendleft(frame)
        self._bytes += len(frame)
        self._wake.set()

    def close(self, code: int, last: bytes | None = None) -> None:
        """Close with a code after what waits and after ``last``; the first close counts."""
        if self._close_code is not None:
            return
        if last is not None:
            self._frames.append(last)
            self._bytes += len(last)
        self._close_code = code
        self._wake.set()

    async def finish(self, running: asyncio.Task[None], *, seconds_max: float) -> None:
        """Let ``run`` end: it is not cut off within a closing handshake, and not waited for long.

        Dropping the connection right after the close frame could cost the other side that frame,
        and a reader that reads nothing would keep the connection for ever.
        """
        self._wake.set()
        _, stuck = await asyncio.wait({running}, timeout=seconds_max)
        if stuck:
            self._abort()
            running.cancel()
            await asyncio.wait({running})

    async def run(self) -> None:
        """Write until the socket is closed, from here or from the other side."""
        with contextlib.suppress(ConnectionError):
            while not self._socket.closed:
                await self._wake.wait()
                self._wake.clear()
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame)
                    await self._socket.send_frame(frame, WSMsgType.TEXT)
                if self._close_code:
                    await self._socket.close(code=self._close_code)
