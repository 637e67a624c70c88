"""DCTRL-0004 8.9 to 8.11: the identity's own encrypted history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.identities import Identity, Json
from tests.edge.mediator import SUCCESS, HandClock, Mediator

INVALID = (400, "INVALID_COMMAND")

# Nonce and effect fall on the same host and on two; see test_layouts.py for the other layouts.
pytestmark = pytest.mark.parametrize("layout", ["two hosts"])


@pytest.fixture(autouse=True)
async def _alice_and_bob_are_registered(mediator: Mediator, alice: Identity, bob: Identity) -> None:
    await mediator.register(alice, bob)


def event(
    sender: Identity, recipient: Identity, payload: str, at_s: float = 1, **more: Any
) -> Json:
    return {
        "sender_did": sender.did,
        "recipient_did": recipient.did,
        "timestamp": at_s,
        "payload": payload,
        "encrypted_tags": [],
        **more,
    }


async def save(mediator: Mediator, owner: Identity, *events: Json) -> None:
    answer = await mediator.do(owner, "SAVE_EVENTS", events=list(events))
    assert (answer.status, answer.json) == (200, SUCCESS)


async def saved(mediator: Mediator, owner: Identity, **where: Any) -> list[Json]:
    return await mediator.records(owner, "QUERY_EVENTS", filter=where)


async def payloads(mediator: Mediator, owner: Identity, **where: Any) -> list[str]:
    return [record["payload"] for record in await saved(mediator, owner, **where)]


async def test_trap_68_an_event_comes_back_with_four_members(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    tags = [alice.tag("one"), alice.tag("two")]
    kept = event(alice, bob, "sealed", 1_699_123_456, contract_id="c", encrypted_tags=tags)
    await save(mediator, alice, kept)
    found = await mediator.do(alice, "QUERY_EVENTS")
    (record,) = found.payload["events"]
    assert found.json == {
        "type": "SUCCESS",
        "payload": {
            "events": [
                {
                    "id": record["id"],
                    "payload": "sealed",
                    "encrypted_tags": tags,
                    "timestamp": 1_699_123_456,
                }
            ],
            "pagination": {"page": 0, "page_size": 10, "total": 1},
        },
    }


async def test_trap_60_owner_sender_and_recipient_need_not_be_related(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await save(
        mediator,
        alice,
        event(bob, carol, "one", contract_id=None),
        event(bob, carol, "two", contract_id="anything"),
        event(bob, carol, "three", sender_did="no did"),
    )
    assert await payloads(mediator, alice) == ["one", "two", "three"]
    assert await payloads(mediator, bob) == []


async def test_trap_61_the_same_events_twice_are_two_sets(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    for _ in range(2):
        await save(mediator, alice, event(alice, bob, "one"), event(alice, bob, "two"))
    records = await saved(mediator, alice)
    assert [record["payload"] for record in records] == ["one", "two", "one", "two"]
    assert len({record["id"] for record in records}) == 4


GOOD: Json = {
    "sender_did": "a",
    "recipient_did": "b",
    "timestamp": 1,
    "payload": "p",
    "encrypted_tags": [],
}


async def test_trap_61_one_bad_event_refuses_all(mediator: Mediator, alice: Identity) -> None:
    before = mediator.facts()
    answer = await mediator.do(alice, "SAVE_EVENTS", events=[GOOD, {**GOOD, "timestamp": "1"}])
    assert answer.refusal == INVALID
    assert mediator.facts() == before
    assert await saved(mediator, alice) == []


async def test_trap_62_tags_are_optional_and_keep_order_and_duplicates(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    without = event(alice, bob, "without")
    del without["encrypted_tags"]
    await save(
        mediator,
        alice,
        without,
        event(alice, bob, "null", encrypted_tags=None),
        event(alice, bob, "some", encrypted_tags=["b", "a", "b", ""]),
    )
    assert [record["encrypted_tags"] for record in await saved(mediator, alice)] == [
        [],
        [],
        ["b", "a", "b", ""],
    ]
    assert await payloads(mediator, alice, encrypted_tags=["b"]) == ["some"]


@pytest.mark.parametrize("at_s", [0, -1, 1_699_123_456, 1_699_123_456_789, 1.25, -0.5, 1e15])
async def test_trap_63_a_timestamp_is_kept_as_given_and_never_compared_with_the_clock(
    mediator: Mediator, alice: Identity, bob: Identity, at_s: float
) -> None:
    await save(mediator, alice, event(alice, bob, "x", at_s))
    (record,) = await saved(mediator, alice)
    assert record["timestamp"] == at_s


async def test_trap_64_what_the_owner_wrote_is_processed_and_the_rest_is_not(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await save(mediator, alice, event(alice, bob, "mine"), event(bob, alice, "theirs"))
    for _ in range(2):  # asking changes nothing
        assert await payloads(mediator, alice, unprocessed_only=True) == ["theirs"]
    (theirs,) = await saved(mediator, alice, unprocessed_only=True)
    answer = await mediator.do(
        alice,
        "UPDATE_EVENT_TAGS",
        events=[{"event_id": theirs["id"], "encrypted_tags": ["t"]}],
    )
    assert (answer.status, answer.json) == (200, SUCCESS)
    assert await payloads(mediator, alice, unprocessed_only=True) == []
    assert await payloads(mediator, alice) == ["mine", "theirs"]


async def test_trap_65_filters_are_combined_and_empty_ones_filter_nothing(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await save(
        mediator,
        alice,
        event(alice, bob, "1", 10, encrypted_tags=["x"]),
        event(bob, alice, "2", 20, encrypted_tags=["x", "y"]),
        event(carol, alice, "3", 30, encrypted_tags=["y"]),
        event(alice, carol, "4", 40),
    )
    everything = ["1", "2", "3", "4"]

    async def found(**where: Any) -> list[str]:
        return await payloads(mediator, alice, **where)

    assert await found(participant_did=bob.did) == ["1", "2"]
    assert await found(participant_did=carol.did) == ["3", "4"]
    assert await found(participant_did=alice.did) == everything
    assert await found(encrypted_tags=["x"]) == ["1", "2"]
    assert await found(encrypted_tags=["x", "y", "z"]) == ["1", "2", "3"]
    assert await found(encrypted_tags=["X"]) == []
    assert await found(encrypted_tags=[]) == everything
    assert await found(unprocessed_only=False) == everything
    assert await found(unprocessed_only=True) == ["2", "3"]
    assert await found(participant_did=bob.did, encrypted_tags=["y"]) == ["2"]
    assert await found(encrypted_tags=["x"], unprocessed_only=True, after_timestamp=10) == ["2"]
    assert await found(participant_did=bob.did, before_timestamp=20) == ["1"]
    nothing = dict.fromkeys(
        ("participant_did", "encrypted_tags", "unprocessed_only", "after_timestamp")
    )
    assert await found(**nothing) == everything
    total = (
        await mediator.do(
            alice,
            "QUERY_EVENTS",
            filter={"encrypted_tags": ["x", "y"]},
            pagination={"page": 1, "page_size": 2},
        )
    ).payload
    assert [record["payload"] for record in total["events"]] == ["3"]
    assert total["pagination"] == {"page": 1, "page_size": 2, "total": 3}


async def test_trap_66_both_times_exclude_the_bound_and_zero_is_a_time(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    for at_s in (-1, 0, 1, 1.5, 2):
        await save(mediator, alice, event(alice, bob, str(at_s), at_s))

    async def found(**where: Any) -> list[str]:
        return await payloads(mediator, alice, **where)

    assert await found(after_timestamp=1) == ["1.5", "2"]
    assert await found(before_timestamp=1) == ["-1", "0"]
    assert await found(after_timestamp=0) == ["1", "1.5", "2"]
    assert await found(before_timestamp=0) == ["-1"]
    assert await found(after_timestamp=0.5, before_timestamp=1.75) == ["1", "1.5"]
    assert await found(after_timestamp=2, before_timestamp=1) == []


async def test_trap_67_events_are_ordered_by_time_and_then_by_their_saving(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await save(mediator, alice, event(alice, bob, "c", 2), event(alice, bob, "a", 1))
    await save(mediator, alice, event(alice, bob, "d", 2), event(alice, bob, "b", 1.5))
    assert await payloads(mediator, alice) == ["a", "b", "c", "d"]
    pages = [
        await mediator.records(alice, "QUERY_EVENTS", pagination={"page": page, "page_size": 1})
        for page in range(4)
    ]
    assert [record["payload"] for (record,) in pages] == ["a", "b", "c", "d"]


async def test_trap_69_tags_are_replaced_and_the_last_of_several_updates_counts(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await save(
        mediator,
        alice,
        event(bob, alice, "one", 1, encrypted_tags=["old"]),
        event(bob, alice, "two", 2, encrypted_tags=["old"]),
    )
    one, two = [record["id"] for record in await saved(mediator, alice)]
    answer = await mediator.do(
        alice,
        "UPDATE_EVENT_TAGS",
        events=[
            {"event_id": one, "encrypted_tags": ["first"]},
            {"event_id": "unknown", "encrypted_tags": ["x"]},
            {"event_id": two, "encrypted_tags": []},
            {"event_id": one, "encrypted_tags": ["last", "new"]},
        ],
    )
    assert answer.json == SUCCESS
    assert [record["encrypted_tags"] for record in await saved(mediator, alice)] == [
        ["last", "new"],
        [],
    ]
    assert await payloads(mediator, alice, encrypted_tags=["old", "first"]) == []
    assert await payloads(mediator, alice, encrypted_tags=["new"]) == ["one"]
    assert await payloads(mediator, alice, unprocessed_only=True) == []


async def test_trap_69_events_of_others_are_skipped_and_not_distinguished(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await save(mediator, alice, event(bob, alice, "x", encrypted_tags=["old"]))
    (record,) = await saved(mediator, alice)
    answers = [
        await mediator.do(
            bob, "UPDATE_EVENT_TAGS", events=[{"event_id": some_id, "encrypted_tags": ["new"]}]
        )
        for some_id in (record["id"], "unknown")
    ]
    assert [answer.json for answer in answers] == [SUCCESS, SUCCESS]
    assert not any(fact.startswith("event-tags") for fact in mediator.facts())
    assert await saved(mediator, alice, unprocessed_only=True) == [record]


async def test_the_history_survives_a_restart_and_the_end_of_the_registration(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await save(mediator, alice, event(bob, alice, "kept", encrypted_tags=["t"]))
    before = await saved(mediator, alice)
    clock.advance(200_000)
    await mediator.restart()
    await mediator.register(alice)
    assert await saved(mediator, alice, encrypted_tags=["t"], unprocessed_only=True) == before


@pytest.mark.parametrize(
    "settings", [{"limits": {"saved_events_max": 3, "saved_events_per_command_max": 2}}]
)
async def test_the_history_has_a_quota_and_refuses_a_command_whole(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    three = [event(alice, bob, str(number), number) for number in range(3)]
    answer = await mediator.do(alice, "SAVE_EVENTS", events=three)
    assert answer.refusal == INVALID
    await save(mediator, alice, *three[:2])
    over = await mediator.do(alice, "SAVE_EVENTS", events=three[1:])
    assert over.refusal == (429, "QUOTA_EXCEEDED")
    assert int(over.headers["Retry-After"]) > 0
    await save(mediator, alice, three[2])
    assert await payloads(mediator, alice) == ["0", "1", "2"]
    await save(mediator, bob, three[0])
