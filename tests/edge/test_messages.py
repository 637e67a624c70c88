"""DCTRL-0004 section 7, 8.7 and 8.8: messages from their sender to their acknowledgement."""

from __future__ import annotations

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import (
    MEDIATOR_DID,
    SUCCESS,
    HandClock,
    Mediator,
)

NO_CONTRACT = (404, "COMMUNICATION_CONTRACT_NOT_FOUND")
NOT_REGISTERED = (404, "RECIPIENT_NOT_REGISTERED")
QUERY = "QUERY_PENDING_EVENTS"
ACKNOWLEDGE = "ACKNOWLEDGE_PENDING_EVENTS"

# Nonce and effect fall on the same host and on two; see test_layouts.py for the other layouts.
pytestmark = pytest.mark.parametrize("layout", ["two hosts"])


@pytest.fixture(autouse=True)
async def _they_are_friends(friends: None) -> None:
    """Alice and Bob are registered and may write to one another."""


async def test_trap_46_a_message_is_answered_with_the_id_that_its_recipient_finds(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    answer = await mediator.write(alice, bob, "sealed")
    message_id = answer.json["pendingEventId"]
    assert answer.status == 200
    assert answer.json == {"type": "SUCCESS", "pendingEventId": message_id}
    found = await mediator.do(bob, QUERY)
    assert (found.status, found.json) == (
        200,
        {
            "type": "SUCCESS",
            "payload": {
                "pending_events": [
                    {"id": message_id, "payload": "sealed", "sender_did": alice.did}
                ],
                "pagination": {"page": 0, "page_size": 10, "total": 1},
            },
        },
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\r\n ",
        "AAAA==",
        '{"type":"SUCCESS"}',
        "é\u0301 ﬁ 😀 \u202e\u2028\x00\x7f\ufeff",
        "x" * 500_000,
        '[{"' * 50_000,
    ],
    ids=["empty", "blank", "base64", "json", "unicode", "long", "brackets"],
)
async def test_trap_49_a_payload_comes_back_byte_for_byte(
    mediator: Mediator, alice: Identity, bob: Identity, text: str
) -> None:
    async with mediator.socket(bob) as socket:
        await mediator.delivered(alice, bob, text)
        (pushed,) = (await socket.hear())["events"]
    assert pushed["payload"] == text
    await mediator.restart()
    assert await mediator.waiting(bob) == [text]


@pytest.mark.parametrize(
    "did", ["", "bob", "did:decentrl:x", "did:web:bob.example", "did:unknown:bob"]
)
async def test_trap_41_a_recipient_that_does_not_resolve_is_not_found(
    mediator: Mediator, alice: Identity, did: str
) -> None:
    answer = await mediator.send(alice, "hi", to=did, channel="TWO_WAY_PRIVATE")
    assert answer.refusal == (404, "RECIPIENT_NOT_FOUND")


async def test_trap_41_registration_is_checked_before_the_contract(
    mediator: Mediator, alice: Identity, carol: Identity
) -> None:
    assert (await mediator.write(alice, carol, "hi")).refusal == NOT_REGISTERED
    await mediator.register(carol)
    assert (await mediator.write(alice, carol, "hi")).refusal == NO_CONTRACT


async def test_trap_42_a_contract_that_the_sender_alone_saved_does_not_count(
    mediator: Mediator, alice: Identity, carol: Identity
) -> None:
    await mediator.register(carol)
    await mediator.befriend(carol, alice)
    assert (await mediator.write(alice, carol, "hi")).status == 200
    assert (await mediator.write(carol, alice, "hi")).refusal == NO_CONTRACT


async def test_trap_43_no_identity_has_a_contract_with_itself(
    mediator: Mediator, alice: Identity
) -> None:
    assert (await mediator.write(alice, alice, "hi")).refusal == NO_CONTRACT
    assert await mediator.waiting(alice) == []


async def test_trap_44_a_contract_ends_at_its_expiry(
    mediator: Mediator, clock: HandClock, alice: Identity, carol: Identity
) -> None:
    await mediator.register(carol)
    await mediator.befriend(carol, alice, 60)
    clock.advance(59.999)
    assert (await mediator.write(alice, carol, "in time")).status == 200
    clock.advance(0.001)
    assert (await mediator.write(alice, carol, "late")).refusal == NO_CONTRACT
    assert await mediator.waiting(carol) == ["in time"]
    await mediator.befriend(carol, alice, 60)
    assert (await mediator.write(alice, carol, "renewed")).status == 200


async def test_trap_45_the_mediator_itself_takes_no_messages(
    mediator: Mediator, alice: Identity
) -> None:
    answer = await mediator.send(alice, "hi", to=MEDIATOR_DID, channel="TWO_WAY_PRIVATE")
    assert answer.refusal == NOT_REGISTERED


