"""Pickup 2.0 (RFC 0685, and the owner's document) over real sockets; live mode has its own file."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from http_edge.clients.didcomm import ProblemReported
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, OLD_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.wallet_network import (
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    fresh,
    ids,
    numbered,
    opened,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock, Mediator

PICKUP = "messagepickup/2.0/"


async def reply_to(bob: Bob, name: str, **members: Any) -> Json:
    return await answer_to(bob.wallet, PICKUP + name, **members)


def kind(message: Json) -> str:
    return str(message["@type"]).removeprefix(NEW_PREFIX)


async def test_a_status_has_every_attribute_of_an_empty_queue(bob: Bob) -> None:
    status = await reply_to(bob, "status-request", **{"@id": "question"})
    assert status.pop("@id")
    assert status == {
        "@type": NEW_PREFIX + PICKUP + "status",
        "~thread": {"thid": "question"},
        "message_count": 0,
        "longest_waited_seconds": 0,
        "total_bytes": 0,
        "live_delivery": False,
    }


async def test_a_status_has_every_attribute_of_what_waits(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    envelopes = [envelope_of(bob.key, "first"), envelope_of(bob.key, "the second, which is longer")]
    for envelope, pause_s in zip(envelopes, (60, 30.5), strict=True):
        assert (await network.post(envelope)).status == 202
        clock.advance(pause_s)
    status = await reply_to(bob, "status-request")
    for name in ("@id", "@type", "~thread"):
        status.pop(name)
    assert status == {
        "message_count": 2,
        "longest_waited_seconds": 90,
        "newest_received_time": "2027-01-15 08:01:00Z",
        "oldest_received_time": "2027-01-15 08:00:00Z",
        "total_bytes": sum(map(len, envelopes)),
        "live_delivery": False,
    }


@pytest.mark.parametrize("spell", [base58, did_key, did_key_reference])
async def test_a_recipient_key_narrows_and_is_echoed_as_it_was_spelled(
    network: WalletNetwork, bob: Bob, spell: Any
) -> None:
    other = await bob.wallet.new_recipient()
    await network.write(bob, "one", "two")
    assert (await network.forward_text(other.key.public, "for the other key")).status == 202
    spelled = spell(bob.key)
    status = await reply_to(bob, "status-request", recipient_key=spelled)
    assert (status["message_count"], status["recipient_key"]) == (2, spelled)
    delivery = await reply_to(bob, "delivery-request", limit=10, recipient_key=spelled)
    assert delivery["recipient_key"] == spelled
    assert len(delivery["~attach"]) == 2
    # Everything is leased now; what a narrowed request finds is answered with the key again.
    nothing = await reply_to(bob, "delivery-request", limit=10, recipient_key=spelled)
    assert (kind(nothing), nothing["recipient_key"]) == (PICKUP + "status", spelled)
    (rest,) = await bob.wallet.fetch(10)
    assert other.unpack(rest.envelope).message["content"] == "for the other key"


async def test_for_an_unknown_key_nothing_waits(network: WalletNetwork, bob: Bob) -> None:
    cases: list[Any] = [base58(KeyPair.from_seed(b"k" * 32).public), "no key", "", "did:"]
    for key in cases:
        await network.write(bob, "one")
        status = await reply_to(bob, "status-request", recipient_key=key)
        assert (status["message_count"], status["total_bytes"]) == (0, 0)
        assert status["recipient_key"] == key
        answer = await reply_to(bob, "delivery-request", limit=10, recipient_key=key)
        assert (kind(answer), answer["message_count"]) == (PICKUP + "status", 0)
        assert await bob.drained() == ["one"]


async def test_the_key_of_another_is_an_unknown_key(network: WalletNetwork) -> None:
    bob, carol = await network.bobs(2)
    await network.write(carol, "for carol")
    status = await reply_to(bob, "status-request", recipient_key=base58(carol.key))
    assert status["message_count"] == 0
    answer = await reply_to(bob, "delivery-request", limit=10, recipient_key=base58(carol.key))
    assert kind(answer) == PICKUP + "status"
    assert await carol.drained() == ["for carol"]


async def test_without_a_key_all_keys_of_the_wallet_are_meant(
    network: WalletNetwork, bob: Bob
) -> None:
    others = [await bob.wallet.new_recipient() for _ in range(2)]
    for recipient in (bob.recipient, *others):
        assert (await network.forward_text(recipient.key.public, "hello")).status == 202
    assert (await reply_to(bob, "status-request"))["message_count"] == 3
    assert len(await bob.wallet.fetch(10)) == 3


async def test_messages_are_delivered_oldest_first_in_the_thread_of_the_request(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    texts = numbered(12)
    for text in texts:
        await network.write(bob, text)
        clock.advance(1)
    delivery = await reply_to(bob, "delivery-request", limit=5, **{"@id": "question"})
    assert delivery["~thread"] == {"thid": "question"}
    assert set(delivery) == {"@type", "@id", "~thread", "~attach"}
    assert all(set(item) == {"@id", "data"} for item in delivery["~attach"])
    first = [base64.b64decode(item["data"]["base64"]) for item in delivery["~attach"]]
    assert bob.texts(first) == texts[:5]
    assert bob.texts(await bob.wallet.fetch(100)) == texts[5:]


@pytest.mark.parametrize("no_id", [{}, {"@id": None}])
async def test_messages_without_an_id_as_the_texts_of_pickup_show_them_are_answered(
    network: WalletNetwork, bob: Bob, no_id: Json
) -> None:
    async def reply_without_id(name: str, **members: Any) -> Json:
        question = {"@type": NEW_PREFIX + PICKUP + name, **no_id, **members, **routed()}
        answer = await network.post(bob.connection.pack(question))
        assert answer.status == 200
        message = opened(bob.connection, answer.body)
        assert "~thread" not in message
        return message

    await network.write(bob, "hello")
    delivery = await reply_without_id("delivery-request", limit=1)
    ids = [item["@id"] for item in delivery["~attach"]]
    status = await reply_without_id("messages-received", message_id_list=ids)
    assert status["message_count"] == 0
    report = await reply_without_id("messages-received", message_id_list="not a list")
    assert report["description"]["code"] == "invalid-message"


async def test_an_answer_is_in_the_thread_that_the_request_names(bob: Bob) -> None:
    answer = await reply_to(bob, "status-request", **{"~thread": {"thid": "another"}})
    assert answer["~thread"] == {"thid": "another"}


async def test_an_attachment_reads_alike_in_every_dialect_of_base64(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = ["", "a", "ab", "abc", "ünï🙂>>>???~~~", "x" * 999]
    for text in cases:
        await network.write(bob, text)
        delivery = await reply_to(bob, "delivery-request", limit=1)
        encoded = delivery["~attach"][0]["data"]["base64"]
        strict = base64.b64decode(encoded, validate=True)
        assert base64.urlsafe_b64decode(encoded) == strict
        assert encoded.rstrip("=") == encoded  # so without padding it is the same
        assert bob.read(strict) == text
        orjson.loads(strict)


async def test_a_limit_of_zero_is_answered_with_the_status(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    answer = await reply_to(bob, "delivery-request", limit=0)
    assert (kind(answer), answer["message_count"]) == (PICKUP + "status", 1)
    assert await bob.drained() == ["one"]  # it was not leased


@pytest.mark.parametrize("settings", [{"didcomm": {"delivery_messages_max": 3}}])
@pytest.mark.parametrize("limit", [4, 2**31, 2**53 - 1])
async def test_a_huge_limit_is_taken_as_the_largest(
    network: WalletNetwork, bob: Bob, limit: int
) -> None:
    await network.write(bob, *numbered(4))
    assert len(await bob.wallet.fetch(limit)) == 3


async def test_a_limit_that_parsers_read_differently_makes_no_message(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = ["9007199254740993", "9223372036854775807", "1" * 30, "1e400"]
    for limit in cases:
        await network.write(bob, "one")
        question = fresh(**{"@type": NEW_PREFIX + PICKUP + "delivery-request", **routed()})
        text = orjson.dumps(question)[:-1] + b',"limit":' + limit.encode() + b"}"
        answer = await network.post(pack(text, [SERVICE.public], bob.connection.key))
        assert (answer.status, answer.json) == (400, {"error": "not-a-message"})
        assert await bob.drained() == ["one"]


async def test_a_limit_that_is_no_count_is_reported_and_none_leased(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = [{}, *[{"limit": limit} for limit in (-1, -(2**52), 1.5, True, "1.0", None)]]
    for wrong in cases:
        await network.write(bob, "one")
        report = await reply_to(bob, "delivery-request", **wrong)
        assert kind(report) == "notification/1.0/problem-report"
        assert report["description"]["code"] == "invalid-message"
        assert await bob.drained() == ["one"]


@pytest.mark.parametrize("settings", [{"didcomm": {"delivery_bytes_max": 65_536}}])
async def test_a_delivery_is_bounded_in_bytes_and_holds_one_message_at_least(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "a" * 100_000, "b" * 30_000, "c" * 10_000, "d" * 30_000)
    counts = []
    while picked := await bob.wallet.fetch(10):
        counts.append(len(picked))
        await bob.wallet.received(ids(picked))
    assert counts == [1, 2, 1]


async def test_what_is_out_on_lease_is_no_part_of_the_status_in_place_of_a_delivery(
    network: WalletNetwork, bob: Bob
) -> None:
    empty = await reply_to(bob, "delivery-request", limit=10)
    await network.write(bob, "one", "two")
    assert len(await bob.wallet.fetch(10)) == 2
    nothing = await reply_to(bob, "delivery-request", limit=10)
    own = {"@id", "~thread"}
    assert {k: v for k, v in nothing.items() if k not in own} == {
        k: v for k, v in empty.items() if k not in own
    }
    status = await reply_to(bob, "status-request")
    assert status["message_count"] == 2


async def test_nothing_is_deleted_before_it_was_received(
    network: WalletNetwork, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    await network.write(bob, *numbered(3))
    first = await bob.wallet.fetch(10)
    assert (await bob.wallet.status()).message_count == 3
    assert await bob.wallet.fetch(10) == []  # they are out on lease
    clock.advance(mediator.settings.didcomm.lease_s)
    await bob.wallet.status()  # between two commands the host looks at the clock
    again = await bob.wallet.fetch(10)
    assert again == first  # the same ids, the same order
    await bob.wallet.received(ids(first)[:1])
    assert (await bob.wallet.status()).message_count == 2


async def test_a_wallet_that_asks_until_the_count_is_zero_comes_to_an_end(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, *numbered(2))
    assert len(await bob.wallet.fetch(10)) == 2
    answer = await reply_to(bob, "delivery-request", limit=10)
    assert (kind(answer), answer["message_count"]) == (PICKUP + "status", 0)


async def test_foreign_unknown_and_used_ids_look_the_same_and_change_nothing(
    network: WalletNetwork,
) -> None:
    bob, carol = await network.bobs(2)
    await network.write(bob, "one", "two")
    await network.write(carol, "for carol")
    (foreign,) = ids(await carol.wallet.fetch(10))
    first, _ = ids(await bob.wallet.fetch(10))
    await bob.wallet.received([first])
    answers = []
    for wrong in ([foreign], ["unknown"], [first], [first, foreign, "x" * 10_000], []):
        status = await reply_to(bob, "messages-received", message_id_list=wrong)
        for name in ("@id", "~thread"):
            status.pop(name)
        answers.append(status)
    assert answers == [answers[0]] * 5
    assert answers[0]["message_count"] == 1
    assert (await carol.wallet.status()).message_count == 1


async def test_a_list_of_ids_that_is_none_is_reported(network: WalletNetwork, bob: Bob) -> None:
    cases: list[Any] = [None, "id", 1, {"ids": []}, [1], [None], [["id"]], ["x"] * 1_001]
    for wrong in cases:
        await network.write(bob, "one")
        report = await reply_to(bob, "messages-received", message_id_list=wrong)
        assert report["description"]["code"] == "invalid-message"
        assert await bob.drained() == ["one"]


async def test_an_acknowledgement_over_another_connection_counts(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one", "two")
    async with bob.wallet.socket() as socket:
        over_socket = ids(await bob.wallet.over(socket).fetch(10))
        assert (await bob.wallet.received(over_socket)).message_count == 0


async def test_without_a_return_route_nothing_is_said_or_leased(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = ["status-request", "delivery-request", "live-delivery-change"]
    more: list[Any] = [{}, routed("none"), {"~transport": "all"}]
    for name in cases:
        for route in more:
            await network.write(bob, "one")
            answer = await network.say(
                bob.connection, PICKUP + name, limit=10, live_delivery=True, **route
            )
            assert (answer.status, answer.body) == (202, b"")
            assert (await bob.wallet.status()).message_count == 1
            assert await bob.drained() == ["one"]


async def test_an_acknowledgement_needs_no_return_route(network: WalletNetwork, bob: Bob) -> None:
    await network.write(bob, "one", "two")
    first, _ = ids(await bob.wallet.fetch(10))
    answer = await network.say(
        bob.connection, PICKUP + "messages-received", message_id_list=[first]
    )
    assert (answer.status, answer.body) == (202, b"")
    assert (await bob.wallet.status()).message_count == 1


async def test_return_route_thread_is_enough(network: WalletNetwork, bob: Bob) -> None:
    answer = await network.say(bob.connection, PICKUP + "status-request", **routed("thread"))
    assert opened(bob.connection, answer.body)["message_count"] == 0


async def test_a_problem_is_reported_in_the_thread_of_the_request(bob: Bob) -> None:
    report = await reply_to(bob, "nonsense", **{"@id": "question"})
    assert kind(report) == "notification/1.0/problem-report"
    assert report["~thread"] == {"thid": "question", "pthid": "question"}
    assert report["description"]["code"] == "unknown-message-type"


async def test_the_old_prefix_is_understood(bob: Bob) -> None:
    answer = await answer_to(bob.wallet, OLD_PREFIX + PICKUP + "status-request")
    assert answer["message_count"] == 0


async def test_an_agent_that_never_connected_gets_a_report_of_it(network: WalletNetwork) -> None:
    with pytest.raises(ProblemReported) as reported:
        await network.stranger().status()
    assert reported.value.code == "not-connected"
