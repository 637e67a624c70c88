"""Frames of every kind count, on both protocols; what comes in them is bounded, never an error."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any
from uuid import UUID

import orjson
import pytest

from http_edge.decentrl import frames
from tests.edge.identities import Identity
from tests.edge.mediator import HandClock, Mediator
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


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_address_per_s": 15, "burst_s": 1, "unproven_tokens": 8}}]
)
async def test_what_no_one_waits_for_is_read_as_the_address_of_a_socket_pays(
    mediator: Mediator, clock: HandClock
) -> None:
    """Few large frames on each of many sockets are within the rate of each."""
    await mediator.register(ALICE)
    async with AsyncExitStack() as opened:
        sockets = []
        for _ in range(4):
            clock.advance(1)
            socket = await opened.enter_async_context(raw_socket(mediator.ports[0], "/ws"))
            await authenticate(mediator, socket)
            sockets.append(socket)
        clock.advance(1)
        for socket in sockets[:3]:
            await socket.say(frame(TEXT, b"[" + b"0," * 32_000 + b"0]"), frame(PING, b"x"))
        answers = [asyncio.create_task(socket.hear()) for socket in sockets[:3]]
        assert not (await asyncio.wait(answers, timeout=0.3))[0]
        bodies = mediator.edges[0]._in_flight.bodies
        assert bodies.size_bytes >= 2 * 64_000  # what is read and not paid for is held
        await sockets[3].say(frame(PING, b"as before"))
        assert await sockets[3].hear() == (PONG, b"as before")
        # What one of them owes for the others does not close it.
        clock.advance(60)
        assert await asyncio.gather(*answers) == [(PONG, b"x")] * 3
        assert bodies.size_bytes == 0


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 100, "burst_s": 10}}])
async def test_the_bytes_of_a_request_cost_its_address_the_same_whichever_way_they_come(
    mediator: Mediator, clock: HandClock
) -> None:
    """Each 4 KiB cost a token; if they prove nothing, 16 more, and 16 for each 16 KiB."""
    await mediator.register(ALICE)
    junk = ("\N{EURO SIGN}" * 13_653 + "x").encode()
    parts, unproven = len(junk) // 4_096, 16 + len(junk) // 1_024

    def has_cost(tokens: float) -> bool:
        has, now_s = mediator.edges[0]._listener._rates.requests.has, clock.now_ms / 1000
        left = 1_000 - tokens
        is_exact = has("127.0.0.1", now_s, left) and not has("127.0.0.1", now_s, left + 0.01)
        clock.advance(60)
        return is_exact

    clock.advance(60)
    assert (await mediator.post(junk)).status == 400
    assert has_cost(1 + parts + unproven)
    for path, messages in (("/ws", 0), ("/didcomm", 1)):
        async with raw_socket(mediator.ports[0], path) as socket:
            await socket.say(frame(TEXT, junk))
            await socket.closing()
        assert has_cost(1 + messages + parts + unproven), path
    async with raw_socket(mediator.ports[0], "/ws") as socket:
        message = orjson.dumps(mediator.authenticate(ALICE)).ljust(8_192)
        await socket.say(frame(TEXT, message))
        assert await socket.hear() == (TEXT, b'{"type":"AUTH_SUCCESS"}')
        assert has_cost(1 + 2)
        await socket.say(frame(TEXT, junk), frame(PING, b"x"))
        assert await socket.hear() == (PONG, b"x")
        assert has_cost(1 + parts)


async def test_the_bytes_of_a_long_text_are_counted_once(mediator: Mediator) -> None:
    """Each count writes the text, of up to a MiB, as UTF-8."""
    await mediator.register(ALICE)
    text, counts = "\N{EURO SIGN}" * 20_000, 0

    def note(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal counts
        is_count = event == "c_call" and called.__name__ == "encode"
        counts += is_count and called.__self__ == text

    async with raw_socket(mediator.ports[0], "/ws") as socket:
        await authenticate(mediator, socket)
        frames_sent = frame(TEXT, text.encode()), frame(PING, b"x")
        sys.setprofile(note)
        try:
            await socket.say(*frames_sent)
            assert await socket.hear() == (PONG, b"x")
        finally:
            sys.setprofile(None)
    assert counts == 1


def test_what_is_longer_than_any_message_of_a_client_is_not_parsed() -> None:
    pong = '{"type":"PONG","timestamp":1%s}'
    assert [frames.is_pong(pong % (" " * spaces)) for spaces in (0, 200, 300)] == [
        True,
        True,
        False,
    ]
    message = {"did": "did:x:" + "\u0001" * 90, "signing_key_id": "a", "timestamp": 1}
    message |= {"type": "AUTHENTICATE", "nonce": str(UUID(int=1)), "signature": "s" * 88}
    text = orjson.dumps(message).decode()
    for padding, is_read in (("", True), (" " * 5_000, False)):
        read = frames.read_authenticate(text + padding, did_bytes_max=100)
        assert isinstance(read, frames.Authenticate) is is_read


def test_the_did_of_a_socket_is_bounded_in_bytes() -> None:
    message = {"did": "did:x:" + "\N{EURO SIGN}" * 90, "signing_key_id": "a", "timestamp": 1}
    message |= {"type": "AUTHENTICATE", "nonce": str(UUID(int=1)), "signature": "s" * 88}
    text = orjson.dumps(message).decode()
    for bytes_max, is_read in ((300, True), (100, False)):
        read = frames.read_authenticate(text, did_bytes_max=bytes_max)
        assert isinstance(read, frames.Authenticate) is is_read


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
    # Long enough to count until it is handled.
    message = orjson.dumps(mediator.authenticate(ALICE)) + b" " * 8_000
    await socket.say(frame(TEXT, message))
    assert await socket.hear() == (TEXT, b'{"type":"AUTH_SUCCESS"}')


async def test_a_peer_that_goes_away_before_it_is_answered_leaves_no_line_in_the_log(
    mediator: Mediator, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp writes "100 Continue" itself, and logged that it could not with a traceback."""
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write_eof()
        await writer.drain()
        assert (await mediator.get("/")).status == 200
        writer.close()
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []
