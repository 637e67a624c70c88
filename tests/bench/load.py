"""A closed loop in a process of its own: ``python -m tests.bench.load JOB``.

The process reads a job (msgpack) from a file and writes the ``LoadResult`` to stdout as msgpack;
how many messages were answered goes to stderr now and then, one number in a line.

The connections are no HTTP client's: load and server share two cores here, and aiohttp's client
spends 142 to 201 µs of CPU on a request where ``Connection`` spends 23 to 39. Measured in turns
with 64 connections, the same server accepted 908 to 1,710 messages a second of aiohttp's and 2,375
to 2,903 of these: with aiohttp's the load would be what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from http_edge.clients.load.agents import Agents
from http_edge.clients.load.closed_loop import (
    LoadResult,
    Post,
    closed_loop,
    no_progress,
    refusal_of,
)

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STATUS: Final = slice(9, 12)


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time; it reads what a mediator writes.

    A status line, headers with a Content-Length, and a body.
    """

    def __init__(self, authority: str, path: str, media_type: str) -> None:
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {authority}\r\n"
            f"Content-Type: {media_type}\r\nContent-Length: "
        ).encode()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def post(self, body: bytes) -> str | None:
        """See ``load.agents.Post``. Raises: OSError, TypeError: no such answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        return refusal_of(*await self._answer)

    @property
    def is_open(self) -> bool:
        """Can a request be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport: uvloop's have the interface of asyncio.Transport, not its type."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take a part of the answer."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._answer is None:
            return
        length = _LENGTH.search(head)
        if length is None:
            self.connection_lost(ConnectionError("an answer without Content-Length"))
        elif len(body) >= int(length[1]):
            self._received = b""
            self._answer.set_result((int(head[_STATUS]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server has closed"))


async def connect(endpoint: str, media_type: str, source: str | None = None) -> Connection:
    """A connection to an endpoint, from the address ``source`` of this machine if it is given.

    Raises:
        OSError: no server listens there.
    """
    url = urlsplit(endpoint)
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(url.netloc, url.path or "/", media_type),
        url.hostname or "",
        url.port or 0,
        local_addr=None if source is None else (source, 0),
    )
    return connection


@asynccontextmanager
async def connected(
    endpoint: str, media_type: str, connections: int, *others: str
) -> AsyncIterator[Sequence[Post]]:
    """So many connections to an endpoint, or to this one and others in turn.

    Raises:
        OSError: no server listens there.
    """
    opened: list[Connection] = []
    try:
        for where in islice(cycle((endpoint, *others)), connections):
            opened.append(await connect(where, media_type))  # noqa: PERF401 - all are closed
        yield [connection.post for connection in opened]
    finally:
        for connection in opened:
            connection.close()


class Run(msgspec.Struct, frozen=True):
    """A closed loop: on how many connections, how many messages, for how long at most."""

    connections: int
    count: int
    seconds_max: float


class Job(msgspec.Struct, frozen=True):
    """A run, where to, and its bodies, which take turns until ``count`` are posted.

    Its connections take turns too, if there are several endpoints.

    ``numbered``: the bodies are JSON objects, and each gets one more member of its own, so that no
    two are the same; signing or packing so many would cost more than posting them.
    """

    endpoints: Sequence[str]
    media_type: str
    run: Run
    bodies: Sequence[bytes]
    numbered: bool


def run_apart(
    agents: Agents,
    bodies: Sequence[bytes],
    run: Run,
    *,
    numbered: bool = False,
    endpoints: Sequence[str] = (),
    progress: Callable[[int], None] = no_progress,
) -> LoadResult:
    """Post bodies to the endpoint of agents, or to others, from a process of its own; see ``Job``.

    Raises:
        RuntimeError: the process failed; its last words are the message.
    """
    job = Job(endpoints or [agents.endpoint], agents.media_type, run, bodies, numbered)
    with tempfile.NamedTemporaryFile(suffix=".job") as file, tempfile.TemporaryFile() as output:
        file.write(msgspec.msgpack.encode(job))
        file.flush()
        command = [sys.executable, "-m", "tests.bench.load", file.name]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process:
            last = ""
            for line in process.stderr or ():
                last = line.strip()
                if last.isdecimal():
                    progress(int(last))
        if process.returncode:
            raise RuntimeError(f"the load failed: {last}")
        output.seek(0)
        return msgspec.msgpack.decode(output.read(), type=LoadResult)


async def _carry_out(job: Job) -> LoadResult:
    bodies = islice(cycle(job.bodies), job.run.count)
    first, *others = job.endpoints
    async with connected(first, job.media_type, job.run.connections, *others) as posts:
        return await closed_loop(
            posts,
            _numbered(bodies) if job.numbered else bodies,
            seconds_max=job.run.seconds_max,
            progress=lambda answered: print(answered, file=sys.stderr),  # noqa: T201 - the channel
        )


def _numbered(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Each body with a member that no other body has, of this process or of another."""
    mark = b',"n":"%d.' % os.getpid()
    for number, body in enumerate(bodies):
        yield b'%b%b%d"}' % (body[:-1], mark, number)


def main(path: str) -> None:
    """Carry out the job in a file."""
    job = msgspec.msgpack.decode(Path(path).read_bytes(), type=Job)
    # The bodies are many and live as long as the process: no collection while the clock runs.
    gc.freeze()
    gc.disable()
    sys.stdout.buffer.write(msgspec.msgpack.encode(uvloop.run(_carry_out(job))))


if __name__ == "__main__":
    main(sys.argv[1])
