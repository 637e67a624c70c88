"""What an edge has sent before it connected again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from actors.host.host_client import HostClient, connect_to_host
from actors.host.host_connection import Answer, Answered, HostServer
from tests.unit.host_connection.test_host_connection import EDGE, WAIT_S, nowhere


@pytest.mark.parametrize("send", [HostClient.submit, HostClient.ask])
async def test_it_is_not_carried_out_after_what_the_edge_has_sent_since(
    send: Callable[[HostClient, bytes], Coroutine[Any, Any, object]],
) -> None:
    """Its sessions have ended with the former connection, and it has sent newer commands.

    A question of a placer may be an order, which its next ones may have overtaken.
    """
    came: list[str] = []
    new, may_go_on = threading.Event(), threading.Event()

    def submit(_edge: str, batch: bytes, _answer: Answer, _incarnation: str) -> None:
        came.append(batch.decode())
        new.set()

    def ask(question: bytes, _answered: Answered) -> None:
        if question:
            came.append(question.decode())
        assert may_go_on.wait(WAIT_S), "holds up the thread that reads the former connection"

    server = HostServer(submit, ask, came.append)
    address = server.listen("127.0.0.1", "host", "", "")
    before = set(threading.enumerate())
    former = await connect_to_host(address, EDGE, nowhere)
    (reader,) = (t for t in set(threading.enumerate()) - before if t.name == "edge")
    calls = [asyncio.create_task(each) for each in (former.ask(b""), send(former, b"former"))]
    await asyncio.sleep(0)
    client = await connect_to_host(address, EDGE, nowhere)
    calls.append(asyncio.create_task(client.submit(b"new")))
    assert await asyncio.to_thread(new.wait, WAIT_S)
    may_go_on.set()
    await asyncio.to_thread(reader.join, WAIT_S)
    assert not reader.is_alive()
    assert came == [EDGE, "new"]
    client.close()
    server.stop()
    await asyncio.gather(*calls, return_exceptions=True)
