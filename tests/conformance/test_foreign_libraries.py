"""Messages between the mediator and other libraries of DIDComm v2, both ways."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.agent_documents import AgentDocument, resolve_document
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Reply, Unpacked, UnpackRejection
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.versions import wrap
from tests.conformance.foreign import LIBRARIES, Library, document_of, secrets_of
from tests.unit.didcomm.v2_agent import PING, keys_of
from tests.unit.didcomm.v2_mediator import ENVELOPES, JWE, OWN

AGENT = KeyPair.from_seed(b"f" * 32)
DIDS = OwnDids(AGENT)
OURS = [OWN.peer2, OWN.peer4, OWN.did_key, OWN.x25519]
THEIRS = [DIDS.peer2, DIDS.peer4, DIDS.did_key]


@pytest.fixture(params=LIBRARIES, ids=lambda each: each.name)
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.param
    if not found.home.exists():
        pytest.skip(f"{found.requirement} is not installed: make conformance")
    return found


def agent(did: str) -> AgentDocument:
    found = resolve_document(did)
    assert found is not None
    return found


def answer_of(library: Library, theirs: str, ours: str, **question: Any) -> dict[str, Any]:
    """A question to the library about the agent, which has the ids of ours in the document."""
    found = agent(theirs)
    own = AgentDocument(
        theirs,
        found.short,
        dict(list(found.authentication.items())[:1]),
        dict(list(found.agreement.items())[:1]),
    )
    mediator = keys_of(OWN, ours)
    documents = [document_of(own), document_of(mediator)]
    return library.ask(documents=documents, secrets=secrets_of(own, AGENT), **question)


def packed_by(library: Library, theirs: str, ours: str, *, anonymous: bool, hide: bool) -> bytes:
    message = {"id": "m1", "type": PING, "body": {"x": 1}, "from": theirs, "to": [ours]}
    sender = None if anonymous else theirs
    question = {"do": "pack", "message": message, "to": ours, "from": sender, "hide": hide}
    return orjson.dumps(answer_of(library, theirs, ours, **question)["packed"])


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_the_mediator_opens_what_a_library_packs_and_is_answered_to(
    library: Library, ours: str, theirs: str
) -> None:
    found = ENVELOPES.unpack(packed_by(library, theirs, ours, anonymous=False, hide=False))
    if not library.authenticates:
        assert found is UnpackRejection.NOT_AN_ENVELOPE
        return
    assert isinstance(found, Unpacked)
    question = ENVELOPES.of(found.version).read(found)
    assert question is not None
    assert found.sender is not None
    assert (found.sender.did, question.body) == (DIDS.did_key, {"x": 1})
    answer = ENVELOPES.answer(question, Reply("ping-response", {"y": 2}), found.sender, "m2")
    opened = answer_of(library, theirs, ours, do="unpack", packed=orjson.loads(answer))
    assert opened["authenticated"]
    assert opened["sender_kid"].partition("#")[0] == ours
    assert opened["message"]["type"] == NEW_PREFIX + "trust-ping/2.0/ping-response"
    assert opened["message"]["body"] == {"y": 2}


def test_the_mediator_opens_what_a_library_packs_anonymously(library: Library) -> None:
    body = packed_by(library, DIDS.peer2, OWN.peer2, anonymous=True, hide=False)
    found = ENVELOPES.unpack(body)
    assert isinstance(found, Unpacked)
    assert found.sender is None
    assert ENVELOPES.of(found.version).read(found) is not None


def test_the_mediator_opens_an_envelope_that_hides_its_sender(library: Library) -> None:
    if not library.reads_nested:
        pytest.skip(f"{library.name} packs no envelope in another")
    body = packed_by(library, DIDS.peer4, OWN.peer4, anonymous=False, hide=True)
    found = ENVELOPES.unpack(body)
    assert isinstance(found, Unpacked)
    assert found.sender is not None


def test_a_library_follows_a_forward_of_ours(library: Library) -> None:
    if not library.reads_forwards:
        pytest.skip(f"{library.name} has no mediator")
    theirs = DIDS.peer2
    envelope = orjson.dumps(JWE)
    kid = f"{theirs}#{next(iter(agent(theirs).agreement))}"
    wrapped = wrap(envelope, "did:example:key", "did:example:next", [kid], lambda: "f1")
    assert wrapped is not None
    found = answer_of(library, theirs, OWN.peer2, do="forward", packed=orjson.loads(wrapped))
    assert (found["next"], found["message"]) == ("did:example:next", JWE)
