from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_box_beforenm

from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key_reference
from http_edge.didcomm.envelopes.messages import ForOthers, UnpackRejection
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import (
    RECIPIENTS_MAX,
    OpenedEnvelope,
    pack,
    unpack,
)
from http_edge.didcomm.envelopes.v1.version import V1
from tests.examples import examples
from tests.unit.didcomm.askar_envelope import Change, askar_key, askar_pack, from_b64, to_b64
from tests.unit.didcomm.envelopes_v1 import opened_with, sealed_in
from tests.unit.wire.edwards25519 import LOW_ORDER
from tests.unit.wire.vectors import rows

OURS = KeyPair.from_seed(b"o" * 32)
WALLET = KeyPair.from_seed(b"w" * 32)
OTHER = KeyPair.from_seed(b"x" * 32)
ASKAR_WALLET = askar_key(WALLET.seed)
MEMBERS = ("protected", "iv", "ciphertext", "tag")


def _opened(body: bytes) -> OpenedEnvelope | UnpackRejection:
    return opened_with(body, OURS)


def _changed(body: bytes, **members: object) -> bytes:
    return json.dumps(json.loads(body) | members).encode()


def _header(body: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(from_b64(json.loads(body)["protected"]))
    return header


def _set(**members: object) -> Change:
    return lambda header: header.update(members)


def _set_for_us(**members: object) -> Change:
    """Alters what the envelope holds for its first recipient."""

    def change(header: dict[str, Any]) -> None:
        entry = header["recipients"][0]
        for name, value in members.items():
            (entry if name == "encrypted_key" else entry["header"])[name] = value

    return change


def _remove_for_us(name: str) -> Change:
    return lambda header: header["recipients"][0]["header"].pop(name)


@given(st.binary(max_size=4_000))
@examples(50)
def test_authcrypt_brings_the_message_and_proves_the_sender(message: bytes) -> None:
    packed = pack(message, [OURS.public], WALLET)
    assert _opened(packed) == OpenedEnvelope(message, WALLET.public)


@given(st.binary(max_size=4_000))
@examples(50)
def test_anoncrypt_brings_the_message_and_no_sender(message: bytes) -> None:
    packed = pack(message, [OURS.public], None)
    assert _opened(packed) == OpenedEnvelope(message, None)
    assert base58(WALLET.public).encode() not in packed


@pytest.mark.parametrize(
    ("changed", "is_opened", "computed"),
    [({}, True, 1), ({"encrypted_key": to_b64(bytes(48))}, False, 3)],
)
def test_a_shared_key_is_remembered_once_its_sender_is_proven(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], *, is_opened: bool, computed: int
) -> None:
    sender, made = askar_key(KeyPair.new().seed), list[bytes]()
    body = askar_pack(b"hello", [OURS.public], sender, change=_set_for_us(**changed))

    def counted(theirs: bytes, own_private: bytes) -> bytes:
        made.append(theirs)
        return crypto_box_beforenm(theirs, own_private)

    monkeypatch.setattr("http_edge.didcomm.envelopes.v1.envelope.crypto_box_beforenm", counted)
    for _ in range(3):
        assert isinstance(_opened(body), OpenedEnvelope) is is_opened
    assert len(made) == computed


@pytest.mark.parametrize(("name", "sender"), [("authcrypt", WALLET.public), ("anoncrypt", None)])
def test_what_an_agent_packed_stays_readable(name: str, sender: bytes | None) -> None:
    (packed,) = (row["value"] for row in rows("acapy_didcomm.json") if row["name"] == name)
    assert _opened(packed.encode()) == OpenedEnvelope(b'{"hello":1}', sender)


def test_two_envelopes_of_one_message_have_nothing_in_common() -> None:
    one, two = (json.loads(pack(b"same", [OURS.public], WALLET)) for _ in range(2))
    assert [name for name in MEMBERS if one[name] == two[name]] == []


def test_all_base64_is_written_for_urls_and_without_padding() -> None:
    for sender in (WALLET, None):
        for length in range(4):
            body = pack(b"x" * length, [OURS.public], sender)
            entry = _header(body)["recipients"][0]
            boxed = [entry["header"][name] for name in ("sender", "iv") if sender]
            for text in [*json.loads(body).values(), entry["encrypted_key"], *boxed]:
                assert not set(text) & set("=+/")


