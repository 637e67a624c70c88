"""Emptying queues: QUERY_PENDING_EVENTS by pages of 100, ACKNOWLEDGE_PENDING_EVENTS, again."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import orjson

from http_edge.bench.connection import Connection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.population import direct
from http_edge.bench.subject import Subject
from http_edge.client import Identity
from http_edge.dids import DidDocument

PAGE_SIZE: Final = 100
_OK: Final = 200
_NS_PER_S: Final = 1_000_000_000


async def drain(
    subject: Subject,
    recipients: Sequence[Identity],
    *,
    connections: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Take everything that waits; the latencies are those of one page with its acknowledgement.

    Raises:
        RuntimeError: the mediator refused a query or an acknowledgement.
    """
    opened = [await Connection.open(subject.target) for _ in range(connections)]
    shared: Iterator[Identity] = iter(recipients)
    latencies, taken = array("Q"), 0

    async def empty(connection: Connection) -> None:
        nonlocal taken
        for recipient in shared:
            while True:
                started = time.perf_counter_ns()
                ids = await _page(connection, recipient, subject.mediator)
                if not ids:
                    break
                await _acknowledge(connection, recipient, subject.mediator, ids)
                latencies.append(time.perf_counter_ns() - started)
                taken += len(ids)
                progress(taken)

    try:
        with subject.costs() as spent:
            started = time.perf_counter_ns()
            await asyncio.gather(*map(empty, opened))
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
    finally:
        for connection in opened:
            connection.close()
    return measured(
        f"drain, {connections} connections",
        latencies,
        seconds,
        figures={"messages": taken, "messages_per_s": taken / seconds},
        **spent.per(taken, seconds),
    )


async def _page(connection: Connection, recipient: Identity, mediator: DidDocument) -> list[str]:
    query = {
        "type": "QUERY_PENDING_EVENTS",
        "pagination": {"page": 0, "page_size": PAGE_SIZE},
    }
    status, body = await connection.post(direct(recipient, mediator, query))
    if status != _OK:
        raise RuntimeError(f"query refused: {body[:80]!r}")
    return [event["id"] for event in orjson.loads(body)["payload"]["pending_events"]]


async def _acknowledge(
    connection: Connection, recipient: Identity, mediator: DidDocument, ids: list[str]
) -> None:
    command = {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": ids}
    status, body = await connection.post(direct(recipient, mediator, command))
    if status != _OK:
        raise RuntimeError(f"acknowledgement refused: {body[:80]!r}")
