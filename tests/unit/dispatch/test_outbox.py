"""The outbox: what is cheap neither travels with what is costly nor waits for it."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from actors.core.replies import BatchResult, Done
from actors.core.submissions import Submission
from actors.host.port import A, HostQuestion
from actors.host.writer import SUBMISSIONS_DECODER
from http_edge.dispatch.outbox import GatewayLimits, Outbox
from http_edge.telemetry.edge_measures import EdgeMeasures

LIMITS = GatewayLimits(100, 10, 1_000_000, 1, 1.0)


class HeldPort:
    """A host that answers a call when the test says so."""

    def __init__(self) -> None:
        self.calls: deque[tuple[list[Submission], asyncio.Future[bytes]]] = deque()

    async def submit(self, batch: bytes) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.calls.append((SUBMISSIONS_DECODER.decode(batch), answer))
        return await answer

    async def ask(self, question: HostQuestion[A]) -> A:
        raise AssertionError(question)

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        raise AssertionError((sockets, incarnation))

    def close(self) -> None:
        raise AssertionError

    def answer(self, sources: bytes) -> None:
        """Answer the call that carries exactly these."""
        for call in self.calls:
            if b"".join(item.source for item in call[0]) == sources:
                self.calls.remove(call)
                result = BatchResult("", [Done()] * len(call[0]), [])
                return call[1].set_result(msgspec.msgpack.encode(result))
        raise AssertionError([item.source for call in self.calls for item in call[0]])


def item(source: bytes, cost: float = 1.0) -> Submission:
    return Submission("shard-0", "did:x:me", b"", source=source, cost=cost)


def outbox(port: HeldPort) -> Outbox:
    return Outbox("host-0", port, LIMITS, EdgeMeasures(), on_result=lambda _name, _result: None)


async def sent(box: Outbox, *items: Submission) -> list[asyncio.Task[object]]:
    tasks: list[asyncio.Task[object]] = [
        asyncio.get_running_loop().create_task(box.submit(each, 0)) for each in items
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_a_cheap_command_does_not_wait_for_a_costly_one() -> None:
    port = HeldPort()
    box = outbox(port)
    costly, cheap = await sent(box, item(b"C", cost=500), item(b"a"))
    port.answer(b"a")
    assert await cheap == Done()
    (later,) = await sent(box, item(b"b"))
    port.answer(b"b")
    assert await later == Done()
    assert not costly.done()
    port.answer(b"C")
    await box.drained()
    assert costly.done()


async def test_costly_commands_travel_alone_a_few_at_once_and_their_senders_in_turn() -> None:
    port = HeldPort()
    box = outbox(port)
    flood = await sent(box, *[item(b"F", cost=500) for _ in range(8)])
    (late,) = await sent(box, item(b"L", cost=500))
    assert [len(call[0]) for call in port.calls] == [1] * 4
    for _ in range(4):
        port.answer(b"F")
        await sent(box)
    assert b"L" in [call[0][0].source for call in port.calls]
    port.answer(b"L")
    assert await late == Done()
    assert len(box) == 0
    for _ in range(4):
        port.answer(b"F")
        await sent(box)
    await asyncio.gather(*flood)
