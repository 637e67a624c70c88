"""Message pickup 2.0 over the real core: RFC 0685 and the cases of the plugin's own suite."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.keys import did_key, did_key_reference
from http_edge.didcomm.protocols.protocol import NOTHING, LiveModeChange
from tests.unit.didcomm.queue_holder import (
    ALICE,
    ASK_ID,
    BOB,
    NEW,
    Holder,
    Members,
    Recipient,
    envelope,
    problem_code,
    running_holder,
)

STATUS_REQUEST = "messagepickup/2.0/status-request"
DELIVERY_REQUEST = "messagepickup/2.0/delivery-request"
RECEIVED = "messagepickup/2.0/messages-received"
LIVE_CHANGE = "messagepickup/2.0/live-delivery-change"
STATUS = f"{NEW}messagepickup/2.0/status"
DELIVERY = f"{NEW}messagepickup/2.0/delivery"


@pytest.fixture
async def socket(holder: Holder) -> AsyncIterator[Members]:
    with holder.socket(ALICE) as circumstances:
        yield circumstances


def delivered(delivery: Members) -> dict[str, bytes]:
    """Envelopes by id, in the order of a delivery."""
    assert delivery["@type"] == DELIVERY, delivery
    return {
        item["@id"]: base64.b64decode(item["data"]["base64"], validate=True).rstrip(b" ")
        for item in delivery["~attach"]
    }


async def test_the_status_of_an_empty_queue_counts_nothing(holder: Holder) -> None:
    status = await holder.ask(ALICE, STATUS_REQUEST)
    assert status.pop("@id")
    assert status == {
        "@type": STATUS,
        "~thread": {"thid": ASK_ID},
        "message_count": 0,
        "longest_waited_seconds": 0,
        "total_bytes": 0,
        "live_delivery": False,
    }


async def test_a_status_has_every_attribute(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    holder.clock.advance(5)
    await holder.queue(ALICE, 2)
    holder.clock.advance(10)
    status = await holder.ask(ALICE, STATUS_REQUEST)
    assert status.pop("@id")
    assert status == {
        "@type": STATUS,
        "~thread": {"thid": ASK_ID},
        "message_count": 2,
        "longest_waited_seconds": 15,
        "newest_received_time": "2027-01-15 08:00:05Z",
        "oldest_received_time": "2027-01-15 08:00:00Z",
        "total_bytes": len(envelope(1)) + len(envelope(2)),
        "live_delivery": False,
    }


@pytest.mark.parametrize(
    "spell",
    [
        lambda w: w.keys[1],
        lambda w: did_key(w.raw_keys[1]),
        lambda w: did_key_reference(w.raw_keys[1]),
    ],
)
async def test_a_key_is_echoed_as_the_client_spelled_it(holder: Holder, spell: Any) -> None:
    await holder.queue(ALICE, 1, 2, key=0)
    await holder.queue(ALICE, 3, key=1)
    status = await holder.ask(ALICE, STATUS_REQUEST, recipient_key=spell(ALICE))
    assert status["recipient_key"] == spell(ALICE)
    assert status["message_count"] == 1
    assert status["total_bytes"] == len(envelope(3))
    delivery = await holder.ask(ALICE, DELIVERY_REQUEST, limit=10, recipient_key=spell(ALICE))
    assert delivery["recipient_key"] == spell(ALICE)
    assert list(delivered(delivery).values()) == [envelope(3)]


@pytest.mark.parametrize(
    "key",
    [
        Recipient(9).keys[0],
        BOB.keys[0],
        did_key(BOB.raw_keys[0]),
        "<key for messages>",
        "",
        "did:key:z",
    ],
)
async def test_a_foreign_an_unknown_and_a_malformed_key_look_the_same(
    holder: Holder, key: str
) -> None:
    await holder.queue(ALICE, 1)
    await holder.queue(BOB, 2)
    for kind, members in ((STATUS_REQUEST, {}), (DELIVERY_REQUEST, {"limit": 10})):
        status = await holder.ask(ALICE, kind, recipient_key=key, **members)
        assert status.pop("@id")
        assert status == {
            "@type": STATUS,
            "~thread": {"thid": ASK_ID},
            "recipient_key": key,
            "message_count": 0,
            "longest_waited_seconds": 0,
            "total_bytes": 0,
            "live_delivery": False,
        }
    assert (await holder.state(ALICE)).available == 1


@pytest.mark.parametrize("key", [7, True, ["a"], {}, "k" * 4097])
@pytest.mark.parametrize("kind", [STATUS_REQUEST, DELIVERY_REQUEST])
async def test_a_key_that_is_no_text_is_a_problem(holder: Holder, kind: str, key: object) -> None:
    assert (
        problem_code(await holder.ask(ALICE, kind, limit=1, recipient_key=key)) == "invalid-message"
    )


async def test_a_delivery_carries_the_oldest_messages_in_order(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2, 3)
    delivery = await holder.ask(ALICE, DELIVERY_REQUEST, limit=2)
    assert set(delivery) == {"@type", "@id", "~thread", "~attach"}
    assert delivery["~thread"] == {"thid": ASK_ID}
    assert list(delivered(delivery).items()) == [(ids[0], envelope(1)), (ids[1], envelope(2))]


async def test_several_deliveries_over_one_socket_never_carry_a_message_twice(
    holder: Holder, socket: Members
) -> None:
    ids = await holder.queue(ALICE, 1, 2, 3)
    seen: list[str] = []
    for _ in range(3):
        seen += delivered(await holder.ask(ALICE, DELIVERY_REQUEST, limit=1, **socket))
    assert seen == ids
    assert (await holder.ask(ALICE, DELIVERY_REQUEST, limit=1, **socket))["message_count"] == 0


async def test_a_delivery_of_an_empty_queue_is_a_status_at_once(holder: Holder) -> None:
    outcome = await holder.outcome(ALICE, DELIVERY_REQUEST, limit=5)
    assert outcome.reply is not None
    assert holder.reply_of(outcome)["@type"] == STATUS
    assert holder.reply_of(outcome)["message_count"] == 0
    assert not outcome.may_wait


async def test_a_wallet_that_loops_on_the_count_comes_to_an_end(holder: Holder) -> None:
    await holder.queue(ALICE, 1, 2)
    await holder.ask(ALICE, DELIVERY_REQUEST, limit=10)
    assert (await holder.ask(ALICE, STATUS_REQUEST))["message_count"] == 2
    assert (await holder.ask(ALICE, DELIVERY_REQUEST, limit=10))["message_count"] == 0


async def test_nothing_leaves_the_queue_before_it_is_acknowledged(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    outcome = await holder.outcome(ALICE, DELIVERY_REQUEST, limit=10)
    assert not outcome.handed_over
    assert (await holder.state(ALICE)).messages == 2
    await holder.pass_time(ALICE, 31)
    again = await holder.ask(ALICE, DELIVERY_REQUEST, limit=10)
    assert list(delivered(again)) == ids


async def test_an_acknowledgement_is_answered_by_the_status_after_it(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2, 3)
    await holder.ask(ALICE, DELIVERY_REQUEST, limit=2)
    status = await holder.ask(ALICE, RECEIVED, message_id_list=ids[:2])
    assert status["@type"] == STATUS
    assert status["message_count"] == 1
    assert status["total_bytes"] == len(envelope(3))
    rest = delivered(await holder.ask(ALICE, DELIVERY_REQUEST, limit=10))
    assert list(rest) == ids[2:]


async def test_foreign_unknown_used_and_repeated_ids_look_the_same(holder: Holder) -> None:
    ids, foreign = await holder.queue(ALICE, 1, 2), await holder.queue(BOB, 3)
    await holder.ask(ALICE, RECEIVED, message_id_list=[ids[0], ids[0]])
    before = holder.facts()
    answers = [
        await holder.ask(ALICE, RECEIVED, message_id_list=junk)
        for junk in ([], [ids[0]], foreign, ["123", "456"], [""], ["x" * 5_000])
    ]
    for answer in answers:
        assert answer.pop("@id")
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["message_count"] == 1
    assert holder.facts() == before
    assert (await holder.state(BOB)).messages == 1


@pytest.mark.parametrize("ids", [None, "123", 7, {}, [1], ["a", None], [["a"]], ["a"] * 1_001])
async def test_a_list_that_is_none_is_a_problem_and_removes_nothing(
    holder: Holder, ids: Any
) -> None:
    waiting = await holder.queue(ALICE, 1)
    listed = [*waiting, *ids] if isinstance(ids, list) else ids
    report = await holder.ask(ALICE, RECEIVED, message_id_list=listed)
    assert problem_code(report) == "invalid-message"
    assert (await holder.state(ALICE)).messages == 1


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"limit": None},
        {"limit": "five"},
        {"limit": -1},
        {"limit": 1.5},
        {"limit": True},
        {"limit": [1]},
    ],
)
async def test_a_limit_that_is_no_count_is_a_problem(holder: Holder, members: Members) -> None:
    await holder.queue(ALICE, 1)
    assert problem_code(await holder.ask(ALICE, DELIVERY_REQUEST, **members)) == "invalid-message"
    assert (await holder.state(ALICE)).available == 1


async def test_a_limit_of_none_asks_for_the_status(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    assert (await holder.ask(ALICE, DELIVERY_REQUEST, limit=0))["message_count"] == 1
    assert (await holder.state(ALICE)).available == 1


async def test_a_huge_limit_is_taken_as_the_largest(tmp_path: Path) -> None:
    async with running_holder(tmp_path, didcomm={"delivery_messages_max": 2}) as holder:
        await holder.connect(ALICE)
        ids = await holder.queue(ALICE, 1, 2, 3)
        delivery = await holder.ask(ALICE, DELIVERY_REQUEST, limit=2**53 - 1)
        assert list(delivered(delivery)) == ids[:2]


@pytest.mark.parametrize("kind", [STATUS_REQUEST, DELIVERY_REQUEST, LIVE_CHANGE])
async def test_without_return_route_nothing_is_said_and_nothing_leased(
    holder: Holder, kind: str
) -> None:
    await holder.queue(ALICE, 1)
    said: list[Members] = [{"limit": 5, "live_delivery": True}, {"limit": -1, "recipient_key": 7}]
    for members in said:
        outcome = await holder.outcome(ALICE, kind, routable=False, persistent=True, **members)
        assert outcome == NOTHING
    state = await holder.state(ALICE)
    assert (state.available, state.live) == (1, False)


async def test_without_return_route_an_acknowledgement_still_counts(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    assert await holder.outcome(ALICE, RECEIVED, routable=False, message_id_list=ids[:1]) == NOTHING
    assert (await holder.state(ALICE)).messages == 1


async def test_no_answer_of_the_protocol_waits_in_the_queue(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1)
    for kind, members in (
        (STATUS_REQUEST, {}),
        (DELIVERY_REQUEST, {"limit": 1}),
        (DELIVERY_REQUEST, {"limit": -1}),
        (RECEIVED, {"message_id_list": ids}),
        (LIVE_CHANGE, {"live_delivery": True}),
    ):
        outcome = await holder.outcome(ALICE, kind, **members)
        assert outcome.reply is not None
        assert not outcome.may_wait


async def test_live_mode_is_answered_by_a_status_and_starts_with_what_comes_next(
    holder: Holder, socket: Members
) -> None:
    await holder.queue(ALICE, 1)
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **socket)
    assert outcome.reply is not None
    assert holder.reply_of(outcome)["@type"] == STATUS
    assert holder.reply_of(outcome)["live_delivery"] is True
    assert holder.reply_of(outcome)["message_count"] == 1
    assert outcome.live is not None
    assert outcome.live.delivery
    await holder.deliver_live(ALICE, "socket", outcome.live.version)
    assert (await holder.state(ALICE)).live
    await holder.queue(ALICE, 2)
    after = await holder.state(ALICE)
    # What came next is with the socket already; what waited before has to be asked for.
    assert (after.messages, after.available) == (2, 1)


async def test_live_mode_ends_by_request_and_says_so(holder: Holder, socket: Members) -> None:
    await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **socket)
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=False, **socket)
    assert outcome.reply is not None
    assert holder.reply_of(outcome)["live_delivery"] is False
    assert isinstance(outcome.live, LiveModeChange)
    assert not outcome.live.delivery
    assert not (await holder.state(ALICE)).live
    assert await holder.deliver_live(ALICE, "socket", 0) is Refusal.LIVE_ELSEWHERE


async def test_a_second_socket_takes_live_mode_over_with_what_was_in_flight(
    holder: Holder, socket: Members
) -> None:
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **socket)
    assert outcome.live is not None
    ids = await holder.queue(ALICE, 1)
    await holder.deliver_live(ALICE, "socket", outcome.live.version)
    assert (await holder.state(ALICE)).available == 0
    second: Members = {"persistent": True, "session": "second"}
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **second)
    assert outcome.live is not None
    await holder.deliver_live(ALICE, "second", outcome.live.version)
    assert await holder.deliver_live(ALICE, "socket", 0) is Refusal.LIVE_ELSEWHERE
    assert list(delivered(await holder.ask(ALICE, DELIVERY_REQUEST, limit=9, **second))) == ids


async def test_an_acknowledgement_over_http_is_for_what_came_over_the_socket_too(
    holder: Holder, socket: Members
) -> None:
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **socket)
    assert outcome.live is not None
    ids = await holder.queue(ALICE, 1)
    await holder.deliver_live(ALICE, "socket", outcome.live.version)
    status = await holder.ask(ALICE, RECEIVED, message_id_list=ids)
    assert (status["message_count"], status["live_delivery"]) == (0, True)


async def test_live_mode_over_http_is_the_documented_problem(holder: Holder) -> None:
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True)
    report: Members = holder.reply_of(outcome)
    assert problem_code(report) == "e.m.live-mode-not-supported"
    assert report["~thread"]["pthid"] == ASK_ID
    assert report["description"]["en"] == "Connection does not support Live Delivery"
    assert outcome.live is None
    assert not (await holder.state(ALICE)).live


async def test_live_mode_can_be_off_over_http_and_the_socket_keeps_its_own(
    holder: Holder, socket: Members
) -> None:
    status = await holder.ask(ALICE, LIVE_CHANGE, live_delivery=False)
    assert (status["@type"], status["live_delivery"]) == (STATUS, False)
    outcome = await holder.outcome(ALICE, LIVE_CHANGE, live_delivery=True, **socket)
    assert outcome.live is not None
    await holder.deliver_live(ALICE, "socket", outcome.live.version)
    await holder.ask(ALICE, LIVE_CHANGE, live_delivery=False)
    assert (await holder.state(ALICE)).live


@pytest.mark.parametrize("wanted", [None, "true", 1, 0, [], {}])
@pytest.mark.parametrize("persistent", [False, True])
async def test_a_live_mode_that_is_no_boolean_is_a_problem(
    holder: Holder, persistent: bool, wanted: object
) -> None:
    report = await holder.ask(ALICE, LIVE_CHANGE, live_delivery=wanted, persistent=persistent)
    assert problem_code(report) == "invalid-message"
    assert not (await holder.state(ALICE)).live


async def test_an_unknown_outcome_is_reported_and_nothing_is_said_to_be_removed(
    holder: Holder,
) -> None:
    ids = await holder.queue(ALICE, 1)
    holder.cut()
    for kind, members in (
        (STATUS_REQUEST, {}),
        (DELIVERY_REQUEST, {"limit": 1}),
        (RECEIVED, {"message_id_list": ids}),
        (LIVE_CHANGE, {"live_delivery": True, "persistent": True}),
    ):
        outcome = await holder.outcome(ALICE, kind, **members)
        assert outcome.reply is not None
        assert problem_code(holder.reply_of(outcome)) == "try-again"
        assert outcome.live is None
    holder.mend()
    assert (await holder.state(ALICE)).messages == 1


async def test_an_agent_that_never_connected_gets_a_report_of_it(holder: Holder) -> None:
    report = await holder.ask(Recipient(7), STATUS_REQUEST)
    assert problem_code(report) == "not-connected"
