"""One connection: bounds what its client sends and leaves unread, and answers malformed HTTP."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from http_edge.listener.connections import Connections
from http_edge.listener.socket_frames import CheckedFrames
from http_edge.listener.transfers import Cut, Transfer, Transfers
from http_edge.settings.settings import Limits

_READ_BYTES: Final = 16 * 1024
"""A connection buffers twice this much of an unread body; then the kernel holds the client back."""
_PIPELINED_MAX: Final = 2
"""Requests to parse while one is answered, and one more if it came in the same read. With a limit
of one, every request would pause its connection."""
_PART_BYTES: Final = 4 * 1024
"""Bytes of an incomplete head or socket message that count with their connection, not apart."""
_PIECE_BYTES: Final = 16 * 1024
_CHUNKS_BYTES: Final = 8 * 1024
"""Bytes of chunk framing that any body may have, however short; an eighth of the body is added."""
_MALFORMED: Final = b"\0"
"""What no head may have: the parser refuses the request, and the listener answers it."""
_RECEIVED_MAX: Final = 256 * 1024
"""Bytes that asyncio receives at once."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: a reset, with which the kernel also drops the unread bytes."""

AnswerMalformed: TypeAlias = Callable[[web.BaseRequest, int], Awaitable[web.StreamResponse]]
"""Answers a request that is no HTTP; its second argument is the status that names the fault."""


