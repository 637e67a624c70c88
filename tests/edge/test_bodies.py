"""Bodies of requests: bounded before they come, while they come, and while they are read."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from http_edge.crypto import strict_json
from http_edge.listener.body_reads import LARGE_BYTES
from tests.edge.identities import Identity
from tests.edge.mediator import Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}


@pytest.mark.parametrize(
    "settings", [{"limits": {"commands_in_flight_max": 1, "bodies_bytes_max": 1_048_576}}]
)
async def test_a_client_that_announces_or_drips_a_body_keeps_no_other_out(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    writers = []
    for size in (100, 1_048_576):
        _, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % size)
        await writer.drain()
        writers.append(writer)
    for _ in range(5):
        assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200
    for writer in writers:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("settings", [{"limits": {"bodies_per_address_max": 1}}])
async def test_an_address_sends_a_bounded_number_of_bodies_at_once(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    slow = [await asyncio.open_connection("127.0.0.1", mediator.ports[0]) for _ in range(2)]
    for _, writer in slow:
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    refused = [asyncio.create_task(reader.readline()) for reader, _ in slow]
    done, _ = await asyncio.wait(refused, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().split()[1] for task in done] == [b"429"]
    for _, writer in slow:
        writer.close()
        await writer.wait_closed()
    await asyncio.wait(refused, timeout=10)
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200


async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(
    mediator: Mediator,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 268435356\r\n\r\n{")
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()
    await writer.wait_closed()


async def test_large_bodies_are_read_beside_the_event_loop_one_at_a_time(
    mediator: Mediator, alice: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    parse = strict_json.parse_and_look

    def parsed(body: bytes) -> tuple[object, bool]:
        seen.append(threading.current_thread().name)
        return parse(body)

    monkeypatch.setattr(strict_json, "parse_and_look", parsed)
    command = mediator.command(alice, QUERY)
    small = {**command, "signature": "A" * 86}
    large = {**small, "payload": {**QUERY, "x": [1] * LARGE_BYTES}}
    answers = await asyncio.gather(*[mediator.post(large) for _ in range(4)], mediator.post(small))
    assert {answer.status for answer in answers} <= {401, 429}
    assert Counter(seen) == {"large-bodies_0": 4, threading.main_thread().name: 1}
