"""Live push: from the moment a message is due until its recipient's WebSocket has the frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Final

from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.paced import PacedLoad, connections_to
from http_edge.bench.population import PAYLOAD_BYTES, Pair, message
from http_edge.bench.subject import Subject
from http_edge.client import MediatorClient, MessagesArrived, NoticeSocket

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
    load = PacedLoad(count, per_s, progress)
    commands = [
        message(pair, str(number).ljust(PAYLOAD_BYTES, "."))
        for number, pair in enumerate(islice(cycle(people), count))
    ]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(MediatorClient(subject.target.url))
        sockets = [
            await stack.enter_async_context(client.as_(pair.recipient).socket()) for pair in people
        ]
        connections = await stack.enter_async_context(connections_to(subject.target))
        listeners = [asyncio.create_task(_listen(socket, load)) for socket in sockets]
        with subject.costs() as spent:
            started = time.perf_counter_ns()
            await load.send(commands, connections)
            await load.wait_for_the_last()
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    return measured(
        f"live push at {per_s}/s, {len(people)} sockets",
        load.latencies,
        seconds,
        refused={"refused": load.refused} if load.refused else {},
        figures={"missing": load.missing},
        **spent.per(count, seconds),
    )


async def _listen(socket: NoticeSocket, load: PacedLoad) -> None:
    async for notice in socket:
        now = time.perf_counter_ns()
        if isinstance(notice, MessagesArrived):
            for event in notice.events:
                load.arrived(int(event.payload.rstrip(".")), now)
