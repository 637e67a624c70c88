"""What a wallet of DIDComm v2 reads of its mediator's messages."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import orjson
import pytest

from http_edge.clients.didcomm import (
    Connection2,
    NotAuthentic,
    Recipient2,
    UnexpectedAnswer,
    UnusableInvitation,
    Wallet2,
    forward_2,
)
from http_edge.clients.didcomm.connection import (
    QUEUE,
    agreement_key,
    messaging_service,
    peer_account,
)
from http_edge.clients.didcomm.pickup import delivered
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import encode_peer4
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.forward import wrap
from http_edge.didcomm.envelopes.v2.plaintext import addressed
from http_edge.didcomm.envelopes.v2.version import V2

MEDIATOR = OwnDids(KeyPair.from_seed(b"m" * 32), [messaging_service("http://mediator.test")])
STRANGER = OwnDids(KeyPair.from_seed(b"x" * 32), [messaging_service(QUEUE)])
CONNECTION = Connection2(
    KeyPair.from_seed(b"w" * 32), "peer2", QUEUE, MEDIATOR.peer2, "http://mediator.test", ""
)
DEEP = orjson.loads("[" * 29 + "]" * 29)
WIDE: list[Json] = [{}] * 19_000


def packed(own: OwnDids, message: Json) -> bytes:
    """A message for the wallet."""
    return packed_as(own, own.peer2, CONNECTION.did, message)


def packed_as(packer: OwnDids | None, sender_did: str, to: str, message: Json) -> bytes:
    """A message that names a sender, packed by its own keys, another's, or none."""
    written = addressed(message, sender_did, to)
    if packer is None:
        return envelope.seal(written, [envelope.Recipient(*agreement_key(to))], None)
    return V2(packer).seal(written, peer_account(to, packer.peer2))


def delivery(messages: Sequence[Json]) -> Json:
    attachments = [{"id": str(n), "data": {"json": each}} for n, each in enumerate(messages)]
    kind = f"{NEW_PREFIX}messagepickup/3.0/delivery"
    return {"id": "1", "type": kind, "body": {}, "attachments": attachments}


@pytest.mark.parametrize("junk", [[DEEP], [WIDE, WIDE]], ids=["deep", "wide"])
def test_what_strangers_may_send_can_be_read_together_in_a_delivery(junk: Sequence[object]) -> None:
    messages: list[Json] = [{"ciphertext": "x", "junk": each} for each in junk]
    opened = CONNECTION.open(packed(MEDIATOR, delivery(messages)))
    assert isinstance(opened, dict)
    assert [orjson.loads(one.envelope) for one in delivered(opened)] == messages


def test_the_body_of_a_message_does_not_replace_its_headers() -> None:
    kind = f"{NEW_PREFIX}trust-ping/2.0/ping-response"
    names = ["@type", "@id", "~thread", "~attach", "~from_prior"]
    body = {**dict.fromkeys(names, "other"), "comment": "kept"}
    opened = CONNECTION.open(packed(MEDIATOR, {"id": "1", "type": kind, "body": body}))
    assert opened == {"@type": kind, "@id": "1", "comment": "kept"}


@pytest.mark.parametrize(
    ("packer", "named"),
    [(STRANGER, STRANGER), (STRANGER, MEDIATOR), (None, MEDIATOR), (MEDIATOR, STRANGER)],
    ids=["a stranger's", "in the mediator's name", "anonymous", "in a stranger's name"],
)
def test_a_message_by_another_is_not_taken(packer: OwnDids | None, named: OwnDids) -> None:
    with pytest.raises(NotAuthentic, match="not by the mediator"):
        CONNECTION.open(packed_as(packer, named.peer2, CONNECTION.did, delivery([])))


def test_a_recipient_takes_no_envelope_for_another_did_and_no_message_in_anothers_name() -> None:
    recipient, other = (Recipient2(KeyPair.from_seed(s * 32), MEDIATOR.peer2) for s in (b"r", b"o"))
    message: Json = {"id": "1", "type": "x", "body": {}}
    sender_did = STRANGER.peer2
    for packer, proven in ((STRANGER, sender_did), (None, "")):
        _, sender = recipient.unpack(packed_as(packer, sender_did, recipient.did, message))
        assert sender == proven
    with pytest.raises(NotAuthentic, match="another DID"):
        recipient.unpack(packed_as(STRANGER, sender_did, other.did, message))
    with pytest.raises(NotAuthentic, match="another than it says"):
        recipient.unpack(packed_as(MEDIATOR, sender_did, recipient.did, message))


def test_nothing_is_sealed_to_a_did_whose_keys_only_sign() -> None:
    method = {
        "id": "#key-1",
        "type": "Multikey",
        "publicKeyMultibase": did_key(MEDIATOR.key.public).removeprefix("did:key:"),
    }
    service = messaging_service(MEDIATOR.peer2)
    named: Json = {"verificationMethod": [method], "keyAgreement": ["#key-1"], "service": [service]}
    did = encode_peer4(named)
    sender = Recipient2(STRANGER.key, MEDIATOR.peer2)
    with pytest.raises(UnusableInvitation):
        sender.seal({"@type": "x", "@id": "1"}, did)
    with pytest.raises(UnusableInvitation):
        forward_2([], did, did)
    assert wrap(b"{}", "did:example:behind", [did], lambda: "1") is None


class SaysNothing:
    """A mediator whose answer to an update has nothing in it."""

    async def exchange(self, message: Json, *, raw: bool = False) -> Json:
        assert not raw
        thread = {"thid": message["@id"]}
        return {"@type": f"{message['@type']}-response", "~thread": thread, "updated": []}

    def came_about(self, message_id: str) -> None:
        pass


async def test_a_did_of_which_the_mediator_says_nothing_is_no_recipient(
    session: aiohttp.ClientSession,
) -> None:
    wallet = Wallet2(CONNECTION, session=session).over(SaysNothing())
    with pytest.raises(UnexpectedAnswer):
        await wallet.new_recipient()
