"""Signatures that no honest signer makes, made by hand: what libsodium says is pinned here."""

from __future__ import annotations

import hashlib

import pytest

from http_edge.crypto.signatures import public_key, sign, verify
from tests.unit.wire.edwards25519 import (
    BASE,
    IDENTITY,
    LOW_ORDER,
    L,
    add,
    challenge,
    decode,
    encode,
    equation_holds,
    multiply,
)

SEED = bytes(range(32))
MESSAGES = [b"message %d" % number for number in range(32)]


def _private_scalar(seed: bytes) -> int:
    digest = bytearray(hashlib.sha512(seed).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 127 | 64
    return int.from_bytes(digest, "little")


def test_the_arithmetic_of_these_tests_is_right() -> None:
    assert encode(multiply(_private_scalar(SEED), BASE)) == public_key(SEED)
    assert multiply(L, BASE) == IDENTITY
    assert len({decode(text) for text in LOW_ORDER}) == 8
    assert all(multiply(8, decode(text)) == IDENTITY for text in LOW_ORDER)
    assert equation_holds(public_key(SEED), b"m", sign(SEED, b"m"))


def _low_order_message(key: bytes, r: bytes) -> bytes:
    """A message for which the equation holds with S = 0, where there is one for these points."""
    return next((m for m in MESSAGES if equation_holds(key, m, r + bytes(32))), MESSAGES[0])


@pytest.mark.thorough
@pytest.mark.parametrize("key", LOW_ORDER, ids=bytes.hex)
def test_a_key_of_small_order_signs_nothing(key: bytes) -> None:
    forged = [(_low_order_message(key, r), r + bytes(32)) for r in LOW_ORDER]
    assert any(equation_holds(key, message, signature) for message, signature in forged)
    assert not any(verify(key, message, signature) for message, signature in forged)


def _signature(key: bytes, private: int, message: bytes, r: bytes, nonce: int) -> bytes:
    s = (nonce + challenge(r, key, message) * private) % L
    return r + s.to_bytes(32, "little")


@pytest.mark.parametrize("r", LOW_ORDER, ids=bytes.hex)
def test_a_commitment_of_small_order_is_refused(r: bytes) -> None:
    key = public_key(SEED)
    signature = _signature(key, _private_scalar(SEED), b"m", r, nonce=0)
    assert equation_holds(key, b"m", signature) == (decode(r) == IDENTITY)
    assert not verify(key, b"m", signature)


@pytest.mark.parametrize("times", range(1, 15))
def test_adding_the_group_order_to_a_signature_breaks_it(times: int) -> None:
    key, genuine = public_key(SEED), sign(SEED, b"m")
    s = int.from_bytes(genuine[32:], "little") + times * L
    signature = genuine[:32] + s.to_bytes(32, "little")
    assert equation_holds(key, b"m", signature)
    assert not verify(key, b"m", signature)


@pytest.mark.thorough
@pytest.mark.parametrize("torsion_of_key", LOW_ORDER[8:12], ids=bytes.hex)
@pytest.mark.parametrize("torsion_of_r", [LOW_ORDER[i] for i in (0, 4, 8, 12)], ids=bytes.hex)
def test_points_of_mixed_order_are_judged_by_the_equation_without_cofactor(
    torsion_of_key: bytes, torsion_of_r: bytes
) -> None:
    private, nonce = _private_scalar(SEED), 12345
    key = encode(add(multiply(private, BASE), decode(torsion_of_key)))
    r = encode(add(multiply(nonce, BASE), decode(torsion_of_r)))
    signatures = [(m, _signature(key, private, m, r, nonce)) for m in MESSAGES]
    results = [verify(key, message, signature) for message, signature in signatures]
    assert set(results) == {True, False}
    assert results == [equation_holds(key, message, signature) for message, signature in signatures]
