"""What a stranger puts into a wallet's queue does not keep the wallet from the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson
import pytest

from http_edge.clients.didcomm import NotAuthentic, Picked
from http_edge.didcomm.envelopes.keys import base58
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, forwarded
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S

NO_ENVELOPE: Final[Json] = {"protected": "x", "iv": "x", "ciphertext": "x", "tag": "x"}
"""It has the members of an envelope, so it may enter a queue; nothing in them can be read."""
DEEP: Final = orjson.loads("[" * 29 + "]" * 29)
"""With the message and the forward around it, nearly as deep as a stranger's text may be."""
WIDE: Final[list[Json]] = [{}] * 19_000
"""Nearly as many parts as a stranger's text may have."""


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


@pytest.mark.parametrize("junk", [[DEEP], [WIDE, WIDE]], ids=["deep", "wide"])
@pytest.mark.parametrize("protocol", ["pickup 1.0", "pickup 2.0", "queue 1.0"])
async def test_what_a_mediator_may_take_can_be_read_in_its_answer_together_with_the_rest(
    network: WalletNetwork, bob: Bob, protocol: str, junk: Sequence[object]
) -> None:
    for each in junk:
        await leave(network, bob, {**NO_ENVELOPE, "junk": each})
    await network.write(bob, "one")
    picked: Sequence[Picked]
    match protocol:
        case "pickup 1.0":
            picked = await bob.wallet.batch(10)
        case "pickup 2.0":
            picked = await bob.wallet.fetch(10)
        case _:
            picked = await bob.wallet.queue_fetch(10)
    assert len(picked) == len(junk) + 1
    assert bob.read(picked[-1]) == "one"
