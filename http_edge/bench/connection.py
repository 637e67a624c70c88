"""A keep-alive connection that costs a load generator little: HTTP/1.1 by hand, one at a time.

It reads what a mediator writes (a status line, headers with Content-Length, a body) and refuses
everything else loudly. It is no HTTP client.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self, cast

from http_edge.bench.target import Target

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_HEAD_BYTES_MAX: Final = 16 * 1024
_STATUS: Final = slice(9, 12)


class ResponseReader:
    """Responses out of a byte stream, in whatever pieces it arrives."""

    def __init__(self) -> None:
        self._received = b""
        self._needed = 0
        self._head_end = 0

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """Take bytes; the status and body once a response is complete.

        Raises:
            ValueError: the stream is not what this reader understands.
        """
        self._received = self._received + data if self._received else data
        if not self._needed:
            self._read_head()
        if not self._needed or len(self._received) < self._needed:
            return None
        if len(self._received) > self._needed:
            raise ValueError("bytes after the response")
        status, body = int(self._received[_STATUS]), self._received[self._head_end :]
        self._received, self._needed = b"", 0
        return status, body

    def _read_head(self) -> None:
        end = self._received.find(_HEAD_END)
        if end < 0:
            if len(self._received) > _HEAD_BYTES_MAX:
                raise ValueError("a response head without end")
            return
        head = self._received[: end + 2].lower()
        if not head.startswith(b"http/1.1 "):
            raise ValueError("not HTTP/1.1")
        at = head.find(_LENGTH)
        if at < 0:
            raise ValueError("a response without Content-Length")
        at += len(_LENGTH)
        self._head_end = end + len(_HEAD_END)
        self._needed = self._head_end + int(head[at : head.find(b"\r\n", at)])


class Connection(asyncio.Protocol):
    """One connection; ``post`` one request after the other."""

    def __init__(self, target: Target) -> None:
        self._head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
            f"Content-Type: {target.media_type}\r\nContent-Length: "
        ).encode()
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, target: Target) -> Self:
        """Connect.

        Raises:
            OSError: nobody listens.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(target), target.host, target.port)
        return connection

    def post(self, body: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a command; the future holds status and body of the answer.

        Raises (the future): ConnectionError, ValueError.
        """
        assert self._transport is not None
        assert self._answer is None, "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        return self._answer

    @property
    def is_open(self) -> bool:
        """May a request be sent, as far as is known?"""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports have the interface of asyncio.Transport, not its type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        answer = self._answer
        try:
            response = self._reader.feed(data)
        except ValueError as error:
            self.close()
            self._fail(error)
            return
        if response is not None and answer is not None:
            self._answer = None
            if not answer.done():
                answer.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight."""
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
