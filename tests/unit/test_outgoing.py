"""Frames leave in order, count until they are written, and wait for no reader without an end."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator
from typing import Final, cast

import pytest
from aiohttp import WSMsgType, web
from typing_extensions import override

from actors.core.replies import MessageArrived, WaitingMessage
from http_edge.decentrl import frames
from http_edge.listener.connection import Connection
from http_edge.listener.outgoing import Outgoing, all_sent
from http_edge.listener.transfers import Cut, Pace, Transfers

FRAME_BYTES: Final = 64
WAIT_S: Final = 20.0
MIB: Final = 1_048_576


class Reader:
    """The connection of a client, as its socket sees it; its cuts are kept."""

    def __init__(self) -> None:
        self.address = "203.0.113.1"
        self.cuts: list[Cut] = []
        self.leaving = Transfers(
            bytes_max=1_000, bytes_per_address_max=1_000, pace=Pace(1, 1, seconds_max=1)
        )

    def handled(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)

    def cut(self, cause: Cut) -> None:
        self.cuts.append(cause)


class Socket(web.WebSocketResponse):
    """A WebSocket whose client reads only while ``reads`` is set; keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = asyncio.Event()
        self.reads.set()
        self.written: list[bytes] = []
        self.closes: list[tuple[int, bytes]] = []
        self.is_lost = False

    @property
    @override
    def closed(self) -> bool:
        return self.is_lost or bool(self.closes)

    @override
    async def send_frame(
        self, message: bytes, opcode: WSMsgType, compress: int | None = None
    ) -> None:
        if self.is_lost:
            raise ConnectionResetError
        await self.reads.wait()
        self.written.append(message if opcode is WSMsgType.TEXT else opcode.name.encode())

    @override
    async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
        self.closes.append((code, message))
        return True


class Scene:
    """The writing half of a socket, which ``start`` starts."""

    def __init__(self, bytes_max: int = 1_000) -> None:
        self.reader, self.socket = Reader(), Socket()
        peer = cast("Connection", self.reader)
        self.outgoing = Outgoing(self.socket, peer=peer, bytes_max=bytes_max)

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.outgoing.run())

    @property
    def held_bytes(self) -> int:
        return self.reader.leaving.size_bytes


