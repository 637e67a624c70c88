"""The wallet's side of a handshake: DID exchange 1.x and connections 1.0 (RFC 0023, RFC 0160).

Pure: it reads and makes messages. The answer counts only if the key of the invitation proves the
DID in it: by a signature on the DID document, on the DID, or on the connection. A DID that carries
its own document needs no signature if that key packed the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import orjson

from http_edge.clients.didcomm.connection import QUEUE, Connection, Opened, endpoints
from http_edge.clients.didcomm.errors import NotAuthentic, UnexpectedAnswer
from http_edge.clients.didcomm.flat_messages import member
from http_edge.clients.didcomm.invitation import Invitation
from http_edge.clients.didcomm.protocol_session import expected, new_id
from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.peer_dids import (
    encode_peer2,
    encode_peer4,
    peer2_document,
    peer4_document,
)
from http_edge.didcomm.envelopes.peer_documents import (
    KEY_ID,
    legacy_did,
    legacy_document,
    read_document,
    write_services,
)
from http_edge.didcomm.envelopes.signed import read_attachment, sign_attachment, verify_member
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment

HandshakeProtocol: TypeAlias = Literal["didexchange/1.1", "didexchange/1.0", "connections/1.0"]
DidMethod: TypeAlias = Literal["peer4", "peer2", "legacy"]
"""The form of the wallet's DID document: in a did:peer:4, a did:peer:2, or beside a legacy DID."""
CONNECTIONS: Final = "connections/1.0"


@dataclass(frozen=True, slots=True)
class Handshake:
    """One handshake of a wallet with the key ``key``.

    ``endpoint`` is the wallet's own endpoint, or ``QUEUE``. Connections 1.0 always uses the legacy
    document, whatever ``did_method`` says.
    """

    invitation: Invitation
    key: KeyPair = field(repr=False)
    protocol: HandshakeProtocol = "didexchange/1.1"
    did_method: DidMethod = "peer4"
    endpoint: str = QUEUE
    label: str = "wallet"
    id: str = field(default_factory=new_id)

    @property
    def did(self) -> str:
        """The wallet's DID in this connection."""
        if self.protocol == CONNECTIONS or self.did_method == "legacy":
            return legacy_did(self.key.public)
        make = peer4_did if self.did_method == "peer4" else peer2_did
        return make(self.key, self.endpoint)

    def request(self) -> Json:
        """The request, for the key of the invitation."""
        message: Json = {
            "@type": f"{NEW_PREFIX}{self.protocol}/request",
            "@id": self.id,
            "~thread": {"thid": self.id, "pthid": self.invitation.id},
            "~transport": {"return_route": "all"},
            "label": self.label,
        }
        public = self.key.public
        document = legacy_document(legacy_did(public), public, [self.endpoint])
        if self.protocol == CONNECTIONS:
            return {**message, "connection": {"DID": self.did, "DIDDoc": document}}
        message["did"] = self.did
        if self.did_method == "legacy":
            message["did_doc~attach"] = write_attachment(
                sign_attachment(orjson.dumps(document), self.key)
            )
        return message

    def packed_request(self) -> bytes:
        """The request in an envelope for the key of the invitation."""
        return pack(orjson.dumps(self.request()), [self.invitation.key], self.key)

    def accept(self, answer: Opened) -> Connection:
        """Check a response, and return the connection that it establishes.

        Raises:
            ProblemReported: the mediator refuses.
            NotAuthentic: the key of the invitation does not prove the response.
            UnexpectedAnswer: the answer is no response to this request.
        """
        response = expected(answer.message, f"{self.protocol}/request", "response")
        if member(response, "~thread").get("thid") != self.id:
            raise UnexpectedAnswer("a response to another request")
        if self.protocol == CONNECTIONS:
            did, shown = self._connection_document(response)
        else:
            did, shown = self._exchange_document(response, answer.sender_key)
        document = read_document(did, shown)
        if document is None:
            raise UnexpectedAnswer("no DID document that this wallet understands")
        if answer.sender_key is None or answer.sender_key not in document.recipient_keys:
            raise NotAuthentic("the response is not packed by a key of the mediator's document")
        http_url, ws_url = endpoints(shown)
        return Connection(
            key=self.key,
            did=self.did,
            mediator_did=did,
            mediator_key=answer.sender_key,
            http_url=http_url or self.invitation.endpoint,
            ws_url=ws_url,
        )

    def completion(self) -> Json:
        """The message that confirms the response; the mediator does not answer it."""
        if self.protocol == CONNECTIONS:
            return {
                "@type": f"{NEW_PREFIX}trust_ping/1.0/ping",
                "@id": new_id(),
                "response_requested": False,
            }
        return {
            "@type": f"{NEW_PREFIX}{self.protocol}/complete",
            "@id": new_id(),
            "~thread": {"thid": self.id, "pthid": self.invitation.id},
        }

    def _connection_document(self, response: Json) -> tuple[str, Json]:
        """DID and document under ``connection~sig``. Raises: NotAuthentic, UnexpectedAnswer."""
        verified = verify_member(response.get("connection~sig"))
        if verified is None:
            raise NotAuthentic("the signature of the connection is wrong")
        connection, signer = verified
        self._check_signers([signer])
        return _shown(connection.get("DID"), connection.get("DIDDoc"))

    def _exchange_document(self, response: Json, sender_key: bytes | None) -> tuple[str, Json]:
        """DID and document of a DID exchange. Raises: NotAuthentic, UnexpectedAnswer."""
        did = response.get("did")
        if "did_doc~attach" in response:
            return _shown(did, _json(self._signed(response["did_doc~attach"])))
        if "did_rotate~attach" in response:
            if self._signed(response["did_rotate~attach"]).decode(errors="replace") != did:
                raise NotAuthentic("another DID is signed than the one in the response")
        else:
            self._check_signers([sender_key])
        return _shown(did, _carried(did) if isinstance(did, str) else None)

    def _signed(self, attachment: object) -> bytes:
        """The content of an attachment, signed by the invitation's key. Raises: NotAuthentic."""
        signed = read_attachment(attachment)
        if signed is None:
            raise NotAuthentic("the signature of an attachment is wrong")
        self._check_signers(signed.signers)
        return signed.content

    def _check_signers(self, signers: Sequence[bytes | None]) -> None:
        if self.invitation.key not in signers:
            raise NotAuthentic("the response is not proven by the key of the invitation")


def peer4_did(key: KeyPair, endpoint: str) -> str:
    """A did:peer:4 in its long form, written as ACA-Py and Credo write theirs."""
    method = {
        "id": KEY_ID,
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": base58(key.public),
    }
    document: Json = {
        "@context": ["https://www.w3.org/ns/did/v1"],
        "verificationMethod": [method],
        "authentication": [KEY_ID],
        "service": write_services([endpoint]),
    }
    return encode_peer4(document)


def peer2_did(key: KeyPair, endpoint: str) -> str:
    """The did:peer:2 with the same document."""
    return encode_peer2([key.public], write_services([endpoint]))


def _carried(did: str) -> Json | None:
    """The document in a did:peer:2 or a long did:peer:4; None for another DID."""
    return peer4_document(did) or peer2_document(did)


def _shown(did: object, document: object) -> tuple[str, Json]:
    """Raises: UnexpectedAnswer."""
    if not isinstance(did, str) or not isinstance(document, dict):
        raise UnexpectedAnswer("a response without a DID and its document")
    return did, document


def _json(content: bytes) -> object:
    """Raises: UnexpectedAnswer."""
    try:
        return parse(content)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"the attached DID document: {error}") from error
