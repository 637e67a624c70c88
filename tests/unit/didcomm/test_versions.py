"""The seam of message versions: what comes out of an envelope, and what goes back into one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import (
    Acknowledgement,
    Attachment,
    ForOthers,
    Forward,
    InvalidMember,
    Message,
    NewMessage,
    ProblemReport,
    Reply,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.envelopes.versions import MEDIA_TYPES, Envelopes, media_type_of
from tests.unit.didcomm.envelopes_v1 import opened_with
from tests.unit.didcomm.requests import NEW, OLD, message

OURS, AGENT, OTHER = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
ENVELOPES = Envelopes(OwnDids(OURS))
PING = {"@type": f"{NEW}trust_ping/1.0/ping", "@id": "ping-1"}


def unpacked(plaintext: Any, sender: KeyPair | None = AGENT) -> Unpacked:
    found = ENVELOPES.unpack(pack(orjson.dumps(plaintext), [OURS.public], sender))
    assert isinstance(found, Unpacked)
    return found


def opened(envelope: bytes) -> dict[str, Any]:
    """What the agent reads."""
    found = opened_with(envelope, AGENT)
    assert not isinstance(found, UnpackRejection)
    assert found.sender_key == OURS.public
    plaintext: dict[str, Any] = orjson.loads(found.plaintext)
    return plaintext


def question() -> Message:
    envelope = unpacked(PING)
    read = ENVELOPES.of(envelope.version).read(envelope)
    assert read is not None
    return read


def test_the_sender_of_a_message_is_the_account_of_the_key_that_packed_it() -> None:
    sender = unpacked(PING).sender
    assert sender == agent_account(AGENT.public)
    assert sender.did == did_key(AGENT.public)


def test_a_message_without_a_proven_sender_has_no_account() -> None:
    assert unpacked(PING, sender=None).sender is None


def test_an_envelope_for_others_names_its_recipients_once_in_base58() -> None:
    packed = pack(b"{}", [OTHER.public, AGENT.public, OTHER.public], None)
    assert ENVELOPES.unpack(packed) == ForOthers([base58(OTHER.public), base58(AGENT.public)], "v1")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b'{"protected":1}', orjson.dumps(PING)]
)
def test_what_is_of_no_version_is_no_envelope(body: bytes) -> None:
    assert ENVELOPES.unpack(body) is UnpackRejection.NOT_AN_ENVELOPE


def test_an_answer_is_packed_for_the_sender_in_the_form_of_the_question() -> None:
    asked_in = message("trust_ping/1.0/ping", OLD, **{"~thread": {"thid": "thread-1"}})
    reply = Reply("ping_response", {"comment": "here"})
    back = ENVELOPES.answer(asked_in, reply, agent_account(AGENT.public), "reply-1")
    assert opened(back) == {
        "@type": f"{OLD}trust_ping/1.0/ping_response",
        "@id": "reply-1",
        "~thread": {"thid": "thread-1"},
        "comment": "here",
    }


@pytest.mark.parametrize("answer", [ProblemReport("code", "comment", "you"), Acknowledgement()])
def test_reports_and_acknowledgements_have_the_type_that_agents_of_the_version_read(
    answer: ProblemReport | Acknowledgement,
) -> None:
    back = opened(ENVELOPES.answer(question(), answer, agent_account(AGENT.public), "reply-1"))
    assert back["@type"].startswith(f"{NEW}notification/1.0/")
    assert back["~thread"]["thid"] == "ping-1"


def test_a_message_that_answers_none_has_no_thread() -> None:
    delivery = NewMessage(
        "messagepickup/2.0/delivery", attachments={"": [Attachment("one", b"{}")]}
    )
    back = opened(ENVELOPES.pack(delivery, agent_account(AGENT.public), "new-1"))
    assert set(back) == {"@type", "@id", "~attach"}


def test_a_forward_is_known_and_read_without_knowing_its_version() -> None:
    packed = {"protected": "e30", "iv": "aXY", "ciphertext": "Y2k", "tag": "dGFn"}
    forward = {"@type": f"{NEW}routing/1.0/forward", "@id": "f", "msg": packed}
    envelope = unpacked({**forward, "to": base58(AGENT.public)}, sender=None)
    read = ENVELOPES.of(envelope.version).read(envelope)
    assert read is not None
    assert read.is_forward
    assert ENVELOPES.of(read.version).read_forward(read, recipients_max=1) == Forward(
        [base58(AGENT.public)], [orjson.dumps(packed)]
    )
    assert ENVELOPES.is_own(base58(OURS.public))
    assert not ENVELOPES.is_own(base58(OTHER.public))


def test_an_answer_has_the_media_type_that_the_question_came_with_if_it_names_an_envelope() -> None:
    envelope = pack(b"{}", [AGENT.public], None)
    assert media_type_of(envelope, "application/ssi-agent-wire") in MEDIA_TYPES
    for used, named in (
        ("application/ssi-agent-wire", "application/ssi-agent-wire"),
        ("application/json", "application/didcomm-envelope-enc"),
        ("", "application/didcomm-envelope-enc"),
    ):
        assert media_type_of(envelope, used) == named


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ({"limit": -1}, "limit must be an integer, 0 or more"),
        ({"limit": True}, "limit must be an integer, 0 or more"),
        ({}, "limit must be an integer, 0 or more"),
        ({"limit": "-1"}, "limit must be an integer, 0 or more"),
        ({"limit": "1.0"}, "limit must be an integer, 0 or more"),
        ({"limit": "\u0661"}, "limit must be an integer, 0 or more"),
        ({"limit": "9" * 16}, "limit must be an integer, 0 or more"),
    ],
)
def test_a_count_that_is_none_is_named_with_its_rule(value: dict[str, Any], rule: str) -> None:
    found = message("messagepickup/2.0/delivery-request", **value).count("limit")
    assert isinstance(found, InvalidMember)
    assert found.sentence == rule


def test_every_reader_names_its_member_and_nothing_of_the_value() -> None:
    secret = {"s3cret": "value"}
    asks = message("x/1.0/y", a=secret)
    found = [asks.optional_text("a", 256), asks.count("a"), asks.flag("a"), asks.items("a")]
    for invalid in (*found, asks.texts("a", 3)):
        assert isinstance(invalid, InvalidMember)
        assert invalid.sentence.startswith("a must be ")
        assert "s3cret" not in invalid.sentence


def test_a_list_of_too_many_texts_is_refused_as_a_whole() -> None:
    assert message("x/1.0/y", ids=["1", "2"]).texts("ids", 2) == ["1", "2"]
    assert isinstance(message("x/1.0/y", ids=["1", "2"]).texts("ids", 1), InvalidMember)
    assert isinstance(message("x/1.0/y", ids=["1", 2]).texts("ids", 2), InvalidMember)


@pytest.mark.parametrize("kind", [None, 5, "", "ping", "trust_ping/1/", "/1.0/ping", "x/y/ping"])
def test_a_message_of_v1_whose_type_is_no_type_is_not_read(kind: object) -> None:
    envelope = unpacked({**PING, "@type": kind})
    assert ENVELOPES.of(envelope.version).read(envelope) is None
