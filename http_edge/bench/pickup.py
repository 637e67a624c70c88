"""Emptying queues by Pickup 2.0: delivery-request, messages-received, until nothing waits.

The wallet's share is part of it: it opens each delivery, learns the ids, packs the acknowledgement
and opens the status that answers it. What it would do with the messages is not.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, Protocol, TypeAlias

import aiohttp

from http_edge.bench.connection import Connection as HttpConnection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.mediator import Mailbox, Mediator
from http_edge.didcomm.messages import NEW_PREFIX, Json
from http_edge.wallet import UnexpectedAnswer
from http_edge.wallet.conversation import prepared

HTTP_CONNECTIONS: Final = 16
Way: TypeAlias = Literal["HTTP", "WebSocket"]
_PICKUP: Final = NEW_PREFIX + "messagepickup/2.0/"
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_OK: Final = 200
_NS_PER_S: Final = 1_000_000_000
_MICRO: Final = 1_000_000


class _Line(Protocol):
    """A way to ask one question at a time."""

    async def ask(self, body: bytes) -> bytes:
        """Send an envelope: the one that comes back. Raises: RuntimeError, OSError."""


async def drain(
    mediator: Mediator,
    mailboxes: Sequence[Mailbox],
    *,
    limit: int,
    way: Way,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Take everything that waits, over 16 connections or one socket.

    The latencies are those of one delivery with its acknowledgement. ``count`` is the number of
    deliveries; messages stand among the figures.

    Raises:
        RuntimeError: the mediator refused something, or delivered a message twice.
        WalletError: an answer is not the mediator's.
    """
    latencies, taken = array("Q"), set[str]()
    shared = iter([(mailbox, _delivery_request(mailbox, limit)) for mailbox in mailboxes])

    async def empty(line: _Line) -> None:
        for mailbox, request in shared:
            left = 1
            while left:
                began = time.perf_counter_ns()
                ids, left = await _fetch(line, mailbox, request)
                if ids:
                    latencies.append(time.perf_counter_ns() - began)
                if not taken.isdisjoint(ids):
                    raise RuntimeError("a message was delivered after its acknowledgement")
                taken.update(ids)
                progress(len(taken))

    async with AsyncExitStack() as stack:
        lines = [
            await stack.enter_async_context(_line(mediator, mailboxes[0], way))
            for _ in range(HTTP_CONNECTIONS if way == "HTTP" else 1)
        ]
        with mediator.costs() as spent:
            started, cpu_started_s = time.perf_counter_ns(), time.process_time()
            await asyncio.gather(*map(empty, lines))
            cpu_s = time.process_time() - cpu_started_s
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
    return measured(
        f"drain by {limit}, {len(lines)} {way}",
        latencies,
        seconds,
        generator_cpu_us=cpu_s / max(1, len(taken)) * _MICRO,
        figures={"messages": len(taken), "messages_per_s": len(taken) / seconds},
        **spent.per(len(taken), seconds),
    )


def _delivery_request(mailbox: Mailbox, limit: int) -> bytes:
    request: Json = {"@type": _PICKUP + "delivery-request", "limit": limit}
    return mailbox.connection.pack(prepared(request, "all"))


async def _fetch(line: _Line, mailbox: Mailbox, request: bytes) -> tuple[list[str], int]:
    """The ids of one delivery, acknowledged, and how many messages are left."""
    delivery = _opened(mailbox, await line.ask(request))
    ids = [str(attached["@id"]) for attached in delivery.get("~attach", ())]
    if not ids:
        return [], 0
    received: Json = {"@type": _PICKUP + "messages-received", "message_id_list": ids}
    body = mailbox.connection.pack(prepared(received, "all"))
    return ids, int(_opened(mailbox, await line.ask(body))["message_count"])


def _opened(mailbox: Mailbox, body: bytes) -> Any:
    heard = mailbox.connection.open(body)
    if isinstance(heard, bytes):
        raise UnexpectedAnswer("an answer for another key")
    return heard


@asynccontextmanager
async def _line(mediator: Mediator, mailbox: Mailbox, way: Way) -> AsyncIterator[_Line]:
    if way == "HTTP":
        connection = await HttpConnection.open(mediator.target)
        try:
            yield _HttpLine(connection)
        finally:
            connection.close()
        return
    url = mailbox.connection.ws_url
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=_ANSWER_BYTES_MAX) as websocket,
    ):
        yield _SocketLine(websocket)


class _HttpLine:
    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def ask(self, body: bytes) -> bytes:
        status, answer = await self._connection.post(body)
        if status != _OK:
            raise RuntimeError(f"pickup refused: {status} {answer[:80]!r}")
        return answer


class _SocketLine:
    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._websocket = websocket

    async def ask(self, body: bytes) -> bytes:
        await self._websocket.send_bytes(body)
        frame = await self._websocket.receive()
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise RuntimeError(f"the socket ended: {frame.type.name} {frame.data!r}")
        answer: bytes = frame.data
        return answer
