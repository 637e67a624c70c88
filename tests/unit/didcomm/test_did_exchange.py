from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import Connect, Connection, UseInvitation
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_documents import PeerDocument, read_document, resolve
from http_edge.didcomm.envelopes.signed import read_attachment, sign_attachment
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from http_edge.didcomm.protocols.admission import NotAdmitted
from http_edge.didcomm.protocols.did_exchange import _document
from http_edge.didcomm.protocols.protocol import NOTHING, Request
from tests.unit.didcomm.inviter import (
    HTTP_URL,
    QUEUE,
    SERVICE,
    WS_URL,
    Inviter,
    Wallet,
    attached,
    exchange_request,
    inviter_of,
    is_usable,
)
from tests.unit.didcomm.requests import NEW, OLD, message, request_of, written
from tests.unit.didcomm.test_connections import ANYTHING

ALICE, MALLORY = Wallet(1), Wallet(666)
ATTACH: Final = "did_doc~attach"
ROTATE: Final = "did_rotate~attach"

RequestWith = Callable[[str], Request]


def peer1(invitation: str, minor: int = 1) -> Request:
    """As Credo 0.5 and its forerunners ask."""
    document = ALICE.peer1()
    signed = attached(document, ALICE.key)
    return exchange_request(ALICE, str(document["id"]), invitation, minor=minor, **signed)


def legacy(invitation: str, did: str = ALICE.unqualified, minor: int = 0) -> Request:
    """As ACA-Py asks by default up to 0.11, and with DID exchange 1.0 still."""
    signed = attached(ALICE.legacy_document(), ALICE.key)
    return exchange_request(ALICE, did, invitation, minor=minor, **signed)


REQUESTS: dict[str, tuple[RequestWith, str]] = {
    "did:peer:4": (lambda i: exchange_request(ALICE, ALICE.peer4, i), "did:peer:4"),
    "did:peer:4 with 1.0": (
        lambda i: exchange_request(ALICE, ALICE.peer4, i, minor=0),
        "did:peer:4",
    ),
    "did:peer:2": (lambda i: exchange_request(ALICE, ALICE.peer2, i), "did:peer:2"),
    "did:peer:0": (
        lambda i: exchange_request(ALICE, ALICE.did.replace("did:key:", "did:peer:0"), i),
        "did:peer:2",
    ),
    "did:key": (lambda i: exchange_request(ALICE, ALICE.did, i), "did:peer:4"),
    "did:peer:1": (peer1, "did:peer:1"),
    "did:peer:1 with 1.0": (lambda i: peer1(i, 0), "did:peer:1"),
    "no method": (legacy, ""),
    "no method with 1.1": (lambda i: legacy(i, minor=1), ""),
    "did:sov": (lambda i: legacy(i, f"did:sov:{ALICE.unqualified}"), ""),
}


def introduced(response: Json) -> PeerDocument:
    """The mediator as the response introduces it, after the signature was checked."""
    did = response["did"]
    assert isinstance(did, str)
    (name,) = {ATTACH, ROTATE} & set(response)
    signed = read_attachment(response[name])
    assert signed is not None
    assert signed.signers == (SERVICE.public,)
    if name == ROTATE:
        assert signed.content.decode("ascii") == did
        read = resolve(did)
    else:
        document = parse(signed.content)
        # ACA-Py: a DID without method in the message is a did:sov in the document.
        assert isinstance(document, dict)
        assert document["id"] in {did, f"did:sov:{did}"}
        read = read_document(did, document)
    assert read is not None
    return read


@pytest.mark.parametrize(("request_with", "prefix"), REQUESTS.values(), ids=REQUESTS)
async def test_a_request_is_answered_in_kind_and_signed_by_the_key_of_the_invitation(
    tmp_path: Path, request_with: RequestWith, prefix: str
) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        invitation = inviter.invite()
        asks = request_with(invitation)
        outcome = await inviter.ask(asks)
        assert outcome.may_wait
        response = written(outcome.reply, asks.message)
        assert response["@type"] == asks.message.type.sibling("response")
        assert response["~thread"] == {"thid": "message-1", "pthid": invitation}
        read = introduced(response)
        assert read.did.startswith(prefix or inviter.own.legacy_did)
        assert read.recipient_keys == (SERVICE.public,)
        assert read.endpoint == HTTP_URL


