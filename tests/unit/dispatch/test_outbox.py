"""The outbox: what is cheap neither travels with what is costly nor waits for it."""

from __future__ import annotations

import asyncio

from actors.core.replies import Done
from actors.core.submissions import Submission
from http_edge.dispatch.outbox import Outbox
from http_edge.settings.settings import Limits
from http_edge.telemetry.edge_measures import EdgeMeasures
from tests.unit.dispatch.recording_host import RecordingHost

LIMITS = Limits(outbox_items_max=100, batch_items_max=10, batch_bytes_max=1_000_000)


def held() -> RecordingHost:
    host = RecordingHost()
    host.hold()
    return host


def item(source: bytes, cost: float = 1.0) -> Submission:
    return Submission("shard-0", "did:x:me", b"", source=source, cost=cost)


def outbox(port: RecordingHost) -> Outbox:
    return Outbox("host-0", port, LIMITS, EdgeMeasures(), on_result=lambda _name, _result: None)


async def sent(box: Outbox, *items: Submission) -> list[asyncio.Task[object]]:
    tasks: list[asyncio.Task[object]] = [
        asyncio.get_running_loop().create_task(box.submit(each, 0)) for each in items
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_a_cheap_command_does_not_wait_for_a_costly_one() -> None:
    port = held()
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
    port = held()
    box = outbox(port)
    flood = await sent(box, *[item(b"F", cost=500) for _ in range(8)])
    (late,) = await sent(box, item(b"L", cost=500))
    assert [len(call[0]) for call in port.held] == [1] * 4
    for _ in range(4):
        port.answer(b"F")
        await sent(box)
    assert b"L" in [call[0][0].source for call in port.held]
    port.answer(b"L")
    assert await late == Done()
    assert len(box) == 0
    for _ in range(4):
        port.answer(b"F")
        await sent(box)
    await asyncio.gather(*flood)
