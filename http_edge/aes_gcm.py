"""AES-256-GCM as Decentrl lays it out: nonce(12) || ciphertext || tag(16) (DCTRL-0002 section 6).

libsodium's AES-GCM needs a processor with AES instructions; where there are none, OpenSSL is
taken if the optional package ``cryptography`` is installed. Which one is found out by a trial
when this module is imported, so a machine with neither does not start.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from nacl.bindings import crypto_aead_aes256gcm_decrypt, crypto_aead_aes256gcm_encrypt
from nacl.exceptions import CryptoError, UnavailableError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


class AesUnavailable(RuntimeError):
    """No implementation of AES-256-GCM works on this machine."""


class Cipher(NamedTuple):
    """One implementation; both functions take (key, nonce, text)."""

    encrypt: Callable[[bytes, bytes, bytes], bytes]
    decrypt: Callable[[bytes, bytes, bytes], bytes | None]


def seal(key: bytes, plaintext: bytes) -> bytes:
    """``plaintext`` encrypted under a fresh random nonce; ``key`` has 32 bytes.

    Raises:
        ValueError: the key has another length.
    """
    _check_key(key)
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + _CIPHER.encrypt(key, nonce, plaintext)


def open_sealed(key: bytes, sealed: bytes) -> bytes | None:
    """The plaintext, or None where ``sealed`` was not made with ``key`` or was changed.

    Raises:
        ValueError: the key has another length than 32 bytes.
    """
    _check_key(key)
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        return None
    return _CIPHER.decrypt(key, sealed[:NONCE_BYTES], sealed[NONCE_BYTES:])


def libsodium() -> Cipher:
    """The cipher of libsodium; its functions raise ``UnavailableError`` without AES hardware."""

    def encrypt(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
        return crypto_aead_aes256gcm_encrypt(plaintext, None, nonce, key)

    def decrypt(key: bytes, nonce: bytes, ciphertext: bytes) -> bytes | None:
        try:
            return crypto_aead_aes256gcm_decrypt(ciphertext, None, nonce, key)
        except UnavailableError:
            raise
        except CryptoError:
            return None

    return Cipher(encrypt, decrypt)


def openssl() -> Cipher:
    """The cipher of OpenSSL.

    Raises:
        ImportError: the optional package ``cryptography`` is not installed.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional, tried last
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - the same

    def encrypt(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
        return AESGCM(key).encrypt(nonce, plaintext, None)

    def decrypt(key: bytes, nonce: bytes, ciphertext: bytes) -> bytes | None:
        try:
            return AESGCM(key).decrypt(nonce, ciphertext, None)
        except InvalidTag:
            return None

    return Cipher(encrypt, decrypt)


def first_working(candidates: Sequence[Callable[[], Cipher]]) -> Cipher:
    """The first candidate that opens what it has sealed.

    Raises:
        AesUnavailable: none does.
    """
    key, nonce, text = bytes(KEY_BYTES), bytes(NONCE_BYTES), b"trial"
    for candidate in candidates:
        try:
            cipher = candidate()
            if cipher.decrypt(key, nonce, cipher.encrypt(key, nonce, text)) == text:
                return cipher
        except (ImportError, UnavailableError):
            continue
    raise AesUnavailable(
        "AES-256-GCM needs a processor with AES instructions, or the package 'cryptography'"
    )


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError("an AES-256 key has 32 bytes")


_CIPHER: Final = first_working((libsodium, openssl))
