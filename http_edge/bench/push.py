"""Live push: from the moment a message is due until its recipient's WebSocket has the frame.

One process sends and listens, so one monotonic clock times both ends. Messages are due at fixed
moments whatever the server does; a server that stalls is charged for all that were due meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Final

from http_edge.bench.connection import Connection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.population import PAYLOAD_BYTES, Pair, message
from http_edge.bench.subject import Subject
from http_edge.client import MediatorClient, MessagesArrived, NoticeSocket

_CONNECTIONS: Final = 32
_LAST_S_MAX: Final = 10.0
_OK: Final = 200
_NS_PER_S: Final = 1_000_000_000


async def push_latency(
    subject: Subject,
    people: Sequence[Pair],
    *,
    count: int,
    per_s: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Send ``count`` messages, ``per_s`` each second, to recipients that listen.

    Raises:
        ClientError: a recipient's socket could not be opened.
        OSError: the server is not there or went away.
    """
    run = _Run(count, per_s, progress)
    commands = [
        message(pair, str(number).ljust(PAYLOAD_BYTES, "."))
        for number, pair in enumerate(islice(cycle(people), count))
    ]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(MediatorClient(subject.target.url))
        sockets = [
            await stack.enter_async_context(client.as_(pair.recipient).socket()) for pair in people
        ]
        connections: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(_CONNECTIONS):
            connection = await Connection.open(subject.target)
            stack.callback(connection.close)
            connections.put_nowait(connection)
        listeners = [asyncio.create_task(run.listen(socket)) for socket in sockets]
        with subject.costs() as spent:
            started = time.perf_counter_ns()
            await run.send(commands, connections)
            await run.wait_for_the_last()
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    return measured(
        f"live push at {per_s}/s, {len(people)} sockets",
        run.latencies,
        seconds,
        refused={"refused": run.refused} if run.refused else {},
        figures={"missing": count - run.refused - len(run.latencies)},
        **spent.per(count, seconds),
    )


class _Run:
    """When each message was due, and how long each took."""

    def __init__(self, count: int, per_s: int, progress: Callable[[int], None]) -> None:
        self.latencies = array("Q")
        self.refused = 0
        self._due_ns = array("Q", [0]) * count
        self._interval_ns = _NS_PER_S // per_s
        self._progress = progress
        self._all_arrived = asyncio.Event()

    async def send(self, commands: Sequence[bytes], connections: asyncio.Queue[Connection]) -> None:
        started, posted = time.perf_counter_ns(), []
        for number, command in enumerate(commands):
            due = self._due_ns[number] = started + number * self._interval_ns
            await asyncio.sleep(max(0, due - time.perf_counter_ns()) / _NS_PER_S)
            connection = await connections.get()
            posted.append(asyncio.create_task(self._post(connection, command, connections)))
            self._progress(number)
        await asyncio.gather(*posted)

    async def _post(
        self, connection: Connection, command: bytes, connections: asyncio.Queue[Connection]
    ) -> None:
        try:
            status, _ = await connection.post(command)
            self.refused += status != _OK
        finally:
            connections.put_nowait(connection)  # a broken one too, or the sender would wait

    async def listen(self, socket: NoticeSocket) -> None:
        async for notice in socket:
            now = time.perf_counter_ns()
            if isinstance(notice, MessagesArrived):
                for event in notice.events:
                    number = int(event.payload.rstrip("."))
                    self.latencies.append(now - self._due_ns[number])
                if len(self.latencies) == len(self._due_ns):
                    self._all_arrived.set()

    async def wait_for_the_last(self) -> None:
        """Return when all have arrived, or no longer than messages can be on their way."""
        try:
            async with asyncio.timeout(_LAST_S_MAX if not self.refused else 1.0):
                await self._all_arrived.wait()
        except TimeoutError:
            return
