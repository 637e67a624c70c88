from __future__ import annotations

import re

from http_edge.crypto.encoding import ED25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.peer_dids import peer2_document, peer4_document
from http_edge.didcomm.envelopes.peer_documents import read_document, resolve
from http_edge.didcomm.protocols.handshake import MediatorDocuments

KEY = KeyPair.from_seed(b"s" * 32)
HTTP = "https://mediator.example/didcomm"
WS = "wss://mediator.example/didcomm"
OWN = MediatorDocuments(KEY, HTTP)


def test_all_documents_say_the_same() -> None:
    read = (
        resolve(OWN.peer4),
        resolve(OWN.peer2),
        read_document(OWN.legacy_did, OWN.legacy_document()),
    )
    for found in read:
        assert found is not None
        assert (found.recipient_keys, found.routing_keys) == ((KEY.public,), ())
        assert found.endpoint == HTTP


def test_http_comes_first_and_websocket_second() -> None:
    for document in (peer4_document(OWN.peer4), peer2_document(OWN.peer2)):
        assert document is not None
        assert document["service"] == [
            {
                "id": f"#didcomm-{priority}",
                "type": "did-communication",
                "priority": priority,
                "recipientKeys": ["#key-1"],
                "routingKeys": [],
                "serviceEndpoint": endpoint,
            }
            for priority, endpoint in enumerate((HTTP, WS))
        ]


def test_the_key_of_the_peer_4_stands_there_as_all_agents_read_it() -> None:
    document = peer4_document(OWN.peer4)
    assert document is not None
    assert document["authentication"] == ["#key-1"]
    assert document["verificationMethod"] == [
        {
            "id": "#key-1",
            "type": "Ed25519VerificationKey2020",
            "publicKeyMultibase": multibase_encode(ED25519_PREFIX, KEY.public),
        }
    ]


def test_the_legacy_document_is_as_agents_of_its_time_write_it() -> None:
    did = f"did:sov:{OWN.legacy_did}"
    # The form that ACA-Py takes for an unqualified DID.
    assert re.fullmatch("[1-9A-HJ-NP-Za-km-z]{21,22}", OWN.legacy_did)
    assert OWN.legacy_document() == {
        "@context": "https://w3id.org/did/v1",
        "id": did,
        "publicKey": [
            {
                "id": f"{did}#1",
                "type": "Ed25519VerificationKey2018",
                "controller": did,
                "publicKeyBase58": base58(KEY.public),
            }
        ],
        "authentication": [{"type": "Ed25519SignatureAuthentication2018", "publicKey": f"{did}#1"}],
        "service": [
            {
                "id": f"{did};{name}",
                "type": "IndyAgent",
                "priority": priority,
                "recipientKeys": [base58(KEY.public)],
                "routingKeys": [],
                "serviceEndpoint": endpoint,
            }
            for priority, name, endpoint in ((0, "indy", HTTP), (1, "indy1", WS))
        ],
    }


def test_documents_outlive_restarts_and_differ_by_key() -> None:
    again = MediatorDocuments(KeyPair.from_seed(b"s" * 32), HTTP)
    assert (again.peer4, again.peer2) == (OWN.peer4, OWN.peer2)
    other = MediatorDocuments(KeyPair.from_seed(b"t" * 32), HTTP)
    assert other.peer4 != OWN.peer4
    assert other.legacy_did != OWN.legacy_did
