"""Aries queue 1.0 (the owner's document) over real sockets: refusals, restarts, one queue for all.

Every case of the protocol is in ``tests/unit/didcomm/test_queue_1.py``.
"""

from __future__ import annotations

import pytest

from http_edge.clients.didcomm import QueueStatus
from tests.edge.didcomm.wallet_network import (
    Bob,
    WalletNetwork,
    envelope_of,
    ids,
    numbered,
)
from tests.edge.mediator import HandClock


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


async def test_who_listens_gets_messages_though_none_may_wait(
    network: WalletNetwork, bob: Bob
) -> None:
    await bob.wallet.update_queue(will_queue=False)
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        (picked,) = await live.next()
        assert bob.read(picked) == "one"
        await live.received([picked.id])


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


async def test_the_rules_outlive_the_mediator(network: WalletNetwork, bob: Bob) -> None:
    await bob.wallet.update_queue(message_count_limit=7, will_queue=False)
    before = await bob.wallet.queue_status()
    await network.mediator.restart()
    assert await bob.wallet.queue_status() == before
    assert isinstance(before, QueueStatus)


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
