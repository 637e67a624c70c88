"""An HTTP server on one socket, which bounds its connections and what they make it hold.

It reads the head of a request in time proportional to its length, and without failing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http_parser import RawRequestMessage
from typing_extensions import override

from http_edge.listener.connection import AnswerMalformed, Connection
from http_edge.listener.connections import Connections
from http_edge.settings.settings import Limits

_BACKLOG: Final = 1_024
_ACCEPTED_AT_ONCE: Final = 64
_COPIES: Final = 8
"""Copies of the listening socket that accept. From each uvloop accepts one connection in a turn of
the loop, which is long under load: newcomers would wait for as many turns as others came before."""
_KERNEL_BYTES: Final = 64 * 1024
"""Bytes that the kernel keeps for each direction of a connection; it doubles this for itself."""
_LINGER_S: Final = 1.0
_SHUTDOWN_S: Final = 1.0
"""How long clients may take to read their last answers once the server stops."""


class Request(web.Request):
    """A request to this server, whatever host its target names."""

    def __init__(self, message: RawRequestMessage, *args: Any, **options: Any) -> None:
        """Take the target's path and query alone: aiohttp would decode its host, which may fail.

        And a version that the answer may have (RFC 9110 6.2): the parser also takes 0.9 and 2.0.
        """
        if message.url.absolute:
            message = message._replace(url=message.url.relative())
        version = min(max(message.version, HttpVersion10), HttpVersion11)
        if version != message.version:
            message = message._replace(version=version)
        super().__init__(message, *args, **options)

    @property
    @override
    def content_type(self) -> str:
        """The media type without parameters; aiohttp takes 3 s to parse 16 KB of semicolons."""
        named = self.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        return named or "application/octet-stream"

    @override
    async def read(self) -> bytes:
        """The whole body, of which the client is asked for what it holds back."""
        await say_continue(self)
        return await super().read()


async def say_continue(request: web.BaseRequest) -> None:
    """Ask for a body that its client holds back until then (RFC 9110, section 10.1.1).

    Not before it is wanted: a request that its head alone refuses is answered instead.
    """
    is_held = hdrs.EXPECT in request.headers and not request.content.is_eof()
    if is_held and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # a fault of the handler can still be answered


def may_upgrade(request: web.Request) -> bool:
    """Does the head ask for a WebSocket as RFC 6455 says?"""
    # RFC 6455 4.2.1: a GET of HTTP/1.1; routes for GET answer HEAD, too. A body would be read as
    # frames: no protocol can be switched within a request (RFC 9110 7.8).
    is_bare_get = request.method == "GET" and request.version >= HttpVersion11
    if not is_bare_get or request.content_length or hdrs.TRANSFER_ENCODING in request.headers:
        return False
    try:
        return web.WebSocketResponse().can_prepare(request).ok
    except ValueError:  # aiohttp raises it for a key that is not ASCII
        return False


class BoundedServer:
    """Accepts connections on a socket, and has their requests handled."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        malformed: AnswerMalformed,
        connections: Connections,
        limits: Limits,
        make_request: type[Request] = Request,
        linger_s: float = _LINGER_S,
    ) -> None:
        """A server that does not listen yet.

        Args:
            handle: answers a request.
            malformed: answers what is no HTTP.
            connections: those of this server, bounded by ``limits``.
            limits: the bounds of each connection.
            make_request: the class of the requests.
            linger_s: how long a connection reads the rest of a refused body.
        """
        self._handle = handle
        self._malformed = malformed
        self._connections = connections
        self._limits = limits
        self._make_request = make_request
        self._linger_s = linger_s
        self._servers: list[asyncio.Server] = []
        self._runner: web.ServerRunner | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a listening socket, within the limits."""
        loop = asyncio.get_running_loop()
        # Not a ``web.Application``: before its middlewares it reads paths and ``Expect`` in ways
        # that take long or fail.
        server = web.Server(self._handle, request_factory=partial(self._make_request, loop=loop))
        self._runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        _bound_kernel(listening, self._limits)
        parts = server, self._connections, self._limits, self._malformed, loop, self._linger_s
        connect = partial(Connection, *parts)
        # The loop may accept up to ``backlog`` connections before the first of them is counted.
        each = _ACCEPTED_AT_ONCE // _COPIES
        for accepting in [listening, *(listening.dup() for _ in range(1, _COPIES))]:
            self._servers.append(await loop.create_server(connect, sock=accepting, backlog=each))
        listening.listen(_BACKLOG)
        self._connections.start()

    async def stop(self) -> None:
        """Stop accepting connections, and end the open ones."""
        for server in self._servers:
            server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._connections.stop()


def _bound_kernel(listening: socket.socket, limits: Limits) -> None:
    """Bound the kernel's buffers of each accepted connection, and how long unsent bytes stay."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The timeout also applies to connections that this process has closed.
        timeout_ms = round(limits.answer_write_s_max * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
