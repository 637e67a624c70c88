"""Reaching the mediator: invitations, both handshakes, and registration control."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, get_args

import orjson
import pytest

from actors.core.partitioning import host_name
from eventstore.log.events import ConnectionEstablished
from http_edge.clients.demonstration.didcomm import demonstrate
from http_edge.clients.didcomm import (
    DidMethod,
    Handshake,
    HandshakeProtocol,
    ProblemReported,
    Wallet,
    fetch_invitation,
    read_invitation,
)
from http_edge.clients.didcomm.connection import open_for
from http_edge.clients.didcomm.errors import NoAnswer
from http_edge.clients.didcomm.protocol_session import check_problem
from http_edge.didcomm.composition import invitations_of
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, OLD_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.protocols.invitations import Invitations, MediatorInvitation
from tests.edge.didcomm.wallet_network import (
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    fresh,
    opened,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock, Mediator

PROTOCOLS: Final = get_args(HandshakeProtocol)
DID_METHODS: Final = get_args(DidMethod)
NOT_ACCEPTED: Final = "request_not_accepted"


def inviting(network: WalletNetwork) -> Invitations:
    """The mediator's own maker of invitations, as ``poste invite`` has it."""
    return invitations_of(network.mediator.settings, SERVICE)


def made(network: WalletNetwork, name: str) -> MediatorInvitation:
    return inviting(network).make(
        single_use=False, expires_at_s=None, label=None, new_id=lambda: name
    )


async def follow(network: WalletNetwork, invitation: MediatorInvitation, **options: Any) -> Wallet:
    return await Wallet.connect(
        invitation.message("out-of-band"), session=network.session, **options
    )


async def refused(network: WalletNetwork, invitation: MediatorInvitation, **options: Any) -> str:
    """The code that a wallet is refused with."""
    with pytest.raises(ProblemReported) as reported:
        await follow(network, invitation, **options)
    return reported.value.code


async def without_route(
    network: WalletNetwork, invitation: Json, protocol: HandshakeProtocol, key: KeyPair
) -> tuple[int, Json, str]:
    """What a request that opens no return route is answered over HTTP, and over a WebSocket."""
    handshake = Handshake(read_invitation(invitation), key, protocol)
    request = handshake.request()
    del request["~transport"]
    body = pack(orjson.dumps(request), [SERVICE.public], key)
    answer = await network.post(body)
    async with network.socket() as socket:
        await socket.raw.send_bytes(body)
        connection = replace(network.stranger().connection, key=key)
        report = opened(connection, await socket.data())
    return answer.status, answer.json, report["description"]["code"]


async def answered(network: WalletNetwork, request: Json, key: KeyPair) -> Json:
    """What comes back for a request that a wallet writes itself."""
    answer = await network.post(pack(orjson.dumps(request), [SERVICE.public], key))
    assert answer.status == 200, answer.body
    found = open_for(key, answer.body)
    assert found is not None
    assert found.sender_key == SERVICE.public
    return found.message


# ---- both handshakes


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("did_method", DID_METHODS)
async def test_a_wallet_connects_whatever_it_speaks(
    network: WalletNetwork, protocol: HandshakeProtocol, did_method: DidMethod
) -> None:
    bob = await network.bob(handshake=protocol, did_method=did_method)
    assert bob.connection.http_url == network.mediator.url("/didcomm")
    assert bob.connection.ws_url == "ws" + network.mediator.url("/didcomm").removeprefix("http")
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]


