from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.dids.document import Fetch, read_document
from http_edge.dids.fetched import Caller, FetchedDids, WebLimits
from http_edge.dids.own_document import mediator_document
from http_edge.dids.web import METHODS, WebDids, document_url
from tests.unit.test_hang_watch import clock_set_ahead
from tests.unit.wire.https_host import NAME, Answer, HttpsHost, https_host

KEYS = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))


class Clock:
    """Stands still until it is moved."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HttpsHost]:
    async with https_host(tmp_path) as running:
        running.answer = document(running)
        yield running


def document(host: HttpsHost, did: str | None = None) -> Answer:
    """Answer with the document of ``did``, the host's own by default."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(mediator_document(did or host.did, "https://x.example", KEYS))

    return answer


def dids(
    host: HttpsHost,
    limits: WebLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> WebDids:
    """What is tested, with the one switch that lets it reach this machine."""
    return FetchedDids(
        METHODS,
        limits,
        lookup=host.lookup,
        permitted=lambda address, _: address == "127.0.0.1",
        tls=tls or host.trust,
        clock=clock,
    )


class HeldNames:
    """A name service that answers "no such name" when it is let go, and not before."""

    def __init__(self) -> None:
        self.queried = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.queried.set()
        await self.released.wait()
        raise OSError("Name or service not known")


async def test_a_document_is_fetched_once_and_then_known(host: HttpsHost) -> None:
    web_dids = dids(host)
    assert web_dids.known(host.did) is Fetch.NEEDED
    found = await web_dids.resolve(host.did)
    assert found == read_document(host.did, mediator_document(host.did, "", KEYS))
    assert found is not None
    assert web_dids.known(host.did) == await web_dids.resolve(host.did) == found
    assert [request.path for request in host.requests] == ["/.well-known/did.json"]
    assert host.looked_up == [(NAME, host.port)]


async def test_a_path_in_the_did_is_a_path_on_the_host(host: HttpsHost) -> None:
    did = host.did + ":users:alice"
    host.answer = document(host, did)
    assert await dids(host).resolve(did) is not None
    assert host.requests[0].path == "/users/alice/did.json"


async def test_no_compression_is_offered(host: HttpsHost) -> None:
    await dids(host).resolve(host.did)
    assert host.requests[0].headers["Accept-Encoding"] == "identity"


async def test_by_default_this_machine_cannot_be_reached_under_any_name(host: HttpsHost) -> None:
    web_dids = FetchedDids(METHODS, lookup=host.lookup, tls=host.trust)
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is None, "there is no use in trying again"
    assert host.looked_up == [(NAME, host.port)]
    assert host.requests == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["169.254.169.254"],
        ["::ffff:127.0.0.1"],
        ["127.0.0.2"],
        ["127.0.0.1", "10.0.0.1"],
        ["10.0.0.1", "127.0.0.1"],
        [],
    ],
    ids=str,
)
async def test_one_address_that_is_not_permitted_condemns_the_name(
    host: HttpsHost, addresses: Sequence[str]
) -> None:
    host.addresses = addresses
    assert await dids(host).resolve(host.did) is None
    assert host.requests == []


async def test_a_name_that_changes_its_address_is_looked_up_only_once(host: HttpsHost) -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"], ["169.254.169.254"]]

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    web_dids = FetchedDids(
        METHODS,
        lookup=rebinding,
        tls=host.trust,
        permitted=lambda address, _: address == "127.0.0.1",
    )
    assert await web_dids.resolve(host.did) is not None
    assert len(answers) == 2


async def test_a_name_that_does_not_resolve_is_no_document(host: HttpsHost) -> None:
    names = HeldNames()
    names.released.set()
    web_dids = FetchedDids(METHODS, lookup=names, tls=host.trust)
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is None


