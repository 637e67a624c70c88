"""Attacks below the protocols: connections, heads, bodies and answers that do not end."""

from __future__ import annotations

import asyncio
import gzip
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from typing import Final
from urllib.parse import quote

from yarl import URL

from tests.attacks.attack import Attack
from tests.attacks.target import Target

_MIB: Final = 1_048_576
_PUBLIC_EVENTS: Final = 100
_PUBLIC_EVENT_BYTES: Final = 63_000
_READERS: Final = 600
_IDLE: Final = 2_300
_FEW_DESCRIPTORS: Final = 2_048
_BODIES: Final = 2_000
_BODY_ADDRESSES: Final = 8
_DRIPPING: Final = 1_000
_PIPELINED: Final = 200


class _Held:
    """Connections that an attack keeps open, and makes again when they are closed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._open: dict[int, socket.socket] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: socket.socket) -> None:
        self._open[connection.fileno()] = connection
        self._poll.register(connection, select.POLLRDHUP)  # a reset is reported anyway

    def drop_closed(self) -> int:
        """Let go of those that the other side has closed or reset: how many."""
        closed = self._poll.poll(0)
        for descriptor, _ in closed:
            self._poll.unregister(descriptor)
            self._open.pop(descriptor).close()
        return len(closed)


async def _hold(target: Target, number: int, per_s: float, request: Callable[[], bytes]) -> None:
    """Keep so many connections that have sent a request and read nothing."""
    held = _Held()

    async def once() -> None:
        target.answers["cut off"] += held.drop_closed()
        if len(held) < number:
            text = request()
            held.add(await target.deaf(text))
            target.sent_bytes += len(text)

    await target.repeat(per_s, once)
    target.answers["open at the end"] += len(held)


async def unread_pages(target: Target) -> AsyncIterator[None]:
    """Ask for pages of 6 MB and read none of them."""
    publisher = await target.registered("publisher")
    for _ in range(_PUBLIC_EVENTS):
        await publisher.publish("news", "x" * _PUBLIC_EVENT_BYTES)
    path = f"/public/{quote(publisher.identity.did, safe='')}?page_size={_PUBLIC_EVENTS}"
    request = _get(target, path)
    yield
    await _hold(target, _READERS, 100, lambda: request)


async def idle_connections(target: Target) -> AsyncIterator[None]:
    """Connect and say nothing."""
    yield
    await _hold(target, _IDLE, 1_000, lambda: b"")


async def arriving_bodies(target: Target) -> AsyncIterator[None]:
    """Send bodies of a megabyte, all but the last byte."""
    body = b" " * (_MIB - 1)
    head = b"POST / HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n" % (
        target.authority.encode()
    )
    request = head + b"Content-Length: %d\r\n\r\n" % _MIB + body
    yield
    await _hold(target, _BODIES, 250, lambda: request)


async def dripping_headers(target: Target) -> AsyncIterator[None]:
    """Begin a request, and go on with a header field every second, for ever."""
    yield
    held: list[asyncio.StreamWriter] = []

    async def once() -> None:
        if len(held) < _DRIPPING:
            _, writer = await target.stream()
            writer.write(b"POST / HTTP/1.1\r\nHost: %b\r\n" % target.authority.encode())
            held.append(writer)

    async def drip() -> None:
        for number in count():
            await asyncio.sleep(1)
            for writer in [one for one in held if not one.is_closing()]:
                writer.write(b"X-%d: y\r\n" % number)
            target.answers["cut off"] = sum(one.is_closing() for one in held)

    async with asyncio.TaskGroup() as both:
        dripping = both.create_task(drip())
        await target.repeat(500, once)
        dripping.cancel()


async def compressed_bodies(target: Target) -> AsyncIterator[None]:
    """Send bodies that unfold to a thousand times their size, under each way of saying so."""
    session = await target.session()
    bomb, numbers = gzip.compress(b" " * 64 * _MIB), count()
    encodings = ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity")
    yield

    async def once() -> None:
        path = ("/", "/didcomm")[next(numbers) % 2]
        encoding = encodings[next(numbers) // 2 % len(encodings)]
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        target.sent_bytes += len(bomb)
        async with session.post(target.url + path, data=bomb, headers=headers) as answer:
            await answer.read()
            target.answers[str(answer.status)] += 1

    await target.repeat(100, once)


async def pipelining(target: Target) -> AsyncIterator[None]:
    """Send hundreds of requests in one piece and read no answer before the next piece."""
    piece = _get(target, "/health") * _PIPELINED
    yield

    async def once() -> None:
        reader, writer = await target.stream()
        try:
            writer.write(piece)
            target.sent_bytes += len(piece)
            await writer.drain()
            answered = 0
            while answered < _PIPELINED and (line := await reader.readline()):
                _, is_status, status = line.partition(b"HTTP/1.1 ")  # bodies end without a line
                if is_status:
                    answered += 1
                    target.answers[status[:3].decode()] += 1
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    await target.repeat(20, once, at_once=8)


async def chunked_bodies(target: Target) -> AsyncIterator[None]:
    """Send bodies in chunks of one byte, without a length and without an end."""
    piece = b"1\r\n \r\n" * 4_096
    head = b"POST / HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (
        target.authority.encode()
    )
    yield

    async def once() -> None:
        reader, writer = await target.stream()
        try:
            writer.write(head)
            for _ in range(64):
                writer.write(piece)
                target.sent_bytes += len(piece)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            target.answers[(await reader.readline())[9:12].decode() or "cut off"] += 1
        finally:
            writer.close()

    await target.repeat(20, once, at_once=8)


async def malformed_heads(target: Target) -> AsyncIterator[None]:
    """Heads that readers disagree about, each over a connection of its own."""
    host = b"Host: %b\r\n" % target.authority.encode()
    post = b"POST / HTTP/1.1\r\n" + host
    heads = (
        post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        post + b"Content-Length: -1\r\n\r\n",
        post + b"Content-Length: 99999999999999999999\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        post + b"Transfer-Encoding: identity, chunked, chunked\r\n\r\n",
        post + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        post + b"X: y\r\n" * 5_000 + b"\r\n",
        post + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        b"GET / HTTP/9.9\r\n" + host + b"\r\n",
        b"GET http://[::1/ HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /public/%ff%00?page=-1&page_size=x HTTP/1.1\r\n" + host + b"\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n" + host + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )
    numbers = count()
    yield

    async def once() -> None:
        reader, writer = await target.stream()
        try:
            writer.write(heads[next(numbers) % len(heads)])
            async with asyncio.timeout(1):
                line = await reader.readline()
            target.answers[line[9:12].decode(errors="replace") or "cut off"] += 1
        finally:
            writer.close()

    await target.repeat(200, once)


async def public_tags(target: Target) -> AsyncIterator[None]:
    """Read public events by many tags, far behind, as often as one address may."""
    publisher, session = await target.registered("publisher"), await target.session()
    for number in range(_PUBLIC_EVENTS * 10):
        tags = [f"tag-{(number + step) % 97}" for step in range(16)]
        await publisher.publish("news", "x", tags=tags)
    where = "&".join(f"tags=tag-{number}" for number in range(16))
    path = f"/public/{quote(publisher.identity.did, safe='')}?{where}&page=80&page_size=10"
    url = URL(target.url + path, encoded=True)
    yield

    async def once() -> None:
        async with session.get(url) as answer:
            await answer.read()
            target.answers[str(answer.status)] += 1

    await target.repeat(100, once)


def _get(target: Target, path: str) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (path.encode(), target.authority.encode())


ATTACKS: Final = (
    Attack(
        name="unread-pages",
        about="600 anonymous requests for a page of 6 MB of public events, none of it read",
        rate="100/s up to 600",
        program=unread_pages,
    ),
    Attack(
        name="idle-connections",
        about="2,300 connections that say nothing; the mediator may open 2,048 files",
        rate="2,300",
        program=idle_connections,
        descriptors=_FEW_DESCRIPTORS,
    ),
    Attack(
        name="arriving-bodies",
        about="2,000 bodies of 1 MiB that lack their last byte",
        rate="250/s up to 2,000 from 8 addresses",
        program=arriving_bodies,
        addresses=_BODY_ADDRESSES,
    ),
    Attack(
        name="dripping-headers",
        about="1,000 requests whose head gets one more field each second",
        rate="1,000",
        program=dripping_headers,
    ),
    Attack(
        name="compressed-bodies",
        about="bodies of 64 KiB that unfold to 64 MiB, under six names of an encoding",
        rate="100/s",
        program=compressed_bodies,
    ),
    Attack(
        name="pipelining",
        about="200 requests in one piece",
        rate="4,000/s",
        program=pipelining,
    ),
    Attack(
        name="malformed-heads",
        about="heads that readers disagree about, of sixteen kinds",
        rate="200/s",
        program=malformed_heads,
    ),
    Attack(
        name="public-tags",
        about="anonymous reads of public events by 16 tags",
        rate="100/s",
        program=public_tags,
        long_ago=True,
    ),
    Attack(
        name="one-byte-chunks",
        about="bodies of 256 KiB in chunks of one byte",
        rate="20/s",
        program=chunked_bodies,
    ),
)
