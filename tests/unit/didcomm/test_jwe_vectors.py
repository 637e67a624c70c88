"""The test vectors of the DIDComm Messaging specification, appendix A to C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from http_edge.crypto.encoding import b64decode
from http_edge.didcomm.envelopes.agent_documents import AgentDocument, SeenDids
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.public_keys import PublicKey, read_jwk
from http_edge.didcomm.envelopes.v2.envelope import open_sealed, parsed
from http_edge.didcomm.envelopes.v2.forward import read_forward
from http_edge.didcomm.envelopes.v2.plaintext import read
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
    return PrivateKey(public(jwk), b64decode(jwk["d"]))


class Alice(SeenDids):
    """The sender's document, which is of a method that resolves nowhere."""

    def resolve(self, did: str) -> AgentDocument | None:
        keys = {name: public(jwk) for name, jwk in VECTORS["sender"].items()}
        return AgentDocument(did, did, keys, keys) if did == "did:example:alice" else None


def opened(value: Any, number: int, *, authcrypt: bool) -> bytes | None:
    """What is in an envelope of the specification for one of its recipients."""
    sealed = parsed(value)
    if sealed is None:
        return None
    own = private(VECTORS["recipient"][sealed.kids[number].partition("#")[2]])
    assert own.public == public(VECTORS["recipient"][sealed.kids[number].partition("#")[2]])
    sender = VECTORS["sender"].get(sealed.sender_kid.partition("#")[2])
    assert (sender is not None) is authcrypt
    key = None if sender is None else public(sender)
    return open_sealed(sealed, number, own, key, StaticSecrets())


@pytest.mark.parametrize(("name", "number"), ENCRYPTED)
def test_every_recipient_of_the_specification_opens_its_envelope(name: str, number: int) -> None:
    hides_sender = "anoncrypt of" in name
    authcrypt = "authcrypt" in name
    found = opened(VECTORS["encrypted"][name], number, authcrypt=authcrypt and not hides_sender)
    assert found is not None
    content = orjson.loads(found)
    if hides_sender:
        inner = opened(content, number, authcrypt=authcrypt)
        assert inner is not None
        content = orjson.loads(inner)
    if "signed" in name:
        signed = read_signed(content, Alice())
        assert signed is not None
        content = orjson.loads(signed.payload)
    assert content == PLAINTEXT


@pytest.mark.parametrize("member", ["ciphertext", "protected", "tag", "iv"])
@pytest.mark.parametrize(("name", "number"), ENCRYPTED)
def test_an_envelope_with_a_part_that_is_invalid_opens_for_no_recipient(
    name: str, number: int, member: str
) -> None:
    """The negative vectors of SICPA's didcomm-python, for every envelope of the specification."""
    value = {**VECTORS["encrypted"][name], member: "invalid"}
    authcrypt = "authcrypt" in name and "anoncrypt of" not in name
    assert opened(value, number, authcrypt=authcrypt) is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_signature_of_another_payload_is_none(number: int) -> None:
    """The same, of signed messages."""
    signature = VECTORS["signed"]["signatures"][number]
    for payload in ("invalid", VECTORS["signed"]["payload"] + "AAAA"):
        assert read_signed({"payload": payload, "signatures": [signature]}, Alice()) is None


@pytest.mark.parametrize("without", ["id", "type"])
def test_a_plaintext_without_its_id_or_type_is_no_message(without: str) -> None:
    """The same, of plaintext; DIDComm v2.1 lets ``body`` be missing, and the envelope says what it
    is, so ``typ`` may be missing too."""
    head = {key: each for key, each in PLAINTEXT.items() if key != without}
    assert read(head, "") is None
    for other in ("typ", "body"):
        assert read({key: each for key, each in PLAINTEXT.items() if key != other}, "")


ATTACHED: Any = [
    "131",
    [{}],
    [{"id": "23"}],
    [{"id": "23", "data": {}}],
    [{"id": "23", "data": {"links": ["231", "212"]}}],
    [2131],
    [{"id": 2}],
    [{"id": "1", "data": None}],
    [{"id": "1", "data": "None"}],
]


@pytest.mark.parametrize("attached", ATTACHED)
def test_a_forward_with_an_attachment_that_is_none_is_not_followed(attached: object) -> None:
    """The attachments of those vectors; a mediator reads those of forwards alone."""
    head = {"id": "1", "type": NEW_PREFIX + "routing/2.0/forward", "body": {"next": "did:a:b"}}
    message = read({**head, "attachments": attached}, "")
    assert message is not None
    assert read_forward(message) is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_signature_of_the_specification_is_right(number: int) -> None:
    payload, signature = VECTORS["signed"]["payload"], VECTORS["signed"]["signatures"][number]
    general = read_signed({"payload": payload, "signatures": [signature]}, Alice())
    assert general is not None
    assert orjson.loads(general.payload) == PLAINTEXT
    assert general.did == signature["header"]["kid"].partition("#")[0]
    assert read_signed({"payload": payload, **signature}, Alice()) == general
    changed = {**signature, "signature": signature["signature"][:-3] + "AAA"}
    assert read_signed({"payload": payload, "signatures": [changed]}, Alice()) is None
    for wrong in ("did:example:alice#key-9", "did:example:bob#key-1", "did:example:alice"):
        other = {**signature, "header": {"kid": wrong}}
        assert read_signed({"payload": payload, "signatures": [other]}, Alice()) is None
