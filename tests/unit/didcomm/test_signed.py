from __future__ import annotations

import json
from base64 import b64encode as standard_b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.signatures import sign
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference, read_key
from http_edge.didcomm.envelopes.messages import OLD_PREFIX
from http_edge.didcomm.envelopes.signed import (
    TEXT_TYPE,
    SignedContent,
    read_attachment,
    sign_attachment,
    sign_member,
    verify_member,
)
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from tests.examples import examples
from tests.unit.wire.edwards25519 import LOW_ORDER
from tests.unit.wire.vectors import rows

KEY = KeyPair.from_seed(b"k" * 32)
OTHER = KeyPair.from_seed(b"o" * 32)
X = b64encode(KEY.public)
JWK = {"kty": "OKP", "crv": "Ed25519", "x": X}
RECORDED: dict[str, Any] = {row["name"]: row["value"] for row in rows("acapy_didcomm.json")}
SIGNERS = [read_key(text) for text in RECORDED["signers"]]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def _attachment(
    protected: object, *, header: object = None, content: bytes = b"{}", key: KeyPair = KEY
) -> dict[str, Any]:
    """An attachment with a JWS over exactly this protected header."""
    text = b64encode(json.dumps(protected).encode())
    signed = f"{text}.{b64encode(content)}".encode()
    jws: dict[str, object] = {"protected": text, "signature": b64encode(sign(key.seed, signed))}
    jws |= {} if header is None else {"header": header}
    return {"data": {"base64": b64encode(content), "jws": jws}}


def _with(attachment: dict[str, Any], **data: object) -> dict[str, Any]:
    return attachment | {"data": attachment["data"] | data}


def _with_jws(attachment: dict[str, Any], **members: object) -> dict[str, Any]:
    return _with(attachment, jws=attachment["data"]["jws"] | members)


@given(st.binary(max_size=300))
def test_an_attachment_comes_back_with_its_signer(content: bytes) -> None:
    signed = write_attachment(sign_attachment(content, KEY, media_type=TEXT_TYPE))
    assert read_attachment(signed) == SignedContent(content, (KEY.public,))


def test_a_document_means_the_same_and_needs_no_padding_in_any_base64() -> None:
    for length in range(6):
        document = {"id": "did:x", "z": "z" * length}
        signed: Any = write_attachment(sign_attachment(orjson.dumps(document), KEY))
        assert signed["mime-type"] == "application/json"
        assert not set(signed["data"]["base64"]) & set("=+/-_")
        read = read_attachment(signed)
        assert read is not None
        assert (json.loads(read.content), read.signers) == (document, (KEY.public,))


def test_an_attachment_is_signed_as_agents_check_it() -> None:
    signed: Any = write_attachment(sign_attachment(b"did:peer:4zQm", KEY, media_type=TEXT_TYPE))
    did = did_key(KEY.public)
    assert signed["mime-type"] == "text/string"
    assert signed["data"]["base64"] == standard_b64encode(b"did:peer:4zQm").decode()
    jws = signed["data"]["jws"]
    assert jws["header"] == {"kid": did}
    assert json.loads(b64decode(jws["protected"])) == {"alg": "EdDSA", "jwk": JWK | {"kid": did}}
    message = f"{jws['protected']}.{b64encode(b'did:peer:4zQm')}".encode()
    assert b64decode(jws["signature"]) == sign(KEY.seed, message)
    assert "=" not in json.dumps(jws)


@pytest.mark.parametrize(
    ("name", "content", "signers"),
    [
        ("did_doc~attach", b'{"a": "b?>~b?>~b?>~", "x": 1}', SIGNERS[:1]),
        ("did_rotate~attach", b"did:peer:4zQm", SIGNERS[:1]),
        ("two signatures", b'{"two": 2}', SIGNERS),
    ],
)
def test_what_an_agent_signed_stays_readable(
    name: str, content: bytes, signers: list[bytes]
) -> None:
    assert read_attachment(RECORDED[name]) == SignedContent(content, tuple(signers))


@pytest.mark.parametrize(
    ("protected", "header"),
    [
        ({"alg": "EdDSA", "jwk": JWK}, None),
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": did_key(KEY.public)}),
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": did_key_reference(KEY.public)}),
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": "did:peer:2.Vz6Mk#key-1"}),
        ({"alg": "EdDSA", "jwk": JWK | {"kid": "#key-1"}, "kid": "#key-1"}, {"other": 1}),
        ({"alg": "EdDSA", "jwk": JWK, "kid": did_key(KEY.public)}, None),
        ({"alg": "EdDSA", "kid": did_key(KEY.public)}, None),
        ({"alg": "EdDSA"}, {"kid": did_key(KEY.public)}),
        ({"alg": "EdDSA", "jwk": JWK | {"x": X + "=", "alg": "EdDSA", "use": "sig"}}, None),
    ],
)
def test_the_signer_is_found_wherever_agents_name_it(protected: object, header: object) -> None:
    assert read_attachment(_attachment(protected, header=header)) == SignedContent(
        b"{}", (KEY.public,)
    )


