"""What was accepted under larger bounds still reaches its recipient under lower ones."""

from __future__ import annotations

import pytest

from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, ids
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S, Mediator

KIB = 1_024
LOWER: Json = {
    "didcomm": {"message_bytes_max": 128 * KIB, "delivery_bytes_max": 128 * KIB},
    "limits": {"body_bytes_max": 256 * KIB, "socket_buffer_bytes_max": 256 * KIB},
}
TEXTS = ["large" + "x" * 250_000, "small"]


@pytest.fixture
async def bob_with_a_large_message(network: WalletNetwork, bob: Bob, mediator: Mediator) -> Bob:
    """Messages wait for him, the first of which is larger than a socket may hold by now."""
    await network.write(bob, *TEXTS)
    listen = mediator.settings.listen
    await mediator.restart({"listen": listen, "public_url": f"http://{listen}", **LOWER})
    return bob


async def test_a_message_larger_than_a_socket_may_hold_by_now_is_fetched_over_it(
    bob_with_a_large_message: Bob,
) -> None:
    bob = bob_with_a_large_message
    async with bob.wallet.live() as live:
        for text in TEXTS:
            fetched = await live.fetch()
            assert bob.texts(fetched) == [text]
            await live.received(ids(fetched))


async def test_a_message_larger_than_a_socket_may_hold_by_now_comes_implicitly(
    network: WalletNetwork, bob_with_a_large_message: Bob
) -> None:
    bob = bob_with_a_large_message
    async with bob.wallet.implicit_socket() as socket:
        assert [bob.read(await socket.receive(WAIT_S)) for _ in TEXTS] == TEXTS
        await network.settled(bob.wallet.over(socket))
    assert (await bob.wallet.status()).message_count == 0
