"""The edge's end of a line to one host; see ``actors.line_frames``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import msgspec
from typing_extensions import override

from actors.line_frames import HEADER, PUSH, Hello, LineAddress, Welcome, keep_alive

_WELCOME: Final = msgspec.msgpack.Decoder(Welcome)

TakePushes: TypeAlias = Callable[[bytes], None]
"""Gets msgpack of ``list[Push]``."""


class LineLost(Exception):
    """The line ended before the answer: outcome unknown."""


class Line(asyncio.Protocol):
    """Calls on their way to a host, by number; open after ``open_line``."""

    def __init__(self, hello: Hello, on_pushes: TakePushes) -> None:
        """A line that is not connected yet."""
        self._hello = hello
        self._on_pushes = on_pushes
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._number = PUSH
        self._unread = b""
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Can it be asked?"""
        return self._transport is not None

    async def opened(self) -> None:
        """Return when the host has opened the line. Raises: LineLost."""
        await self._welcome

    @property
    def has_missed(self) -> bool:
        """Were there pushes before the line was opened?"""
        return self._welcome.result().has_missed

    @property
    def incarnation(self) -> str:
        """That of a line that was opened."""
        return self._welcome.result().incarnation

    async def ask(self, batch: bytes) -> bytes:
        """The answer to a batch.

        Raises:
            LineLost: outcome unknown.
        """
        if self._transport is None:
            raise LineLost
        self._number += 1
        number = self._number
        call: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        self._transport.write(HEADER.pack(len(batch), number) + batch)
        try:
            return await call
        finally:
            self._calls.pop(number, None)

    def close(self) -> None:
        """End the line."""
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who asks."""
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(cast("socket.socket", transport.get_extra_info("socket")))
        hello = msgspec.msgpack.encode(self._hello)
        self._transport.write(HEADER.pack(len(hello), PUSH) + hello)

    @override
    def data_received(self, data: bytes) -> None:
        """Settle the calls whose answers are whole."""
        unread = self._unread + data if self._unread else data
        start = 0
        while len(unread) - start >= HEADER.size:
            length, number = HEADER.unpack_from(unread, start)
            end = start + HEADER.size + length
            if end > len(unread):
                break
            self._take(number, unread[start + HEADER.size : end])
            start = end
        self._unread = unread[start:]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody learns any more what became of the calls on their way."""
        self._transport = None
        if not self._welcome.done():
            self._welcome.set_exception(LineLost())
        for call in self._calls.values():
            if not call.done():
                call.set_exception(LineLost())

    def _take(self, number: int, content: bytes) -> None:
        if number != PUSH:
            call = self._calls.get(number)
            if call is not None and not call.done():  # nobody waits any more, else
                call.set_result(content)
        elif self._welcome.done():
            self._on_pushes(content)
        else:
            self._welcome.set_result(_WELCOME.decode(content))


async def open_line(address: LineAddress, edge: str, on_pushes: TakePushes) -> Line:
    """A line to the host at ``address`` that is open.

    Raises:
        OSError: nobody listens there.
        LineLost: the host refused it.
    """
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(
        lambda: Line(Hello(address.token, edge), on_pushes), address.host, address.port
    )
    try:
        await line.opened()
    except asyncio.CancelledError:
        line.close()
        raise
    return line
