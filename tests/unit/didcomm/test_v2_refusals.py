"""What DIDComm v2 refuses costs little, and nothing that comes breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto import key_agreement
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.signatures import sign
from http_edge.didcomm.envelopes.agent_documents import (
    KEYS_MAX,
    AgentDocument,
    SeenDids,
    resolve_document,
)
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, agree
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import (
    Acknowledgement,
    ForOthers,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import PEER_2_ELEMENTS_MAX, peer2_document
from http_edge.didcomm.envelopes.public_keys import (
    Curve,
    PublicKey,
    compressed,
    read_multibase,
    write_multibase,
)
from http_edge.didcomm.envelopes.recipient_names import x25519_name
from http_edge.didcomm.envelopes.v2.envelope import Recipient, Sender, seal
from http_edge.didcomm.envelopes.v2.signed import SIGNATURES_MAX, read_signed
from http_edge.didcomm.envelopes.versions import (
    Envelopes,
)
from tests.examples import examples
from tests.unit.didcomm.v2_agent import PING, recipient
from tests.unit.didcomm.v2_mediator import (
    AGENT,
    ALICE,
    ALICE_DIDS,
    ENVELOPES,
    FORWARD,
    OTHER,
    OURS,
    OWN,
    PEER4,
    read,
    unpacked,
)

Agreement: TypeAlias = Callable[[bytes, bytes], bytes | None]


@pytest.fixture
def agreements(monkeypatch: pytest.MonkeyPatch) -> list[PublicKey]:
    made: list[PublicKey] = []

    def counted(real: Agreement) -> Agreement:
        def agree(private: bytes, public: bytes) -> bytes | None:
            made.append(PublicKey(Curve.X25519, public))
            return real(private, public)

        return agree

    monkeypatch.setattr(key_agreement, "shared_secret", counted(key_agreement.shared_secret))
    return made


@pytest.mark.parametrize(
    "kid",
    [
        "did:web:peer.example#key-1",
        "did:webvh:QmX:peer.example#key-1",
        f"{ALICE.dids.did_key}#other",
        PEER4,
        f"{PEER4[:-4]}1111#key-2",
        "did:peer:4zQm#key-2",
        "did:peer:2.Vz6Mk#key-1",
        "did:key:z6Mk",
        "nonsense",
        "#",
    ],
)
def test_a_sender_that_cannot_be_resolved_costs_no_key_agreement(
    kid: str, agreements: list[PublicKey]
) -> None:
    body = ALICE.pack(ALICE.plaintext(PEER4), recipient(OWN, OWN.peer2), PEER4, kid=kid)
    agreements.clear()
    assert ENVELOPES.unpack(body) is UnpackRejection.UNDECRYPTABLE
    assert agreements == []


def test_an_envelope_for_many_others_costs_no_key_agreement(agreements: list[PublicKey]) -> None:
    key = PublicKey(Curve.X25519, OTHER.curve_public)
    to = [Recipient(f"did:example:{number}#1", key) for number in range(64)]
    body = seal(b"{}", to, None)
    agreements.clear()
    assert isinstance(ENVELOPES.unpack(body), ForOthers)
    assert agreements == []
    more = seal(b"{}", [*to, Recipient("did:example:x#1", key)], None)
    agreements.clear()
    assert ENVELOPES.unpack(more) is UnpackRejection.NOT_AN_ENVELOPE
    assert agreements == []


def test_an_anonymous_envelope_that_does_not_open_costs_one_key_agreement(
    agreements: list[PublicKey],
) -> None:
    wrong = Recipient(f"{OWN.peer2}#key-2", PublicKey(Curve.X25519, OTHER.curve_public))
    body = ALICE.pack(ALICE.plaintext(PEER4), wrong, None)
    agreements.clear()
    assert ENVELOPES.unpack(body) is UnpackRejection.UNDECRYPTABLE
    assert len(agreements) == 1


def test_a_conversation_costs_one_key_agreement_for_each_message(
    agreements: list[PublicKey],
) -> None:
    envelopes, to = Envelopes(OWN), recipient(OWN, OWN.peer2)
    bodies = [ALICE.pack(ALICE.plaintext(PEER4), to, PEER4) for _ in range(3)]
    agreements.clear()
    senders = [unpacked(body, envelopes).sender for body in bodies]
    assert len(agreements) == 1 + len(bodies)
    agreements.clear()
    question, sender = read(bodies[0], envelopes), senders[0]
    assert question is not None
    assert sender is not None
    agreements.clear()
    for _ in range(3):
        envelopes.answer(question, Acknowledgement(), sender, "1")
    assert len(agreements) == 3


@given(st.data())
@examples(200)
def test_a_mutated_message_is_refused_and_never_breaks_anything(data: st.DataObject) -> None:
    sender = data.draw(st.sampled_from([None, *ALICE_DIDS]))
    body = bytearray(ALICE.pack(ALICE.plaintext(sender), recipient(OWN, OWN.peer2), sender))
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body = body[:at]
    else:
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    found = ENVELOPES.unpack(bytes(body))
    if isinstance(found, Unpacked):
        assert found.parsed == ALICE.plaintext(sender)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
HEADERS = st.sampled_from(
    [
        "id",
        "type",
        "from",
        "to",
        "body",
        "thid",
        "pthid",
        "attachments",
        "from_prior",
        "please_ack",
        "ack",
        "return_route",
        "return_route_thread",
        "expires_time",
        "delay_milli",
        "created_time",
        "payload",
        "signatures",
        "ciphertext",
        "recipients",
        "protected",
        "next",
    ]
)


@given(st.dictionaries(HEADERS, VALUES, max_size=8), st.sampled_from([PING, FORWARD]))
@examples(300)
def test_any_headers_make_a_message_or_none(members: dict[str, Any], kind: str) -> None:
    whole = {"id": "1", "type": kind, **members}
    try:
        body = ALICE.pack(whole, recipient(OWN, OWN.peer2), None)
    except TypeError:  # an integer that JSON here does not have
        return
    found = ENVELOPES.unpack(body)
    if not isinstance(found, Unpacked):
        assert found in {UnpackRejection.NOT_A_MESSAGE, UnpackRejection.UNDECRYPTABLE}
        return
    taken = ENVELOPES.of(found.version).read(found)
    if taken is not None and taken.is_forward:
        ENVELOPES.of(taken.version).read_forward(taken, recipients_max=1)


def test_the_curve_key_is_the_image_of_the_signing_key() -> None:
    keys = [resolve_document(did) for did in (OWN.did_key, OWN.peer2, OWN.peer4)]
    for found in keys:
        assert found is not None
        (agreement,) = set(found.agreement.values())
        assert found.signing_twin(agreement) == OURS.public
    assert PrivateKey.of_x25519(OURS.curve_private).public.raw == OURS.curve_public
    assert x25519_name(OURS.curve_public) == OWN.x25519


def test_a_sender_of_a_nist_curve_cannot_pack_to_the_mediator() -> None:
    key = PrivateKey.new(Curve.P256)
    did = f"did:key:{write_multibase(key.public)}"
    to = recipient(OWN, OWN.peer2)
    with pytest.raises(ValueError, match="nothing can be packed"):
        seal(b"{}", [to], Sender(f"{did}#{did.split(':')[2]}", key, ALICE.secrets))


def signed_by_many(dids: Sequence[str]) -> dict[str, Any]:
    """A message with a signature of each of these DIDs, all of them wrong."""
    protected = b64encode(orjson.dumps({"alg": "EdDSA"}))
    signatures = [
        {"protected": protected, "signature": "AA", "header": {"kid": f"{did}#key-1"}}
        for did in dids
    ]
    return {"payload": b64encode(b"{}"), "signatures": signatures}


@pytest.mark.parametrize(
    ("header", "times", "is_right"),
    [
        ({}, SIGNATURES_MAX, True),
        ({}, SIGNATURES_MAX + 1, False),
        ({}, 0, False),
        ({"crit": ["b64"]}, 1, False),
        ({"alg": "none"}, 1, False),
        ({"alg": "ES256"}, 1, False),
    ],
)
def test_a_signature_of_another_kind_or_one_too_many_proves_nothing(
    header: dict[str, Any], times: int, *, is_right: bool
) -> None:
    head = {"alg": "EdDSA", "kid": f"{PEER4}#key-1", **header}
    protected = b64encode(orjson.dumps(head))
    signature = b64encode(sign(AGENT.seed, f"{protected}.e30".encode()))
    signatures = [{"protected": protected, "signature": signature}] * times
    found = read_signed({"payload": "e30", "signatures": signatures}, SeenDids())
    assert (found is not None) is is_right


@pytest.mark.parametrize(
    ("purpose", "between", "is_right"), [("V", b"", True), ("V", b"\0", False), ("E", b"", False)]
)
def test_a_nist_key_signs_in_one_form_and_for_a_did_that_it_authenticates(
    purpose: str, between: bytes, *, is_right: bool
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    did = f"did:peer:2.{purpose}{write_multibase(compressed(Curve.P256, key.public_key()))}"
    protected = b64encode(orjson.dumps({"alg": "ES256", "kid": f"{did}#key-1"}))
    signed = key.sign(f"{protected}.e30".encode(), ec.ECDSA(hashes.SHA256()))
    one, two = (number.to_bytes(32, "big") for number in decode_dss_signature(signed))
    signature = {"protected": protected, "signature": b64encode(one + between + two)}
    found = read_signed({"payload": "e30", "signatures": [signature]}, SeenDids())
    assert (found is not None) is is_right


class Looked(SeenDids):
    """Notes which DIDs are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.dids: list[str] = []

    def resolve(self, did: str) -> AgentDocument | None:
        self.dids.append(did)
        return super().resolve(did)


