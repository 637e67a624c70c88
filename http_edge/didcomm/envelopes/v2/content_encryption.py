"""Content encryption of DIDComm v2: three algorithms are read, one is written.

We write A256CBC-HS512 (RFC 7518 section 5.2.5), which every agent reads; A256GCM (section 5.3) and
XC20P (draft-amringer-jose-chacha) come from agents that prefer them for anonymous messages.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt
from nacl.exceptions import CryptoError

WRITTEN: Final = "A256CBC-HS512"
_BLOCK_BYTES: Final = 16
_HALF_KEY_BYTES: Final = 32
_HS512_TAG_BYTES: Final = 32
_Open: TypeAlias = Callable[[bytes, bytes, bytes, bytes, bytes], bytes | None]


SIZES: Final[Mapping[str, tuple[int, int, int]]] = {
    WRITTEN: (2 * _HALF_KEY_BYTES, _BLOCK_BYTES, _HS512_TAG_BYTES),
    "A256GCM": (32, 12, 16),
    "XC20P": (32, 24, 16),
}
"""Bytes of the key, the initialization vector and the tag, by algorithm."""


class EncryptedContent(NamedTuple):
    """Encrypted content, and the fresh key that encrypts it."""

    key: bytes
    iv: bytes
    ciphertext: bytes
    tag: bytes


def encrypt(plaintext: bytes, aad: bytes) -> EncryptedContent:
    """Encrypt under a fresh key with A256CBC-HS512, which also authenticates ``aad``."""
    key, iv = secrets.token_bytes(2 * _HALF_KEY_BYTES), secrets.token_bytes(_BLOCK_BYTES)
    room = _BLOCK_BYTES - len(plaintext) % _BLOCK_BYTES
    encryptor = Cipher(AES(key[_HALF_KEY_BYTES:]), modes.CBC(iv)).encryptor()
    # In two parts: a page of messages is not copied to get its padding.
    ciphertext = encryptor.update(plaintext) + encryptor.update(bytes([room]) * room)
    return EncryptedContent(key, iv, ciphertext, _tag(key, aad, iv, ciphertext))


def decrypt(
    enc: str, key: bytes, iv: bytes, sealed: tuple[bytes, bytes], aad: bytes
) -> bytes | None:
    """Decrypt ``sealed``, a ciphertext and its tag; None if it was changed.

    A part of another size than in ``SIZES`` counts as a change.
    """
    sizes, (ciphertext, tag) = SIZES[enc], sealed
    if (len(key), len(iv), len(tag)) != sizes:
        return None
    return _OPEN[enc](key, iv, ciphertext, tag, aad)


def _tag(key: bytes, aad: bytes, iv: bytes, ciphertext: bytes) -> bytes:
    signed = hmac.new(key[:_HALF_KEY_BYTES], aad, "sha512")
    for part in (iv, ciphertext, (8 * len(aad)).to_bytes(8, "big")):
        signed.update(part)
    return signed.digest()[:_HS512_TAG_BYTES]


def _open_cbc(key: bytes, iv: bytes, ciphertext: bytes, tag: bytes, aad: bytes) -> bytes | None:
    if not hmac.compare_digest(_tag(key, aad, iv, ciphertext), tag):
        return None
    if not ciphertext or len(ciphertext) % _BLOCK_BYTES:
        return None
    decryptor = Cipher(AES(key[_HALF_KEY_BYTES:]), modes.CBC(iv)).decryptor()
    padded = decryptor.update(ciphertext) + decryptor.finalize()
    # The tag is valid, so this check reveals nothing to anyone but the author of the message.
    room = padded[-1]
    if not 0 < room <= _BLOCK_BYTES or padded[-room:] != bytes([room]) * room:
        return None
    return padded[:-room]


def _open_gcm(key: bytes, iv: bytes, ciphertext: bytes, tag: bytes, aad: bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(iv, ciphertext + tag, aad)
    except InvalidTag:
        return None


def _open_xc20p(key: bytes, iv: bytes, ciphertext: bytes, tag: bytes, aad: bytes) -> bytes | None:
    try:
        return crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext + tag, aad, iv, key)
    except CryptoError:
        return None


_OPEN: Final[Mapping[str, _Open]] = {
    WRITTEN: _open_cbc,
    "A256GCM": _open_gcm,
    "XC20P": _open_xc20p,
}