async def test_trap_47_the_sender_need_not_be_registered(mediator: Mediator, bob: Identity) -> None:
    elsewhere = Identity("elsewhere", mediator_did="did:web:other.example")
    await mediator.befriend(bob, elsewhere)
    await mediator.delivered(elsewhere, bob, "from afar")
    assert await mediator.waiting(bob) == ["from afar"]


async def test_trap_50_a_message_that_was_pushed_still_waits_until_it_is_acknowledged(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    async with mediator.socket(bob) as socket:
        message_id = await mediator.delivered(alice, bob, "hi")
        assert (await socket.hear())["events"][0]["id"] == message_id
        assert await mediator.waiting(bob) == ["hi"]
        await mediator.do(bob, ACKNOWLEDGE, event_ids=[message_id])
    assert await mediator.waiting(bob) == []


async def test_trap_55_messages_wait_in_the_order_of_their_arrival(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.befriend(bob, carol)
    texts = [f"message {number}" for number in range(12)]
    for number, text in enumerate(texts):
        await mediator.delivered((alice, carol)[number % 2], bob, text)
    pages = [
        await mediator.records(bob, QUERY, pagination={"page": page, "page_size": 5})
        for page in range(3)
    ]
    assert [event["payload"] for page in pages for event in page] == texts
    await mediator.restart()
    again = await mediator.records(bob, QUERY, pagination={"page": 0, "page_size": 12})
    assert [event for page in pages for event in page] == again
    of_carol = await mediator.records(bob, QUERY, filter={"sender_did": carol.did})
    assert of_carol == again[1::2]


async def test_an_acknowledged_message_is_gone_for_good(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    ids = [await mediator.delivered(alice, bob, text) for text in ("one", "two", "three")]
    answer = await mediator.do(bob, ACKNOWLEDGE, event_ids=[ids[1], ids[1], "unknown"])
    assert (answer.status, answer.json) == (200, SUCCESS)
    assert await mediator.waiting(bob) == ["one", "three"]
    for event_ids in ([ids[1]], []):
        again = await mediator.do(bob, ACKNOWLEDGE, event_ids=event_ids)
        assert again.json == SUCCESS
    await mediator.restart()
    assert await mediator.waiting(bob) == ["one", "three"]


async def test_trap_57_one_acknowledges_only_ones_own_and_learns_nothing_about_others(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(carol)
    message_id = await mediator.delivered(alice, bob, "for Bob")
    before = mediator.facts()
    answers = [
        await mediator.do(identity, ACKNOWLEDGE, event_ids=[some_id])
        for identity in (alice, carol)
        for some_id in (message_id, "unknown")
    ]
    assert [answer.body for answer in answers] == [answers[0].body] * 4
    assert answers[0].json == SUCCESS
    assert mediator.facts() == before
    assert await mediator.waiting(bob) == ["for Bob"]


@pytest.mark.parametrize(
    "settings", [{"limits": {"queue_messages_max": 2, "queue_sender_share_max": 1}}]
)
async def test_a_queue_that_is_full_by_number_refuses_and_drops_nothing(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    first = await mediator.delivered(alice, bob, "one")
    await mediator.delivered(alice, bob, "two")
    full = await mediator.write(alice, bob, "three")
    assert full.refusal == (429, "RECIPIENT_QUEUE_FULL")
    assert int(full.headers["Retry-After"]) > 0
    assert await mediator.waiting(bob) == ["one", "two"]
    assert (await mediator.write(bob, alice, "others have room")).status == 200
    await mediator.do(bob, ACKNOWLEDGE, event_ids=[first])
    await mediator.delivered(alice, bob, "three")
    assert await mediator.waiting(bob) == ["two", "three"]


@pytest.mark.parametrize(
    "settings", [{"limits": {"queue_bytes_max": 2**20, "queue_sender_share_max": 1}}]
)
async def test_a_queue_that_is_full_by_bytes_refuses_and_drops_nothing(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    half = 2**19
    first = await mediator.delivered(alice, bob, "x" * half)
    await mediator.delivered(alice, bob, "é" * (half // 2))
    assert (await mediator.write(alice, bob, "x")).refusal == (429, "RECIPIENT_QUEUE_FULL")
    assert (await mediator.write(alice, bob, "")).status == 200
    await mediator.do(bob, ACKNOWLEDGE, event_ids=[first])
    assert (await mediator.write(alice, bob, "x" * (half + 1))).refusal[0] == 429
    assert (await mediator.write(alice, bob, "x" * half)).status == 200