def test_all_recipients_are_named_and_each_of_their_keys_opens() -> None:
    packed = pack(b"hello", [OTHER.public, OURS.public, WALLET.public], WALLET)
    sealed = sealed_in(packed)
    assert sealed is not None
    assert sealed.kids == [OTHER.public, OURS.public, WALLET.public]
    for key in (OTHER, OURS, WALLET):
        assert unpack(sealed, key) == OpenedEnvelope(b"hello", WALLET.public)


def test_an_envelope_for_unknown_keys_is_for_others() -> None:
    for sender in (WALLET, None):
        value = json.loads(pack(b"hello", [OTHER.public, WALLET.public], sender))
        found = V1(OwnDids(OURS)).unpack(value)
        assert found == ForOthers([base58(OTHER.public), base58(WALLET.public)], "v1")


def test_padding_and_the_standard_alphabet_are_read() -> None:
    message = bytes(range(256))
    packed = pack(message, [OURS.public], WALLET)
    parts = {name: from_b64(text) for name, text in json.loads(packed).items()}
    padded = {name: b64encode(parts[name]).decode() for name in ("iv", "ciphertext", "tag")}
    assert _opened(_changed(packed, **padded)) == OpenedEnvelope(message, WALLET.public)

    def respell(header: dict[str, Any]) -> None:
        entry = header["recipients"][0]
        entry["encrypted_key"] = b64encode(from_b64(entry["encrypted_key"])).decode()
        for name in ("sender", "iv"):
            entry["header"][name] = b64encode(from_b64(entry["header"][name])).decode()

    askar = askar_pack(message, [OURS.public], ASKAR_WALLET, change=respell)
    assert _opened(askar) == OpenedEnvelope(message, WALLET.public)


@pytest.mark.parametrize(
    "change",
    [
        _set(enc="xchachapoly1305_ietf"),
        _set(typ="application/json"),
        _set(typ=None),
        _set(unknown={"member": 1}),
        _set_for_us(kid=did_key_reference(OURS.public)),
        _set_for_us(unknown=1),
    ],
)
def test_spellings_and_additions_of_other_agents_are_read(change: Change) -> None:
    for sender in (ASKAR_WALLET, None):
        packed = askar_pack(b"hello", [OURS.public], sender, change=change)
        assert isinstance(_opened(packed), OpenedEnvelope)


def test_null_for_what_anoncrypt_does_not_have_is_read() -> None:
    change = _set_for_us(sender=None, iv=None)
    packed = askar_pack(b"hello", [OURS.public], None, change=change)
    assert _opened(packed) == OpenedEnvelope(b"hello", None)


def test_an_anonymous_message_that_names_a_sender_stays_anonymous() -> None:
    change = _set(alg="Anoncrypt")
    packed = askar_pack(b"hello", [OURS.public], ASKAR_WALLET, change=change)
    assert _opened(packed) is UnpackRejection.UNDECRYPTABLE
    claimed = to_b64(base58(WALLET.public).encode())
    change = _set_for_us(sender=claimed, iv=to_b64(bytes(24)))
    packed = askar_pack(b"hello", [OURS.public], None, change=change)
    assert _opened(packed) == OpenedEnvelope(b"hello", None)


@pytest.mark.parametrize(
    "change",
    [
        _remove_for_us("sender"),
        _remove_for_us("iv"),
        _set_for_us(sender=None),
        _set_for_us(iv=None),
        _set_for_us(sender=""),
        _set_for_us(sender="!"),
        _set_for_us(sender=to_b64(b"short")),
        _set_for_us(sender=to_b64(bytes(92))),
        _set_for_us(iv=to_b64(bytes(24))),
        _set_for_us(iv=to_b64(bytes(23))),
        _set_for_us(iv=to_b64(bytes(25))),
        _set_for_us(encrypted_key=""),
        _set_for_us(encrypted_key="A"),
        _set_for_us(encrypted_key=to_b64(bytes(15))),
        _set_for_us(encrypted_key=to_b64(bytes(48))),
        _set_for_us(encrypted_key=to_b64(bytes(500))),
    ],
)
def test_authcrypt_without_all_its_parts_does_not_open(change: Change) -> None:
    packed = askar_pack(b"hello", [OURS.public], ASKAR_WALLET, change=change)
    assert _opened(packed) is UnpackRejection.UNDECRYPTABLE


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b"\xff" * 44,
        WALLET.public,
        b"did:sov:" + base58(WALLET.public).encode(),
        did_key_reference(WALLET.public).encode(),
        base58(WALLET.public).encode() + b" ",
        base58(OTHER.public).encode(),
        *(base58(key).encode() for key in LOW_ORDER),
    ],
)
def test_a_sender_that_is_no_key_or_not_the_one_that_packed_is_not_believed(text: bytes) -> None:
    packed = askar_pack(b"hello", [OURS.public], ASKAR_WALLET, sender_text=text)
    assert _opened(packed) is UnpackRejection.UNDECRYPTABLE


