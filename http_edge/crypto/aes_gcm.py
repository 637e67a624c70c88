"""AES-256-GCM in Decentrl's layout: nonce(12) || ciphertext || tag(16) (DCTRL-0002 section 6).

It uses OpenSSL through ``cryptography``, because libsodium's AES-GCM needs a processor with AES
instructions.
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


def seal(key: bytes, plaintext: bytes) -> bytes:
    """``plaintext`` encrypted under a fresh random nonce; ``key`` has 32 bytes.

    Raises:
        ValueError: the key has another length.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, plaintext, None)


def open_sealed(key: bytes, sealed: bytes) -> bytes | None:
    """The plaintext, or None if ``sealed`` was not made with ``key`` or was changed.

    Raises:
        ValueError: the key has another length than 32 bytes.
    """
    cipher = _cipher(key)
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        return None
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except InvalidTag:
        return None


def _cipher(key: bytes) -> AESGCM:
    # AESGCM also accepts keys of AES-128 and AES-192.
    if len(key) != KEY_BYTES:
        raise ValueError("an AES-256 key has 32 bytes")
    return AESGCM(key)
