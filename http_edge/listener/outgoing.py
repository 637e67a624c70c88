"""The frames to write to one WebSocket: in order, without blocking, within a byte bound.

Putting a frame never waits for the client. A client that falls behind by more than the bound is
cut off; its messages wait in its queue, so it loses none. The bound does not count a larger frame
that nothing waits before: its message was accepted under a larger bound, and would never arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import socket
import struct
import termios
from collections import deque
from typing import Final

from aiohttp import WSMsgType, web

from http_edge.listener.connection import Connection
from http_edge.listener.transfers import Cut, Transfer

PONGS_MISSED: Final = 1011
POLICY: Final = 1008
CLOSE_S_MAX: Final = 2.0
"""How long a socket waits for the client's answer to a close frame."""
_FINISH_S_MAX: Final = 2 * CLOSE_S_MAX
"""For writing the waiting frames and the close frame, and for the client's answer to it."""
_FRAME_BYTES: Final = 64
"""Bytes that a frame counts besides its payload: empty frames take memory, too."""
_POLL_S_MIN: Final = 0.001
_POLL_S_MAX: Final = 0.1


async def upgraded(request: web.Request, *, message_bytes_max: int) -> web.WebSocketResponse:
    """The WebSocket that a request becomes, with messages of up to ``message_bytes_max``."""
    socket = web.WebSocketResponse(
        timeout=CLOSE_S_MAX,
        compress=False,
        writer_limit=0,  # wait until each frame is written, so that it counts
        max_msg_size=message_bytes_max + 1,  # aiohttp refuses a message of exactly this size
        autoping=False,  # a ping is a frame like any other, and counts
    )
    await socket.prepare(request)
    return socket


class Outgoing:
    """The writing half of a socket."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        *,
        peer: Connection,
        bytes_max: int,
        kind: WSMsgType = WSMsgType.TEXT,
    ) -> None:
        """A writer to ``peer`` that holds frames back until ``run``; ``kind`` is text or binary."""
        self._socket = socket
        self._peer = peer
        # No pace applies: the connection's pace counts the bytes once they are written to it.
        self._waiting = Transfer(peer.address, math.inf, self._drop)
        self.kind = kind
        """What the frames put from now on are: text or binary."""
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
        self._put(frame, self.kind)

    def ping(self, number: bytes) -> None:
        """Queue a ping: its pong says that the client has read all frames put before it."""
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
        first_bytes = len(self._frames[0][0]) + _FRAME_BYTES
        uncounted_bytes = first_bytes if first_bytes > self._bytes_max else 0
        if self._bytes - uncounted_bytes > self._bytes_max:
            self._drop(Cut.BYTES_PER_SOCKET)
        self._wake.set()

    def _count(self, more_bytes: int) -> None:
        """Add to the waiting bytes, or subtract; they also count for the client's address."""
        leaving = self._peer.leaving
        if not self._bytes:
            leaving.begin(self._waiting)
        self._bytes += more_bytes
        leaving.grow(self._waiting, more_bytes)
        if not self._bytes:
            leaving.end(self._waiting)

    def _drop(self, cause: Cut) -> None:
        """Drop the connection: a close frame would wait behind the bytes that are not read."""
        self.discard()
        self._close_code = 0
        self._peer.cut(cause)

    def discard(self) -> None:
        """Forget the waiting frames, which no longer count for the client's address."""
        self._frames.clear()
        self._count(-self._bytes)

    async def written(self) -> None:
        """Wait until every frame put so far is handed to the network."""
        await self._idle.wait()

    def put_first(self, frame: bytes) -> None:
        """Queue a frame before the waiting ones: AUTH_SUCCESS precedes every push."""
        self._frames.appendleft((frame, self.kind))
        self._count(len(frame) + _FRAME_BYTES)
        self._wake.set()

    def close(self, code: int, last: bytes | None = None, *, reason: str = "") -> None:
        """Close with a code after the waiting frames and ``last``; only the first close counts.

        ``reason`` goes into the close frame, at most 123 bytes (RFC 6455).
        """
        if self._close_code is not None:
            return
        if last is not None:
            self._frames.append((last, self.kind))
            self._count(len(last) + _FRAME_BYTES)
        self._close_code = code
        self._close_reason = reason.encode()
        self._wake.set()

    async def finish(
        self, running: asyncio.Task[None], *, seconds_max: float = _FINISH_S_MAX
    ) -> None:
        """Wait until ``run`` has ended and its closing handshake is done, ``seconds_max`` at most.

        If the connection ended right after the close frame, the client could lose that frame;
        without the limit a client that reads nothing would keep the connection for ever.
        """
        self._wake.set()
        _, stuck = await asyncio.wait({running}, timeout=seconds_max)
        if stuck:
            self._peer.cut(Cut.SLOW)
            running.cancel()
            await asyncio.wait({running})
        self.discard()
        self._close_code = 0  # a frame that was not ready in time is dropped

    async def run(self) -> None:
        """Write until either side has closed the socket."""
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


async def all_sent(
    transport: asyncio.BaseTransport | None, *, seconds_max: float, stalled_s_max: float = math.inf
) -> bool:
    """Wait until the other side has acknowledged every byte that was written (TCP).

    False if the connection breaks before, after ``seconds_max``, or if no further byte was
    acknowledged for ``stalled_s_max``. Whether the other *program* has read the bytes cannot be
    known.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + seconds_max, _POLL_S_MIN
    least, stalled_from = math.inf, loop.time()
    while transport is not None and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        if connection is None:
            return False
        try:
            # The transport of a client that has closed reads no more, and so misses the reset that
            # answers what is written; the kernel counts the bytes as unacknowledged for ever.
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return False
            count = _unacknowledged_bytes(connection.fileno())
        except OSError:
            return False
        if not count:
            return True
        now = loop.time()
        if count < least:
            least, stalled_from = count, now
        if now >= min(deadline, stalled_from + stalled_s_max):
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)
    return False


def _unacknowledged_bytes(descriptor: int) -> int:
    """The unacknowledged bytes of a connection: SIOCOUTQ, the same number as TIOCOUTQ (tcp(7)).

    Raises:
        OSError: the connection no longer exists.
    """
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, struct.pack("i", 0))
    (count,) = struct.unpack("i", answer)
    return int(count)