async def test_a_name_service_that_is_out_of_order_is_a_failure(host: HttpsHost) -> None:
    async def out_of_order(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    web_dids = FetchedDids(METHODS, lookup=out_of_order, tls=host.trust)
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is Fetch.FAILED


async def test_a_certificate_that_is_not_trusted_is_refused(host: HttpsHost) -> None:
    web_dids = dids(host, tls=ssl.create_default_context())
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is None
    assert host.requests == []


async def test_a_certificate_for_another_name_is_refused(host: HttpsHost) -> None:
    did = host.did.replace(NAME, "other.example")
    host.answer = document(host, did)
    assert await dids(host).resolve(did) is None
    assert host.requests == []


async def test_a_redirect_is_not_followed(host: HttpsHost) -> None:
    async def redirect(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"https://{NAME}:{host.port}/elsewhere")

    host.answer = redirect
    assert await dids(host).resolve(host.did) is None
    assert len(host.requests) == 1


async def test_the_document_of_another_did_is_refused(host: HttpsHost) -> None:
    host.answer = document(host, "did:web:other.example")
    assert await dids(host).resolve(host.did) is None


def _body(content: bytes, **options: Any) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, **options)

    return answer


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"NaN", b"\xff", b"[" * 5000])
async def test_an_answer_that_is_no_document_is_refused(host: HttpsHost, content: bytes) -> None:
    host.answer = _body(content)
    assert await dids(host).resolve(host.did) is None


async def test_a_document_with_a_member_said_twice_is_refused(host: HttpsHost) -> None:
    host.answer = _body(b'{"id":"did:web:other.example","id":"%s"}' % host.did.encode())
    assert await dids(host).resolve(host.did) is None


@pytest.mark.parametrize(
    ("status", "failed"),
    [(201, False), (204, False), (400, False), (404, False), (429, True), (500, True), (503, True)],
)
async def test_any_other_status_than_200_is_refused(
    host: HttpsHost, status: int, *, failed: bool
) -> None:
    content = json.dumps(mediator_document(host.did, "", KEYS)).encode()
    host.answer = _body(content, status=status)
    web_dids = dids(host)
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is (Fetch.FAILED if failed else None)


async def test_a_compressed_answer_is_not_unfolded(host: HttpsHost) -> None:
    async def compressed(_request: web.Request) -> web.StreamResponse:
        response = web.json_response(mediator_document(host.did, "", KEYS))
        response.enable_compression(web.ContentCoding.gzip)
        return response

    host.answer = compressed
    assert await dids(host).resolve(host.did) is None


