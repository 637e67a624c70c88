"""Frames of every kind count, on both protocols; what comes in them is bounded, never an error."""

from __future__ import annotations

import asyncio
import logging

import orjson
import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import Mediator
from tests.edge.raw_socket import (
    BINARY,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    frame,
    raw_socket,
)

ALICE = Identity("alice")
PATHS = ["/ws", "/didcomm"]
KINDS = {"ping": frame(PING, b"x"), "pong": frame(PONG), "empty pong": frame(PONG)}


@pytest.mark.parametrize("kind", KINDS)
async def test_who_pings_without_end_before_it_is_authenticated_is_closed(
    mediator: Mediator, kind: str
) -> None:
    async with raw_socket(mediator.ports[0], "/ws") as socket:
        await socket.say(KINDS[kind] * 100)
        assert await socket.closing() == 1008


@pytest.mark.parametrize("kind", [*KINDS, "binary", "empty text"])
async def test_who_sends_frames_of_any_kind_without_end_is_closed(
    mediator: Mediator, kind: str
) -> None:
    await mediator.register(ALICE)
    one = {**KINDS, "binary": frame(BINARY, b"x"), "empty text": frame(TEXT)}[kind]
    async with raw_socket(mediator.ports[0], "/ws") as socket:
        await authenticate(mediator, socket)
        await socket.say(one * 100)
        assert await socket.closing() == 1008


async def test_a_ping_is_answered_at_any_time(mediator: Mediator) -> None:
    await mediator.register(ALICE)
    async with raw_socket(mediator.ports[0], "/ws") as socket:
        await socket.say(frame(PING, b"before"))
        assert await socket.hear() == (PONG, b"before")
        await authenticate(mediator, socket)
        await socket.say(frame(PING, b"after"))
        assert await socket.hear() == (PONG, b"after")


@pytest.mark.parametrize("path", PATHS)
async def test_frames_that_are_not_masked_are_refused(mediator: Mediator, path: str) -> None:
    """RFC 6455, section 5.1: a server must close the connection."""
    for opcode in (TEXT, BINARY, PING, CONTINUATION):
        async with raw_socket(mediator.ports[0], path) as socket:
            await socket.say(frame(opcode, b"{}", masked=False))
            assert await socket.closing() == 1002


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("payload", [b"", b"x"], ids=["empty", "one byte"])
async def test_a_message_in_crumbs_is_refused(
    mediator: Mediator, path: str, payload: bytes
) -> None:
    async with raw_socket(mediator.ports[0], path) as socket:
        await socket.say(
            frame(TEXT, payload, final=False), frame(CONTINUATION, payload, final=False) * 1_000
        )
        assert await socket.closing() == 1009


@pytest.mark.parametrize("path", PATHS)
async def test_a_peer_that_goes_away_leaves_no_line_in_the_log(
    mediator: Mediator, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    await mediator.register(ALICE)
    with caplog.at_level(logging.INFO):
        for said in (b"", frame(PING) * 30, frame(TEXT, b"x", final=False), b"\x81"):
            async with raw_socket(mediator.ports[0], path) as socket:
                await socket.say(said)
                await asyncio.sleep(0)
                socket.abort()
        async with raw_socket(mediator.ports[0], "/ws") as socket:
            await authenticate(mediator, socket)
            await socket.say(frame(PING) * 1_000)
            socket.abort()
        await mediator.stop()
    known = ("first registration since the start",)
    lines = [line.getMessage() for line in caplog.records if line.levelno >= logging.INFO]
    try:
        assert [line for line in lines if line not in known] == []
    finally:
        await mediator.start()


async def authenticate(mediator: Mediator, socket: RawSocket) -> None:
    await socket.say(frame(TEXT, orjson.dumps(mediator.authenticate(ALICE))))
    assert await socket.hear() == (TEXT, b'{"type":"AUTH_SUCCESS"}')


async def test_a_peer_that_goes_away_before_it_is_answered_leaves_no_line_in_the_log(
    mediator: Mediator, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp writes "100 Continue" itself, and logged that it could not with a traceback."""
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write_eof()
        await writer.drain()
        assert (await mediator.get("/")).status == 200
        writer.close()
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []
