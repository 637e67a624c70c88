"""A WebSocket client that says whatever bytes a test wants, which no library lets it say."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.edge.mediator import WAIT_S

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True) -> bytes:
    """A frame of RFC 6455, under a mask of zeros."""
    mask = 0x80 if masked else 0
    head = bytes([(0x80 if final else 0) | opcode])
    if len(payload) < 126:
        head += bytes([mask | len(payload)])
    else:
        head += bytes([mask | 126]) + struct.pack(">H", len(payload))
    return head + (bytes(4) if masked else b"") + payload


class RawSocket:
    """An upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def say(self, *frames: bytes) -> None:
        """Send bytes; what the other side does not take any more is no error."""
        self.writer.write(b"".join(frames))
        try:
            await self.writer.drain()
        except ConnectionError:
            return

    async def hear(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        async with asyncio.timeout(WAIT_S):
            first, length = await self._reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack(">H", await self._reader.readexactly(2))
            return first & 0xF, await self._reader.readexactly(length)

    async def closing(self) -> int:
        """The code that it is closed with, whatever comes before."""
        while True:
            opcode, payload = await self.hear()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big")

    def abort(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def raw_socket(port: int, path: str) -> AsyncIterator[RawSocket]:
    """A WebSocket to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = os.urandom(16).hex()[:22] + "=="
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: mediator\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    answer = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in answer, answer
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