async def test_a_wallet_that_connects_again_keeps_its_keys_and_messages(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    await network.connect(handshake="connections/1.0", key=bob.connection.key)
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("didexchange/1.0", "didexchange/1.0"),
        ("didexchange/1.9", "didexchange/1.1"),
        ("connections/1.9", "connections/1.0"),
    ],
)
async def test_a_handshake_of_tomorrow_is_answered_in_the_highest_known_version(
    network: WalletNetwork, version: Any, known: Any
) -> None:
    key = KeyPair.new()
    request = Handshake(await network.invitation(), key, known).request()
    response = await answered(network, {**request, "@type": f"{NEW_PREFIX}{version}/request"}, key)
    assert response["@type"] == f"{NEW_PREFIX}{known}/response"
    (connected,) = [e for e in network.mediator.events() if isinstance(e, ConnectionEstablished)]
    assert connected.protocol == known


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("trust_ping/1.9/ping", "trust_ping/1.0/ping_response"),
        ("discover-features/2.1/queries", "discover-features/2.0/disclosures"),
        ("coordinate-mediation/1.3/mediate-request", "coordinate-mediation/1.0/mediate-grant"),
        ("messagepickup/1.2/status-request", "messagepickup/1.0/status"),
        ("messagepickup/1.2/nonsense", "messagepickup/1.0/problem_report"),
        ("messagepickup/2.7/status-request", "messagepickup/2.0/status"),
        ("messagepickup/3.1/status-request", "messagepickup/3.0/status"),
        ("message-pickup/4.3/delivery-request", "message-pickup/4.0/problem-report"),
        ("queue/1.1/status-request", "queue/1.0/status"),
        ("out-of-band/1.0/handshake-reuse", "out-of-band/1.0/problem_report"),
        ("out-of-band/1.7/handshake-reuse", "out-of-band/1.1/problem_report"),
    ],
)
async def test_a_minor_version_of_tomorrow_is_answered_in_the_highest_known(
    bob: Bob, question: str, answer: str
) -> None:
    answered = await answer_to(bob.wallet, question, queries=[])
    assert answered["@type"] == NEW_PREFIX + answer


async def test_an_unknown_version_or_protocol_is_reported(bob: Bob) -> None:
    cases: list[Any] = [
        ("didexchange/2.0/request", "version-not-supported"),
        ("connections/2.0/request", "version-not-supported"),
        ("messagepickup/5.0/status-request", "version-not-supported"),
        ("coordinate-mediation/4.0/mediate-request", "version-not-supported"),
        ("basicmessage/1.0/message", "unknown-message-type"),
        ("trust_ping/1.0/pong", "unknown-message-type"),
    ]
    for kind, code in cases:
        report = await answer_to(bob.wallet, kind)
        assert report["@type"] == NEW_PREFIX + "notification/1.0/problem-report"
        assert report["description"]["code"] == code


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("didexchange/2.0/request", ["didexchange/1.0", "didexchange/1.1"]),
        (
            "messagepickup/5.0/status-request",
            [*(f"messagepickup/{n}.0" for n in (1, 2, 3)), "message-pickup/4.0"],
        ),
        ("queue/1.0/fetch", ["status-request", "status-update-request", "fetch-request"]),
        ("trust_ping/1.0/pong", ["ping", "ping_response"]),
        ("basicmessage/1.0/message", []),
    ],
)
async def test_a_report_of_an_unknown_type_names_those_of_its_protocol(
    bob: Bob, kind: str, names: list[str]
) -> None:
    comment = (await answer_to(bob.wallet, kind))["description"]["en"]
    said, _, supported = comment.partition("; supported: ")
    assert said.endswith("is not supported")
    assert supported == ", ".join(names)


async def test_the_report_of_an_unknown_type_waits_for_a_sender_without_a_return_route(
    network: WalletNetwork, bob: Bob
) -> None:
    answer = await network.say(bob.connection, "basicmessage/1.0/message")
    assert (answer.status, answer.body) == (202, b"")
    (picked,) = await bob.wallet.fetch(10)
    report: Any = bob.connection.open(picked.envelope)
    assert report["description"]["code"] == "unknown-message-type"


async def test_pickup_1_names_its_requests_to_the_sender_of_another(bob: Bob) -> None:
    report = await answer_to(bob.wallet, "messagepickup/1.0/messages-received")
    assert report["explain"].startswith("Unknown request type; supported: status-request, batch")


