"""Aries queue 1.0 (the owner's document) over real sockets: refusals, restarts, one queue for all.

Every case of the protocol is in ``tests/unit/didcomm/test_queue_1.py``.
"""

from __future__ import annotations

from tests.edge.didcomm.wallet_network import (
    Bob,
    WalletNetwork,
    envelope_of,
    ids,
    numbered,
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
