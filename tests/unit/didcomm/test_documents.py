from __future__ import annotations

import copy
from base64 import urlsafe_b64encode
from typing import Any

import orjson
import pytest
from base58 import b58encode
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, b64encode, multibase_encode
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX, encode_peer4, peer4_short
from http_edge.didcomm.envelopes.peer_documents import (
    ENDPOINT_CHARS_MAX,
    PeerDocument,
    read_document,
    resolve,
)
from tests.unit.didcomm.inviter import is_usable
from tests.unit.wire.edwards25519 import LOW_ORDER

PAIR = KeyPair.from_seed(b"p" * 32)
KEY = PAIR.public
ROUTING = KeyPair.from_seed(b"r" * 32).public
AGREEMENT = KeyPair.from_seed(b"x" * 32).curve_public
MULTIKEY = multibase_encode(ED25519_PREFIX, KEY)
SOV = "JNKL9kJxQi5pNCfA8QBXdJ"
URL = "http://agent.example:8030"

# Made by the libraries did-peer-4 0.1.4 and did-peer-2 0.1.2, as ACA-Py calls them.
ACA_PY_PEER_4 = (
    "did:peer:4zQmaEa8d6CQQwjMj55yQnULGg7TBz3daSdPGt8CtP5zskg9:zimGwYozwxgwmcmMpjta4LQbK3tHK1Cq"
    "vieHCaPtXhpvZVZYt8MhXFCMmFSRU1EKKZx7DHEcW5EoNc4L4rKnXvwYYDigQhauV5FgDS2LRwwDx243L1aKXpnzKr"
    "eKhE4Gp76X3Woz3jJFuWRiXr3WXMpQGfP63t6UzVrwZMfmbzJa2jz2HvdZtQKE5mvx6igwtCZtyw6E1BCRpxN4DuwG"
    "BE26GZCW7HMDAuMU24P7LwVfp55JzTJx6fR5jotAiuMpGbikYDwJTLD4fqTpJNeEuSRPmUfR1HEaVeAskXHokSXqLk"
    "BVoUfMv82rmRjYBAjzmVxsrK6vUk1wpuD9nQhqwgNfRBJLqyD1XaVCPKsWihXhSZVY78pAAN8aQ3rmbodSSRuWdC5L"
    "xQHpUJrubydYvSGXWQ6zk6YWA2TfcFTuqSVAgeMn13MhstjfndSbRB44uHQTTYs53rZg7ksazccDBKZfznxWWirf9R"
    "XWx7eMB1YaCyxhzxfCwSmdEegFfiwu2qfZCWnG2Rp8oBUEaVpvovWveNVgLuSAiEnkLDxu2En76Q8mFqMyCwF5rfif"
    "cVAsrW7CHCmiZEq3P27CrJ24QA4to7szCZaHd38YL2ui2qfdNNR3tr3i9qQEGBHgcrxhZo4VoRQP8tSWLsaikR7oQ3"
    "omjYoimR3FGagDjVCwiTgr8ZYGCn8TvJ1m2GcesajbuRN33P8MWGc9ZL3rgSbz5vG6Q5y4nrwM6"
)
ACA_PY_PEER_2 = (
    "did:peer:2.Vz6Mkg9LoYg8rg7tcGRCPJ2jpQEZ4R3p394L2CjadyMjj58qv.Ez6LSn8NYHGpfmLS3i94LeSrJwu74"
    "fuv1X1nDBZ8H2F1293RX.SeyJpZCI6IiNkaWRjb21tLTAiLCJ0IjoiZGlkLWNvbW11bmljYXRpb24iLCJyZWNpcGll"
    "bnRLZXlzIjpbIiNrZXktMSJdLCJyIjpbImRpZDprZXk6ejZNa2tjMjRhV0g2THJqNGJxakczcTQxdjNTbWN3OURkaE"
    "16NE5nZHJKN2l3NHNYI3o2TWtrYzI0YVdINkxyajRicWpHM3E0MXYzU21jdzlEZGhNejROZ2RySjdpdzRzWCJdLCJz"
    "IjoiaHR0cDovL2FnZW50LmV4YW1wbGU6ODAzMCIsInByaW9yaXR5IjowfQ"
)

WITH_ROUTING = ((KEY,), (ROUTING,), URL)


