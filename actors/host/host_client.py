"""The edge's end of a host connection; what passes there is in ``actors.host.host_connection``."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

import msgspec
from typing_extensions import override

from actors.host.host_connection import (
    FAILED,
    HEADER,
    PUSH,
    QUESTION,
    Hello,
    HostAddress,
    TakePushes,
    Welcome,
    keep_alive,
)

_WELCOME: Final = msgspec.msgpack.Decoder(Welcome)


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
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._number = PUSH
        self._unread = bytearray()
        self._wanted = 0
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        return self._transport is not None

    async def opened(self) -> None:
        """Return when the host has opened the connection. Raises: HostConnectionLost."""
        await self._welcome

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
        return await self._call(batch, 0)

    async def ask(self, question: bytes) -> bytes:
        """The answer to a question.

        Raises:
            HostConnectionLost: outcome unknown.
            QuestionFailed: the host could not answer it.
        """
        return await self._call(question, QUESTION)

    async def _call(self, content: bytes, kind: int) -> bytes:
        if self._transport is None:
            raise HostConnectionLost
        self._number += 1
        number = self._number | kind
        call: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
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
        keep_alive(cast("socket.socket", transport.get_extra_info("socket")))
        hello = msgspec.msgpack.encode(self._hello)
        self._transport.write(HEADER.pack(len(hello), PUSH) + hello)

    @override
    def data_received(self, data: bytes) -> None:
        """Settle the calls whose answers are whole."""
        if self._unread:
            # In place: a page of megabytes comes in very many pieces, and is copied once.
            self._unread += data
            if len(self._unread) < self._wanted:
                return
            data = bytes(self._unread)
            self._unread.clear()
        start, self._wanted = 0, HEADER.size
        while len(data) - start >= HEADER.size:
            length, number = HEADER.unpack_from(data, start)
            end = start + HEADER.size + length
            if end > len(data):
                self._wanted += length
                break
            self._take(number, data[start + HEADER.size : end])
            start = end
        if start < len(data):
            self._unread += data[start:]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """The outcome of the calls on their way is unknown."""
        self._transport = None
        if not self._welcome.done():
            self._welcome.set_exception(HostConnectionLost())
        for call in self._calls.values():
            if not call.done():
                call.set_exception(HostConnectionLost())

    def _take(self, number: int, content: bytes) -> None:
        if number != PUSH:
            call = self._calls.get(number & ~FAILED)
            if call is None or call.done():  # the caller has given up
                return
            if number & FAILED:
                call.set_exception(QuestionFailed())
            else:
                call.set_result(content)
        elif self._welcome.done():
            self._on_pushes(content)
        else:
            self._welcome.set_result(_WELCOME.decode(content))


async def connect_to_host(address: HostAddress, edge: str, on_pushes: TakePushes) -> HostClient:
    """An open connection to the host at ``address``.

    Raises:
        OSError: nothing listens there.
        HostConnectionLost: the host refused it.
    """
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(
        lambda: HostClient(Hello(address.token, edge), on_pushes), address.host, address.port
    )
    try:
        await client.opened()
    except asyncio.CancelledError:
        client.close()
        raise
    return client
