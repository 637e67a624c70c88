"""One identity, two protocols: what is Decentrl's and what is DIDComm's, and what they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from nacl.signing import SigningKey
from typing_extensions import override

from http_edge.clients.didcomm import Wallet2
from http_edge.didcomm.envelopes.keys import KeyPair, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import DidRotation
from http_edge.didcomm.envelopes.v2.signed import write_from_prior
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import drained, say
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork
from tests.edge.identities import Identity
from tests.edge.mediator import WAIT_S, HandClock, Mediator
from tests.edge.test_registration_control import invitation

UNAUTHORIZED: Final = (401, "UNAUTHORIZED_COMMAND")
UNREGISTERED: Final = (404, "RECIPIENT_NOT_REGISTERED")


class Both(Identity):
    """A did:key that is an identity of Decentrl and the key of a wallet's connection."""

    @override
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pair = KeyPair.from_seed(bytes(SigningKey(name.encode().ljust(32, b"."))))
        self.signing = SigningKey(self.pair.seed)
        self.did = did_key(self.pair.public)
        self.key_id = did_key_reference(self.pair.public)


async def moved_to(network: WalletNetwork, old: Wallet2, other: Both) -> Wallet2:
    """Rotate the DID of a wallet's connection to that of another identity."""
    known = old.connection
    new = replace(known, key=other.pair, is_known=False)
    wallet = Wallet2(new, session=network.session, routing_did=old.routing_did)
    rotation = DidRotation(known.did, new.did, 1_000)
    proof = write_from_prior(rotation, did_key_reference(known.key.public), known.key)
    await say(wallet, "trust-ping/2.0/ping", from_prior=proof)
    return wallet


@pytest.fixture
def both() -> Both:
    return Both("both")


@pytest.fixture
async def bob(network: WalletNetwork, both: Both, alice: Identity) -> Bob:
    """The wallet of an identity that Alice may write to by Decentrl, too."""
    mediator = network.mediator
    await mediator.register(alice, both)
    await mediator.befriend(both, alice)
    return await network.bob(key=both.pair)


async def test_each_protocol_sees_its_own_messages(
    network: WalletNetwork, bob: Bob, both: Both, alice: Identity, clock: HandClock
) -> None:
    mediator = network.mediator
    for index in range(3):
        await mediator.delivered(alice, both, f"pending event {index}")
        await network.write(bob, f"message {index}")
        clock.advance(1)
    assert await mediator.waiting(both) == [f"pending event {index}" for index in range(3)]
    status = await bob.wallet.status()
    assert (status.message_count, (await bob.wallet.pickup1_status()).message_count) == (3, 3)
    assert (await bob.wallet.queue_status()).message_count == 3
    assert status.newest_received_time == "2027-01-15 08:00:02Z"
    assert bob.texts(await bob.wallet.batch(2)) == ["message 0", "message 1"]
    assert await bob.drained() == ["message 2"]
    assert (await bob.wallet.status()).total_bytes == 0
    assert len(await mediator.waiting(both)) == 3


async def test_neither_protocol_removes_what_is_the_others(
    network: WalletNetwork, bob: Bob, both: Both, alice: Identity, mediator: Mediator
) -> None:
    event_id = await mediator.delivered(alice, both, "pending event")
    await network.write(bob, "message")
    (picked,) = await bob.wallet.fetch()
    assert (await bob.wallet.received([event_id])).message_count == 1
    assert await bob.wallet.list_pickup([event_id]) == []
    acknowledged = await mediator.do(both, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[picked.id])
    assert acknowledged.status == 200
    assert (await bob.wallet.status()).message_count == 1
    assert await mediator.waiting(both) == ["pending event"]


async def test_sockets_of_both_protocols_are_notified_each_of_its_own(
    network: WalletNetwork, bob: Bob, both: Both, alice: Identity, mediator: Mediator
) -> None:
    async with bob.wallet.live() as live, mediator.socket(both) as socket:
        await network.write(bob, "message")
        await mediator.delivered(alice, both, "pending event")
        assert bob.texts(await live.next(WAIT_S)) == ["message"]
        received = await socket.hear()
        assert received["type"] == "PENDING_EVENTS"
        assert (await live.status()).live_delivery is True
    assert await bob.drained() == ["message"]


async def test_a_key_that_was_given_up_has_no_part_in_the_account(
    network: WalletNetwork, both: Both, mediator: Mediator
) -> None:
    old = await connected(network, did_method="key", key=both.pair)
    recipient, sender = await old.new_recipient(), Sender(network)
    await sender.write(recipient, "waits")
    new = await moved_to(network, old, Both("new"))
    assert (await mediator.send(both, mediator.registration(both))).refusal == UNAUTHORIZED
    assert await drained(new, sender, recipient) == ["waits"]


