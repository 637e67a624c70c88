"""Attacks on WebSockets: frames of every kind, and sockets that do not read."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from itertools import count, repeat
from typing import Final

from http_edge.clients.decentrl import Channel
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from tests.attacks.attack import Attack
from tests.attacks.commands import signed
from tests.attacks.target import Target

_CONTINUATION, _TEXT, _BINARY, _PING, _PONG = 0, 1, 2, 9, 10
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_SHORT_MAX, _MEDIUM, _LONG = 125, 126, 127
_UPGRADED: Final = b"HTTP/1.1 101"
_MB: Final = 1_000_000


def frame(opcode: int, data: bytes, *, final: bool = True) -> bytes:
    """A frame as a client writes it; the mask is zeros, so that making it costs nothing."""
    first = opcode | (_FINAL if final else 0)
    size = len(data)
    if size <= _SHORT_MAX:
        head = struct.pack(">BB", first, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, _MASKED | _MEDIUM, size)
    else:
        head = struct.pack(">BBQ", first, _MASKED | _LONG, size)
    return head + bytes(4) + data


async def upgraded(
    target: Target, path: str = "/ws"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket that has said nothing yet. Raises: ConnectionError."""
    reader, writer = await target.stream()
    writer.write(
        b"GET %b HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        % (path.encode(), target.authority.encode())
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(_UPGRADED):
        writer.close()
        target.answers[head[9:12].decode()] += 1
        raise ConnectionError("not upgraded")
    return reader, writer


async def _pour(target: Target, pieces: Iterable[bytes], mb_per_s: float, path: str) -> None:
    """Write pieces to one socket after the other, at a pace, until the end."""
    endless = iter(pieces)
    while not target.is_over:
        try:
            reader, writer = await upgraded(target, path)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
            continue
        reading = asyncio.create_task(_read_all(reader))
        try:
            while not (reading.done() or target.is_over):
                piece = next(endless)
                writer.write(piece)
                target.sent += 1
                target.sent_bytes += len(piece)
                await writer.drain()
                await asyncio.sleep(len(piece) / (mb_per_s * _MB))
            target.answers["closed" if reading.done() else "open at the end"] += 1
        except (OSError, RuntimeError):  # uvloop's, of a connection that is closed
            target.answers["closed"] += 1
        finally:
            reading.cancel()
            with suppress(RuntimeError):
                writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(65_536):
            pass


async def _poured(
    target: Target, piece: bytes, *, mb_per_s: float, sockets: int = 4, path: str = "/ws"
) -> None:
    each = mb_per_s / sockets
    await asyncio.gather(*[_pour(target, repeat(piece), each, path) for _ in range(sockets)])


async def ping_frames(target: Target) -> AsyncIterator[None]:
    """PING frames on sockets that never authenticate."""
    piece = frame(_PING, b"p" * 8) * 1_024
    yield
    await _poured(target, piece, mb_per_s=5)


async def pong_frames(target: Target) -> AsyncIterator[None]:
    """PONG frames that answer nothing, on sockets of wallets."""
    piece = frame(_PONG, b"") * 1_024
    yield
    await _poured(target, piece, mb_per_s=5, path="/didcomm")


async def one_byte_fragments(target: Target) -> AsyncIterator[None]:
    """A message that never ends, in fragments of one byte."""
    piece = frame(_CONTINUATION, b"x", final=False) * 1_024
    first = frame(_TEXT, b"{", final=False)

    def pieces() -> Iterable[bytes]:
        while True:
            yield first
            yield from repeat(piece, 256)

    yield
    await asyncio.gather(*[_pour(target, pieces(), 1.25, "/ws") for _ in range(4)])


async def large_messages(target: Target) -> AsyncIterator[None]:
    """Messages of wallets that are no envelopes, as long as they may be."""
    junk = os.urandom(190_000).hex().encode()
    piece = frame(_BINARY, b'{"protected":"%b","iv":"","ciphertext":"","tag":""}' % junk)
    yield
    await _poured(target, piece, mb_per_s=8, path="/didcomm")


async def silent_sockets(target: Target) -> AsyncIterator[None]:
    """Sockets that never say who they are, as many as one address may open."""
    yield

    async def once() -> None:
        reader, writer = await upgraded(target)
        target.answers["opened"] += 1
        try:
            await reader.read(65_536)
        finally:
            writer.close()

    await target.repeat(100, once, at_once=2_000)


async def unread_pushes(target: Target) -> AsyncIterator[None]:
    """An identity that has many sockets and reads none of what is pushed to them."""
    client = await target.client()
    agents = await DecentrlAgents.registered(client, 1)
    (pair,) = agents.pairs
    recipient = pair.recipient.identity
    sockets = [pair.recipient.socket() for _ in range(32)]
    for socket in sockets:
        await socket.__aenter__()  # never left: they end with the process
    payload = "x" * 200_000
    yield
    bodies = (
        signed(pair.sender, recipient.did, text, Channel.TWO_WAY_PRIVATE)
        for text in repeat(payload)
    )
    await target.flood(20, bodies)


async def malformed_frames(target: Target) -> AsyncIterator[None]:
    """Frames that no client may send, each on a socket of its own."""
    pieces = (
        bytes([_FINAL | _TEXT, 2]) + b"{}",  # without a mask
        frame(3, b"x"),
        frame(11, b"x"),
        frame(_PING, b"x" * 126),
        frame(_PING, b"x", final=False),
        frame(_CONTINUATION, b"x"),
        frame(_TEXT, b"\xff\xfe"),
        frame(8, b"x"),
        frame(8, struct.pack(">H", 999)),
        frame(0x40 | _TEXT, b"x"),  # a bit that only extensions may set
        frame(_TEXT, b"{", final=False) + frame(_TEXT, b"}"),
        struct.pack(">BBQ", _FINAL | _TEXT, _MASKED | _LONG, 1 << 63) + bytes(4),
        struct.pack(">BBQ", _FINAL | _TEXT, _MASKED | _LONG, 1 << 40) + bytes(4),
    )
    numbers = count()
    yield

    async def once() -> None:
        number = next(numbers)
        reader, writer = await upgraded(target, ("/ws", "/didcomm")[number % 2])
        try:
            writer.write(pieces[number // 2 % len(pieces)])
            async with asyncio.timeout(1):
                await reader.read(65_536)
            target.answers["answered"] += 1
        finally:
            writer.close()

    await target.repeat(80, once)


ATTACKS: Final = (
    Attack(
        name="ping-frames",
        about="PING frames on 4 sockets that never authenticate",
        rate="5 MB/s",
        program=ping_frames,
    ),
    Attack(
        name="pong-frames",
        about="PONG frames on 4 sockets of wallets",
        rate="5 MB/s",
        program=pong_frames,
        pair="live",
    ),
    Attack(
        name="one-byte-fragments",
        about="fragments of one byte on 4 sockets",
        rate="5 MB/s",
        program=one_byte_fragments,
    ),
    Attack(
        name="large-messages",
        about="messages of 380 KB that are no envelopes on 4 sockets of wallets",
        rate="8 MB/s",
        program=large_messages,
        pair="live",
    ),
    Attack(
        name="malformed-frames",
        about="frames that no client may send, of thirteen kinds",
        rate="80/s",
        program=malformed_frames,
    ),
    Attack(
        name="silent-sockets",
        about="sockets that never say who they are",
        rate="100/s",
        program=silent_sockets,
    ),
    Attack(
        name="unread-pushes",
        about="32 sockets of one identity that read nothing, and 200 KB for it each time",
        rate="20/s",
        program=unread_pushes,
    ),
)
