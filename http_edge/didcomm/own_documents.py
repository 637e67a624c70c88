"""The mediator's own DIDs and documents, which it shows in the handshakes.

All hold one key, the service key, and two services of DIDComm v1: HTTP first, because ACA-Py
takes the first that it can send to; WebSocket second, where Credo finds it for live mode. The key
is an ``Ed25519VerificationKey2020``: of the ways to write it, the one that ACA-Py from 0.10 and
Credo from 0.4 both read. There is no key agreement key; in DIDComm v1 the signing key serves.
"""

from __future__ import annotations

from typing import Final

from http_edge.didcomm.keys import KeyPair, base58
from http_edge.didcomm.messages import Json
from http_edge.didcomm.peer_dids import encode_peer2, encode_peer4
from http_edge.encoding import ED25519_PREFIX, multibase_encode

LEGACY_CONTEXT: Final = "https://w3id.org/did/v1"
"""Credo refuses a document of connections 1.0 with any other."""
_CONTEXT: Final = (
    "https://www.w3.org/ns/did/v1",
    "https://w3id.org/security/suites/ed25519-2020/v1",
)
_KEY_ID: Final = "#key-1"
"""Relative; of this form in a did:peer:2 by its specification."""
_LEGACY_DID_BYTES: Final = 16
"""An unqualified did:sov is the first half of its key."""


class OwnDocuments:
    """The documents of one mediator, made once from its key and its two endpoints."""

    def __init__(self, key: KeyPair, http_url: str, ws_url: str) -> None:
        """Documents with the public half of ``key``."""
        self._key = key.public
        self._endpoints = (http_url, ws_url)
        self.peer4 = encode_peer4(self._document())
        """The did:peer:4 in its long form, which resolves by itself."""
        self.peer2 = encode_peer2([self._key], self._services())
        """The same as did:peer:2."""
        self.legacy_did = base58(self._key[:_LEGACY_DID_BYTES])
        """The unqualified DID of connections 1.0; its document has to come with it."""

    def legacy_document(self) -> Json:
        """The DIDDoc of ``legacy_did`` (RFC 0160), as agents of that time write theirs."""
        did = f"did:sov:{self.legacy_did}"
        key_id = f"{did}#1"
        return {
            "@context": LEGACY_CONTEXT,
            "id": did,
            "publicKey": [
                {
                    "id": key_id,
                    "type": "Ed25519VerificationKey2018",
                    "controller": did,
                    "publicKeyBase58": base58(self._key),
                }
            ],
            "authentication": [{"type": "Ed25519SignatureAuthentication2018", "publicKey": key_id}],
            "service": [
                {
                    "id": f"{did};{name}",
                    "type": "IndyAgent",
                    "priority": priority,
                    "recipientKeys": [base58(self._key)],
                    "routingKeys": [],
                    "serviceEndpoint": endpoint,
                }
                for priority, (name, endpoint) in enumerate(
                    zip(("indy", "indy1"), self._endpoints, strict=True)
                )
            ],
        }

    def _document(self) -> Json:
        """Without ``id`` and ``controller``, which a did:peer:4 adds when it is resolved."""
        return {
            "@context": list(_CONTEXT),
            "verificationMethod": [
                {
                    "id": _KEY_ID,
                    "type": "Ed25519VerificationKey2020",
                    "publicKeyMultibase": multibase_encode(ED25519_PREFIX, self._key),
                }
            ],
            "authentication": [_KEY_ID],
            "service": self._services(),
        }

    def _services(self) -> list[Json]:
        return [
            {
                "id": f"#didcomm-{priority}",
                "type": "did-communication",
                "priority": priority,
                "recipientKeys": [_KEY_ID],
                "routingKeys": [],
                "serviceEndpoint": endpoint,
            }
            for priority, endpoint in enumerate(self._endpoints)
        ]
