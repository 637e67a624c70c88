"""The outbox: what is cheap neither travels with what is costly nor waits for it."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from typing_extensions import override

from actors.core.commands import CloseSession, Listen
from actors.core.cost import COSTLY
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Done, Refused, Reply
from actors.core.submissions import Submission
from actors.host.port import HostCutOff, HostNotReached, HostUnavailable
from actors.host.writer import SUBMISSIONS_DECODER
from http_edge.dispatch.outbox import Outbox
from http_edge.settings.settings import Limits
from http_edge.telemetry import request_id
from http_edge.telemetry.edge_measures import EdgeMeasures
from tests.unit.dispatch.recording_host import RecordingHost

LIMITS = Limits(outbox_items_max=200, batch_items_max=40, batch_bytes_max=1_000_000)
SHARE = 10
"""What one address may have of a call."""


def held() -> RecordingHost:
    host = RecordingHost()
    host.hold()
    return host


def item(source: bytes, cost: float = 1.0) -> Submission:
    return Submission("shard-0", "did:x:me", b"", source=source, cost=cost)


def outbox(port: RecordingHost) -> Outbox:
    return Outbox("host-0", port, LIMITS, EdgeMeasures(), on_result=lambda _name, _result: None)


async def sent(
    box: Outbox, *items: Submission, address: str | None = None
) -> list[asyncio.Task[object]]:
    tasks: list[asyncio.Task[object]] = [
        asyncio.get_running_loop().create_task(box.submit(each, 0, address=address))
        for each in items
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_what_waits_for_a_call_shares_the_next_and_many_have_a_second_beside_it() -> None:
    port = held()
    box = outbox(port)
    first = await sent(box, item(b"a"))
    assert not box.is_idle
    few = await sent(box, *[item(b"%d" % (number % 6)) for number in range(23)])
    assert [len(call[0]) for call in port.held] == [1]
    many = await sent(box, item(b"m"))
    assert [len(call[0]) for call in port.held] == [1, 24]
    draining = asyncio.create_task(box.drained())
    port.answer(b"a")
    await sent(box)
    assert not box.is_idle
    assert not draining.done()
    port.answer_all()
    await draining
    assert all(task.done() for task in first + few + many)
    assert box.is_idle


async def test_whatever_waits_counts_for_the_bound_of_an_outbox() -> None:
    port = held()
    limits = Limits(outbox_items_max=3, batch_items_max=3)
    box = Outbox("host-0", port, limits, EdgeMeasures(), on_result=lambda _name, _result: None)
    called = await sent(box, item(b"a"))
    called += [(await sent(box, item(b"C", cost=500)))[0] for _ in range(4)]
    assert len(box) == 0, "all of it is on its way"
    waiting = await sent(box, item(b"C", cost=500), item(b"b"))
    lingering = asyncio.create_task(box.submit(item(b"l"), 0, can_linger=True))
    (beyond,) = await sent(box, item(b"x"))
    assert beyond.done(), "it does not wait"
    assert await beyond == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    port.answer_all()
    assert await asyncio.gather(*called, *waiting, lingering) == [Done()] * 8


async def test_a_call_is_within_its_bytes_unless_one_command_alone_is_longer() -> None:
    port = held()
    box = outbox(port)
    (first,) = await sent(box, item(b"0"))
    most = LIMITS.batch_bytes_max
    sizes = {b"a": most - 1, b"b": 1, b"c": 1, b"d": most + 1, b"e": 1}
    rest = [asyncio.create_task(box.submit(item(name), size)) for name, size in sizes.items()]
    for expected in (b"0", b"ab", b"c", b"d", b"e"):
        await sent(box)
        port.answer(expected)
    assert await asyncio.gather(first, *rest) == [Done()] * 6


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (HostUnavailable, Refusal.TEMPORARILY_UNAVAILABLE, "does not answer, outcome unknown"),
        (HostNotReached, Refusal.NOT_OWNER, "is not there"),
        (HostCutOff, Refusal.TEMPORARILY_UNAVAILABLE, "lives and cannot be reached from here"),
    ],
)
async def test_an_outage_of_a_host_is_one_warning_and_the_next_another(
    caplog: pytest.LogCaptureFixture, failure: type[HostUnavailable], code: Refusal, message: str
) -> None:
    port = RecordingHost()
    box = outbox(port)
    for _ in range(2):
        port.fails = failure
        for _ in range(2):
            assert await box.submit(item(b"a"), 0) == Refused(code)
        port.fails = None
        assert await box.submit(item(b"a"), 0) == Done()
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert caplog.messages == [f"a host {message}"] * 2


async def test_calls_are_measured_and_what_waits_for_them_whether_they_fail_or_not() -> None:
    port = RecordingHost()
    measures = EdgeMeasures()
    box = Outbox("host-0", port, LIMITS, measures, on_result=lambda _name, _result: None)
    for fails in (None, HostUnavailable):
        port.fails = fails
        await asyncio.gather(*[box.submit(item(b"a"), 0) for _ in range(3)])

    def count(name: str, **labels: str) -> float | None:
        return measures.registry.get_sample_value(name, labels)

    assert count("poste_edge_stage_seconds_count", stage="call") == 2
    assert count("poste_edge_stage_seconds_count", stage="outbox") == 6
    assert (count("poste_call_items_count"), count("poste_call_items_sum")) == (2, 6)


async def test_a_call_carries_commands_of_many_requests_and_is_made_in_the_name_of_none() -> None:
    request_id.begin("a request")
    names: list[str] = []

    def reply(_: Submission) -> Reply:
        names.append(request_id.current())
        return Done()

    box = outbox(RecordingHost(reply))
    assert await box.submit(item(b"a"), 0) == Done()
    assert await box.submit(item(b"a", cost=500), 0) == Done()
    assert names == [""] * 2


async def test_no_caller_waits_for_a_call_that_failed_whatever_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: Submission) -> Reply:
        raise ValueError("broken")

    box = outbox(RecordingHost(broken))
    replies = await asyncio.gather(*[box.submit(item(b"a"), 0) for _ in range(2)])
    assert replies == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)] * 2
    assert [record.message for record in caplog.records] == ["call to a host failed"]


class Hanging(RecordingHost):
    """Answers no call in time."""

    @override
    async def submit(self, batch: bytes) -> bytes:
        await super().submit(batch)
        raise HostUnavailable("host-0") from TimeoutError()


async def test_what_waits_for_a_host_that_did_not_answer_in_time_is_refused_with_its_call() -> None:
    port = Hanging()
    port.hold()
    box = outbox(port)
    under_way = await sent(box, item(b"a"), *[item(b"c", cost=500) for _ in range(4)])
    waiting = await sent(box, item(b"w"), *[item(b"d", cost=500) for _ in range(4)])
    waiting.append(asyncio.create_task(box.submit(item(b"l"), 0, can_linger=True)))
    await sent(box)
    port.answer(b"a")
    unavailable = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    assert await asyncio.gather(under_way[0], *waiting) == [unavailable] * 7
    assert len(box) == 0
    assert len(port.batches) == 5
    later = await sent(box, item(b"later"))
    assert [each.source for each in port.batches[-1]] == [b"later"]
    port.answer_all()
    await asyncio.gather(*under_way, *later)
    assert box.is_idle


class HangingAtCostly(RecordingHost):
    """Answers no call with a costly command in time, and all others."""

    @override
    async def submit(self, batch: bytes) -> bytes:
        answer = await super().submit(batch)
        if SUBMISSIONS_DECODER.decode(batch)[0].cost > COSTLY:
            raise HostUnavailable("host-0") from TimeoutError()
        return answer


async def test_a_call_that_takes_too_long_refuses_nothing_else_of_a_host_that_answers() -> None:
    port = HangingAtCostly()
    port.hold()
    box = outbox(port)
    (costly,) = await sent(box, item(b"c", cost=500))
    (cheap,) = await sent(box, item(b"a"))
    (waiting,) = await sent(box, item(b"w"))
    port.answer(b"a")
    assert await cheap == Done()
    (later,) = await sent(box, item(b"l"))
    port.answer(b"c")
    assert await costly == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    port.answer(b"w")
    assert await waiting == Done()
    await sent(box)
    port.answer(b"l")
    assert await later == Done()


class ShortOfReplies(RecordingHost):
    """Answers only the first submission of each batch."""

    @override
    async def submit(self, batch: bytes) -> bytes:
        whole = msgspec.msgpack.decode(await super().submit(batch), type=BatchResult)
        return msgspec.msgpack.encode(msgspec.structs.replace(whole, replies=whole.replies[:1]))


async def test_no_caller_waits_for_a_reply_that_its_host_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = outbox(ShortOfReplies())
    answered, *others = await sent(box, *[item(b"a") for _ in range(3)])
    assert await answered == Done()
    await sent(box)
    assert [other.done() and other.result() for other in others] == [
        Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    ] * 2
    assert [record.message for record in caplog.records] == ["call to a host failed"]


async def test_a_caller_that_gives_up_keeps_no_other_of_its_call_waiting() -> None:
    port = held()
    box = outbox(port)
    gone, stays = await sent(box, item(b"g"), item(b"s"))
    gone.cancel()
    await sent(box)
    port.answer(b"gs")
    await sent(box)
    assert stays.done()
    assert await stays == Done()


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


async def test_an_address_with_many_senders_keeps_none_of_another_address_waiting() -> None:
    port = held()
    box = outbox(port)
    flood = await sent(box, *[item(b"F%d" % n, cost=5) for n in range(150)], address="flood")
    (late,) = await sent(box, item(b"late", cost=5), address="other")
    port.held.pop(0)[1].set_result(None)
    await sent(box)
    assert b"late" in [one.source for one in port.held[-1][0]]
    port.answer_all()
    await asyncio.gather(late, *flood)
    assert box.is_idle


async def test_a_call_has_a_bound_of_work_and_a_quarter_of_it_for_each_address() -> None:
    port = held()
    box = outbox(port)
    (first,) = await sent(box, item(b"0"))
    rest = []
    for address in ("a", "b", "c", "d", "e"):
        rest += await sent(box, *[item(b"x", cost=5) for _ in range(4)], address=address)
    await sent(box)
    while port.held:
        port.held.pop(0)[1].set_result(None)
        await sent(box)
    calls = [sum(one.cost for one in batch) for batch in port.batches[1:]]
    assert sum(calls) == 100
    assert max(calls) <= LIMITS.batch_items_max
    await sent(box, item(b"1"), address="a")
    alone = await sent(box, *[item(b"x", cost=5) for _ in range(4)], address="a")
    assert [len(call[0]) for call in port.held] == [1]
    port.answer(b"1")
    await sent(box)
    assert sum(one.cost for one in port.held[-1][0]) == SHARE
    port.answer_all()
    await asyncio.gather(first, *rest, *alone)


async def test_what_one_sender_sends_from_an_address_leaves_in_its_order_whatever_waits() -> None:
    port = held()
    box = outbox(port)
    await sent(box, item(b"0"))
    costs = [5.0, 1.0, 7.0, 2.0, 6.0, 3.0]
    mine: list[asyncio.Task[object]] = []
    for cost in costs:
        mine += await sent(box, item(b"mine", cost), address="a")
        await sent(box, item(b"other", 5), item(b"third", 5), address="a")
        await sent(box, item(b"elsewhere", 5), address="b")
    port.answer_all()
    await box.drained()
    left = [one for batch in port.batches for one in batch]
    assert [one.cost for one in left if one.source == b"mine"] == costs
    assert len(left) == 1 + 4 * len(costs)
    await asyncio.gather(*mine)


async def test_the_end_of_a_session_follows_its_beginning_though_a_request_made_it_begin() -> None:
    port = held()
    box = outbox(port)
    await sent(box, item(b"0"))
    begins = Submission("shard-0", "did:x:me", b"", command=Listen("edge-0"), source=b"me")
    ends = Submission("shard-0", "did:x:me", b"", command=CloseSession("edge-0"), source=b"me")
    await sent(box, *[item(b"F", 5) for _ in range(20)], address="flood")
    await sent(box, begins, address="flood")
    await sent(box, ends)
    port.answer_all()
    await box.drained()
    of_session = [one.command for batch in port.batches for one in batch if one.source == b"me"]
    assert of_session == [begins.command, ends.command]
