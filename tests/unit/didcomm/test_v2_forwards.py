"""Forwards of DIDComm v2: every shape in which they come, and how they are written."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.agent_documents import SeenDids
from http_edge.didcomm.envelopes.keys import base58, did_key
from http_edge.didcomm.envelopes.messages import (
    Forward,
    Message,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import peer4_short
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v1.envelope import pack as pack_v1
from http_edge.didcomm.envelopes.v2.signed import read_signed
from http_edge.didcomm.envelopes.versions import (
    MEDIA_TYPES,
    Envelopes,
    media_type_of,
    wrap,
)
from http_edge.didcomm.protocols.problems import Problem, report_of
from tests.unit.didcomm.v2_agent import V2Agent, recipient
from tests.unit.didcomm.v2_mediator import (
    ALICE,
    ENVELOPES,
    FORWARD,
    JWE,
    OTHER,
    OWN,
    OWN_DIDS,
    PEER4,
    read,
)


def forwarded(body: Any, attachments: Any, **members: Any) -> Message:
    whole = {"id": "f", "type": FORWARD, "body": body, "attachments": attachments, **members}
    found = read(ALICE.pack(whole, recipient(OWN, OWN.peer2), None))
    assert found is not None
    assert found.is_forward
    return found


def followed(found: Message) -> Forward | None:
    return ENVELOPES.of(found.version).read_forward(found, recipients_max=1)


def test_envelopes_are_forwarded_in_their_order_however_they_are_written() -> None:
    bob = V2Agent(OTHER).dids
    attached = [
        {"data": {"json": {**JWE, "n": 1}, "base64": None, "links": None}},
        {"id": "2", "media_type": "x", "data": {"base64": "eyJuIjoyLC" + "JwIjoxfQ=="}},
    ]
    packed = orjson.dumps({**JWE, "n": 2})
    for text in (
        base64.b64encode(packed).decode(),
        base64.urlsafe_b64encode(packed).decode().rstrip("="),
    ):
        attached[1] = {"data": {"base64": text, "json": None}}
        for named in (bob.peer4, bob.peer4_short, f"{bob.peer4}#key-2"):
            found = followed(forwarded({"next": named}, attached, expires_time=9, delay_milli=-5))
            payloads = [orjson.dumps({**JWE, "n": 1}), packed]
            assert found == Forward([bob.peer4_short], payloads, 9, -5)


@pytest.mark.parametrize(("named", "to"), [({}, None), ({"from": PEER4}, [PEER4])])
def test_an_open_report_names_the_sender_that_its_forward_names(
    named: dict[str, str], to: list[str] | None
) -> None:
    question = forwarded({"next": "unknown"}, [{"data": {"json": JWE}}], **named)
    report = report_of(Problem.UNKNOWN_RECIPIENT)
    written = ENVELOPES.of(question.version).report_openly(question, report, "r")
    signed = read_signed(orjson.loads(written.body), SeenDids())
    assert signed is not None
    assert orjson.loads(signed.payload).get("to") == to


def test_a_recipient_has_one_name_in_every_spelling() -> None:
    attached = [{"data": {"json": JWE}}]
    for named in (did_key(OTHER.public), base58(OTHER.public)):
        found = followed(forwarded({"next": named}, attached))
        assert found is not None
        assert list(found.recipients) == [base58(OTHER.public)]
    unknown = followed(forwarded({"next": "unknown"}, attached))
    assert unknown is not None
    assert list(unknown.recipients) == []


@pytest.mark.parametrize(
    "attached",
    [
        None,
        [],
        {},
        [None],
        [{}],
        [{"data": {}}],
        [{"data": {"links": ["https://x.example"], "hash": "z"}}],
        [{"data": {"json": {"x": 1}}}],
        [{"data": {"json": orjson.dumps(JWE).decode()}}],
        [{"data": {"base64": "eyJ4IjoxfQ"}}],
        [{"data": {"base64": 5}}],
        [{"data": {"json": JWE}}, {"data": {"links": ["x"]}}],
        [{"data": {"json": JWE}}] * 33,
    ],
)
def test_what_is_no_encrypted_envelope_in_itself_is_not_forwarded(attached: Any) -> None:
    assert followed(forwarded({"next": did_key(OTHER.public)}, attached)) is None


def test_a_forward_names_its_recipient_in_one_text() -> None:
    for body in ({}, {"next": 5}, {"next": [did_key(OTHER.public)]}):
        assert followed(forwarded(body, [{"data": {"json": JWE}}])) is None


def test_a_forward_asks_for_nothing_back() -> None:
    body = {"next": did_key(OTHER.public)}
    found = forwarded(body, [], please_ack=[""], return_route="all")
    assert not found.wants_ack
    assert found.return_route == "none"


def test_a_forward_to_the_mediator_is_known_under_every_name() -> None:
    for did in OWN_DIDS:
        name = canonical_name(did)
        assert name is not None
        assert ENVELOPES.is_own(name)
    assert not ENVELOPES.is_own(base58(OTHER.public))


def test_an_envelope_is_wrapped_for_an_agent_behind_mediators_of_its_own() -> None:
    inner, outer = OWN, OwnDids(OTHER)
    envelope = ALICE.pack(ALICE.plaintext(None), recipient(OWN, OWN.peer2), None)
    wrapped = wrap(envelope, PEER4, PEER4, [inner.peer4, outer.did_key], lambda: "id-1")
    assert wrapped is not None
    first = Envelopes(outer)
    to_outer = read(wrapped, first)
    assert to_outer is not None
    found = first.of(to_outer.version).read_forward(to_outer, recipients_max=1)
    assert found is not None
    assert list(found.recipients) == [inner.peer4_short]
    to_inner = read(found.payloads[0])
    assert to_inner is not None
    assert followed(to_inner) == Forward([peer4_short(PEER4)], [envelope])
    for unknown in ("did:web:m.example", "nonsense", peer4_short(PEER4)):
        assert wrap(envelope, PEER4, PEER4, [unknown], lambda: "id-1") is None


def test_an_envelope_is_named_by_what_it_is() -> None:
    v2 = ALICE.pack(ALICE.plaintext(None), recipient(OWN, OWN.peer2), None)
    v1 = pack_v1(b'{"recipients":[]}', [OTHER.public], None)
    assert media_type_of(v2) == "application/didcomm-encrypted+json"
    assert media_type_of(v1) == "application/didcomm-envelope-enc"
    assert {media_type_of(v1), media_type_of(v2)} <= MEDIA_TYPES