def test_ephemeral_keys_of_small_order_open_nothing() -> None:
    for point in LOW_ORDER:
        change = _set_for_us(encrypted_key=to_b64(point + bytes(48)))
        packed = askar_pack(b"hello", [OURS.public], None, change=change)
        assert _opened(packed) is UnpackRejection.UNDECRYPTABLE


@pytest.mark.parametrize(
    "change",
    [
        _set(alg="Unknown"),
        _set(alg=None),
        _set(alg="authcrypt"),
        _set(alg=["Anoncrypt"]),
        _set(enc="A256GCM"),
        _set(enc=None),
        _set(recipients=None),
        _set(recipients={}),
        _set(recipients=[]),
        _set(recipients=[None]),
        _set(recipients=["text"]),
        _set(recipients=[{"header": {"kid": base58(OURS.public)}}]),
        _set(recipients=[{"encrypted_key": "AA"}]),
        _set_for_us(kid=None),
        _set_for_us(kid=7),
        _set_for_us(kid="not a key"),
        _set_for_us(kid="did:web:example.org#key-1"),
        _set_for_us(sender=7),
        _set_for_us(iv=[]),
        _set_for_us(encrypted_key=None),
    ],
)
def test_a_header_of_another_kind_is_no_envelope(change: Change) -> None:
    for sender in (ASKAR_WALLET, None):
        packed = askar_pack(b"hello", [OURS.public], sender, change=change)
        assert sealed_in(packed) is None
        assert _opened(packed) is UnpackRejection.NOT_AN_ENVELOPE


def test_more_recipients_than_allowed_are_no_envelope() -> None:
    packed = pack(b"hello", [OURS.public] * (RECIPIENTS_MAX + 1), None)
    assert sealed_in(packed) is None
    assert sealed_in(pack(b"hello", [OURS.public] * RECIPIENTS_MAX, None)) is not None
    assert sealed_in(pack(b"hello", [], None)) is None


OF_DIDCOMM_2 = json.dumps(
    {
        "protected": to_b64(
            b'{"typ":"application/didcomm-encrypted+json","alg":"ECDH-1PU+A256KW",'
            b'"enc":"A256CBC-HS512"}'
        ),
        "recipients": [{"encrypted_key": "AA", "header": {"kid": "did:example:bob#1"}}],
        "iv": "AA",
        "ciphertext": "AA",
        "tag": "AA",
    }
).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"@type":"https://didcomm.org/trust_ping/1.0/ping","@id":"1"}',
        _changed(pack(b"hello", [OURS.public], None), **{"@type": "x", "@id": "1"}),
        b'{"protected":"","iv":"","ciphertext":"","tag":""}',
        b'{"protected":"!","iv":"","ciphertext":"","tag":""}',
        b'{"protected":"bm8ganNvbg","iv":"","ciphertext":"","tag":""}',
        b'{"protected":"W10","iv":"","ciphertext":"","tag":""}',
        b'{"protected":"e30","protected":"e30","iv":"","ciphertext":"","tag":""}',
        OF_DIDCOMM_2,
        b"[" * 100_000,
    ],
)
def test_what_is_no_envelope_is_named_so(body: bytes) -> None:
    assert sealed_in(body) is None
    assert _opened(body) is UnpackRejection.NOT_AN_ENVELOPE


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("value", [None, 7, [], {}, True])
def test_a_member_that_is_no_text_is_no_envelope(name: str, value: object) -> None:
    body = _changed(pack(b"hello", [OURS.public], WALLET), **{name: value})
    assert _opened(body) is UnpackRejection.NOT_AN_ENVELOPE


@pytest.mark.parametrize(("name", "size"), [("iv", 12), ("tag", 16)])
def test_parts_of_another_size_do_not_open(name: str, size: int) -> None:
    body = pack(b"hello", [OURS.public], WALLET)
    for length in (0, 1, size - 1, size + 1, size * 2, 500):
        assert (
            _opened(_changed(body, **{name: to_b64(bytes(length))}))
            is UnpackRejection.UNDECRYPTABLE
        )
    assert _opened(_changed(body, **{name: "?"})) is UnpackRejection.UNDECRYPTABLE


