"""The wallet's own DID documents, and the endpoints in its mediator's (RFC 0067, RFC 0160)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from http_edge.didcomm.envelopes.documents import (
    KEY_ID,
    legacy_did,
    legacy_document,
    write_services,
)
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4

QUEUE: Final = "didcomm:transport/queue"
"""The endpoint of a wallet that fetches its messages (RFC 0092)."""


@dataclass(frozen=True, slots=True)
class OwnDocuments:
    """The DID documents with one key and one service, in each of the known forms."""

    key: KeyPair
    endpoint: str = QUEUE

    @property
    def peer4(self) -> str:
        """A did:peer:4 in its long form, written as ACA-Py and Credo write theirs."""
        method = {
            "id": KEY_ID,
            "type": "Ed25519VerificationKey2018",
            "publicKeyBase58": base58(self.key.public),
        }
        document: Json = {
            "@context": ["https://www.w3.org/ns/did/v1"],
            "verificationMethod": [method],
            "authentication": [KEY_ID],
            "service": write_services([self.endpoint]),
        }
        return encode_peer4(document)

    @property
    def peer2(self) -> str:
        """The same document as a did:peer:2."""
        return encode_peer2([self.key.public], write_services([self.endpoint]))

    @property
    def legacy_did(self) -> str:
        """The unqualified DID of old wallets: half of the key, in base58."""
        return legacy_did(self.key.public)

    def legacy_document(self) -> Json:
        """The document of ``legacy_did`` (RFC 0160)."""
        return legacy_document(self.legacy_did, self.key.public, [self.endpoint])


def endpoints(document: Mapping[str, object]) -> tuple[str, str]:
    """The first HTTP and the first WebSocket endpoint of a document; empty if it has none."""
    return first_of_each(list(_endpoints(document.get("service"))))


def first_of_each(urls: Sequence[str]) -> tuple[str, str]:
    """The first HTTP and the first WebSocket URL; empty if there is none."""
    http = [url for url in urls if url.startswith(("http://", "https://"))]
    websocket = [url for url in urls if url.startswith(("ws://", "wss://"))]
    return (http or [""])[0], (websocket or [""])[0]


def _endpoints(services: object) -> Iterator[str]:
    for service in services if isinstance(services, list) else []:
        endpoint = service.get("serviceEndpoint") if isinstance(service, dict) else None
        url = endpoint.get("uri") if isinstance(endpoint, dict) else endpoint
        if isinstance(url, str):
            yield url
