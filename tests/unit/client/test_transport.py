from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from http_edge.clients.decentrl import (
    ONCE,
    Account,
    CommandRefused,
    MediatorClient,
    MediatorUnreachable,
    OutcomeUnknown,
    TransportLimits,
    UnexpectedAnswer,
)
from http_edge.clients.decentrl.transport import read_answer
from http_edge.clients.retry_after import retry_after_s
from tests.unit.client.conftest import World
from tests.unit.client.scripted_mediator import ScriptedMediator, cut, error, plain, success
from tests.unit.test_hang_watch import clock_set_ahead


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"type":"ERROR","code":"TEMPORARILY_UNAVAILABLE"}', OutcomeUnknown),
        (500, b'{"type":"ERROR","code":"INTERNAL_ERROR"}', OutcomeUnknown),
        (502, b"<html>Bad Gateway</html>", OutcomeUnknown),
        (503, b'{"type":"ERROR","code":"INSUFFICIENT_STORAGE"}', CommandRefused),
        (503, b'{"code":"INSUFFICIENT_STORAGE"}', OutcomeUnknown),
        (503, b"[]", OutcomeUnknown),
        (503, b'{"type":[],"code":{}}', OutcomeUnknown),
        (401, b'{"type":"ERROR","code":"DUPLICATE_NONCE"}', CommandRefused),
        (404, b"<html>Not Found</html>", UnexpectedAnswer),
        (200, b"[]", UnexpectedAnswer),
        (200, b'{"type":"ERROR"}', UnexpectedAnswer),
        (302, b'{"type":"SUCCESS"}', UnexpectedAnswer),
    ],
)
def test_each_answer_has_one_meaning(status: int, body: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read_answer(status, None, body)


def test_a_refusal_carries_code_status_and_pause() -> None:
    with pytest.raises(CommandRefused) as refused:
        read_answer(429, "7", b'{"type":"ERROR","code":"RATE_LIMITED"}')
    assert (refused.value.code, refused.value.http_status, refused.value.retry_after_s) == (
        "RATE_LIMITED",
        429,
        7.0,
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("3", 3.0), (" 3 ", 3.0), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("-1", None)],
)
def test_only_seconds_are_read_from_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


async def test_an_idempotent_command_is_signed_anew_until_its_outcome_is_known(
    alice: Account, mediator: ScriptedMediator, world: World
) -> None:
    mediator.script.extend([cut, error("TEMPORARILY_UNAVAILABLE", 503, Retry_After="4"), success()])
    await alice.acknowledge_pending_events(["1"])
    nonces = [command["header"]["nonce"] for command in mediator.received]
    assert len(set(nonces)) == 3
    assert len({command["signature"] for command in mediator.received}) == 3
    # Half of the first pause, then what the mediator named.
    assert world.waits_s == [0.5, 4.0]


async def test_a_command_that_adds_is_not_repeated_unless_the_caller_says_so(
    alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.script.extend([cut])
    with pytest.raises(OutcomeUnknown):
        await alice.send(alice.identity.did, "payload", at=alice.mediator)
    assert len(mediator.received) == 1
    mediator.script.extend([cut, success(pendingEventId="e1")])
    sent = await alice.send(alice.identity.did, "payload", at=alice.mediator, repeat=True)
    assert (sent, len(mediator.received)) == ("e1", 3)


async def test_retries_are_bounded(alice: Account, mediator: ScriptedMediator) -> None:
    mediator.script.extend([cut] * 4)
    with pytest.raises(OutcomeUnknown):
        await alice.query_pending_events()
    assert len(mediator.received) == 3


async def test_a_refusal_is_never_retried(alice: Account, mediator: ScriptedMediator) -> None:
    mediator.script.extend([error("UNAUTHORIZED_COMMAND", 401)])
    with pytest.raises(CommandRefused):
        await alice.query_pending_events()
    assert len(mediator.received) == 1


async def test_a_command_that_came_too_fast_is_sent_again_when_the_mediator_says(
    alice: Account, mediator: ScriptedMediator, world: World
) -> None:
    too_fast = error("RATE_LIMITED", 429, Retry_After="4")
    mediator.script.extend([too_fast, success(pendingEventId="e1")])
    assert await alice.send(alice.identity.did, "payload", at=alice.mediator) == "e1"
    assert world.waits_s == [4.0]
    mediator.script.extend([too_fast] * 3)
    with pytest.raises(CommandRefused, match="RATE_LIMITED"):
        await alice.query_pending_events()


async def test_nothing_was_sent_where_no_mediator_listens(world: World) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with MediatorClient(url, sources=world.sources()) as client:
            with pytest.raises(MediatorUnreachable):
                await client.document()
    assert len(world.waits_s) == 3


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_nothing_was_sent_to_a_host_that_can_have_no_address(world: World, host: str) -> None:
    async with MediatorClient(f"http://{host}", sources=world.sources(), backoff=ONCE) as client:
        with pytest.raises(MediatorUnreachable):
            await client.document()


async def test_an_answer_that_never_comes_is_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, goes_on = asyncio.Event(), clock_set_ahead(asyncio.get_running_loop(), monkeypatch)

    async def stall(_request: web.Request) -> web.Response:
        goes_on(120)
        await released.wait()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/", stall)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    limits = TransportLimits(answer_s_max=60)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with MediatorClient(url, backoff=ONCE, limits=limits) as slow:
        with pytest.raises(OutcomeUnknown):
            await slow.document()
    released.set()
    await runner.cleanup()


async def test_a_too_large_answer_is_not_read(mediator: ScriptedMediator) -> None:
    limits = TransportLimits(answer_bytes_max=64)
    async with MediatorClient(mediator.url, limits=limits) as client:
        with pytest.raises(UnexpectedAnswer, match="64 bytes"):
            await client.document()


async def test_health_is_an_answer_even_when_the_mediator_is_ill(
    client: MediatorClient, mediator: ScriptedMediator
) -> None:
    assert await client.health() == {"status": "ok"}
    mediator.healthy = False
    assert await client.health() == {"status": "error", "detail": "log: disk full"}


async def test_something_else_at_the_address_is_named(
    alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.script.extend([plain(418, "short and stout")])
    with pytest.raises(UnexpectedAnswer, match="short and stout"):
        await alice.query_pending_events()


async def test_a_closed_client_opens_no_connection(mediator: ScriptedMediator) -> None:
    client = MediatorClient(mediator.url)
    await client.health()
    await client.close()
    await client.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await client.health()


async def test_a_session_given_to_a_client_stays_open(mediator: ScriptedMediator) -> None:
    async with aiohttp.ClientSession() as session:
        async with MediatorClient(mediator.url, session=session) as client:
            await client.health()
        assert not session.closed


@pytest.mark.parametrize("url", ["", "mediator.test", "ftp://mediator.test", "http://"])
def test_an_address_is_an_http_url(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        MediatorClient(url)
