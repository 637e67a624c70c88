from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from hashlib import sha256
from html import unescape
from urllib.parse import urlencode

import pytest
import segno
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from http_edge.crypto.encoding import b64encode
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.invitation_page import InvitationPage
from http_edge.didcomm.protocols.invitations import (
    PARAMETERS,
    Invitations,
    Protocol,
)
from tests.unit.didcomm.test_invitations import BASE, KEY, NOW_S, OURS, made

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,application/json,*/*;q=0.8"


async def served(invitations: Invitations) -> TestClient[web.Request, web.Application]:
    page = InvitationPage(invitations, BASE, clock=lambda: NOW_S * 1000)
    app = web.Application()
    app.router.add_get("/invitation", page.handle)
    client = TestClient(TestServer(app))
    await client.start_server()
    return client


@pytest.fixture
async def client() -> AsyncIterator[TestClient[web.Request, web.Application]]:
    client = await served(OURS)
    yield client
    await client.close()


Client = TestClient[web.Request, web.Application]


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain, */*"])
@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_who_asks_for_json_gets_the_public_invitation(
    client: Client, protocol: Protocol, accept: str
) -> None:
    public = OURS.public()
    assert public is not None
    query = {"protocol": protocol}
    response = await client.get("/invitation", params=query, headers={"Accept": accept})
    assert response.status == 200
    assert response.content_type == "application/json"
    assert await response.json() == public.message(protocol)


async def test_out_of_band_is_the_rule(client: Client) -> None:
    response = await client.get("/invitation", headers={"Accept": "application/json"})
    assert (await response.json())["@type"] == "https://didcomm.org/out-of-band/1.1/invitation"


@pytest.mark.parametrize("accept", [BROWSER, "*/*", ""])
@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_every_other_client_is_sent_to_the_long_url(
    client: Client, protocol: Protocol, accept: str
) -> None:
    public = OURS.public()
    assert public is not None
    response = await client.get(
        "/invitation",
        params={"protocol": protocol},
        headers={"Accept": accept},
        allow_redirects=False,
    )
    assert response.status == 302
    assert response.headers["Location"] == public.url(BASE, protocol)


@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_a_short_url_leads_to_the_invitation_that_it_names(
    client: Client, protocol: Protocol
) -> None:
    invitation = made(single_use=True, expires_at_s=NOW_S + 1, label="Für Tom & Jerry")
    path = invitation.short_url(BASE, protocol).removeprefix(BASE)
    response = await client.get(path, headers={"Accept": "application/json"})
    assert await response.json() == invitation.message(protocol)
    response = await client.get(path, headers={"Accept": BROWSER}, allow_redirects=False)
    assert response.status == 302
    assert response.headers["Location"] == invitation.url(BASE, protocol)


@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_who_follows_a_short_url_and_is_no_browser_finds_the_message_there(
    client: Client, protocol: Protocol
) -> None:
    invitation = made(label="For Alice")
    short = invitation.short_url(BASE, protocol).removeprefix(BASE)
    to = (await client.get(short, headers={"Accept": "*/*"}, allow_redirects=False)).headers
    for accept in ("*/*", "", "application/didcomm-plain+json"):
        response = await client.get(
            to["Location"].removeprefix(BASE), headers={"Accept": accept}, allow_redirects=False
        )
        assert response.content_type == "application/json"
        assert await response.json() == invitation.message(protocol)


@pytest.mark.parametrize("label", ["Another", "", None])
async def test_a_short_url_with_another_label_is_of_no_invitation(
    client: Client, label: str | None
) -> None:
    invitation = made(label="Ours")
    named = {"id": invitation.terms.id} | ({} if label is None else {"label": label})
    response = await client.get(f"/invitation?{urlencode(named)}")
    assert (response.status, await response.json()) == (404, {"error": "UNKNOWN_INVITATION"})


async def test_a_short_url_ends_with_its_invitation(client: Client) -> None:
    path = made(expires_at_s=NOW_S).short_url(BASE, "out-of-band").removeprefix(BASE)
    assert (await client.get(path)).status == 410


@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_a_long_url_shows_a_page_with_its_qr_code(client: Client, protocol: Protocol) -> None:
    invitation = made(single_use=True, expires_at_s=NOW_S + 1, label="Tom & <b>Jerry</b>")
    url = invitation.url(BASE, protocol)
    response = await client.get(url.removeprefix(BASE), headers={"Accept": BROWSER})
    text = await response.text()
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<h1>Tom &amp; &lt;b&gt;Jerry&lt;/b&gt;</h1>" in text
    assert "For one wallet, until 2027-01-15 08:00 UTC." in text
    assert f"<code>{url}</code>" in unescape(text)
    assert f'href="didcomm://invite?{invitation.query(protocol)}"' in unescape(text)
    (drawn,) = re.findall("<svg.*</svg>", text)
    expected = segno.make_qr(url, error="l", mask=3).svg_inline(
        omitsize=True, light="#fff", title="QR code of the invitation"
    )
    assert drawn == expected
    assert ET.fromstring(drawn).tag == "svg"  # noqa: S314 - our own


