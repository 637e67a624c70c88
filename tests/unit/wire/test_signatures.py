from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.signatures import public_key, sign, sign_object, verify, verify_object
from tests.unit.wire.vectors import rows

seeds = st.binary(min_size=32, max_size=32)

# RFC 8032 section 7.1, tests 1 to 3: seed, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]


@pytest.mark.parametrize(("seed", "key", "message", "signature"), RFC_8032)
def test_the_vectors_of_rfc_8032_are_signed_and_verified(
    seed: str, key: str, message: str, signature: str
) -> None:
    assert public_key(bytes.fromhex(seed)).hex() == key
    assert sign(bytes.fromhex(seed), bytes.fromhex(message)).hex() == signature
    assert verify(bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature))


def _accepts(row: dict[str, Any]) -> bool:
    return verify(*(bytes.fromhex(row[name]) for name in ("key", "message", "signature")))


def test_wycheproof_results_are_as_pinned_and_as_expected() -> None:
    for row in rows("wycheproof_ed25519.json"):
        assert _accepts(row) == row["accepted"], row["id"]
        if row["expected"] != "acceptable":
            assert row["accepted"] == (row["expected"] == "valid"), row["id"]


@pytest.mark.parametrize("row", rows("speccheck_ed25519.json"), ids=lambda row: row["id"])
def test_results_on_signatures_that_libraries_disagree_about_are_pinned(
    row: dict[str, Any],
) -> None:
    assert _accepts(row) == row["accepted"]


@given(seeds, st.binary(), st.binary())
def test_a_signature_fits_its_message_alone(seed: bytes, message: bytes, other: bytes) -> None:
    signature = sign(seed, message)
    assert verify(public_key(seed), message, signature)
    assert verify(public_key(seed), other, signature) == (other == message)


@given(st.binary(max_size=80), st.binary(), st.binary(max_size=80))
def test_any_bytes_for_key_and_signature_are_a_no_and_never_an_error(
    key: bytes, message: bytes, signature: bytes
) -> None:
    assert not verify(key, message, signature)


def test_nothing_may_follow_a_key_or_a_signature() -> None:
    seed = bytes(32)
    key, signature = public_key(seed), sign(seed, b"message")
    assert verify(key, b"message", signature)
    assert not verify(key + b"\x00", b"message", signature)
    assert not verify(key, b"essage", signature + b"m")


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        public_key(bytes(size))
    with pytest.raises(ValueError, match="32 bytes"):
        sign(bytes(size), b"")


def test_an_object_is_signed_whatever_the_order_of_its_members() -> None:
    seed = bytes(range(32))
    signature = sign_object({"b": 1.0, "a": "x"}, seed)
    assert b64decode(signature) == sign(seed, b'{"a":"x","b":1}')
    assert verify_object(public_key(seed), {"a": "x", "b": 1}, signature)
    assert verify_object(public_key(seed), {"a": "x", "b": 1}, signature + "==")


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        ({"a": 1}, "not base64!"),
        ({"a": 1}, ""),
        ({"a": 1}, b64encode(bytes(63))),
        ({"a": 1}, b64encode(bytes(64))),
        ({"a": "\ud800"}, b64encode(bytes(64))),
        ({"a": 2**60}, b64encode(bytes(64))),
    ],
)
def test_an_object_with_no_such_signature_is_a_no_and_never_an_error(
    value: object, signature: str
) -> None:
    assert not verify_object(public_key(bytes(32)), value, signature)
