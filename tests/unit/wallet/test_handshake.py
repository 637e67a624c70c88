"""Who may answer a handshake: the holder of the invitation's key, in the thread of the request."""

from __future__ import annotations

import re

import aiohttp
import orjson
import pytest

from http_edge.clients.didcomm import (
    DidMethod,
    Handshake,
    HandshakeProtocol,
    NotAuthentic,
    Opened,
    ProblemReported,
    UnexpectedAnswer,
    Wallet,
    read_invitation,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_documents import PeerDocument, read_document, resolve
from http_edge.didcomm.envelopes.signed import TEXT_TYPE, read_attachment, sign_attachment
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from tests.unit.wallet.scripted_mediator import SERVICE, STRANGER, ScriptedMediator, problem

KEY = KeyPair.from_seed(b"w" * 32)
WAYS: list[tuple[HandshakeProtocol, DidMethod]] = [
    ("didexchange/1.1", "peer4"),
    ("didexchange/1.1", "legacy"),
    ("didexchange/1.0", "peer2"),
    ("connections/1.0", "legacy"),
]
SIGNED = [way for way in WAYS if way[1] != "peer2"]
every_way = pytest.mark.parametrize(("protocol", "method"), WAYS)
every_signed_way = pytest.mark.parametrize(("protocol", "method"), SIGNED)


def handshake(protocol: HandshakeProtocol, method: DidMethod) -> Handshake:
    return Handshake(
        read_invitation(Scripted().invitation()), KEY, protocol, method, label="bob", id="request-1"
    )


class Scripted(ScriptedMediator):
    """One that is not started and says where it would listen."""

    @property
    def url(self) -> str:
        return "http://mediator.test/didcomm"


def document_of(request: Json) -> PeerDocument | None:
    """What the mediator's side reads in a request."""
    if "connection" in request:
        connection = request["connection"]
        assert isinstance(connection, dict)
        return read_document(connection["DID"], connection["DIDDoc"])
    if "did_doc~attach" not in request:
        return resolve(str(request["did"]))
    signed = read_attachment(request["did_doc~attach"])
    assert signed is not None
    assert signed.signers == (KEY.public,)
    return read_document(str(request["did"]), orjson.loads(signed.content))


@every_way
def test_the_request_shows_a_document_with_the_key_and_no_endpoint(
    protocol: HandshakeProtocol, method: DidMethod
) -> None:
    shaking = handshake(protocol, method)
    request = shaking.request()
    assert request["~transport"] == {"return_route": "all"}
    assert request["~thread"] == {"thid": "request-1", "pthid": "invitation-1"}
    document = document_of(request)
    assert document is not None
    assert (document.recipient_keys, document.endpoint) == ((KEY.public,), "")


def test_an_endpoint_is_shown() -> None:
    invitation = read_invitation(Scripted().invitation())
    request = Handshake(invitation, KEY, endpoint="https://bob.example/in").request()
    document = document_of(request)
    assert document is not None
    assert document.endpoint == "https://bob.example/in"


@every_way
def test_a_proven_response_is_a_connection(protocol: HandshakeProtocol, method: DidMethod) -> None:
    shaking = handshake(protocol, method)
    response = Scripted().response(shaking.request())
    connection = shaking.accept(Opened(response, SERVICE.public))
    assert connection.mediator_key == SERVICE.public
    assert connection.http_url == "http://mediator.test/didcomm"
    assert connection.ws_url == "ws://mediator.test/didcomm"
    assert connection.did == shaking.did


@every_signed_way
def test_a_response_signed_by_another_key_is_refused(
    protocol: HandshakeProtocol, method: DidMethod
) -> None:
    shaking, mediator = handshake(protocol, method), Scripted()
    mediator.signer = STRANGER
    with pytest.raises(NotAuthentic):
        shaking.accept(Opened(mediator.response(shaking.request()), SERVICE.public))


@every_signed_way
def test_a_response_whose_signature_is_of_other_bytes_is_refused(
    protocol: HandshakeProtocol, method: DidMethod
) -> None:
    shaking, mediator = handshake(protocol, method), Scripted()
    signed = orjson.dumps(mediator.response(shaking.request()))
    mediator.signer = STRANGER
    other = orjson.dumps(mediator.response(shaking.request()))
    (theirs,), (ours,) = (re.findall(rb'"signature":"([^"]+)"', each) for each in (other, signed))
    with pytest.raises(NotAuthentic, match="signature of"):
        shaking.accept(Opened(orjson.loads(signed.replace(ours, theirs)), SERVICE.public))


@every_way
@pytest.mark.parametrize("packer", [STRANGER.public, None], ids=["a stranger", "no sender"])
def test_a_response_packed_by_another_key_is_refused(
    protocol: HandshakeProtocol, method: DidMethod, packer: bytes | None
) -> None:
    shaking = handshake(protocol, method)
    with pytest.raises(NotAuthentic):
        shaking.accept(Opened(Scripted().response(shaking.request()), packer))


def test_a_rotation_to_another_did_is_refused() -> None:
    shaking = handshake("didexchange/1.1", "peer4")
    other = write_attachment(sign_attachment(b"did:peer:4other", SERVICE, media_type=TEXT_TYPE))
    response = {**Scripted().response(shaking.request()), "did_rotate~attach": other}
    with pytest.raises(NotAuthentic):
        shaking.accept(Opened(response, SERVICE.public))


@every_signed_way
def test_a_response_without_its_proof_is_refused(
    protocol: HandshakeProtocol, method: DidMethod
) -> None:
    shaking = handshake(protocol, method)
    response = Scripted().response(shaking.request())
    for member in ("connection~sig", "did_rotate~attach", "did_doc~attach"):
        response.pop(member, None)
    with pytest.raises((NotAuthentic, UnexpectedAnswer)):
        shaking.accept(Opened(response, STRANGER.public))


@every_way
def test_a_response_to_another_request_is_refused(
    protocol: HandshakeProtocol, method: DidMethod
) -> None:
    shaking = handshake(protocol, method)
    response = {**Scripted().response(shaking.request()), "~thread": {"thid": "another"}}
    with pytest.raises(UnexpectedAnswer):
        shaking.accept(Opened(response, SERVICE.public))


def test_a_refusal_is_a_problem_with_its_code() -> None:
    shaking = handshake("didexchange/1.1", "peer4")
    with pytest.raises(ProblemReported) as reported:
        shaking.accept(Opened(problem("request_not_accepted", "not you"), SERVICE.public))
    assert (reported.value.code, reported.value.text) == ("request_not_accepted", "not you")


@every_way
async def test_a_wallet_connects_and_says_that_it_did(
    session: aiohttp.ClientSession,
    mediator: ScriptedMediator,
    protocol: HandshakeProtocol,
    method: DidMethod,
) -> None:
    short = str(mediator.server.make_url("/invitation"))
    wallet = await Wallet.connect(
        short, session=session, handshake=protocol, did_method=method, key=KEY
    )
    assert wallet.connection.http_url == mediator.url
    assert wallet.connection.key == KEY
    last = "ping" if protocol == "connections/1.0" else "complete"
    assert mediator.names == ["request", last]
    assert "~transport" not in mediator.received[-1]
