"""DIDs of DIDComm v2: those of others in all their spellings, and our own as others read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from base58 import b58encode
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from did_peer_2 import resolve as foreign_peer2
from did_peer_4 import resolve as foreign_peer4
from did_peer_4 import resolve_short as foreign_peer4_short
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import b64encode
from http_edge.didcomm.envelopes import peer_dids, public_keys
from http_edge.didcomm.envelopes.agent_documents import (
    FRAGMENT_CHARS_MAX,
    KEYS_MAX,
    AgentDocument,
    MessagingService,
    SeenDids,
    messaging_services,
    own_document,
    read_agent_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.key_agreement import PrivateKey
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json, read_type
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import (
    DID_CHARS_MAX,
    encode_peer2,
    encode_peer4,
    multihash,
)
from http_edge.didcomm.envelopes.public_keys import (
    MULTIBASE_CHARS_MAX,
    Curve,
    PublicKey,
    elliptic,
    read_jwk,
    read_method,
    read_multibase,
    write_jwk,
    write_multibase,
)
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.version import V2
from tests.kept_memory import bytes_kept, made_up
from tests.unit.didcomm.v2_mediator import OTHER, OURS, OWN

ED, X = PublicKey(Curve.ED25519, OURS.public), PublicKey(Curve.X25519, OURS.curve_public)
CURVES = [Curve.X25519, Curve.P256, Curve.P384, Curve.P521, Curve.SECP256K1]
ENDPOINT = {"uri": "https://m.example/didcomm", "accept": ["didcomm/v2"], "routingKeys": []}
SERVICE = MessagingService("https://m.example/didcomm", ["did:example:r"])


def key_of(curve: Curve) -> PublicKey:
    return PrivateKey.new(curve).public


@pytest.mark.parametrize("curve", CURVES)
def test_a_key_is_the_same_in_every_spelling(curve: Curve) -> None:
    key = key_of(curve)
    assert read_multibase(write_multibase(key)) == key
    assert read_jwk(write_jwk(key)) == key
    assert read_jwk({**write_jwk(key), "kid": "x", "use": "enc"}) == key
    for form in ({"publicKeyMultibase": write_multibase(key)}, {"publicKeyJwk": write_jwk(key)}):
        assert read_method({"id": "#1", "type": "any", **form}) == key


@pytest.mark.parametrize("curve", [Curve.P256, Curve.SECP256K1])
def test_a_key_of_an_agent_that_writes_whole_points_is_the_same_key(curve: Curve) -> None:
    """Affinidi's Rust library wrote them so in DIDs, where the specification compresses them."""
    key = key_of(curve)
    whole = elliptic(key).public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    text = write_multibase(PublicKey(curve, whole))
    assert read_multibase(text) == key
    document = resolve_document(f"did:key:{text}")
    assert document is not None
    assert document.authentication == {text: key}
    nowhere = whole[:-1] + bytes([whole[-1] ^ 1])
    assert read_multibase(write_multibase(PublicKey(curve, nowhere))) is None


@given(st.text(max_size=120) | st.from_regex(r"z[1-9A-HJ-NP-Za-km-z]{30,99}", fullmatch=True))
def test_any_text_is_a_key_or_none(text: str) -> None:
    key = read_multibase(text)
    assert key is None or read_multibase(write_multibase(key)) == key


@pytest.mark.parametrize(
    "jwk",
    [
        None,
        {},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "Ed25519", "x": b64encode(bytes(32)), "y": b64encode(bytes(32))},
        {"kty": "EC", "crv": "P-256", "x": b64encode(b"\1" * 32), "y": b64encode(b"\1" * 32)},
        {"kty": "OKP", "crv": "P-256", "x": b64encode(bytes(32))},
        {"kty": "OKP", "crv": "X25519", "x": b64encode(bytes(33))},
        {"kty": "OKP", "crv": "X25519", "x": "é" * 43},
        {"kty": "RSA", "n": "AA", "e": "AQAB"},
    ],
)
def test_what_is_no_key_of_a_known_curve_is_none(jwk: Any) -> None:
    assert read_jwk(jwk) is None


@pytest.mark.parametrize("curve", CURVES)
def test_a_did_key_has_its_key_for_key_agreement(curve: Curve) -> None:
    key = key_of(curve)
    text = write_multibase(key)
    found = resolve_document(f"did:key:{text}")
    assert found is not None
    assert found.agreement == {text: key}
    assert found.authentication == ({} if curve is Curve.X25519 else {text: key})
    assert found.signing_twin(key) is None


