"""The envelope of DIDComm v2: what it opens, and that nothing else is opened or breaks it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from aries_askar import Key
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import b64encode
from http_edge.didcomm.envelopes import key_agreement
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_jwk
from http_edge.didcomm.envelopes.v2 import content_encryption, envelope
from http_edge.didcomm.envelopes.v2.envelope import (
    KID_CHARS_MAX,
    RECIPIENTS_MAX,
    Recipient,
    Sealed,
    Sender,
    open_sealed,
    parsed,
    seal,
)
from tests.examples import examples
from tests.unit.didcomm.askar_envelope import from_b64, to_b64
from tests.unit.didcomm.askar_jwe import ENCS, Named, apv_of, jwe, open_jwe
from tests.unit.didcomm.joserfc_jwe import JoseKey, jose_key, jose_open, jose_pack

CURVES = [Curve.X25519, Curve.P256, Curve.P384, Curve.P521]
ALICE, BOB, EVE = (PrivateKey.of_x25519(bytes([number]) * 32) for number in (1, 2, 3))
SECRETS = StaticSecrets()
SMALL_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


def askar(key: PrivateKey) -> Key:
    return Key.from_jwk(json.dumps(jwk(key)))


def jose(key: PrivateKey) -> JoseKey:
    return jose_key(jwk(key))


def jwk(key: PrivateKey) -> dict[str, Any]:
    return {**write_jwk(key.public), "d": b64encode(key.secret)}


def sealed_in(body: bytes) -> Sealed | None:
    return parsed(orjson.loads(body))


def opened(body: bytes, own: PrivateKey = BOB, sender: PrivateKey | None = ALICE) -> bytes | None:
    sealed = sealed_in(body)
    assert sealed is not None
    public = sender.public if sender is not None and sealed.sender_kid else None
    return open_sealed(sealed, 0, own, public, StaticSecrets())


def packed(text: bytes = b"hello", *, sender: PrivateKey | None = ALICE) -> bytes:
    named = None if sender is None else Sender("did:a#1", sender, SECRETS)
    return seal(text, [Recipient("did:b#1", BOB.public)], named)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("authcrypt", [True, False])
def test_joserfc_and_we_open_what_the_other_packs(curve: Curve, authcrypt: bool) -> None:
    ours, theirs = PrivateKey.new(curve), PrivateKey.new(curve)
    sender = Sender("did:a#1", ours, SECRETS) if authcrypt else None
    body = seal(b"hello", [Recipient("did:b#1", theirs.public)], sender)
    assert jose_open(body, jose(theirs), jose(ours) if authcrypt else None) == b"hello"
    named = ("did:a#1", jose(ours)) if authcrypt else None
    back = jose_pack(b"hello", [("did:b#1", jose(theirs))], named)
    assert opened(back, theirs, ours) == b"hello"


@given(st.binary(max_size=2000), st.booleans(), st.sampled_from(CURVES[:3]))
@examples(40)
def test_askar_and_we_open_what_the_other_packs(text: bytes, authcrypt: bool, curve: Curve) -> None:
    ours, theirs = PrivateKey.new(curve), PrivateKey.new(curve)
    sender = Sender("did:a#1", ours, SECRETS) if authcrypt else None
    body = seal(text, [Recipient("did:b#1", theirs.public)], sender)
    own = Named("did:b#1", askar(theirs))
    assert open_jwe(body, own, askar(ours) if authcrypt else None) == text
    back = jwe(text, [own], Named("did:a#1", askar(ours)) if authcrypt else None)
    assert opened(back, theirs, ours) == text


@pytest.mark.parametrize("enc", list(ENCS))
def test_every_content_encryption_is_read_from_anonymous_senders(enc: str) -> None:
    body = jwe(b"hello", [Named("did:b#1", askar(BOB))], None, enc=enc)
    assert opened(body, sender=None) == b"hello"


def test_every_one_of_several_recipients_opens_the_same_envelope() -> None:
    keys = [PrivateKey.new(Curve.X25519) for _ in range(4)]
    # Listed in another order than they are hashed in.
    named = [Recipient(f"did:b#{9 - number}", key.public) for number, key in enumerate(keys)]
    body = seal(b"hello", named, Sender("did:a#1", ALICE, SECRETS))
    sealed = sealed_in(body)
    assert sealed is not None
    assert list(sealed.kids) == sorted(one.kid for one in named)
    for number, key in enumerate(reversed(keys)):
        assert open_sealed(sealed, number, key, ALICE.public, SECRETS) == b"hello"


def test_recipients_may_be_listed_in_any_order_and_are_hashed_in_one() -> None:
    named = [Named("did:b#2", askar(BOB)), Named("did:b#1", askar(EVE))]
    assert opened(jwe(b"hello", named, None), sender=None) == b"hello"
    listed = apv_of([one.kid for one in named])
    assert sealed_in(jwe(b"hello", named, None, apv=listed)) is None


def test_an_envelope_says_who_packed_it_in_one_way() -> None:
    def change(**members: Any) -> Any:
        def apply(header: dict[str, Any]) -> None:
            header |= members
            for name in [name for name, value in members.items() if value is None]:
                del header[name]

        return apply

    own, sender = [Named("did:b#1", askar(BOB))], Named("did:a#1", askar(ALICE))
    named_once = sealed_in(jwe(b"hello", own, sender, change=change(skid=None)))
    assert named_once is not None
    assert named_once.sender_kid == "did:a#1"
    for members in (
        {"skid": "did:e#1"},
        {"apu": None},
        {"apu": None, "skid": None},
        {"apu": to_b64(b"did:e#1")},
        {"apu": to_b64(b"\xff")},
        {"crit": ["b64"]},
        {"zip": "DEF"},
        {"alg": "ECDH-ES"},
        {"alg": "RSA-OAEP"},
        {"enc": "A128GCM"},
        {"enc": "A256GCM"},
        {"apv": None},
        {"apv": to_b64(b"x" * 32)},
    ):
        assert sealed_in(jwe(b"hello", own, sender, change=change(**members))) is None, members


@pytest.mark.parametrize("sender", [None, Named("did:a#1", askar(ALICE))])
def test_what_is_remembered_of_an_envelope_is_as_long_as_a_key_id(sender: Named | None) -> None:
    def named(chars: int) -> Sealed | None:
        def apply(header: dict[str, Any]) -> None:
            header.pop("skid", None)
            header["apu"] = to_b64(b"a" * chars)

        return sealed_in(jwe(b"hello", [Named("did:b#1", askar(BOB))], sender, change=apply))

    assert named(KID_CHARS_MAX) is not None
    assert named(KID_CHARS_MAX + 1) is None


def test_an_envelope_names_so_many_recipients_by_ids_so_long_and_no_more() -> None:
    def naming(*kids: str) -> Sealed | None:
        return sealed_in(jwe(b"hello", [Named(kid, askar(BOB)) for kid in kids], None))

    many = [f"did:b#{number}" for number in range(RECIPIENTS_MAX)]
    assert naming(*many) is not None
    assert naming(*many, "did:b#last") is None
    assert naming("b" * KID_CHARS_MAX) is not None
    assert naming("did:b#1", "b" * (KID_CHARS_MAX + 1)) is None


@pytest.mark.parametrize("enc", ENCS)
def test_an_anonymous_envelope_may_name_its_recipients_nowhere_else(enc: str) -> None:
    def without(header: dict[str, Any]) -> None:
        del header["apv"]

    own = [Named("did:b#1", askar(BOB))]
    body = jwe(b"hello", own, None, enc=enc, apv=b"", change=without)
    assert opened(body, sender=None) == b"hello"
    assert opened(jwe(b"hello", own, None, enc=enc, change=without), sender=None) is None


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_of_small_order_opens_nothing_and_is_packed_to_nothing(point: bytes) -> None:
    weak = PublicKey(Curve.X25519, point)

    def with_point(header: dict[str, Any]) -> None:
        header["epk"]["x"] = to_b64(point)

    own = [Named("did:b#1", askar(BOB))]
    assert opened(jwe(b"hello", own, None, change=with_point), sender=None) is None
    sealed = sealed_in(packed())
    assert sealed is not None
    assert open_sealed(sealed, 0, BOB, weak, StaticSecrets()) is None
    with pytest.raises(ValueError, match="nothing can be packed"):
        seal(b"hello", [Recipient("did:b#1", weak)], None)
    with pytest.raises(ValueError, match="nothing can be packed"):
        seal(b"hello", [Recipient("did:b#1", weak)], Sender("did:a#1", ALICE, SECRETS))


@pytest.mark.parametrize(
    "epk",
    [
        None,
        {},
        {"kty": "OKP", "crv": "X25519", "x": to_b64(bytes(31))},
        {"kty": "OKP", "crv": "Ed25519", "x": to_b64(ALICE.public.raw)},
        {"kty": "OKP", "crv": "X448", "x": to_b64(bytes(56))},
        write_jwk(PrivateKey.new(Curve.P256).public),
        {"kty": "EC", "crv": "P-256", "x": to_b64(b"\1" * 32), "y": to_b64(b"\1" * 32)},
        {"kty": "EC", "crv": "X25519", "x": to_b64(b"\1" * 32), "y": to_b64(b"\1" * 32)},
    ],
)
def test_an_ephemeral_key_of_another_curve_or_none_opens_nothing(epk: Any) -> None:
    def change(header: dict[str, Any]) -> None:
        header["epk"] = epk

    own = [Named("did:b#1", askar(BOB))]
    assert opened(jwe(b"hello", own, None, change=change), sender=None) is None


def test_a_point_that_is_not_on_its_curve_is_no_key() -> None:
    own = PrivateKey.new(Curve.P256)
    body = orjson.loads(seal(b"hello", [Recipient("did:b#1", own.public)], None))
    header = orjson.loads(from_b64(body["protected"]))
    header["epk"]["y"] = to_b64(bytes(31) + b"\5")
    body["protected"] = to_b64(orjson.dumps(header))
    sealed = parsed(body)
    assert sealed is not None
    assert open_sealed(sealed, 0, own, None, SECRETS) is None


@pytest.mark.parametrize("sender", [None, Sender("did:a#1", ALICE, SECRETS)])
def test_what_is_to_be_authenticated_beside_the_header_is_not_passed_over(
    sender: Sender | None,
) -> None:
    """RFC 7516, section 5.2, step 15; no agent of DIDComm writes this member."""
    own = PrivateKey.new(Curve.X25519)
    body = orjson.loads(seal(b"hello", [Recipient("did:b#1", own.public)], sender))
    assert parsed(body) is not None
    assert parsed({**body, "aad": to_b64(b"made up")}) is None


def test_another_sender_or_another_recipient_opens_nothing() -> None:
    assert opened(packed()) == b"hello"
    assert opened(packed(), own=EVE) is None
    assert opened(packed(), sender=EVE) is None
    sealed = sealed_in(packed())
    assert sealed is not None
    assert open_sealed(sealed, 0, BOB, None, StaticSecrets()) is None
    anonymous = sealed_in(packed(sender=None))
    assert anonymous is not None
    assert open_sealed(anonymous, 0, BOB, ALICE.public, StaticSecrets()) is None


def test_who_has_no_key_of_the_named_sender_packs_nothing_in_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def anonymous(shared: bytes, algorithm: bytes, apu: bytes, apv: bytes, _tag: bytes) -> bytes:
        return key_agreement.wrapping_key(shared[:32], algorithm, apu, apv, b"")

    with monkeypatch.context() as forging:
        forging.setattr(envelope, "wrapping_key", anonymous)
        forged = sealed_in(packed())
        assert forged is not None
    assert forged.sender_kid == "did:a#1"
    assert open_sealed(forged, 0, BOB, None, StaticSecrets()) is None


@pytest.mark.parametrize("part", ["iv", "ciphertext", "tag"])
@pytest.mark.parametrize("change", [None, b"", b"\0", b"\0" * 16, b"\0" * 33])
def test_a_part_that_was_changed_or_has_another_size_opens_nothing(
    part: str, change: bytes | None
) -> None:
    for enc in ENCS:
        body = json.loads(jwe(b"hello", [Named("did:b#1", askar(BOB))], None, enc=enc))
        raw = from_b64(body[part])
        body[part] = to_b64(bytes([raw[0] ^ 1]) + raw[1:] if change is None else change)
        assert opened(json.dumps(body).encode(), sender=None) is None


def encrypted(padded: bytes) -> bytes:
    encryptor = Cipher(AES(bytes(32)), CBC(bytes(16))).encryptor()
    return encryptor.update(padded) + encryptor.finalize()


@pytest.mark.parametrize(
    "ciphertext",
    [
        b"",
        bytes(15),
        bytes(17),
        encrypted(bytes(16)),
        encrypted(bytes([17]) * 32),
        encrypted(bytes(14) + b"\1\2"),
    ],
    ids=["nothing", "less", "more", "padding of 0", "padding of 17", "unequal padding"],
)
def test_a_valid_tag_over_no_padded_blocks_opens_nothing(ciphertext: bytes) -> None:
    key, iv = bytes(64), bytes(16)
    sealed = ciphertext, content_encryption._tag(key, b"", iv, ciphertext)
    assert content_encryption.decrypt(content_encryption.WRITTEN, key, iv, sealed, b"") is None


@given(st.data())
@examples(300)
def test_a_mutated_envelope_is_refused_and_never_breaks_anything(data: st.DataObject) -> None:
    body = bytearray(packed(b'{"x":1}', sender=data.draw(st.sampled_from([ALICE, None]))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at : at + data.draw(st.integers(1, 40))]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case _:
                body[at:at] = body[at : at + 20]
        if not body:
            break
    try:
        value = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        return
    if not isinstance(value, dict):
        return
    sealed = parsed(value)
    if sealed is None:
        return
    found = open_sealed(sealed, 0, BOB, ALICE.public if sealed.sender_kid else None, SECRETS)
    # What is not authenticated may be changed: blanks, and the ids within the recipients.
    assert found in {None, b'{"x":1}'}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["protected", "recipients", "header", "kid", "iv", "tag", "epk"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_object_is_an_envelope_or_is_refused(value: Any) -> None:
    if isinstance(value, dict):
        assert parsed({"ciphertext": "eA", "recipients": [], **value}) is None


def test_who_gets_an_envelope_too_can_write_nothing_in_its_senders_name() -> None:
    """The key that wraps the content's key depends on the tag, so also on the content."""
    named = [Recipient("did:b#1", BOB.public), Recipient("did:e#1", EVE.public)]
    body = orjson.loads(seal(b"hello", named, Sender("did:a#1", ALICE, SECRETS)))
    contents: list[bytes] = []

    def with_known_key(_enc: str, key: bytes, *_: object) -> None:
        contents.append(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "decrypt", with_known_key)
        sealed = parsed(body)
        assert sealed is not None
        open_sealed(sealed, 1, EVE, ALICE.public, SECRETS)
    (key,) = contents
    aad, iv = body["protected"].encode(), from_b64(body["iv"])
    other = Cipher(AES(key[32:]), CBC(iv)).encryptor().update(b"forged" + b"\n" * 10)
    tag = content_encryption._tag(key, aad, iv, other)
    made = other, tag
    assert content_encryption.decrypt(content_encryption.WRITTEN, key, iv, made, aad) == b"forged"
    forged = parsed({**body, "ciphertext": to_b64(other), "tag": to_b64(tag)})
    assert forged is not None
    assert open_sealed(forged, 0, BOB, ALICE.public, SECRETS) is None


