from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.v1.envelope import OpenedEnvelope, pack
from tests.examples import examples
from tests.unit.didcomm.askar_envelope import askar_key, askar_pack, askar_unpack
from tests.unit.didcomm.envelopes_v1 import opened_with, sealed_in

SEEDS = st.binary(min_size=32, max_size=32)


@given(SEEDS, SEEDS, st.binary(max_size=2_000), st.booleans())
@examples(50)
def test_askar_opens_what_we_pack(own: bytes, other: bytes, text: bytes, authcrypt: bool) -> None:
    sender, recipient = KeyPair.from_seed(own), KeyPair.from_seed(other)
    packed = pack(text, [recipient.public], sender if authcrypt else None)
    opened, key = askar_unpack(packed, askar_key(other))
    assert (opened, key) == (text, sender.public if authcrypt else None)


@given(SEEDS, SEEDS, st.binary(max_size=2_000), st.booleans())
@examples(50)
def test_we_open_what_askar_packs(own: bytes, other: bytes, text: bytes, authcrypt: bool) -> None:
    recipient, sender = KeyPair.from_seed(own), askar_key(other)
    packed = askar_pack(text, [recipient.public], sender if authcrypt else None)
    opened = opened_with(packed, recipient)
    expected = sender.get_public_bytes() if authcrypt else None
    assert opened == OpenedEnvelope(text, expected)


@pytest.mark.parametrize("authcrypt", [True, False])
def test_every_one_of_several_recipients_opens_the_same_envelope(authcrypt: bool) -> None:
    seeds = [bytes([number]) * 32 for number in range(1, 6)]
    pairs = [KeyPair.from_seed(seed) for seed in seeds]
    keys, sender = [pair.public for pair in pairs], KeyPair.from_seed(b"s" * 32)
    expected = sender.public if authcrypt else None
    ours = pack(b"hello", keys, sender if authcrypt else None)
    theirs = askar_pack(b"hello", keys, askar_key(sender.seed) if authcrypt else None)
    assert [askar_unpack(ours, askar_key(seed)) for seed in seeds] == [(b"hello", expected)] * 5
    for pair in pairs:
        opened = opened_with(theirs, pair)
        assert opened == OpenedEnvelope(b"hello", expected)


def test_both_make_keys_of_the_same_seed_and_write_headers_of_the_same_shape() -> None:
    pair, key = KeyPair.from_seed(b"k" * 32), askar_key(b"k" * 32)
    assert key.get_public_bytes() == pair.public
    assert _shape(pack(b"{}", [pair.public], pair)) == _shape(askar_pack(b"{}", [pair.public], key))
    assert _shape(pack(b"{}", [pair.public], None)) == _shape(
        askar_pack(b"{}", [pair.public], None)
    )


def _shape(body: bytes) -> object:
    """An envelope's members, its header, and of what is random the length."""
    sealed = sealed_in(body)
    assert sealed is not None
    members = {name: len(text) for name, text in json.loads(body).items() if name != "protected"}
    (box,) = sealed.header.recipients
    lengths = [len(text or "") for text in (box.encrypted_key, box.header.sender, box.header.iv)]
    return members, sealed.header.alg, sealed.header.enc, sealed.kids, lengths