async def test_a_connection_stands_before_it_is_complete(tmp_path: Path) -> None:
    wallet = Wallet(5, "https://agent.example")
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite()
        await inviter.answer(exchange_request(wallet, wallet.peer4, invitation))
        short = ":".join(wallet.peer4.split(":")[:3])
        assert await inviter.connection(wallet) == Connection(
            short, "Alice", "https://agent.example", [], "didexchange/1.1", invitation
        )
        complete = message("didexchange/1.1/complete", **{"~thread": {"thid": "t", "pthid": "p"}})
        assert await inviter.ask(request_of(complete, wallet.key.public)) is NOTHING


@pytest.mark.parametrize("kind", ["problem_report", "problem-report"])
async def test_a_problem_report_is_not_answered(tmp_path: Path, kind: str) -> None:
    async with inviter_of(tmp_path) as inviter:
        assert await inviter.ask(request_of(message(f"didexchange/1.1/{kind}"))) is NOTHING


@pytest.mark.parametrize("minor", [0, 1])
async def test_the_minor_version_of_the_request_is_mirrored(tmp_path: Path, minor: int) -> None:
    async with inviter_of(tmp_path) as inviter:
        response = await inviter.answer(exchange_request(ALICE, ALICE.peer4, minor=minor))
        assert response["@type"] == f"{NEW}didexchange/1.{minor}/response"
        connection = await inviter.connection(ALICE)
        assert connection is not None
        assert connection.protocol == f"didexchange/1.{minor}"


