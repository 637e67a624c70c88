"""What a stranger puts into a wallet's queue does not keep the wallet from the rest of it."""

from __future__ import annotations

from typing import Final

import pytest

from http_edge.clients.didcomm import NotAuthentic
from http_edge.didcomm.envelopes.keys import base58
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, forwarded
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S

NO_ENVELOPE: Final[Json] = {"protected": "x", "iv": "x", "ciphertext": "x", "tag": "x"}
"""It has the members of an envelope, so it may enter a queue; nothing in them can be read."""


async def leave(network: WalletNetwork, bob: Bob, message: Json) -> None:
    """A stranger's message for a wallet, which must be accepted."""
    assert (await network.post(forwarded(base58(bob.key), message))).status == 202


@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_what_merely_resembles_an_envelope_is_handed_out_raw_as_any_other(
    network: WalletNetwork, bob: Bob, *, over_socket: bool
) -> None:
    await leave(network, bob, NO_ENVELOPE)
    await network.write(bob, "one")
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket) if over_socket else bob.wallet
        with pytest.raises(NotAuthentic):
            bob.read(await wallet.noop())
        assert bob.read(await wallet.noop()) == "one"


async def test_what_merely_resembles_an_envelope_comes_by_return_route_as_any_other(
    network: WalletNetwork, bob: Bob
) -> None:
    await leave(network, bob, NO_ENVELOPE)
    await network.write(bob, "one")
    with pytest.raises(NotAuthentic):
        bob.read(await bob.wallet.implicit())
    assert bob.read(await bob.wallet.implicit()) == "one"


async def test_what_merely_resembles_an_envelope_does_not_end_a_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    await leave(network, bob, NO_ENVELOPE)
    await network.write(bob, "one")
    async with bob.wallet.implicit_socket() as socket:
        with pytest.raises(NotAuthentic):
            bob.read(await socket.receive(WAIT_S))
        assert bob.read(await socket.receive(WAIT_S)) == "one"
        await network.settled(bob.wallet.over(socket))
    assert (await bob.wallet.status()).message_count == 0