def test_an_ed25519_did_key_agrees_with_its_image() -> None:
    for prefix in ("did:key:", "did:peer:0"):
        found = resolve_document(f"{prefix}{write_multibase(ED)}")
        assert found is not None
        assert found.authentication == {write_multibase(ED): ED}
        assert found.agreement == {write_multibase(X): X}
        assert found.signing_twin(X) == OURS.public
    no_point = PublicKey(Curve.ED25519, bytes(32))
    assert resolve_document(f"did:key:{write_multibase(no_point)}") is None


def test_the_ids_of_a_did_peer_2_are_the_new_ones_and_the_old() -> None:
    found = resolve_document(f"did:peer:2.E{write_multibase(X)}.V{write_multibase(ED)}")
    assert found is not None
    assert found.agreement == {
        "key-1": X,
        write_multibase(X): X,
        write_multibase(X)[1:]: X,
    }
    assert found.authentication == {
        "key-2": ED,
        write_multibase(ED): ED,
        write_multibase(ED)[1:]: ED,
    }


def test_a_key_that_a_document_does_not_name_for_key_agreement_is_none_for_it() -> None:
    method = {"id": "#1", "type": "Multikey", "publicKeyMultibase": write_multibase(X)}
    did = encode_peer4({"verificationMethod": [method], "assertionMethod": ["#1"]})
    found = resolve_document(did)
    assert found is not None
    assert (found.agreement, found.authentication) == ({}, {})


def test_keys_of_another_did_are_not_those_of_a_document() -> None:
    did = "did:example:1"
    method = {"type": "Multikey", "publicKeyMultibase": write_multibase(X)}
    document: dict[str, object] = {
        "id": did,
        "verificationMethod": [{"id": "did:example:2#1", **method}],
        "keyAgreement": ["did:example:2#1", {"id": "did:example:3#1", **method}, "#1", 5, {}],
        "authentication": {"id": "#1"},
    }
    found = read_agent_document(did, document)
    assert (found.agreement, found.authentication) == ({}, {})


def test_so_many_keys_are_taken_from_a_document_and_no_more() -> None:
    keys = [write_multibase(key_of(Curve.X25519)) for _ in range(20)]
    found = resolve_document("did:peer:2" + "".join(f".E{key}" for key in keys))
    assert found is not None
    assert set(map(write_multibase, found.agreement.values())) == set(keys[:KEYS_MAX])


def test_little_of_a_large_document_is_kept() -> None:
    did, kept_max = "did:web:agent.example", 32 * 1024
    methods = [
        {"id": f"#{number}{padding}", "type": "Multikey", "publicKeyMultibase": write_multibase(X)}
        for padding in ("f" * 100, "f" * 2_000)
        for number in range(32)
    ]
    service = {
        "type": "DIDCommMessaging",
        "serviceEndpoint": {
            "uri": "https://a.example",
            "routingKeys": ["did:x:" + "r" * 2_600] * 3,
        },
    }
    document: dict[str, object] = {"keyAgreement": methods, "service": [service] * 16}
    assert len(json.dumps(document)) > 4 * kept_max
    found = read_agent_document(did, document)
    assert (len(found.agreement), len(found.services)) == (32, 2)
    texts = [*found.agreement, *(text for each in found.services for text in each.routing_keys)]
    assert sum(map(len, texts)) <= kept_max


def test_a_did_peer_4_with_another_hash_says_nothing() -> None:
    did = encode_peer4({"keyAgreement": []})
    short, document = did.rsplit(":", 1)
    assert own_document(did) is not None
    for wrong in (f"{short[:-1]}x:{document}", f"{did}1", f"{short}:z", short, f"{short}:"):
        assert own_document(wrong) is None


@given(st.binary(max_size=1200), st.integers(0, 5))
def test_base58_is_read_as_the_library_reads_it(content: bytes, zeros: int) -> None:
    content = bytes(zeros) + content
    assert peer_dids._from_base58(b58encode(content).decode()) == content


