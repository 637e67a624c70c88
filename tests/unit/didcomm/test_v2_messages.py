"""DIDComm v2 through the seam: accounts, consistency, nesting, answers, forwards."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.crypto.encoding import b64encode
from http_edge.crypto.signatures import sign
from http_edge.didcomm.envelopes.agent_documents import read_agent_document
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import (
    NEW_PREFIX,
    Acknowledgement,
    Attachment,
    Attachments,
    ForOthers,
    MessageType,
    NewMessage,
    ProblemReport,
    Reply,
    UnknownSender,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX, encode_peer4, peer4_short
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_multibase
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v1.envelope import pack as pack_v1
from http_edge.didcomm.envelopes.v2.envelope import Recipient, Sender, seal
from http_edge.didcomm.envelopes.v2.signed import write_signed
from http_edge.didcomm.envelopes.versions import (
    Envelopes,
)
from tests.unit.didcomm.v2_agent import PING, V2Agent, keys_of, recipient
from tests.unit.didcomm.v2_mediator import (
    AGENT,
    ALICE,
    ALICE_DIDS,
    ENVELOPES,
    FORWARD,
    JWE,
    OTHER,
    OURS,
    OWN,
    OWN_DIDS,
    PEER4,
    message,
    read,
    unpacked,
)


@pytest.mark.parametrize("ours", OWN_DIDS)
@pytest.mark.parametrize("theirs", ALICE_DIDS)
def test_an_agent_is_answered_as_it_calls_itself_by_who_it_called(ours: str, theirs: str) -> None:
    taken = unpacked(ALICE.pack(ALICE.plaintext(theirs), recipient(OWN, ours), theirs))
    question = ENVELOPES.of(taken.version).read(taken)
    assert question is not None
    assert (question.addressed_to, question.sender_did) == (ours, theirs)
    assert taken.sender is not None
    body = ENVELOPES.answer(question, Reply("ping-response"), taken.sender, "answer-1")
    answer = ALICE.open(body, keys_of(OWN, ours))
    assert answer == {
        "typ": "application/didcomm-plain+json",
        "from": ours,
        "to": [theirs],
        "id": "answer-1",
        "type": NEW_PREFIX + "trust-ping/2.0/ping-response",
        "thid": "message-1",
        "created_time": 1_700_000_000,
        "body": {},
    }
    kid = orjson.loads(body)["recipients"][0]["header"]["kid"]
    assert kid == ALICE.named(theirs).agreement_kid


@pytest.mark.parametrize(
    ("to", "names_another"),
    [
        *(([each], False) for each in [*OWN_DIDS, *OWN.by_kid]),
        (["did:example:other", OWN.peer2], False),
        ([base58(OWN.key.public)], False),
        ([], False),
        (None, False),
        (OWN.peer2, False),
        (["did:example:other"], True),
        ([ALICE.dids.peer4, 7, None, "not a DID"], True),
        (["did:example:other"] * 64 + [OWN.peer2], True),
    ],
)
def test_a_message_that_names_others_alone_is_read_and_says_so(
    to: object, names_another: bool
) -> None:
    assert message(to=to).names_another is names_another
    forward = ALICE.plaintext(None, to=to, type=FORWARD, body={"next": "did:example:bob"})
    found = read(ALICE.pack(forward, recipient(OWN, OWN.peer2), None))
    assert found is not None
    assert found.names_another is names_another


def test_every_spelling_of_every_own_key_is_known() -> None:
    image, older = OWN.x25519.split(":")[2], OWN.x25519.split(":")[2][1:]
    kids = [
        *(f"{did}#key-2" for did in (OWN.peer2, OWN.peer4, OWN.peer4_short, OWN.web)),
        *(f"{OWN.peer2}#{fragment}" for fragment in (image, older)),
        *OWN_DIDS,
        f"{OWN.did_key}#{image}",
        f"{OWN.did_key}#{OWN.did_key.split(':')[2]}",
        f"{OWN.x25519}#{image}",
        f"{canonical_name(OWN.peer2)}#key-2",
    ]
    for kid in kids:
        to = Recipient(kid, PublicKey(Curve.X25519, OURS.curve_public))
        assert read(ALICE.pack(ALICE.plaintext(PEER4), to, PEER4)) is not None


def test_the_account_is_the_one_of_the_same_keys_in_v1_where_the_document_proves_it() -> None:
    bare = ALICE.dids.did_key  # stands for its only agreement key
    for did, kid in ((bare, None), (bare, bare), (ALICE.dids.peer2, None), (PEER4, None)):
        body = ALICE.pack(ALICE.plaintext(did), recipient(OWN, OWN.peer4), did, kid=kid)
        sender = unpacked(body).sender
        assert sender is not None
        assert sender.did == did_key(AGENT.public)
    v1 = ENVELOPES.unpack(pack_v1(b"{}", [OURS.public], AGENT))
    assert isinstance(v1, Unpacked)
    assert v1.sender is not None
    assert v1.sender.did == did_key(AGENT.public)


def document_with(signing: KeyPair | None, agreement: KeyPair) -> str:
    """A did:peer:4 of keys that belong together or not."""
    keys = {"#a": PublicKey(Curve.X25519, agreement.curve_public)}
    if signing is not None:
        keys["#s"] = PublicKey(Curve.ED25519, signing.public)
    return encode_peer4(
        {
            "verificationMethod": [
                {"id": name, "type": "Multikey", "publicKeyMultibase": write_multibase(key)}
                for name, key in keys.items()
            ],
            "authentication": ["#s"] if signing else [],
            "keyAgreement": ["#a"],
        }
    )


@pytest.mark.parametrize("signing", [OTHER, None])
def test_an_account_of_other_keys_is_the_did_in_its_short_form(signing: KeyPair | None) -> None:
    did = document_with(signing, AGENT)
    body = ALICE.pack(
        ALICE.plaintext(did), recipient(OWN, OWN.did_key), ALICE.dids.did_key, kid=f"{did}#a"
    )
    sender = unpacked(body).sender
    assert sender is not None
    assert sender.did == peer4_short(did)


def test_a_document_that_lists_the_keys_of_another_gives_no_account_of_it() -> None:
    stolen = document_with(OTHER, OTHER)
    body = ALICE.pack(ALICE.plaintext(stolen), recipient(OWN, OWN.peer4), PEER4, kid=f"{stolen}#a")
    assert ENVELOPES.unpack(body) is UnpackRejection.UNDECRYPTABLE


def test_a_short_did_is_known_once_its_long_form_was_proven() -> None:
    envelopes, short = Envelopes(OWN), peer4_short(PEER4)
    to, kid = recipient(OWN, OWN.peer2), f"{short}#key-2"
    by_short = ALICE.pack(ALICE.plaintext(short), to, PEER4, kid=kid)
    assert envelopes.unpack(by_short) == UnknownSender(short)
    unproven = orjson.loads(ALICE.pack(ALICE.plaintext(PEER4), to, PEER4))
    unproven["tag"] = unproven["iv"] + unproven["iv"]
    assert not isinstance(envelopes.unpack(orjson.dumps(unproven)), Unpacked)
    assert envelopes.unpack(by_short) == UnknownSender(short)
    assert read(ALICE.pack(ALICE.plaintext(PEER4), to, PEER4), envelopes) is not None
    taken = unpacked(by_short, envelopes)
    question = envelopes.of(taken.version).read(taken)
    assert question is not None
    assert question.sender_did == short
    assert taken.sender is not None
    assert taken.sender.did == did_key(AGENT.public)
    answer = envelopes.answer(question, Acknowledgement(), taken.sender, "1")
    assert ALICE.open(answer, keys_of(OWN, OWN.peer2))["to"] == [short]
    assert question.whole_did == PEER4
    another = Envelopes(OWN)
    another.seen.learn(PEER4)
    assert read(by_short, another) == question


@pytest.mark.parametrize("claimed", [None, "did:example:other", OWN.peer2, did_key(OTHER.public)])
def test_who_says_to_be_another_than_who_packed_it_is_not_read(claimed: str | None) -> None:
    body = ALICE.pack(ALICE.plaintext(claimed), recipient(OWN, OWN.peer2), PEER4)
    assert read(body) is None


@pytest.mark.parametrize("claimed", ["did:web:b.example:" + "b" * 300, "no DID"])
def test_a_did_that_is_too_long_for_a_name_is_no_other_such_did(claimed: str) -> None:
    long = "did:web:a.example:" + "a" * 300
    key = {"id": f"{long}#1", "publicKeyMultibase": ALICE.dids.x25519.split(":")[2]}
    document = read_agent_document(long, {"keyAgreement": [key, key["id"]]})
    envelopes = Envelopes(OWN, fetched={long: document}.get)
    for sender, is_read in ((long, True), (claimed, False)):
        whole = ALICE.plaintext(sender)
        body = ALICE.pack(whole, recipient(OWN, OWN.peer2), long, kid=f"{long}#1")
        assert (read(body, envelopes) is not None) is is_read


def test_the_sender_may_call_itself_by_the_short_form() -> None:
    body = ALICE.pack(ALICE.plaintext(peer4_short(PEER4)), recipient(OWN, OWN.peer2), PEER4)
    assert read(body) is not None


@pytest.mark.parametrize(
    "members",
    [
        {"id": None},
        {"id": ""},
        {"id": 5},
        {"id": "x" * 257},
        {"type": None},
        {"type": ""},
        {"type": 5},
        {"type": "x" * 257},
        {"body": []},
        {"body": "text"},
        {"from": 5},
        {"from": ["did:example:1"]},
        {"from": "did:example:" + "x" * DID_CHARS_MAX},
    ],
)
def test_what_is_no_message_is_not_read(members: dict[str, Any]) -> None:
    whole = {**ALICE.plaintext(None), **members}
    assert read(ALICE.pack(whole, recipient(OWN, OWN.peer2), None)) is None


def test_headers_are_read() -> None:
    found = message(
        thid="thread",
        pthid="parent",
        return_route="all",
        expires_time=1_700_000_001,
        please_ack=["", "x"],
        attachments=[{"id": "1"}],
        body={"response_requested": True},
    )
    assert found.version == "v2"
    assert found.type == MessageType(NEW_PREFIX, "trust-ping", 2, 0, "ping")
    assert (found.thread_id, found.parent_thread_id) == ("thread", "parent")
    assert (found.return_route, found.return_route_thread) == ("all", "thread")
    assert found.expires_at_s == 1_700_000_001
    assert found.wants_ack
    assert found.attachments == {"": [{"id": "1"}]}
    assert found.body == {"response_requested": True}


def test_ids_are_compared_without_case() -> None:
    for wish in (["MESSAGE-1"], ["other", "Message-1"]):
        assert message(please_ack=wish).wants_ack
    others: list[Any] = [[], ["message-2"], [["message-1"]], [None, 1, {}]]
    for wish in others:
        assert not message(please_ack=wish).wants_ack


def test_a_sender_that_names_a_key_of_its_did_is_the_did() -> None:
    whole = {**ALICE.plaintext(PEER4), "from": f"{PEER4}#key-1"}
    found = read(ALICE.pack(whole, recipient(OWN, OWN.peer2), PEER4))
    assert found is not None
    assert found.sender_did == PEER4
    nameless = {**whole, "from": "#key-1"}
    assert read(ALICE.pack(nameless, recipient(OWN, OWN.peer2), PEER4)) is None


def test_headers_may_be_missing_or_wrong_and_then_mean_nothing() -> None:
    plain = message(body=None)
    odd = message(
        thid=5,
        pthid=["x"],
        return_route=["all"],
        expires_time="soon",
        please_ack="yes",
        body=None,
    )
    assert plain == odd
    assert (plain.thread_id, plain.return_route, plain.body) == ("message-1", "none", {})
    assert (plain.expires_at_s, plain.wants_ack) == (None, False)
    for given, at_s in ((True, None), (-1, 0), (2**40, 2**40), (2**40 + 1, None)):
        assert message(expires_time=given).expires_at_s == at_s


def test_a_type_of_no_known_form_is_one_of_an_unknown_protocol() -> None:
    assert message(type="https://example.com/odd").type == MessageType(
        "https://example.com/odd", "", 0, 0, "odd"
    )


def test_answers_stand_in_the_thread_and_confirm_what_asks_for_it() -> None:
    taken = unpacked(
        ALICE.pack(
            ALICE.plaintext(PEER4, thid="t", pthid="p", please_ack=[""]),
            recipient(OWN, OWN.peer2),
            PEER4,
        )
    )
    question = ENVELOPES.of(taken.version).read(taken)
    assert question is not None
    assert taken.sender is not None
    sender = taken.sender

    def answered(answer: Reply | ProblemReport | Acknowledgement) -> dict[str, Any]:
        return ALICE.open(ENVELOPES.answer(question, answer, sender, "1"), keys_of(OWN, OWN.peer2))

    reply = answered(Reply("ping-response", {"x": 1}, names_parent=True))
    assert (reply["thid"], reply["pthid"], reply["ack"]) == ("t", "p", ["message-1"])
    report = answered(ProblemReport("no", "No.", "none", "e.p.msg.{type}"))
    assert report["type"] == NEW_PREFIX + "report-problem/2.0/problem-report"
    assert (report["thid"], report["pthid"]) == ("t", "t")
    assert report["body"] == {"code": f"e.p.msg.{PING}", "comment": "No."}
    own = answered(ProblemReport("no", "No.", "none", "e.m.no", is_own=True))
    assert own["type"] == NEW_PREFIX + "trust-ping/2.0/problem-report"
    assert answered(Reply("disclosures"))["type"] == NEW_PREFIX + "trust-ping/2.0/disclose"
    assert "attachments" not in reply
    assert "pthid" not in answered(Reply("ping-response"))
    assert answered(Reply("delivery", attachments={"": []}))["attachments"] == []
    empty = answered(Acknowledgement())
    assert empty["type"] == NEW_PREFIX + "empty/1.0/empty"
    assert (empty["ack"], empty["body"]) == (["message-1"], {})


def test_a_problem_report_names_the_message_of_the_thread_that_failed() -> None:
    """Whether or not that asks for it (DIDComm Messaging 2.1, problem reports: ``ack``)."""
    taken = unpacked(ALICE.pack(ALICE.plaintext(PEER4, thid="t"), recipient(OWN, OWN.peer2), PEER4))
    question = ENVELOPES.of(taken.version).read(taken)
    assert question is not None
    assert not question.wants_ack
    assert taken.sender is not None
    ping = Reply("ping-response", names_parent=True)
    answers = ProblemReport("no", "No.", "none", "e.m.no"), ping
    report, reply = (
        ALICE.open(ENVELOPES.answer(question, one, taken.sender, "1"), keys_of(OWN, OWN.peer2))
        for one in answers
    )
    assert (report["pthid"], report["ack"]) == ("t", ["message-1"])
    assert not {"ack", "pthid"} & reply.keys()


def test_attachments_of_a_member_are_among_those_of_the_whole_message() -> None:
    sender = unpacked(ALICE.pack(ALICE.plaintext(PEER4), recipient(OWN, OWN.web), PEER4)).sender
    assert sender is not None
    attached: Attachments = {"": [Attachment("m1", b"{}")], "x": Attachment("m2", b"{}")}
    sent = ENVELOPES.pack(NewMessage("x/1.0/y", {}, attached), sender, "new-1")
    opened = ALICE.open(sent, keys_of(OWN, OWN.web))
    assert [one["id"] for one in opened["attachments"]] == ["m1", "m2"]


def test_a_message_of_ours_carries_envelopes_in_base64_or_as_they_are() -> None:
    sender = unpacked(ALICE.pack(ALICE.plaintext(PEER4), recipient(OWN, OWN.web), PEER4)).sender
    assert sender is not None
    envelope = orjson.dumps(JWE)
    attached = [Attachment("m1", envelope), Attachment("m2", envelope, inlined=True)]
    delivery = NewMessage("messagepickup/3.0/delivery", {"recipient_did": "x"}, {"": attached})
    sent = ALICE.open(ENVELOPES.pack(delivery, sender, "new-1"), keys_of(OWN, OWN.web))
    first, second = sent["attachments"]
    assert sent["from"] == OWN.web
    assert "thid" not in sent
    assert first["id"] == "m1"
    assert set(first) == {"id", "data"}
    assert second == {"id": "m2", "data": {"json": JWE}}


# ---- nesting


def signed_by(key: KeyPair, did: str, **members: Any) -> dict[str, Any]:
    plain = {**ALICE.plaintext(did), "to": [OWN.peer2], **members}
    fragment = did.split(":")[2]
    return write_signed(orjson.dumps(plain), f"{did}#{fragment}", key)


def naming_another(key: KeyPair, did: str) -> dict[str, Any]:
    """A signature whose protected header names its key, and the header beside it another one."""
    kid = f"{did}#{did.split(':')[2]}"
    protected = b64encode(orjson.dumps({"alg": "EdDSA", "kid": kid}))
    text = b64encode(orjson.dumps({**ALICE.plaintext(did), "to": [OWN.peer2]}))
    signature = b64encode(sign(key.seed, f"{protected}.{text}".encode()))
    one = {"protected": protected, "signature": signature, "header": {"kid": f"{PEER4}#key-1"}}
    return {"payload": text, "signatures": [one]}


def test_what_may_stand_in_one_another_is_read() -> None:
    to, did = recipient(OWN, OWN.peer2), ALICE.dids.did_key
    inner = ALICE.pack(ALICE.plaintext(did), to, did)
    signed = signed_by(AGENT, did)
    in_anonymous = ALICE.pack(orjson.loads(inner), to, None)
    assert unpacked(in_anonymous).sender == unpacked(inner).sender
    assert read(in_anonymous) == read(inner)
    found = unpacked(ALICE.pack(signed, to, did))
    assert found.sender == unpacked(inner).sender
    assert ENVELOPES.of(found.version).read(found) is not None
    # A signature says who wrote it and not to whom: it gives no account.
    found = unpacked(ALICE.pack(signed, to, None))
    assert found.sender is None
    assert ENVELOPES.of(found.version).read(found) is not None


def test_what_may_not_stand_in_one_another_is_refused() -> None:
    to, did = recipient(OWN, OWN.peer2), ALICE.dids.did_key
    inner = orjson.loads(ALICE.pack(ALICE.plaintext(did), to, did))
    anonymous = orjson.loads(ALICE.pack(ALICE.plaintext(did), to, None))
    foreign = orjson.loads(ALICE.pack(ALICE.plaintext(did), Recipient("did:x#1", to.key), did))
    wrong = signed_by(OTHER, did)
    others = signed_by(OTHER, did_key(OTHER.public))
    in_anothers_name = signed_by(OTHER, did_key(OTHER.public), **{"from": did})
    pair = [*signed_by(AGENT, did)["signatures"], *in_anothers_name["signatures"]]
    nowhere = signed_by(AGENT, did, to=None)
    cases: list[tuple[Any, str | None]] = [
        (anonymous, None),
        (foreign, None),
        (orjson.loads(ALICE.pack(inner, to, None)), None),
        (wrong, did),
        (wrong, None),
        (others, did),
        (in_anothers_name, did),
        (in_anothers_name, None),
        ({**in_anothers_name, "signatures": pair}, None),
        (nowhere, did),
        (nowhere, None),
        ({**signed_by(AGENT, did), "payload": "e30"}, did),
        (naming_another(AGENT, did), did),
    ]
    for content, sender in cases:
        found = ENVELOPES.unpack(ALICE.pack(content, to, sender))
        assert found is UnpackRejection.UNDECRYPTABLE, content
    # An envelope in an authenticated one is a message without a type.
    assert read(ALICE.pack(inner, to, did)) is None


@pytest.mark.parametrize("content", [b"5", b"null", b'"payload"', b"[]", b"{", b'{"n":9e999}'])
def test_what_is_no_object_in_an_envelope_or_a_signature_is_refused(content: bytes) -> None:
    did, to = ALICE.dids.did_key, [recipient(OWN, OWN.peer2)]
    packed = seal(content, to, Sender(ALICE.named(did).agreement_kid, ALICE.key, ALICE.secrets))
    # The envelope opens, so its sender need not look for a fault in its cryptography.
    for whole in (content, packed):
        body = seal(whole, to, None)
        assert ENVELOPES.unpack(body) is UnpackRejection.NOT_A_MESSAGE
    signed = write_signed(content, f"{did}#{did.split(':')[2]}", AGENT)
    body = seal(orjson.dumps(signed), to, None)
    assert ENVELOPES.unpack(body) is UnpackRejection.UNDECRYPTABLE


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps(ALICE.plaintext(PEER4)),
        orjson.dumps(signed_by(AGENT, ALICE.dids.did_key)),
        orjson.dumps(JWE),
        b'{"ciphertext":"eA","recipients":[{"header":{"kid":"x"},"encrypted_key":"eA"}]}',
    ],
)
def test_what_is_not_encrypted_is_no_envelope(body: bytes) -> None:
    assert ENVELOPES.unpack(body) is UnpackRejection.NOT_AN_ENVELOPE


def test_an_envelope_with_a_member_twice_is_no_envelope() -> None:
    body = ALICE.pack(ALICE.plaintext(PEER4), recipient(OWN, OWN.peer2), PEER4)
    assert ENVELOPES.unpack(body.replace(b'{"protected"', b'{"tag":"eA","protected"', 1)) is (
        UnpackRejection.NOT_AN_ENVELOPE
    )


@pytest.mark.parametrize(
    ("kids", "refusal"),
    [
        ([f"{OWN.peer2}#key-1"], UnpackRejection.UNDECRYPTABLE),  # our key for signatures
        ([f"{OWN.web}#key-9", f"{OWN.peer4_short}#key-3"], UnpackRejection.UNDECRYPTABLE),
        (["#key-2"], UnpackRejection.NOT_AN_ENVELOPE),
        (["key-2", ""], UnpackRejection.NOT_AN_ENVELOPE),
    ],
)
def test_a_sender_learns_that_its_key_id_is_none_of_ours_or_no_did(
    kids: list[str], refusal: UnpackRejection
) -> None:
    key = recipient(OWN, OWN.peer2).key
    to = [Recipient(kid, key) for kid in kids]
    assert ENVELOPES.unpack(seal(b"{}", to, None)) is refusal
    to.append(Recipient(f"{PEER4}#key-2", key))
    found = ENVELOPES.unpack(seal(b"{}", to, None))
    assert found == ForOthers([canonical_name(PEER4) or ""], "v2")


def test_an_envelope_for_others_names_them_once_whatever_their_spelling() -> None:
    bob = V2Agent(OTHER)
    key = PublicKey(Curve.X25519, OTHER.curve_public)
    kids = [f"{bob.dids.peer4}#key-2", bob.dids.peer4_short, f"{bob.dids.did_key}#x"]
    body = seal(b"{}", [Recipient(kid, key) for kid in kids], None)
    found = ENVELOPES.unpack(body)
    assert isinstance(found, ForOthers)
    assert sorted(found.recipients) == sorted([base58(OTHER.public), bob.dids.peer4_short])
