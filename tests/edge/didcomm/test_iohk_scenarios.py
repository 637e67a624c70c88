"""The scenarios of the DIDComm v2 mediator suite by IOHK, rewritten over this library's wallet.

input-output-hk/didcomm-v2-mediator-test-suite, ``src/test/resources/features``. Each test cites
its feature and its scenario. Where this mediator answers in another way, the test says in which
and why; what the suite has switched off itself is here as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import orjson
import pytest

from http_edge.clients.didcomm import PICKUP_3, Live, Recipient2, Wallet2
from http_edge.didcomm.envelopes.agent_documents import SeenDids
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.signed import MEDIA_TYPE as SIGNED
from http_edge.didcomm.envelopes.v2.signed import read_signed
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, answer_to, ask_of, connected
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.edge.identities import Json
from tests.unit.outbound.agent_host import AgentHost, agent_host

PROBLEM = NEW_PREFIX + "report-problem/2.0/problem-report"
PICKUP = "messagepickup/3.0/"


@pytest.fixture
def settings() -> Json:
    return {"outbound": {"allowed_networks": ["127.0.0.0/8"], "retry_s_min": 0.1}}


@pytest.fixture
async def listener() -> AsyncIterator[AgentHost]:
    """The endpoint of a recipient that takes messages."""
    async with agent_host() as host:
        yield host


@pytest.fixture
async def recipient(network: WalletNetwork) -> Wallet2:
    """Recipient, with whom mediation is set up."""
    return await connected(network, did_method="peer2", pickup=PICKUP_3)


@pytest.fixture
async def registered(recipient: Wallet2) -> Recipient2:
    """A new peer DID that Recipient has sent in a keylist update."""
    return await recipient.new_recipient("peer2")


@pytest.fixture
async def sender(network: WalletNetwork) -> Sender:
    return Sender(network)


def code(report: Json) -> object:
    assert report["@type"] == PROBLEM, report
    description = report["description"]
    assert isinstance(description, dict)
    return description["code"]


# ---- ping.feature, "Trust Ping Protocol"


async def test_recipient_sends_and_receives_trusted_ping_message_with_return_route_all(
    network: WalletNetwork, listener: AgentHost
) -> None:
    """Recipient sends and receives trusted ping message with return_route "all"."""
    url = listener.url(host="127.0.0.1")
    wallet = await connected(network, did_method="peer2", endpoint=url)
    answer = await answer_to(wallet, "trust-ping/2.0/ping", response_requested=True)
    assert answer["@type"] == f"{NEW_PREFIX}trust-ping/2.0/ping-response"
    assert listener.received == []


async def test_recipient_sends_and_receives_trusted_ping_message_with_return_route_none(
    network: WalletNetwork, listener: AgentHost
) -> None:
    """Recipient sends and receives trusted ping message with return_route "none".

    Here Recipient is mediated before: nothing is sent to the endpoint of a stranger.
    """
    url = listener.url(host="127.0.0.1")
    wallet = await connected(network, did_method="peer2", endpoint=url)
    ping = ask_of("trust-ping/2.0/ping", response_requested=True)
    posted = await network.post(wallet.connection.pack(ping), content_type=MEDIA_TYPE)
    assert (posted.status, posted.body) == (202, b"")
    await listener.has(1)
    answer = wallet.connection.open(listener.received[0])
    assert isinstance(answer, dict)
    assert answer["@type"] == f"{NEW_PREFIX}trust-ping/2.0/ping-response"
    assert listener.requests[0].headers["Content-Type"] == MEDIA_TYPE


# ---- mediation_coordination.feature, "Mediator Coordination protocol"


async def test_recipient_asks_for_mediation_twice_in_a_row(recipient: Wallet2) -> None:
    """Recipient asks for mediation twice in a row and second request is denied (switched off).

    Background: Recipient successfully set up a connection with the mediator. Here the second is
    granted like the first: a wallet whose answer was lost asks again.
    """
    assert await recipient.request_mediation() == recipient.routing_did


async def test_recipient_adds_new_key_to_keylist(recipient: Wallet2) -> None:
    """Recipient adds new key to keylist."""
    new = Recipient2(KeyPair.new(), recipient.routing_did, "peer2")
    (updated,) = await recipient.update_recipients(add=[new.did])
    assert (updated.recipient_did, updated.action) == (new.did, "add")
    assert updated.result == "success"


async def test_recipient_removes_alias_from_keylist(
    recipient: Wallet2, registered: Recipient2
) -> None:
    """Recipient removes alias from keylist."""
    (updated,) = await recipient.update_recipients(remove=[registered.did])
    assert (updated.action, updated.result) == ("remove", "success")


async def test_recipient_removes_not_existing_alias(recipient: Wallet2) -> None:
    """Recipient removes not existing alias."""
    (updated,) = await recipient.update_recipients(remove=["did:peer:2.Ez6LSalias"])
    assert (updated.action, updated.result) == ("remove", "no_change")


async def test_recipient_query_keylist(recipient: Wallet2, registered: Recipient2) -> None:
    """Recipient query keylist. Here a DID that has a short form is listed by that."""
    listed = await recipient.query_recipients(limit=2)
    assert canonical_name(registered.did) in [each.recipient_did for each in listed.dids]


# ---- pickup_message.feature, "Pickup message protocol"


async def test_recipient_sends_a_status_request_message_with_one_forward_message_available(
    recipient: Wallet2, registered: Recipient2, sender: Sender
) -> None:
    """Recipient sends a status-request message with one forward message available."""
    await sender.write(registered, "message")
    status = await recipient.status(registered.did)
    assert (status.recipient_did, status.message_count) == (registered.did, 1)


async def test_recipient_sends_a_status_request_message_with_no_forward_message_available(
    recipient: Wallet2, registered: Recipient2
) -> None:
    """Recipient sends a status-request message with no forward message available."""
    status = await recipient.status(registered.did)
    assert (status.recipient_did, status.message_count) == (registered.did, 0)


async def test_recipient_sends_a_delivery_request_message_with_one_forward_message_available(
    recipient: Wallet2, registered: Recipient2, sender: Sender
) -> None:
    """Recipient sends a delivery-request message with one forward message available."""
    await sender.write(registered, "message")
    (picked,) = await recipient.fetch(3, registered.did)
    assert sender.text_in(registered, picked.envelope) == "message"


async def test_recipient_sends_a_delivery_request_message_with_no_available_forward_messages(
    recipient: Wallet2, registered: Recipient2
) -> None:
    """Recipient sends a delivery-request message with no available forward messages."""
    asks = {"recipient_did": registered.did, "limit": 3}
    answer = await answer_to(recipient, f"{PICKUP}delivery-request", **asks)
    assert answer["@type"] == f"{NEW_PREFIX}{PICKUP}status"
    assert (answer["recipient_did"], answer["message_count"]) == (registered.did, 0)


async def test_recipient_sends_a_delivery_request_and_confirms_that_messages_were_received(
    recipient: Wallet2, registered: Recipient2, sender: Sender
) -> None:
    """Recipient sends a delivery-request and confirms that messages were received."""
    await sender.write(registered, "message")
    (picked,) = await recipient.fetch(3, registered.did)
    assert (await recipient.received([picked.id])).message_count == 0
    assert (await recipient.status(registered.did)).message_count == 0


@pytest.mark.parametrize(("amount", "limit"), [(4, 2), (2, 4), (3, 3), (2, 0)])
async def test_recipient_limits_number_of_messages_for_delivery(
    recipient: Wallet2, registered: Recipient2, sender: Sender, amount: int, limit: int
) -> None:
    """Recipient limits number of messages for delivery (switched off)."""
    await sender.write(registered, *map(str, range(amount)))
    assert len(await recipient.fetch(limit, registered.did)) == min(amount, limit)


# ---- pickup_message_live_mode.feature, "Pickup message live mode protocol"


@pytest.fixture
async def live(recipient: Wallet2) -> AsyncIterator[Live]:
    """Recipient sends a live delivery change message with live_delivery to true."""
    async with recipient.live() as live:
        yield live


async def test_live_recipient_is_delivered_a_message_of_the_sender(
    live: Live, registered: Recipient2, sender: Sender
) -> None:
    """Recipient sends a delivery-request message with one forward message available (live mode).

    Here the message comes without a request for it, as live mode says.
    """
    await sender.write(registered, "message")
    (picked,) = await live.next()
    assert sender.text_in(registered, picked.envelope) == "message"


async def test_live_recipient_requests_a_delivery_of_nothing(
    live: Live, registered: Recipient2
) -> None:
    """Recipient sends a delivery-request message with no available forward messages (live mode)."""
    assert await live.fetch(1, registered.did) == []
    assert (await live.status(registered.did)).message_count == 0


async def test_live_recipient_confirms_that_messages_were_received(
    live: Live, recipient: Wallet2, registered: Recipient2, sender: Sender
) -> None:
    """Recipient sends a delivery-request and confirms that messages were received (live mode)."""
    await sender.write(registered, "message")
    (picked,) = await live.next()
    await recipient.received([picked.id])  # over HTTP, as the suite does
    assert (await live.status(registered.did)).message_count == 0


async def test_live_mode_over_http_is_not_supported(recipient: Wallet2) -> None:
    """Recipient sends a live delivery change message with live_delivery to true (over HTTP)."""
    answer = await answer_to(recipient, f"{PICKUP}live-delivery-change", live_delivery=True)
    assert code(answer) == "e.m.live-mode-not-supported"


# ---- report_problem.feature, "Report Problem Protocol"


async def test_sending_the_same_message_twice(network: WalletNetwork, recipient: Wallet2) -> None:
    """Sending the same message twice.

    The suite wants ``e.p.crypto.message.dejavu`` for the second. Here it is answered like the
    first: a wallet that does not know whether a message arrived sends the same bytes again.
    """
    message = ask_of("trust-ping/2.0/ping", **{"~transport": {"return_route": "all"}})
    packed = recipient.connection.pack(message)
    for _ in range(2):
        posted = await network.post(packed, content_type=MEDIA_TYPE)
        answer = recipient.connection.open(posted.body)
        assert isinstance(answer, dict)
        assert answer["@type"] == f"{NEW_PREFIX}trust-ping/2.0/ping-response"


async def test_sending_a_message_with_unsupported_protocol(recipient: Wallet2) -> None:
    """Sending a message with unsupported protocol."""
    assert code(await answer_to(recipient, "unsupported-protocol")) == "e.p.msg.unsupported"


async def test_sending_a_message_with_unsupported_version_of_protocol(recipient: Wallet2) -> None:
    """Sending a message with unsupported version of protocol."""
    for kind in ("basicmessage/100.0/message", "trust-ping/100.0/ping", "messagepickup/9.0/status"):
        assert code(await answer_to(recipient, kind)) == "e.p.msg.unsupported"


async def test_receive_pickup_message_with_not_enrolled_peer_did(
    network: WalletNetwork, recipient: Wallet2
) -> None:
    """Receive pickup message with not enrolled peer did."""
    known = recipient.connection
    connection = dataclasses.replace(known, key=KeyPair.new())
    stranger = Wallet2(connection, session=network.session, pickup=PICKUP_3)
    asks = {"recipient_did": Recipient2(KeyPair.new(), "did:example:1").did, "limit": 1}
    assert code(await answer_to(stranger, f"{PICKUP}delivery-request", **asks)) == (
        "e.p.req.not_enroll"
    )


@pytest.mark.parametrize("settings", [{"didcomm": {"unknown_recipient": "report"}}])
async def test_send_forward_message_to_not_enrolled_peer_did(
    recipient: Wallet2, sender: Sender
) -> None:
    """Send forward message to not enrolled peer did.

    The suite wants a signed problem report, which ``didcomm.unknown_recipient`` gives; by default
    an anonymous sender learns nothing. The status is 404: the message is not stored.
    """
    unknown = Recipient2(KeyPair.new(), recipient.routing_did, "peer2")
    answer = await sender.forward(unknown.did, "message", routing_did=recipient.routing_did)
    assert (answer.status, answer.headers["Content-Type"]) == (404, SIGNED)
    signed = read_signed(orjson.loads(answer.body), SeenDids())
    assert signed is not None
    report = orjson.loads(signed.payload)
    assert signed.did == report["from"] == recipient.routing_did
    assert report["type"] == PROBLEM
    assert report["body"]["code"] == "e.p.req.not_enroll"
    assert report["pthid"] == report["thid"]


async def test_sending_tampered_message(network: WalletNetwork, recipient: Wallet2) -> None:
    """Sending tampered message (switched off).

    Who cannot be proven has no key to which a report could be packed: 400, and its code.
    """
    packed = recipient.connection.pack(ask_of("trust-ping/2.0/ping"))
    tampered = packed.replace(b'"iv":"', b'"iv":"tampered')
    posted = await network.post(tampered, content_type=MEDIA_TYPE)
    assert (posted.status, orjson.loads(posted.body)) == (400, {"error": "undecryptable"})


async def test_sending_malformed_message(recipient: Wallet2) -> None:
    """Sending malformed message (switched off): ``e.p.msg`` and the type of the message."""
    kind = f"{PICKUP}delivery-request"
    answer = await answer_to(recipient, kind, limit="three")
    assert code(answer) == f"e.p.msg.{NEW_PREFIX}{kind}"