def test_the_border_of_ciphertext_and_tag_cannot_be_moved() -> None:
    body = json.loads(pack(b"hello world", [OURS.public], WALLET))
    whole = from_b64(body["ciphertext"]) + from_b64(body["tag"])
    for border in range(len(whole) + 1):
        moved = {"ciphertext": to_b64(whole[:border]), "tag": to_b64(whole[border:])}
        opened = _opened(json.dumps(body | moved).encode())
        assert isinstance(opened, OpenedEnvelope) == (border == len(whole) - 16)


def test_nothing_is_taken_from_another_envelope() -> None:
    one, two = pack(b"one", [OURS.public], WALLET), pack(b"two", [OURS.public], WALLET)
    for name in MEMBERS:
        mixed = _changed(one, **{name: json.loads(two)[name]})
        assert _opened(mixed) is UnpackRejection.UNDECRYPTABLE


def test_a_header_that_is_written_differently_is_not_what_was_authenticated() -> None:
    body = pack(b"hello", [OURS.public], WALLET)
    respelled = to_b64(json.dumps(_header(body)).encode())
    assert _opened(_changed(body, protected=respelled)) is UnpackRejection.UNDECRYPTABLE
    padded = json.loads(body)["protected"]
    padded += "=" * (-len(padded) % 4) or "===="
    assert not isinstance(_opened(_changed(body, protected=padded)), OpenedEnvelope)


CORRUPTED = {
    "authcrypt": pack(b'{"@type":"x"}', [OTHER.public, OURS.public], WALLET),
    "anoncrypt": pack(b'{"@type":"x"}', [OURS.public], None),
}


@given(st.data())
@examples(400)
def test_no_changed_byte_makes_another_message(data: st.DataObject) -> None:
    body = CORRUPTED[data.draw(st.sampled_from(sorted(CORRUPTED)))]
    at = data.draw(st.integers(0, len(body) - 1))
    changed = body[:at] + data.draw(st.binary(min_size=1, max_size=1)) + body[at + 1 :]
    opened = _opened(changed)
    if isinstance(opened, OpenedEnvelope):
        assert opened == _opened(body)
        assert _parts(changed) == _parts(body)


def _parts(body: bytes) -> tuple[str, list[bytes]]:
    """What an envelope says, however its base64 is spelled; the header's spelling counts."""
    envelope = json.loads(body)
    spelled = [envelope[name].replace("+", "-").replace("/", "_") for name in MEMBERS[1:]]
    return envelope["protected"], [urlsafe_b64decode(text + "==") for text in spelled]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["protected", "iv", "ciphertext", "tag", "@type", "recipients"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_json_is_a_traceback(value: object) -> None:
    assert isinstance(_opened(json.dumps(value).encode()), UnpackRejection)


ENTRY = st.fixed_dictionaries(
    {
        "encrypted_key": JSON | st.binary(max_size=120).map(to_b64),
        "header": JSON
        | st.fixed_dictionaries(
            {"kid": st.sampled_from([base58(OURS.public), base58(OTHER.public), "x"]) | JSON},
            optional={
                "sender": JSON | st.binary(max_size=120).map(to_b64),
                "iv": JSON | st.binary(max_size=30).map(to_b64),
            },
        ),
    }
)
HEADER = st.fixed_dictionaries(
    {
        "alg": st.sampled_from(["Authcrypt", "Anoncrypt", "x"]),
        "enc": st.sampled_from(["xchacha20poly1305_ietf", "x"]),
        "recipients": st.lists(ENTRY, max_size=3) | JSON,
    }
)


@given(HEADER, st.binary(max_size=20), st.binary(max_size=40), st.binary(max_size=20))
@examples(300)
def test_no_header_is_a_traceback(header: object, iv: bytes, text: bytes, tag: bytes) -> None:
    parts = (json.dumps(header).encode(), iv, text, tag)
    body = json.dumps(dict(zip(MEMBERS, map(to_b64, parts), strict=True))).encode()
    assert isinstance(_opened(body), UnpackRejection)


@pytest.mark.parametrize("key", [*LOW_ORDER, b"\xff" * 32, b"short"])
def test_packing_to_what_is_no_key_is_refused(key: bytes) -> None:
    for sender in (WALLET, None):
        with pytest.raises(ValueError, match="nothing can be packed"):
            pack(b"hello", [OURS.public, key], sender)
