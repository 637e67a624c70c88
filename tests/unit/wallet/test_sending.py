from __future__ import annotations

import orjson
import pytest

from http_edge.clients.didcomm import (
    Address,
    Mediation,
    NotAuthentic,
    Recipient,
    Recipient2,
    UnusableInvitation,
    forward,
    forward_2,
)
from http_edge.clients.didcomm.connection import open_for
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import encode_peer2

BOB, NEAR, FAR, ALICE = (KeyPair.from_seed(bytes([n]) * 32) for n in range(1, 5))
MESSAGE: Json = {
    "@type": "https://didcomm.org/basicmessage/1.0/message",
    "@id": "1",
    "content": "hello",
}


def unwrapped(envelope: bytes, key: KeyPair) -> tuple[object, bytes]:
    """``to`` and ``msg`` of a forward for ``key``, which must be anonymous."""
    opened = open_for(key, envelope)
    assert opened is not None
    assert opened.sender_key is None
    assert str(opened.message["@type"]).endswith("routing/1.0/forward")
    return opened.message["to"], orjson.dumps(opened.message["msg"])


def test_the_last_routing_key_is_the_outermost() -> None:
    sealed = Address(BOB.public, "http://far", (NEAR.public, FAR.public)).seal(MESSAGE, ALICE)
    to, sealed = unwrapped(sealed, FAR)
    assert to == did_key(NEAR.public)
    to, sealed = unwrapped(sealed, NEAR)
    assert to == did_key(BOB.public)
    opened = Recipient(BOB, Mediation("", ())).unpack(sealed)
    assert opened == (MESSAGE, ALICE.public)


def test_without_routing_keys_the_envelope_goes_as_it_is() -> None:
    assert forward(b"{}", BOB.public, []) == b"{}"


def test_a_key_given_as_text_is_sent_in_its_own_spelling() -> None:
    to, _ = unwrapped(forward(b"{}", base58(BOB.public), [NEAR.public]), NEAR)
    assert to == base58(BOB.public)


def test_without_a_sender_the_message_is_anonymous() -> None:
    recipient = Recipient(BOB, Mediation("http://near", ()))
    assert recipient.unpack(recipient.address.seal(MESSAGE)) == (MESSAGE, None)


def test_an_envelope_for_another_key_is_not_opened() -> None:
    sealed = Address(ALICE.public, "").seal(MESSAGE)
    with pytest.raises(NotAuthentic):
        Recipient(BOB, Mediation("", ())).unpack(sealed)


def test_a_did_whose_key_nothing_can_be_packed_to_is_refused_as_unusable() -> None:
    did = encode_peer2([ALICE.public], [], agreement_keys=[bytes(32)])  # of low order
    with pytest.raises(UnusableInvitation, match="nothing can be packed"):
        Recipient2(ALICE, did, "key").seal(MESSAGE, did)
    with pytest.raises(UnusableInvitation, match="nothing can be packed"):
        forward_2([b"{}"], "did:example:bob", did)
