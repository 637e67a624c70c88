"""One name for each key or DID, whatever its spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import X25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX, encode_peer2, encode_peer4
from http_edge.didcomm.envelopes.recipient_names import (
    NAME_CHARS_MAX,
    canonical_name,
    name_form,
    opposite,
    twins,
)

PAIR = keys.KeyPair.from_seed(bytes(range(32)))
ED25519 = keys.base58(PAIR.public)
X25519 = "did:key:" + multibase_encode(X25519_PREFIX, PAIR.curve_public)
PEER_4 = encode_peer4({"verificationMethod": [], "service": [{"id": "#s"}] * 20})
PEER_4_SHORT = PEER_4.rpartition(":")[0]
PEER_2 = encode_peer2([PAIR.public], [{"type": "DIDCommMessaging", "serviceEndpoint": {}}])

# Both forms of one DID, from the specification of did:peer (numalgo 2 and 3).
SPEC_PEER_2 = (
    "did:peer:2.Ez6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc"
    ".Vz6MkqRYqQiSgvZQdnBytw86Qbs2ZWUkGv22od935YF4s8M7V"
    ".Vz6MkgoLTnTypo3tDRCvkRxwVKJz4YnMYuDpSdnmNaHQnvg1Z"
)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        (ED25519, ED25519),
        (keys.did_key(PAIR.public), ED25519),
        (keys.did_key_reference(PAIR.public), ED25519),
        (f"{keys.did_key(PAIR.public)}#{X25519.removeprefix('did:key:')}", ED25519),
        (keys.did_key(PAIR.public).replace("did:key:", "did:peer:0"), ED25519),
        (X25519, X25519),
        (f"{X25519}#{X25519.removeprefix('did:key:')}", X25519),
        (X25519.replace("did:key:", "did:peer:0"), X25519),
        (PEER_4, PEER_4_SHORT),
        (PEER_4_SHORT, PEER_4_SHORT),
        (f"{PEER_4}#key-1", PEER_4_SHORT),
        (f"{PEER_4_SHORT}#key-1", PEER_4_SHORT),
        ("did:web:wallet.example%3A8443:alice", "did:web:wallet.example%3A8443:alice"),
        ("did:web:wallet.example#key-2", "did:web:wallet.example"),
        ("did:web:Wallet.Example%3a8443:Alice", "did:web:wallet.example%3A8443:Alice"),
        ("did:webvh:QmAbc:Wallet.Example:Alice", "did:webvh:QmAbc:wallet.example:Alice"),
        ("did:peer:1zQmZMygzYqNwU6Uhmewx5Xepf2VLp5S4HLSwwgf2aiKZuwa", None),
    ],
)
def test_every_spelling_leads_to_one_name(spelling: str, name: str | None) -> None:
    assert canonical_name(spelling) == (spelling if name is None else name)


@pytest.mark.parametrize("did", [PEER_2, SPEC_PEER_2])
def test_a_did_peer_2_is_named_by_its_short_form(did: str) -> None:
    name = canonical_name(did)
    assert name is not None
    assert name.startswith("did:peer:3zQm")
    assert canonical_name(name) == canonical_name(f"{name}#key-1") == name
    assert canonical_name(f"{did}#key-1") == name
    assert canonical_name(did[:-1]) != name


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        [],
        "",
        "did:",
        "did:key:",
        "did:peer:4",
        "did:peer:2",
        "did:peer:2.",
        "did:peer:3zQm",
        "did:peer:0z6Mk",
        "did:key:z6LSnotakey",
        ED25519[:-1],
        f"{ED25519} ",
        f"{ED25519}\n",
        f"{PEER_4_SHORT}\n",
        f"{PEER_4_SHORT}/path",
        f"{PEER_4_SHORT}?query",
        "did:web:wallet.example/path",
        "did:web:" + "a" * NAME_CHARS_MAX,
        "did:web:pösten.example",
        "DID:web:wallet.example",
        PEER_4[:-1],
        PEER_4_SHORT + PEER_4[len(PEER_4_SHORT) :].swapcase(),
        "did:peer:2" + ".Sabcdefgh" * DID_CHARS_MAX,
    ],
)
def test_what_is_no_key_and_no_did_has_no_name(text: object) -> None:
    assert canonical_name(text) is None


def test_a_name_has_so_many_characters_and_no_more() -> None:
    longest = "did:web:".ljust(NAME_CHARS_MAX, "a")
    assert canonical_name(longest) == canonical_name(longest + "#key-1") == longest
    assert canonical_name(longest + "a") is None


def test_a_long_form_of_another_hash_has_no_name() -> None:
    other = encode_peer4({"service": []}).rpartition(":")[0]
    assert canonical_name(other + PEER_4[len(PEER_4_SHORT) :]) is None


@given(st.text() | st.from_regex(r"did:(peer:[0-4]|key:|web:)[A-Za-z0-9.:#%_=-]*", fullmatch=True))
def test_a_name_is_short_and_its_own_name(text: str) -> None:
    name = canonical_name(text)
    if name is not None:
        assert len(name) <= NAME_CHARS_MAX
        assert canonical_name(name) == name
        assert name_form(name)


@given(st.binary(min_size=32, max_size=32))
def test_the_names_of_one_key_on_both_curves_are_twins_of_each_other(seed: bytes) -> None:
    pair = keys.KeyPair.from_seed(seed)
    name = keys.base58(pair.public)
    (image,) = twins(name)
    assert canonical_name(image) == image
    assert image == "did:key:" + multibase_encode(X25519_PREFIX, pair.curve_public)
    both = twins(image)
    assert name in both
    assert {name, opposite(name)} == set(both)
    assert all(list(twins(each)) == [image] for each in both)


@pytest.mark.parametrize(
    "name",
    [
        PEER_4_SHORT,
        "did:web:wallet.example",
        # u = -1 has no image, and neither has a point of the twist.
        "did:key:" + multibase_encode(X25519_PREFIX, (2**255 - 20).to_bytes(32, "little")),
        "did:key:" + multibase_encode(X25519_PREFIX, (2).to_bytes(32, "little")),
        keys.base58(bytes(32)),
    ],
)
def test_what_has_no_key_on_the_other_curve_has_no_twin(name: str) -> None:
    assert list(twins(name)) == []


@pytest.mark.parametrize("name", [X25519, PEER_4_SHORT, "did:web:wallet.example"])
def test_what_is_no_ed25519_key_has_no_opposite(name: str) -> None:
    assert opposite(name) is None


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (ED25519, "ed25519"),
        (X25519, "x25519"),
        (PEER_4_SHORT, "did:peer:4"),
        (canonical_name(PEER_2), "did:peer:3"),
        ("did:peer:1zQmZMygzYqNwU6Uhmewx5Xepf2VLp5S4HLSwwgf2aiKZuwa", "did:peer"),
        ("did:web:wallet.example", "did:web"),
        ("did:strangers-choice:1", "did"),
    ],
)
def test_a_name_is_of_one_of_a_few_forms(name: str, form: str) -> None:
    assert name_form(name) == form
