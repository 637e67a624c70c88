"""DID exchange 1.0 and 1.1 (RFC 0023), role responder: the handshake of today's wallets.

A DID that contains its document (did:peer:0, 2, and 4 in its long form, did:key) is sent alone;
did:peer:1, did:sov and a DID without a method come with their document attached (``did_doc``). The
mediator answers in the same form, which the agent is sure to read: a DID that contains its
document, with the attachment ``did_rotate``, or a DID with its document attached. Both attachments
are signed by the invitation's key. The message ``complete`` changes nothing: the connection exists
before it, and some agents cannot send it.
"""

from __future__ import annotations

from typing import Final

import orjson

from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.keys import DID_KEY, KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json, Message, Reply
from http_edge.didcomm.envelopes.peer_dids import PEER_0, PEER_2, PEER_4, multihash
from http_edge.didcomm.envelopes.peer_documents import (
    KEY_ID,
    LEGACY_CONTEXT,
    PeerDocument,
    read_document,
    resolve,
)
from http_edge.didcomm.envelopes.signed import TEXT_TYPE, read_attachment, sign_attachment
from http_edge.didcomm.protocols.admission import NotAdmitted
from http_edge.didcomm.protocols.handshake import (
    PROBLEM_REPORT,
    HandshakeResponder,
    MediatorDocuments,
    refused,
)
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer

_PEER_1: Final = "did:peer:1"
_SOV: Final = "did:sov:"


class DidExchange:
    """Answers the messages of DID exchange 1.x."""

    def __init__(self, handshake: HandshakeResponder) -> None:
        self._handshake = handshake
        own, key = handshake.documents, handshake.documents.key
        peer1 = _genesis_document(own)
        # Made once, because DIDs and signatures never change.
        self._peer4 = _response(key, own.peer4)
        self._peer2 = _response(key, own.peer2)
        self._peer1 = _response(key, str(peer1["id"]), peer1)
        self._legacy = _response(key, own.legacy_did, own.legacy_document())

    def family(self) -> Family:
        """Return the family, with the mediator as responder."""
        return Family(
            name="didexchange",
            major=1,
            minors=(0, 1),
            roles=("responder",),
            handlers={
                "request": self._request,
                "complete": no_answer,
                PROBLEM_REPORT: no_answer,
                "problem-report": no_answer,  # as Credo spells it
            },
        )

    async def _request(self, request: Request) -> Outcome:
        did = request.message.text("did") or ""
        rejection = await self._handshake.connect(request, _document(did, request.message))
        return Outcome(self._response(did)) if rejection is None else refused(rejection)

    def _response(self, did: str) -> Reply:
        """Return the mediator's DID in the form of the agent's own DID."""
        if did.startswith((PEER_4, DID_KEY)):
            return self._peer4
        if did.startswith((PEER_0, PEER_2)):
            return self._peer2
        return self._peer1 if did.startswith(_PEER_1) else self._legacy


def _document(did: str, request: Message) -> PeerDocument | NotAdmitted:
    """Return the agent's document: from the DID itself, or attached and signed by one of its keys.

    An unsigned attachment is accepted, too: only the holder of a key in the document can have
    packed the request (``HandshakeResponder.connect``), which proves as much as a signature. For
    the same reason the hash in a did:peer:1 is not checked; agents differ in what they hash.
    """
    if not did:
        return NotAdmitted.NO_DID
    if did.startswith((PEER_0, PEER_2, PEER_4, DID_KEY)):
        return resolve(did) or NotAdmitted.NO_DOCUMENT
    if did.startswith("did:") and not did.startswith((_PEER_1, _SOV)):
        return NotAdmitted.UNKNOWN_DID
    attachment = request.attachments.get("did_doc")
    if attachment is None:
        return NotAdmitted.NO_DOCUMENT
    signed = read_attachment(attachment)
    if signed is None:
        return NotAdmitted.NOT_SIGNED
    document = read_document(did, object_in(signed.content))
    if document is None:
        return NotAdmitted.NO_DOCUMENT
    is_own_word = not signed.signers or not set(signed.signers).isdisjoint(document.recipient_keys)
    return document if is_own_word else NotAdmitted.NOT_SIGNED


def _response(key: KeyPair, did: str, document: Json | None = None) -> Reply:
    """Return a response with a DID and its document, or a DID that contains it.

    The invitation's key signs the document, or the DID.
    """
    if document is None:
        signed = {"did_rotate": sign_attachment(did.encode("ascii"), key, media_type=TEXT_TYPE)}
    else:
        signed = {"did_doc": sign_attachment(orjson.dumps(document), key)}
    return Reply("response", {"did": did}, attachments=signed, names_parent=True)


def _genesis_document(own: MediatorDocuments) -> Json:
    """Return the mediator's did:peer:1 document, for wallets before did:peer:4 (AFJ, Credo 0.5).

    The services are those of the did:peer:4; the key has the type that all of these wallets read.
    The DID is the hash of the stored variant, which has no ``id``, and ``#id`` as controller
    (did:peer method, numalgo 1).
    """
    method = {
        "id": KEY_ID,
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": base58(own.key.public),
    }
    document: Json = {
        "@context": [LEGACY_CONTEXT],
        "verificationMethod": [{**method, "controller": "#id"}],
        "authentication": [KEY_ID],
        "service": own.services,
    }
    did = _PEER_1 + multihash(orjson.dumps(document).decode())
    return {**document, "id": did, "verificationMethod": [{**method, "controller": did}]}
