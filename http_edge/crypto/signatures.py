"""Ed25519 signatures by libsodium only (RFC 8032; DCTRL-0002 sections 4 and 8).

Good libraries disagree about keys of small order and other edge cases, so a single library decides
what is valid. ``tests/vectors`` pins its result for every known edge case.
"""

from __future__ import annotations

from typing import Final

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from http_edge.crypto.canonical_json import NotCanonical, canonical
from http_edge.crypto.encoding import b64decode_exactly, b64encode

SEED_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def public_key(seed: bytes) -> bytes:
    """The 32-byte public key of a 32-byte private seed.

    Raises:
        ValueError: the seed has another length.
    """
    return _key_pair(seed)[0]


def sign(seed: bytes, message: bytes) -> bytes:
    """The 64-byte signature of ``message``: deterministic, no pre-hash, no context.

    Raises:
        ValueError: the seed has another length than 32 bytes.
    """
    return crypto_sign(message, _key_pair(seed)[1])[:SIGNATURE_BYTES]


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is the signature of ``message`` by the holder of ``public_key``."""
    # The binding passes the key to C without checking its length.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


def sign_object(value: object, seed: bytes) -> str:
    """The signature of the canonical JSON of ``value``, in base64 (DCTRL-0004 4.4).

    Raises:
        NotCanonical: ``value`` has no canonical form.
        ValueError: the seed has another length than 32 bytes.
    """
    return b64encode(sign(seed, canonical(value)))


def verify_object(public_key: bytes, value: object, signature_text: str) -> bool:
    """Whether ``signature_text`` (any base64) signs the canonical JSON of ``value``."""
    # The cheap check first: the sender has proven nothing yet.
    signature = b64decode_exactly(signature_text, SIGNATURE_BYTES)
    if signature is None:
        return False
    try:
        return verify(public_key, canonical(value), signature)
    except NotCanonical:
        return False


def _key_pair(seed: bytes) -> tuple[bytes, bytes]:
    if len(seed) != SEED_BYTES:
        raise ValueError("an Ed25519 seed has 32 bytes")
    return crypto_sign_seed_keypair(seed)
