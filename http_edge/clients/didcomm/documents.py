"""The wallet's own DIDs with their documents, and the endpoints in its mediator's (RFC 0067)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from http_edge.didcomm.envelopes.documents import KEY_ID, write_services
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4

QUEUE: Final = "didcomm:transport/queue"
"""The endpoint of a wallet that fetches its messages (RFC 0092)."""


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
