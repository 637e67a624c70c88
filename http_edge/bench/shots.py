"""A closed-loop run of prepared commands, and what came of it."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from http_edge.bench.connection import Connection
from http_edge.bench.target import Target

_SUCCESS: Final = range(200, 300)
_REPORTED_EVERY: Final = 256
_SHOWN_BYTES: Final = 80
_NS_PER_S: Final = 1_000_000_000


class Shots(msgspec.Struct, frozen=True):
    """What came of a run: latencies of accepted commands, counts of refused ones.

    ``latencies_ns`` packs unsigned 64-bit numbers; ``cpu_s`` is the generator's own.
    """

    latencies_ns: bytes
    refused: dict[str, int]
    elapsed_s: float
    cpu_s: float

    @property
    def latencies(self) -> array[int]:
        """Nanoseconds of each accepted command."""
        return array("Q", self.latencies_ns)

    @property
    def accepted(self) -> int:
        """How many commands were accepted."""
        return len(self.latencies_ns) // 8


async def fire(
    target: Target,
    commands: Iterable[bytes],
    *,
    connections: int,
    seconds_max: float,
    progress: Callable[[int], None] = lambda _: None,
) -> Shots:
    """Send all commands, one at a time on each connection, until done or out of time.

    ``progress`` hears how many were answered, now and then.

    Raises:
        OSError: the server is not there or went away.
        ValueError: the server's answers are not what ``Connection`` reads.
    """
    opened = [await Connection.open(target) for _ in range(connections)]
    latencies, refused = array("Q"), Counter[str]()
    answered, clock = 0, time.perf_counter_ns
    shared: Iterator[bytes] = iter(commands)
    started, cpu_started = clock(), time.process_time()
    deadline = started + int(seconds_max * _NS_PER_S)

    async def send(connection: Connection) -> None:
        nonlocal answered
        for command in shared:
            sent = clock()
            if sent > deadline:
                return
            status, body = await connection.post(command)
            if status in _SUCCESS:
                latencies.append(clock() - sent)
            else:
                refused[body[:_SHOWN_BYTES].decode(errors="replace")] += 1
            answered += 1
            if not answered % _REPORTED_EVERY:
                progress(answered)

    try:
        await asyncio.gather(*map(send, opened))
        elapsed_s = (clock() - started) / _NS_PER_S
        cpu_s = time.process_time() - cpu_started
    finally:
        for connection in opened:
            connection.close()
    return Shots(latencies.tobytes(), dict(refused), elapsed_s, cpu_s)
