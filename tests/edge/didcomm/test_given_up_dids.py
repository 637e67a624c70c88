"""What a DID that a wallet has rotated away still costs it, and what it may begin anew."""

from __future__ import annotations

from typing import Final

import pytest

from http_edge.clients.didcomm import DidMethod2, Wallet2
from http_edge.clients.didcomm.errors import ProblemReported
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import drained, end, moved, packed, say, successor
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.edge.test_registration_control import invitation

PING: Final = "trust-ping/2.0/ping"
REQUEST: Final = "coordinate-mediation/3.0/mediate-request"
QUERY: Final = "coordinate-mediation/3.0/recipient-query"


async def rotated(network: WalletNetwork) -> tuple[Wallet2, Wallet2]:
    """The names of an account: the one that was given up, and the one that replaced it."""
    old = await connected(network)
    new = successor(network, old)
    await say(new, PING, from_prior=moved(old, new))
    return old, new


async def test_a_did_that_was_given_up_leaves_an_invitation_to_others(
    network: WalletNetwork,
) -> None:
    old, new = await rotated(network)
    stranger, once = successor(network, old), invitation(single_use=True)
    # Of those, the new one has an account, although a mediator that was started has to look.
    await network.mediator.restart()
    for wallet, answer in ((old, "deny"), (new, "grant"), (stranger, "grant")):
        assert str((await say(wallet, REQUEST, pthid=once))["@type"]).endswith(f"mediate-{answer}")


async def test_who_spoke_for_an_account_that_has_ended_comes_back_by_an_invitation_for_one_use(
    network: WalletNetwork,
) -> None:
    _, new = await rotated(network)
    await end(new)
    await network.mediator.restart()
    granted = await say(new, REQUEST, pthid=invitation(single_use=True))
    assert str(granted["@type"]).endswith("mediate-grant")


@pytest.mark.parametrize("method", ["peer4", "peer2", "key"])
async def test_a_stored_wallet_whose_account_has_ended_begins_anew_at_a_mediator_that_started(
    network: WalletNetwork, method: DidMethod2
) -> None:
    wallet = await connected(network, did_method=method)
    await wallet.end()
    await network.mediator.restart()
    assert await wallet.request_mediation() == wallet.routing_did
    sender, recipient = Sender(network), await wallet.new_recipient()
    await sender.write(recipient, "anew")
    assert await drained(wallet, sender, recipient) == ["anew"]


async def test_no_answer_to_a_did_that_was_given_up_waits_in_the_queue_of_the_account(
    network: WalletNetwork,
) -> None:
    old, new = await rotated(network)
    for kind in (QUERY, REQUEST, PING, "unknown/1.0/x"):
        body = packed(old, kind, {"response_requested": True}, return_route="none")
        assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await new.status()).message_count == 0


async def test_a_key_that_was_given_up_locks_no_account_that_has_ended(
    network: WalletNetwork,
) -> None:
    """To speak for another account, it would take the place where the former one begins anew."""
    key = KeyPair.new()
    old = await connected(network, did_method="key", key=key)
    new = await old.rotate(KeyPair.new())
    await new.end()
    other = await connected(network, did_method="key")
    with pytest.raises(ProblemReported, match="did-rotated"):
        await other.rotate(key)
    await network.mediator.restart()
    await new.request_mediation()
    assert len((await new.query_recipients()).dids) == 1


async def test_a_key_that_was_given_up_takes_its_name_from_no_other_account(
    network: WalletNetwork,
) -> None:
    old, other = await connected(network, did_method="key"), await connected(network)
    name, new = old.connection.did, await old.rotate(KeyPair.new())
    await new.update_recipients(remove=[name])
    await other.update_recipients(add=[name])
    with pytest.raises(ProblemReported, match="mediate-deny"):
        await old.request_mediation()
    assert name in {each.recipient_did for each in (await other.query_recipients()).dids}
    await Sender(network).forward(name, "for the other", routing_did=old.routing_did)
    assert (await other.status()).message_count == 1
