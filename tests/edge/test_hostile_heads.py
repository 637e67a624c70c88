"""Heads that are valid HTTP and that the HTTP library reads in ways that take long or fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from actors.host.clock import system_clock
from http_edge.listener.bounded_server import Request
from http_edge.server import metrics
from http_edge.server.metrics import metrics_served
from http_edge.settings.settings import Rates
from tests.calls import calls_counted
from tests.edge.bare_edge import REQUESTS, Edge, edge_with, ended, served, status, until
from tests.edge.mediator import WAIT_S, Mediator

LONG: Final = 15_000
HEADERS: Final = (
    b"Accept",
    b"Accept-Encoding",
    b"Connection",
    b"Content-Type",
    b"Cookie",
    b"Expect",
    b"Forwarded",
    b"If-Modified-Since",
    b"If-None-Match",
    b"Range",
    b"Upgrade",
    b"Via",
    b"X-Forwarded-For",
    b"X-Request-Id",
)


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with edge_with(tmp_path) as edge:
        yield edge


async def calls_of(edge: Edge, head: bytes) -> int:
    """The calls that it takes to answer a request with this request line and these headers."""
    client = await edge.connect(b"")
    with calls_counted() as counted:
        await asyncio.get_running_loop().sock_sendall(client, head + b"Host: x\r\n\r\n")
        assert await status(client) in {200, 404}
    return counted[0]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a" + b"/" * LONG + b" HTTP/1.1\r\n",
        b"GET " + b"/a" * (LONG // 2) + b" HTTP/1.1\r\n",
        b"GET " + b"/%41" * (LONG // 4) + b" HTTP/1.1\r\n",
        b"GET /a?" + b"a=&" * (LONG // 3) + b" HTTP/1.1\r\n",
        *[
            b"GET /a HTTP/1.1\r\n" + name + b": " + b'a, b="; ' * (LONG // 8) + b"\r\n"
            for name in HEADERS
        ],
    ],
    ids=["slashes", "segments", "escaped segments", "query", *[name.decode() for name in HEADERS]],
)
async def test_a_long_head_takes_no_more_steps_than_a_short_one(edge: Edge, head: bytes) -> None:
    short = b"GET /a HTTP/1.1\r\n"
    await calls_of(edge, short)
    assert await calls_of(edge, head) < await calls_of(edge, short) + 200


async def test_a_path_of_slashes_takes_no_more_steps_where_metrics_are_served() -> None:
    async def shown() -> CollectorRegistry:
        return CollectorRegistry()

    async def calls(url: str, path: str) -> int:
        async with aiohttp.ClientSession() as client:
            with calls_counted() as counted:
                async with client.get(url + path, headers={"Authorization": "Bearer t"}) as answer:
                    assert answer.status == (200 if path == "/metrics" else 404)
        return counted[0]

    with socket.create_server(("127.0.0.1", 0)) as on:
        url = f"http://127.0.0.1:{on.getsockname()[1]}"
        async with metrics_served(shown, on, "t"):
            assert await calls(url, "/metrics")
            short = await calls(url, "/a")
            # A client that builds such a URL takes some steps itself.
            assert await calls(url, "/a" + "/" * 7_000) < short + 2_000
            async with aiohttp.ClientSession() as client, client.post(url + "/metrics") as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")


async def test_the_host_of_a_target_is_not_read_where_metrics_are_served() -> None:
    async def shown() -> CollectorRegistry:
        return CollectorRegistry()

    with socket.create_server(("127.0.0.1", 0)) as on:
        async with metrics_served(shown, on, "t"):
            reader, writer = await asyncio.open_connection(*on.getsockname())
            writer.write(b"GET http://xn--a.a/metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(WAIT_S):
                assert (await reader.readline()).split()[1] == b"401"
            writer.close()


@pytest.mark.parametrize(
    "malformed",
    [
        b"GET /metrics HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
    ids=["head", "long head", "chunk"],
)
async def test_malformed_http_writes_nothing_to_the_log_where_metrics_are_served(
    caplog: pytest.LogCaptureFixture, malformed: bytes
) -> None:
    async def shown() -> CollectorRegistry:
        return CollectorRegistry()

    with socket.create_server(("127.0.0.1", 0)) as on:
        async with metrics_served(shown, on, "t"):
            reader, writer = await asyncio.open_connection(*on.getsockname())
            writer.write(malformed)
            async with asyncio.timeout(WAIT_S):
                assert (await reader.read()).split()[1] == b"400"
            writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@asynccontextmanager
async def metrics_listener() -> AsyncIterator[tuple[str, int]]:
    """The address of a listener of metrics, whose token is ``t``."""

    async def shown() -> CollectorRegistry:
        return CollectorRegistry()

    with socket.create_server(("127.0.0.1", 0)) as on:
        async with metrics_served(shown, on, "t"):
            yield on.getsockname()


async def test_a_head_without_end_ends_its_connection_where_metrics_are_served() -> None:
    fields = [b"A%d: %s\r\n" % (number, b"a" * 8_000) for number in range(120)]
    async with metrics_listener() as address, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"".join(fields))
        with contextlib.suppress(ConnectionResetError):  # it may overtake the answer
            assert (await reader.read()).split()[1] == b"400"
        writer.close()


async def test_connections_are_bounded_and_a_scrape_is_answered_where_metrics_are_served() -> None:
    loop = asyncio.get_running_loop()

    def is_open(client: socket.socket) -> bool:
        try:
            return bool(client.recv(1))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    async with metrics_listener() as address:
        with contextlib.ExitStack() as opened:
            silent = [opened.enter_context(socket.socket()) for _ in range(160)]
            for number, client in enumerate(silent):
                client.setblocking(False)
                client.bind((f"127.0.0.{1 + number // 40}", 0))
                await loop.sock_connect(client, address)
            async with (
                aiohttp.ClientSession(headers={"Authorization": "Bearer t"}) as operator,
                operator.get("http://{}:{}/metrics".format(*address)) as answer,
            ):
                assert answer.status == 200
            await until(lambda: sum(map(is_open, silent)) <= 64)
            for start in range(0, 160, 40):
                assert sum(map(is_open, silent[start : start + 40])) <= 32


@pytest.mark.parametrize("addresses", [["127.0.0.2", "127.0.0.3"], ["127.0.0.1"]], ids=len)
@pytest.mark.parametrize(
    "sent",
    [
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000,
    ],
    ids=["no body", "part of a body", "requests whose answers are not read"],
)
async def test_what_is_refused_keeps_no_scrape_out_where_metrics_are_served(
    addresses: list[str], sent: bytes
) -> None:
    loop, scrape = asyncio.get_running_loop(), "http://{}:{}/metrics"
    async with metrics_listener() as address, asyncio.timeout(WAIT_S):
        with contextlib.ExitStack() as opened:

            async def refused(own: str) -> None:
                client = opened.enter_context(socket.socket())
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.bind((own, 0))
                with contextlib.suppress(ConnectionError):
                    await loop.sock_connect(client, address)
                    client.send(sent)  # as much as the kernel takes at once
                    await loop.sock_recv(client, 1)

            await asyncio.gather(*[refused(own) for own in addresses for _ in range(32)])
            async with aiohttp.ClientSession(headers={"Authorization": "Bearer t"}) as operator:
                for _ in range(20):
                    async with operator.get(scrape.format(*address)) as answer:
                        assert answer.status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /metrics HTTP/1.1\r\nHos",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n" * 100_000,
    ],
    ids=["part of a head", "requests whose answers are not read"],
)
async def test_a_client_that_sends_or_reads_too_slowly_is_cut_where_metrics_are_served(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    loop, hasty = asyncio.get_running_loop(), {"head_s_max": 0.2, "transfer_grace_s": 0.2}
    monkeypatch.setattr(metrics, "_LIMITS", metrics._LIMITS.model_copy(update=hasty))
    async with metrics_listener() as address, asyncio.timeout(WAIT_S):
        with socket.socket() as client, contextlib.suppress(ConnectionError):
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                client.setsockopt(socket.SOL_SOCKET, buffer, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, sent)
            assert await loop.sock_recv(client, 1) == b""


@pytest.mark.parametrize("expected", [b"much", b"\xff", b"100-continue, \xc3\xa9"])
async def test_an_expectation_that_is_unknown_costs_a_token_and_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expected: bytes
) -> None:
    now_ms = system_clock()
    request = b"GET /download HTTP/1.1\r\nHost: x\r\nExpect: " + expected + b"\r\n\r\n"
    two = Rates(per_address_per_s=1, burst_s=2, limited_answer_s=0)
    async with edge_with(tmp_path, lambda: now_ms, two) as edge:
        for _ in range(2):
            client = await edge.connect(request)
            answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
            assert answer.startswith(b"HTTP/1.1 417 ")
            assert answer.endswith(b'"EXPECTATION_FAILED"')
            await ended(client)
        assert await status(await edge.connect(REQUESTS["POST"])) == 429
        assert await status(await edge.connect(request)) == 429
    assert not caplog.records


async def test_upgrades_beyond_their_rate_are_not_read_and_none_writes_the_clients_text_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked, check = list[object](), web.WebSocketResponse.can_prepare

    def noted(socket: web.WebSocketResponse, request: web.BaseRequest) -> web.WebSocketReady:
        checked.append(request)
        return check(socket, request)

    monkeypatch.setattr(web.WebSocketResponse, "can_prepare", noted)
    now_ms, one = system_clock(), Rates(sockets_auth_per_address_per_s=1, burst_s=1)
    request = REQUESTS["WebSocket"][:-2] + b"Sec-WebSocket-Protocol: text\r\n\r\n"
    async with edge_with(tmp_path, lambda: now_ms, one) as edge:
        assert await status(await edge.connect(request)) == 101
        assert len(checked) == 1
        assert await status(await edge.connect(request)) == 429
        assert len(checked) == 1
    assert not caplog.records


_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_TWO_READINGS: Final = {
    "both lengths": b"Content-Length: 5\r\n" + _CHUNKED + b"\r\n0\r\n\r\n",
    "both lengths, reversed": _CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "length in hexadecimal": b"Content-Length: 0x2\r\n\r\n{}",
    "length with a control character": b"Content-Length: 2\x0b\r\n\r\n{}",
    "length of 65 bits": b"Content-Length: 18446744073709551618\r\n\r\n{}",
    "two encodings": _CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "unknown encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "folded line": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "line without CR": b"A: b\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "line without LF": b"A: b\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "NUL in a name": b"A\0: b\r\n\r\n",
    "two hosts": b"Host: y\r\n\r\n",
    "chunk size with a sign": _CHUNKED + b"\r\n+2\r\n{}\r\n0\r\n\r\n",
    "negative chunk size": _CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunk size with 0x": _CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size of 65 bits": _CHUNKED + b"\r\n10000000000000002\r\n{}\r\n0\r\n\r\n",
    "chunk with a space": _CHUNKED + b"\r\n2 \r\n{}\r\n0\r\n\r\n",
    "chunk without CR": _CHUNKED + b"\r\n2\n{}\r\n0\r\n\r\n",
    "chunk extension without CR": _CHUNKED + b"\r\n2;a\n{}\r\n0\r\n\r\n",
    "chunk longer than its size": _CHUNKED + b"\r\n2\r\n{}{}\r\n0\r\n\r\n",
    "length in a trailer": _CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("rest", _TWO_READINGS.values(), ids=_TWO_READINGS)
async def test_a_request_that_two_servers_may_read_as_different_ones_is_the_last_of_its_connection(
    edge: Edge, rest: bytes
) -> None:
    """What a proxy takes for a body must not become the request of another client."""
    loop = asyncio.get_running_loop()
    smuggled = b"POST /brief HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    client = await edge.connect(b"POST /brief HTTP/1.1\r\nHost: x\r\n" + rest + smuggled)
    answers = b""
    async with asyncio.timeout(WAIT_S):
        while more := await loop.sock_recv(client, 65_536):
            answers += more
    assert answers.count(b"HTTP/1.") == 1
    assert answers.split()[1] == b"400"


async def test_a_body_in_chunks_is_the_last_of_its_connection_by_http_1_0(edge: Edge) -> None:
    """RFC 9112 6.1: its proxies know no chunks, and may take the next request for a part of it."""
    head = b"POST /brief HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n" + _CHUNKED
    client = await edge.connect(2 * (head + b"\r\n1\r\nx\r\n0\r\n\r\n"))
    answers = b""
    async with asyncio.timeout(WAIT_S):
        while more := await asyncio.get_running_loop().sock_recv(client, 65_536):
            answers += more
    assert answers.count(b"HTTP/1.") == 1


@pytest.mark.parametrize("key", [b"", b"short", b"\xff" * 24, b"\xc3\xa9" * 12], ids=repr)
async def test_an_upgrade_with_a_key_that_is_none_is_refused_and_leaves_no_line_in_the_log(
    edge: Edge, caplog: pytest.LogCaptureFixture, key: bytes
) -> None:
    client = await edge.connect(REQUESTS["WebSocket"].replace(b"A" * 22 + b"==", key))
    assert await status(client) == 426
    await ended(client)
    assert not caplog.records


_NO_UPGRADES: Final = {
    "HEAD": (b"GET", b"HEAD"),
    "HTTP/1.0": (b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/0.9": (b"HTTP/1.1", b"HTTP/0.9"),
    "length": (b"Host: x", b"Host: x\r\nContent-Length: 1"),
    "chunks": (b"Host: x", b"Host: x\r\nTransfer-Encoding: chunked"),
}


@pytest.mark.parametrize("changed", _NO_UPGRADES.values(), ids=_NO_UPGRADES)
async def test_a_socket_is_opened_by_get_without_a_body_alone(
    edge: Edge, changed: tuple[bytes, bytes]
) -> None:
    """RFC 6455 4.2.1, RFC 9110 7.8. Bytes of a body would be read as frames."""
    client = await edge.connect(REQUESTS["WebSocket"].replace(*changed, 1))
    answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
    assert answer.split()[1] == b"426"
    assert b"\r\nConnection: Upgrade, close\r\n" in answer
    await ended(client)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(b"0.9", b"1.0"), (b"1.0", b"1.0"), (b"1.1", b"1.1"), (b"2.0", b"1.1")],
)
async def test_an_answer_has_a_version_that_this_server_speaks(
    edge: Edge, theirs: bytes, ours: bytes
) -> None:
    """RFC 9110 6.2."""
    client = await edge.connect(b"GET /nowhere HTTP/" + theirs + b"\r\nHost: x\r\n\r\n")
    answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
    assert answer.startswith(b"HTTP/" + ours + b" 404 ")


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"tcp"])
@pytest.mark.parametrize("path", [b"/brief", b"/ahead"])
async def test_a_declined_upgrade_is_answered_and_ends_the_connection(
    edge: Edge, caplog: pytest.LogCaptureFixture, protocol: bytes, path: bytes
) -> None:
    brief = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    upgrade = brief[:-2] + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
    client = await edge.connect(upgrade + b"x" + brief)
    assert await status(client) == 200
    await ended(client)
    assert await served(edge) == b"x"
    assert not caplog.records


async def test_the_host_of_a_target_is_not_read(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    # No punycode, so that it cannot be decoded.
    request = b"POST http://xn--a.a/brief HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    assert await status(await edge.connect(request)) == 200
    assert not caplog.records


async def test_a_target_with_a_host_and_no_path_is_the_root(mediator: Mediator) -> None:
    """RFC 9110 4.2.3."""
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    writer.write(b"GET http://mediator.example HTTP/1.1\r\nHost: mediator.example\r\n\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_fault_before_any_handler_ends_the_connection(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(Request, "__init__", fail)
    await ended(await edge.connect(REQUESTS["POST"]))
    assert [record.message for record in caplog.records] == ["connection failed"]


@pytest.mark.parametrize("path", [b"/brief", b"/read"])
async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(
    edge: Edge, path: bytes
) -> None:
    head = b"Host: x\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n"
    client = await edge.connect(b"POST " + path + b" HTTP/1.1\r\n" + head)
    assert await status(client) == 100
    await asyncio.get_running_loop().sock_sendall(client, b"x")
    assert await status(client) == 200
    # HTTP 1.0 has no interim answers.
    client = await edge.connect(b"POST " + path + b" HTTP/1.0\r\n" + head + b"x")
    assert await status(client) == 200


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (b"POST /brief HTTP/1.1\r\nContent-Length: 999999999\r\n", 413),
        (b"POST /brief HTTP/1.1\r\nContent-Length: 1\r\nContent-Encoding: gzip\r\n", 415),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 1\r\n", 404),
    ],
    ids=["too large", "compressed", "unknown path"],
)
async def test_a_client_is_not_asked_for_a_body_that_its_head_refuses(
    edge: Edge, head: bytes, refusal: int
) -> None:
    """RFC 9110 10.1.1. It may keep the body to itself, so no request can follow."""
    client = await edge.connect(head + b"Host: x\r\nExpect: 100-continue\r\n\r\n")
    answer = await asyncio.get_running_loop().sock_recv(client, 65_536)
    assert answer.startswith(b"HTTP/1.1 %d " % refusal)
    assert b"\r\nConnection: close\r\n" in answer