def test_a_static_secret_is_made_once_and_kept_for_who_has_proven_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[PublicKey] = []
    real = key_agreement.agree

    def counted(own: PrivateKey, theirs: PublicKey) -> bytes | None:
        made.append(theirs)
        return real(own, theirs)

    secrets, body = StaticSecrets(), packed()
    sealed = sealed_in(body)
    assert sealed is not None
    monkeypatch.setattr(key_agreement, "agree", counted)
    assert open_sealed(sealed, 0, BOB, EVE.public, secrets) is None
    assert open_sealed(sealed, 0, BOB, EVE.public, secrets) is None
    assert made == [EVE.public, EVE.public]
    made.clear()
    for _ in range(3):
        assert open_sealed(sealed, 0, BOB, ALICE.public, secrets) == b"hello"
    assert made == [ALICE.public]


def test_static_secrets_are_bounded_and_are_never_shown() -> None:
    secrets = StaticSecrets(2)
    peers = [PrivateKey.new(Curve.X25519) for _ in range(4)]
    for peer in peers:
        shared = secrets.agree(BOB, peer.public)
        assert shared is not None
        secrets.keep(BOB.secret, peer.public.raw, shared)
        assert shared.hex() not in repr(secrets)
        assert repr(shared) not in repr(secrets)
    assert len(secrets._secrets) == 2
    assert repr(BOB.secret) not in repr(BOB)
