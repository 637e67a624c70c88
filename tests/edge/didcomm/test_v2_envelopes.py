"""DIDComm v2 over HTTP: an envelope reaches a handler, and what comes back is for its sender."""

from __future__ import annotations

import logging
from typing import Any, Final

import orjson
import pytest

from http_edge.didcomm.envelopes.agent_documents import (
    AgentDocument,
    read_agent_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v2.envelope import Recipient
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import SERVICE, WalletNetwork
from tests.edge.mediator import Mediator
from tests.unit.didcomm.v2_agent import PING, V2Agent

CAROL: Final = V2Agent(KeyPair.from_seed(b"c" * 32))


async def served_keys(mediator: Mediator) -> AgentDocument:
    """The mediator's keys, as its did:web document says."""
    document = (await mediator.get("/.well-known/did.json")).json
    return read_agent_document(document["id"], document)


async def keys_of(mediator: Mediator, method: str) -> AgentDocument:
    own = OwnDids(SERVICE)
    found = {
        "did:web": await served_keys(mediator),
        "did:key": resolve_document(own.did_key),
        "x25519": resolve_document(own.x25519),
    }[method]
    assert found is not None
    return found


def ping(sender: str | None, **members: Any) -> dict[str, Any]:
    return {**CAROL.plaintext(sender, return_route="all"), "type": PING, **members}


@pytest.mark.parametrize("method", ["did:web", "did:key", "x25519"])
async def test_a_ping_is_answered_to_whom_it_came_from_by_whom_it_was_for(
    network: WalletNetwork, method: str
) -> None:
    keys = await keys_of(network.mediator, method)
    for number, (fragment, key) in enumerate(keys.agreement.items()):
        to = Recipient(f"{keys.did}#{fragment}", key)
        for sender in (CAROL.dids.did_key, CAROL.dids.peer2, CAROL.dids.peer4):
            body = CAROL.pack(ping(sender, id=f"ping-{number}"), to, sender)
            answer = await network.post(body, content_type=MEDIA_TYPE)
            assert answer.status == 200
            assert answer.headers["Content-Type"] == MEDIA_TYPE
            pong = CAROL.open(answer.body, keys)
            assert pong["type"] == NEW_PREFIX + "trust-ping/2.0/ping-response"
            assert (pong["from"], pong["to"]) == (keys.did, [sender])
            assert pong["thid"] == f"ping-{number}"


@pytest.mark.parametrize("name", ["problem-report", "ack", "ACK"])
async def test_a_report_or_an_ack_of_an_unknown_protocol_is_not_answered_with_a_report(
    network: WalletNetwork, name: str
) -> None:
    keys, did = await served_keys(network.mediator), CAROL.dids.peer4
    fragment, key = next(iter(keys.agreement.items()))
    for protocol in (NEW_PREFIX + "nothing/1.0", "https://example.com/lunch/1.0"):
        message = ping(did, type=f"{protocol}/{name}")
        body = CAROL.pack(message, Recipient(f"{keys.did}#{fragment}", key), did)
        answer = await network.post(body, content_type=MEDIA_TYPE)
        assert (answer.status, answer.body) == (202, b""), protocol


async def test_a_wallet_may_go_on_by_its_short_did_after_a_restart(
    network: WalletNetwork, mediator: Mediator
) -> None:
    keys = await served_keys(mediator)
    long, short = CAROL.dids.peer4, CAROL.dids.peer4_short
    fragment, key = list(keys.agreement.items())[-1]
    to = Recipient(f"{keys.did}#{fragment}", key)
    kid = f"{short}#key-2"
    by_short = CAROL.pack(ping(short), to, long, kid=kid)
    unknown = await network.post(by_short, content_type=MEDIA_TYPE)
    assert (unknown.status, unknown.json) == (400, {"error": "undecryptable"})
    ask = ping(long, type=NEW_PREFIX + "coordinate-mediation/3.0/mediate-request")
    granted = await network.post(CAROL.pack(ask, to, long), content_type=MEDIA_TYPE)
    assert CAROL.open(granted.body, keys)["type"].endswith("/mediate-grant")
    await mediator.restart()
    answer = await network.post(by_short, content_type=MEDIA_TYPE)
    assert answer.status == 200
    assert CAROL.open(answer.body, keys)["to"] == [short]


async def test_a_wallet_may_go_on_by_its_short_did_although_its_keylist_has_it_no_longer(
    network: WalletNetwork, mediator: Mediator
) -> None:
    keys = await served_keys(mediator)
    long, short = CAROL.dids.peer4, CAROL.dids.peer4_short
    fragment, key = list(keys.agreement.items())[-1]
    to = Recipient(f"{keys.did}#{fragment}", key)

    async def said(name: str, **members: Any) -> dict[str, Any]:
        question = ping(long, type=f"{NEW_PREFIX}coordinate-mediation/3.0/{name}", **members)
        answer = await network.post(CAROL.pack(question, to, long), content_type=MEDIA_TYPE)
        return CAROL.open(answer.body, keys)

    await said("mediate-request")
    for result in ("success", "no_change"):
        update = {"recipient_did": short, "action": "remove"}
        updated = await said("recipient-update", body={"updates": [update]})
        assert updated["body"]["updated"] == [{**update, "result": result}]
    assert (await said("recipient-query"))["body"]["dids"] == []
    await mediator.restart()
    by_short = CAROL.pack(ping(short), to, long, kid=f"{short}#key-2")
    answer = await network.post(by_short, content_type=MEDIA_TYPE)
    assert answer.status == 200
    assert CAROL.open(answer.body, keys)["to"] == [short]


async def test_a_message_that_names_another_is_answered_counted_and_logged_when_they_double(
    network: WalletNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "http_edge.didcomm.inbound")
    keys = await keys_of(network.mediator, "did:key")
    fragment, key = next(iter(keys.agreement.items()))
    to, sender = Recipient(f"{keys.did}#{fragment}", key), CAROL.dids.peer4
    for number in range(5):
        for named in (keys.did, "did:example:other"):
            question = ping(sender, id=f"ping-{number}-{named}", to=[named])
            answer = await network.post(CAROL.pack(question, to, sender), content_type=MEDIA_TYPE)
            assert answer.status == 200
            assert CAROL.open(answer.body, keys)["thid"] == question["id"]
    logged = [line.__dict__ for line in caplog.records if "another recipient" in line.message]
    command = "trust-ping/2.0/ping"
    assert [(line["command"], line["so_far"]) for line in logged] == [
        (command, 1),
        (command, 2),
        (command, 4),
    ]
    assert misaddressed(network) == {command: 5}


async def test_a_forward_that_names_another_mediator_is_followed_and_counted(
    network: WalletNetwork,
) -> None:
    wallet, sender = await connected(network), Sender(network)
    recipient = await wallet.new_recipient()
    keys = await keys_of(network.mediator, "did:key")
    fragment, key = next(iter(keys.agreement.items()))
    for named in ("did:example:other", keys.did):
        envelope = orjson.loads(sender.sealed("followed", recipient.did))
        forward = CAROL.plaintext(
            None,
            type=f"{NEW_PREFIX}routing/2.0/forward",
            to=[named],
            body={"next": recipient.did},
            attachments=[{"data": {"json": envelope}}],
        )
        body = CAROL.pack(forward, Recipient(f"{keys.did}#{fragment}", key), None)
        assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await wallet.status()).message_count == 2
    assert misaddressed(network) == {"routing/2.0/forward": 1}


def misaddressed(network: WalletNetwork) -> dict[str, int]:
    """How many messages named only others, by their type."""
    (counted,) = [
        family.samples
        for family in network.mediator.edges[0].report()
        if family.name == "poste_misaddressed"
    ]
    return {labels["command"]: int(count) for _, labels, count in counted}
