"""Coordinate mediation (RFC 0211) over real sockets: grants, and whose a key is.

Every case of the protocol is in ``tests/unit/didcomm/test_coordinate_mediation.py``.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from http_edge.clients.didcomm import MediatorUnreachable, Wallet, Wallet2, forward_2
from http_edge.clients.didcomm.connection import Received
from http_edge.clients.didcomm.mediation import MEDIATION_2, MEDIATION_3, MediationVersion
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.recipient_names import x25519_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import connected
from tests.edge.didcomm.wallet_network import (
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock

COORDINATION: Final = "coordinate-mediation/1.0/"


async def reply_to(wallet: Wallet, name: str, **members: Any) -> Json:
    return await answer_to(wallet, COORDINATION + name, **members)


async def results(wallet: Wallet, *updates: tuple[Any, Any]) -> list[str]:
    """What becomes of updates, as (key, action)."""
    answer = await reply_to(
        wallet,
        "keylist-update",
        updates=[{"recipient_key": key, "action": action} for key, action in updates],
    )
    return [item["result"] for item in answer["updated"]]


async def test_a_key_of_another_is_a_client_error_and_stays_where_it_is(
    network: WalletNetwork,
) -> None:
    bob, mallory = await network.bobs(2)
    facts = network.mediator.facts()
    key = base58(bob.key)
    assert await results(mallory.wallet, (key, "add")) == ["client_error"]
    assert await results(mallory.wallet, (key, "remove")) == ["no_change"]
    assert network.mediator.facts() == facts
    await network.write(bob, "for bob")
    assert await mallory.drained() == []
    assert await bob.drained() == ["for bob"]


@pytest.mark.parametrize("sign", [0, 1])
async def test_the_opposite_of_a_key_of_another_is_a_client_error_and_gets_nothing(
    network: WalletNetwork, sign: int
) -> None:
    bob, mallory = await network.bobs(2)
    key = next(pair for pair in iter(KeyPair.new, None) if pair.public[-1] >> 7 == sign)
    await bob.wallet.update_keylist(add=[key.public])
    facts = network.mediator.facts()
    opposite = key.public[:-1] + bytes([key.public[-1] ^ 0x80])
    assert await results(mallory.wallet, (base58(opposite), "add")) == ["client_error"]
    assert network.mediator.facts() == facts
    to = x25519_name(key.curve_public)
    body = forward_2([envelope_of(key.public, "for bob")], to, routing_did=did_key(SERVICE.public))
    assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await bob.wallet.status()).message_count == 1
    assert (await mallory.wallet.status()).message_count == 0


async def test_the_key_that_a_wallet_speaks_with_is_taken_from_another_that_registered_it(
    network: WalletNetwork,
) -> None:
    bob, mallory = await network.bobs(2)
    key = bob.connection.key.public
    assert await results(mallory.wallet, (base58(key), "add")) == ["success"]
    assert await results(bob.wallet, (base58(key), "add")) == ["success"]
    assert await results(mallory.wallet, (base58(key), "remove")) == ["no_change"]
    await network.forward_text(key, "for bob")
    assert (await bob.wallet.status()).message_count == 1
    assert (await mallory.wallet.status()).message_count == 0
    assert await results(mallory.wallet, (base58(key), "add")) == ["client_error"]


async def test_the_mediators_own_key_has_no_owner(bob: Bob) -> None:
    own = [base58(SERVICE.public), did_key(SERVICE.public), did_key_reference(SERVICE.public)]
    assert await results(bob.wallet, *[(key, "add") for key in own]) == ["client_error"] * 3
    assert await results(bob.wallet, (own[0], "remove")) == ["client_error"]


async def test_a_key_is_in_force_before_the_answer_and_over_every_transport(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live, bob.wallet.socket() as socket:
        for wallet in (bob.wallet, bob.wallet.over(socket)):
            recipient = await wallet.new_recipient()
            assert (await network.forward_text(recipient.key.public, "hello")).status == 202
            (picked,) = await live.next()
            assert recipient.unpack(picked.envelope).message["content"] == "hello"
            await live.received([picked.id])


class LosesAnAnswer:
    """HTTP whose first answer is lost."""

    def __init__(self, wallet: Wallet | Wallet2) -> None:
        self.inner = wallet.transport
        self.lost: Received | None = None

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        answer = await self.inner.exchange(message, raw=raw)
        if self.lost is None:
            self.lost = answer
            raise MediatorUnreachable("reset")
        return answer

    def came_about(self, message_id: str) -> None:
        pass


async def test_a_key_whose_answer_was_lost_is_registered_by_a_repetition(
    network: WalletNetwork,
) -> None:
    wallet, key = await network.connect(), KeyPair.new()
    wallet.mediation = await wallet.request_mediation()
    over = wallet.over(LosesAnAnswer(wallet))
    with pytest.raises(MediatorUnreachable):
        await over.new_recipient(key=key)
    assert (await over.new_recipient(key=key)).key == key
    listed = await wallet.query_keylist()
    assert [item.recipient_key for item in listed.keys] == [did_key(key.public)]


@pytest.mark.parametrize("mediation", [MEDIATION_2, MEDIATION_3], ids=["2.0", "3.0"])
async def test_a_did_whose_answer_was_lost_is_registered_by_a_repetition(
    network: WalletNetwork, mediation: MediationVersion
) -> None:
    wallet, key = await connected(network, mediation=mediation), KeyPair.new()
    over = wallet.over(LosesAnAnswer(wallet))
    with pytest.raises(MediatorUnreachable):
        await over.new_recipient(key=key)
    recipient = await over.new_recipient(key=key)
    listed = [item.recipient_did for item in (await wallet.query_recipients()).dids]
    assert listed.count(recipient.own.peer4_short) == 1


async def test_keylists_outlive_the_mediator(network: WalletNetwork, bob: Bob) -> None:
    await network.mediator.restart()
    listed = await bob.wallet.query_keylist()
    assert [item.recipient_key for item in listed.keys] == [did_key(bob.key)]
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 10, "burst_s": 6}}])
async def test_a_wallet_is_charged_for_each_message_that_it_acknowledges(bob: Bob) -> None:
    ids = [f"{number}" for number in range(1_000)]
    kind = "messagepickup/2.0/messages-received"
    answers = [await answer_to(bob.wallet, kind, message_id_list=ids) for _ in range(7)]
    assert answers[0]["@type"].endswith("/status")
    assert answers[-1]["description"]["code"] == "rate-limited"


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 10, "burst_s": 6}}])
async def test_a_wallet_is_charged_for_the_work_of_its_messages_not_for_their_number(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """Of 60 units a keylist-update takes two for each key, whichever edge it comes to."""
    carol = await network.bob()
    clock.advance(6)

    async def added(one: Bob) -> Json:
        new = [did_key(KeyPair.new().public) for _ in range(20)]
        updates = [{"recipient_key": key, "action": "add"} for key in new]
        return await answer_to(one.wallet, COORDINATION + "keylist-update", updates=updates)

    assert len((await added(bob))["updated"]) == 20
    assert (await added(bob))["description"]["code"] == "rate-limited"
    assert len((await added(carol))["updated"]) == 20
    clock.advance(2)
    assert len((await added(bob))["updated"]) == 20
