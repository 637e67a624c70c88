"""Message pickup 1.0 over the real core: RFC 0212 and every case of its extension."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.core.commands import Command, Listen
from actors.core.refusals import Refusal
from http_edge.didcomm.delivery.waiting import Waiting
from http_edge.didcomm.envelopes.messages import Attachment
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from http_edge.didcomm.protocols.pickup import ends_implicit
from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.protocol import NOTHING, Outcome
from tests.unit.didcomm.queue_holder import (
    ALICE,
    ASK_ID,
    BOB,
    NEW,
    OLD,
    Holder,
    Members,
    Recipient,
    envelope,
    running_holder,
)
from tests.unit.didcomm.requests import message

STATUS_REQUEST = "messagepickup/1.0/status-request"
BATCH_PICKUP = "messagepickup/1.0/batch-pickup"
LIST_PICKUP = "messagepickup/1.0/list-pickup"
NOOP = "messagepickup/1.0/noop"
PROBLEM = f"{NEW}messagepickup/1.0/problem_report"
WAIT_S = 10.0
"""How long a test waits for what must come; it passes as soon as it has come."""
LONG: Members = {"~timing": {"delay_milli": 60_000}}
SHORT: Members = {"~timing": {"delay_milli": 20}}


def items(answer: Members) -> list[Any]:
    """The envelopes of a batch or a list-response, which have all their members."""
    found = answer["messages~attach"]
    assert all(set(item) == {"@id", "id", "message"} for item in found)
    assert all(item["@id"] == item["id"] for item in found)
    return [item["message"] for item in found]


def envelopes(numbers: Sequence[int]) -> list[Any]:
    return [orjson.loads(envelope(number)) for number in numbers]


def problem_code(report: Members) -> str:
    assert set(report) == {"@type", "@id", "~thread", "problem-code", "explain"}, report
    assert report["@type"] == PROBLEM
    assert report["~thread"] == {"thid": ASK_ID}
    assert report["explain"]
    code: str = report["problem-code"]
    return code


async def polling(holder: Holder, kind: str, **members: Any) -> asyncio.Task[Outcome]:
    """A long poll of Alice that waits for wake-ups."""
    poll = asyncio.create_task(holder.outcome(ALICE, kind, **members))
    async with asyncio.timeout(WAIT_S):
        while not holder.hub.subscribers_of(ALICE.did):
            await holder.state(ALICE)
    assert not poll.done()
    return poll


async def answered(poll: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(WAIT_S):
        return await poll


async def test_a_status_has_every_attribute(holder: Holder) -> None:
    await holder.queue(ALICE, 1, 2)
    holder.clock.advance(1)
    await holder.ask(ALICE, BATCH_PICKUP, batch_size=1)
    holder.clock.advance(3600)
    status = await holder.ask(ALICE, STATUS_REQUEST)
    assert status.pop("@id")
    assert status == {
        "@type": f"{NEW}messagepickup/1.0/status",
        "~thread": {"thid": ASK_ID},
        "message_count": 1,
        "duration_waited": 3600,
        "last_added_time": "2027-01-15 08:00:00Z",
        "last_delivered_time": "2027-01-15 08:00:01Z",
        "last_removed_time": "2027-01-15 08:00:01Z",
        "total_size": len(envelope(2)),
    }


async def test_ten_waiting_and_three_wanted_leaves_seven(holder: Holder) -> None:
    await holder.queue(ALICE, *range(10))
    batch = await holder.ask(ALICE, BATCH_PICKUP, batch_size=3)
    assert set(batch) == {"@type", "@id", "~thread", "messages~attach"}
    assert batch["@type"] == f"{NEW}messagepickup/1.0/batch"
    assert batch["~thread"] == {"thid": ASK_ID}
    assert items(batch) == envelopes(range(3))
    assert (await holder.ask(ALICE, STATUS_REQUEST))["message_count"] == 7


async def test_ten_waiting_and_thirty_wanted_gives_ten_at_once(holder: Holder) -> None:
    await holder.queue(ALICE, *range(10))
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=30)) == envelopes(range(10))
    assert (await holder.ask(ALICE, STATUS_REQUEST))["message_count"] == 0


@pytest.mark.thorough
async def test_ten_waiting_thirty_wanted_and_five_arriving_gives_fifteen(holder: Holder) -> None:
    await holder.queue(ALICE, *range(10))
    members: Members = {"batch_size": 30, "~timing": {"delay_milli": 1_500}}
    poll = await polling(holder, BATCH_PICKUP, **members)
    await holder.queue(ALICE, *range(10, 15))
    assert not poll.done()
    batch = holder.reply_of(await answered(poll))
    assert items(batch) == envelopes(range(15))


async def test_nothing_waiting_and_nothing_arriving_gives_an_empty_batch(holder: Holder) -> None:
    batch = await holder.ask(ALICE, BATCH_PICKUP, batch_size=30, **SHORT)
    assert batch["@type"] == f"{NEW}messagepickup/1.0/batch"
    assert items(batch) == []


async def test_an_empty_queue_without_delay_gives_an_empty_batch_at_once(holder: Holder) -> None:
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=30)) == []


async def test_a_batch_that_can_be_filled_does_not_wait(holder: Holder) -> None:
    await holder.queue(ALICE, *range(3))
    batch = await holder.ask(ALICE, BATCH_PICKUP, batch_size=3, **LONG)
    assert items(batch) == envelopes(range(3))


async def test_a_waiting_batch_is_answered_when_it_is_full(holder: Holder) -> None:
    await holder.queue(ALICE, 0)
    poll = await polling(holder, BATCH_PICKUP, batch_size=3, **LONG)
    await holder.queue(ALICE, 1)
    assert (await holder.state(ALICE)).available == 2
    await holder.queue(ALICE, 2)
    outcome = await answered(poll)
    assert items(holder.reply_of(outcome)) == envelopes(range(3))
    assert not holder.hub.subscribers_of(ALICE.did)


async def test_a_batch_larger_than_the_largest_waits_for_the_largest_only(tmp_path: Path) -> None:
    async with running_holder(tmp_path, didcomm={"delivery_messages_max": 2}) as holder:
        await holder.connect(ALICE)
        await holder.queue(ALICE, *range(2))
        async with asyncio.timeout(WAIT_S):
            batch = await holder.ask(ALICE, BATCH_PICKUP, batch_size=2**53 - 1, **LONG)
        assert items(batch) == envelopes(range(2))


async def test_no_poll_waits_longer_than_the_holder_allows(tmp_path: Path) -> None:
    async with running_holder(tmp_path, didcomm={"delay_s_max": 0.02}) as holder:
        await holder.connect(ALICE)
        async with asyncio.timeout(WAIT_S):
            assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=1, **LONG)) == []
            assert problem_code(await holder.ask(ALICE, NOOP, **LONG)) == "timeout_occurred"


async def test_when_too_many_wait_the_next_is_answered_at_once(tmp_path: Path) -> None:
    async with running_holder(tmp_path, didcomm={"waiters_max": 1}) as holder:
        await holder.connect(ALICE, BOB)
        await holder.queue(BOB, 1)
        poll = await polling(holder, NOOP, **LONG)
        async with asyncio.timeout(WAIT_S):
            batch = await holder.ask(BOB, BATCH_PICKUP, batch_size=2, **LONG)
        assert items(batch) == envelopes([1])
        await holder.queue(ALICE, 2)
        assert (await answered(poll)).envelope == envelope(2)


async def test_a_long_poll_ends_with_what_is_there_when_the_edge_goes_away(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    poll = await polling(holder, BATCH_PICKUP, batch_size=2, **LONG)
    holder.hub.close_all()
    assert items(holder.reply_of(await answered(poll))) == envelopes([1])


@pytest.mark.parametrize("delay", [0, -5, "3000ms", True, None, [3000]])
async def test_a_delay_that_is_none_is_no_delay(holder: Holder, delay: Any) -> None:
    members: Members = {"~timing": {"delay_milli": delay}}
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=30, **members)) == []
    assert problem_code(await holder.ask(ALICE, NOOP, **members)) == "empty_queue"


@pytest.mark.parametrize(
    ("decorator", "delay"), [("~timing", "20"), ("~timing", 20.1), ("~timings", 20)]
)
async def test_a_delay_is_honoured_however_wallets_write_it(
    holder: Holder, decorator: str, delay: Any
) -> None:
    members: Members = {decorator: {"delay_milli": delay}}
    assert problem_code(await holder.ask(ALICE, NOOP, **members)) == "timeout_occurred"


@pytest.mark.parametrize("size", [None, "ten", -1, 1.5, True, [3], {}])
async def test_a_batch_size_that_is_no_count_is_an_invalid_request(
    holder: Holder, size: Any
) -> None:
    await holder.queue(ALICE, 1)
    assert problem_code(await holder.ask(ALICE, BATCH_PICKUP, batch_size=size)) == "invalid_request"
    assert (await holder.state(ALICE)).available == 1


async def test_a_batch_of_no_messages_is_empty_and_does_not_wait(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    async with asyncio.timeout(WAIT_S):
        assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=0, **LONG)) == []
    assert (await holder.state(ALICE)).available == 1


async def test_what_was_not_written_is_offered_again(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    outcome = await holder.outcome(ALICE, BATCH_PICKUP, batch_size=2, session="lost")
    assert list(outcome.handed_over) == ids
    assert (await holder.state(ALICE)).messages == 2
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=2)) == []
    await holder.release(ALICE, "lost")
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=2)) == envelopes([1, 2])


async def test_a_list_holds_the_known_ids_alone_in_the_order_of_the_request(holder: Holder) -> None:
    ids, foreign = await holder.queue(ALICE, 1, 2, 3), await holder.queue(BOB, 4)
    wanted = [
        ids[2],
        "06ca25f6-d3c5-48ac-8eee-1a9e29120c31",
        foreign[0],
        ids[0],
        ids[0],
        "x" * 999,
    ]
    answer = await holder.ask(ALICE, LIST_PICKUP, message_ids=wanted)
    assert set(answer) == {"@type", "@id", "~thread", "messages~attach"}
    assert answer["@type"] == f"{NEW}messagepickup/1.0/list-response"
    assert items(answer) == envelopes([3, 1])
    assert [item["@id"] for item in answer["messages~attach"]] == [ids[2], ids[0]]


async def test_a_list_reads_and_a_batch_takes(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    for _ in range(2):
        assert items(await holder.ask(ALICE, LIST_PICKUP, message_ids=ids)) == envelopes([1, 2])
    assert items(await holder.ask(ALICE, BATCH_PICKUP, batch_size=9)) == envelopes([1, 2])
    assert items(await holder.ask(ALICE, LIST_PICKUP, message_ids=ids)) == []


@pytest.mark.parametrize("ids", [None, "a", 7, {}, [1], [None], [["a"]], ["a"] * 1_001])
async def test_a_list_that_is_none_is_an_invalid_request(holder: Holder, ids: Any) -> None:
    assert problem_code(await holder.ask(ALICE, LIST_PICKUP, message_ids=ids)) == "invalid_request"


async def test_a_noop_brings_the_oldest_message_raw_and_at_once(holder: Holder) -> None:
    ids = await holder.queue(ALICE, *range(10))
    for number in range(2):
        outcome = await holder.outcome(ALICE, NOOP)
        assert outcome.reply is None
        assert outcome.envelope == envelope(number)
        assert list(outcome.handed_over) == [ids[number]]
        await holder.written(ALICE, outcome)
    assert (await holder.state(ALICE)).messages == 8


async def test_a_noop_on_an_empty_queue_says_so(holder: Holder) -> None:
    report = await holder.ask(ALICE, NOOP)
    assert problem_code(report) == "empty_queue"


async def test_a_noop_that_waited_in_vain_says_so(holder: Holder) -> None:
    report = await holder.ask(ALICE, NOOP, **SHORT)
    assert problem_code(report) == "timeout_occurred"
    assert report["explain"] == "Message queue is empty, timeout occurred"


async def test_a_waiting_noop_is_answered_when_a_message_arrives(holder: Holder) -> None:
    poll = await polling(holder, NOOP, **LONG)
    ids = await holder.queue(ALICE, 1, 2)
    outcome = await answered(poll)
    assert outcome.envelope == envelope(1)
    assert list(outcome.handed_over) == ids[:1]


async def test_a_waiting_noop_is_answered_when_a_lease_ends(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    await holder.outcome(ALICE, BATCH_PICKUP, batch_size=1, session="lost")
    poll = await polling(holder, NOOP, **LONG)
    await holder.release(ALICE, "lost")
    assert (await answered(poll)).envelope == envelope(1)


async def test_a_noop_leaves_implicit_pickup_on_a_socket_as_it_is(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    for _ in range(2):
        outcome = await holder.outcome(ALICE, NOOP, persistent=True)
        assert not outcome.implicit
        await holder.written(ALICE, outcome)


@pytest.mark.parametrize(
    "kind",
    [
        STATUS_REQUEST,
        BATCH_PICKUP,
        LIST_PICKUP,
        "messagepickup/2.0/messages-received",
        "messagepickup/3.0/delivery-request",
        "message-pickup/4.0/live-delivery-change",
        "queue/1.0/fetch-request",
    ],
)
def test_who_picks_up_gets_nothing_implicitly(kind: str) -> None:
    assert ends_implicit(message(kind))


@pytest.mark.parametrize(
    "kind",
    [
        NOOP,
        "messagepickup/1.0/problem_report",
        "trust_ping/1.0/ping",
        "discover-features/2.0/queries",
    ],
)
def test_who_does_not_pick_up_may_get_messages_implicitly(kind: str) -> None:
    assert not ends_implicit(message(kind))


async def test_two_long_polls_share_no_message(holder: Holder) -> None:
    polls = [
        asyncio.create_task(holder.outcome(ALICE, NOOP, session=f"{n}", **LONG)) for n in (1, 2)
    ]
    await holder.queue(ALICE, 1, 2)
    outcomes = [await answered(poll) for poll in polls]
    assert {outcome.envelope for outcome in outcomes} == {envelope(1), envelope(2)}


@pytest.mark.parametrize("name", ["batch", "status", "delivery-request", "no-such-thing"])
async def test_every_other_request_of_the_family_is_invalid(holder: Holder, name: str) -> None:
    report = await holder.ask(ALICE, f"messagepickup/1.0/{name}")
    assert problem_code(report) == "invalid_request"


async def test_a_problem_report_is_never_answered_by_another(holder: Holder) -> None:
    assert await holder.outcome(ALICE, "messagepickup/1.0/problem_report") == NOTHING


@pytest.mark.parametrize(
    "kind", [STATUS_REQUEST, BATCH_PICKUP, LIST_PICKUP, NOOP, "messagepickup/1.0/x"]
)
async def test_without_return_route_nothing_is_said_and_nothing_leased(
    holder: Holder, kind: str
) -> None:
    ids = await holder.queue(ALICE, 1)
    members: Members = {"batch_size": 2, "message_ids": ids, **LONG}
    assert await holder.outcome(ALICE, kind, routable=False, **members) == NOTHING
    assert (await holder.state(ALICE)).available == 1


async def test_the_old_spelling_of_types_is_answered_in_the_old_spelling(holder: Holder) -> None:
    for kind, answer in (
        (STATUS_REQUEST, "status"),
        (BATCH_PICKUP, "batch"),
        (LIST_PICKUP, "list-response"),
        (NOOP, "problem_report"),
    ):
        reply = await holder.ask(ALICE, kind, prefix=OLD, batch_size=1, message_ids=[])
        assert reply["@type"] == f"{OLD}messagepickup/1.0/{answer}"


async def test_an_unknown_outcome_is_reported_and_nothing_is_handed_over(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1)
    holder.cut()
    for kind in (STATUS_REQUEST, BATCH_PICKUP, LIST_PICKUP, NOOP):
        outcome = await holder.outcome(ALICE, kind, batch_size=1, message_ids=ids, **LONG)
        assert problem_code(holder.reply_of(outcome)) == "temporarily_unavailable"
        assert outcome.to_retry is Problem.TRY_AGAIN
        assert not outcome.handed_over
    holder.mend()
    assert (await holder.state(ALICE)).messages == 1


@pytest.mark.parametrize(
    ("refusal", "code", "explain", "refused"),
    [
        (Refusal.RATE_LIMITED, "temporarily_unavailable", "Too many messages", "rate-limited"),
        (Refusal.INSUFFICIENT_STORAGE, "temporarily_unavailable", "disk", "insufficient-storage"),
        (Refusal.NOT_SPEAKING, "invalid_request", "replaced by another DID", "did-rotated"),
        (Refusal.NOT_CONNECTED, "invalid_request", "not connected", "not-connected"),
    ],
)
async def test_a_refusal_is_reported_with_its_own_reason(
    holder: Holder,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
    code: str,
    explain: str,
    refused: str,
) -> None:
    async def refuse(*_: object, **__: object) -> Refusal:
        return refusal

    monkeypatch.setattr(holder.identities, "ask", refuse)
    for kind in (STATUS_REQUEST, BATCH_PICKUP, LIST_PICKUP, NOOP):
        outcome = await holder.outcome(ALICE, kind, batch_size=1, message_ids=["id"])
        report = holder.reply_of(outcome)
        assert problem_code(report) == code
        assert explain in report["explain"]
        assert outcome.refused == refused
        assert (outcome.to_retry is not None) == (code == "temporarily_unavailable")


async def test_an_agent_that_never_connected_learns_nothing_of_others(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    for kind in (STATUS_REQUEST, BATCH_PICKUP, LIST_PICKUP, NOOP):
        report = await holder.ask(Recipient(7), kind, batch_size=1, message_ids=[], **LONG)
        assert problem_code(report) == "invalid_request"


def test_a_message_goes_into_a_batch_as_it_is_and_is_not_read_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = orjson.dumps({**orjson.loads(envelope(1)), "x": [[]] * 6_000})
    monkeypatch.delattr(orjson, "loads")
    item = write_attachment(Attachment("id-1", payload, inlined=True))
    assert orjson.dumps(item) == b'{"@id":"id-1","id":"id-1","message":%s}' % payload


async def test_a_long_poll_that_no_host_would_wake_is_answered_at_once(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = holder.identities.ask

    async def without_listening(target: str, command: Command, *args: Any, **how: Any) -> Any:
        if isinstance(command, Listen):
            return Refusal.TEMPORARILY_UNAVAILABLE
        return await ask(target, command, *args, **how)

    monkeypatch.setattr(holder.identities, "ask", without_listening)
    async with asyncio.timeout(WAIT_S):
        assert problem_code(await holder.ask(ALICE, NOOP, **LONG)) == "timeout_occurred"
    assert len(holder.hub) == 0


async def test_a_wait_that_ends_leaves_its_place_to_the_next(holder: Holder) -> None:
    waiting = Waiting(holder.hub, holder.identities, waiters_max=1, per_identity_max=2)
    for _ in range(3):
        async with waiting.listening(ALICE.did) as first, waiting.listening(BOB.did) as second:
            assert (first.is_over, second.is_over) == (False, True)
        with pytest.raises(ConnectionError):
            async with waiting.listening(ALICE.did):
                raise ConnectionError
    async with waiting.listening(BOB.did) as last:
        assert not last.is_over
