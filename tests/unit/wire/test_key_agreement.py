from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.key_agreement import new_key_pair, public_key, shared_secret

# RFC 7748 section 6.1.
ALICE_PRIVATE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB_PRIVATE = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"

# The points of small order on Curve25519 and its twist (cr.yp.to/ecdh.html, "validate").
LOW_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def test_the_vector_of_rfc_7748_is_computed() -> None:
    alice, bob = bytes.fromhex(ALICE_PRIVATE), bytes.fromhex(BOB_PRIVATE)
    assert public_key(alice).hex() == ALICE_PUBLIC
    assert public_key(bob).hex() == BOB_PUBLIC
    for secret in (
        shared_secret(alice, bytes.fromhex(BOB_PUBLIC)),
        shared_secret(bob, bytes.fromhex(ALICE_PUBLIC)),
    ):
        assert secret == bytes.fromhex(SHARED)


@pytest.mark.parametrize("public", LOW_ORDER)
@pytest.mark.parametrize("high_bit", [0, 0x80])
def test_a_public_key_of_low_order_gives_no_secret(public: str, high_bit: int) -> None:
    key = bytearray.fromhex(public)
    key[-1] |= high_bit  # which RFC 7748 masks
    assert shared_secret(new_key_pair().private, bytes(key)) is None


@given(st.binary(max_size=31) | st.binary(min_size=33, max_size=80))
def test_a_public_key_of_another_length_gives_no_secret(public: bytes) -> None:
    assert shared_secret(bytes.fromhex(ALICE_PRIVATE), public) is None


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_openssl_makes_the_same_of_any_two_keys(private: bytes, public: bytes) -> None:
    theirs = X25519PublicKey.from_public_bytes(public)
    try:
        expected = X25519PrivateKey.from_private_bytes(private).exchange(theirs)
    except ValueError:  # of low order
        expected = None
    assert shared_secret(private, public) == expected


def test_both_sides_get_the_same_secret_and_pairs_are_fresh() -> None:
    one, two = new_key_pair(), new_key_pair()
    assert one.private != two.private
    assert shared_secret(one.private, two.public) == shared_secret(two.private, one.public)


def test_a_key_pair_does_not_show_its_secret() -> None:
    pair = new_key_pair()
    assert pair.private.hex() not in f"{pair!r} {pair}"
    assert repr(pair.private) not in f"{pair!r} {pair}"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_private_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        public_key(bytes(size))
    with pytest.raises(ValueError, match="32 bytes"):
        shared_secret(bytes(size), bytes.fromhex(BOB_PUBLIC))
