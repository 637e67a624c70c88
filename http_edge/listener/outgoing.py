"""Frames on their way to one WebSocket: in order, without waiting, within a byte bound.

Putting a frame never waits for the reader. A reader that falls behind by more than the bound
is closed: what it missed waits in its queue, so it loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import struct
import termios
from collections import deque
from typing import Final

from aiohttp import WSMsgType, web

from http_edge.listener.peer import Peer
from http_edge.listener.transfers import Cut, Transfer

_FRAME_BYTES: Final = 64
"""What a frame takes besides its payload: empty ones must not be for free."""
_POLL_S_MIN: Final = 0.001
_POLL_S_MAX: Final = 0.1


class Outgoing:
    """The writing half of a socket."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        *,
        peer: Peer,
        bytes_max: int,
        kind: WSMsgType = WSMsgType.TEXT,
    ) -> None:
        """A writer to ``peer`` that holds frames back until ``run``.

        ``kind`` is that of the frames: text or binary.
        """
        self._socket = socket
        self._peer = peer
        # Its pace is that of the connection; these bytes have not got there yet.
        self._waiting = Transfer(peer.address, math.inf, self._drop)
        self._kind = kind
        self._bytes_max = bytes_max
        self._frames: deque[tuple[bytes, WSMsgType]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._close_code: int | None = None
        self._close_reason = b""

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
        self._count(len(frame) + _FRAME_BYTES)
        self._idle.clear()
        if self._bytes > self._bytes_max:
            self._drop(Cut.BYTES_PER_SOCKET)
        self._wake.set()

    def _count(self, more_bytes: int) -> None:
        """So many more bytes wait, or fewer; they count for the client's address too."""
        leaving = self._peer.leaving
        if not self._bytes:
            leaving.begin(self._waiting)
        self._bytes += more_bytes
        leaving.grow(self._waiting, more_bytes)
        if not self._bytes:
            leaving.end(self._waiting)

    def _drop(self, cause: Cut) -> None:
        """Drop the connection: a close frame would wait behind what the reader does not read."""
        self._frames.clear()
        self._count(-self._bytes)
        self._close_code = 0
        self._peer.cut(cause)

    async def written(self) -> None:
        """Wait until everything that was put has been handed to the network."""
        await self._idle.wait()

    def put_first(self, frame: bytes) -> None:
        """Queue a frame before those that wait: AUTH_SUCCESS precedes every push."""
        self._frames.appendleft((frame, self._kind))
        self._count(len(frame) + _FRAME_BYTES)
        self._wake.set()

    def close(self, code: int, last: bytes | None = None, *, reason: str = "") -> None:
        """Close with a code after what waits and after ``last``; the first close counts.

        ``reason`` goes along in the close frame, at most 123 bytes (RFC 6455).
        """
        if self._close_code is not None:
            return
        if last is not None:
            self._frames.append((last, self._kind))
            self._count(len(last) + _FRAME_BYTES)
        self._close_code = code
        self._close_reason = reason.encode()
        self._wake.set()

    async def finish(self, running: asyncio.Task[None], *, seconds_max: float) -> None:
        """Let ``run`` end: it is not cut off within a closing handshake, and not waited for long.

        Dropping the connection right after the close frame could cost the other side that frame,
        and a reader that reads nothing would keep the connection for ever.
        """
        self._wake.set()
        _, stuck = await asyncio.wait({running}, timeout=seconds_max)
        if stuck:
            self._peer.cut(Cut.SLOW)
            running.cancel()
            await asyncio.wait({running})
        self._frames.clear()
        self._count(-self._bytes)

    async def run(self) -> None:
        """Write until the socket is closed, from here or from the other side."""
        with contextlib.suppress(ConnectionError):
            while not self._socket.closed:
                await self._wake.wait()
                self._wake.clear()
                while self._frames:
                    frame, kind = self._frames.popleft()
                    self._count(-len(frame) - _FRAME_BYTES)
                    await self._socket.send_frame(frame, kind)
                self._idle.set()
                if self._close_code:
                    await self._socket.close(code=self._close_code, message=self._close_reason)


async def all_sent(transport: asyncio.BaseTransport | None, *, seconds_max: float) -> bool:
    """Wait until the kernel has no byte left that the other side has not acknowledged (TCP).

    False when the connection breaks first, or takes longer than ``seconds_max``. That the other
    *program* has read it cannot be known.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + seconds_max, _POLL_S_MIN
    while transport is not None and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        if connection is None:
            return False
        try:
            if not _unacknowledged_bytes(connection.fileno()):
                return True
        except OSError:
            return False
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)
    return False


def _unacknowledged_bytes(descriptor: int) -> int:
    """SIOCOUTQ, which has the number of TIOCOUTQ (tcp(7)).

    Raises:
        OSError: there is no such connection any more.
    """
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, struct.pack("i", 0))
    (count,) = struct.unpack("i", answer)
    return int(count)
