"""Message pickup 3.0 and 4.0 over the real core; 4.0 in its v1 form, as its page writes it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.protocols.protocol import LiveModeChange
from tests.unit.didcomm.queue_holder import (
    ALICE,
    ASK_ID,
    BOB,
    NEW,
    Holder,
    Members,
    Recipient,
    envelope,
)

PICKUP_3 = "messagepickup/3.0/"
PICKUP_4 = "message-pickup/4.0/"
LIMITS = {PICKUP_3: "limit", PICKUP_4: "message_count_limit"}
ALICES, BOBS = did_key(ALICE.raw_keys[0]), did_key(BOB.raw_keys[0])


@pytest.fixture(params=[PICKUP_3, PICKUP_4])
def protocol(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


async def request_delivery(
    holder: Holder, protocol: str, limit: object = 10, **members: Any
) -> Members:
    return await holder.ask(
        ALICE, f"{protocol}delivery-request", **{LIMITS[protocol]: limit}, **members
    )


def delivered(delivery: Members) -> dict[str, bytes]:
    """Envelopes by id, in the order of a delivery."""
    assert delivery["@type"].endswith("/delivery"), delivery
    return {
        item["@id"]: base64.b64decode(item["data"]["base64"], validate=True).rstrip(b" ")
        for item in delivery["~attach"]
    }


# ---- what both share


async def test_a_delivery_carries_the_oldest_messages_in_the_thread_of_its_request(
    holder: Holder, protocol: str
) -> None:
    ids = await holder.queue(ALICE, 1, 2, 3)
    delivery = await request_delivery(holder, protocol, 2)
    assert delivery["@type"] == f"{NEW}{protocol}delivery"
    assert delivery["~thread"] == {"thid": ASK_ID}
    assert list(delivered(delivery).items()) == [(ids[0], envelope(1)), (ids[1], envelope(2))]


async def test_a_recipient_narrows_and_is_echoed(holder: Holder, protocol: str) -> None:
    await holder.queue(ALICE, 1, key=0)
    await holder.queue(ALICE, 2, key=1)
    status = await holder.ask(ALICE, f"{protocol}status-request", recipient_did=ALICES)
    assert (status["recipient_did"], status["message_count"]) == (ALICES, 1)
    delivery = await request_delivery(holder, protocol, recipient_did=ALICES)
    assert delivery["recipient_did"] == ALICES
    assert list(delivered(delivery).values()) == [envelope(1)]


@pytest.mark.parametrize("recipient", [BOBS, "did:example:none", "no DID"])
async def test_for_a_recipient_of_another_and_for_none_nothing_waits(
    holder: Holder, protocol: str, recipient: str
) -> None:
    await holder.queue(ALICE, 1)
    await holder.queue(BOB, 2)
    status = await holder.ask(ALICE, f"{protocol}status-request", recipient_did=recipient)
    assert (status["recipient_did"], status["message_count"]) == (recipient, 0)
    answer = await request_delivery(holder, protocol, recipient_did=recipient)
    assert answer["recipient_did"] == recipient
    assert not answer.get("~attach")
    assert (await holder.state(ALICE)).available == 1


async def test_both_generations_hold_leases_of_one_queue(holder: Holder, protocol: str) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    first = await request_delivery(holder, protocol, 1, session="new")
    assert list(delivered(first)) == ids[:1]
    second = await holder.ask(ALICE, "messagepickup/2.0/delivery-request", limit=10, session="old")
    assert list(delivered(second)) == ids[1:]


async def test_live_mode_on_a_socket_is_answered_by_a_status(holder: Holder, protocol: str) -> None:
    with holder.socket(ALICE) as socket:
        change = f"{protocol}live-delivery-change"
        outcome = await holder.outcome(ALICE, change, live_delivery=True, **socket)
        assert holder.reply_of(outcome)["live_delivery"] is True
        assert isinstance(outcome.live, LiveModeChange)
        assert outcome.live.delivery is not None
        assert outcome.live.delivery([]).kind == f"{protocol}delivery"
        outcome = await holder.outcome(ALICE, change, live_delivery=False, **socket)
        assert holder.reply_of(outcome)["live_delivery"] is False
        assert outcome.live == LiveModeChange(None, outcome.live.version if outcome.live else 0)


@pytest.mark.parametrize(
    "limit",
    [None, -1, -1.0, "-7", "seven", "", "7" * 16, "\u0667", True, 1.5, 1e21, 1e300, "1.0", [1]],
)
async def test_a_limit_that_is_none_is_a_problem(
    holder: Holder, protocol: str, limit: object
) -> None:
    ids = await holder.queue(ALICE, 1)
    report = await request_delivery(holder, protocol, limit)
    assert report["@type"].endswith("/problem-report")
    assert list(delivered(await request_delivery(holder, protocol))) == ids


async def test_a_limit_written_as_a_text_is_that_limit(holder: Holder, protocol: str) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    assert list(delivered(await request_delivery(holder, protocol, "1"))) == ids[:1]
    assert list(delivered(await request_delivery(holder, protocol, "9" * 15))) == ids[1:]


async def test_a_stranger_is_refused_as_none_of_ours(holder: Holder, protocol: str) -> None:
    outcome = await holder.outcome(Recipient(9), f"{protocol}status-request")
    assert outcome.refused == "not-connected"
    assert not outcome.may_wait


# ---- 3.0


async def test_an_empty_queue_is_a_status_in_3(holder: Holder) -> None:
    for limit in (0, 10):
        status = await request_delivery(holder, PICKUP_3, limit)
        assert status["@type"] == f"{NEW}{PICKUP_3}status"
        assert status["message_count"] == 0


async def test_an_acknowledgement_is_answered_by_a_status_in_3(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1, 2)
    kind = f"{PICKUP_3}messages-received"
    status = await holder.ask(ALICE, kind, message_id_list=ids[:1])
    assert status["@type"] == f"{NEW}{PICKUP_3}status"
    assert status["message_count"] == 1


# ---- 4.0


async def test_an_empty_queue_is_an_empty_delivery_in_4(holder: Holder) -> None:
    for limit in (0, 10):
        delivery = await request_delivery(holder, PICKUP_4, limit)
        assert delivery["@type"] == f"{NEW}{PICKUP_4}delivery"
        assert delivery["~thread"] == {"thid": ASK_ID}
        assert delivery["~attach"] == []


async def test_what_is_out_on_lease_ends_the_loop_of_a_wallet_in_4(holder: Holder) -> None:
    await holder.queue(ALICE, 1)
    await request_delivery(holder, PICKUP_4, session="phone")
    assert (await request_delivery(holder, PICKUP_4, session="laptop"))["~attach"] == []


async def test_an_acknowledgement_has_no_answer_in_4(holder: Holder) -> None:
    ids = await holder.queue(ALICE, 1)
    outcome = await holder.outcome(ALICE, f"{PICKUP_4}messages-received", message_id_list=ids)
    assert outcome.reply is None


async def test_live_mode_over_http_is_reported_by_the_protocol_itself_in_4(holder: Holder) -> None:
    report = await holder.ask(ALICE, f"{PICKUP_4}live-delivery-change", live_delivery=True)
    assert report.pop("@id")
    assert report == {
        "@type": f"{NEW}{PICKUP_4}problem-report",
        "~thread": {"thid": ASK_ID, "pthid": ASK_ID},
        "description": {
            "code": "e.m.live-mode-not-supported",
            "en": "Connection does not support Live Delivery",
        },
    }


async def test_an_acknowledgement_that_failed_is_reported_in_4(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await holder.queue(ALICE, 1)

    async def unknown(*_: Any, **__: Any) -> Refusal:
        return Refusal.TEMPORARILY_UNAVAILABLE

    monkeypatch.setattr(holder.identities, "ask", unknown)
    report = await holder.ask(ALICE, f"{PICKUP_4}messages-received", message_id_list=ids)
    assert report["description"]["code"] == "e.m.me.try-again"
