from __future__ import annotations

from typing import Any

import pytest

from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.dids import decentrl
from http_edge.dids.document import SIGNING_KEYS_MAX, DidDocument, read_document
from http_edge.dids.own_document import mediator_document

KEYS = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))
DID = "did:web:mediator.example"
KEY = multibase_encode(ED25519_PREFIX, bytes(32))


def test_the_mediators_document_is_literally_that_of_the_specification() -> None:
    assert mediator_document(DID, "https://mediator.example", KEYS) == {
        "@context": [
            "https://www.w3.org/ns/did/v1",
            "https://w3id.org/security/suites/jws-2020/v1",
        ],
        "id": "did:web:mediator.example",
        "controller": "did:web:mediator.example",
        "verificationMethod": [
            {
                "id": "did:web:mediator.example#signing",
                "type": "Ed25519VerificationKey2020",
                "controller": "did:web:mediator.example",
                "publicKeyMultibase": multibase_encode(ED25519_PREFIX, KEYS.signing_public),
            }
        ],
        "keyAgreement": [
            {
                "id": "did:web:mediator.example#prekey",
                "type": "X25519KeyAgreementKey2020",
                "controller": "did:web:mediator.example",
                "publicKeyMultibase": multibase_encode(X25519_PREFIX, KEYS.pre_public),
            }
        ],
        "authentication": ["did:web:mediator.example#signing"],
        "service": [
            {
                "id": "#mediator-service",
                "type": "DecentrlMediator",
                "serviceEndpoint": {"uri": "https://mediator.example"},
            }
        ],
    }


def test_what_is_written_is_read_back() -> None:
    document = mediator_document(DID, "https://mediator.example", KEYS)
    assert read_document(DID, document) == DidDocument(
        DID, {DID + "#signing": KEYS.signing_public}, KEYS.pre_public
    )


def test_an_identitys_document_says_what_its_did_says() -> None:
    did = decentrl.make_did("alice", KEYS.signing_public, KEYS.pre_public, DID)
    assert read_document(did, mediator_document(did, DID, KEYS)) == decentrl.resolve(did)


@pytest.mark.parametrize(
    "document",
    [None, [], "did", {}, {"id": 1}, {"id": DID + "x"}, {"id": DID.upper()}, {"id": DID + "#"}],
)
def test_the_document_of_another_did_is_refused(document: object) -> None:
    assert read_document(DID, document) is None


@pytest.mark.parametrize(
    "methods",
    [
        None,
        {},
        "text",
        [None, 1, "did:web:mediator.example#signing"],
        [{"id": DID + "#a"}],
        [{"id": DID + "#a", "publicKeyMultibase": 1}],
        [{"id": 1, "publicKeyMultibase": KEY}],
        [{"id": DID + "#a", "publicKeyMultibase": "z6Mk"}],
        [{"id": DID + "#a", "publicKeyMultibase": multibase_encode(X25519_PREFIX, bytes(32))}],
        [{"id": "did:web:other.example#a", "publicKeyMultibase": KEY}],
        [{"id": DID + "x#a", "publicKeyMultibase": KEY}],
        [{"id": DID + "#" + "a" * 2000, "publicKeyMultibase": KEY}],
    ],
)
def test_a_method_that_is_no_ed25519_key_of_this_did_is_passed_over(methods: Any) -> None:
    good = {"id": "#signing", "publicKeyMultibase": KEY}
    alone = read_document(DID, {"id": DID, "verificationMethod": methods})
    assert alone == DidDocument(DID, {}, None)
    if isinstance(methods, list):
        both = read_document(DID, {"id": DID, "verificationMethod": [*methods, good]})
        assert both == DidDocument(DID, {DID + "#signing": bytes(32)}, None)


def test_a_pre_key_is_no_signing_key_wherever_it_stands() -> None:
    pre_key = {"id": "#prekey", "publicKeyMultibase": multibase_encode(X25519_PREFIX, bytes(32))}
    disguised = {"id": "#signing", "publicKeyMultibase": KEY}
    document = read_document(
        DID, {"id": DID, "verificationMethod": [pre_key], "keyAgreement": [disguised, pre_key]}
    )
    assert document == DidDocument(DID, {}, bytes(32))


def test_a_document_with_too_many_keys_costs_no_more_than_the_limit() -> None:
    methods = [{"id": f"#{number}", "publicKeyMultibase": KEY} for number in range(1000)]
    document = read_document(DID, {"id": DID, "verificationMethod": methods})
    assert document is not None
    assert len(document.signing_keys) == SIGNING_KEYS_MAX
