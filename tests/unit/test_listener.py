"""The listener knows no protocol: it serves the routes that it is given, errors in their form."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from aiohttp import web

from actors.core.commands import Page
from http_edge.decentrl.answers import records, respond
from http_edge.listener.connection import Connection
from http_edge.listener.in_flight import InFlight
from http_edge.listener.listener import HttpListener
from http_edge.listener.routes import BodyRoute, PlainRoute, RouteGroup, SocketRoute
from http_edge.settings.settings import Limits, Settings
from http_edge.telemetry.edge_measures import EdgeMeasures
from http_edge.telemetry.refusal_counts import DECENTRL, DIDCOMM, RefusalCounts

BODY_BYTES_MAX: Final = 65_536
PAGE: Final = records("messages", [{"payload": "é" * 300_000}] * 9, 9, Page(0, 50))


async def echo(_: web.Request, body: bytes) -> web.Response:
    return web.Response(body=body)


async def fail(_: web.Request) -> web.Response:
    raise RuntimeError("a defect")


async def greet(request: web.Request) -> web.WebSocketResponse:
    greeting = web.WebSocketResponse()
    await greeting.prepare(request)
    await greeting.send_str("hello")
    await greeting.receive()
    return greeting


async def page(_: web.Request) -> web.StreamResponse:
    return respond(PAGE)


async def exhaust(_: web.Request) -> web.Response:
    raise MemoryError


FIRST: Final = RouteGroup(
    DECENTRL,
    [BodyRoute("/echo", echo), SocketRoute("/greet", greet)],
)
SECOND: Final = RouteGroup(
    DIDCOMM,
    [
        BodyRoute("/other", echo),
        PlainRoute("GET", "/page", page),
        PlainRoute("GET", "/defect", fail),
        PlainRoute("GET", "/exhausted", exhaust),
    ],
)


@pytest.fixture
def in_flight(settings: Settings) -> InFlight:
    return InFlight(settings.limits)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, limits=Limits(body_bytes_max=BODY_BYTES_MAX))


@pytest.fixture
async def url(settings: Settings, in_flight: InFlight) -> AsyncIterator[str]:
    refusals = RefusalCounts(entries_max=64, senders_bytes_max=1_024, clock=lambda: 0)
    listener = HttpListener(
        settings,
        [FIRST, SECOND],
        in_flight,
        clock=lambda: 0,
        refusals=refusals,
        measures=EdgeMeasures(),
        error_body=lambda reason: b'"%b"' % reason.encode(),
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await listener.start(listening)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        await listener.stop()


async def test_each_group_is_served_and_what_is_rejected_is_answered_in_one_form(
    url: str, in_flight: InFlight
) -> None:
    async with aiohttp.ClientSession(url) as client:

        async def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
            async with client.request(method, path, data=body) as answer:
                return answer.status, await answer.text()

        assert await ask("POST", "/echo", b"x") == (200, "x")
        assert await ask("POST", "/other", b"y") == (200, "y")
        large = bytes(BODY_BYTES_MAX + 1)
        assert await ask("POST", "/echo", large) == (413, '"BODY_TOO_LARGE"')
        assert await ask("POST", "/other", large) == (413, '"BODY_TOO_LARGE"')
        assert await ask("GET", "/defect") == (500, '"INTERNAL_ERROR"')
        assert await ask("GET", "/greet") == (426, '"UPGRADE_REQUIRED"')
        assert await ask("GET", "/unknown") == (404, '"NOT_FOUND"')
        in_flight.draining = True
        assert await ask("POST", "/other", b"y") == (503, '"TOO_BUSY"')


async def test_a_page_in_pieces_is_one_body_of_known_length_and_counts_until_it_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    write_in_pieces = Connection.write_in_pieces

    def noted(connection: Connection, left_bytes: Callable[[], int] | None) -> None:
        counted.append(0 if left_bytes is None else left_bytes())
        write_in_pieces(connection, left_bytes)

    monkeypatch.setattr(Connection, "write_in_pieces", noted)
    async with aiohttp.ClientSession(url) as client, client.get("/page") as answer:
        assert answer.headers["Content-Length"] == str(PAGE.size_bytes)
        assert await answer.read() == b"".join([PAGE.body, *PAGE.more])
    assert counted == [PAGE.size_bytes, 0]


async def test_a_socket_counts_for_its_protocol_while_it_is_open(
    url: str, in_flight: InFlight
) -> None:
    assert in_flight.sockets == {DECENTRL: 0, DIDCOMM: 0}
    async with aiohttp.ClientSession(url) as client, client.ws_connect("/greet") as greeting:
        assert await greeting.receive_str() == "hello"
        assert in_flight.sockets == {DECENTRL: 1, DIDCOMM: 0}
    assert in_flight.sockets == {DECENTRL: 0, DIDCOMM: 0}


async def test_an_edge_that_drains_opens_no_socket(url: str, in_flight: InFlight) -> None:
    in_flight.draining = True
    async with aiohttp.ClientSession(url) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect("/greet")
    assert refused.value.status == 503


async def test_every_answer_names_its_request(url: str) -> None:
    async with aiohttp.ClientSession(url) as client:
        async with client.get("/unknown", headers={"X-Request-Id": "mine"}) as answer:
            assert answer.headers["X-Request-Id"] == "mine"
        made = [""]
        for _ in range(2):
            async with client.options("/unknown") as answer:
                assert answer.status == 204
                made.append(answer.headers["X-Request-Id"])
    assert len({*made}) == len(made)


async def test_an_edge_without_memory_ends_and_does_not_refuse_each_request_to_come(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    async with aiohttp.ClientSession(url) as client, client.get("/exhausted"):
        assert codes == [70]
