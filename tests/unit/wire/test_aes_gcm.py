from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_aes256gcm_decrypt
from nacl.exceptions import UnavailableError

from http_edge.crypto.aes_gcm import open_sealed, seal

keys = st.binary(min_size=32, max_size=32)

# McGrew and Viega, "The Galois/Counter Mode of Operation", test case 14.
KEY, NONCE, PLAINTEXT = bytes(32), bytes(12), bytes(16)
CIPHERTEXT = bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")


def test_another_implementation_opens_what_is_sealed() -> None:
    sealed = seal(KEY, PLAINTEXT)
    try:
        opened = crypto_aead_aes256gcm_decrypt(sealed[12:], None, sealed[:12], KEY)
    except UnavailableError:
        pytest.skip("libsodium has no AES-GCM on this processor")
    assert opened == PLAINTEXT


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
