"""Key agreement of DIDComm v2: private keys, shared secrets, and wrapping keys derived from them.

ECDH-ES is RFC 7518 section 4.6, ECDH-1PU is draft-madden-jose-ecdh-1pu-04. libsodium computes
X25519, which nearly every agent has; OpenSSL computes the NIST curves.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Final

import msgspec
from cachetools import LRUCache
from cryptography.hazmat.primitives.asymmetric import ec

from http_edge.crypto import key_agreement as x25519
from http_edge.didcomm.envelopes.public_keys import (
    WEIERSTRASS,
    Curve,
    PublicKey,
    compressed,
    elliptic,
)

_SECRETS_MAX: Final = 8192
"""Remembered static secrets, one for each correspondent, some 400 bytes each."""
_HEADS_MAX: Final = 1024
"""Remembered heads of key derivations, one for each sender, at most 10 KiB each."""
_ONE_ROUND: Final = (1).to_bytes(4, "big")
_KEY_BITS: Final = (256).to_bytes(4, "big")


class PrivateKey(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A private key for key agreement: 32 bytes, or a scalar of a NIST curve, big-endian."""

    public: PublicKey
    secret: bytes

    def __repr__(self) -> str:
        return f"PrivateKey({self.public!r})"

    @classmethod
    def of_x25519(cls, secret: bytes) -> PrivateKey:
        """Make the pair of an X25519 private key of 32 bytes. Raises ``ValueError`` for others."""
        return cls(PublicKey(Curve.X25519, x25519.public_key(secret)), secret)

    @classmethod
    def new(cls, curve: Curve) -> PrivateKey:
        """Make a fresh pair from the system's randomness. Raises ``KeyError`` for Ed25519."""
        if curve is Curve.X25519:
            pair = x25519.new_key_pair()
            return cls(PublicKey(curve, pair.public), pair.private)
        private = ec.generate_private_key(WEIERSTRASS[curve])
        scalar = private.private_numbers().private_value
        size = (private.key_size + 7) // 8
        return cls(compressed(curve, private.public_key()), scalar.to_bytes(size, "big"))


def agree(own: PrivateKey, theirs: PublicKey) -> bytes | None:
    """Return the raw shared secret.

    None if the curves differ, an X25519 key has low order, or another key is no point of its curve.
    """
    if own.public.curve is not theirs.curve:
        return None
    if theirs.curve is Curve.X25519:
        return x25519.shared_secret(own.secret, theirs.raw)
    try:
        point = elliptic(theirs)
    except ValueError:
        return None
    private = ec.derive_private_key(int.from_bytes(own.secret), WEIERSTRASS[theirs.curve])
    return private.exchange(ec.ECDH(), point)


class StaticSecrets:
    """A cache of the shared secrets of static keys, the same for every message of two agents.

    A secret is found by the bytes of our private and of their public key.

    Secrets are key material: kept in memory, in a bounded number, and never shown. Only secrets
    of correspondents that have proven themselves are kept, or strangers would push them out.
    Threads may share the cache.
    """

    def __init__(self, secrets_max: int = _SECRETS_MAX) -> None:
        self._secrets: LRUCache[tuple[bytes, bytes], bytes] = LRUCache(secrets_max)
        self._lock = Lock()

    def agree(self, own: PrivateKey, theirs: PublicKey) -> bytes | None:
        """Return the raw shared secret, remembered or computed; None as for ``agree``."""
        return self.known(own.secret, theirs.raw) or agree(own, theirs)

    def known(self, own: bytes, theirs: bytes) -> bytes | None:
        """Return a secret if it is remembered."""
        with self._lock:
            return self._secrets.get((own, theirs))

    def keep(self, own: bytes, theirs: bytes, secret: bytes) -> None:
        """Remember a secret, after a message has proven that the correspondent has its key."""
        with self._lock:
            self._secrets[own, theirs] = secret


def wrapping_key(shared: bytes, algorithm: bytes, apu: bytes, apv: bytes, tag: bytes) -> bytes:
    """Derive the 32-byte key that wraps content keys (Concat KDF with SHA-256).

    ``shared`` is Ze, or Ze and Zs; ``tag`` is the content's tag for ECDH-1PU, else empty: only in
    ECDH-1PU the tag and its length are part of the derivation.
    """
    head = _head(algorithm, apu, len(apv))
    in_kdf = len(tag).to_bytes(4, "big") + tag if tag else b""
    return sha256(b"".join((_ONE_ROUND, shared, head, apv, _KEY_BITS, in_kdf))).digest()


@lru_cache(_HEADS_MAX)
def _head(algorithm: bytes, apu: bytes, apv_bytes: int) -> bytes:
    """Return the input between the secret and ``apv``, the same for every message of a sender."""
    length = int.to_bytes
    parts = [length(len(algorithm), 4, "big"), algorithm, length(len(apu), 4, "big"), apu]
    return b"".join([*parts, length(apv_bytes, 4, "big")])
