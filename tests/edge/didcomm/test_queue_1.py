"""Aries queue 1.0 (the owner's document) over real sockets: refusals, restarts, one queue for all.

Every case of the protocol is in ``tests/unit/didcomm/test_queue_1.py``.
"""

from __future__ import annotations

import pytest

from tests.edge.didcomm.wallet_network import (
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    ids,
    numbered,
    opened,
)


async def test_a_message_larger_than_the_owner_wants_is_refused_explicitly(
    network: WalletNetwork, bob: Bob
) -> None:
    small = len(envelope_of(bob.key, "small"))
    await bob.wallet.update_queue(message_size_limit=small + 50)
    await network.write(bob, "small")
    refused = await network.forward_text(bob.key, "x" * 200)
    assert (refused.status, refused.json) == (413, {"error": "message-too-large"})
    assert await bob.drained() == ["small"]


@pytest.mark.parametrize(
    ("name", "rule"), [("will_queue", False), ("message_size_limit", 100), ("size_limit", 100)]
)
async def test_new_rules_are_accepted_although_their_status_may_not_wait_in_the_queue(
    network: WalletNetwork, bob: Bob, name: str, rule: int
) -> None:
    """Without a return route; the status of a mere question is refused, as other answers are."""
    update, question = "queue/1.0/status-update-request", "queue/1.0/status-request"
    answer = await network.say(bob.connection, update, update={name: rule})
    assert (answer.status, answer.body) == (202, b"")
    status = (await answer_to(bob.wallet, question))["status"]
    assert (status[name], status["message_count"]) == (rule, 0)
    assert (await network.say(bob.connection, question)).status in {409, 413, 429}


async def test_the_status_of_new_rules_waits_in_the_queue_where_it_may(
    network: WalletNetwork, bob: Bob
) -> None:
    update = {"update": {"duration_limit": 60}}
    answer = await network.say(bob.connection, "queue/1.0/status-update-request", **update)
    assert (answer.status, answer.body) == (202, b"")
    (status,) = await bob.wallet.queue_fetch()
    assert opened(bob.connection, status.envelope)["status"]["duration_limit"] == 60


async def test_who_listens_gets_messages_though_none_may_wait(
    network: WalletNetwork, bob: Bob
) -> None:
    await bob.wallet.update_queue(will_queue=False)
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        (picked,) = await live.next()
        assert bob.read(picked) == "one"
        await live.received([picked.id])


async def test_messages_of_the_mediator_itself_wait_in_the_same_queue(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.idle_replies(bob.wallet, 1)
    await network.write(bob, "one")
    pong, one = await bob.wallet.queue_fetch()
    assert str(opened(bob.connection, pong.envelope)["@type"]).endswith("/ping_response")
    assert bob.read(one) == "one"


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
