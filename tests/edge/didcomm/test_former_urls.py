"""A mediator whose public URL has changed, and peers that know it by DIDs with the former one."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from http_edge.clients.didcomm import Recipient2, Wallet2, fetch_invitation_2
from http_edge.didcomm.composition import PATH
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import SERVICE, WalletNetwork
from tests.edge.mediator import Mediator
from tests.unit.didcomm.v2_agent import V2Agent, keys_of, recipient

PRESENT: Final = "https://present.example"
CAROL: Final = V2Agent(KeyPair.from_seed(b"c" * 32))
SPELLINGS: Final = ["peer2", "peer3", "peer4", "peer4_short"]
MEDIATION: Final = f"{NEW_PREFIX}coordinate-mediation/3.0/"


def own_at(url: str) -> OwnDids:
    """The mediator's DIDs when this is its URL."""
    return OwnDids(SERVICE, own_services(url + PATH))


def spelled(own: OwnDids, spelling: str) -> str:
    """One of these DIDs of the mediator."""
    did = canonical_name(own.peer2) if spelling == "peer3" else getattr(own, spelling)
    assert isinstance(did, str)
    return did


def forward(own: OwnDids, did: str, envelope: bytes, to: str) -> bytes:
    """A forward for the mediator under this DID, with an envelope for another DID."""
    message = {
        "id": "forward-1",
        "type": f"{NEW_PREFIX}routing/2.0/forward",
        "to": [did],
        "body": {"next": to},
        "attachments": [{"data": {"json": orjson.loads(envelope)}}],
    }
    return CAROL.pack(message, recipient(own, did), None)


async def texts_of(wallet: Wallet2, alice: Sender, to: Recipient2) -> list[str]:
    return [alice.text_in(to, picked.envelope) async for picked in wallet.drain(100)]


async def test_forwards_to_every_spelling_of_a_former_did_wait_and_are_picked_up_as_before(
    network: WalletNetwork, mediator: Mediator
) -> None:
    former, alice = own_at(mediator.settings.url), Sender(network)
    wallet = await connected(network)
    bob = await wallet.new_recipient()
    assert wallet.connection.mediator_did == bob.routing_did == former.peer2
    await mediator.move("https://between.example")
    await mediator.move(PRESENT)
    for spelling in SPELLINGS:
        did = spelled(former, spelling)
        once = forward(former, did, alice.sealed(spelling, bob.did), bob.did)
        for body in (once, forward(former, former.did_key, once, did)):
            answer = await network.post(body, content_type=MEDIA_TYPE)
            assert (answer.status, answer.body) == (202, b"")
    assert await texts_of(wallet, alice, bob) == [each for each in SPELLINGS for _ in range(2)]
    another = await wallet.new_recipient()
    await alice.write(another, "by way of the former routing DID")
    assert await texts_of(wallet, alice, another) == ["by way of the former routing DID"]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_who_asks_under_a_former_did_is_answered_as_that_did_and_granted_the_present_one(
    network: WalletNetwork, mediator: Mediator, spelling: str
) -> None:
    former, present = own_at(mediator.settings.url), own_at(PRESENT)
    await mediator.move(PRESENT)
    did = spelled(former, spelling)

    async def answer_to(kind: str, **members: Any) -> Any:
        members |= {"type": MEDIATION + kind, "to": [did]}
        question = CAROL.plaintext(CAROL.dids.peer4, return_route="all", **members)
        body = CAROL.pack(question, recipient(former, did), CAROL.dids.peer4)
        answer = await network.post(body, content_type=MEDIA_TYPE)
        return CAROL.open(answer.body, keys_of(former, did))

    granted = await answer_to("mediate-request")
    assert (granted["from"], granted["to"]) == (did, [CAROL.dids.peer4])
    granted_did = present.peer4 if spelling.startswith("peer4") else present.peer2
    assert granted["body"] == {"routing_did": [granted_did]}
    update = {"recipient_did": did, "action": "add"}
    updated = await answer_to("recipient-update", body={"updates": [update]})
    assert updated["body"]["updated"] == [{**update, "result": "client_error"}]


async def test_a_former_url_is_in_no_document_and_in_no_invitation(
    network: WalletNetwork, mediator: Mediator
) -> None:
    former = mediator.settings.url
    await mediator.move(PRESENT)
    invitation = await mediator.get("/invitation", headers={"Accept": "application/json"})
    for answer in (await mediator.get("/.well-known/did.json"), invitation):
        assert PRESENT.encode() in answer.body
        assert former.encode() not in answer.body
    found = await fetch_invitation_2(network.session, mediator.url("/invitation"))
    assert found.did == own_at(PRESENT).peer2
