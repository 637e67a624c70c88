"""DCTRL-0004 section 3: the endpoints, CORS, and what is neither."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import AsyncIterator

import base58
import orjson
import pytest
from nacl.bindings import crypto_scalarmult_base
from nacl.signing import SigningKey

from actors.host.identity_host import IdentityHost
from http_edge.decentrl.routes import PROJECT_URL
from tests.edge.conftest import StartMediator
from tests.edge.identities import Identity, Json
from tests.edge.mediator import KEYS, MEDIATOR_DID, PUBLIC_URL, HandClock, Mediator

UNEXPLAINED = {"status": "error", "detail": "part of this mediator does not work"}


def multibase(prefix: bytes, key: bytes) -> str:
    digits: bytes = base58.b58encode(prefix + key)
    return "z" + digits.decode()


DOCUMENT = {
    "@context": [
        "https://www.w3.org/ns/did/v1",
        "https://w3id.org/security/suites/jws-2020/v1",
    ],
    "id": MEDIATOR_DID,
    "controller": MEDIATOR_DID,
    "verificationMethod": [
        {
            "id": f"{MEDIATOR_DID}#signing",
            "type": "Ed25519VerificationKey2020",
            "controller": MEDIATOR_DID,
            "publicKeyMultibase": multibase(
                b"\xed\x01", bytes(SigningKey(KEYS.signing_seed).verify_key)
            ),
        }
    ],
    "keyAgreement": [
        {
            "id": f"{MEDIATOR_DID}#prekey",
            "type": "X25519KeyAgreementKey2020",
            "controller": MEDIATOR_DID,
            "publicKeyMultibase": multibase(b"\xec\x01", crypto_scalarmult_base(KEYS.pre_private)),
        }
    ],
    "authentication": [f"{MEDIATOR_DID}#signing"],
    "service": [
        {
            "id": "#mediator-service",
            "type": "DecentrlMediator",
            "serviceEndpoint": {"uri": PUBLIC_URL},
        }
    ],
}


async def test_trap_2_the_document_is_the_one_of_the_specification_letter_by_letter(
    mediator: Mediator,
) -> None:
    answer = await mediator.get("/")
    assert answer.status == 200
    assert answer.json == DOCUMENT


@pytest.mark.parametrize("settings", [{}, {"didcomm": {"enabled": False}}])
async def test_the_document_of_did_web_says_the_same_first_and_what_didcomm_adds_behind_it(
    mediator: Mediator, settings: Json
) -> None:
    answer = await mediator.get("/.well-known/did.json")
    assert answer.status == 200
    assert set(answer.json) == set(DOCUMENT)
    for name, value in DOCUMENT.items():
        there = answer.json[name]
        assert there[: len(value)] == value if isinstance(value, list) else there == value
    methods = answer.json["verificationMethod"]
    assert {each["controller"] for each in methods} == {MEDIATOR_DID}
    assert {each["id"].partition("#")[0] for each in methods} == {MEDIATOR_DID}
    messaging = [service["serviceEndpoint"] for service in answer.json["service"][1:]]
    assert [endpoint["uri"].partition(":")[0] for endpoint in messaging] == (
        [] if settings else ["https", "wss"]
    )


@pytest.mark.parametrize("settings", [{"did": "did:web:mediator.test:post"}])
async def test_a_did_web_with_a_path_is_found_where_its_proxy_takes_the_path_away(
    mediator: Mediator,
) -> None:
    # https://mediator.test/post/did.json
    answer = await mediator.get("/did.json")
    assert answer.status == 200
    assert answer.json["id"] == "did:web:mediator.test:post"


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_a_browser_is_shown_what_this_is_on_a_page_that_loads_nothing(
    mediator: Mediator,
) -> None:
    answer = await mediator.get("/", headers={"Accept": BROWSER})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Vary"] == "Accept"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    page = answer.body.decode()
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
    assert "<h1>Poste</h1>" in page
    assert "mediator" in page
    assert MEDIATOR_DID in page
    links = re.findall(r'href="([^"]*)"', page)
    assert links == ["invitation", ".well-known/did.json", PROJECT_URL]
    for link in links[:2]:
        assert (await mediator.request("GET", f"/{link}", allow_redirects=False)).status < 400
    assert not re.search(r"(?i)<script|<img|<link|@import|url\(|src=", page)


@pytest.mark.parametrize("settings", [{"didcomm": {"registration": "closed", "label": "<b>&"}}])
async def test_the_page_escapes_its_name_and_links_to_no_invitation_that_there_is_not(
    mediator: Mediator,
) -> None:
    page = (await mediator.get("/", headers={"Accept": BROWSER})).body.decode()
    assert "<h1>&lt;b&gt;&amp;</h1>" in page
    assert "invitation" not in page


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "application/json, text/html"])
async def test_all_other_clients_get_the_document_at_the_root(
    mediator: Mediator, accept: str | None
) -> None:
    answer = await mediator.get("/", headers={} if accept is None else {"Accept": accept})
    assert answer.json == DOCUMENT
    assert answer.headers["Vary"] == "Accept"


async def test_trap_3_the_keys_of_the_document_carry_their_multicodec_prefix(
    mediator: Mediator,
) -> None:
    document = (await mediator.get("/")).json
    assert document["verificationMethod"][0]["publicKeyMultibase"].startswith("z6Mk")
    assert document["keyAgreement"][0]["publicKeyMultibase"].startswith("z6LS")


@pytest.mark.parametrize("path", ["/", "/.well-known/did.json", "/health", "/public/did:key:z1"])
async def test_trap_4_the_content_type_is_application_json(mediator: Mediator, path: str) -> None:
    answer = await mediator.get(path)
    assert answer.headers["Content-Type"].split(";")[0] == "application/json"


async def test_health_says_ok(mediator: Mediator) -> None:
    answer = await mediator.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


@pytest.mark.parametrize("settings", [{"hosts": 2}])
async def test_an_edge_is_ready_while_any_host_works_and_alive_without_any(
    mediator: Mediator, clock: HandClock
) -> None:
    async def statuses() -> tuple[int, ...]:
        clock.advance(2)
        answers = [await mediator.get(path) for path in ("/livez", "/readyz", "/health")]
        return tuple(answer.status for answer in answers)

    assert await statuses() == (200, 200, 200)
    mediator.hosts.cut("host-0")
    assert await statuses() == (200, 200, 503)
    mediator.hosts.cut("host-1")
    assert await statuses() == (200, 503, 503)
    assert (await mediator.get("/readyz")).json == UNEXPLAINED
    detail = (await mediator.operate("/readyz")).json["detail"]
    assert "host-0 does not answer" in detail
    mediator.hosts.mend("host-1")
    assert await statuses() == (200, 200, 503)


@pytest.mark.parametrize("settings", [{"hosts": 4}])
async def test_readiness_asks_one_host_as_long_as_that_works(
    mediator: Mediator, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinged: list[str] = []
    ping = IdentityHost.ping

    def noted(host: IdentityHost) -> str:
        pinged.append(host.holdings().name)
        return ping(host)

    monkeypatch.setattr(IdentityHost, "ping", noted)
    for _ in range(6):
        clock.advance(2)
        assert (await mediator.get("/readyz")).status == 200
    # The first look is at all of them, to find one.
    assert sorted(pinged[:4]) == ["host-0", "host-1", "host-2", "host-3"]
    assert len(pinged) == 4 + 5
    assert len(set(pinged[4:])) == 1


async def test_an_edge_that_drains_is_alive_and_not_ready(mediator: Mediator) -> None:
    mediator.edges[0]._in_flight.draining = True
    assert (await mediator.get("/livez")).status == 200
    answer = await mediator.get("/readyz")
    assert (answer.status, answer.json) == (503, UNEXPLAINED)
    assert (await mediator.operate("/readyz")).json == {"status": "error", "detail": "draining"}


async def test_a_host_that_does_not_answer_is_logged_once_with_the_requests(
    mediator: Mediator, alice: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    await mediator.register(alice)
    mediator.hosts.cut("host-0")
    answers = [await mediator.do(alice, "QUERY_PENDING_EVENTS") for _ in range(3)]
    assert [answer.status for answer in answers] == [503] * 3
    (line,) = [r for r in caplog.records if r.name == "http_edge.dispatch.outbox"]
    assert line.levelno == logging.WARNING
    assert vars(line)["request_ids"] == [answers[0].headers["X-Request-Id"]]
    assert len({answer.headers["X-Request-Id"] for answer in answers}) == len(answers)


async def test_trap_10_health_says_operators_what_is_wrong_and_no_secret(
    mediator: Mediator, clock: HandClock
) -> None:
    assert (await mediator.get("/health")).status == 200
    mediator.hosts.cut("host-0")
    clock.advance(2)
    answer = await mediator.get("/health")
    assert (answer.status, answer.json) == (503, UNEXPLAINED)
    answer = await mediator.operate("/health")
    assert answer.status == 503
    assert set(answer.json) == {"status", "detail"}
    assert answer.json["status"] == "error"
    assert "host-0" in answer.json["detail"]
    assert str(mediator.settings.data_dir) not in answer.json["detail"]
    mediator.hosts.mend("host-0")
    clock.advance(2)
    assert (await mediator.get("/health")).status == 200


async def test_health_is_checked_once_a_second_however_often_it_is_asked(
    mediator: Mediator,
) -> None:
    assert (await mediator.get("/health")).status == 200
    mediator.hosts.cut("host-0")
    assert (await mediator.get("/health")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "data", "status"),
    [
        ("GET", "/", {}, None, 200),
        ("GET", "/.well-known/did.json", {}, None, 200),
        ("GET", "/health", {}, None, 200),
        ("GET", "/public/did:key:z1", {}, None, 200),
        ("GET", "/public/nonsense", {}, None, 400),
        ("GET", "/status", {}, None, 404),
        ("GET", "/ws", {}, None, 426),
        ("GET", "/nowhere", {}, None, 404),
        ("GET", "/public/", {}, None, 404),
        ("POST", "/nowhere", {}, b"{}", 404),
        ("POST", "/", {}, b"{", 400),
        ("POST", "/", {}, bytes(65_537), 413),
        ("POST", "/", {"Content-Encoding": "gzip"}, b"x", 415),
        ("PUT", "/", {}, b"{}", 405),
        ("DELETE", "/health", {}, None, 405),
        ("POST", "/ws", {}, b"", 405),
        ("OPTIONS", "/", {}, None, 204),
        ("OPTIONS", "/ws", {}, None, 204),
        ("OPTIONS", "/public/did:key:z1", {}, None, 204),
        ("OPTIONS", "/nowhere/at/all", {}, None, 204),
    ],
)
async def test_trap_5_every_kind_of_answer_allows_every_origin(
    start_mediator: StartMediator,
    method: str,
    path: str,
    headers: dict[str, str],
    data: bytes | None,
    status: int,
) -> None:
    mediator = await start_mediator(limits={"body_bytes_max": 65_536})
    answer = await mediator.request(method, path, headers=headers, data=data)
    assert answer.status == status
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    if status >= 400:
        assert answer.refusal[0] == status
    elif status != 204:
        assert answer.json


async def test_a_preflight_allows_the_methods_and_headers_of_the_protocol(
    mediator: Mediator,
) -> None:
    answer = await mediator.request("OPTIONS", "/")
    assert answer.status == 204
    assert answer.body == b""
    assert set(answer.headers["Access-Control-Allow-Methods"].split(", ")) == {
        "GET",
        "POST",
        "OPTIONS",
    }
    assert answer.headers["Access-Control-Allow-Headers"] == "Content-Type"


async def test_a_script_in_a_browser_may_read_when_to_try_again(
    start_mediator: StartMediator,
) -> None:
    mediator = await start_mediator(rates={"per_address_per_s": 1, "burst_s": 1})
    await mediator.get("/")
    await mediator.get("/")
    answer = await mediator.get("/")
    assert answer.status == 429
    assert answer.headers["Retry-After"]
    assert answer.headers["Access-Control-Expose-Headers"] == "Retry-After"


async def test_the_allowed_origin_is_configurable(start_mediator: StartMediator) -> None:
    origin = "https://app.example"
    mediator = await start_mediator(protocol={"cors_allowed_origin": origin})
    for path in ("/", "/nowhere"):
        answer = await mediator.get(path)
        assert answer.headers["Access-Control-Allow-Origin"] == origin


async def test_trap_6_a_body_that_is_too_large_is_an_error_in_json(
    start_mediator: StartMediator,
) -> None:
    mediator = await start_mediator(limits={"body_bytes_max": 65_536})
    assert (await mediator.post(b" " * 65_536)).refusal == (400, "INVALID_COMMAND")
    assert (await mediator.post(b" " * 65_537)).refusal == (413, "INVALID_COMMAND")
    answer = await mediator.request("POST", "/", data=_chunks(b" " * 40_000, b" " * 40_000))
    assert answer.refusal == (413, "INVALID_COMMAND")


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.mark.parametrize(
    ("method", "path", "refusal"),
    [
        ("GET", "/nowhere", (404, "NOT_FOUND")),
        ("POST", "/nowhere", (404, "NOT_FOUND")),
        ("GET", "/public", (404, "NOT_FOUND")),
        ("GET", "/ws/more", (404, "NOT_FOUND")),
        ("PATCH", "/", (405, "METHOD_NOT_ALLOWED")),
        ("POST", "/health", (405, "METHOD_NOT_ALLOWED")),
    ],
)
async def test_trap_8_what_the_protocol_has_no_code_for_has_its_form(
    mediator: Mediator, method: str, path: str, refusal: tuple[int, str]
) -> None:
    answer = await mediator.request(method, path)
    assert answer.refusal == refusal


async def test_a_method_that_is_not_allowed_names_those_that_are(mediator: Mediator) -> None:
    answer = await mediator.request("PATCH", "/")
    assert set(answer.headers["Allow"].split(",")) == {"GET", "HEAD", "POST"}


async def test_trap_9_ws_without_upgrade_says_that_one_is_required(mediator: Mediator) -> None:
    answer = await mediator.get("/ws")
    assert answer.refusal == (426, "UPGRADE_REQUIRED")
    assert answer.headers["Upgrade"] == "websocket"
    assert answer.headers["Sec-WebSocket-Version"] == "13"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
async def test_a_body_with_a_content_encoding_is_refused_unread(
    mediator: Mediator, encoding: str
) -> None:
    answer = await mediator.post(b"{}", headers={"Content-Encoding": encoding})
    assert answer.refusal == (415, "INVALID_COMMAND")


async def test_a_body_that_does_not_come_is_not_waited_for(
    start_mediator: StartMediator,
) -> None:
    mediator = await start_mediator(limits={"body_read_s_max": 0.05})
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nfew")
    answer = await reader.readuntil(b"}")
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"Access-Control-Allow-Origin: *" in head
    assert orjson.loads(body) == {
        "type": "ERROR",
        "code": "INVALID_COMMAND",
        "detail": "body: does not arrive in time",
    }


async def test_an_idle_connection_is_closed(start_mediator: StartMediator) -> None:
    mediator = await start_mediator(limits={"keepalive_s": 0.05})
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    assert await reader.read() == b""
    writer.close()


async def test_status_counts_what_was_done(mediator: Mediator, alice: Identity) -> None:
    before = (await mediator.operate("/status")).json
    await mediator.register(alice)
    async with mediator.socket(alice):
        await mediator.edges[0]._probe("host-0")  # which it does every second
        after = (await mediator.operate("/status")).json
    assert after["sockets"] == 1
    assert after["commits"] > before["commits"]
    assert after["commands"] > before["commands"]
    assert {shard["shard"] for shard in after["shards"]} == {f"shard-{n}" for n in range(16)}


async def test_trap_86_document_and_did_survive_a_restart(mediator: Mediator) -> None:
    before = await mediator.get("/")
    await mediator.restart()
    assert (await mediator.get("/")).body == before.body


async def test_trap_1_every_success_has_status_200(
    mediator: Mediator, friends: None, alice: Identity, bob: Identity
) -> None:
    answers = [
        await mediator.send(alice, mediator.registration(alice)),
        await mediator.write(alice, bob, base64.b64encode(b"hi").decode()),
        await mediator.do(alice, "SAVE_EVENTS", events=[]),
        await mediator.publish(alice, "hello"),
    ]
    assert [(answer.status, answer.json["type"]) for answer in answers] == [(200, "SUCCESS")] * 4


async def answer_to(port: int, nonsense: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to what is no HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(nonsense)
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"400"
    return head, body


async def test_what_is_no_http_is_read_by_no_other_origins_than_answers_are(
    start_mediator: StartMediator,
) -> None:
    mediator = await start_mediator(protocol={"cors_allowed_origin": "https://app.example"})
    head, _ = await answer_to(mediator.ports[0], b"NONSENSE\r\n\r\n")
    assert b"Access-Control-Allow-Origin: https://app.example\r\n" in head
    operators_port = mediator.edges[0].operators_port
    assert operators_port is not None
    head, _ = await answer_to(operators_port, b"NONSENSE\r\n\r\n")
    assert b"Access-Control" not in head


@pytest.mark.parametrize("nonsense", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"])
async def test_what_is_no_http_gets_an_error_in_the_protocols_form(
    mediator: Mediator, caplog: pytest.LogCaptureFixture, nonsense: bytes
) -> None:
    port = int(mediator.url().split(":")[2].rstrip("/"))
    head, body = await answer_to(port, nonsense)
    assert b"Access-Control-Allow-Origin: *" in head
    assert orjson.loads(body)["code"] == "INVALID_COMMAND"
    assert not caplog.records


async def test_the_status_tells_how_much_waits_and_how_long_already(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice, bob)
    await mediator.befriend(bob, alice)
    assert (await mediator.operate("/status")).json["queue_oldest_age_s"] is None
    await mediator.delivered(alice, bob, "hello")
    clock.advance(90)
    figures = (await mediator.operate("/status")).json
    assert (figures["identities"], figures["queue_messages"]) == (2, 1)
    assert figures["queue_oldest_age_s"] == 90
    assert figures["storage"]["contents_bytes"] >= len("hello")
    assert figures["storage"]["used_bytes"] > figures["storage"]["facts_bytes"] > 0
    assert "storage" not in figures["hosts"][0]
    clock.advance(-86_400)
    assert (await mediator.operate("/status")).json["queue_oldest_age_s"] == 0


@pytest.mark.parametrize(
    "settings", [{"edges": 2, "rates": {"per_address_per_s": 2, "burst_s": 10}}]
)
async def test_edges_share_what_one_address_may_do(mediator: Mediator) -> None:
    assert [(await mediator.get("/")).status for _ in range(11)] == [200] * 10 + [429]
