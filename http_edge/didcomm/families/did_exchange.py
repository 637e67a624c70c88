"""DID exchange 1.0 and 1.1 (RFC 0023), role responder: how today's wallets connect.

A DID that holds its document (did:peer:2, did:peer:4 in its long form, did:key) speaks for itself;
did:peer:1, did:sov and a DID without a method come with their document attached
(``did_doc~attach``). The mediator answers in kind, for that is what an agent is sure to read: a DID
that holds its document, vouched for by ``did_rotate~attach``, or a DID with its document attached.
Both are signed by the key of the invitation. The message ``complete`` changes nothing: the
connection stands before it, and some agents cannot build it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import orjson
from base58 import b58encode

from http_edge.didcomm.documents import PeerDocument, read_document, resolve
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.handshake import PROBLEM_REPORT, Handshake, Objection
from http_edge.didcomm.keys import KeyPair, base58
from http_edge.didcomm.messages import Json, Message
from http_edge.didcomm.own_documents import LEGACY_CONTEXT, OwnDocuments
from http_edge.didcomm.peer_dids import PEER_2, PEER_4, peer4_document
from http_edge.didcomm.signed import TEXT_TYPE, read_attachment, sign_attachment
from http_edge.strict_json import JsonRefused, parse

MINORS: Final = (0, 1)
_PEER_1: Final = "did:peer:1"
_DID_KEY: Final = "did:key:"
_SOV: Final = "did:sov:"
_SHA2_256: Final = b"\x12\x20"
"""Multihash: SHA2-256, of 32 bytes."""


class DidExchange:
    """Answers the messages of DID exchange 1.x."""

    def __init__(self, handshake: Handshake, own: OwnDocuments, key: KeyPair) -> None:
        """Exchanges of one mediator; ``key`` is the key of its invitations."""
        self._handshake = handshake
        peer1 = _genesis_document(own, key.public)
        # Made once: neither the DIDs nor the signatures ever differ.
        self._peer4 = _rotated(own.peer4, key)
        self._peer2 = _rotated(own.peer2, key)
        self._peer1 = _attached(str(peer1["id"]), peer1, key)
        self._legacy = _attached(own.legacy_did, own.legacy_document(), key)

    def family(self) -> Family:
        """The family, with the mediator as responder."""
        return Family(
            name="didexchange",
            major=1,
            minors=MINORS,
            roles=("responder",),
            handlers={
                "request": self._request,
                "complete": _noted,
                PROBLEM_REPORT: _noted,
                "problem-report": _noted,  # as Credo spells it
            },
        )

    async def _request(self, asked: Asked) -> Outcome:
        did = asked.message.text("did")
        if not did:
            return self._handshake.refuse(asked, Objection.NO_DID)
        document = _document(did, asked.message)
        if isinstance(document, Objection):
            return self._handshake.refuse(asked, document)
        objection = await self._handshake.connect(asked, document)
        if objection is not None:
            return self._handshake.refuse(asked, objection)
        return self._handshake.accept(asked, **self._introduction(did))

    def _introduction(self, did: str) -> Json:
        """Who the mediator is, said in the form in which the agent said who it is."""
        if did.startswith((PEER_4, _DID_KEY)):
            return self._peer4
        if did.startswith(PEER_2):
            return self._peer2
        return self._peer1 if did.startswith(_PEER_1) else self._legacy


def _document(did: str, request: Message) -> PeerDocument | Objection:
    """The agent's document: from the DID itself, or attached and signed by a key in it.

    An unsigned one is taken too: only the holder of a key in it can have packed the request
    (``Handshake.connect``), which says as much as the signature. For the same reason the hash in
    a did:peer:1 is not looked at; agents differ in what they hash.
    """
    if did.startswith((PEER_2, PEER_4, _DID_KEY)):
        return resolve(did) or Objection.NO_DOCUMENT
    if did.startswith("did:") and not did.startswith((_PEER_1, _SOV)):
        return Objection.UNKNOWN_DID
    attachment = request.body.get("did_doc~attach")
    if attachment is None:
        return Objection.NO_DOCUMENT
    signed = read_attachment(attachment)
    if signed is None:
        return Objection.NOT_SIGNED
    try:
        document = read_document(did, parse(signed.content))
    except JsonRefused:
        return Objection.NO_DOCUMENT
    if document is None:
        return Objection.NO_DOCUMENT
    is_own_word = not signed.signers or not set(signed.signers).isdisjoint(document.recipient_keys)
    return document if is_own_word else Objection.NOT_SIGNED


def _rotated(did: str, key: KeyPair) -> Json:
    """A DID that holds its document, vouched for by the key of the invitation."""
    return {
        "did": did,
        "did_rotate~attach": sign_attachment(did.encode("ascii"), key, mime_type=TEXT_TYPE),
    }


def _attached(did: str, document: Json, key: KeyPair) -> Json:
    """A DID with its document, signed by the key of the invitation."""
    return {"did": did, "did_doc~attach": sign_attachment(orjson.dumps(document), key)}


def _genesis_document(own: OwnDocuments, public_key: bytes) -> Json:
    """The mediator's did:peer:1 document, for wallets from before did:peer:4 (AFJ, Credo 0.5).

    The services are those of its did:peer:4; the key has the type that all of these wallets read.
    The DID is the hash of the stored variant: without ``id``, and with ``#id`` in its place
    (did:peer method, numalgo 1).
    """
    modern = peer4_document(own.peer4)
    assert modern is not None, "it is our own"
    key_id = "#key-1"  # as the services name it
    method = {
        "id": key_id,
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": base58(public_key),
    }
    document: Json = {
        "@context": [LEGACY_CONTEXT],
        "verificationMethod": [{**method, "controller": "#id"}],
        "authentication": [key_id],
        "service": modern["service"],
    }
    digits: bytes = b58encode(_SHA2_256 + sha256(orjson.dumps(document)).digest())
    did = f"{_PEER_1}z{digits.decode('ascii')}"
    return {**document, "id": did, "verificationMethod": [{**method, "controller": did}]}


async def _noted(asked: Asked) -> Outcome:  # noqa: ARG001 - there is nothing to do
    """The end of an exchange; and a problem report is never answered (RFC 0035)."""
    return NOTHING
