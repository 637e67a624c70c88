"""Aries queue 1.0 (the owner's document): status, the owner's own rules, and fetching."""

from __future__ import annotations

from typing import Any, Final

import pytest

from http_edge.clients.didcomm import QueueStatus
from tests.edge.didcomm.wallet_network import (
    PREFIXES,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    fresh,
    ids,
    numbered,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock

QUEUE: Final = "queue/1.0/"
HOUR_S: Final = 3_600


async def reply_to(bob: Bob, name: str, **members: Any) -> Json:
    return await answer_to(bob.wallet, QUEUE + name, **members)


async def test_a_status_has_every_property(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    limits = network.mediator.settings.limits
    rules = {
        "duration_limit": network.mediator.settings.retention.messages_s,
        "message_count_limit": limits.queue_messages_max,
        "message_size_limit": network.mediator.settings.didcomm.message_bytes_max,
        "size_limit": limits.queue_bytes_max,
        "will_queue": True,
    }
    empty = (await reply_to(bob, "status-request"))["status"]
    assert empty == {**rules, "message_count": 0, "duration_waited": 0, "size": 0}
    envelopes = [envelope_of(bob.key, text) for text in ("one", "two")]
    for envelope in envelopes:
        assert (await network.post(envelope)).status == 202
        clock.advance(60)
    await bob.wallet.queue_fetch(1)
    await bob.wallet.ping()  # what was written has left the queue by then
    clock.advance(30)
    assert (await reply_to(bob, "status-request"))["status"] == {
        **rules,
        "message_count": 1,
        "duration_waited": 30,
        "last_added_time": "2027-01-15 08:01:00Z",
        "last_delivered_time": "2027-01-15 08:02:00Z",
        "last_removed_time": "2027-01-15 08:02:00Z",
        "size": len(envelopes[1]),
    }


async def test_an_answer_has_the_prefix_and_the_thread_of_its_question(bob: Bob) -> None:
    cases: list[Any] = PREFIXES
    more: list[Any] = [
        ("status-request", "status"),
        ("status-update-request", "status"),
        ("fetch-request", "batch"),
    ]
    for prefix in cases:
        for name, answered in more:
            question = fresh(**{"@type": prefix + QUEUE + name, **routed("thread")})
            answer = await bob.wallet.ask(question)
            assert answer is not None
            assert answer["@type"] == prefix + QUEUE + answered
            assert answer["~thread"] == {"thid": question["@id"]}


async def test_messages_expire_by_the_owners_duration(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    assert (await bob.wallet.update_queue(duration_limit=HOUR_S)).duration_limit_s == HOUR_S
    await network.write(bob, "old")
    clock.advance(HOUR_S - 1)
    await network.write(bob, "new")
    assert (await bob.wallet.queue_status()).message_count == 2
    clock.advance(2)
    assert (await bob.wallet.queue_status()).message_count == 1
    assert bob.texts(await bob.wallet.queue_fetch()) == ["new"]


async def test_more_messages_than_the_owner_wants_are_refused_explicitly(
    network: WalletNetwork, bob: Bob
) -> None:
    assert (await bob.wallet.update_queue(message_count_limit=2)).message_count_limit == 2
    await network.write(bob, "one", "two")
    refused = await network.forward_text(bob.key, "three")
    assert (refused.status, refused.json) == (429, {"error": "queue-full"})
    assert int(refused.headers["Retry-After"]) > 0
    assert bob.texts(await bob.wallet.queue_fetch(1)) == ["one"]
    await network.write(bob, "three")
    assert await bob.drained() == ["two", "three"]


async def test_a_message_larger_than_the_owner_wants_is_refused_explicitly(
    network: WalletNetwork, bob: Bob
) -> None:
    small = len(envelope_of(bob.key, "small"))
    await bob.wallet.update_queue(message_size_limit=small + 50)
    await network.write(bob, "small")
    refused = await network.forward_text(bob.key, "x" * 200)
    assert (refused.status, refused.json) == (413, {"error": "message-too-large"})
    assert await bob.drained() == ["small"]


async def test_more_bytes_than_the_owner_wants_are_refused_explicitly(
    network: WalletNetwork, bob: Bob
) -> None:
    size = len(envelope_of(bob.key, "12345"))
    await bob.wallet.update_queue(size_limit=2 * size)
    await network.write(bob, "12345", "67890")
    refused = await network.forward_text(bob.key, "more!")
    assert (refused.status, refused.json) == (429, {"error": "queue-full"})
    assert await bob.drained() == ["12345", "67890"]


async def test_will_queue_false_refuses_future_messages_and_leaves_the_queued(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one", "two")
    status = await bob.wallet.update_queue(will_queue=False)
    assert (status.will_queue, status.message_count) == (False, 2)
    refused = await network.forward_text(bob.key, "three")
    assert (refused.status, refused.json) == (409, {"error": "not-queuing"})
    assert bob.texts(await bob.wallet.queue_fetch()) == ["one", "two"]
    assert (await bob.wallet.update_queue(will_queue=True)).will_queue is True
    await network.write(bob, "four")
    assert await bob.drained() == ["four"]


async def test_who_listens_gets_messages_though_none_may_wait(
    network: WalletNetwork, bob: Bob
) -> None:
    await bob.wallet.update_queue(will_queue=False)
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        (picked,) = await live.next()
        assert bob.read(picked) == "one"
        await live.received([picked.id])


async def test_an_update_changes_only_what_it_names(bob: Bob) -> None:
    await bob.wallet.update_queue(message_count_limit=5, duration_limit=60)
    status = await bob.wallet.update_queue(size_limit=100_000)
    assert (status.message_count_limit, status.duration_limit_s) == (5, 60)
    assert status.total_bytes_limit == 100_000
    status = await bob.wallet.update_queue(message_count_limit=0)  # none of its own any more
    assert status.message_count_limit == 10_000


@pytest.mark.parametrize(
    "settings",
    [
        {
            "limits": {"queue_messages_max": 3, "queue_sender_share_max": 1},
            "retention": {"messages_s": 600},
        }
    ],
)
async def test_the_owners_rules_stay_within_the_operators(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    status = await bob.wallet.update_queue(message_count_limit=1_000, duration_limit=100_000)
    assert (status.message_count_limit, status.duration_limit_s) == (3, 600)
    await network.write(bob, *numbered(3))
    assert (await network.forward_text(bob.key, "one more")).status == 429
    clock.advance(601)
    assert (await bob.wallet.queue_status()).message_count == 0


async def test_what_cannot_be_followed_is_discarded(bob: Bob) -> None:
    cases: list[Any] = [
        None,
        [],
        {},
        {"will_queue": "false"},
        {"will_queue": 0},
        {"duration_limit": -1, "message_count_limit": "five", "size_limit": 1.5},
        {"message_size_limit": True, "nonsense": 1},
    ]
    for update in cases:
        before = await bob.wallet.queue_status()
        facts = len(before.__struct_fields__)
        answer = await reply_to(bob, "status-update-request", update=update)
        assert len(answer["status"]) <= facts
        assert await bob.wallet.queue_status() == before


async def test_the_rules_outlive_the_mediator(network: WalletNetwork, bob: Bob) -> None:
    await bob.wallet.update_queue(message_count_limit=7, will_queue=False)
    before = await bob.wallet.queue_status()
    await network.mediator.restart()
    assert await bob.wallet.queue_status() == before
    assert isinstance(before, QueueStatus)


async def test_a_fetch_brings_the_oldest_first_with_the_time_of_each(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    envelopes = [envelope_of(bob.key, text) for text in numbered(3)]
    for envelope in envelopes:
        assert (await network.post(envelope)).status == 202
        clock.advance(60)
    batch = await reply_to(bob, "fetch-request", message_count_limit=2)
    assert batch["message_count"] == 2
    assert all(set(item) == {"id", "msg", "added_time"} for item in batch["messages"])
    assert [item["added_time"] for item in batch["messages"]] == [
        "2027-01-15 08:00:00Z",
        "2027-01-15 08:01:00Z",
    ]
    (last,) = await bob.wallet.queue_fetch()
    assert bob.read(last) == "message 002"
    assert await bob.wallet.queue_fetch() == []


@pytest.mark.parametrize("settings", [{"didcomm": {"delivery_messages_max": 3}}])
async def test_a_fetch_is_bounded_by_the_operator(network: WalletNetwork, bob: Bob) -> None:
    await network.write(bob, *numbered(5))
    assert len(await bob.wallet.queue_fetch()) == 3
    assert len(await bob.wallet.queue_fetch(1_000)) == 2


async def test_a_limit_that_is_no_count_is_reported(network: WalletNetwork, bob: Bob) -> None:
    cases: list[Any] = [-1, "one", 1.5, True, [1]]
    for limit in cases:
        await network.write(bob, "one")
        report = await reply_to(bob, "fetch-request", message_count_limit=limit)
        assert report["description"]["code"] == "invalid-message"
        assert await bob.drained() == ["one"]


async def test_a_limit_of_zero_fetches_nothing(network: WalletNetwork, bob: Bob) -> None:
    await network.write(bob, "one")
    assert await bob.wallet.queue_fetch(0) == []
    assert await bob.drained() == ["one"]


async def test_messages_of_the_mediator_itself_wait_in_the_same_queue(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.idle_replies(bob.wallet, 1)
    await network.write(bob, "one")
    pong, one = await bob.wallet.queue_fetch()
    opened = bob.connection.open(pong.envelope)
    assert isinstance(opened, dict)
    assert str(opened["@type"]).endswith("/ping_response")
    assert bob.read(one) == "one"


async def test_a_fetch_without_a_return_route_takes_nothing(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    assert (await network.say(bob.connection, QUEUE + "fetch-request")).status == 202
    assert await bob.drained() == ["one"]


async def test_every_generation_of_pickup_takes_from_one_queue(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(5)
    await network.write(bob, *texts)
    seen = bob.texts(await bob.wallet.batch(1))
    seen += bob.texts(await bob.wallet.queue_fetch(1))
    seen.append(bob.read(await bob.wallet.noop()))
    picked = await bob.wallet.fetch(1)
    seen += bob.texts(picked)
    await bob.wallet.received(ids(picked))
    seen.append(bob.read(await bob.wallet.implicit()))
    assert seen == texts
    assert (await bob.wallet.queue_status()).message_count == 0