@pytest.mark.parametrize(
    ("protected", "header"),
    [
        ({"alg": "EdDSA"}, None),
        ({"alg": "EdDSA"}, {"kid": base58(KEY.public)}),
        ({"alg": "none", "jwk": JWK}, None),
        ({"alg": "HS256", "jwk": JWK}, None),
        ({"alg": None, "jwk": JWK}, None),
        ({"jwk": JWK}, None),
        ([], None),
        ("text", None),
        ({"alg": "EdDSA", "jwk": JWK | {"kty": "EC"}}, None),
        ({"alg": "EdDSA", "jwk": JWK | {"crv": "X25519"}}, None),
        ({"alg": "EdDSA", "jwk": JWK | {"x": "!"}}, None),
        ({"alg": "EdDSA", "jwk": JWK | {"x": b64encode(KEY.public[:31])}}, None),
        ({"alg": "EdDSA", "jwk": JWK | {"x": b64encode(OTHER.public)}}, None),
        ({"alg": "EdDSA", "jwk": "text"}, None),
        # A signer who names two keys has not said who it is.
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": did_key(OTHER.public)}),
        ({"alg": "EdDSA", "jwk": JWK, "kid": did_key(OTHER.public)}, None),
        ({"alg": "EdDSA", "jwk": JWK | {"kid": did_key(OTHER.public)}}, None),
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": "did:key:zzz"}),
        ({"alg": "EdDSA", "kid": did_key(OTHER.public)}, None),
        # Nothing critical is understood, so nothing critical is valid.
        ({"alg": "EdDSA", "jwk": JWK, "crit": ["b64"], "b64": False}, None),
        ({"alg": "EdDSA", "jwk": JWK, "crit": []}, None),
        ({"alg": "EdDSA", "jwk": JWK}, {"kid": 7}),
        ({"alg": "EdDSA", "jwk": JWK}, "text"),
    ],
)
def test_a_header_that_proves_nothing_makes_no_signature(protected: object, header: object) -> None:
    assert read_attachment(_attachment(protected, header=header)) is None


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_neither_of_two_named_keys_has_signed(key: KeyPair) -> None:
    header = {"kid": did_key(OTHER.public)}
    attachment = _attachment({"alg": "EdDSA", "jwk": JWK}, header=header, key=key)
    assert read_attachment(attachment) is None


def test_a_signature_of_another_content_or_key_is_none() -> None:
    good = _attachment({"alg": "EdDSA", "jwk": JWK})
    assert read_attachment(good) is not None
    assert read_attachment(_with(good, base64=b64encode(b"{} "))) is None
    assert read_attachment(_attachment({"alg": "EdDSA", "jwk": JWK}, key=OTHER)) is None
    assert read_attachment(_with_jws(good, signature="")) is None
    assert read_attachment(_with_jws(good, signature=b64encode(bytes(64)))) is None
    assert read_attachment(_with_jws(good, signature=None)) is None
    respelled = b64encode(orjson.dumps({"jwk": JWK, "alg": "EdDSA"}))
    assert read_attachment(_with_jws(good, protected=respelled)) is None


@pytest.mark.parametrize("key", LOW_ORDER)
def test_keys_of_small_order_sign_nothing(key: bytes) -> None:
    attachment = _attachment({"alg": "EdDSA", "jwk": JWK | {"x": b64encode(key)}})
    for point in LOW_ORDER:
        signature = b64encode(point + bytes(32))
        assert read_attachment(_with_jws(attachment, signature=signature)) is None


def test_of_several_signatures_each_must_be_right() -> None:
    protected = {"alg": "EdDSA", "jwk": JWK}
    good = _attachment(protected)["data"]["jws"]
    other = _attachment({"alg": "EdDSA", "jwk": JWK | {"x": b64encode(OTHER.public)}}, key=OTHER)[
        "data"
    ]["jws"]
    bad = _attachment(protected, key=OTHER)["data"]["jws"]

    def read(*signatures: object) -> SignedContent | None:
        return read_attachment({"data": {"base64": "e30", "jws": {"signatures": signatures}}})

    assert read([good]) is None
    assert read(good) == SignedContent(b"{}", (KEY.public,))
    assert read(other, good) == SignedContent(b"{}", (OTHER.public, KEY.public))
    assert read(good, bad) is None
    assert read() is None
    assert read(*[good] * 16) is not None
    assert read(*[good] * 17) is None


