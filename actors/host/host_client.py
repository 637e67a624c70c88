"""The edge's end of a host connection; what passes there is in ``actors.host.host_connection``."""

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
    HostAddress,
    TakePushes,
    Welcome,
    keep_alive,
)

_CONNECT_S_MAX: Final = 1.0
"""On one network a connection takes a millisecond; who waits longer waits for a lost machine."""
_COPIED_BYTES_MAX: Final = 64 * 1024
"""The answer to a question that is longer is not copied."""
Content: TypeAlias = bytes | memoryview
_WELCOME: Final = msgspec.msgpack.Decoder(Welcome)
_RESULT: Final = msgspec.msgpack.Decoder(BatchResult)


class HostConnectionLost(Exception):
    """The connection ended before the answer: outcome unknown."""


class QuestionFailed(Exception):
    """The host could not answer a question; what was asked of it may have been done."""


class HostClient(asyncio.Protocol):
    """The edge's end: calls on their way to a host, by number; open after ``connect_to_host``."""

    def __init__(self, hello: Hello, on_pushes: TakePushes) -> None:
        """The edge's end of a connection that is not made yet."""
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
        """Has the host ended in order, with no push missing here?"""

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        return self._transport is not None

    async def opened(self) -> None:
        """Return when the host has opened the connection. Raises: HostConnectionLost."""
        await self._welcome

    async def ended(self) -> None:
        """Return when a connection that was opened is open no longer."""
        await self._ended.wait()

    @property
    def has_missed(self) -> bool:
        """Were there pushes before the connection was opened?"""
        return self._welcome.result().has_missed

    @property
    def incarnation(self) -> str:
        """That of a connection that was opened."""
        return self._welcome.result().incarnation

    async def submit(self, batch: bytes) -> bytes:
        """The answer to a batch.

        Raises:
            HostConnectionLost: outcome unknown.
        """
        answer: bytes = await self._call(batch, 0)
        return answer

    async def ask(self, question: bytes) -> Content:
        """The answer to a question.

        Raises:
            HostConnectionLost: outcome unknown.
            QuestionFailed: the host could not answer it.
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
        finally:
            self._calls.pop(number, None)

    def close(self) -> None:
        """End the connection at once, whatever the host has not read yet."""
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
        """Settle the calls whose answers are whole."""
        came: bytes | bytearray = data
        if self._unread:
            # In place: a page of megabytes comes in very many pieces.
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
                    # Where it came to lie: nothing is added to those bytes any more.
                    self._take(number, memoryview(came)[start + HEADER.size : end])
                else:
                    self._take(number, bytes(view[start + HEADER.size : end]))
                start = end
            if start < len(came):
                self._unread += view[start:]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """The outcome of the calls on their way is unknown."""
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
                # The caller has given up, and what is pushed with an answer is for all others.
                if not number & QUESTION:
                    self._take_pushes_of(content)
                return
            if number & FAILED:
                call.set_exception(QuestionFailed())
            else:
                call.set_result(content)
        elif content == NOTHING_MORE:
            self.has_left = True
        elif self._welcome.done():
            self._on_pushes(content)
        else:
            self._welcome.set_result(_WELCOME.decode(content))

    def _take_pushes_of(self, answer: bytes) -> None:
        if pushes := _RESULT.decode(answer).pushes:
            self._on_pushes(msgspec.msgpack.encode(pushes))


async def connect_to_host(address: HostAddress, edge: str, on_pushes: TakePushes) -> HostClient:
    """An open connection to the host at ``address``.

    Raises:
        OSError: nothing listens there, or that machine did not answer in time.
        HostConnectionLost: the host refused it, or did not open it in time.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_S_MAX):
        _, client = await loop.create_connection(
            lambda: HostClient(Hello(address.token, edge), on_pushes), address.host, address.port
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
