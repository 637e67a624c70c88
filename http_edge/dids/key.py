"""did:key with an Ed25519 key: the DID of DIDComm clients (W3C did:key 1.0)."""

from __future__ import annotations

from typing import Final

from nacl.bindings import crypto_sign_ed25519_pk_to_curve25519
from nacl.exceptions import RuntimeError as SodiumError

from http_edge.crypto.encoding import ED25519_PREFIX, multibase_decode
from http_edge.dids.document import DidDocument

PREFIX: Final = "did:key:"


def resolve(did: str) -> DidDocument | None:
    """The document of an Ed25519 did:key, or None; its pre-key is the same key on Curve25519."""
    if not did.startswith(PREFIX):
        return None
    multibase = did[len(PREFIX) :]
    try:
        key = multibase_decode(multibase, ED25519_PREFIX)
        pre_key = crypto_sign_ed25519_pk_to_curve25519(key)
    except (ValueError, SodiumError):  # SodiumError: not a point, or one of small order
        return None
    return DidDocument(did=did, signing_keys={f"{did}#{multibase}": key}, pre_key=pre_key)
