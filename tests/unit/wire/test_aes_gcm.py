from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.exceptions import UnavailableError

from http_edge.aes_gcm import (
    AesUnavailable,
    Cipher,
    first_working,
    libsodium,
    open_sealed,
    openssl,
    seal,
)

keys = st.binary(min_size=32, max_size=32)

# McGrew and Viega, "The Galois/Counter Mode of Operation", test case 14.
KEY, NONCE, PLAINTEXT = bytes(32), bytes(12), bytes(16)
CIPHERTEXT = bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")


@pytest.mark.parametrize("cipher", [libsodium(), openssl()], ids=["libsodium", "openssl"])
def test_both_implementations_are_aes_256_gcm(cipher: Cipher) -> None:
    assert cipher.encrypt(KEY, NONCE, PLAINTEXT) == CIPHERTEXT
    assert cipher.decrypt(KEY, NONCE, CIPHERTEXT) == PLAINTEXT
    assert cipher.decrypt(KEY, NONCE, bytes(32)) is None


def test_a_sealed_text_is_nonce_ciphertext_and_tag() -> None:
    assert open_sealed(KEY, NONCE + CIPHERTEXT) == PLAINTEXT
    assert len(seal(KEY, PLAINTEXT)) == 12 + 16 + 16


@given(keys, st.binary())
def test_what_is_sealed_opens_under_the_same_key_alone(key: bytes, plaintext: bytes) -> None:
    sealed = seal(key, plaintext)
    assert open_sealed(key, sealed) == plaintext
    assert open_sealed(bytes(byte ^ 1 for byte in key), sealed) is None


@given(st.binary(max_size=40), st.data())
def test_a_changed_bit_does_not_open(plaintext: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, plaintext))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert open_sealed(KEY, bytes(sealed)) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_a_no_and_never_an_error(sealed: bytes) -> None:
    assert open_sealed(KEY, sealed) is None


def test_the_same_text_is_sealed_under_a_fresh_nonce_each_time() -> None:
    assert len({seal(KEY, b"again")[:12] for _ in range(100)}) == 100


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        seal(bytes(size), b"")
    with pytest.raises(ValueError, match="32 bytes"):
        open_sealed(bytes(size), bytes(28))


def _no_hardware() -> Cipher:
    def encrypt(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
        raise UnavailableError("Construction requires hardware acceleration")

    return Cipher(encrypt, libsodium().decrypt)


def _not_installed() -> Cipher:
    raise ImportError("cryptography")


def _broken() -> Cipher:
    return Cipher(lambda _key, _nonce, text: text, lambda _key, _nonce, _text: None)


def test_without_aes_hardware_the_next_implementation_is_taken() -> None:
    chosen = first_working((_no_hardware, openssl))
    assert chosen.encrypt(KEY, NONCE, PLAINTEXT) == CIPHERTEXT


def test_a_machine_with_no_implementation_does_not_start() -> None:
    with pytest.raises(AesUnavailable, match="AES instructions, or the package 'cryptography'"):
        first_working((_no_hardware, _broken, _not_installed))
