from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import aiohttp
import orjson
import pytest

from http_edge.clients.didcomm import (
    Invitation,
    MediatorRefused,
    MediatorUnreachable,
    UnusableInvitation,
    fetch_invitation,
    fetch_invitation_2,
    read_invitation,
    read_invitation_2,
)
from http_edge.didcomm.envelopes.keys import base58, did_key
from http_edge.didcomm.envelopes.messages import OLD_PREFIX, Json
from http_edge.didcomm.protocols.handshake import MediatorDocuments
from tests.unit.wallet.scripted_mediator import SERVICE, ScriptedMediator

Fetch: TypeAlias = Callable[[aiohttp.ClientSession, str], Awaitable[object]]
NO_POINT = bytes([2] * 31 + [255])
ENDPOINT = "https://mediator.example/didcomm"
SERVICE_BLOCK: Json = {
    "id": "#inline",
    "type": "did-communication",
    "recipientKeys": [did_key(SERVICE.public)],
    "serviceEndpoint": ENDPOINT,
}
OUT_OF_BAND: Json = {
    "@type": "https://didcomm.org/out-of-band/1.1/invitation",
    "@id": "i1",
    "label": "Poste",
    "handshake_protocols": ["https://didcomm.org/didexchange/1.1", OLD_PREFIX + "connections/1.0"],
    "services": [SERVICE_BLOCK],
}
CONNECTIONS: Json = {
    "@type": OLD_PREFIX + "connections/1.0/invitation",
    "@id": "i1",
    "label": "Poste",
    "recipientKeys": [base58(SERVICE.public)],
    "serviceEndpoint": ENDPOINT,
}
READ = Invitation("i1", SERVICE.public, ENDPOINT, ("didexchange/1.1", "connections/1.0"), "Poste")


def url(parameter: str, invitation: Json, *, padded: bool = False) -> str:
    text = base64.urlsafe_b64encode(orjson.dumps(invitation)).decode()
    return f"https://wallet.example?{parameter}={text if padded else text.rstrip('=')}"


@pytest.mark.parametrize(
    "source",
    [
        OUT_OF_BAND,
        orjson.dumps(OUT_OF_BAND),
        orjson.dumps(OUT_OF_BAND).decode(),
        url("oob", OUT_OF_BAND),
        url("oob", OUT_OF_BAND, padded=True),
    ],
    ids=["object", "bytes", "text", "url", "padded url"],
)
def test_one_invitation_in_every_form_is_one(source: Json | bytes | str) -> None:
    assert read_invitation(source) == READ


def test_an_old_invitation_offers_connections_alone() -> None:
    read = read_invitation(url("c_i", CONNECTIONS))
    assert (read.key, read.endpoint, read.protocols) == (
        SERVICE.public,
        ENDPOINT,
        ("connections/1.0",),
    )


def test_a_service_may_be_a_did_that_carries_it() -> None:
    did = MediatorDocuments(SERVICE, ENDPOINT).peer2
    read = read_invitation({**OUT_OF_BAND, "services": ["did:web:elsewhere.example", did]})
    assert (read.key, read.endpoint) == (SERVICE.public, ENDPOINT)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "nonsense",
        "{",
        "[]",
        "https://wallet.example",
        "https://wallet.example?oob=%%%",
        {},
        {**OUT_OF_BAND, "@type": "https://didcomm.org/trust_ping/1.0/ping"},
        {**OUT_OF_BAND, "@id": 1},
        {**OUT_OF_BAND, "label": []},
        {**OUT_OF_BAND, "services": []},
        {**OUT_OF_BAND, "services": "none"},
        {**OUT_OF_BAND, "services": [1, {}, "did:web:elsewhere.example"]},
        {**OUT_OF_BAND, "services": [{**SERVICE_BLOCK, "recipientKeys": ["short"]}]},
        {**OUT_OF_BAND, "services": [{**SERVICE_BLOCK, "serviceEndpoint": ""}]},
        {**OUT_OF_BAND, "services": [{**SERVICE_BLOCK, "recipientKeys": [did_key(NO_POINT)]}]},
        {**OUT_OF_BAND, "handshake_protocols": "all"},
        {**CONNECTIONS, "recipientKeys": []},
        {**CONNECTIONS, "recipientKeys": [base58(NO_POINT)]},
        "\ud800",
    ],
)
def test_what_is_no_invitation_is_refused(source: Json | str) -> None:
    with pytest.raises(UnusableInvitation):
        read_invitation(source)


def test_an_invitation_of_the_other_generation_is_refused_by_its_type() -> None:
    newer: Json = {"type": "https://didcomm.org/out-of-band/2.0/invitation", "id": "i1", "body": {}}
    with pytest.raises(UnusableInvitation, match=r"out-of-band/2\.0.* no invitation of DIDComm v1"):
        read_invitation(newer)
    with pytest.raises(UnusableInvitation, match=r"out-of-band/1\.1.* no invitation of DIDComm v2"):
        read_invitation_2(OUT_OF_BAND)


async def test_a_short_url_is_fetched(
    mediator: ScriptedMediator, session: aiohttp.ClientSession
) -> None:
    short = str(mediator.server.make_url("/invitation"))
    assert await fetch_invitation(session, short) == read_invitation(mediator.invitation())


async def test_a_long_url_is_not_fetched(session: aiohttp.ClientSession) -> None:
    assert await fetch_invitation(session, url("oob", OUT_OF_BAND)) == READ


async def test_a_short_url_that_gives_nothing_is_distinguished_from_one_that_does_not_answer(
    mediator: ScriptedMediator, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(MediatorRefused) as refused:
        await fetch_invitation(session, str(mediator.server.make_url("/nothing")))
    assert refused.value.status == 404
    with pytest.raises(MediatorUnreachable):
        await fetch_invitation(session, "http://127.0.0.1:1/invitation")


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
@pytest.mark.parametrize("fetch", [fetch_invitation, fetch_invitation_2])
async def test_a_host_that_can_have_no_address_does_not_answer(
    session: aiohttp.ClientSession, fetch: Fetch, host: str
) -> None:
    with pytest.raises(MediatorUnreachable):
        await fetch(session, f"http://{host}/invitation")


@pytest.mark.parametrize(
    "text", ["ftp://127.0.0.1", "127.0.0.1:80", "http://[", "http://xn--a/", "invitation"]
)
async def test_only_http_is_fetched(session: aiohttp.ClientSession, text: str) -> None:
    with pytest.raises(UnusableInvitation):
        await fetch_invitation(session, text)
