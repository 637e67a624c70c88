"""Whatever a push service does, it costs bounded time and memory and raises nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from aiohttp import web

from http_edge.didcomm.push.gateways import PushGateway, open_gateway
from http_edge.didcomm.push.service import PushOutcome
from http_edge.settings.settings import Push
from http_edge.telemetry.logs import LINES_APART_MS
from tests.edge.mediator import HandClock
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate, accept, status
from tests.unit.push.devices import ANDROID, KEY, TOKEN, private
from tests.unit.wire.https_host import https_host

MIB = 1_048_576


def gateway_to(url: str, clock: HandClock, **settings: object) -> PushGateway:
    made = Push.model_validate({"webhook_url": url, **settings})
    gateway = open_gateway(made, clock=clock)
    assert gateway is not None
    return gateway


async def test_a_redirect_leads_nowhere(host: AgentHost, clock: HandClock) -> None:
    url = f"http://127.0.0.1:{host.port}"
    host.answer = status(307, Location=f"{url}/other")
    gateway = gateway_to(url, clock)
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    await gateway.close()
    assert len(host.requests) == 1


async def test_a_service_that_never_answers_takes_its_time_and_no_more(
    host: AgentHost, clock: HandClock
) -> None:
    host.answer = Gate()
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock, timeout_s=0.05)
    async with asyncio.timeout(WAIT_S):
        assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    await gateway.close()


async def test_no_more_notifications_are_sent_at_once_than_the_bound(
    host: AgentHost, clock: HandClock
) -> None:
    gate = Gate()
    host.answer = gate
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock, in_flight_max=2)
    sending = [asyncio.create_task(gateway.send(ANDROID)) for _ in range(6)]
    await host.has(2)
    gate.released.set()
    assert set(await asyncio.gather(*sending)) == {PushOutcome.SENT}
    await gateway.close()
    assert host.under_way_most == 2


@pytest.mark.parametrize(
    ("wanted", "pause_s"), [("30", 30.0), ("999999999999", 3_600.0)], ids=["in bounds", "in error"]
)
@pytest.mark.parametrize("code", [429, 503])
async def test_an_overloaded_service_gets_no_request_before_the_time_that_it_names(
    host: AgentHost, clock: HandClock, code: int, wanted: str, pause_s: float
) -> None:
    host.answer = status(code, **{"Retry-After": wanted})
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    host.answer = accept
    clock.advance(pause_s - 0.001)
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    assert len(host.requests) == 1
    clock.advance(0.001)
    assert await gateway.send(ANDROID) is PushOutcome.SENT
    await gateway.close()


@pytest.mark.parametrize("back_s", [86_400, 600])
async def test_a_pause_is_over_when_the_clock_is_set_back(
    host: AgentHost, clock: HandClock, back_s: int
) -> None:
    host.answer = status(503, **{"Retry-After": "30"})
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    host.answer = accept
    clock.advance(-back_s)
    assert await gateway.send(ANDROID) is PushOutcome.SENT
    await gateway.close()


@pytest.mark.parametrize(
    ("code", "wanted"), [(404, "30"), (503, "Wed, 21 Oct 2099 07:28:00 GMT"), (503, "-1")]
)
async def test_only_an_overload_with_a_time_in_seconds_makes_a_pause(
    host: AgentHost, clock: HandClock, code: int, wanted: str
) -> None:
    host.answer = status(code, **{"Retry-After": wanted})
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    await gateway.send(ANDROID)
    host.answer = accept
    assert await gateway.send(ANDROID) is PushOutcome.SENT
    await gateway.close()


async def test_an_answer_without_end_is_cut(host: AgentHost, clock: HandClock) -> None:
    ended = asyncio.Event()

    async def endless(_: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            await response.prepare(host.requests[-1])
            while True:
                await response.write(bytes(MIB))
        finally:
            ended.set()

    host.answer = endless
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    async with asyncio.timeout(WAIT_S):
        assert await gateway.send(ANDROID) is PushOutcome.SENT
        await ended.wait()
    await gateway.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\x00\n",
        b"HTTP/1.1 999999 Fine\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nless",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + bytes(100_000) + b"\r\n\r\n",
    ],
    ids=["nothing", "noise", "status", "length", "cut", "chunk", "head"],
)
async def test_an_answer_that_is_no_http_is_none(clock: HandClock, answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = gateway_to(f"http://127.0.0.1:{port}", clock)
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    server.close()
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    await gateway.close()


async def test_a_service_with_a_certificate_that_is_not_trusted_gets_nothing(
    clock: HandClock, tmp_path: Path
) -> None:
    async with https_host(tmp_path) as service:
        gateway = gateway_to(f"https://127.0.0.1:{service.port}", clock)
        assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
        await gateway.close()
        assert service.requests == []


async def test_a_closed_gateway_sends_nothing(host: AgentHost, clock: HandClock) -> None:
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    assert await gateway.send(ANDROID) is PushOutcome.SENT
    await gateway.close()
    assert await gateway.send(ANDROID) is PushOutcome.UNAVAILABLE
    assert len(host.requests) == 1


async def test_the_first_failure_in_a_row_is_logged_without_secrets(
    host: AgentHost, clock: HandClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    gateway = gateway_to(
        f"http://127.0.0.1:{host.port}/secret-path",
        clock,
        webhook_key_file=private(tmp_path / "key", KEY),
    )

    async def explain(body: bytes) -> web.StreamResponse:
        return web.Response(status=403, body=b"text of an answer, " + body)

    for answer in (explain, explain, accept, accept, explain):
        host.answer = answer
        await gateway.send(ANDROID)
        clock.now_ms += LINES_APART_MS // 2
    await gateway.close()
    lines = [record for record in caplog.records if record.name.startswith("http_edge")]
    assert [(line.levelname, line.getMessage(), line.__dict__["status"]) for line in lines] == [
        ("WARNING", "push notification failed", 403)
    ] * 2
    written = str([record.__dict__ for record in caplog.records if "access" not in record.name])
    for secret in (TOKEN, KEY.decode(), "text of an answer", "secret-path", "v1="):
        assert secret not in written


async def test_a_service_that_fails_now_and_then_writes_few_lines(
    host: AgentHost, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger can name a device that the service refuses, and make every other call fail."""
    caplog.set_level(logging.INFO)
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    for answer in (status(403), accept) * 3:
        host.answer = answer
        await gateway.send(ANDROID)
    await gateway.close()
    assert [line.levelname for line in _own(caplog)] == ["WARNING"]


async def test_an_outage_is_logged_even_if_it_begins_just_after_another_line(
    host: AgentHost, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway = gateway_to(f"http://127.0.0.1:{host.port}", clock)
    for answer in (status(403), accept, *[status(500)] * 4):
        host.answer = answer
        await gateway.send(ANDROID)
        clock.now_ms += LINES_APART_MS // 3
    await gateway.close()
    assert [line.__dict__["status"] for line in _own(caplog)] == [403, 500]


def _own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Our lines, without those of the service that the test plays."""
    return [line for line in caplog.records if "aiohttp" not in line.name]
