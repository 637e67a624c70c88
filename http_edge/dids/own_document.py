"""The mediator's own DID document (DCTRL-0004 3.2)."""

from __future__ import annotations

from typing import Final

from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.dids.document import signing_key_id

_CONTEXT: Final = (
    "https://www.w3.org/ns/did/v1",
    "https://w3id.org/security/suites/jws-2020/v1",
)


def mediator_document(did: str, url: str, keys: MediatorKeys) -> dict[str, object]:
    """The mediator's own document (DCTRL-0004 3.2); ``url`` is its HTTP address."""
    return {
        "@context": list(_CONTEXT),
        "id": did,
        "controller": did,
        "verificationMethod": [
            {
                "id": signing_key_id(did),
                "type": "Ed25519VerificationKey2020",
                "controller": did,
                "publicKeyMultibase": multibase_encode(ED25519_PREFIX, keys.signing_public),
            }
        ],
        "keyAgreement": [
            {
                "id": did + "#prekey",
                "type": "X25519KeyAgreementKey2020",
                "controller": did,
                "publicKeyMultibase": multibase_encode(X25519_PREFIX, keys.pre_public),
            }
        ],
        "authentication": [signing_key_id(did)],
        "service": [
            {
                "id": "#mediator-service",
                "type": "DecentrlMediator",
                "serviceEndpoint": {"uri": url},
            }
        ],
    }
