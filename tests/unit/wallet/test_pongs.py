"""The pongs of a socket: what they acknowledge, and how many wait to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType

from http_edge.clients.didcomm import Address, Socket, Wallet
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.unit.wallet.scripted_mediator import SERVICE, problem

RAW = Address(KeyPair.from_seed(b"r" * 32).public, "").seal({"@type": "x", "@id": "1"})


class Pinging:
    """A WebSocket that brings frames at once, and takes pongs while it ``reads``."""

    close_code = None

    def __init__(self, *frames: bytes) -> None:
        """A frame of one digit is a ping."""
        self.frames = frames
        self.taken = 0
        self.pongs: list[bytes] = []
        self.reads = asyncio.Event()

    def socket(self, wallet: Wallet) -> Socket:
        return Socket(wallet.connection, cast("aiohttp.ClientWebSocketResponse", self))

    async def pong(self, data: bytes) -> None:
        await self.reads.wait()
        self.pongs.append(data)

    async def __aiter__(self) -> AsyncIterator[object]:
        for frame in self.frames:
            self.taken += 1
            kind = WSMsgType.PING if frame.isdigit() else WSMsgType.BINARY
            yield SimpleNamespace(type=kind, data=frame)


async def a_while() -> None:
    """All that can run without more from outside has run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_pongs_that_a_mediator_does_not_read_hold_its_frames_back(wallet: Wallet) -> None:
    websocket = Pinging(*b"0 1 2 3 4 5 6 7 8 9".split())
    listening = asyncio.create_task(websocket.socket(wallet).listen())
    await a_while()
    assert websocket.taken == 1
    websocket.reads.set()
    await listening
    assert websocket.pongs == [*websocket.frames]


async def test_a_message_that_came_after_a_ping_is_acknowledged_only_once_it_is_received(
    wallet: Wallet,
) -> None:
    websocket = Pinging(RAW, b"1", RAW, b"2")
    socket = websocket.socket(wallet)
    websocket.reads.set()
    await socket.listen()
    await a_while()
    assert websocket.pongs == [b"alive"] * 2
    for ping in (b"1", b"2"):
        assert await socket.receive() == RAW
        await a_while()
        assert websocket.pongs[-1] == ping
    assert len(websocket.pongs) == 4


async def test_a_message_that_is_taken_out_of_turn_acknowledges_none_before_it(
    wallet: Wallet,
) -> None:
    report = {**problem("e.x", "no"), "~thread": {"pthid": "1"}}
    refusal = pack(orjson.dumps(report), [wallet.connection.key.public], SERVICE)
    websocket = Pinging(RAW, b"1", refusal, b"2")
    socket = websocket.socket(wallet)
    websocket.reads.set()
    await socket.listen()
    assert socket.came_about("1") == report
    await a_while()
    assert websocket.pongs == [b"alive"] * 2
    assert await socket.receive() == RAW
    await a_while()
    assert websocket.pongs[2:] == [b"2"]


@pytest.mark.parametrize(
    ("member", "pongs"),
    [
        ("comment", [b"1", b"2"]),
        ("messages~attach", [b"alive"] * 2),
        ("messages", [b"alive"] * 2),
    ],
    ids=["nothing", "batch of pickup 1.0", "batch of queue 1.0"],
)
async def test_only_a_message_that_brings_others_from_the_queue_keeps_its_pong_back(
    wallet: Wallet, member: str, pongs: list[bytes]
) -> None:
    """Else what a program fetches over the socket, and never receives from it, would come again."""
    said = {**problem("e.x", "no"), "~thread": {"pthid": "1"}, member: []}
    frame = pack(orjson.dumps(said), [wallet.connection.key.public], SERVICE)
    websocket = Pinging(frame, b"1", frame, b"2")
    websocket.reads.set()
    await websocket.socket(wallet).listen()
    await a_while()
    assert websocket.pongs == pongs


async def test_pongs_that_fall_due_while_the_mediator_does_not_read_are_sent_as_one(
    wallet: Wallet,
) -> None:
    websocket = Pinging(RAW, b"1", RAW, b"2", RAW, b"3")
    socket = websocket.socket(wallet)
    websocket.reads.set()
    await socket.listen()
    websocket.reads.clear()
    websocket.pongs.clear()
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        assert await socket.receive() == RAW
        await a_while()
    assert len(asyncio.all_tasks()) == tasks + 1
    websocket.reads.set()
    await a_while()
    assert websocket.pongs == [b"1", b"3"]