async def test_a_protocol_of_another_document_is_reported_and_its_socket_goes_on(bob: Bob) -> None:
    lunch = "https://example.com/docs/lets_do_lunch/1.0"
    for prefix in (lunch, "did:sov:SiyXFUJ7rYgd5ApVReUatB;spec/lunch/0.1"):
        async with bob.wallet.socket() as socket:
            wallet = bob.wallet.over(socket)
            with pytest.raises(ProblemReported) as reported:
                check_problem(
                    await wallet.ask(fresh(**{"@type": f"{prefix}/proposal", **routed()})) or {}
                )
            assert reported.value.code == "unknown-message-type"
            await socket.say(fresh(**{"@type": f"{prefix}/problem-report", **routed()}))
            assert (await wallet.status()).message_count == 0
            with pytest.raises(NoAnswer):
                await socket.receive(0.05)


# ---- invitations


async def test_the_invitation_is_served_as_json_as_a_redirect_and_as_a_page(
    network: WalletNetwork,
) -> None:
    url = network.mediator.url("/invitation")
    invitation = await network.invitation()
    assert (invitation.key, invitation.endpoint) == (
        SERVICE.public,
        network.mediator.url("/didcomm"),
    )
    moved = await network.mediator.get("/invitation", allow_redirects=False)
    assert moved.status == 302
    location = moved.headers["Location"]
    assert location.startswith(f"{url}?oob=")
    assert read_invitation(location) == invitation
    assert await fetch_invitation(network.session, location) == invitation
    path = location.removeprefix(network.mediator.url(""))
    page = await network.mediator.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"<svg" in page.body
    older = await fetch_invitation(network.session, f"{url}?protocol=connections")
    assert (older.key, older.protocols) == (SERVICE.public, ("connections/1.0",))


@pytest.mark.parametrize("settings", [{"didcomm": {"registration": "invitation"}}])
async def test_by_invitation_only_an_invitation_of_ours_is_needed(network: WalletNetwork) -> None:
    assert (await network.mediator.get("/invitation")).status == 404
    genuine = made(network, "genuine")
    await follow(network, genuine)
    facts = network.mediator.facts()
    message = genuine.message("out-of-band")
    real_id = str(message["@id"])
    forged_id = real_id[:-1] + ("A" if real_id[-1] != "A" else "B")
    foreign = Invitations(KeyPair.new(), "x", genuine.endpoint).public()
    assert foreign is not None
    for invitation_id in ("", "forged", forged_id, real_id[:-1], foreign.terms.id):
        with pytest.raises(ProblemReported) as reported:
            await Wallet.connect({**message, "@id": invitation_id}, session=network.session)
        assert reported.value.code == NOT_ACCEPTED
    assert network.mediator.facts() == facts


@pytest.mark.parametrize("settings", [{"didcomm": {"registration": "invitation"}}])
async def test_the_walk_of_wallets_follows_the_invitation_that_it_is_given(
    network: WalletNetwork,
) -> None:
    url = network.mediator.url("")
    invitation = made(network, "for the walk")
    walk = demonstrate(network.session, url, url, invitation.terms.id)
    proofs = [proof async for proof in walk]
    assert [proof for proof in proofs if not proof.held] == []
    assert len(proofs) == 19


async def test_a_closed_mediator_serves_those_it_has_and_takes_no_new_agent(
    network: WalletNetwork,
) -> None:
    bob = await network.bob()
    invitation = made(network, "before")
    listen = {"listen": network.mediator.settings.listen, "public_url": network.mediator.url("")}
    await network.mediator.restart({**listen, "didcomm": {"registration": "closed"}})
    assert await refused(network, invitation) == NOT_ACCEPTED
    assert (await network.mediator.get("/invitation")).status == 404
    await follow(network, invitation, key=bob.connection.key)
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]


# ---- acknowledgements and reports