class Connection(RequestHandler):
    """One connection.

    An answer counts as written when the kernel has accepted all of it. Until then its bytes count,
    and the connection is cut if they are too many or take too long.

    aiohttp answers a malformed request in plain text and logs a traceback, so any client could fill
    the log. Here the listener answers it like any other error, and nothing is logged.
    """

    __slots__ = (
        "_arriving",
        "_arriving_from",
        "_frames",
        "_framing_bytes",
        "_head_bytes_max",
        "_head_s_max",
        "_heads",
        "_malformed",
        "_part",
        "_unread",
        "_unwritten",
        "_wire",
        "address",
        "connections",
        "has_left",
        "is_shared",
        "newcomer",
        "when_left",
    )

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        limits: Limits,
        malformed: AnswerMalformed,
        loop: asyncio.AbstractEventLoop,
        linger_s: float,
    ) -> None:
        """A connection among ``connections``.

        ``malformed`` answers malformed HTTP. ``linger_s`` is how long the rest of a refused body is
        read, so that the client sees the answer; that long the connection is not idle.
        """
        self.address = ""
        """A rate limit key; behind a trusted proxy, that of the client which a request names."""
        self.is_shared = False
        """Does the connection belong to a proxy, and carry the requests of many clients?"""
        self.newcomer: int | None = None
        self.has_left = False
        """Has the client stopped sending? It is gone, or still waits for an answer."""
        self.when_left: Callable[[], None] | None = None
        """Called once the client sends no more."""
        self._head_s_max = min(limits.head_s_max, limits.keepalive_s)
        self._head_bytes_max = limits.head_bytes_max
        self._heads = self._framing_bytes = 0
        self._arriving: StreamReader | None = None
        self._arriving_from = 0
        self.connections = connections
        self._malformed = malformed
        self._frames: CheckedFrames | None = None
        self._part: Transfer | None = None
        self._unread: Transfer | None = None
        self._unwritten: Callable[[], int] = int
        self._wire: asyncio.Transport | None = None
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp means it so
            keepalive_timeout=limits.keepalive_s,
            lingering_time=linger_s,
            max_line_size=limits.header_bytes_max,
            max_field_size=limits.header_bytes_max,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
        )
        self._max_msg_queue_size = _PIPELINED_MAX
        self._msg_queue_resume_size = _PIPELINED_MAX // 2
        self._parser = HttpRequestParser(
            self,
            self._loop,
            _READ_BYTES,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=_PIPELINED_MAX,
        )

    @property
    def leaving(self) -> Transfers:
        """What the listener holds for clients that read slowly."""
        return self.connections.leaving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # A transport of uvloop has the interface of asyncio.Transport, not its type.
        self._wire = wire = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        refused = self.connections.admit(self, peer[0] if peer else "")
        if refused is not None:
            self.cut(refused)
            return
        super().connection_made(transport)
        wire.set_write_buffer_limits(high=0)
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        ends_at = self._next_keepalive_close_time = self._loop.time() + self._head_s_max
        self._keepalive_handle = self._loop.call_at(ends_at, self._process_keepalive)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over, from either side."""
        self.connections.forget(self)
        self._read_all()
        if self._frames is None:
            self._hold(0)
        elif self._part is not None and not self.connections.arriving.settle(self._part):
            self._part = None  # it was cut; else its messages count until ``start`` ends
        self._wire = None
        self._leave()
        arriving, self._arriving = self._arriving, None
        super().connection_lost(exc)
        if arriving is not None:
            # aiohttp says so only to a request whose handler has begun.
            arriving.set_exception(ConnectionResetError())
            # Otherwise the rest of a body would stay in memory until a garbage collection.
            getattr(arriving, "_buffer", deque[bytes]()).clear()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio takes the answer
        """The client sends no more: only the answer to a whole request keeps the connection."""
        is_answering = self._heads and self.idle_since_s is None and not self._upgraded
        if not is_answering or not (self._arriving is None or self._arriving.is_eof()):
            return None
        self.close()
        self._leave()
        return True

    def _leave(self) -> None:
        self.has_left = True
        if self.when_left is not None:
            self.when_left()

    @property
    def idle_since_s(self) -> float | None:
        """The loop time since which the connection has waited for a request; None while it has one.

        A connection that never had a request counts as idle longer than any that had one.
        """
        if self._waiter is None or self._waiter.done():
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and bound those that are neither body nor frame.

        Large reads are parsed in pieces: each chunk of a body takes a microsecond, and a body of
        tiny chunks is cut before all of it is parsed.
        """
        if len(data) <= _PIECE_BYTES:
            self._received(data)
            return
        for start in range(0, len(data), _PIECE_BYTES):
            if self._wire is None or self._wire.is_closing():
                return
            if self._buffer_paused or self._reading_paused:
                # The parser buffers the rest until reading resumes.
                self._received(data[start:])
                return
            self._received(data[start : start + _PIECE_BYTES])

    def _received(self, data: bytes) -> None:
        if self._arriving is not None and self._arriving.is_eof():
            self._arriving, self._framing_bytes = None, 0  # it ended when its reading resumed
        handled = None if self._messages else self._arriving
        super().data_received(data)
        if self._request_count != self._heads:
            self._head_received()
        elif self._frames is not None:
            self._hold(self._frames.held_bytes)
        elif self._payload_parser is None and data:
            self._rest_received(len(data))
        if self._reading_paused and _is_crumbs(self._arriving):
            self.cut(Cut.FRAMING)
        if handled is not None and handled.is_eof() and self._parser is not None:
            # aiohttp counts a request as waiting once it is whole, and this one is handled already.
            self._parser.message_consumed()
            self._received(b"")

    def _rest_received(self, size_bytes: int) -> None:
        """Bound what may arrive in pieces: a head, and the framing around a body."""
        self._framing_bytes += size_bytes
        arriving = self._arriving
        if arriving is not None and arriving.is_eof():
            arriving = self._arriving = None
            self._framing_bytes = 0
        body_bytes = 0 if arriving is None else arriving.total_bytes - self._arriving_from
        # A paused parser keeps the bytes of the last read.
        ahead_bytes = _RECEIVED_MAX if self._reading_paused else 0
        framing_bytes = self._framing_bytes - body_bytes - ahead_bytes
        if arriving is not None:
            if framing_bytes > _CHUNKS_BYTES + body_bytes // 8:
                self.cut(Cut.FRAMING)
        elif framing_bytes > self._head_bytes_max:
            self._refuse_head()
        else:
            self._hold(self._framing_bytes)

    def _head_received(self) -> None:
        """Begin a request, or what aiohttp puts in place of one that it cannot parse."""
        self._heads = self._request_count
        if self._arriving is not None and not self._arriving.is_eof():
            # The framing of this body is malformed; aiohttp lets the reader wait for the rest.
            self._arriving.set_exception(RequestPayloadError())
        # The queue is empty if aiohttp itself read on behind a declined upgrade.
        payload = self._messages[-1][1] if self._messages else None
        # What follows a whole request belongs to the next head.
        self._arriving = None if payload is None or payload.is_eof() else payload
        self._arriving_from = 0 if payload is None else payload.total_bytes
        self._framing_bytes = 0
        self._hold(0)

    def _refuse_head(self) -> None:
        """Have a head answered that is too long: a proxy would take a cut for a fault of this node.

        Cut the connection if it is no head: after a request for a WebSocket nothing is parsed until
        that is answered.
        """
        super().data_received(_MALFORMED)
        if self._request_count == self._heads:
            self.cut(Cut.FRAMING)
        self._heads = self._request_count
        self._hold(0)

    def handled(self, size_bytes: int) -> None:
        """Release the bytes of a socket message."""
        assert self._frames is not None, "a message came in frames"
        self._frames.handled(size_bytes)
        if self._wire is not None:
            self._hold(self._frames.held_bytes)

    def _hold(self, size_bytes: int) -> None:
        """Count the held bytes of an incomplete head, or of socket messages."""
        part, arriving = self._part, self.connections.arriving
        if size_bytes <= _PART_BYTES:
            if part is not None:
                arriving.end(part)
                self._part = None
            return
        if part is None:
            # No pace applies: a head has its own time limit, a socket the time between two pings.
            # A proxy names its client at the end of a head; the address is the last request's.
            is_head_of_any = self.is_shared and self._frames is None
            address = "" if is_head_of_any else self.address
            part = self._part = Transfer(address, math.inf, self.cut)
            arriving.begin(part)
        arriving.grow(part, size_bytes - part.size_bytes)

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - aiohttp's
        """Resume reading only if it is paused: aiohttp calls this for every body and reparses."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """Count the unsent bytes: the kernel is full, so the client reads slowly or not at all."""
        super().pause_writing()
        if self._unread is None:
            self._unread = Transfer(self.address, 0, self.cut, self._left_bytes)
            self.leaving.begin(self._unread, self._left_bytes())
        self._unread.since_s, self._unread.moved_bytes = self._loop.time(), 0  # for each piece anew

    def resume_writing(self) -> None:
        """Note that the kernel has accepted all bytes written so far."""
        if not self._unwritten():
            self._read_all()
        super().resume_writing()

    def write_in_pieces(self, left_bytes: Callable[[], int] | None) -> None:
        """Count the unwritten rest of an answer in pieces; None when the answer is written."""
        self._unwritten = left_bytes or int
        if left_bytes is None and not self._left_bytes():
            self._read_all()

    def _left_bytes(self) -> int:
        return self._unwritten() + (self._wire.get_write_buffer_size() if self._wire else 0)

    def cut(self, cause: Cut) -> None:
        """End the connection at once, without a log line of its own."""
        wire = self._wire
        if wire is None or (wire.is_closing() and not wire.get_write_buffer_size()):
            return
        self.connections.note(cause)
        connection = wire.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        wire.abort()

    def _read_all(self) -> None:
        if self._unread is not None:
            self.leaving.end(self._unread)
            self._unread = None

    async def start(self) -> None:
        """Handle the requests; a fault outside of a handler ends the connection."""
        try:
            await super().start()
        except Exception as fault:  # noqa: BLE001 - no time limit would apply to it any more
            self.log_exception("connection failed", exc_info=fault)
            self.force_close()
        finally:
            self._frames = None
            if self._wire is None and (part := self._part) is not None:
                self._part = None
                self.connections.arriving.release(part.address, part.size_bytes)

    def log_exception(
        self, *args: Any, exc_info: BaseException | None = None, **options: Any
    ) -> None:
        """Log a fault of this edge, but no lost peer: any client could fill the log with those."""
        if isinstance(exc_info, ConnectionError):
            self.log_debug("the peer went away")
        else:
            super().log_exception(*args, exc_info=exc_info, **options)

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """Read a WebSocket from now on, and check its frames."""
        self._frames = CheckedFrames(parser, self._loop.time)
        super().set_parser(self._frames, data_received_cb)  # type: ignore[arg-type] # it has the methods that are used

    def _make_error_handler(self, err_info: Any) -> Callable[..., Awaitable[web.StreamResponse]]:
        """The handler of a request that aiohttp could not parse."""
        return lambda request: self._malformed(request, err_info.status)


def _is_crumbs(arriving: StreamReader | None) -> bool:
    """Does a body whose reading is paused have fewer bytes than its buffer may hold?

    Then it was paused for too many chunks: each takes a microsecond or two, however short it is.
    """
    if arriving is None or arriving.is_eof():
        return False
    _, most_bytes = arriving.get_read_buffer_limits()
    return arriving._size <= most_bytes  # noqa: SLF001 - no public attribute has the size


def peer_of(request: web.BaseRequest) -> Connection:
    """The connection of a request."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    return connection