def test_an_attachment_without_signature_has_no_signer() -> None:
    assert read_attachment({"data": {"base64": "e30="}}) == SignedContent(b"{}", ())
    read = read_attachment({"data": {"json": {"id": "did:x"}}})
    assert read == SignedContent(b'{"id":"did:x"}', ())


@pytest.mark.parametrize(
    "attachment",
    [
        None,
        7,
        "text",
        [],
        {},
        {"data": None},
        {"data": []},
        {"data": {}},
        {"data": {"base64": None}},
        {"data": {"base64": 7}},
        {"data": {"base64": "!"}},
        {"data": {"json": "text"}},
        {"data": {"links": ["https://example.org"], "sha256": "0"}},
        {"data": {"base64": "e30", "jws": "a..b"}},
        {"data": {"base64": "e30", "jws": {}}},
        {"data": {"base64": "e30", "jws": {"signatures": []}}},
        {"data": {"base64": "e30", "jws": {"signatures": None}}},
        {"data": {"base64": "e30", "jws": {"signatures": [7]}}},
        {"data": {"json": {}, "jws": {}}},
    ],
)
def test_what_is_no_attachment_is_none(attachment: object) -> None:
    assert read_attachment(attachment) is None


@given(ANY)
def test_no_attachment_is_a_traceback(value: object) -> None:
    for attachment in (
        value,
        {"data": value},
        {"data": {"base64": value, "jws": value}},
        {"data": {"base64": "e30", "jws": value}} if value is not None else value,
        {"data": {"base64": "e30", "jws": {"signatures": value}}},
        _attachment(value, header=value),
    ):
        assert read_attachment(attachment) is None


def test_a_member_comes_back_with_its_signer() -> None:
    value: dict[str, object] = {"DID": "WgWxqztrNooG92RXvxSTWv", "DIDDoc": {"é": [1, None]}}
    for now_s in (0, 1_700_000_000, 2**63):
        signed = sign_member(value, KEY, now_s)
        assert verify_member(signed) == (value, KEY.public)
        assert verify_member(json.loads(json.dumps(signed))) == (value, KEY.public)


def test_a_member_is_signed_as_agents_check_it() -> None:
    signed: Any = sign_member({"a": 1}, KEY, 1_700_000_000)
    assert signed["@type"] == "https://didcomm.org/signature/1.0/ed25519Sha512_single"
    assert signed["signer"] == base58(KEY.public)
    content = b64decode(signed["sig_data"])
    assert content == (1_700_000_000).to_bytes(8, "big") + b'{"a":1}'
    assert b64decode(signed["signature"]) == sign(KEY.seed, content)
    assert "=" not in signed["sig_data"] + signed["signature"]
    assert len(signed["sig_data"]) % 4 == 0


def test_a_member_that_an_agent_signed_stays_readable() -> None:
    expected = ({"DID": "x", "n": [1, 2]}, SIGNERS[0])
    assert verify_member(RECORDED["connection~sig"]) == expected


def test_the_old_prefix_of_a_signed_member_is_read() -> None:
    signed = sign_member({"a": 1}, KEY, 0)
    signed["@type"] = f"{OLD_PREFIX}signature/1.0/ed25519Sha512_single"
    assert verify_member(signed) == ({"a": 1}, KEY.public)


def _member(content: bytes) -> dict[str, object]:
    signature = b64encode(sign(KEY.seed, content))
    return sign_member({}, KEY, 0) | {"sig_data": b64encode(content), "signature": signature}


@pytest.mark.parametrize(
    "changes",
    [
        {"@type": "https://didcomm.org/signature/1.0/other"},
        {"@type": "https://didcomm.org/signature/2.0/ed25519Sha512_single"},
        {"@type": "https://example.org/signature/1.0/ed25519Sha512_single"},
        {"@type": None},
        {"signer": base58(OTHER.public)},
        {"signer": "x"},
        {"signer": None},
        {"sig_data": b64encode(bytes(8) + b'{"a":2}')},
        {"sig_data": "!"},
        {"sig_data": 7},
        {"signature": ""},
        {"signature": b64encode(bytes(64))},
        {"signature": "é"},
        _member(b""),
        _member(bytes(7)),
        _member(bytes(8)),
        _member(bytes(8) + b"[]"),
        _member(bytes(8) + b"null"),
        _member(bytes(8) + b'{"a":1,"a":2}'),
        _member(bytes(8) + b"\xff"),
    ],
)
def test_a_member_that_is_not_signed_so_is_none(changes: dict[str, object]) -> None:
    assert verify_member(sign_member({"a": 1}, KEY, 0) | changes) is None


@given(ANY)
@examples(50)
def test_no_member_is_a_traceback(value: object) -> None:
    assert verify_member(value) is None
    for name in ("@type", "sig_data", "signature", "signer"):
        assert verify_member(sign_member({"a": 1}, KEY, 0) | {name: value}) is None
