"""HTTP connections: their bounds, and an answer in JSON even to what is no HTTP.

aiohttp answers a malformed request itself, in plain text, and logs each with a traceback: anybody
could fill the log. Here it is an error like any other, and not worth a line.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler

from actors.refusals import Refusal
from http_edge.config import Limits
from http_edge.decentrl.errors import error_body

_BACKLOG: Final = 1_024
_LINGER_S: Final = 1.0
"""How long the rest of a refused body is read, so that the client sees the answer."""


class _Connection(RequestHandler):
    """A connection that answers malformed requests in the protocol's form."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that never reached the application."""
        if status >= 500:  # noqa: PLR2004 - a fault of ours: aiohttp logs it
            return super().handle_error(request, status, exc, message)
        response = web.Response(
            status=status,
            body=error_body(Refusal.INVALID_COMMAND.value),
            content_type="application/json",
            headers={hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: "*", hdrs.SERVER: "poste"},
        )
        response.force_close()
        return response


async def serve(server: web.Server, limits: Limits, listener: socket.socket) -> asyncio.Server:
    """Accept connections for a server, within the limits."""
    loop = asyncio.get_running_loop()

    def connection() -> _Connection:
        return _Connection(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is no access log, as in AppRunner
            keepalive_timeout=limits.keepalive_s,
            lingering_time=_LINGER_S,
            max_line_size=limits.header_bytes_max,
            max_field_size=limits.header_bytes_max,
            auto_decompress=False,
        )

    return await loop.create_server(connection, sock=listener, backlog=_BACKLOG)