@pytest.mark.parametrize(
    "service",
    [
        {"serviceEndpoint": {**ENDPOINT, "routingKeys": ["did:example:r"]}},
        {"serviceEndpoint": [{**ENDPOINT, "routingKeys": ["did:example:r"]}]},
        {
            "serviceEndpoint": ENDPOINT["uri"],
            "accept": ["didcomm/v2"],
            "routingKeys": ["did:example:r"],
        },
        {
            "serviceEndpoint": {"s": ENDPOINT["uri"]},
            "accept": ["didcomm/v2"],
            "routingKeys": ["did:example:r"],
        },
        {
            "type": ["LinkedDomains", "DIDCommMessaging"],
            "serviceEndpoint": {**ENDPOINT, "routingKeys": ["did:example:r"]},
        },
    ],
)
def test_a_service_is_read_in_every_spelling(service: dict[str, Any]) -> None:
    whole = {"id": "#s", "type": "DIDCommMessaging", **service}
    assert messaging_services({"service": [whole]}) == [SERVICE]


def test_services_of_a_did_peer_2_are_read_in_every_encoding() -> None:
    short = {"t": "dm", "s": {"uri": ENDPOINT["uri"], "a": ["didcomm/v2"], "r": ["did:example:r"]}}
    old = {"t": "dm", "s": ENDPOINT["uri"], "a": ["didcomm/v2"], "r": ["did:example:r"]}
    whole = {
        "type": "DIDCommMessaging",
        "serviceEndpoint": {**ENDPOINT, "routingKeys": ["did:example:r"]},
    }
    for value, padding in ((short, ""), (old, ""), (whole, "="), ([short], ""), (whole, "")):
        text = b64encode(json.dumps(value).encode())
        text += "=" * (-len(text) % 4) if padding else ""
        document = own_document(f"did:peer:2.V{write_multibase(ED)}.S{text}")
        assert document is not None
        assert messaging_services(document) == [SERVICE]


def test_services_that_cannot_be_used_are_missing() -> None:
    kind = {"id": "#s", "type": "DIDCommMessaging"}
    listed = [
        None,
        {"type": "did-communication", "serviceEndpoint": "https://m.example"},
        {**kind, "serviceEndpoint": {**ENDPOINT, "routingKeys": "x"}},
        {**kind, "serviceEndpoint": {**ENDPOINT, "routingKeys": ["x"] * 4}},
        {**kind, "serviceEndpoint": {**ENDPOINT, "routingKeys": [5]}},
        {**kind, "serviceEndpoint": {**ENDPOINT, "routingKeys": ["x" * (DID_CHARS_MAX + 1)]}},
    ]
    assert messaging_services({"service": listed}) == []
    assert messaging_services({"service": [kind]}) == [MessagingService("", [])]
    assert messaging_services({"service": {}}) == []


def test_an_agent_is_reached_where_its_document_says_or_its_mediators() -> None:
    def peer(*endpoints: object) -> str:
        listed = [{"id": "#s", "type": "DIDCommMessaging", "serviceEndpoint": e} for e in endpoints]
        return encode_peer4({"service": listed})

    seen, url = SeenDids(), {"uri": "https://x.example/in", "routingKeys": ["did:example:r"]}
    found = MessagingService("https://x.example/in", ["did:example:r"])
    assert seen.service_of(peer(url)) == found
    assert seen.service_of(peer({"uri": "didcomm:transport/queue"}, url)) == found
    behind = seen.service_of(peer({"uri": OWN.peer4, "routingKeys": ["did:example:r"]}))
    assert behind is not None
    assert behind.uri == "https://m.example/didcomm"
    assert behind.routing_keys == [OWN.peer4, "did:example:r"]
    two_steps = peer({"uri": peer({"uri": OWN.peer4})})
    for did in (peer(), peer({"uri": ""}), two_steps, peer({"uri": "did:web:m.example"}), "x"):
        assert seen.service_of(did) is None
    for uri in ("http://[bad/x", "http://a]b/", "http://:0/", "http://example.com:99999/"):
        assert seen.service_of(peer({"uri": uri})) is None
        assert seen.service_of(peer({"uri": peer({"uri": uri})})) is None


# ---- our own, as others read them


def foreign_keys(document: dict[str, Any]) -> dict[str, PublicKey]:
    """The keys for key agreement in a document that another library resolved."""
    methods = {method["id"]: method for method in document["verificationMethod"]}
    named = [methods[entry] for entry in document["keyAgreement"]]
    keys = {method["id"].partition("#")[2]: read_method(method) for method in named}
    return {fragment: key for fragment, key in keys.items() if key is not None}


