"""Verify Data Integrity proofs (cryptosuite eddsa-jcs-2022) by did:key, as in did:webvh."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from base58 import b58decode

from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_decode
from http_edge.crypto.signatures import verify

_SIGNATURE_CHARS_MAX: Final = 100
_PROOF_VALUE: Final = "proofValue"


class Proof(msgspec.Struct, frozen=True, rename="camel"):
    """The members of a proof that are checked; the signature covers the others as well."""

    type: Literal["DataIntegrityProof"]
    cryptosuite: Literal["eddsa-jcs-2022"]
    verification_method: str
    proof_purpose: Literal["assertionMethod"]
    proof_value: str

    def is_by(self, key: str) -> bool:
        """Does the proof name this Ed25519 key, given as multibase?"""
        return self.verification_method == method_of(key)


def method_of(key: str) -> str:
    """The verification method by which a proof names an Ed25519 key, given as multibase."""
    return f"did:key:{key}#{key}"


def is_proven(proof: Proof, written: dict[str, Any], key: str, content: object) -> bool:
    """Has ``key``, which the proof names, signed ``content``? ``written`` is the proof's JSON.

    Raises:
        ValueError: not a key, not a base58 signature, or a value without a canonical form.
    """
    text = proof.proof_value
    if not text.startswith("z") or len(text) > _SIGNATURE_CHARS_MAX:
        return False
    options = {name: each for name, each in written.items() if name != _PROOF_VALUE}
    signed = sha256(canonical(options)).digest() + sha256(canonical(content)).digest()
    return verify(multibase_decode(key, ED25519_PREFIX), signed, b58decode(text[1:]))