def found_in(found: PeerDocument | None) -> tuple[object, ...] | None:
    return None if found is None else (found.recipient_keys, found.routing_keys, found.endpoint)


def legacy(**service: Any) -> dict[str, Any]:
    """A DIDDoc of connections 1.0, as ACA-Py writes it; the members of its service are given."""
    did = f"did:sov:{SOV}"
    return {
        "@context": "https://w3id.org/did/v1",
        "id": did,
        "publicKey": [
            {
                "id": f"{did}#1",
                "type": "Ed25519VerificationKey2018",
                "controller": did,
                "publicKeyBase58": base58(KEY),
            }
        ],
        "authentication": [{"type": "Ed25519SignatureAuthentication2018", "publicKey": f"{did}#1"}],
        "service": [
            {
                "id": f"{did};indy",
                "type": "IndyAgent",
                "priority": 0,
                "recipientKeys": [base58(KEY)],
                "routingKeys": [base58(ROUTING)],
                "serviceEndpoint": URL,
                **service,
            }
        ],
    }


def read(document: object) -> tuple[object, ...] | None:
    return found_in(read_document(SOV, document))


def test_a_document_of_connections_1_is_read() -> None:
    found = read_document(SOV, legacy())
    assert found is not None
    assert found.did == SOV
    assert found_in(found) == WITH_ROUTING


def test_a_document_of_a_wallet_without_endpoint_is_read() -> None:
    """As Credo sends it with DID exchange: did:peer:1, embedded keys, the queue for endpoint."""
    did = "did:peer:1zQmPyx3ZiFzSaKQ6xdGDPcEkyrkdTAf9y4xnyZaXYB1wEQY"
    key_id, agreement_id = (
        "#9b7e9d3e-0c44-4a22-9d5d-f3f3a0c7dc62",
        "#2e5f1b3c-71f2-4c6e-8c0d-0f3a4ce1d6a1",
    )
    document = {
        "@context": ["https://w3id.org/did/v1"],
        "id": did,
        "service": [
            {
                "id": "#inline-0",
                "serviceEndpoint": "didcomm:transport/queue",
                "type": "did-communication",
                "priority": 0,
                "recipientKeys": [key_id],
                "routingKeys": [],
            }
        ],
        "authentication": [
            {
                "id": key_id,
                "type": "Ed25519VerificationKey2018",
                "controller": "#id",
                "publicKeyBase58": base58(KEY),
            }
        ],
        "keyAgreement": [
            {
                "id": agreement_id,
                "type": "X25519KeyAgreementKey2019",
                "controller": "#id",
                "publicKeyBase58": base58(AGREEMENT),
            }
        ],
    }
    assert found_in(read_document(did, document)) == ((KEY,), (), "")


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        None,
        "didcomm:transport/queue",
        "did:web:mediator.example",
        "ftp://agent.example",
        "http://",
        "http://[::1",
        "http://agent.example:99999999/",
        "http://agent.example/a b",
        "http://agent.example/\n",
        "http://agent.example/" + "a" * ENDPOINT_CHARS_MAX,
        7,
        [],
        {},
        {"uri": "didcomm:transport/queue"},
        [["http://agent.example"]],
    ],
    ids=str,
)
def test_whatever_is_no_url_counts_as_no_endpoint(endpoint: object) -> None:
    assert read(legacy(routingKeys=[], serviceEndpoint=endpoint)) == ((KEY,), (), "")


def test_a_missing_endpoint_and_a_missing_service_count_as_none() -> None:
    document = legacy()
    del document["service"][0]["serviceEndpoint"]
    assert read(document) == ((KEY,), (ROUTING,), "")
    for services in ([], None, "none", [{"type": "LinkedDomains", "serviceEndpoint": URL}]):
        assert read(document | {"service": services}) == ((KEY,), (), "")
    del document["service"]
    assert read(document) == ((KEY,), (), "")


@pytest.mark.parametrize(
    "endpoint",
    [
        URL,
        {"uri": URL},
        [URL],
        ["didcomm:transport/queue", {"uri": URL, "accept": ["didcomm/aip1"]}],
    ],
    ids=str,
)
def test_an_endpoint_is_read_as_text_object_and_list(endpoint: object) -> None:
    assert read(legacy(serviceEndpoint=endpoint)) == WITH_ROUTING


