"""Frames on their way to one WebSocket: in order, without waiting, within a byte bound.

Whoever puts a frame never waits for the reader. A reader that falls behind by more than the bound
is closed: what it missed waits in its queue, so it loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from aiohttp import WSMsgType, web

_FRAME_BYTES: Final = 64
"""What a frame takes besides its payload: empty ones must not be for free."""


class Outgoing:
    """The writing half of a socket."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        *,
        bytes_max: int,
        abort: Callable[[], None],
        kind: WSMsgType = WSMsgType.TEXT,
    ) -> None:
        """A writer that holds frames back until ``run``; ``abort`` drops the connection.

        ``kind`` is that of the frames: text or binary.
        """
        self._socket = socket
        self._abort = abort
        self._kind = kind
        self._bytes_max = bytes_max
        self._frames: deque[tuple[bytes, WSMsgType]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._close_code: int | None = None

    def put(self, frame: bytes) -> None:
        """Queue a frame behind those that wait."""
        self._put(frame, self._kind)

    def ping(self, number: bytes) -> None:
        """Queue a ping: its pong says that the other side has read all that was put before."""
        self._put(number, WSMsgType.PING)

    def pong(self, number: bytes) -> None:
        """Queue the answer to a ping."""
        self._put(number, WSMsgType.PONG)

    def _put(self, frame: bytes, kind: WSMsgType) -> None:
        if self._close_code is not None:
            return
        self._frames.append((frame, kind))
        self._bytes += len(frame) + _FRAME_BYTES
        self._idle.clear()
        if self._bytes > self._bytes_max:
            # A close frame would wait behind what the reader does not read.
            self._frames.clear()
            self._close_code = 0
            self._abort()
        self._wake.set()

    async def written(self) -> None:
        """Wait until everything that was put has been handed to the network."""
        await self._idle.wait()

    def put_first(self, frame: bytes) -> None:
        """Queue a frame before those that wait: AUTH_SUCCESS precedes every push."""
        self._frames.appendleft((frame, self._kind))
        self._bytes += len(frame) + _FRAME_BYTES
        self._wake.set()

    def close(self, code: int, last: bytes | None = None) -> None:
        """Close with a code after what waits and after ``last``; the first close counts."""
        if self._close_code is not None:
            return
        if last is not None:
            self._frames.append((last, self._kind))
            self._bytes += len(last) + _FRAME_BYTES
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
                    frame, kind = self._frames.popleft()
                    self._bytes -= len(frame) + _FRAME_BYTES
                    await self._socket.send_frame(frame, kind)
                self._idle.set()
                if self._close_code:
                    await self._socket.close(code=self._close_code)
