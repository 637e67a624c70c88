"""The wallet's own DID documents, and the endpoints in its mediator's (RFC 0067, RFC 0160)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import (
    encode_peer2,
    encode_peer4,
    peer2_document,
    peer4_document,
)

QUEUE: Final = "didcomm:transport/queue"
"""The endpoint of a wallet that fetches its messages (RFC 0092)."""
_KEY_ID: Final = "#key-1"
_LEGACY_DID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class OwnDocuments:
    """The DID documents with one key and one service, in each of the known forms."""

    key: KeyPair
    endpoint: str = QUEUE

    @property
    def peer4(self) -> str:
        """A did:peer:4 in its long form, written as ACA-Py and Credo write theirs."""
        method = {
            "id": _KEY_ID,
            "type": "Ed25519VerificationKey2018",
            "publicKeyBase58": base58(self.key.public),
        }
        document: Json = {
            "@context": ["https://www.w3.org/ns/did/v1"],
            "verificationMethod": [method],
            "authentication": [_KEY_ID],
            "service": [self._service(_KEY_ID)],
        }
        return encode_peer4(document)

    @property
    def peer2(self) -> str:
        """The same document as a did:peer:2."""
        return encode_peer2([self.key.public], [self._service(_KEY_ID)])

    @property
    def legacy_did(self) -> str:
        """The unqualified DID of old wallets: half of the key, in base58."""
        return base58(self.key.public[:_LEGACY_DID_BYTES])

    def legacy_document(self) -> Json:
        """The document of ``legacy_did`` (RFC 0160)."""
        did, key = self.legacy_did, base58(self.key.public)
        method = {
            "id": f"{did}#1",
            "type": "Ed25519VerificationKey2018",
            "controller": did,
            "publicKeyBase58": key,
        }
        reference = {"type": "Ed25519SignatureAuthentication2018", "publicKey": f"{did}#1"}
        return {
            "@context": "https://w3id.org/did/v1",
            "id": did,
            "publicKey": [method],
            "authentication": [reference],
            "service": [{**self._service(key), "id": f"{did};indy", "type": "IndyAgent"}],
        }

    def _service(self, key: str) -> Json:
        return {
            "id": "#didcomm-0",
            "type": "did-communication",
            "priority": 0,
            "recipientKeys": [key],
            "routingKeys": [],
            "serviceEndpoint": self.endpoint,
        }


def document_in(did: str) -> Json | None:
    """The document in a did:peer:2 or a long did:peer:4; None for another DID."""
    return peer4_document(did) or peer2_document(did)


def endpoints(document: Mapping[str, object]) -> tuple[str, str]:
    """The first HTTP and the first WebSocket endpoint of a document; empty if it has none."""
    found = list(_endpoints(document.get("service")))
    http = [url for url in found if url.startswith(("http://", "https://"))]
    websocket = [url for url in found if url.startswith(("ws://", "wss://"))]
    return (http or [""])[0], (websocket or [""])[0]


def _endpoints(services: object) -> Iterator[str]:
    for service in services if isinstance(services, list) else []:
        endpoint = service.get("serviceEndpoint") if isinstance(service, dict) else None
        url = endpoint.get("uri") if isinstance(endpoint, dict) else endpoint
        if isinstance(url, str):
            yield url
