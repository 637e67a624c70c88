"""The integration suite of the pickup plugin for ACA-Py, case by case, over both transports.

https://github.com/Indicio-tech/acapy-plugin-pickup, directory int: the promises of its ten tests
in our words. Its queue is filled as theirs is: with answers to pings that had no return route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from http_edge.clients.didcomm import Disclosure, Wallet
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from tests.edge.didcomm.wallet_network import WalletNetwork, answer_to, ids
from tests.edge.identities import Json

PICKUP = NEW_PREFIX + "messagepickup/2.0/"


@pytest.fixture(params=["HTTP", "WebSocket"])
async def wallet(network: WalletNetwork, request: pytest.FixtureRequest) -> AsyncIterator[Wallet]:
    """A connected wallet that asks over one transport."""
    connected = await network.connect()
    if request.param == "HTTP":
        yield connected
        return
    async with connected.socket() as socket:
        yield connected.over(socket)


async def reply_to(wallet: Wallet, name: str, **members: Any) -> Json:
    return await answer_to(wallet, PICKUP + name, **members)


async def test_the_status_of_an_empty_queue_counts_no_messages(wallet: Wallet) -> None:
    status = await reply_to(wallet, "status-request")
    assert status["@type"] == PICKUP + "status"
    assert status["message_count"] == 0


async def test_the_status_counts_what_waits(network: WalletNetwork, wallet: Wallet) -> None:
    await network.idle_replies(wallet, 1)
    status = await reply_to(wallet, "status-request")
    assert status["@type"] == PICKUP + "status"
    assert status["message_count"] == 1


async def test_the_status_of_a_recipient_key_names_the_key(
    network: WalletNetwork, wallet: Wallet
) -> None:
    await network.idle_replies(wallet, 1)
    key = base58(KeyPair.new().public)
    status = await reply_to(wallet, "status-request", recipient_key=key)
    assert status["recipient_key"] == key
    assert status["message_count"] == 0


async def test_a_delivery_from_an_empty_queue_is_a_status(wallet: Wallet) -> None:
    status = await reply_to(wallet, "delivery-request", limit=1)
    assert status["@type"] == PICKUP + "status"
    assert status["message_count"] == 0


async def test_a_delivery_brings_what_waits(network: WalletNetwork, wallet: Wallet) -> None:
    await network.idle_replies(wallet, 2)
    delivery = await reply_to(wallet, "delivery-request", limit=2)
    assert delivery["@type"] == PICKUP + "delivery"
    assert len(delivery["~attach"]) == 2
    assert all(item["@id"] and item["data"] for item in delivery["~attach"])
    assert "recipient_key" not in delivery


async def test_one_delivery_after_the_other_drains_the_queue(
    network: WalletNetwork, wallet: Wallet
) -> None:
    await network.idle_replies(wallet, 3)
    for left in (2, 1, 0):
        (picked,) = await wallet.fetch(1)
        opened = wallet.connection.open(picked.envelope)
        assert isinstance(opened, dict)
        assert str(opened["@type"]).endswith("trust_ping/1.0/ping_response")
        assert (await wallet.received([picked.id])).message_count == left
    assert await wallet.fetch(1) == []


async def test_nothing_was_received_is_answered_with_a_status(
    network: WalletNetwork, wallet: Wallet
) -> None:
    await network.idle_replies(wallet, 1)
    status = await reply_to(wallet, "messages-received", message_id_list=[])
    assert status["@type"] == PICKUP + "status"
    assert status["message_count"] == 1


async def test_what_was_received_is_counted_no_more(network: WalletNetwork, wallet: Wallet) -> None:
    await network.idle_replies(wallet, 2)
    delivered = await wallet.fetch(2)
    status = await reply_to(wallet, "messages-received", message_id_list=ids(delivered)[:1])
    assert status["message_count"] == 1
    status = await reply_to(wallet, "messages-received", message_id_list=ids(delivered)[1:])
    assert status["message_count"] == 0


async def test_ids_that_were_never_given_change_nothing(
    network: WalletNetwork, wallet: Wallet
) -> None:
    await network.idle_replies(wallet, 1)
    await wallet.fetch(1)
    status = await reply_to(wallet, "messages-received", message_id_list=["junk", "1", ""])
    assert status["message_count"] == 1


async def test_the_protocol_is_disclosed(wallet: Wallet) -> None:
    disclosed = await wallet.discover([("protocol", "https://didcomm.org/messagepickup/*")])
    assert Disclosure("protocol", NEW_PREFIX + "messagepickup/2.0", ("mediator",)) in disclosed