def test_other_libraries_read_our_did_peer_2_as_we_do() -> None:
    document = foreign_peer2(OWN.peer2)
    assert foreign_keys(document) == {"key-2": X}
    assert messaging_services(document) == messaging_services(own_document(OWN.peer2) or {})


def test_other_libraries_read_our_did_peer_4_as_we_do() -> None:
    document = foreign_peer4(OWN.peer4)
    assert document["id"] == OWN.peer4
    assert foreign_keys(document) == {"key-2": X}
    assert messaging_services(document) == messaging_services(own_document(OWN.peer4) or {})
    assert foreign_peer4_short(OWN.peer4)["id"] == OWN.peer4_short


def test_the_mediator_is_reached_by_https_first_and_by_one_endpoint_in_each_service() -> None:
    merged = OWN.merged({"id": OWN.web, "service": [{"id": "#other"}], "keyAgreement": []})
    for document in (own_document(OWN.peer2), own_document(OWN.peer4), merged):
        assert document is not None
        services = document["service"]
        assert isinstance(services, list)
        own = [each for each in services if each.get("type") == "DIDCommMessaging"]
        uris = [each["serviceEndpoint"]["uri"] for each in own]
        assert uris == ["https://m.example/didcomm", "wss://m.example/didcomm"]
        assert all(each["serviceEndpoint"]["accept"] == ["didcomm/v2"] for each in own)


@given(st.binary(min_size=32, max_size=32))
def test_the_agreement_key_of_any_pair_is_the_image_of_its_signing_key(seed: bytes) -> None:
    pair = KeyPair.from_seed(seed)
    found = resolve_document(f"did:key:{write_multibase(PublicKey(Curve.ED25519, pair.public))}")
    assert found is not None
    assert set(found.agreement.values()) == {PublicKey(Curve.X25519, pair.curve_public)}
    assert PrivateKey.of_x25519(pair.curve_private).public.raw == pair.curve_public


def test_a_document_that_is_merged_keeps_what_it_had_in_front() -> None:
    there: dict[str, object] = {
        "id": OWN.web,
        "keyAgreement": [
            {
                "id": f"{OWN.web}#prekey",
                "type": "X25519KeyAgreementKey2020",
                "publicKeyMultibase": write_multibase(PublicKey(Curve.X25519, OTHER.curve_public)),
            }
        ],
        "authentication": [f"{OWN.web}#signing"],
    }
    found = read_agent_document(OWN.web, OWN.merged(there))
    assert list(found.agreement) == ["prekey", "key-2"]
    assert found.agreement["key-2"] == X
    assert found.authentication == {"key-1": ED}


def test_a_hash_that_contains_no_document_is_not_learned() -> None:
    seen = SeenDids()
    seen.learn(OWN.peer4_short)
    assert seen.resolve(OWN.peer4_short) is None
    seen.learn(OWN.peer4)
    assert seen.resolve(OWN.peer4_short) == resolve_document(OWN.peer4)


def test_the_id_of_a_key_is_so_long_and_no_longer() -> None:
    for chars, is_read in ((FRAGMENT_CHARS_MAX, True), (FRAGMENT_CHARS_MAX + 1, False)):
        method: Json = {"id": "#".ljust(chars + 1, "k"), "publicKeyMultibase": write_multibase(X)}
        found = read_agent_document("did:a:b", {"keyAgreement": [method]})
        assert bool(found.agreement) is is_read


def test_a_did_that_is_too_long_has_no_document() -> None:
    for chars, is_read in ((500, True), (DID_CHARS_MAX, False)):
        content: Json = {"x": "y" * chars}
        for did in (encode_peer4(content), encode_peer2([OTHER.public], [content])):
            assert (resolve_document(did) is not None) is is_read


@pytest.mark.parametrize("content", [b"\x80\x04{]", b"\x80\x04[]", b"\x80\x05{}", b"{}", b""])
def test_a_did_whose_content_is_no_json_object_has_no_document(content: bytes) -> None:
    encoded = "z" + b58encode(content).decode("ascii")
    assert resolve_document(f"did:peer:4{multihash(encoded)}:{encoded}") is None


def test_an_agent_has_no_service_whose_text_in_its_did_is_no_json() -> None:
    found = resolve_document(f"did:peer:2.V{write_multibase(ED)}.S{b64encode(b'{]')}")
    assert found is not None
    assert (found.services, found.authentication["key-1"]) == ([], ED)


