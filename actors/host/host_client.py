"""The edge's end of a host connection; ``actors.host.host_connection`` describes the frames."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, TypeAlias, cast

import msgspec
from typing_extensions import override

from actors.core.replies import BatchResult
from actors.host.host_connection import (
    ASKED_MS,
    FAILED,
    HEADER,
    NOTHING_MORE,
    PUSH,
    QUESTION,
    Hello,
    TakePushes,
    Welcome,
    keep_alive,
)
from eventstore.log.host_leases import HostLease

_CONNECT_S_MAX: Final = 1.0
"""On one network a connection takes a millisecond; a much longer wait means a lost machine."""
_COPIED_BYTES_MAX: Final = 64 * 1024
"""A longer answer to a question is not copied."""
Content: TypeAlias = bytes | memoryview
_WELCOME: Final = msgspec.msgpack.Decoder(Welcome)
_RESULT: Final = msgspec.msgpack.Decoder(BatchResult)


class HostConnectionLost(Exception):
    """The connection ended before the answer: outcome unknown."""


class QuestionFailed(Exception):
    """The host could not answer a question; it may have done what was asked."""


class HostClient(asyncio.Protocol):
    """The edge's end: pending calls to a host, by number; open after ``connect_to_host``."""

    def __init__(self, hello: Hello, on_pushes: TakePushes) -> None:
        self._hello = hello
        self._on_pushes = on_pushes
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = PUSH
        self._unread = bytearray()
        self._wanted = 0
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self.has_left = False
        """Has the host ended in order, after its last push has arrived here?"""

    @property
    def is_open(self) -> bool:
        """Is the transport connected?"""
        return self._transport is not None

    async def opened(self) -> None:
        """Return when the host has opened the connection. Raises: HostConnectionLost."""
        await self._welcome

    async def ended(self) -> None:
        """Return when the connection has ended."""
        await self._ended.wait()

    @property
    def has_missed(self) -> bool:
        """Did the host have pushes for this edge before the connection was opened?"""
        return self._welcome.result().has_missed

    @property
    def incarnation(self) -> str:
        """The incarnation of the opened connection."""
        return self._welcome.result().incarnation

    async def submit(self, batch: bytes) -> bytes:
        """Send a batch and return its answer.

        Raises:
            HostConnectionLost: outcome unknown.
        """
        answer: bytes = await self._call(batch, 0)
        return answer

    async def ask(self, question: bytes) -> Content:
        """Send a question and return its answer.

        Raises:
            HostConnectionLost: outcome unknown.
            QuestionFailed: the host could not answer the question.
        """
        answer: Content = await self._call(question, QUESTION)
        return answer

    async def _call(self, content: bytes, kind: int) -> Any:
        if self._transport is None:
            raise HostConnectionLost
        self._number += 1
        number = self._number | kind
        call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        self._transport.write(HEADER.pack(len(content), number) + content)
        try:
            return await call
        except asyncio.CancelledError:
            if not kind and call.done() and not call.cancelled() and call.exception() is None:
                # The caller gave up as the answer came: the process may have stood still for long.
                self._take_pushes_of(call.result())
            raise
        finally:
            self._calls.pop(number, None)

    def close(self) -> None:
        """End the connection at once, discarding what the host has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the ``Hello``."""
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(cast("socket.socket", transport.get_extra_info("socket")), ASKED_MS)
        hello = msgspec.msgpack.encode(self._hello)
        self._transport.write(HEADER.pack(len(hello), PUSH) + hello)

    @override
    def data_received(self, data: bytes) -> None:
        """Complete the calls whose answers have fully arrived."""
        came: bytes | bytearray = data
        if self._unread:
            # Appended in place: a page of megabytes comes in very many pieces.
            self._unread += data
            if len(self._unread) < self._wanted:
                return
            came, self._unread = self._unread, bytearray()
        start, self._wanted = 0, HEADER.size
        with memoryview(came) as view:
            while len(came) - start >= HEADER.size:
                length, number = HEADER.unpack_from(came, start)
                end = start + HEADER.size + length
                if end > len(came):
                    self._wanted += length
                    break
                if number & QUESTION and length > _COPIED_BYTES_MAX:
                    # A view of the buffer, to which nothing is appended any more.
                    self._take(number, memoryview(came)[start + HEADER.size : end])
                else:
                    self._take(number, bytes(view[start + HEADER.size : end]))
                start = end
            if start < len(came):
                self._unread += view[start:]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending calls: their outcome is unknown."""
        self._transport = None
        self._ended.set()
        if not self._welcome.done():
            self._welcome.set_exception(HostConnectionLost())
        for call in self._calls.values():
            if not call.done():
                call.set_exception(HostConnectionLost())

    def _take(self, number: int, content: Any) -> None:
        if number != PUSH:
            call = self._calls.get(number & ~FAILED)
            if call is None or call.done():
                # The caller has given up, but the pushes in the answer are also for others.
                if not number & QUESTION:
                    self._later(self._take_pushes_of, content)
                return
            if number & FAILED:
                call.set_exception(QuestionFailed())
            else:
                call.set_result(content)
        elif content == NOTHING_MORE:
            self.has_left = True
        elif self._welcome.done():
            self._later(self._on_pushes, content)
        else:
            self._welcome.set_result(_WELCOME.decode(content))

    @staticmethod
    def _later(take: TakePushes, content: bytes) -> None:
        """Take pushes after the callers of earlier frames, whose answers may have pushes, too."""
        asyncio.get_running_loop().call_soon(take, content)

    def _take_pushes_of(self, answer: bytes) -> None:
        if pushes := _RESULT.decode(answer).pushes:
            self._on_pushes(msgspec.msgpack.encode(pushes))


async def connect_to_host(lease: HostLease, edge: str, on_pushes: TakePushes) -> HostClient:
    """Open a connection to the host that has this lease.

    Raises:
        OSError: nothing listens there, or the machine did not answer in time.
        HostConnectionLost: the host refused the connection, or did not open it in time.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_S_MAX):
        _, client = await loop.create_connection(
            lambda: HostClient(Hello(lease.token, edge), on_pushes), lease.address, lease.port
        )
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            await client.opened()
    except asyncio.CancelledError:
        client.close()
        raise
    except TimeoutError as error:
        client.close()
        raise HostConnectionLost from error
    return client
