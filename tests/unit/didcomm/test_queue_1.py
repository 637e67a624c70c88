"""Aries queue management 1.0 over the real core."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage
from http_edge.didcomm.protocols.protocol import NOTHING
from http_edge.didcomm.protocols.queue_1 import item_of
from http_edge.settings.settings import Limits
from tests.unit.didcomm.queue_holder import (
    ALICE,
    ASK_ID,
    BOB,
    NEW,
    OLD,
    Holder,
    Members,
    envelope,
    problem_code,
    running_holder,
)

STATUS_REQUEST = "queue/1.0/status-request"
UPDATE = "queue/1.0/status-update-request"
FETCH = "queue/1.0/fetch-request"
PROBLEM = f"{NEW}notification/1.0/problem-report"
RULES: Final[Members] = {
    "duration_limit": 3600,
    "message_count_limit": 100,
    "message_size_limit": 102_400,
    "size_limit": 10_240_000,
    "will_queue": True,
}


async def status_of(holder: Holder, kind: str = STATUS_REQUEST, **members: Any) -> Members:
    """The properties in the status that answers a request of Alice."""
    answer = await holder.ask(ALICE, kind, **members)
    assert set(answer) == {"@type", "@id", "~thread", "status"}, answer
    assert answer["@type"] == f"{NEW}queue/1.0/status"
    assert answer["~thread"] == {"thid": ASK_ID}
    status: Members = answer["status"]
    return status


async def test_a_status_has_every_property(holder: Holder) -> None:
    await holder.queue(ALICE, 1, 2)
    holder.clock.advance(1)
    await holder.ask(ALICE, FETCH, message_count_limit=1)
    holder.clock.advance(3600)
    assert await status_of(holder) == {
        "duration_limit": holder.settings.retention.messages_s,
        "duration_waited": 3600,
        "last_added_time": "2027-01-15 08:00:00Z",
        "last_delivered_time": "2027-01-15 08:00:01Z",
        "last_removed_time": "2027-01-15 08:00:01Z",
        "message_count": 1,
        "message_count_limit": Limits().queue_messages_max,
        "message_size_limit": holder.settings.didcomm.message_bytes_max,
        "size": len(envelope(2)),
        "size_limit": Limits().queue_bytes_max,
        "will_queue": True,
    }


async def test_an_update_is_answered_by_the_rules_in_force(holder: Holder) -> None:
    status = await status_of(holder, UPDATE, update=RULES)
    assert {name: status[name] for name in RULES} == RULES
    again = await status_of(holder)
    assert {name: again[name] for name in RULES} == RULES


async def test_the_rules_of_one_are_not_those_of_another(holder: Holder) -> None:
    await status_of(holder, UPDATE, update=RULES)
    other = await holder.ask(BOB, STATUS_REQUEST)
    assert other["status"]["duration_limit"] == holder.settings.retention.messages_s


async def test_an_update_of_one_rule_leaves_the_others(holder: Holder) -> None:
    await status_of(holder, UPDATE, update=RULES)
    status = await status_of(holder, UPDATE, update={"message_count_limit": 7})
    assert {name: status[name] for name in RULES} == {**RULES, "message_count_limit": 7}


async def test_no_owner_gets_more_than_the_operator_allows(holder: Holder) -> None:
    before = await status_of(holder)
    huge = {name: 2**53 - 1 for name in RULES if name != "will_queue"}
    for update in (huge, dict.fromkeys(huge, 0)):
        status = await status_of(holder, UPDATE, update=update)
        for name in ("message_count_limit", "message_size_limit", "size_limit"):
            assert status[name] == before[name]


@pytest.mark.parametrize(
    "update",
    [
        None,
        [],
        "will_queue",
        {},
        {"other": 1},
        dict.fromkeys(RULES, -1),
        dict.fromkeys(RULES, "-5"),
        dict.fromkeys(RULES, 1.5),
        dict.fromkeys(RULES),
        {"will_queue": 0, "duration_limit": True, "size_limit": [1], "message_count_limit": {}},
    ],
)
async def test_a_value_that_is_none_is_discarded(holder: Holder, update: Any) -> None:
    before, facts = await status_of(holder), holder.facts()
    assert await status_of(holder, UPDATE, update=update) == before
    assert holder.facts() == facts


async def test_a_limit_written_as_a_text_is_that_limit(holder: Holder) -> None:
    status = await status_of(holder, UPDATE, update={"message_count_limit": "7"})
    assert status["message_count_limit"] == 7
    await holder.queue(ALICE, 1, 2)
    fetched = await holder.ask(ALICE, FETCH, message_count_limit="1")
    assert fetched["message_count"] == 1


async def test_a_good_value_beside_a_bad_one_counts(holder: Holder) -> None:
    status = await status_of(holder, UPDATE, update={"duration_limit": -1, "will_queue": False})
    kept_s = holder.settings.retention.messages_s
    assert (status["duration_limit"], status["will_queue"]) == (kept_s, False)


async def test_a_deny_of_future_messages_leaves_the_queued_ones(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    status = await status_of(holder, UPDATE, update={"will_queue": False})
    assert (status["will_queue"], status["message_count"]) == (False, 1)
    assert await holder.refusal(ALICE) is Refusal.NOT_QUEUING
    assert (await holder.ask(ALICE, FETCH))["message_count"] == 1
    await status_of(holder, UPDATE, update={"will_queue": True})
    await holder.queue(ALICE, 2)


async def test_the_rules_really_bound_the_queue(holder: Holder) -> None:
    size = len(envelope(0))
    await status_of(holder, UPDATE, update={"message_size_limit": size - 1})
    assert await holder.refusal(ALICE) is Refusal.MESSAGE_TOO_LARGE
    await status_of(holder, UPDATE, update={"message_size_limit": 0, "message_count_limit": 1})
    await holder.queue(ALICE, 1)
    assert await holder.refusal(ALICE) is Refusal.RECIPIENT_QUEUE_FULL
    await status_of(holder, UPDATE, update={"message_count_limit": 0, "size_limit": size})
    assert await holder.refusal(ALICE) is Refusal.RECIPIENT_QUEUE_FULL
    await status_of(holder, UPDATE, update={"size_limit": 2 * size, "duration_limit": 60})
    await holder.queue(ALICE, 2)
    await holder.pass_time(ALICE, 61)
    assert (await status_of(holder))["message_count"] == 0


async def test_a_batch_has_every_member_oldest_first(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1)
    holder.clock.advance(2)
    ids += await holder.queue(ALICE, 2, 3)
    batch = await holder.ask(ALICE, FETCH, message_count_limit=2)
    assert batch.pop("@id")
    assert batch == {
        "@type": f"{NEW}queue/1.0/batch",
        "~thread": {"thid": ASK_ID},
        "message_count": 2,
        "messages": [
            {
                "id": ids[0],
                "msg": orjson.loads(envelope(1)),
                "added_time": "2027-01-15 08:00:00Z",
            },
            {
                "id": ids[1],
                "msg": orjson.loads(envelope(2)),
                "added_time": "2027-01-15 08:00:02Z",
            },
        ],
    }
    assert (await status_of(holder))["message_count"] == 1


async def test_a_fetch_of_an_empty_queue_is_an_empty_batch(holder: Holder) -> None:
    batch = await holder.ask(ALICE, FETCH)
    assert (batch["message_count"], batch["messages"]) == (0, [])


@pytest.mark.parametrize("limit", [None, 2**53 - 1])
async def test_no_limit_or_a_huge_one_is_taken_as_the_largest(tmp_path: Path, limit: Any) -> None:
    async with running_holder(tmp_path, didcomm={"delivery_messages_max": 2}) as holder:
        await holder.connect(ALICE)
        await holder.queue(ALICE, 1, 2, 3)
        assert (await holder.ask(ALICE, FETCH, message_count_limit=limit))["message_count"] == 2


@pytest.mark.parametrize("limit", [-1, "ten", 1.5, True, [], {}])
async def test_a_limit_that_is_no_count_is_a_problem(holder: Holder, limit: Any) -> None:
    await holder.queue(ALICE, 1)
    report = await holder.ask(ALICE, FETCH, message_count_limit=limit)
    assert problem_code(report) == "invalid-message"
    assert (await holder.state(ALICE)).available == 1


async def test_a_limit_of_none_fetches_none(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    assert (await holder.ask(ALICE, FETCH, message_count_limit=0))["messages"] == []
    assert (await holder.state(ALICE)).available == 1


async def test_what_was_not_written_is_offered_again(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1)
    outcome = await holder.outcome(ALICE, FETCH, session="lost")
    assert list(outcome.handed_over) == ids
    assert (await holder.state(ALICE)).messages == 1
    await holder.release(ALICE, "lost")
    assert (await holder.ask(ALICE, FETCH))["message_count"] == 1
    assert (await holder.state(ALICE)).messages == 0


async def test_a_batch_needs_a_return_route_and_a_status_may_wait(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    assert await holder.outcome(ALICE, FETCH, routable=False) == NOTHING
    assert (await holder.state(ALICE)).available == 1
    for kind in (STATUS_REQUEST, UPDATE):
        outcome = await holder.outcome(ALICE, kind, routable=False, update={"will_queue": True})
        assert outcome.reply is not None
        assert outcome.may_wait
    assert not (await holder.outcome(ALICE, FETCH)).may_wait


async def test_the_old_spelling_of_types_is_answered_in_the_old_spelling(holder: Holder) -> None:
    for kind, answer in ((STATUS_REQUEST, "status"), (UPDATE, "status"), (FETCH, "batch")):
        reply = await holder.ask(ALICE, kind, prefix=OLD)
        assert reply["@type"] == f"{OLD}queue/1.0/{answer}"


async def test_an_unknown_outcome_is_reported_and_nothing_is_handed_over(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    holder.cut()
    for kind in (STATUS_REQUEST, UPDATE, FETCH):
        outcome = await holder.outcome(ALICE, kind, update=RULES)
        assert problem_code(holder.reply_of(outcome)) == "try-again"
        assert not outcome.handed_over
    holder.mend()
    assert (await holder.state(ALICE)).messages == 1


async def test_one_queue_under_all_generations_loses_nothing(holder: Holder) -> None:
    ids = await holder.queue(ALICE, *range(1, 7))
    delivery = await holder.ask(ALICE, "messagepickup/2.0/delivery-request", limit=2)
    assert [item["@id"] for item in delivery["~attach"]] == ids[:2]
    received: Members = {"message_id_list": ids[:1]}
    await holder.ask(ALICE, "messagepickup/2.0/messages-received", **received)
    batch = await holder.ask(ALICE, "messagepickup/1.0/batch-pickup", batch_size=2)
    assert [item["@id"] for item in batch["messages~attach"]] == ids[2:4]
    fetched = await holder.ask(ALICE, FETCH, message_count_limit=1)
    assert [item["id"] for item in fetched["messages"]] == ids[4:5]
    noop = await holder.outcome(ALICE, "messagepickup/1.0/noop")
    assert noop.envelope == envelope(6)
    await holder.written(ALICE, noop)
    await holder.pass_time(ALICE, 31)
    rest = await holder.ask(ALICE, FETCH)
    assert [item["id"] for item in rest["messages"]] == ids[1:2]
    assert (await status_of(holder))["message_count"] == 0


def test_a_message_goes_into_a_batch_as_it_is_and_is_not_read_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = orjson.dumps({**orjson.loads(envelope(1)), "x": [[]] * 6_000})
    monkeypatch.delattr(orjson, "loads")
    item = item_of(DeliveredMessage("id-1", "key", payload, 1_800_000_000_000))
    text = b'{"id":"id-1","msg":%s,"added_time":"2027-01-15 08:00:00Z"}' % payload
    assert orjson.dumps(item) == text