def test_a_bare_key_is_on_the_curve_that_its_type_names() -> None:
    bare = {"publicKeyBase58": base58(ED.raw)}
    assert read_method({**bare, "type": "X25519KeyAgreementKey2019"}) == PublicKey(
        Curve.X25519, ED.raw
    )
    assert read_method({**bare, "type": "Ed25519VerificationKey2018"}) == ED
    assert read_method({**bare, "type": "Bls12381G2Key2020"}) is None
    empty = {"publicKeyJwk": None, "publicKeyMultibase": None}
    assert read_method({**bare, **empty, "type": "Ed25519VerificationKey2018"}) == ED


def test_a_text_that_is_longer_than_any_key_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public_keys, "b58decode", None)
    assert read_multibase("z" + "1" * MULTIBASE_CHARS_MAX) is None
    bare = "1" * (MULTIBASE_CHARS_MAX + 1)
    assert read_method({"type": "X25519KeyAgreementKey2019", "publicKeyBase58": bare}) is None


@pytest.mark.parametrize("digit", ["0", "O", "I", "l"])
def test_a_text_with_what_is_no_digit_of_base58_is_no_key(digit: str) -> None:
    text = write_multibase(X)
    assert read_multibase(text[:-1] + digit) is None


@pytest.mark.parametrize("named", [[], {}, None, 5, "P-192"])
def test_a_jwk_whose_curve_is_none_of_these_is_no_key(named: object) -> None:
    for key in (X, key_of(Curve.P256)):
        assert read_jwk({**write_jwk(key), "crv": named}) is None


@pytest.mark.parametrize("size", [32, 33, 48])
def test_a_key_of_no_curve_that_agents_use_is_none(size: int) -> None:
    bls12381_g2 = b"\xeb\x01" + b"\2".ljust(size, b"x")
    assert read_multibase("z" + b58encode(bls12381_g2).decode("ascii")) is None


def test_nothing_is_agreed_on_with_a_signing_key() -> None:
    method: Json = {"id": "#s", "publicKeyMultibase": write_multibase(ED)}
    assert read_agent_document("did:a:b", {"keyAgreement": [method]}).agreement == {}


@pytest.mark.parametrize("size", [31, 33])
def test_a_key_of_another_size_is_none(size: int) -> None:
    for curve in (Curve.ED25519, Curve.X25519):
        assert read_multibase(write_multibase(PublicKey(curve, bytes(size)))) is None
    bare = b58encode(b"x" * size).decode("ascii")
    assert read_method({"type": "X25519KeyAgreementKey2019", "publicKeyBase58": bare}) is None


@made_up
def test_of_long_dids_key_ids_and_types_nothing_is_remembered(made_up: str) -> None:
    assert bytes_kept(read_type, made_up * 5) < 32
    assert resolve_document(f"did:peer:2.{made_up}") is None
    assert bytes_kept(lambda text: resolve_document(f"did:peer:2.{text}"), made_up) < 32
    assert bytes_kept(lambda text: envelope._hash_of([text]), made_up) < 32
    version = V2(OWN)
    assert bytes_kept(lambda text: version._sender(f"did:peer:2.{text}#key"), made_up) < 32


def test_a_did_that_names_the_did_of_its_mediator_is_remembered() -> None:
    endpoint = {**ENDPOINT, "uri": OWN.peer2}
    service: Json = {"id": "#s", "type": "DIDCommMessaging", "serviceEndpoint": endpoint}
    dids = OwnDids(OTHER, [service])
    assert resolve_document(dids.peer2) is resolve_document(dids.peer2) is not None
    own, version = dids.by_kid.get(dids.peer2), V2(OWN)
    assert own is not None
    assert version._sender(own.agreement_kid) is version._sender(own.agreement_kid) is not None


def test_of_the_keys_of_a_document_the_first_on_x25519_is_encrypted_to_else_the_first() -> None:
    older, newer = key_of(Curve.P256), key_of(Curve.P384)
    for keys, preferred in (
        ({"a": older, "b": X, "c": key_of(Curve.X25519)}, "b"),
        ({"a": newer, "b": older}, "a"),
        ({}, None),
    ):
        document = AgentDocument(OWN.peer2, OWN.peer2, authentication={}, agreement=keys)
        assert document.preferred_agreement() == preferred


def test_the_names_of_the_mediator_have_its_signing_key_in_base58() -> None:
    assert base58(OURS.public) in OWN.names