def test_the_first_wrong_signature_is_the_last_that_is_looked_at() -> None:
    seen = Looked()
    dids = [OwnDids(KeyPair.new()).peer2 for _ in range(SIGNATURES_MAX)]
    assert read_signed(signed_by_many(dids), seen) is None
    assert seen.dids == dids[:1]


def test_a_did_peer_2_has_so_many_elements_and_no_more() -> None:
    did = OwnDids(KeyPair.new()).peer2
    more = ".Az1" * (PEER_2_ELEMENTS_MAX - did.count("."))
    assert peer2_document(did + more) is not None
    assert peer2_document(did + more + ".Az1") is None


def test_keys_that_are_none_are_tried_as_often_as_keys_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []
    monkeypatch.setattr("http_edge.didcomm.envelopes.agent_documents.read_method", tried.append)
    did = "did:peer:2" + ".Ez1" * PEER_2_ELEMENTS_MAX
    assert resolve_document(did) is not None
    assert len(tried) == KEYS_MAX


def test_the_curves_of_keys_that_a_stranger_lists_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nist = [PrivateKey.new(curve).public for curve in (Curve.P256, Curve.P384, Curve.P521)]
    ours, its_key = recipient(OWN, OWN.peer2), PrivateKey.new(Curve.X25519)
    did = "did:peer:2" + "".join(f".E{write_multibase(key)}" for key in [its_key.public, *nist])
    body = seal(b"{}", [ours], Sender(f"{did}#key-1", its_key, ALICE.secrets))
    monkeypatch.setattr("http_edge.didcomm.envelopes.public_keys.ec.EllipticCurvePublicKey", None)
    assert unpacked(body).sender is not None


def test_a_key_that_is_no_point_of_its_curve_agrees_on_nothing_and_signs_nothing() -> None:
    nowhere = PublicKey(Curve.P256, b"\2" + bytes(31) + b"\1")
    text = write_multibase(nowhere)
    assert read_multibase(text) == nowhere
    assert agree(PrivateKey.new(Curve.P256), nowhere) is None
    with pytest.raises(ValueError, match="nothing can be packed"):
        seal(b"{}", [Recipient("did:b#1", nowhere)], None)
    did = f"did:key:{text}"
    protected = b64encode(orjson.dumps({"alg": "ES256", "kid": f"{did}#{text}"}))
    signature = {"protected": protected, "signature": b64encode(bytes(63) + b"\1")}
    assert SeenDids().resolve(did) is not None
    assert read_signed({"payload": "e30", "signatures": [signature]}, SeenDids()) is None


@pytest.mark.parametrize("member", ["payload", "signatures", "signature"])
def test_a_message_with_one_member_of_a_signed_one_is_read_as_it_is(member: str) -> None:
    message = ALICE.plaintext(PEER4, **{member: "any"})
    assert read(ALICE.pack(message, recipient(OWN, OWN.peer2), PEER4)) is not None