async def test_the_prefix_of_an_old_agent_is_mirrored(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        asks = message("didexchange/1.0/request", OLD, did=ALICE.peer4)
        response = await inviter.answer(request_of(asks, ALICE.key.public))
        assert response["@type"] == f"{OLD}didexchange/1.0/response"


async def test_the_same_request_again_gets_the_same_answer_again(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        request = exchange_request(ALICE, ALICE.peer4, inviter.invite(single_use=True))
        answers = [await inviter.answer(request) for _ in range(3)]
        assert len({orjson.dumps({**answer, "@id": ""}) for answer in answers}) == 1


@pytest.mark.parametrize("form", ["json", "base64"])
async def test_an_unsigned_document_is_taken_from_the_holder_of_its_key_alone(
    tmp_path: Path, form: str
) -> None:
    document = ALICE.legacy_document()
    data = {"json": document, "base64": b64encode(orjson.dumps(document))}
    async with inviter_of(tmp_path) as inviter:
        members: Json = {ATTACH: {"data": {form: data[form]}}}
        asks = message("didexchange/1.1/request", did=ALICE.unqualified, **members)
        stolen = request_of(asks, MALLORY.key.public)
        assert await inviter.refusal(stolen) == "request_not_accepted"
        introduced(await inviter.answer(request_of(asks, ALICE.key.public)))


@pytest.mark.parametrize(("request_with", "_"), REQUESTS.values(), ids=REQUESTS)
async def test_no_agent_connects_with_the_did_of_another(
    tmp_path: Path, request_with: RequestWith, _: str
) -> None:
    async with inviter_of(tmp_path) as inviter:
        honest = request_with(inviter.invite(single_use=True))
        stolen = request_of(honest.message, MALLORY.key.public)
        assert await inviter.refusal(stolen) == "request_not_accepted"
        assert inviter.agents.seen == []
        introduced(await inviter.answer(honest))


def tampered(signed: Json) -> Json:
    """The same signature over another document."""
    other = write_attachment(
        sign_attachment(orjson.dumps({**ALICE.legacy_document(), "x": 1}), ALICE.key)
    )
    attachment: Any = signed[ATTACH]
    data: Any = other["data"]
    return {ATTACH: {**attachment, "data": {**data, "jws": attachment["data"]["jws"]}}}


LEGACY, PEER_1 = ALICE.legacy_document(), ALICE.peer1()
BROKEN: dict[str, Json] = {
    "no DID": {"did": None},
    "an empty DID": {"did": ""},
    "a DID that is a number": {"did": 7},
    "a DID that is too long": {"did": "did:peer:2.V" + "z" * 100_000},
    "a did:peer:4 in its short form": {"did": ":".join(ALICE.peer4.split(":")[:3])},
    "a did:peer:4 of another hash": {"did": ALICE.peer4.replace("4zQm", "4zQn", 1)},
    "a did:peer:3": {"did": "did:peer:3zQmS19jtYDvGtKVrJhQnRFpBQAx3pJ9omx2HpNrcXFuRCz9"},
    "a did:web": {"did": "did:web:example.com"},
    "a did:web with a document": {
        "did": "did:web:example.com",
        **attached({**LEGACY, "id": "did:web:example.com"}, ALICE.key),
    },
    "a did:key of another kind": {
        "did": "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169"
    },
    "no document": {"did": ALICE.unqualified},
    "a document by reference": {
        "did": ALICE.unqualified,
        ATTACH: {"data": {"links": ["https://agent.example/document"]}},
    },
    "an attachment that is a list": {"did": ALICE.unqualified, ATTACH: []},
    "a document signed by another": {
        "did": ALICE.unqualified,
        **attached(LEGACY, MALLORY.key),
    },
    "a document that was changed after it was signed": {
        "did": ALICE.unqualified,
        **tampered(attached(LEGACY, ALICE.key)),
    },
    "the document of another DID": {"did": MALLORY.unqualified, **attached(LEGACY, ALICE.key)},
    "a did:peer:1 with the document of another": {
        "did": str(MALLORY.peer1()["id"]),
        **attached(PEER_1, ALICE.key),
    },
    "a document that is no JSON": {
        "did": ALICE.unqualified,
        ATTACH: write_attachment(sign_attachment(b"{]", ALICE.key)),
    },
    "a document that is a list": {
        "did": ALICE.unqualified,
        ATTACH: write_attachment(sign_attachment(b"[]", ALICE.key)),
    },
}


@pytest.mark.parametrize("members", BROKEN.values(), ids=BROKEN)
async def test_a_request_that_cannot_be_believed_is_refused_and_uses_nothing_up(
    tmp_path: Path, members: Json
) -> None:
    async with inviter_of(tmp_path) as inviter:
        thread = {"thid": "message-1", "pthid": inviter.invite(single_use=True)}
        asks = message("didexchange/1.1/request", **{**members, "~thread": thread})
        assert await inviter.refusal(request_of(asks, ALICE.key.public)) == "request_not_accepted"
        assert inviter.agents.seen == []


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("a did:web", "did:peer 0, 1, 2 or 4, did:key, did:sov"),
        ("a did:peer:4 of another hash", "in the DID"),
        ("no document", "the attachment did_doc"),
        ("the document of another DID", "of another DID"),
        ("an attachment that is a list", "attachment did_doc is malformed"),
        ("a document signed by another", "signed by a key of its document"),
    ],
)
async def test_a_refusal_tells_the_author_of_a_wallet_where_to_look(
    tmp_path: Path, case: str, hint: str
) -> None:
    async with inviter_of(tmp_path) as inviter:
        asks = message("didexchange/1.1/request", **BROKEN[case])
        refused = await inviter.answer(request_of(asks, ALICE.key.public))
        assert hint in str(refused["explain"])