@pytest.mark.parametrize("size_bytes", [1_000, 1_000_000])
async def test_a_host_that_says_much_before_its_document_is_read_no_further(
    host: HttpsHost, size_bytes: int
) -> None:
    answer = document(host)

    async def talk(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        said = b"HTTP/1.1 102 Processing\r\n\r\n"
        request.transport.write(said * (size_bytes // len(said)))
        return await answer(request)

    host.answer = talk
    assert (await dids(host).resolve(host.did) is None) is (size_bytes > 200_000)


@pytest.mark.parametrize("tickets", [2, 1_000])
async def test_a_host_that_sends_tickets_of_tls_without_end_is_read_no_further(
    host: HttpsHost, tickets: int
) -> None:
    """A thousand take 200 kB, and nothing above TLS sees them."""
    host.tls.num_tickets = tickets
    found = await dids(host).resolve(host.did)
    assert (found is None) is (tickets > 2)


async def test_the_largest_document_is_taken_and_one_more_byte_is_not(host: HttpsHost) -> None:
    content = json.dumps(mediator_document(host.did, "", KEYS)).encode()
    host.answer = _body(content)
    fits = WebLimits(body_bytes_max=len(content))
    assert await dids(host, fits).resolve(host.did) is not None
    too_small = WebLimits(body_bytes_max=len(content) - 1)
    assert await dids(host, too_small).resolve(host.did) is None


async def test_an_endless_body_is_read_no_further_than_the_limit(host: HttpsHost) -> None:
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(65_536))
            written += 65_536

    host.answer = endless
    assert await dids(host).resolve(host.did) is None
    assert written < 64 * 1024 * 1024


async def test_a_host_that_never_answers_is_given_up(
    host: HttpsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = asyncio.Event()
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)

    async def silent(_request: web.Request) -> web.StreamResponse:
        goes_on(120)
        await given_up.wait()
        return web.Response()

    host.answer = silent
    web_dids = dids(host, WebLimits(timeout_s=60))
    assert await web_dids.resolve(host.did) is None
    assert web_dids.known(host.did) is Fetch.FAILED
    assert len(host.requests) == 1
    given_up.set()


async def test_a_name_service_that_never_answers_is_given_up(host: HttpsHost) -> None:
    web_dids = FetchedDids(METHODS, WebLimits(timeout_s=0.05), lookup=HeldNames())
    assert await web_dids.resolve(host.did) is None


async def test_many_who_ask_at_once_share_one_fetch(host: HttpsHost) -> None:
    web_dids = dids(host)
    found = await asyncio.gather(*(web_dids.resolve(host.did) for _ in range(50)))
    assert len(host.requests) == 1
    assert all(document == found[0] is not None for document in found)


async def test_one_who_stops_waiting_does_not_end_the_fetch_for_others() -> None:
    names = HeldNames()
    web_dids = FetchedDids(METHODS, lookup=names)
    impatient = asyncio.create_task(web_dids.resolve("did:web:a.example"))
    patient = asyncio.create_task(web_dids.resolve("did:web:a.example"))
    await names.queried.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    names.released.set()
    assert await patient is None
    assert web_dids.known("did:web:a.example") is None


async def test_a_document_is_read_in_a_thread_and_paid_for_by_the_request_that_needs_it(
    host: HttpsHost,
) -> None:
    paid: list[int] = []
    read: list[object] = []

    async def apart(work: Callable[[], object]) -> object:
        read.append(found := work())
        return found

    web_dids = FetchedDids(
        METHODS,
        caller=Caller(charge=paid.append, read=apart),
        lookup=host.lookup,
        permitted=lambda *_: True,
        tls=host.trust,
    )
    found = await web_dids.resolve(host.did)
    assert found is read[-1] is not None
    size_bytes = len(json.dumps(mediator_document(host.did, "https://x.example", KEYS)))
    assert paid == [size_bytes]


async def test_closing_ends_the_fetches_under_way() -> None:
    names = HeldNames()
    web_dids = FetchedDids(METHODS, lookup=names)
    waiting = asyncio.create_task(web_dids.resolve("did:web:a.example"))
    await names.queried.wait()
    await web_dids.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert web_dids.known("did:web:a.example") is Fetch.NEEDED


async def test_successes_and_failures_are_forgotten_in_their_own_time(host: HttpsHost) -> None:
    clock = Clock()
    web_dids = dids(host, clock=clock)
    missing = host.did + ":missing"
    assert await web_dids.resolve(host.did) is not None
    assert await web_dids.resolve(missing) is None
    for elapsed_s, found, lost in [(29.9, True, True), (30.0, True, False), (299.9, True, False)]:
        clock.now_s = 1000.0 + elapsed_s
        assert (web_dids.known(host.did) is not Fetch.NEEDED) == found
        assert (web_dids.known(missing) is not Fetch.NEEDED) == lost
    clock.now_s = 1300.0
    assert web_dids.known(host.did) is Fetch.NEEDED


async def test_no_more_documents_are_remembered_than_the_limit(host: HttpsHost) -> None:
    web_dids = dids(host, WebLimits(entries_max=3))
    names = [f"{host.did}:{number}" for number in range(10)]
    for did in names:
        await web_dids.resolve(did)
    assert [web_dids.known(did) for did in names].count(None) == 3


@pytest.mark.parametrize(
    ("did", "url"),
    [
        ("did:web:example.com", "https://example.com/.well-known/did.json"),
        ("did:web:Example.COM", "https://example.com/.well-known/did.json"),
        ("did:web:example.com:u:a", "https://example.com/u/a/did.json"),
        ("did:web:example.com%3A8443", "https://example.com:8443/.well-known/did.json"),
        ("did:web:example.com%3a8443:u", "https://example.com:8443/u/did.json"),
        ("did:web:xn--bcher-kva.example", "https://xn--bcher-kva.example/.well-known/did.json"),
        ("did:web:a.example:..a", "https://a.example/..a/did.json"),
    ],
)
def test_the_place_of_a_document_follows_from_the_did(did: str, url: str) -> None:
    assert str(document_url(did)) == url


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "localhost",
        "localhost.",
        "example.com.",
        ".example.com",
        "a..example",
        "-a.example",
        "a-.example",
        "a_b.example",
        "example.com\n",
        "ex\N{LATIN SMALL LETTER A WITH DIAERESIS}mple.com",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.0x1",
        "a.0x7f",
        "0177.0.0.1",
        "[::1]",
        "%5B::1%5D",
        "::1",
        "169.254.169.254",
        "user@example.com",
        "user%40example.com",
        "example.com:8443:..",
        "example.com:..:etc",
        "example.com:.",
        "example.com::a",
        "example.com:",
        "example.com:a%2Fb",
        "example.com:a/b",
        "example.com:a?b",
        "example.com:a#b",
        "example.com:~a",
        "example.com/a",
        "example.com?a",
        "example.com#a",
        "example.com%3A",
        "example.com%3A0",
        "example.com%3A65536",
        "example.com%3A-1",
        "example.com%3A443%3A1",
        "example.com%2Fa",
        "example.com%3A443x",
        "a" * 64 + ".example",
        ".".join(["a" * 60] * 5) + ".example",
        "example.com:" + "a" * 2000,
    ],
)
async def test_a_malformed_name_is_never_looked_up(host: HttpsHost, name: str) -> None:
    web_dids = dids(host)
    assert web_dids.known("did:web:" + name) is None
    assert await web_dids.resolve("did:web:" + name) is None
    assert host.looked_up == []


