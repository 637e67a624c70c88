"""A load of fixed pace, and how long each message of it took to arrive.

One process sends and listens, so one monotonic clock times both ends. Messages are due at fixed
moments whatever the server does; a server that stalls is charged for all that were due meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

from http_edge.bench.connection import Connection
from http_edge.bench.target import Target

Connections: TypeAlias = asyncio.Queue[Connection]
"""The connections that no request is on."""

_CONNECTIONS: Final = 32
_LAST_S_MAX: Final = 10.0
_SUCCESS: Final = range(200, 300)
_NS_PER_S: Final = 1_000_000_000


class PacedLoad:
    """When each message was due, and how long each took.

    Attributes:
        latencies: Nanoseconds of those that arrived.
        refused: How many the server did not take.
    """

    def __init__(self, count: int, per_s: int, progress: Callable[[int], None]) -> None:
        """A load of ``count`` messages, ``per_s`` each second."""
        self.latencies = array("Q")
        self.refused = 0
        self._due_ns = array("Q", [0]) * count
        self._interval_ns = _NS_PER_S // per_s
        self._progress = progress
        self._all_arrived = asyncio.Event()

    @property
    def missing(self) -> int:
        """How many were taken and did not arrive."""
        return len(self._due_ns) - self.refused - len(self.latencies)

    async def send(self, commands: Sequence[bytes], connections: Connections) -> None:
        """Post each command when it is due, and wait for all answers.

        Raises:
            OSError: the server went away.
        """
        started, posted = time.perf_counter_ns(), []
        for number, command in enumerate(commands):
            due = self._due_ns[number] = started + number * self._interval_ns
            await asyncio.sleep(max(0, due - time.perf_counter_ns()) / _NS_PER_S)
            connection = await connections.get()
            posted.append(asyncio.create_task(self._post(connection, command, connections)))
            self._progress(number)
        await asyncio.gather(*posted)

    def arrived(self, number: int, at_ns: int) -> None:
        """Note when a message arrived."""
        self.latencies.append(at_ns - self._due_ns[number])
        if not self.missing:
            self._all_arrived.set()

    async def wait_for_the_last(self) -> None:
        """Return when all have arrived, or no longer than messages can be on their way."""
        try:
            async with asyncio.timeout(_LAST_S_MAX if not self.refused else 1.0):
                await self._all_arrived.wait()
        except TimeoutError:
            return

    async def _post(self, connection: Connection, command: bytes, connections: Connections) -> None:
        try:
            status, _ = await connection.post(command)
            self.refused += status not in _SUCCESS
        finally:
            connections.put_nowait(connection)  # a broken one too, or the sender would wait


@asynccontextmanager
async def connections_to(target: Target) -> AsyncIterator[Connections]:
    """As many connections as a paced load needs; closed when the context is left.

    Raises:
        OSError: the server is not there.
    """
    async with AsyncExitStack() as stack:
        connections: Connections = asyncio.Queue()
        for _ in range(_CONNECTIONS):
            connection = await Connection.open(target)
            stack.callback(connection.close)
            connections.put_nowait(connection)
        yield connections
