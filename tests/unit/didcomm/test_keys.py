from __future__ import annotations

import base58 as base58_library
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_scalarmult_base

from http_edge.crypto.encoding import X25519_PREFIX, multibase_encode
from http_edge.crypto.mediator_keys import MediatorKeys, service_seed
from http_edge.didcomm.envelopes.keys import (
    KeyPair,
    base58,
    curve_public,
    did_key,
    did_key_reference,
    read_key,
)
from tests.unit.wire.edwards25519 import LOW_ORDER

# RFC 0360.
VERKEY = "8HH5gYEeNc3z7PYXmd54d4x6qAfCNrqQqEB3nS7Zfu7K"
FINGERPRINT = "z6MkmjY8GnV5i9YTDtPETC2uUAW6ejw3nk5mXF5yci5ab7th"
DID = f"did:key:{FINGERPRINT}"
KEY = base58_library.b58decode(VERKEY)


@pytest.mark.parametrize(
    "text",
    [VERKEY, DID, f"{DID}#{FINGERPRINT}", f"did:key:{VERKEY}", f"did:key:{VERKEY}#{VERKEY}"],
)
def test_a_key_in_any_spelling_is_one_key(text: str) -> None:
    assert read_key(text) == KEY


def test_a_key_is_written_as_agents_write_it() -> None:
    assert base58(KEY) == VERKEY
    assert did_key(KEY) == DID
    assert did_key_reference(KEY) == f"{DID}#{FINGERPRINT}"


@given(st.binary(min_size=32, max_size=32))
def test_every_key_is_read_in_every_form_that_is_written(key: bytes) -> None:
    assert read_key(base58(key)) == key
    assert read_key(did_key(key)) == key
    assert read_key(did_key_reference(key)) == key
    assert read_key("did:key:" + base58(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        KEY,
        [VERKEY],
        {"kid": VERKEY},
        "",
        "did:key:",
        "#" + FINGERPRINT,
        FINGERPRINT,
        VERKEY[:-2],
        VERKEY + "1",
        " " + VERKEY,
        VERKEY + "\n",
        VERKEY.replace("8", "0"),
        VERKEY + "#" + VERKEY,
        "did:key:" + multibase_encode(X25519_PREFIX, KEY),
        "did:sov:" + VERKEY,
        "did:peer:2.Vz" + VERKEY,
        "DID:KEY:" + FINGERPRINT,
        DID + "#" + "z" * 200,
        "1" * 44,
        "z" * 1_000_000,
        "\ud800" * 44,
        "\N{FULLWIDTH DIGIT EIGHT}" * 44,
    ],
)
def test_what_is_no_key_is_none(text: object) -> None:
    assert read_key(text) is None


@given(st.text(max_size=200) | st.text(max_size=60).map("did:key:".__add__))
def test_no_text_is_a_traceback(text: str) -> None:
    key = read_key(text)
    assert key is None or len(key) == 32


def test_a_pair_encrypts_with_the_curve_points_of_its_signing_key() -> None:
    pair = KeyPair.new()
    assert KeyPair.from_seed(pair.seed) == pair
    assert crypto_scalarmult_base(pair.curve_private) == pair.curve_public
    assert curve_public(pair.public) == pair.curve_public
    assert KeyPair.new().seed != pair.seed


@pytest.mark.parametrize("seed", [b"", b"s" * 31, b"s" * 33, b"s" * 64])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyPair.from_seed(seed)


def test_a_pair_does_not_show_its_secrets() -> None:
    pair = KeyPair.from_seed(b"secret seed of thirty-two bytes!")
    shown = f"{pair!r} {pair}"
    for secret in (pair.seed, pair.curve_private):
        assert repr(secret) not in shown
        assert secret.hex() not in shown


@pytest.mark.parametrize("key", [*LOW_ORDER, b"\xff" * 32, b"", b"k" * 31, b"k" * 33])
def test_nothing_can_be_packed_to_what_is_no_point_of_the_curve(key: bytes) -> None:
    assert curve_public(key) is None


def _service_key(signing: bytes, pre: bytes) -> KeyPair:
    keys = MediatorKeys(signing_seed=signing * 32, pre_private=pre * 32)
    return KeyPair.from_seed(service_seed(keys))


def test_the_service_key_comes_from_the_signing_seed_and_from_nothing_else() -> None:
    one = _service_key(b"s", b"p")
    assert one == _service_key(b"s", b"q")
    other = _service_key(b"t", b"p")
    assert one.public != other.public
    assert one.seed != b"s" * 32
    # Wallets hold on to this key for years: it must never come out differently.
    assert base58(one.public) == "CCiLEyBSVVkf8BgEmsqcN7y1GjnxPMsvF3FC7iwUMSxr"