async def test_reports_and_acknowledgements_are_never_answered(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = [NEW_PREFIX, OLD_PREFIX]
    more: list[Any] = [
        "report-problem/1.0/problem-report",
        "notification/1.0/problem-report",
        "notification/1.0/ack",
        "connections/1.0/problem_report",
        "didexchange/1.1/problem_report",
        "didexchange/9.0/problem_report",
        "out-of-band/1.1/problem_report",
        "unknown/1.0/problem-report",
        "messagepickup/1.0/problem_report",
        "messagepickup/1.0/problem-report",
        "messagepickup/1.0/ack",
    ]
    for prefix in cases:
        for kind in more:
            report = {"@type": prefix + kind, "~please_ack": {}, "description": {"code": "x"}}
            for wish in ({}, routed()):
                answer = await network.post(bob.connection.pack(fresh(**report, **wish)))
                assert (answer.status, answer.body) == (202, b"")
            assert (await bob.wallet.status()).message_count == 0


@pytest.mark.parametrize(
    "settings", [{"rates": {"registrations_per_address_per_s": 1, "burst_s": 2}}]
)
async def test_new_wallets_wait_when_too_many_connect_and_one_that_has_may_repeat(
    network: WalletNetwork, clock: HandClock
) -> None:
    invitation = made(network, "many")
    wallets = [await follow(network, invitation) for _ in range(2)]
    with pytest.raises(ProblemReported) as reported:
        await follow(network, invitation)
    assert reported.value.code == "request_processing_error"
    await follow(network, invitation, key=wallets[0].connection.key)
    clock.advance(1)
    await follow(network, invitation)


# ---- handshakes without a return route


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_whose_outcome_is_unknown_does_not_look_accepted_without_a_return_route(
    network: WalletNetwork, mediator: Mediator, protocol: HandshakeProtocol
) -> None:
    mediator.hosts.cut(host_name(0))
    invitation = made(network, "many").message("out-of-band")
    answer = await without_route(network, invitation, protocol, KeyPair.new())
    assert answer == (503, {"error": "try-again"}, "try-again")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "settings", [{"rates": {"registrations_per_address_per_s": 1, "burst_s": 1}}]
)
async def test_a_request_beyond_the_rate_does_not_look_accepted_without_a_return_route(
    network: WalletNetwork, protocol: HandshakeProtocol
) -> None:
    invitation = made(network, "many").message("out-of-band")
    await follow(network, made(network, "many"))
    answer = await without_route(network, invitation, protocol, KeyPair.new())
    assert answer == (429, {"error": "rate-limited"}, "rate-limited")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("settings", [{"didcomm": {"registration": "invitation"}}])
async def test_a_refused_request_does_not_look_accepted_without_a_return_route(
    network: WalletNetwork, protocol: HandshakeProtocol
) -> None:
    forged = {**made(network, "many").message("out-of-band"), "@id": "forged"}
    answer = await without_route(network, forged, protocol, KeyPair.new())
    assert answer == (403, {"error": "not-connected"}, "not-connected")


async def test_a_request_with_a_foreign_document_does_not_look_accepted_without_a_return_route(
    network: WalletNetwork,
) -> None:
    handshake = Handshake(await network.invitation(), KeyPair.new())
    request = {**handshake.request(), "~transport": {}}
    answer = await network.post(pack(orjson.dumps(request), [SERVICE.public], KeyPair.new()))
    assert (answer.status, answer.json) == (400, {"error": "not-a-message"})


@pytest.mark.parametrize(
    "settings",
    [
        {
            "rates": {"registrations_per_address_per_s": 1, "burst_s": 1},
            "didcomm": {"error_reports_max": 1},
        }
    ],
)
async def test_who_only_has_to_send_its_request_again_is_always_answered_so(
    network: WalletNetwork,
) -> None:
    invitation, key = made(network, "many"), KeyPair.new()
    await follow(network, invitation)
    codes = [await refused(network, invitation, key=key) for _ in range(4)]
    assert codes == ["request_processing_error"] * 4
