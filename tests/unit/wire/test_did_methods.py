from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto import key_agreement, signatures
from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.dids import decentrl, key
from http_edge.dids.document import DID_CHARS_MAX, DidDocument
from tests.unit.wire.edwards25519 import LOW_ORDER

SIGNING, PRE = bytes(range(32)), bytes(range(32, 64))
SIGNING_TEXT = multibase_encode(ED25519_PREFIX, SIGNING)
PRE_TEXT = multibase_encode(X25519_PREFIX, PRE)
MEDIATOR = "did:web:mediator.decentrl.io"
MEDIATOR_TEXT = "ZGlkOndlYjptZWRpYXRvci5kZWNlbnRybC5pbw"
ALICE = f"did:decentrl:YWxpY2U:{SIGNING_TEXT}:{PRE_TEXT}:{MEDIATOR_TEXT}"

keys = st.binary(min_size=32, max_size=32)


def test_the_published_example_is_made_and_resolved() -> None:
    assert decentrl.make_did("alice", SIGNING, PRE, MEDIATOR) == ALICE
    assert decentrl.resolve(ALICE) == DidDocument(ALICE, {ALICE + "#signing": SIGNING}, PRE)


@given(st.text(min_size=1, max_size=64), keys, keys)
def test_every_identity_resolves_to_its_own_keys(alias: str, signing: bytes, pre: bytes) -> None:
    did = decentrl.make_did(alias, signing, pre, MEDIATOR)
    assert decentrl.resolve(did) == DidDocument(did, {did + "#signing": signing}, pre)
    assert len(did) <= DID_CHARS_MAX


def test_base64_of_a_did_is_read_in_every_form_and_each_text_is_its_own_did() -> None:
    aliases = {"Pz8_fg": "url-safe", "Pz8/fg": "standard", "Pz8_fg==": "padded", "Pz8/fg==": ""}
    documents = []
    for alias in aliases:
        did = f"did:decentrl:{alias}:{SIGNING_TEXT}:{PRE_TEXT}:{MEDIATOR_TEXT}=="
        document = decentrl.resolve(did)
        assert document is not None
        assert document.did == did
        documents.append(document.did)
    assert len(set(documents)) == len(aliases)


def _did(
    alias: str = "YWxpY2U",
    signing: str = SIGNING_TEXT,
    pre: str = PRE_TEXT,
    mediator: str = MEDIATOR_TEXT,
) -> str:
    return f"did:decentrl:{alias}:{signing}:{pre}:{mediator}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


@pytest.mark.parametrize(
    "did",
    [
        "",
        "did:decentrl:",
        "did:decentrl",
        ALICE + ":",
        ALICE + ":x",
        ALICE + "#signing",
        ALICE + "\n",
        " " + ALICE,
        ALICE.upper(),
        ALICE.replace("did:decentrl", "did:other"),
        ALICE.rpartition(":")[0],
        _did(alias=""),
        _did(alias="YWxp*"),
        _did(alias=_b64(b"\xff\xfe")),
        _did(alias=_b64(b"a" * 257)),
        _did(signing=PRE_TEXT),
        _did(pre=SIGNING_TEXT),
        _did(signing=""),
        _did(signing=SIGNING_TEXT[1:]),
        _did(signing=SIGNING_TEXT[:-1] + "0"),
        _did(signing=multibase_encode(b"", SIGNING)),
        _did(mediator=""),
        _did(mediator=_b64(b"mediator.decentrl.io")),
        _did(mediator=_b64(b"did:\xff")),
        _did(mediator=_b64(b"did:web:" + b"a" * 2000)),
    ],
)
def test_a_malformed_did_decentrl_does_not_resolve(did: str) -> None:
    assert decentrl.resolve(did) is None


@given(st.text() | st.text(st.characters(codec="ascii")).map("did:decentrl:".__add__))
def test_any_text_resolves_or_not_and_never_raises(did: str) -> None:
    assert decentrl.resolve(did) is None or did.startswith("did:decentrl:")
    assert key.resolve(did) is None


def test_the_longest_alias_fits_and_one_more_byte_does_not() -> None:
    alias = "\N{EURO SIGN}" * 85 + "a"
    assert len(alias.encode()) == decentrl.ALIAS_BYTES_MAX
    assert decentrl.resolve(decentrl.make_did(alias, SIGNING, PRE, MEDIATOR)) is not None
    with pytest.raises(ValueError, match="no did:decentrl"):
        decentrl.make_did(alias + "a", SIGNING, PRE, MEDIATOR)


@pytest.mark.parametrize(
    ("alias", "signing", "pre", "mediator"),
    [
        ("", SIGNING, PRE, MEDIATOR),
        ("alice", SIGNING[1:], PRE, MEDIATOR),
        ("alice", SIGNING, PRE + b"x", MEDIATOR),
        ("alice", SIGNING, PRE, "https://mediator.example"),
        ("\ud800", SIGNING, PRE, MEDIATOR),
    ],
)
def test_no_did_is_made_that_would_not_resolve(
    alias: str, signing: bytes, pre: bytes, mediator: str
) -> None:
    with pytest.raises(ValueError, match=r"."):
        decentrl.make_did(alias, signing, pre, mediator)


def test_a_did_key_resolves_to_its_key_and_the_same_key_on_curve25519() -> None:
    # The did:key method's own example of an Ed25519 key and the X25519 key derived from it.
    did = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    document = key.resolve(did)
    assert document is not None
    assert list(document.signing_keys) == [did + "#" + did.removeprefix("did:key:")]
    assert document.pre_key is not None
    derived = multibase_encode(X25519_PREFIX, document.pre_key)
    assert derived == "z6LSj72tK8brWgZja8NLRwPigth2T9QRiG1uH9oKZuKjdh9p"


@given(keys)
def test_every_signing_key_has_a_did_key_whose_pre_key_agrees(seed: bytes) -> None:
    public = signatures.public_key(seed)
    did = did_key(public)
    document = key.resolve(did)
    assert document is not None
    assert list(document.signing_keys.values()) == [public]
    assert document.pre_key is not None
    pair = key_agreement.new_key_pair()
    assert key_agreement.shared_secret(pair.private, document.pre_key) is not None


@pytest.mark.parametrize(
    "did",
    [
        "did:key:",
        "did:key:z6Mk",
        "did:key:" + PRE_TEXT,
        "did:key:" + multibase_encode(b"\xe7\x01", bytes(33)),
        *("did:key:" + multibase_encode(ED25519_PREFIX, text) for text in LOW_ORDER),
        "did:key:" + multibase_encode(ED25519_PREFIX, b"\x02" + bytes(31)),
    ],
)
def test_a_did_key_that_is_no_usable_ed25519_key_does_not_resolve(did: str) -> None:
    assert key.resolve(did) is None
