from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import Connect, Connection, UseInvitation
from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.keys import base58
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_documents import read_document
from http_edge.didcomm.envelopes.signed import verify_member
from http_edge.didcomm.protocols.admission import NotAdmitted
from http_edge.didcomm.protocols.connections import _document
from http_edge.didcomm.protocols.protocol import NOTHING
from http_edge.listener.address_charge import AddressCharge, AddressRates, charged_to
from http_edge.settings.settings import Rates
from tests.unit.didcomm.inviter import (
    HTTP_URL,
    SERVICE,
    WS_URL,
    Inviter,
    Wallet,
    connection_request,
    inviter_of,
    is_usable,
)
from tests.unit.didcomm.requests import NEW, OLD, message, request_of, written

ALICE, MALLORY = Wallet(1), Wallet(666)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=12,
)


def connection_in(response: Json) -> Json:
    """What the response says of the mediator, after the signature was checked."""
    verified = verify_member(response["connection~sig"])
    assert verified is not None
    connection, signer = verified
    assert signer == SERVICE.public
    return connection


@pytest.mark.parametrize("prefix", [OLD, NEW], ids=["old prefix", "new prefix"])
async def test_a_request_is_answered_with_our_document_signed_by_the_key_of_the_invitation(
    tmp_path: Path, prefix: str
) -> None:
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite()
        response = await inviter.answer(connection_request(ALICE, invitation, prefix=prefix))
        assert response["@type"] == f"{prefix}connections/1.0/response"
        assert response["~thread"] == {"thid": "message-1", "pthid": invitation}
        connection = connection_in(response)
        assert set(connection) == {"DID", "DIDDoc"}
        read = read_document(str(connection["DID"]), connection["DIDDoc"])
        assert read is not None
        assert read.recipient_keys == (SERVICE.public,)
        assert read.routing_keys == ()
        assert read.endpoint == HTTP_URL
        assert isinstance(connection["DIDDoc"], dict)
        assert connection["DIDDoc"]["@context"] == "https://w3id.org/did/v1"
        services = connection["DIDDoc"]["service"]
        assert [service["serviceEndpoint"] for service in services] == [HTTP_URL, WS_URL]