async def test_who_registered_before_its_key_was_given_up_erases_nothing_of_the_account(
    network: WalletNetwork, both: Both, mediator: Mediator
) -> None:
    await mediator.register(both)
    old = await connected(network, did_method="key", key=both.pair)
    recipient, sender = await old.new_recipient(), Sender(network)
    new = await moved_to(network, old, Both("new"))
    await sender.write(recipient, "waits")
    refused = await mediator.do(both, "ERASE_IDENTITY", did=both.did)
    assert refused.refusal == (400, "INVALID_COMMAND")
    assert "account of another DID" in refused.json["detail"]
    assert await drained(new, sender, recipient) == ["waits"]


async def test_a_key_that_was_given_up_leaves_an_invitation_to_others(
    network: WalletNetwork, both: Both, mediator: Mediator, alice: Identity
) -> None:
    once = {"invitation": invitation(single_use=True)}
    await moved_to(network, await connected(network, did_method="key", key=both.pair), Both("new"))
    refused = await mediator.send(both, mediator.registration(both) | once)
    assert refused.refusal == UNAUTHORIZED
    assert (await mediator.send(alice, mediator.registration(alice) | once)).status == 200


async def test_a_key_that_was_given_up_renews_no_registration_until_it_speaks_again(
    network: WalletNetwork, both: Both, mediator: Mediator
) -> None:
    await mediator.register(both)
    old = await connected(network, did_method="key", key=both.pair)
    new = await moved_to(network, old, Both("new"))
    for once in ({}, {"invitation": invitation(single_use=True)}):
        refused = await mediator.send(both, mediator.registration(both) | once)
        assert refused.refusal == UNAUTHORIZED
        assert "given up" in refused.json["detail"]
    assert mediator.facts().count("identity-registered.1") == 1
    await moved_to(network, new, both)
    await mediator.register(both)


async def test_who_registered_before_its_key_was_given_up_empties_what_it_has_and_adds_nothing(
    network: WalletNetwork, both: Both, mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice, both)
    contract = await mediator.befriend(both, alice)
    waits = await mediator.delivered(alice, both, "waits")
    old = await connected(network, did_method="key", key=both.pair)
    await moved_to(network, old, Both("new"))
    saved = await mediator.do(
        both, "SAVE_COMMUNICATION_CONTRACT", signed_communication_contract=contract
    )
    assert saved.refusal == (await mediator.publish(both, "news")).refusal == UNAUTHORIZED
    assert (await mediator.write(alice, both, "late")).refusal == UNREGISTERED
    assert await mediator.waiting(both) == ["waits"]
    await mediator.do(both, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[waits])
    assert await mediator.waiting(both) == []


async def test_who_speaks_for_anothers_account_is_not_erased_alone(
    network: WalletNetwork, both: Both, mediator: Mediator
) -> None:
    old = await connected(network, did_method="key", key=both.pair)
    recipient, sender = await old.new_recipient(), Sender(network)
    speaker = Both("new")
    new = await moved_to(network, old, speaker)
    await mediator.register(speaker)
    refused = await mediator.do(speaker, "ERASE_IDENTITY", did=speaker.did)
    assert refused.refusal == (400, "INVALID_COMMAND")
    await sender.write(recipient, "waits")
    assert await drained(new, sender, recipient) == ["waits"]


async def test_who_spoke_for_an_account_that_has_ended_is_erased(
    network: WalletNetwork, both: Both, mediator: Mediator
) -> None:
    speaker = Both("new")
    await mediator.register(speaker)
    old = await connected(network, did_method="key", key=both.pair)
    new = await moved_to(network, old, speaker)
    await new.end()
    await mediator.restart()
    erased = await mediator.do(speaker, "ERASE_IDENTITY", did=speaker.did)
    assert erased.json == {"type": "SUCCESS", "code": "ERASED"}
    assert (await mediator.do(speaker, "QUERY_EVENTS")).refusal == UNAUTHORIZED
    # It may come back by either protocol; the former key does not.
    await mediator.register(speaker)
    await new.request_mediation()
    assert len((await new.query_recipients()).dids) == 1
    assert (await mediator.send(both, mediator.registration(both))).refusal == UNAUTHORIZED


async def test_both_outlive_the_mediator(
    network: WalletNetwork, bob: Bob, both: Both, alice: Identity, mediator: Mediator
) -> None:
    await mediator.delivered(alice, both, "pending event")
    await network.write(bob, "message")
    await mediator.restart()
    assert await bob.drained() == ["message"]
    assert await mediator.waiting(both) == ["pending event"]