async def turns() -> None:
    """Let the writer do all that it can do."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_frames_leave_in_order_behind_the_first_and_count_until_they_are_written() -> None:
    scene = Scene()
    scene.outgoing.put(b"a")
    scene.outgoing.ping(b"1")
    scene.outgoing.pong(b"1")
    scene.outgoing.put_first(b"first")
    scene.reader.leaving.cut_slow(now_s=1e9)  # they have no pace while they wait here
    assert scene.held_bytes == len(b"a11first") + 4 * FRAME_BYTES
    running = scene.start()
    await turns()
    assert scene.socket.written == [b"first", b"a", b"PING", b"PONG"]
    assert scene.held_bytes == 0
    scene.outgoing.put(b"b")
    await turns()
    scene.outgoing.put_first(b"c")
    await turns()
    assert scene.socket.written[4:] == [b"b", b"c"]
    assert not scene.reader.leaving._shares
    assert not running.done()


async def test_what_waits_for_the_frames_so_far_waits_until_the_last_is_written() -> None:
    scene = Scene()
    running = scene.start()
    async with asyncio.timeout(WAIT_S):
        await scene.outgoing.written()
    scene.socket.reads.clear()
    scene.outgoing.put(b"a")
    scene.outgoing.put(b"b")
    waiting = asyncio.create_task(scene.outgoing.written())
    await turns()
    assert not waiting.done()
    assert scene.held_bytes == len(b"b") + FRAME_BYTES
    scene.socket.reads.set()
    async with asyncio.timeout(WAIT_S):
        await waiting
    assert scene.socket.written == [b"a", b"b"]
    assert not running.done()


async def test_a_socket_closes_once_behind_its_last_frame() -> None:
    scene = Scene()
    running = scene.start()
    await turns()
    scene.outgoing.put(b"a")
    scene.outgoing.close(4007, b"last", reason="erased")
    assert scene.held_bytes == len(b"alast") + 2 * FRAME_BYTES
    scene.outgoing.close(1001, b"never")
    scene.outgoing.put(b"never")
    await scene.outgoing.finish(running, seconds_max=WAIT_S)
    assert scene.socket.written == [b"a", b"last"]
    assert scene.socket.closes == [(4007, b"erased")]
    assert (scene.reader.cuts, scene.held_bytes) == ([], 0)


async def test_a_socket_without_frames_closes_at_once() -> None:
    scene = Scene()
    running = scene.start()
    await turns()
    scene.outgoing.close(1001)
    async with asyncio.timeout(WAIT_S):
        await running
    assert scene.socket.closes == [(1001, b"")]


async def test_a_reader_that_reads_nothing_more_keeps_no_socket_and_no_bytes() -> None:
    scene = Scene()
    scene.socket.reads.clear()
    running = scene.start()
    scene.outgoing.put(b"a")
    scene.outgoing.put(b"b")
    scene.outgoing.close(1001)
    await scene.outgoing.finish(running, seconds_max=0.01)
    assert running.cancelled()
    assert (scene.reader.cuts, scene.held_bytes) == ([Cut.SLOW], 0)


async def test_the_end_of_a_connection_ends_its_writer_and_is_no_fault() -> None:
    for puts in (0, 1):
        scene = Scene()
        running = scene.start()
        await turns()
        scene.socket.is_lost = True
        for _ in range(puts):
            scene.outgoing.put(b"a")
        await scene.outgoing.finish(running, seconds_max=WAIT_S)
        assert running.done()
        assert running.exception() is None
        assert (scene.reader.cuts, scene.held_bytes) == ([], 0)


def test_what_waits_for_a_reader_is_counted_in_bytes() -> None:
    scene = Scene(bytes_max=200 + 2 * FRAME_BYTES)
    message = WaitingMessage("id", "did:x:friend", ("😀" * 20).encode())
    frame = frames.notice(MessageArrived(message))
    assert frame is not None
    # Every frame counts 64 bytes more than its payload, so that empty ones are not for free.
    scene.outgoing.put(frame)
    scene.outgoing.put(b"x" * (200 - len(frame)))
    assert (scene.reader.cuts, scene.held_bytes) == ([], 200 + 2 * FRAME_BYTES)
    scene.outgoing.ping(b"")
    assert (scene.reader.cuts, scene.held_bytes) == ([Cut.BYTES_PER_SOCKET], 0)


def test_a_frame_larger_than_the_bound_waits_if_none_is_before_it_and_others_up_to_the_bound() -> (
    None
):
    large, bytes_max = b"x" * 300, 200
    scene = Scene(bytes_max)
    scene.outgoing.put(large)
    scene.outgoing.ping(b"1" * (bytes_max - FRAME_BYTES))
    assert (scene.reader.cuts, scene.held_bytes) == ([], len(large) + FRAME_BYTES + bytes_max)
    scene.outgoing.pong(b"")
    assert scene.reader.cuts == [Cut.BYTES_PER_SOCKET]
    behind = Scene(bytes_max)
    behind.outgoing.ping(b"1")
    behind.outgoing.put(large)
    assert behind.reader.cuts == [Cut.BYTES_PER_SOCKET]


@pytest.mark.parametrize("cause", [Cut.BYTES_PER_SOCKET, Cut.BYTES_PER_ADDRESS])
async def test_a_socket_that_is_cut_off_writes_nothing_more_and_holds_nothing(cause: Cut) -> None:
    scene = Scene(bytes_max=100)
    scene.outgoing.put(b"a")
    if cause is Cut.BYTES_PER_SOCKET:
        scene.outgoing.put(b"b")
    else:
        scene.reader.leaving.cut_all(cause)
    assert (scene.reader.cuts, scene.held_bytes) == ([cause], 0)
    scene.outgoing.put(b"c")
    scene.outgoing.close(1001, b"d")
    assert scene.held_bytes == 0
    running = scene.start()
    await turns()
    assert scene.socket.written == []
    assert scene.socket.closes == []
    scene.socket.is_lost = True
    await scene.outgoing.finish(running, seconds_max=WAIT_S)
    assert scene.reader.cuts == [cause]


async def test_what_comes_after_the_end_of_a_socket_takes_no_bytes_of_its_address() -> None:
    scene = Scene()
    await scene.outgoing.finish(asyncio.create_task(asyncio.sleep(0)), seconds_max=WAIT_S)
    scene.outgoing.put(b"late")
    assert (scene.reader.cuts, scene.held_bytes) == ([], 0)


@pytest.fixture
async def line() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A connection that writes, and its other end, which buffers little and reads nothing yet."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        address = listening.getsockname()
        transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        other, _ = listening.accept()
    other.setblocking(False)
    with other:
        yield transport, other
    transport.abort()


async def test_an_answer_is_sent_once_the_other_machine_has_all_of_it(
    line: tuple[asyncio.Transport, socket.socket],
) -> None:
    transport, other = line
    transport.write(b"x")
    assert await all_sent(transport, seconds_max=WAIT_S)
    transport.write(bytes(MIB))
    assert not await all_sent(transport, seconds_max=0)
    for stalled_s_max in (0, 0.01):
        async with asyncio.timeout(WAIT_S):
            assert not await all_sent(transport, seconds_max=math.inf, stalled_s_max=stalled_s_max)
    sent = asyncio.create_task(all_sent(transport, seconds_max=WAIT_S))
    left = 1 + MIB
    while left:
        left -= len(await asyncio.get_running_loop().sock_recv(other, left))
    assert await sent


class _HalfClosed(asyncio.Protocol):
    """The server's end of a connection: it answers also who says that it sends no more."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.has_ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def eof_received(self) -> bool:
        self.has_ended.set()
        return True


async def test_an_answer_to_who_is_gone_is_at_once_known_as_not_sent() -> None:
    """Who closes says what also says who sends no more: the answer shows which it was."""
    loop = asyncio.get_running_loop()
    ours = _HalfClosed()
    server = await loop.create_server(lambda: ours, "127.0.0.1", 0)
    async with server:
        socket.create_connection(server.sockets[0].getsockname()).close()
        await ours.has_ended.wait()
        assert ours.transport is not None
        ours.transport.write(b"x")
        async with asyncio.timeout(WAIT_S):
            assert not await all_sent(ours.transport, seconds_max=math.inf)
        ours.transport.abort()


async def test_an_answer_is_not_sent_if_the_connection_ends_before(
    line: tuple[asyncio.Transport, socket.socket],
) -> None:
    transport, other = line
    transport.write(bytes(MIB))
    sent = asyncio.create_task(all_sent(transport, seconds_max=WAIT_S))
    await asyncio.sleep(0)
    assert not sent.done()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    assert not await sent
    assert not await all_sent(transport, seconds_max=WAIT_S)
    assert not await all_sent(None, seconds_max=WAIT_S)
