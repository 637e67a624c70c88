"""The test vectors of the DIDComm Messaging specification, appendix A to C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from http_edge.crypto.encoding import b64decode
from http_edge.didcomm.envelopes.did_documents import AgentDocument, SeenDids
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, read_jwk
from http_edge.didcomm.envelopes.v2.envelope import open_sealed, parsed
from http_edge.didcomm.envelopes.v2.signed import read_signed

VECTORS = orjson.loads((Path(__file__).parents[2] / "vectors/didcomm_v2.json").read_bytes())
PLAINTEXT = VECTORS["plaintext"]
ENCRYPTED = [
    (name, number)
    for name, value in VECTORS["encrypted"].items()
    for number in range(len(value["recipients"]))
]


def public(jwk: dict[str, Any]) -> PublicKey:
    key = read_jwk(jwk)
    assert key is not None
    return key


def private(jwk: dict[str, Any]) -> PrivateKey:
    secret = b64decode(jwk["d"])
    if jwk["crv"] == "X25519":
        return PrivateKey.of_x25519(secret)
    return PrivateKey.of_elliptic(Curve(jwk["crv"]), secret)


class Alice(SeenDids):
    """The sender's document, which is of a method that resolves nowhere."""

    def resolve(self, did: str) -> AgentDocument | None:
        keys = {name: public(jwk) for name, jwk in VECTORS["sender"].items()}
        return AgentDocument(did, did, keys, keys) if did == "did:example:alice" else None


@pytest.mark.parametrize(("name", "number"), ENCRYPTED)
def test_every_recipient_of_the_specification_opens_its_envelope(name: str, number: int) -> None:
    value = VECTORS["encrypted"][name]
    sealed = parsed(value)
    assert sealed is not None
    own = private(VECTORS["recipient"][sealed.kids[number].partition("#")[2]])
    assert own.public == public(VECTORS["recipient"][sealed.kids[number].partition("#")[2]])
    sender = VECTORS["sender"].get(sealed.sender_kid.partition("#")[2])
    assert (sender is not None) is ("authcrypt" in name)
    opened = open_sealed(
        sealed, number, own, None if sender is None else public(sender), StaticSecrets()
    )
    assert opened is not None
    content = orjson.loads(opened)
    if "signed" in name:
        signed = read_signed(content, Alice())
        assert signed is not None
        content = orjson.loads(signed.payload)
    assert content == PLAINTEXT


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_signature_of_the_specification_is_right(number: int) -> None:
    payload, signature = VECTORS["signed"]["payload"], VECTORS["signed"]["signatures"][number]
    general = read_signed({"payload": payload, "signatures": [signature]}, Alice())
    assert general is not None
    assert orjson.loads(general.payload) == PLAINTEXT
    assert general.kid == signature["header"]["kid"]
    assert read_signed({"payload": payload, **signature}, Alice()) == general
    changed = {**signature, "signature": signature["signature"][:-3] + "AAA"}
    assert read_signed({"payload": payload, "signatures": [changed]}, Alice()) is None
    for wrong in ("did:example:alice#key-9", "did:example:bob#key-1", "did:example:alice"):
        other = {**signature, "header": {"kid": wrong}}
        assert read_signed({"payload": payload, "signatures": [other]}, Alice()) is None
