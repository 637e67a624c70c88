"""What DIDComm v2 agents and strangers send that is wrong, late, or meant to be more than it is."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson
import pytest
from hypothesis import strategies as st

from http_edge.clients.didcomm import PICKUP_4, Recipient2, Wallet2, forward_2
from http_edge.clients.didcomm.connection import agreement_key
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_bad_input import JSON, samples
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import Answer

PASSED_S: Final = (1_000_000_000, 0.5, 0, -5)
FUTURE_S: Final = 4_000_000_000


@pytest.fixture
async def bob(network: WalletNetwork) -> Wallet2:
    return await connected(network)


@pytest.fixture
async def recipient(bob: Wallet2) -> Recipient2:
    return await bob.new_recipient()


@pytest.fixture
async def alice(network: WalletNetwork) -> Sender:
    return Sender(network)


def anonymous(message: Json, to: str) -> bytes:
    """A message in the form of v2, that proves no sender."""
    recipient = envelope.Recipient(*agreement_key(to))
    return envelope.seal(orjson.dumps(message), [recipient], None)


def in_form(kind: str, /, **members: Any) -> Json:
    """A message in the form of v2, with return route."""
    head = {"id": "odd-1", "type": NEW_PREFIX + kind, "return_route": "all"}
    return {**head, "body": {}, **members}


async def say(network: WalletNetwork, wallet: Wallet2, message: Json) -> Answer:
    """What a wallet is answered to a message in the form of v2, as it is."""
    own, theirs = wallet.connection.did, wallet.connection.mediator_did
    # Of the standard library, which writes every number that there is.
    written = json.dumps({**message, "from": own, "to": [theirs]}).encode()
    return await network.post(wallet.connection.packed(written), content_type=MEDIA_TYPE)


# ---- who may say what


@pytest.mark.parametrize(
    "kind",
    [
        "trust-ping/2.0/ping",
        "coordinate-mediation/2.0/mediate-request",
        "coordinate-mediation/3.0/recipient-update",
        "messagepickup/3.0/delivery-request",
        "message-pickup/4.0/status-request",
        "discover-features/2.0/queries",
        "unheard-of/1.0/message",
    ],
)
async def test_a_sender_that_is_not_proven_may_forward_and_nothing_else(
    network: WalletNetwork, bob: Wallet2, kind: str
) -> None:
    facts = network.mediator.facts()
    claimed = in_form(kind, **{"from": bob.connection.did})
    for message in (in_form(kind), claimed):
        answer = await network.post(
            anonymous(message, bob.connection.mediator_did), content_type=MEDIA_TYPE
        )
        assert answer.status == 400
        assert answer.json["error"] in {"anonymous", "not-a-message"}
    assert network.mediator.facts() == facts


async def test_no_agent_fetches_or_removes_what_is_anothers(
    network: WalletNetwork, bob: Wallet2, recipient: Recipient2, alice: Sender
) -> None:
    await alice.write(recipient, "for Bob")
    (picked,) = await bob.fetch()
    eve = await connected(network)
    for pickup in (eve.pickup, PICKUP_4):
        eve.pickup = pickup
        assert await eve.fetch(10, recipient.did) == []
        assert (await eve.status(recipient.did)).message_count == 0
        await eve.received([picked.id])
    assert (await bob.status()).message_count == 1


# ---- times


@pytest.mark.parametrize("over_s", PASSED_S)
async def test_a_message_whose_time_is_over_is_not_handled(
    network: WalletNetwork, bob: Wallet2, over_s: float
) -> None:
    updates = [{"recipient_did": "did:example:late", "action": "add"}]
    late = in_form(
        "coordinate-mediation/2.0/keylist-update", body={"updates": updates}, expires_time=over_s
    )
    facts = network.mediator.facts()
    answer = await say(network, bob, late)
    assert (answer.status, answer.json) == (410, {"error": "expired"})
    assert network.mediator.facts() == facts
    early = {**late, "id": "odd-2", "expires_time": FUTURE_S}
    assert (await say(network, bob, early)).status == 200
    assert len((await bob.query_recipients()).dids) == 2


@pytest.mark.parametrize("settings", [{"didcomm": {"error_reports_max": 2}}])
async def test_a_socket_reports_so_many_messages_whose_time_is_over_and_no_more(
    network: WalletNetwork, bob: Wallet2
) -> None:
    own, theirs = bob.connection.did, bob.connection.mediator_did
    ping = {**in_form("trust-ping/2.0/ping"), "from": own, "to": [theirs]}
    late = [{**ping, "id": f"late-{number}", "expires_time": 1} for number in range(5)]
    answers: list[Json] = []
    async with network.socket() as socket:
        for message in [*late, ping]:
            await socket.raw.send_bytes(bob.connection.packed(orjson.dumps(message)))
        while not answers or "code" in answers[-1]:
            answer = bob.connection.open(await socket.data())
            assert isinstance(answer, dict)
            answers.append(answer)
    codes = [answer["code"] for answer in answers[:-1]]
    assert codes == ["e.m.req.time", "e.m.req.time", "e.p.req.max-errors-exceeded"]
    assert answers[-1]["~thread"]["thid"] == ping["id"], "what is right is answered"


@pytest.mark.parametrize("over_s", PASSED_S)
async def test_a_forward_whose_time_is_over_stores_nothing(
    bob: Wallet2, recipient: Recipient2, alice: Sender, over_s: float
) -> None:
    late = await alice.forward(recipient.did, "late", expires_time=over_s)
    assert (late.status, late.json) == (410, {"error": "expired"})
    assert (await bob.status()).message_count == 0
    assert (await alice.forward(recipient.did, "early", expires_time=FUTURE_S)).status == 202
    assert (await bob.status()).message_count == 1


# ---- forwards


async def test_one_bad_attachment_keeps_the_good_ones_out(
    network: WalletNetwork, bob: Wallet2, recipient: Recipient2, alice: Sender
) -> None:
    good = {"data": {"json": orjson.loads(alice.sealed("good", recipient.did))}}
    bads: list[Json] = [{"data": {"links": ["https://example.com"]}}, {"data": {"json": {}}}]
    for bad in bads:
        message = in_form(
            "routing/2.0/forward", body={"next": recipient.did}, attachments=[good, bad]
        )
        answer = await network.post(anonymous(message, bob.routing_did), content_type=MEDIA_TYPE)
        assert answer.status == 400
    assert (await bob.status()).message_count == 0


@pytest.mark.parametrize("settings", [{"didcomm": {"unknown_recipient": "refuse"}}])
async def test_a_forward_for_an_unknown_name_is_refused_where_the_operator_wants_it(
    network: WalletNetwork, bob: Wallet2, recipient: Recipient2, alice: Sender
) -> None:
    unknown = Recipient2(KeyPair.new(), bob.routing_did)
    for named in (unknown.did, "did:web:unknown.example", "no DID"):
        answer = await alice.forward(recipient.did, "known")
        assert answer.status == 202
        body = forward_2([alice.sealed("x", unknown.did)], named, bob.routing_did)
        answer = await network.post(body, content_type=MEDIA_TYPE)
        assert (answer.status, answer.json) == (404, {"error": "unknown-recipient"})
    assert (await bob.status()).message_count == 3


async def test_forwards_within_forwards_to_ourselves_are_unwrapped_to_a_bound(
    network: WalletNetwork, bob: Wallet2, recipient: Recipient2, alice: Sender
) -> None:
    body = alice.sealed("deep", recipient.did)
    body = forward_2([body], recipient.did, bob.routing_did)
    for _ in range(2):
        body = forward_2([body], bob.routing_did, bob.routing_did)
    assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await bob.status()).message_count == 1
    body = forward_2([body], bob.routing_did, bob.routing_did)
    answer = await network.post(body, content_type=MEDIA_TYPE)
    assert answer.json == {"error": "forward-too-deep"}


# ---- bodies


@pytest.mark.parametrize("protocol", ["messagepickup/3.0", "message-pickup/4.0"])
async def test_a_receipt_that_names_no_messages_is_not_acknowledged(
    network: WalletNetwork, bob: Wallet2, protocol: str
) -> None:
    receipt = in_form(f"{protocol}/messages-received", please_ack=[""], return_route="none")
    assert (await say(network, bob, receipt)).status == 400
    assert (await bob.status()).message_count == 0
    right = {**receipt, "id": "odd-2", "body": {"message_id_list": []}}
    assert (await say(network, bob, right)).status == 202
    assert (await bob.status()).message_count == 1


KINDS: Final = [
    "trust-ping/2.0/ping",
    "messagepickup/3.0/status-request",
    "messagepickup/3.0/delivery-request",
    "messagepickup/3.0/messages-received",
    "messagepickup/3.0/live-delivery-change",
    "message-pickup/4.0/status-request",
    "message-pickup/4.0/delivery-request",
    "message-pickup/4.0/messages-received",
    "message-pickup/4.0/live-delivery-change",
    "coordinate-mediation/2.0/mediate-request",
    "coordinate-mediation/2.0/keylist-update",
    "coordinate-mediation/2.0/keylist-query",
    "coordinate-mediation/3.0/recipient-update",
    "coordinate-mediation/3.0/recipient-query",
    "discover-features/2.0/queries",
    "report-problem/2.0/problem-report",
    "empty/1.0/empty",
    "messagepickup/2.0/delivery-request",
    "messagepickup/1.0/batch-pickup",
    "queue/1.0/fetch-request",
]
MEMBERS: Final = [
    "limit", "recipient_did", "message_id_list", "live_delivery", "message_count_limit", "updates",
    "paginate", "queries", "response_requested", "code", "batch_size", "recipient_key",
]  # fmt: skip
HEADERS: Final = [
    "thid", "pthid", "return_route", "return_route_thread", "please_ack", "ack", "created_time",
    "attachments", "from_prior", "lang", "trace", "web_redirect", "l10n", "delay_milli",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{"didcomm": {"delay_s_max": 0, "error_reports_max": 0}}])
async def test_whatever_stands_in_a_message_is_answered(
    network: WalletNetwork, bob: Wallet2
) -> None:
    bodies = st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=3) | JSON
    headers = st.dictionaries(st.sampled_from(HEADERS), JSON, max_size=2)
    made = samples(st.tuples(st.sampled_from(KINDS), bodies, headers), 200)
    for number, (kind, body, head) in enumerate(made):
        message = {**in_form(kind, body=body, id=f"odd-{number}"), **head}
        answer = await say(network, bob, message)
        assert answer.status in {200, 202, 400}, (kind, body, head)
    await bob.ping()