def test_routing_keys_that_stand_in_the_endpoint_are_not_lost() -> None:
    endpoint = {"uri": URL, "routingKeys": [did_key_reference(ROUTING)]}
    assert read(legacy(routingKeys=[], serviceEndpoint=endpoint)) == WITH_ROUTING


@pytest.mark.parametrize("url", ["https://a.example", "WSS://a.example/ws", "ws://[::1]:80/"])
def test_an_endpoint_is_any_url_of_http_or_websocket(url: str) -> None:
    assert read(legacy(serviceEndpoint=url)) == ((KEY,), (ROUTING,), url)


@pytest.mark.parametrize(
    "spelling",
    [
        base58(KEY),
        did_key(KEY),
        did_key_reference(KEY),
        f"did:sov:{SOV}#1",
        f"{SOV}#1",
        "#1",
    ],
)
def test_a_recipient_key_in_any_spelling_is_one_key(spelling: str) -> None:
    assert read(legacy(recipientKeys=[spelling])) == WITH_ROUTING


@pytest.mark.parametrize(
    ("kind", "material"),
    [
        ("Ed25519VerificationKey2018", {"publicKeyBase58": base58(KEY)}),
        ("Ed25519VerificationKey2020", {"publicKeyMultibase": MULTIKEY}),
        ("Ed25519VerificationKey2020", {"publicKeyMultibase": "z" + b58encode(KEY).decode()}),
        ("Multikey", {"publicKeyMultibase": MULTIKEY}),
        (
            "JsonWebKey2020",
            {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": b64encode(KEY)}},
        ),
    ],
)
def test_a_key_is_read_from_every_kind_of_verification_method(
    kind: str, material: dict[str, object]
) -> None:
    document = legacy(recipientKeys=["#key-1"], routingKeys=[])
    del document["publicKey"]
    document["verificationMethod"] = [{"id": "#key-1", "type": kind, **material}]
    assert read(document) == ((KEY,), (), URL)


@pytest.mark.parametrize(
    "method",
    [
        {"type": "X25519KeyAgreementKey2019", "publicKeyBase58": base58(KEY)},
        {"type": "Multikey", "publicKeyMultibase": multibase_encode(X25519_PREFIX, AGREEMENT)},
        {"type": "Multikey", "publicKeyMultibase": "m" + MULTIKEY[1:]},
        {"type": "Multikey", "publicKeyMultibase": "z" * 100_000},
        {"type": "Ed25519VerificationKey2018", "publicKeyBase58": base58(KEY)[1:]},
        {"type": "Ed25519VerificationKey2018", "publicKeyBase58": 5},
        {"type": "JsonWebKey2020", "publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}},
        {"type": "JsonWebKey2020", "publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": "€"}},
        {"type": "JsonWebKey2020", "publicKeyJwk": {"kty": "EC", "crv": "P-256", "x": "AA"}},
        {"type": "Ed25519VerificationKey2018", "publicKeyBase58": base58(LOW_ORDER[2])},
        {"type": "Ed25519VerificationKey2018"},
        {"type": "Ed25519VerificationKey2018", "id": None, "publicKeyBase58": base58(KEY)},
    ],
    ids=str,
)
def test_a_key_that_nothing_can_be_packed_to_is_none(method: dict[str, object]) -> None:
    document = legacy(recipientKeys=["#key-1"])
    document["publicKey"] = [{"id": "#key-1", **method}]
    assert read(document) is None


def test_a_service_whose_keys_cannot_be_read_is_not_used() -> None:
    for member in ("recipientKeys", "routingKeys"):
        for keys in (["#unknown"], ["did:sov:Other1111111111111111#1"], [base58(KEY), 5]):
            assert read(legacy(**{member: keys})) is None
    document = legacy(recipientKeys=["#unknown"])
    document["service"].append(legacy(serviceEndpoint="https://second.example")["service"][0])
    assert read(document) == ((KEY,), (ROUTING,), "https://second.example")


def test_a_service_without_recipient_keys_has_those_that_authenticate() -> None:
    document = legacy(recipientKeys=[])
    document["publicKey"].insert(
        0,
        {
            "id": "#routing",
            "type": "Ed25519VerificationKey2018",
            "publicKeyBase58": base58(ROUTING),
        },
    )
    assert read(document) == WITH_ROUTING


def test_the_lowest_priority_of_the_v1_types_is_used_first() -> None:
    def service(kind: str, priority: object, host: str) -> dict[str, object]:
        keys = [base58(KEY)]
        endpoint = f"https://{host}.example"
        return {
            "type": kind,
            "priority": priority,
            "recipientKeys": keys,
            "serviceEndpoint": endpoint,
        }

    first = service("did-communication", 0, "first")
    later = [service("DIDCommMessaging", -9, "v2"), service("IndyAgent", 3, "last")]
    assert read(legacy() | {"service": [*later, first]}) == ((KEY,), (), "https://first.example")
    oddities: tuple[object, ...] = (None, "1", [], True)
    for odd in oddities:
        services = [service("IndyAgent", odd, "odd"), service("IndyAgent", 2, "last")]
        assert read(legacy() | {"service": services}) == ((KEY,), (), "https://odd.example")


def test_a_service_may_have_several_types() -> None:
    document = legacy(type=["LinkedDomains", "did-communication"])
    del document["service"][0]["recipientKeys"]
    assert read(document) == WITH_ROUTING


def test_a_service_with_an_endpoint_goes_before_one_without() -> None:
    document = legacy(serviceEndpoint="didcomm:transport/queue")
    document["service"].append(legacy(priority=9)["service"][0])
    assert read(document) == WITH_ROUTING


@pytest.mark.parametrize(
    "named",
    ["did:sov:WgWxqztrNooG92RXvxSTWv", "", 5, None, ["did:sov:" + SOV]],
    ids=str,
)
def test_the_document_of_another_did_is_refused(named: object) -> None:
    assert read(legacy() | {"id": named}) is None


def test_a_document_may_name_itself_by_either_spelling_or_not_at_all() -> None:
    unnamed = legacy()
    del unnamed["id"]
    for document in (legacy(), legacy() | {"id": SOV}, unnamed):
        for did in (SOV, f"did:sov:{SOV}"):
            found = read_document(did, document)
            assert found is not None
            assert found_in(found) == WITH_ROUTING


def test_what_is_no_did_and_no_document_is_refused() -> None:
    for did in ("", "a b", "a\n", "d" * (DID_CHARS_MAX + 1)):
        assert read_document(did, {**legacy(), "id": did}) is None
    others: tuple[object, ...] = (None, [], "text", 5, {}, {"id": SOV})
    for document in others:
        assert read(document) is None


def test_did_key_and_did_peer_0_resolve_to_their_key() -> None:
    peer_0 = did_key(KEY).replace("did:key:", "did:peer:0")
    for did in (did_key(KEY), peer_0):
        assert found_in(resolve(did)) == ((KEY,), (), "")
    assert resolve("did:key:z6MkNothing") is None
    assert resolve("did:peer:0z6MkNothing") is None
    assert resolve(did_key(LOW_ORDER[2])) is None


def test_peer_dids_of_other_libraries_resolve() -> None:
    assert found_in(resolve(ACA_PY_PEER_4)) == WITH_ROUTING
    assert found_in(resolve(ACA_PY_PEER_2)) == WITH_ROUTING


def peer2(*elements: str) -> str:
    return "did:peer:2" + "".join(f".{element}" for element in elements)


def packed(service: object) -> str:
    return "S" + b64encode(orjson.dumps(service))


@pytest.mark.parametrize("reference", ["#key-2", "#" + MULTIKEY, "#" + MULTIKEY[1:]])
def test_the_keys_of_a_peer_2_go_by_number_and_by_their_digits(reference: str) -> None:
    service = {"t": "did-communication", "recipientKeys": [reference], "s": URL}
    agreement = multibase_encode(X25519_PREFIX, AGREEMENT)
    did = peer2("E" + agreement, "V" + MULTIKEY, packed(service))
    assert found_in(resolve(did)) == ((KEY,), (), URL)


def test_the_services_of_a_peer_2_come_one_by_one_and_as_a_list() -> None:
    queue = {"t": "did-communication", "s": "didcomm:transport/queue", "priority": 0}
    web = {"t": "did-communication", "s": {"uri": URL, "r": [did_key(ROUTING)]}, "priority": 1}
    key = "V" + MULTIKEY
    assert found_in(resolve(peer2(key, packed(queue), packed(web)))) == WITH_ROUTING
    assert found_in(resolve(peer2(key, packed([queue, web])))) == WITH_ROUTING
    assert found_in(resolve(peer2(key, packed(queue)))) == ((KEY,), (), "")
    padded = "S" + urlsafe_b64encode(orjson.dumps({**web, "a": ["didcomm/aip1"]})).decode()
    assert padded.endswith("=")
    assert found_in(resolve(peer2(key, padded))) == WITH_ROUTING


def test_a_peer_2_for_version_2_alone_has_no_endpoint_here() -> None:
    service = {"t": "dm", "s": {"uri": URL, "a": ["didcomm/v2"], "r": []}}
    assert found_in(resolve(peer2("V" + MULTIKEY, packed(service)))) == ((KEY,), (), "")


@pytest.mark.parametrize(
    "did",
    [
        "did:peer:2",
        "did:peer:2.",
        peer2("X" + MULTIKEY),
        peer2("V" + MULTIKEY, "S"),
        peer2("V" + MULTIKEY, "SAAAAA"),
        peer2("V" + MULTIKEY, packed({}) + "\n"),
        peer2("S" + b64encode(b"{}")),
        peer2("E" + multibase_encode(X25519_PREFIX, AGREEMENT)),
        peer2(*["V" + MULTIKEY] * 100),
        "did:peer:3zQmS19jtYDvGtKVrJhQnRFpBQAx3pJ9omx2HpNrcXFuRCz9",
        "did:peer:4",
        peer4_short(ACA_PY_PEER_4),
        ACA_PY_PEER_4[:-1],
        ACA_PY_PEER_4 + "1",
        ACA_PY_PEER_4 + "#key-1",
        ACA_PY_PEER_4.replace(":4zQma", ":4zQmb"),
        "did:sov:" + SOV,
        SOV,
        "did:web:agent.example",
        "",
    ],
)
def test_what_does_not_resolve_by_itself_is_none(did: str) -> None:
    assert resolve(did) is None


def test_a_peer_4_is_held_to_its_hash_and_its_length() -> None:
    document = {key: value for key, value in legacy().items() if key != "id"}
    assert found_in(resolve(encode_peer4(document))) == WITH_ROUTING
    other = encode_peer4({**document, "alsoKnownAs": ["did:example:1"]})
    short = peer4_short(encode_peer4(document))
    assert resolve(f"{short}:{other.rpartition(':')[2]}") is None
    assert resolve(encode_peer4({**document, "note": "n" * DID_CHARS_MAX})) is None


def test_a_peer_4_has_one_short_form_for_comparing() -> None:
    short = peer4_short(ACA_PY_PEER_4)
    assert ACA_PY_PEER_4.startswith(short + ":z")
    assert peer4_short(short) == short
    assert peer4_short("did:web:a:b:c:d") == "did:web:a:b:c:d"
    document = legacy() | {"id": short}
    found = read_document(ACA_PY_PEER_4, document)
    assert found is not None
    assert found.recipient_keys == (KEY,)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | st.just(base58(KEY)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "type",
                    "uri",
                    "recipientKeys",
                    "serviceEndpoint",
                    "publicKeyBase58",
                    "t",
                    "s",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def assert_usable_or_none(did: str, found: PeerDocument | None) -> None:
    assert found is None or is_usable(found, did)


@given(st.sampled_from(["publicKey", "authentication", "service"]), json_values, st.booleans())
def test_whatever_a_stranger_writes_gives_a_document_or_nothing(
    member: str, value: object, nested: bool
) -> None:
    document = copy.deepcopy(legacy())
    if nested:
        document[member][0] = value
    else:
        document[member] = value
    assert_usable_or_none(SOV, read_document(SOV, document))
    for did in (encode_peer4(document), peer2("V" + MULTIKEY, packed(value))):
        assert_usable_or_none(did, resolve(did))


@given(st.text(max_size=60), st.sampled_from(["", "did:peer:2", "did:peer:4z", "did:key:"]))
def test_whatever_a_stranger_calls_a_did_gives_a_document_or_nothing(
    text: str, method: str
) -> None:
    did = method + text
    assert_usable_or_none(did, resolve(did))
    assert_usable_or_none(did, read_document(did, legacy() | {"id": did}))