async def test_a_request_without_a_parent_thread_is_answered_without(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        response = await inviter.answer(connection_request(ALICE))
        assert response["~thread"] == {"thid": "message-1"}


async def test_a_response_that_cannot_go_back_at_once_waits(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        assert (await inviter.ask(connection_request(ALICE))).may_wait


async def test_what_the_agent_said_of_itself_is_kept_under_the_key_that_packed_it(
    tmp_path: Path,
) -> None:
    endpoint, routing = "https://agent.example/in?x=1", base58(MALLORY.key.public)
    wallet = Wallet(5, endpoint)
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite()
        document = wallet.legacy_document()
        (service,) = document["service"]
        document["service"] = [{**service, "routingKeys": [routing]}]
        said = {"DID": wallet.unqualified, "DIDDoc": document}
        await inviter.answer(connection_request(wallet, invitation, connection=said))
        assert await inviter.connection(wallet) == Connection(
            wallet.unqualified, "Alice", endpoint, [routing], "connections/1.0", invitation
        )


async def test_an_agent_without_endpoint_fetches_its_messages(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        await inviter.answer(connection_request(ALICE))
        connection = await inviter.connection(ALICE)
        assert connection is not None
        assert connection.endpoint == ""


async def test_the_same_request_again_gets_a_valid_response_again(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        request = connection_request(ALICE, inviter.invite(single_use=True))
        for _ in range(3):
            assert connection_in(await inviter.answer(request))["DID"] == inviter.own.legacy_did


@pytest.mark.parametrize(
    ("label", "kept"), [("Ann", "Ann"), ("x" * 200, "x" * 128), (7, ""), (None, ""), ({}, "")]
)
async def test_a_label_is_a_short_text_or_none(tmp_path: Path, label: object, kept: str) -> None:
    async with inviter_of(tmp_path) as inviter:
        await inviter.answer(connection_request(ALICE, label=label))
        connection = await inviter.connection(ALICE)
        assert connection is not None
        assert connection.label == kept


BROKEN: dict[str, Any] = {
    "no connection": None,
    "a connection that is a text": "did",
    "no DID": {"DIDDoc": ALICE.legacy_document()},
    "a DID that is a number": {"DID": 1, "DIDDoc": ALICE.legacy_document()},
    "no document": {"DID": ALICE.unqualified},
    "a document that is a text": {"DID": ALICE.unqualified, "DIDDoc": "{}"},
    "a document without keys": {"DID": ALICE.unqualified, "DIDDoc": {"id": ALICE.unqualified}},
    "the document of another": {"DID": MALLORY.unqualified, "DIDDoc": ALICE.legacy_document()},
    "a DID that is too long": {"DID": "x" * 5_000, "DIDDoc": ALICE.legacy_document()},
}


@pytest.mark.parametrize("connection", BROKEN.values(), ids=BROKEN)
async def test_a_request_that_cannot_be_read_is_refused_and_uses_nothing_up(
    tmp_path: Path, connection: object
) -> None:
    async with inviter_of(tmp_path) as inviter:
        request = connection_request(ALICE, inviter.invite(single_use=True), connection=connection)
        assert await inviter.refusal(request) == "request_not_accepted"
        assert inviter.agents.seen == []


NO_AGENTS: dict[str, Any] = {
    **BROKEN,
    "a document of another key": {"DID": MALLORY.unqualified, "DIDDoc": MALLORY.legacy_document()},
    "an endpoint of the mediator": {
        "DID": ALICE.unqualified,
        "DIDDoc": Wallet(1, HTTP_URL).legacy_document(),
    },
}


@pytest.mark.parametrize("connection", NO_AGENTS.values(), ids=NO_AGENTS)
async def test_a_handshake_that_makes_no_agent_costs_as_much_as_a_request_that_proves_nothing(
    tmp_path: Path, connection: object
) -> None:
    rates = AddressRates(Rates(), 1)
    charged_to(AddressCharge(rates, "203.0.113.1", lambda: 0.0))
    async with inviter_of(tmp_path) as inviter:
        request = connection_request(ALICE, inviter.invite(), connection=connection)
        assert await inviter.refusal(request) == "request_not_accepted"
    assert rates.requests.has("203.0.113.1", 0.0, 10_000 - 16)
    assert not rates.requests.has("203.0.113.1", 0.0, 10_000 - 15)


async def test_no_agent_connects_with_the_document_of_another(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        honest = connection_request(ALICE, inviter.invite(single_use=True))
        stolen = request_of(honest.message, MALLORY.key.public)
        assert await inviter.refusal(stolen) == "request_not_accepted"
        assert await inviter.connection(MALLORY) is None
        assert await inviter.connection(ALICE) is None
        assert connection_in(await inviter.answer(honest))


async def refused(inviter: Inviter, invitation: str, wallet: Wallet = ALICE) -> tuple[str, str]:
    """Code and explanation; and nothing is known of the wallet."""
    asks = connection_request(wallet, invitation)
    reply = written((await inviter.ask(asks)).reply, asks.message)
    assert reply["@type"] == f"{NEW}connections/1.0/problem_report"
    assert reply["~thread"] == {"thid": "message-1", "pthid": invitation}
    code, explanation = str(reply["problem-code"]), str(reply["explain"])
    assert reply["description"] == {"code": code, "en": explanation}
    assert await inviter.connection(wallet) is None
    return code, explanation


async def test_an_invitation_that_is_over_is_refused_in_the_form_of_the_protocol(
    tmp_path: Path,
) -> None:
    async with inviter_of(tmp_path) as inviter:
        code, explanation = await refused(inviter, inviter.invite(lasts_s=-1))
        assert code == "request_not_accepted"
        assert "expired" in explanation
        invitation = inviter.invite(single_use=True)
        await inviter.answer(connection_request(MALLORY, invitation))
        code, explanation = await refused(inviter, invitation)
        assert code == "request_not_accepted"
        assert "one use" in explanation


@pytest.mark.parametrize("mode", ["closed", "allow_list"])
async def test_a_stranger_learns_no_more_than_that_it_is_refused(tmp_path: Path, mode: str) -> None:
    async with inviter_of(tmp_path, registration=mode) as inviter:
        shown = (inviter.invite(), inviter.invite(lasts_s=-1), "unknown")
        assert len({await refused(inviter, invitation) for invitation in shown}) == 1


@pytest.mark.parametrize("lost", [Connect, UseInvitation])
async def test_an_unknown_outcome_asks_for_the_same_request_again(
    tmp_path: Path, lost: type[Connect | UseInvitation]
) -> None:
    async with inviter_of(tmp_path) as inviter:
        request = connection_request(ALICE, inviter.invite(single_use=True))
        inviter.agents.lost = {lost}
        assert await inviter.refusal(request) == "request_processing_error"
        inviter.agents.lost = set()
        assert connection_in(await inviter.answer(request))


@pytest.mark.parametrize(
    ("refusal", "code", "explain", "refused"),
    [
        (Refusal.NOT_SPEAKING, "request_not_accepted", "replaced by another", "did-rotated"),
        (Refusal.RATE_LIMITED, "request_processing_error", "Too many", "too-many"),
        (Refusal.INSUFFICIENT_STORAGE, "request_processing_error", "disk", "insufficient-storage"),
        (Refusal.TEMPORARILY_UNAVAILABLE, "request_processing_error", "Out of service", ""),
    ],
)
async def test_a_refused_connection_is_reported_with_its_own_reason(
    tmp_path: Path, refusal: Refusal, code: str, explain: str, refused: str
) -> None:
    async with inviter_of(tmp_path) as inviter:
        inviter.agents.refused = {Connect: refusal}
        request = connection_request(ALICE, inviter.invite())
        outcome = await inviter.ask(request)
        report = written(outcome.reply, request.message)
        assert report["problem-code"] == code
        assert explain in str(report["explain"])
        assert outcome.refused == refused


async def test_a_problem_report_is_not_answered(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        report = message("connections/1.0/problem_report", explain="no")
        assert await inviter.ask(request_of(report)) is NOTHING


@given(connection=ANYTHING)
def test_whatever_stands_in_a_request_is_answered(connection: object) -> None:
    read = _document(message("connections/1.0/request", connection=connection))
    assert isinstance(read, NotAdmitted)


@given(document=ANYTHING, name=st.sampled_from(["service", "publicKey", "authentication", "id"]))
def test_whatever_stands_in_a_document_is_read_or_refused(document: object, name: str) -> None:
    said = {"DID": ALICE.unqualified, "DIDDoc": {**ALICE.legacy_document(), name: document}}
    read = _document(message("connections/1.0/request", connection=said))
    assert isinstance(read, NotAdmitted) or is_usable(read, ALICE.unqualified)


@pytest.mark.parametrize("endpoint", [HTTP_URL, "wss://MEDIATOR.example/elsewhere"])
async def test_no_endpoint_leads_messages_in_a_circle(tmp_path: Path, endpoint: str) -> None:
    async with inviter_of(tmp_path) as inviter:
        code, explanation = await refused(inviter, inviter.invite(), Wallet(7, endpoint))
        assert (code, "back to this mediator" in explanation) == ("request_not_accepted", True)


async def test_no_routing_key_leads_messages_in_a_circle(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        wallet = Wallet(7, "https://agent.example")
        document = wallet.legacy_document()
        document["service"][0]["routingKeys"] = [base58(SERVICE.public)]
        request = connection_request(
            wallet, inviter.invite(), connection={"DID": wallet.unqualified, "DIDDoc": document}
        )
        assert await inviter.refusal(request) == "request_not_accepted"
        assert await inviter.connection(wallet) is None
