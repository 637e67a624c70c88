"""What a stranger puts into a wallet's queue does not keep the wallet from the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import orjson
import pytest

from http_edge.clients.didcomm import NotAuthentic, Picked, Recipient
from http_edge.clients.didcomm.connection import open_for_did
from http_edge.didcomm.envelopes.keys import base58
from http_edge.didcomm.envelopes.v2.version import V2
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, envelope_of, forwarded
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


@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_a_message_for_the_connections_own_key_comes_by_return_route_as_any_other(
    network: WalletNetwork, bob: Bob, *, over_socket: bool
) -> None:
    """The mediator does not look at whom an envelope is sealed to."""
    own = Bob(bob.wallet, Recipient(bob.connection.key, bob.recipient.mediation))
    await leave(network, bob, orjson.loads(envelope_of(own.key, "one")))
    await network.write(bob, "two")
    if over_socket:
        async with bob.wallet.implicit_socket() as socket:
            assert own.read(await socket.receive(WAIT_S)) == "one"
            assert bob.read(await socket.receive(WAIT_S)) == "two"
            await network.settled(bob.wallet.over(socket))
    else:
        assert own.read(await bob.wallet.implicit()) == "one"
        assert bob.read(await bob.wallet.noop()) == "two"
    assert (await bob.wallet.status()).message_count == 0


@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_a_message_for_the_connections_own_did_comes_by_return_route_as_any_other(
    network: WalletNetwork, *, over_socket: bool
) -> None:
    """It is registered by itself."""
    bob, alice = await connected(network), Sender(network)
    own = bob.connection.own.peer4
    answer = await alice.forward(own, "one", routing_did=bob.routing_did)
    assert answer.status == 202
    async with bob.implicit_socket() if over_socket else nullcontext() as socket:
        envelope = await bob.implicit() if socket is None else await socket.receive(WAIT_S)
    assert isinstance(envelope, bytes)
    opened = open_for_did(V2(bob.connection.own), envelope)
    assert opened is not None
    assert "one" in str(opened.parsed)
