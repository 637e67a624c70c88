"""The promises that placement could break, wherever hosts and edges stand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from http_edge.didcomm.envelopes.keys import base58
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.wallet_network import SENDER, Bob, WalletNetwork, envelope_of, ids, numbered
from tests.edge.mediator import LAYOUTS, WAIT_S, Mediator

pytestmark = pytest.mark.parametrize("layout", LAYOUTS)


async def test_a_key_has_one_owner(network: WalletNetwork) -> None:
    bobs = await network.bobs(4)
    for bob, other in zip(bobs, [*bobs[1:], bobs[0]], strict=True):
        (claimed,) = await other.wallet.update_keylist(add=[bob.key])
        assert claimed.result == "client_error"
    for bob in bobs:
        await network.write(bob, base58(bob.key))
    for bob in bobs:
        assert await bob.drained() == [base58(bob.key)]


async def test_a_message_for_several_waits_for_each(network: WalletNetwork) -> None:
    bobs = await network.bobs(4)
    envelope = pack(b'{"content":"to all"}', [bob.key for bob in bobs], SENDER)
    assert (await network.post(envelope)).status == 202
    for bob in bobs:
        assert await bob.drained() == ["to all"]


async def test_long_polls_and_live_mode_wake_up(network: WalletNetwork) -> None:
    bobs = await network.bobs(4)
    for bob in bobs:
        async with bob.wallet.live() as live:
            await network.write(bob, "live")
            picked = await live.next(WAIT_S)
            assert bob.texts(picked) == ["live"]
            await live.received(ids(picked))
        polling = asyncio.create_task(bob.wallet.noop(20_000))
        await network.write(bob, "polled")
        assert bob.read(await polling) == "polled"


async def test_everything_outlives_the_mediator(network: WalletNetwork, mediator: Mediator) -> None:
    bobs = await network.bobs(3)
    for bob in bobs:
        await network.write(bob, *numbered(5))
    await mediator.restart()
    for bob in bobs:
        assert await bob.drained() == numbered(5)


@pytest.mark.parametrize("settings", [{"edges": 2}])
async def test_two_edges_are_one_mediator(network: WalletNetwork, bob: Bob) -> None:
    """They share the port, so either of them may answer."""
    texts = numbered(20)
    async with bob.wallet.live() as live:
        for text in texts:
            url = network.mediator.url("/didcomm")
            # A connection of its own for each, which either edge may take.
            headers = {"Connection": "close"}
            async with network.session.post(
                url, data=envelope_of(bob.key, text), headers=headers
            ) as sent:
                assert sent.status == 202
        seen: list[str] = []
        while len(seen) < 20:
            picked = await live.next(WAIT_S)
            seen += bob.texts(picked)
            await bob.wallet.received(ids(picked))
        assert seen == texts
    assert (await bob.wallet.status()).message_count == 0


@pytest.mark.parametrize("settings", [{"edges": 2}])
async def test_live_mode_goes_from_edge_to_edge(network: WalletNetwork, bob: Bob) -> None:
    """Each socket takes over before the one before it ends, as a phone that changes networks."""
    async with AsyncExitStack() as last:
        for index in range(8):
            current = AsyncExitStack()
            live = await current.enter_async_context(bob.wallet.live())
            await last.aclose()
            last.push_async_exit(current.pop_all())
            await network.write(bob, f"message {index}")
            picked = await live.next(WAIT_S)
            assert bob.texts(picked) == [f"message {index}"]
            await live.received(ids(picked))
    assert (await bob.wallet.status()).message_count == 0
