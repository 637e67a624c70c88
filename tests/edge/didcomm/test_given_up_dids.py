"""What a DID that a wallet has rotated away still costs it, and what it may begin anew."""

from __future__ import annotations

from typing import Final

from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import connected
from tests.edge.didcomm.test_rotated_accounts import moved, packed, say, successor
from tests.edge.didcomm.wallet_network import WalletNetwork

PING: Final = "trust-ping/2.0/ping"
REQUEST: Final = "coordinate-mediation/3.0/mediate-request"
QUERY: Final = "coordinate-mediation/3.0/recipient-query"


async def test_no_answer_to_a_did_that_was_given_up_waits_in_the_queue_of_the_account(
    network: WalletNetwork,
) -> None:
    old = await connected(network)
    new = successor(network, old)
    await say(new, PING, from_prior=moved(old, new))
    for kind in (QUERY, REQUEST, PING, "unknown/1.0/x"):
        body = packed(old, kind, {"response_requested": True}, return_route="none")
        assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await new.status()).message_count == 0