async def test_what_is_attached_to_a_did_that_holds_its_document_is_not_looked_at(
    tmp_path: Path,
) -> None:
    wallet = Wallet(5, "https://agent.example")
    misleading = {**wallet.legacy_document(), "id": wallet.peer4}
    misleading["service"] = [{**misleading["service"][0], "serviceEndpoint": "https://elsewhere"}]
    async with inviter_of(tmp_path) as inviter:
        members = {"did": wallet.peer4, **attached(misleading, wallet.key)}
        asks = message("didexchange/1.1/request", **members)
        await inviter.answer(request_of(asks, wallet.key.public))
        connection = await inviter.connection(wallet)
        assert connection is not None
        assert connection.endpoint == "https://agent.example"


async def report(inviter: Inviter, invitation: str) -> Json:
    asks = exchange_request(ALICE, ALICE.peer4, invitation)
    outcome = await inviter.ask(asks)
    assert not outcome.may_wait
    assert await inviter.connection(ALICE) is None
    return written(outcome.reply, asks.message)


async def test_a_refusal_has_the_form_of_the_rfc_and_the_form_that_agents_read(
    tmp_path: Path,
) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        refused = await report(inviter, "unknown")
        code = "request_not_accepted"
        explanation = (
            "An invitation of this mediator is needed, and its id as parent thread (pthid)."
        )
        assert refused == {
            "@type": f"{NEW}didexchange/1.1/problem_report",
            "@id": refused["@id"],
            "~thread": {"thid": "message-1", "pthid": "unknown"},
            "problem-code": code,
            "explain": explanation,
            "description": {"code": code, "en": explanation},
        }


@pytest.mark.parametrize("lost", [Connect, UseInvitation])
async def test_an_unknown_outcome_asks_for_the_same_request_again(
    tmp_path: Path, lost: type[Connect | UseInvitation]
) -> None:
    async with inviter_of(tmp_path) as inviter:
        request = exchange_request(ALICE, ALICE.peer4, inviter.invite(single_use=True))
        inviter.agents.lost = {lost}
        assert await inviter.refusal(request) == "request_processing_error"
        inviter.agents.lost = set()
        introduced(await inviter.answer(request))


async def test_both_our_endpoints_are_in_every_document(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        signed = read_attachment((await inviter.answer(peer1(inviter.invite())))[ATTACH])
        assert signed is not None
        document: Any = parse(signed.content)
        assert [service["serviceEndpoint"] for service in document["service"]] == [HTTP_URL, WS_URL]
        # What Credo demands of a document: its keys by reference, with a type and a controller.
        (method,) = document["verificationMethod"]
        assert document["authentication"] == [method["id"]]
        assert [service["recipientKeys"] for service in document["service"]] == 2 * [[method["id"]]]
        assert {"type", "publicKeyBase58"} <= set(method)
        assert method["controller"] == document["id"]


@pytest.mark.parametrize("endpoint", ["", QUEUE])
async def test_a_wallet_without_endpoint_fetches_its_messages(
    tmp_path: Path, endpoint: str
) -> None:
    wallet = Wallet(5, endpoint)
    async with inviter_of(tmp_path) as inviter:
        await inviter.answer(exchange_request(wallet, wallet.peer4))
        connection = await inviter.connection(wallet)
        assert connection is not None
        assert connection.endpoint == ""


@given(attachment=ANYTHING)
def test_whatever_is_attached_is_read_or_refused(attachment: object) -> None:
    for did in (ALICE.unqualified, "did:peer:1zQm"):
        request = message("didexchange/1.1/request", **{ATTACH: attachment})
        assert isinstance(_document(did, request), NotAdmitted)
        request = message("didexchange/1.1/request", **{ATTACH: {"data": {"json": attachment}}})
        read = _document(did, request)
        assert isinstance(read, NotAdmitted) or is_usable(read, did)


@given(did=st.text(max_size=300) | st.from_regex(r"did:(peer:[1-4]|key:z6Mk|sov:|web:).{0,80}"))
def test_whatever_is_named_as_did_is_read_or_refused(did: str) -> None:
    request = message("didexchange/1.1/request", **attached(LEGACY, ALICE.key))
    read = _document(did, request)
    assert isinstance(read, NotAdmitted) or read.did in {did, did_key(ALICE.key.public)}