async def test_the_id_alone_is_a_short_url_of_the_newer_generation(client: Client) -> None:
    public = OURS.public()
    assert public is not None
    for given in (made(label="For Alice"), public):
        path = given.short_url("", "out-of-band-2")
        assert path.startswith(f"/invitation?_oobid={given.terms.id}&")
        response = await client.get(path, allow_redirects=False)
        assert response.status == 302
        assert response.headers["Location"] == given.url(BASE, "out-of-band-2")


@pytest.mark.parametrize(
    ("parameter", "protocol"), [("_oobid", "out-of-band-2"), ("id", "out-of-band")]
)
async def test_a_short_url_without_a_label_names_an_invitation_with_the_mediators_own(
    client: Client, parameter: str, protocol: Protocol
) -> None:
    public = OURS.public()
    assert public is not None
    for given in (made(), public):
        path = f"/invitation?{parameter}={given.terms.id}"
        response = await client.get(path, headers={"Accept": "application/json"})
        assert await response.json() == given.message(protocol)


async def test_a_page_whose_url_is_too_long_for_a_code_shows_the_short_one(
    client: Client,
) -> None:
    invitation = made(label="🐌" * 64)
    response = await client.get(invitation.url("", "out-of-band"), headers={"Accept": BROWSER})
    (drawn,) = re.findall("<svg.*</svg>", await response.text())
    expected = segno.make_qr(
        invitation.short_url(BASE, "out-of-band"), error="l", mask=3
    ).svg_inline(omitsize=True, light="#fff", title="QR code of the invitation")
    assert drawn == expected


async def test_the_page_runs_nothing_and_loads_nothing(client: Client) -> None:
    url = made().url(BASE, "out-of-band")
    response = await client.get(url.removeprefix(BASE), headers={"Accept": BROWSER})
    text = await response.text()
    assert not re.search(r"<script|\bsrc=|\son[a-z]+=|\sstyle=|@import|url\(", text)
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    policy = response.headers["Content-Security-Policy"]
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert "frame-ancestors 'none'" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("protocol", PARAMETERS)
async def test_a_long_url_is_json_to_who_asks_for_it(client: Client, protocol: Protocol) -> None:
    invitation = made(label="For Alice")
    path = invitation.url("", protocol)
    response = await client.get(path, headers={"Accept": "application/json"})
    assert await response.json() == invitation.message(protocol)


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
async def test_an_invitation_that_is_over_is_gone(client: Client, accept: str) -> None:
    path = made(expires_at_s=NOW_S).url("", "out-of-band")
    response = await client.get(path, headers={"Accept": accept})
    assert response.status == 410
    assert await response.json() == {"error": "EXPIRED_INVITATION"}


@pytest.mark.parametrize(
    ("path", "status", "title"),
    [
        (made(expires_at_s=NOW_S).short_url("", "out-of-band"), 410, "Invitation expired"),
        (made(expires_at_s=NOW_S).url("", "out-of-band"), 410, "Invitation expired"),
        ("/invitation?id=cut", 404, "No such invitation"),
        ("/invitation?oob=cut", 404, "No such invitation"),
    ],
)
async def test_a_person_reads_on_a_page_why_there_is_no_invitation(
    client: Client, path: str, status: int, title: str
) -> None:
    response = await client.get(path, headers={"Accept": BROWSER})
    assert (response.status, response.content_type) == (status, "text/html")
    assert f"<h1>{title}</h1>" in await response.text()


THEIRS = Invitations(KeyPair.from_seed(b"t" * 32), "Poste", f"{BASE}/didcomm").public()
assert THEIRS is not None
CHANGED = {**made().message("out-of-band"), "label": "Free money"}


@pytest.mark.parametrize(
    "query",
    [
        THEIRS.query("out-of-band"),
        THEIRS.query("connections"),
        made().query("connections").replace("c_i=", "oob="),
        "oob=" + b64encode(json.dumps(CHANGED).encode()),
        "oob=",
        "oob=%00",
        "oob=%ff",
        "c_i=" + "A" * 7_000,
        "protocol=didexchange",
        urlencode({"protocol": ""}),
    ],
)
@pytest.mark.parametrize("accept", [BROWSER, "application/json"])
async def test_what_is_not_ours_and_what_never_was_look_the_same(
    client: Client, query: str, accept: str
) -> None:
    response = await client.get(f"/invitation?{query}", headers={"Accept": accept})
    never = await client.get("/invitation?id=never", headers={"Accept": accept})
    assert response.status == never.status == 404
    assert response.content_type == ("text/html" if accept == BROWSER else "application/json")
    assert await response.read() == await never.read()


async def test_a_program_learns_that_an_invitation_is_not_known(client: Client) -> None:
    response = await client.get("/invitation?id=never")
    assert await response.json() == {"error": "UNKNOWN_INVITATION"}


async def test_without_a_public_invitation_there_are_only_those_that_were_made() -> None:
    public = OURS.public()
    assert public is not None
    client = await served(Invitations(KEY, "Poste", f"{BASE}/didcomm", public=False))
    for path in ("/invitation", "/invitation?protocol=connections", public.url("", "out-of-band")):
        response = await client.get(path, allow_redirects=False)
        assert response.status == 404
    assert (await client.get(made().url("", "out-of-band"))).status == 200
    await client.close()
