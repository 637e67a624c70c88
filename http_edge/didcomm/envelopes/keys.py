"""Keys of DIDComm v1: Ed25519 pairs, their Curve25519 halves, and the spellings of a public key.

Inside the mediator a public key is base58 text or 32 raw bytes. Agents write the same key in
base58, as did:key (RFC 0360), as did:key with a fragment, and some as ``did:key:`` before plain
base58. Signing keys also serve for encryption, by the birational map (RFC 0019).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from base58 import b58decode
from nacl.bindings import (
    crypto_scalarmult_base,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import CryptoError

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    KEY_BYTES,
    base58_encode,
    multibase_decode,
    multibase_encode,
)

DID_KEY: Final = "did:key:"
_TEXT_CHARS_MAX: Final = 160
"""did:key and its fragment have 105 characters; a much longer text is not read."""
_BASE58_KEY: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,44}\Z")
"""The possible base58 texts of 32 bytes. Checked first, because decoding takes quadratic time."""
_CACHED_MAX: Final = 8192
"""Keys in each of the caches below, a few hundred bytes each."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An Ed25519 key pair and the Curve25519 pair that it maps to, 32 bytes each."""

    seed: bytes = field(repr=False)
    public: bytes
    curve_private: bytes = field(repr=False)
    curve_public: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> KeyPair:
        """Derive the pair of a private seed.

        Raises:
            ValueError: the seed does not have 32 bytes.
        """
        if len(seed) != KEY_BYTES:
            raise ValueError("an Ed25519 seed has 32 bytes")
        public, secret = crypto_sign_seed_keypair(seed)
        curve_private = crypto_sign_ed25519_sk_to_curve25519(secret)
        return cls(seed, public, curve_private, crypto_scalarmult_base(curve_private))

    @classmethod
    def new(cls) -> KeyPair:
        """Make a fresh pair from the system's randomness."""
        return cls.from_seed(secrets.token_bytes(KEY_BYTES))


def read_key(text: object) -> bytes | None:
    """Return the 32 bytes of a public key in any of its spellings, or None.

    Only the form of an Ed25519 key is checked; ``curve_public`` checks that it is on the curve.
    """
    if not isinstance(text, str) or len(text) > _TEXT_CHARS_MAX:
        return None
    return _read(text)


def read_base58(text: str) -> bytes | None:
    """Return the 32 bytes of a key that is written in base58 alone, or None."""
    if not _BASE58_KEY.match(text):
        return None
    decoded: bytes = b58decode(text)
    return decoded if len(decoded) == KEY_BYTES else None


@lru_cache(_CACHED_MAX)
def base58(key: bytes) -> str:
    """Return a key as the mediator writes it in commands, events and envelopes."""
    return base58_encode(key)


@lru_cache(_CACHED_MAX)
def did_key(key: bytes) -> str:
    """Return a key as ``did:key:z…`` (RFC 0360)."""
    return DID_KEY + multibase_encode(ED25519_PREFIX, key)


def did_key_reference(key: bytes) -> str:
    """Return a key as ``did:key:z…#z…``: the DID and the key in its document."""
    did = did_key(key)
    return f"{did}#{did.removeprefix(DID_KEY)}"


@lru_cache(_CACHED_MAX)
def curve_public(key: bytes) -> bytes | None:
    """Return the Curve25519 half of a public key, or None if no message can be packed to it.

    None is for bytes that are no point of the curve, and points outside the prime-order group.
    """
    if len(key) != KEY_BYTES:  # the binding passes it to C unchecked
        return None
    try:
        return crypto_sign_ed25519_pk_to_curve25519(key)
    except CryptoError:
        return None


@lru_cache(_CACHED_MAX)
def _read(text: str) -> bytes | None:
    if not text.startswith(DID_KEY):
        return read_base58(text)
    key = text.removeprefix(DID_KEY).partition("#")[0]
    try:
        return read_base58(key) or multibase_decode(key, ED25519_PREFIX)
    except ValueError:
        return None
