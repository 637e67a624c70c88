"""Senders of DIDComm v2 whose DID only the network knows: off by default, and fetched aside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson
import pytest
from aiohttp import web

from http_edge.clients.didcomm import Wallet2, forward_2
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, DidRotation, Unpacked
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.v2.signed import write_from_prior
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE, V2
from tests.edge.didcomm.network_agents import (
    MEDIATOR,
    NetworkAgent,
    forget,
    reach,
    say,
    serve,
)
from tests.edge.didcomm.newer_wallets import Sender, ask_of, connected
from tests.edge.didcomm.test_rotated_accounts import moved, packed
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import MEDIATOR_DID, Mediator
from tests.unit.outbound.agent_host import agent_host
from tests.unit.wire.did_log import DidLog, approval_of, multikey
from tests.unit.wire.https_host import NAME, HttpsHost, https_host
from tests.unit.wire.https_host import Answer as HostAnswer

ENABLED: Final = {"did_web": {"enabled": True}}
STATUS: Final = NEW_PREFIX + "messagepickup/3.0/status-request"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HttpsHost]:
    async with https_host(tmp_path) as host:
        yield host


@pytest.fixture
def mediator(mediator: Mediator, host: HttpsHost) -> Mediator:
    reach(mediator, host)
    return mediator


async def test_a_sender_of_the_network_is_refused_by_default_and_nothing_is_fetched(
    network: WalletNetwork, host: HttpsHost
) -> None:
    agent = NetworkAgent(host.did)
    serve(host, agent)
    answer = await say(network, agent.packed())
    assert (answer.status, answer.json) == (400, {"error": "undecryptable"})
    assert (host.looked_up, host.requests) == ([], [])


@pytest.mark.parametrize("settings", [ENABLED])
async def test_where_it_is_allowed_a_did_web_is_an_agent_like_any_other(
    network: WalletNetwork, host: HttpsHost
) -> None:
    agent = NetworkAgent(host.did)
    serve(host, agent)
    pong = agent.opened(await say(network, agent.packed()))
    assert (pong["type"], pong["to"]) == (NEW_PREFIX + "trust-ping/2.0/ping-response", [agent.did])
    ask = "coordinate-mediation/3.0/mediate-request"
    grant = agent.opened(await say(network, agent.packed(NEW_PREFIX + ask)))
    assert grant["body"] == {"routing_did": [MEDIATOR]}
    query = NEW_PREFIX + "coordinate-mediation/3.0/recipient-query"
    listed = agent.opened(await say(network, agent.packed(query)))
    assert listed["body"] == {"dids": [{"recipient_did": agent.did}]}
    assert len(host.requests) == 1, "the document is remembered"


@pytest.mark.parametrize("settings", [ENABLED])
async def test_an_account_is_that_of_the_did_as_its_document_spells_it(
    network: WalletNetwork, host: HttpsHost
) -> None:
    """Its name in keylists has the host in lower case; before it had, the account was this one."""
    agent = NetworkAgent(host.did.replace(NAME, NAME.title()))

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(agent.document)

    host.answer = answer
    ask = "coordinate-mediation/3.0/mediate-request"
    agent.opened(await say(network, agent.packed(NEW_PREFIX + ask)))
    query = NEW_PREFIX + "coordinate-mediation/3.0/recipient-query"
    listed = agent.opened(await say(network, agent.packed(query)))
    assert listed["body"] == {"dids": [{"recipient_did": host.did}]}
    for did, is_known in ((agent.did, True), (host.did, False)):
        account = await network.mediator.operate(f"/queues?did={quote(did)}")
        assert account.json["known"] is is_known


@pytest.mark.parametrize("settings", [ENABLED])
async def test_an_agent_whose_host_changes_its_key_keeps_what_waits_for_it(
    network: WalletNetwork, host: HttpsHost
) -> None:
    old = NetworkAgent(host.did)
    serve(host, old)
    ask = NEW_PREFIX + "coordinate-mediation/3.0/mediate-request"
    assert (await say(network, old.packed(ask))).status == 200
    waits = Sender(network).sealed("waits", MEDIATOR)
    assert (await say(network, forward_2([waits], old.did, MEDIATOR))).status == 202
    new = NetworkAgent(host.did)
    serve(host, new)
    forget(network.mediator)
    status = new.opened(await say(network, new.packed(STATUS)))
    assert status["body"]["message_count"] == 1
    assert (await say(network, old.packed(STATUS))).status == 400


@pytest.mark.parametrize("settings", [ENABLED])
async def test_a_did_webvh_is_known_by_its_log(network: WalletNetwork, host: HttpsHost) -> None:
    log = DidLog(f"{NAME}%3A{host.port}:alice")
    agent = NetworkAgent("{DID}")
    log.add(agent.document, agent.pair, updateKeys=[multikey(agent.pair)])
    agent.did = log.did

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/alice/did.jsonl"
        return web.Response(body=log.text)

    host.answer = answer
    assert agent.opened(await say(network, agent.packed()))["to"] == [log.did]
    stranger = NetworkAgent(log.did)
    refused = await say(network, stranger.packed())
    assert (refused.status, refused.json) == (400, {"error": "undecryptable"})


@pytest.mark.parametrize("settings", [ENABLED])
@pytest.mark.parametrize("approves", [True, False, None])
async def test_a_did_webvh_with_witnesses_is_known_where_they_approved_its_log(
    network: WalletNetwork, host: HttpsHost, *, approves: bool | None
) -> None:
    log, witness = DidLog(f"{NAME}%3A{host.port}:alice"), KeyPair.new()
    agent = NetworkAgent("{DID}")
    named = {"threshold": 1, "witnesses": [{"id": f"did:key:{multikey(witness)}"}]}
    log.add(agent.document, agent.pair, updateKeys=[multikey(agent.pair)], witness=named)
    agent.did = log.did
    by = witness if approves else agent.pair
    proofs = orjson.dumps([approval_of(log.entries[0]["versionId"], by)])

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/alice/did.jsonl":
            return web.Response(body=log.text)
        assert request.path == "/alice/did-witness.json"
        return web.Response(status=404) if approves is None else web.Response(body=proofs)

    host.answer = answer
    found = await say(network, agent.packed())
    if approves:
        assert agent.opened(found)["to"] == [log.did]
    else:
        assert (found.status, found.json) == (400, {"error": "undecryptable"})
    assert len(host.requests) == 2


@pytest.mark.parametrize("settings", [ENABLED])
async def test_a_document_that_is_missing_or_anothers_makes_no_sender(
    network: WalletNetwork, host: HttpsHost
) -> None:
    facts = network.mediator.facts()
    agent = NetworkAgent(host.did + ":missing")
    other = NetworkAgent(host.did + ":other")
    serve(host, other)
    liar = NetworkAgent(other.did)
    for sender in (agent, liar):
        for _ in range(2):
            answer = await say(network, sender.packed())
            assert (answer.status, answer.json) == (400, {"error": "undecryptable"})
    assert len(host.requests) == 2, "what is missing is remembered too"
    assert network.mediator.facts() == facts


async def overloaded(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPServiceUnavailable


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize("settings", [ENABLED])
@pytest.mark.parametrize("fault", [overloaded, cut])
async def test_a_sender_whose_host_does_not_answer_may_try_again(
    network: WalletNetwork, host: HttpsHost, fault: HostAnswer
) -> None:
    facts = network.mediator.facts()
    agent = NetworkAgent(host.did)
    host.answer = fault
    seen = []
    for _ in range(2):
        answer = await say(network, agent.packed())
        assert (answer.status, answer.json) == (503, {"error": "sender-unresolved"})
        assert answer.headers["Retry-After"] == "30"
        seen.append(len(host.requests))
    assert seen[0] == seen[1] > 0, "a failure is remembered too"
    assert network.mediator.facts() == facts
    serve(host, agent)
    forget(network.mediator)
    assert agent.opened(await say(network, agent.packed()))["to"] == [agent.did]


@pytest.mark.parametrize("settings", [{"did_web": {"enabled": True, "cache_s": 0}}])
async def test_a_document_is_known_while_its_message_is_read_whatever_the_cache(
    network: WalletNetwork, host: HttpsHost
) -> None:
    agent, missing = NetworkAgent(host.did), NetworkAgent(host.did + ":missing")
    serve(host, agent)
    assert agent.opened(await say(network, agent.packed()))["to"] == [agent.did]
    answer = await say(network, missing.packed())
    assert (answer.status, answer.json) == (400, {"error": "undecryptable"})
    assert len(host.requests) == 2


@pytest.mark.parametrize(
    "settings", [{"did_web": {"enabled": True, "allowed_hosts": ["a.example"]}}]
)
async def test_only_allowed_hosts_are_asked(network: WalletNetwork, host: HttpsHost) -> None:
    agent = NetworkAgent(host.did)
    serve(host, agent)
    assert (await say(network, agent.packed())).status == 400
    assert (host.looked_up, host.requests) == ([], [])


def leave_slots(network: WalletNetwork, count: int) -> None:
    """Let only so many messages wait for documents."""
    mediation = network.mediator.edges[0]._mediation
    assert mediation is not None
    mediation.endpoint._inbound._reader._unknown_dids._slots.free = count


@pytest.mark.parametrize(
    "settings", [{"did_web": {"enabled": True, "allowed_hosts": [NAME.upper()]}}]
)
async def test_the_case_of_an_allowed_host_does_not_matter(
    network: WalletNetwork, host: HttpsHost
) -> None:
    await say(network, NetworkAgent(f"did:web:{NAME}").packed())
    assert host.looked_up == [(NAME, 443)]


@pytest.mark.parametrize("settings", [{"did_web": {"enabled": True, "seconds_max": 60}}])
async def test_messages_that_find_no_slot_to_wait_for_a_document_may_come_again(
    network: WalletNetwork, host: HttpsHost
) -> None:
    leave_slots(network, 1)
    agent, fetching, answered = NetworkAgent(host.did), asyncio.Event(), asyncio.Event()

    async def held(_request: web.Request) -> web.StreamResponse:
        fetching.set()
        await answered.wait()
        return web.json_response(agent.document)

    host.answer = held
    first = asyncio.create_task(say(network, agent.packed()))
    await fetching.wait()
    busy = await say(network, agent.packed())
    assert (busy.status, busy.json) == (503, {"error": "try-again"})
    assert busy.headers["Retry-After"] == "1"
    answered.set()
    assert (await first).status == (await say(network, agent.packed())).status == 200
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {
            "did_web": {"enabled": True, "seconds_max": 60},
            "rates": {"trusted_proxies": ["127.0.0.0/8"]},
        }
    ],
)
async def test_no_client_address_takes_all_slots_to_wait_for_documents(
    network: WalletNetwork, host: HttpsHost
) -> None:
    leave_slots(network, 2)
    slow, quick = NetworkAgent(host.did), NetworkAgent(host.did + ":quick")
    fetching, answered = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "quick" in request.path:
            return web.json_response(quick.document)
        fetching.set()
        await answered.wait()
        return web.json_response(slow.document)

    async def said(agent: NetworkAgent, address: str) -> tuple[int, bytes]:
        headers = {"Content-Type": MEDIA_TYPE, "X-Forwarded-For": address}
        url = network.mediator.url("/didcomm")
        async with network.session.post(url, data=agent.packed(), headers=headers) as found:
            return found.status, await found.read()

    host.answer = answer
    first = asyncio.create_task(said(slow, "192.0.2.1"))
    await fetching.wait()
    assert await said(quick, "192.0.2.1") == (503, b'{"error":"try-again"}')
    assert (await said(quick, "192.0.2.2"))[0] == 200
    answered.set()
    assert (await first)[0] == 200


@pytest.mark.parametrize("settings", [{**ENABLED, "rates": {"burst_s": 1}}])
async def test_who_sends_a_large_document_pays_for_its_reading(
    network: WalletNetwork, host: HttpsHost
) -> None:
    """The host serves 100 KiB: as dear as a body of this size that proves nothing."""
    agent = NetworkAgent(host.did)

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({**agent.document, "x": "x" * 102_400})

    host.answer = answer
    rate = network.mediator.edges[0]._listener._rates.requests
    began_s = network.mediator.clock.now_s
    assert (await say(network, agent.packed())).status == 200
    assert rate.has("127.0.0.1", began_s, 2_000 - 100 - 16 - 8)
    assert not rate.has("127.0.0.1", began_s, 2_000 - 100 - 16)


@pytest.mark.parametrize("settings", [{**ENABLED, "rates": {"burst_s": 1}}])
async def test_a_sender_whose_host_is_no_text_in_punycode_is_refused_and_pays(
    network: WalletNetwork, host: HttpsHost
) -> None:
    host.addresses = []
    rate = network.mediator.edges[0]._listener._rates.requests
    began_s = network.mediator.clock.now_s
    answer = await say(network, NetworkAgent("did:web:xn--a.com").packed())
    assert (answer.status, answer.json) == (400, {"error": "undecryptable"})
    assert host.looked_up == [("xn--a.com", 443)]
    assert not rate.has("127.0.0.1", began_s, 2_000 - 16 - 16)


@pytest.mark.parametrize("settings", [ENABLED])
async def test_an_agent_whose_mediators_host_is_no_text_in_punycode_fetches_its_messages(
    network: WalletNetwork, host: HttpsHost
) -> None:
    host.addresses = []
    wallet = await connected(network, did_method="peer2", endpoint="did:web:xn--a.com")
    ping = ask_of("trust-ping/2.0/ping", response_requested=True)
    assert (await say(network, wallet.connection.pack(ping))).status == 202
    assert host.looked_up == [("xn--a.com", 443)]


@pytest.mark.parametrize("settings", [ENABLED])
async def test_an_agent_that_names_the_mediator_as_its_own_enrols_without_a_document_of_it(
    network: WalletNetwork, host: HttpsHost
) -> None:
    await connected(network, did_method="peer2", endpoint=MEDIATOR_DID)
    assert (host.looked_up, host.requests) == ([], [])


@pytest.mark.parametrize("settings", [ENABLED])
async def test_an_envelope_that_is_not_for_the_mediator_makes_it_fetch_nothing(
    network: WalletNetwork, host: HttpsHost
) -> None:
    agent = NetworkAgent(host.did)
    serve(host, agent)
    answer = await say(network, agent.packed(to=OwnDids(KeyPair.new()).did_key))
    assert (answer.status, answer.body) == (202, b"")
    assert (host.looked_up, host.requests) == ([], [])


@pytest.mark.parametrize(
    "settings",
    [{**ENABLED, "outbound": {"allowed_networks": ["127.0.0.0/8"], "retry_s_min": 0.1}}],
)
async def test_an_agent_behind_a_mediator_of_the_network_is_sent_to_it(
    network: WalletNetwork, host: HttpsHost
) -> None:
    key = KeyPair.new()
    async with agent_host() as far:
        services = own_services(far.url(host="127.0.0.1"))
        mediator = OwnDids(key, services, web_did=host.did)

        async def answer(_request: web.Request) -> web.StreamResponse:
            return web.json_response(mediator.merged({"id": host.did}))

        host.answer = answer
        wallet = await connected(network, did_method="peer2", endpoint=host.did)
        ping = ask_of("trust-ping/2.0/ping", response_requested=True)
        assert (await say(network, wallet.connection.pack(ping))).status == 202
        await far.has(1)
        (wrapped,) = far.received
    version = V2(mediator)
    opened = version.unpack(orjson.loads(wrapped))
    assert isinstance(opened, Unpacked)
    assert opened.addressed_to == host.did
    forward = version.read(opened)
    assert forward is not None
    assert forward.body == {"next": wallet.connection.did}


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{**ENABLED, "outbound": {"allowed_networks": ["127.0.0.0/8"], "retry_s_min": 0.1}}],
)
async def test_an_agent_keeps_its_endpoint_while_the_host_of_its_mediator_does_not_answer(
    network: WalletNetwork, host: HttpsHost, *, rotates: bool
) -> None:
    async with agent_host() as far:
        own = OwnDids(
            KeyPair.new(), own_services(far.url(host="127.0.0.1")), web_did=host.did
        ).merged({"id": host.did})

        async def answer(_request: web.Request) -> web.StreamResponse:
            return web.json_response(own)

        host.answer = answer
        old = await connected(network, did_method="peer2", endpoint=host.did)
        forget(network.mediator)
        host.answer = overloaded
        new = Wallet2(replace(old.connection, key=KeyPair.new()), session=network.session)
        proof: Json = {"from_prior": moved(old, new)} if rotates else {}
        wallet = new if rotates else old
        request = packed(wallet, "coordinate-mediation/3.0/mediate-request", **proof)
        refused = await say(network, request)
        if rotates:
            assert (refused.status, refused.json) == (503, {"error": "try-again"})
        else:
            report = wallet.connection.open(refused.body)
            assert isinstance(report, dict)
            assert report["code"] == "e.m.me.try-again"
        host.answer = answer
        forget(network.mediator)
        to, through = old.connection.did, old.connection.mediator_did
        sent = await Sender(network).forward(to, "for its endpoint", routing_did=through)
        assert sent.status == 202
        await far.has(1)
        granted = wallet.connection.open((await say(network, request)).body)
    assert isinstance(granted, dict)
    assert str(granted["@type"]).endswith("/mediate-grant")


@pytest.mark.parametrize("settings", [ENABLED])
async def test_a_did_web_rotates_to_a_did_of_its_own(
    network: WalletNetwork, host: HttpsHost
) -> None:
    prior, agent = NetworkAgent(host.did), NetworkAgent(host.did + ":new")
    serve(host, prior, agent)
    ask = NEW_PREFIX + "coordinate-mediation/3.0/mediate-request"
    assert (await say(network, prior.packed(ask))).status == 200
    await network.mediator.restart()
    reach(network.mediator, host)
    proof = write_from_prior(
        DidRotation(prior.did, agent.did, 1_000), f"{prior.did}#key-1", prior.pair
    )
    assert (await say(network, agent.packed(from_prior=proof))).status == 200
    query = NEW_PREFIX + "coordinate-mediation/3.0/recipient-query"
    listed = agent.opened(await say(network, agent.packed(query)))
    assert {each["recipient_did"] for each in listed["body"]["dids"]} == {prior.did, agent.did}


@pytest.mark.parametrize("settings", [ENABLED])
async def test_while_the_host_of_a_prior_did_does_not_answer_no_account_shuts_its_rotation_out(
    network: WalletNetwork, host: HttpsHost
) -> None:
    prior, agent = NetworkAgent(host.did), NetworkAgent(host.did + ":new")
    serve(host, prior, agent)
    kind = "coordinate-mediation/3.0/mediate-request"
    assert (await say(network, prior.packed(NEW_PREFIX + kind))).status == 200
    forget(network.mediator)
    answered = host.answer

    async def down(request: web.Request) -> web.StreamResponse:
        if "new" not in request.path:
            raise web.HTTPServiceUnavailable
        return await answered(request)

    host.answer = down
    proof = write_from_prior(
        DidRotation(prior.did, agent.did, 1_000), f"{prior.did}#key-1", prior.pair
    )
    request = agent.packed(NEW_PREFIX + kind, from_prior=proof)
    refused = agent.opened(await say(network, request))
    assert "from_prior was not accepted" in refused["body"]["comment"]
    host.answer = answered
    forget(network.mediator)
    assert agent.opened(await say(network, request))["type"].endswith("mediate-grant")
    query = NEW_PREFIX + "coordinate-mediation/3.0/recipient-query"
    listed = agent.opened(await say(network, agent.packed(query)))
    assert {each["recipient_did"] for each in listed["body"]["dids"]} == {prior.did, agent.did}