@pytest.mark.parametrize("name", ["xn--a.com", "xn--0.com", "xn--a-ecp.ru"])
async def test_a_name_whose_punycode_stands_for_no_text_is_fetched_like_any_other(
    host: HttpsHost, name: str
) -> None:
    did = host.did.replace(NAME, name)
    host.trust.check_hostname, host.answer = False, _body(b"", status=503)
    web_dids = dids(host)
    assert web_dids.known(did) is Fetch.NEEDED
    assert await web_dids.resolve(did) is None
    assert web_dids.known(did) is Fetch.FAILED
    assert host.looked_up == [(name, host.port)]


@pytest.mark.parametrize("allowed", ["a.example", "a.example:443", "a.example:8443"])
def test_a_host_is_allowed_on_the_named_port_alone(allowed: str) -> None:
    limits = WebLimits(allowed_hosts=frozenset({allowed}))
    for did, host in (("a.example", "a.example"), ("a.example%3A8443", "a.example:8443")):
        url = document_url("did:web:" + did)
        assert url is not None
        assert limits.allow(url) is (host == allowed.removesuffix(":443"))


def test_an_international_host_is_allowed_as_it_is_written_in_a_did() -> None:
    limits = WebLimits(allowed_hosts=frozenset({"xn--55qx5d.com"}))
    for did, is_allowed in (("xn--55qx5d.com", True), ("XN--55QX5D.com", True), ("a.com", False)):
        url = document_url("did:web:" + did)
        assert url is not None
        assert limits.allow(url) is is_allowed


@given(st.text() | st.text(st.sampled_from("ax0-.:%3A[]@/\\?#\n")))
def test_any_text_has_a_place_or_none_and_never_raises(name: str) -> None:
    url = document_url("did:web:" + name)
    assert url is None or (url.scheme == "https" and str(url).endswith("/did.json"))
