"""Identities for tests, with cryptography of their own.

Signatures are made with PyNaCl over ``rfc8785`` text, requests sealed with ``cryptography``: none
of the mediator's own code for canonical JSON, signatures or encryption takes part, so an error in
it cannot agree with itself here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.signing import SigningKey

from http_edge.dids import decentrl

Json = dict[str, Any]
_IV = bytes(12)
_WORLD = 19
"""Chosen so that of two hosts one owns Alice and Carol, the other Bob and Dave."""


def b64(data: bytes) -> str:
    """Base64 with padding: the form that the mediator reads but does not write."""
    return base64.b64encode(data).decode()


class Identity:
    """A did:decentrl and its secrets, which follow from its name."""

    def __init__(self, name: str, mediator_did: str = "did:web:mediator.example") -> None:
        self.name = name
        self.signing = SigningKey(_secret("signing", name))
        self.pre_private = _secret("pre-key", name)
        self.pre_public = crypto_scalarmult_base(self.pre_private)
        self.ephemeral_private = _secret("ephemeral", name)
        self.ephemeral_public = crypto_scalarmult_base(self.ephemeral_private)
        self.did = decentrl.make_did(
            name, bytes(self.signing.verify_key), self.pre_public, mediator_did
        )
        self.key_id = self.did + "#signing"

    def sign(self, value: Any) -> str:
        """The signature of the canonical JSON of ``value``, in base64."""
        return b64(self.signing.sign(rfc8785.dumps(value)).signature)

    def tag(self, text: str) -> str:
        """An encrypted tag: the signature of its text."""
        return b64(self.signing.sign(text.encode()).signature)


def sealed(secret_of: bytes, public: bytes, plaintext: bytes) -> str:
    """AES-256-GCM under the raw X25519 secret: nonce, ciphertext and tag in base64."""
    key = crypto_scalarmult(secret_of, public)
    return b64(_IV + AESGCM(key).encrypt(_IV, plaintext, None))


def contract_terms(
    requestor: Identity, recipient_did: str, expires_at: float, **members: Any
) -> Json:
    """What the requestor of a contract signs."""
    return {
        "requestor_did": requestor.did,
        "requestor_signing_key_id": requestor.key_id,
        "requestor_ephemeral_public_key": b64(requestor.ephemeral_public),
        "recipient_did": recipient_did,
        "expires_at": expires_at,
        **members,
    }


def signed_contract(
    requestor: Identity, recipient: Identity, expires_at: float, **members: Any
) -> Json:
    """A contract that both parties have signed."""
    terms = contract_terms(requestor, recipient.did, expires_at, **members)
    contract = {
        **terms,
        "recipient_signing_key_id": recipient.key_id,
        "recipient_ephemeral_public_key": b64(recipient.ephemeral_public),
    }
    return {
        "communication_contract": contract,
        "requestor_signature": requestor.sign(terms),
        "recipient_signature": recipient.sign(contract),
    }


def contract_request(requestor: Identity, pre_public: bytes, plaintext: Mapping[str, Any]) -> Json:
    """REQUEST_COMMUNICATION_CONTRACT around an encrypted request."""
    return {
        "type": "REQUEST_COMMUNICATION_CONTRACT",
        "encrypted_contract_request": sealed(
            requestor.ephemeral_private, pre_public, rfc8785.dumps(dict(plaintext))
        ),
        "requestor_ephemeral_public_key": b64(requestor.ephemeral_public),
    }


def registration(
    identity: Identity, mediator_did: str, pre_public: bytes, expires_at: float, **members: Any
) -> Json:
    """REQUEST_COMMUNICATION_CONTRACT to the mediator itself."""
    terms = contract_terms(identity, mediator_did, expires_at, **members)
    request = {"communication_contract": terms, "requestor_signature": identity.sign(terms)}
    return contract_request(identity, pre_public, request)


def public_event(
    publisher: Identity, event: str, *, channel_id: str = "news", tags: Any = (), timestamp: Any = 1
) -> Json:
    """PUBLISH_PUBLIC_EVENT with the event's own signature."""
    signed = {
        "channel_id": channel_id,
        "event": event,
        "tags": list(tags),
        "timestamp": timestamp,
    }
    return {
        "type": "PUBLISH_PUBLIC_EVENT",
        **signed,
        "event_signature": publisher.sign(signed),
    }


def _secret(purpose: str, name: str) -> bytes:
    return hashlib.sha256(f"{purpose} of {name}, {_WORLD}".encode()).digest()
