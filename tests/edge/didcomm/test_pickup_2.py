"""Pickup 2.0 (RFC 0685) over real sockets: what depends on the transport, live mode apart.

Every case of the protocol is in ``tests/unit/didcomm/test_pickup_2.py``.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.test_bounds import MEGABYTES, fill
from tests.edge.didcomm.wallet_network import (
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    fresh,
    ids,
    opened,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock

PICKUP = "messagepickup/2.0/"


async def reply_to(bob: Bob, name: str, **members: Any) -> Json:
    return await answer_to(bob.wallet, PICKUP + name, **members)


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


async def test_return_route_thread_is_enough(network: WalletNetwork, bob: Bob) -> None:
    answer = await network.say(bob.connection, PICKUP + "status-request", **routed("thread"))
    assert opened(bob.connection, answer.body)["message_count"] == 0


@pytest.mark.parametrize(
    "kind",
    [
        "messagepickup/1.0/batch-pickup",
        "messagepickup/2.0/delivery-request",
        "messagepickup/2.0/live-delivery-change",
        "queue/1.0/fetch-request",
    ],
)
async def test_what_does_nothing_without_a_return_route_is_not_acknowledged(
    network: WalletNetwork, bob: Bob, kind: str
) -> None:
    members = {"batch_size": 1, "limit": 1, "live_delivery": False}
    wish = {"~please_ack": {"on": ["OUTCOME"]}}
    answer = await network.say(bob.connection, kind, **members, **wish)
    assert (answer.status, answer.body) == (202, b"")
    assert (await bob.wallet.status()).message_count == 0


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 60}}])
async def test_a_wallet_is_charged_for_the_bytes_of_a_large_delivery(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """Of 60 units a MiB takes 102; the wallet may owe as many again."""
    await fill(network, bob, clock, MEGABYTES)
    assert len(await bob.wallet.fetch(5)) == 5
    refused = await reply_to(bob, "status-request")
    assert refused["description"]["code"] == "rate-limited"
