"""Senders and recipients with a did:web: off by default, and fetched only after the nonce."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.dids.own_document import mediator_document
from tests.edge.identities import Identity
from tests.edge.mediator import LAYOUTS, MEDIATOR_DID, Mediator
from tests.unit.wire.https_host import HttpsHost, https_host

QUERY = {"type": "QUERY_PENDING_EVENTS"}
ENABLED = {"did_web": {"enabled": True}}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HttpsHost]:
    async with https_host(tmp_path) as host:
        yield host


def of_the_web(did: str) -> Identity:
    """An identity whose document stands at a web address."""
    identity = Identity("web")
    identity.did, identity.key_id = did, did + "#signing"
    return identity


def publish_document(host: HttpsHost, identity: Identity) -> None:
    keys = MediatorKeys(bytes(identity.signing), identity.pre_private)
    document = mediator_document(identity.did, MEDIATOR_DID, keys)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    host.answer = answer


def reach(mediator: Mediator, host: HttpsHost) -> None:
    """Let the edge's fetches end at the host of this test, behind all their gates."""
    web_dids: Any = mediator.edges[0]._web
    web_dids._lookup, web_dids._tls = host.lookup, host.trust
    web_dids._permitted = lambda *_: True


async def test_trap_83_a_foreign_did_web_is_not_resolved_by_default(
    mediator: Mediator, alice: Identity, host: HttpsHost
) -> None:
    await mediator.register(alice)
    sender = of_the_web(host.did)
    publish_document(host, sender)
    assert (await mediator.send(sender, QUERY)).refusal == (404, "SENDER_NOT_FOUND")
    assert (await mediator.write(alice, sender, "hi")).refusal == (404, "RECIPIENT_NOT_FOUND")
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(sender))
        assert (await socket.hear())["code"] == "DID_NOT_FOUND"
    assert host.requests == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [ENABLED])
async def test_trap_83_where_it_is_switched_on_a_did_web_is_an_identity_like_any_other(
    mediator: Mediator, alice: Identity, host: HttpsHost
) -> None:
    reach(mediator, host)
    identity = of_the_web(host.did)
    publish_document(host, identity)
    await mediator.register(alice, identity)
    await mediator.befriend(identity, alice)
    async with mediator.socket(identity) as socket:
        await mediator.delivered(alice, identity, "hi")
        assert (await socket.hear())["events"][0]["payload"] == "hi"
    assert await mediator.waiting(identity) == ["hi"]
    assert len(host.requests) == 1


@pytest.mark.parametrize("settings", [ENABLED])
async def test_whom_a_contract_or_a_message_names_is_fetched_too(
    mediator: Mediator, alice: Identity, host: HttpsHost
) -> None:
    reach(mediator, host)
    friend = of_the_web(host.did)
    publish_document(host, friend)
    await mediator.register(alice)
    await mediator.befriend(alice, friend)
    assert len(host.requests) == 1
    web_dids: Any = mediator.edges[0]._web
    web_dids._remembered.clear()
    sent = await mediator.write(alice, friend, "hi")
    assert sent.refusal == (404, "RECIPIENT_NOT_REGISTERED")
    assert len(host.requests) == 2


@pytest.mark.parametrize("settings", [ENABLED])
async def test_a_did_for_whose_document_there_is_no_slot_may_come_again(
    mediator: Mediator, alice: Identity, host: HttpsHost
) -> None:
    """Behind one address may be many clients, and "not found" would have them give up."""
    reach(mediator, host)
    web_dids: Any = mediator.edges[0]._web
    web_dids._shares.free, usual = 0, web_dids._shares.free
    identity = of_the_web(host.did)
    publish_document(host, identity)
    await mediator.register(alice)
    for sender, recipient in [(identity, alice), (alice, identity)]:
        sent = await mediator.write(sender, recipient, "hi")
        assert sent.refusal == (503, "TEMPORARILY_UNAVAILABLE")
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(identity))
        assert (await socket.hear())["code"] == "TEMPORARILY_UNAVAILABLE"
    assert host.requests == []
    web_dids._shares.free = usual
    await mediator.register(identity)


@pytest.mark.parametrize("settings", [{"did_web": {"enabled": True, "cache_s": 0}}])
async def test_a_document_is_known_while_its_command_is_read_whatever_the_cache(
    mediator: Mediator, host: HttpsHost
) -> None:
    reach(mediator, host)
    identity = of_the_web(host.did)
    publish_document(host, identity)
    await mediator.register(identity)
    assert await mediator.waiting(identity) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [ENABLED])
async def test_trap_84_nothing_is_fetched_for_what_the_replay_checks_refuse(
    mediator: Mediator, host: HttpsHost
) -> None:
    reach(mediator, host)
    sender = of_the_web(host.did)  # whose document is not there
    late = mediator.command(sender, QUERY, timestamp=mediator.clock.now_ms - 300_001)
    assert (await mediator.post(late)).refusal == (401, "TIMESTAMP_OUT_OF_RANGE")
    assert host.looked_up == []
    command = mediator.command(sender, QUERY)
    assert (await mediator.post(command)).refusal == (404, "SENDER_NOT_FOUND")
    assert len(host.looked_up) == 1
    web_dids: Any = mediator.edges[0]._web
    web_dids._remembered.clear()
    assert (await mediator.post(command)).refusal == (401, "DUPLICATE_NONCE")
    assert len(host.looked_up) == 1


@pytest.mark.parametrize(
    "settings", [{**ENABLED, "rates": {"per_address_per_s": 10, "burst_s": 10}}]
)
async def test_an_address_pays_for_a_command_that_is_repeated_before_its_sender_is_proven(
    mediator: Mediator, host: HttpsHost
) -> None:
    """Of 100 tokens one takes 17, as what proves nothing does."""
    reach(mediator, host)
    command = mediator.command(of_the_web(host.did), QUERY)  # whose document is not there
    web_dids: Any = mediator.edges[0]._web
    answers = []
    for _ in range(7):
        web_dids._remembered.clear()
        answers.append((await mediator.post(command)).refusal)
    assert answers[1:6] == [(401, "DUPLICATE_NONCE")] * 5
    assert answers[6] == (429, "RATE_LIMITED")
    assert len(host.looked_up) == 1


@pytest.mark.parametrize("settings", [ENABLED])
async def test_a_did_whose_host_is_no_text_in_punycode_is_one_that_is_not_found(
    mediator: Mediator, alice: Identity, host: HttpsHost
) -> None:
    reach(mediator, host)
    await mediator.register(alice)
    host.addresses = []
    unknown = of_the_web("did:web:xn--a.com")
    assert (await mediator.send(unknown, QUERY)).refusal == (404, "SENDER_NOT_FOUND")
    assert (await mediator.write(alice, unknown, "hi")).refusal == (404, "RECIPIENT_NOT_FOUND")
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(unknown))
        assert (await socket.hear())["code"] == "DID_NOT_FOUND"
    assert host.looked_up == [("xn--a.com", 443)]
