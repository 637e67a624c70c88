"""Answers whose bytes are written by other means than ``web.Response``: most, and very long ones.

Most requests are answered by a short body, which ``SmallAnswer`` writes together with its head: a
``web.Response`` would take 15 µs more for each (aiohttp itself took 35 before). In any unusual case
the answer leaves as a ``web.Response`` with the same content. A long answer leaves in pieces
(``PiecedBody``), each when the client has read most of those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, cast

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_writer import StreamWriter
from aiohttp.payload import Payload
from typing_extensions import override

from http_edge.listener.connection import Connection, peer_of
from http_edge.telemetry import request_id

_BYTES_MAX: Final = 64 * 1024
"""Copying a longer body behind its head costs more than it saves."""
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class SmallAnswer(web.StreamResponse):
    """A status and a body; with headers added by a handler it leaves as a ``web.Response``."""

    def __init__(self, status: int, body: bytes = b"", content_type: str = "") -> None:
        super().__init__(status=status)
        self._content = body
        self._kind = content_type
        self._has_left = False
        self._plain: web.Response | None = None

    @property
    @override
    def prepared(self) -> bool:
        return self._has_left or self._plain is not None

    @property
    @override
    def keep_alive(self) -> bool | None:
        if self._plain is not None:
            return self._plain.keep_alive
        return True if self._has_left else super().keep_alive

    @override
    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write the whole answer, or only the head if it leaves as a ``web.Response``."""
        if self._has_left:
            return None
        if self._plain is None:
            if self._may_leave_at_once(request):
                self._leave(request)
                return None
            self._plain = self._as_response()
        return await self._plain.prepare(request)

    @override
    async def write_eof(self, data: bytes = b"") -> None:
        """Write the rest of a ``web.Response``, waiting for a client that is slow to read."""
        if self._plain is not None:
            await self._plain.write_eof(data)

    def _may_leave_at_once(self, request: web.BaseRequest) -> bool:
        transport = request.transport
        return (
            len(self._content) <= _BYTES_MAX
            and request.method != hdrs.METH_HEAD
            and not self.headers
            and super().keep_alive is None
            and request.version == HttpVersion11
            and request.keep_alive
            and transport is not None
            and not transport.is_closing()
            and not request.protocol.writing_paused
        )

    def _leave(self, request: web.BaseRequest) -> None:
        kind, name = self._kind, request_id.current()
        kind_line = f"{hdrs.CONTENT_TYPE}: {kind}\r\n" if kind else ""
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\n{kind_line}"
            f"{hdrs.CONTENT_LENGTH}: {len(self._content)}\r\n{request_id.HEADER}: {name}\r\n"
            f"{hdrs.DATE}: {rfc822_formatted_time()}\r\n"
        )
        assert request.transport is not None
        common = peer_of(request).connections.common_head
        request.transport.write(b"%b%b\r\n%b" % (head.encode("ascii"), common, self._content))
        self._has_left = True

    def _as_response(self) -> web.Response:
        response = web.Response(status=self.status, body=self._content, headers=self.headers)
        if self._kind:
            response.headers[hdrs.CONTENT_TYPE] = self._kind
        if super().keep_alive is False:
            response.force_close()
        return response


class PiecedBody(Payload):
    """A body in pieces; frees each piece as soon as it is written."""

    _value: deque[bytes]

    def __init__(self, pieces: Iterable[bytes], *, content_type: str) -> None:
        """A body that can be written once."""
        super().__init__(deque(pieces), content_type=content_type)
        self._size = sum(map(len, self._value))

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    @override
    async def write(self, writer: AbstractStreamWriter) -> None:
        # Unwritten pieces take memory as well as written ones that the client has not read.
        connection = cast("StreamWriter", writer).protocol
        assert isinstance(connection, Connection)
        connection.write_in_pieces(lambda: sum(map(len, self._value)))
        try:
            while self._value:
                await writer.write(self._value.popleft())
        finally:
            connection.write_in_pieces(None)
