from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from http_edge.clients.didcomm import (
    Address,
    ConnectionLost,
    Live,
    MediatorRefused,
    MediatorUnreachable,
    NoAnswer,
    NotAuthentic,
    ProblemReported,
    Socket,
    UnexpectedAnswer,
    Wallet,
    open_socket,
    transport,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.unit.wallet.scripted_mediator import (
    SERVICE,
    STRANGER,
    Said,
    ScriptedMediator,
    in_thread,
    problem,
    reply,
)

PING = "trust_ping/1.0/ping"
RAW = Address(KeyPair.from_seed(b"r" * 32).public, "").seal({"@type": "x", "@id": "1"})


def message(kind: str, message_id: str = "1") -> Json:
    return {"@type": NEW_PREFIX + kind, "@id": message_id}


async def test_a_question_opens_the_return_route(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(PING, reply("ping_response"))
    await wallet.ping()
    assert mediator.received[0]["~transport"] == {"return_route": "all"}


async def test_an_empty_answer_is_none(wallet: Wallet) -> None:
    assert await wallet.ask(message(PING)) is None
    with pytest.raises(UnexpectedAnswer):
        await wallet.ping()


async def test_a_question_of_no_type_has_no_expected_answer(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer("trust_ping", reply("ping_response"))
    with pytest.raises(UnexpectedAnswer, match="came back for trust_ping"):
        await wallet.request("trust_ping", "ping_response")


async def test_an_http_refusal_is_raised_with_its_status(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.status = 410
    with pytest.raises(MediatorRefused) as refused:
        await wallet.ping()
    assert (refused.value.status, refused.value.body) == (410, "refused")


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    wallet: Wallet, mediator: ScriptedMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator.answer(PING, reply("ping_response"))
    monkeypatch.setattr(transport, "_ANSWER_BYTES_MAX", 100)
    with pytest.raises(UnexpectedAnswer, match="more than 100 bytes"):
        await wallet.ping()


async def test_an_http_refusal_names_the_pause_that_the_mediator_asks_for(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.status, mediator.headers = 429, {"Retry-After": "7"}
    with pytest.raises(MediatorRefused) as refused:
        await wallet.ping()
    assert refused.value.retry_after_s == 7.0


async def test_an_absent_mediator_differs_from_one_that_refuses(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    await mediator.server.close()
    with pytest.raises(MediatorUnreachable):
        await wallet.ping()
    with pytest.raises(MediatorUnreachable):
        async with wallet.socket():
            pass


async def test_an_answer_by_another_key_is_not_taken(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.packer = STRANGER
    mediator.answer(PING, *[reply("ping_response")] * 2)
    with pytest.raises(NotAuthentic):
        await wallet.ping()
    async with wallet.socket() as socket:
        asking = asyncio.create_task(wallet.over(socket).ping())
        assert isinstance(await socket.receive(), bytes)
        assert not asking.done()
        asking.cancel()


async def test_an_envelope_for_another_key_is_no_answer(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(PING, lambda _: [RAW])
    with pytest.raises(UnexpectedAnswer):
        await wallet.ping()


async def test_an_answer_to_another_question_is_not_taken_over_http(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    """All of it is by the mediator, and on the way to it anyone can repeat what they have seen."""
    seen: list[Said] = []

    def first(request: Json) -> list[Said]:
        seen.extend([in_thread(request, "ping_response")])
        return seen

    mediator.answer(PING, first, lambda _: seen)
    await wallet.ping()
    with pytest.raises(UnexpectedAnswer):
        await wallet.ping()


async def test_implicit_pickup_gives_the_envelope_that_came_back(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(PING, lambda _: [RAW])
    assert await wallet.implicit() == RAW
    assert await wallet.implicit() is None
    assert mediator.received[0]["response_requested"] is False


async def test_answers_over_a_socket_find_their_questions(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    held: list[Json] = []

    def hold(request: Json) -> list[Said]:
        held.append(request)
        return []

    def answer_all(request: Json) -> list[Said]:
        return [in_thread(one, "ping_response") for one in (request, *reversed(held))]

    mediator.answer(PING, hold, hold, answer_all)
    async with wallet.socket() as socket:
        over = wallet.over(socket)
        answers = await asyncio.gather(*(over.ask(message(PING, str(n))) for n in range(3)))
    threads = [answer["~thread"] for answer in answers if answer]
    assert threads == [{"thid": "0"}, {"thid": "1"}, {"thid": "2"}]


async def test_questions_of_one_thread_at_once_are_all_answered(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    held: list[Json] = []

    def hold(request: Json) -> list[Said]:
        held.append(request)
        return []

    def answer_both(request: Json) -> list[Said]:
        return [
            {**in_thread(one, "ping_response"), "~thread": {"thid": "t"}, "to": one["@id"]}
            for one in (*held, request)
        ]

    mediator.answer(PING, hold, answer_both)
    async with asyncio.timeout(5), wallet.socket() as socket:
        over = wallet.over(socket)
        questions = [{**message(PING, n), "~thread": {"thid": "t"}} for n in ("first", "second")]
        answers = await asyncio.gather(*map(over.ask, questions))
    assert [answer["to"] for answer in answers if answer] == ["first", "second"]


async def test_what_answers_no_question_waits_to_be_received(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    pushed = message("messagepickup/2.0/status")
    mediator.answer(PING, lambda request: [pushed, RAW, in_thread(request, "ping_response")])
    async with wallet.socket() as socket:
        await wallet.over(socket).ping()
        assert await socket.receive() == pushed
        assert await socket.receive() == RAW
        with pytest.raises(NoAnswer):
            await socket.receive(0.01)


async def test_a_problem_report_in_the_parent_thread_answers_the_question(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(
        PING, lambda request: [{**problem("e.x", "no"), "~thread": {"pthid": request["@id"]}}]
    )
    async with wallet.socket() as socket:
        with pytest.raises(ProblemReported, match=r"e\.x: no"):
            await wallet.over(socket).ping()


async def test_a_question_out_of_another_thread_is_answered_in_its_own(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    def answer(request: Json) -> list[Said]:
        return [{**in_thread(request, "ping_response"), "~thread": {"thid": request["@id"]}}]

    mediator.answer(PING, answer)
    async with asyncio.timeout(5), wallet.socket() as socket:
        question = {**message(PING), "~thread": {"pthid": "invitation-1"}}
        assert await wallet.over(socket).ask(question)


async def test_a_message_without_return_route_is_not_waited_for(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(PING, lambda _: [], reply("ping_response"))
    async with wallet.socket() as socket:
        assert await wallet.over(socket).ask(message(PING), return_route="none") is None
        await wallet.over(socket).ping()
    assert "~transport" not in mediator.received[0]


async def test_the_end_of_a_socket_ends_every_wait(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    async with wallet.socket() as socket:
        asking = asyncio.create_task(wallet.over(socket).ping())
        receiving = asyncio.create_task(socket.receive())
        await asyncio.sleep(0)
        await socket.say(message("test/1.0/goodbye"))
        for waiting in (asking, receiving):
            with pytest.raises(ConnectionLost) as lost:
                await waiting
            assert lost.value.close_code == 1012
        with pytest.raises(ConnectionLost):
            await wallet.over(socket).ping()
        assert [one async for one in socket] == []


async def test_a_silent_socket_is_lost_and_ends_every_wait(
    wallet: Wallet, mediator: ScriptedMediator, session: aiohttp.ClientSession
) -> None:
    mediator.answers_pings = False
    async with (
        asyncio.timeout(10),
        open_socket(session, wallet.connection, silence_s_max=0.3) as socket,
    ):
        with pytest.raises(ConnectionLost):
            await socket.receive(None)
        with pytest.raises(ConnectionLost):
            await wallet.over(socket).ping()


@asynccontextmanager
async def mediator_whose_sockets(
    script: Callable[[web.WebSocketResponse], Awaitable[None]], *, reads: bool = True
) -> AsyncIterator[str]:
    """A mediator with sockets that do what a script says: its URL."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        if not reads:
            assert isinstance(request.transport, asyncio.Transport)
            request.transport.pause_reading()
        with suppress(ConnectionError):
            await script(socket)
        if not reads and request.transport is not None:
            request.transport.abort()
        return socket

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


async def test_a_socket_is_left_though_the_mediator_goes_on_sending(
    wallet: Wallet, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_CLOSE_S_MAX", 0.1)

    async def goes_on(socket: web.WebSocketResponse) -> None:
        while True:
            await socket.send_bytes(RAW)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(10), mediator_whose_sockets(goes_on) as url:
        async with open_socket(session, replace(wallet.connection, ws_url=url)) as socket:
            assert await socket.receive() == RAW
            waiting = asyncio.create_task(_until_it_ends(socket))
        await waiting


async def test_a_pong_says_that_all_before_its_ping_was_received_and_another_that_the_program_lives(
    wallet: Wallet, session: aiohttp.ClientSession
) -> None:
    answer = {**message("trust_ping/1.0/ping_response"), "~thread": {"thid": "question"}}
    pongs: list[bytes] = []

    async def pings(socket: web.WebSocketResponse) -> None:
        async def take(number: int) -> None:
            while len(pongs) < number:
                frame = await socket.receive(10)
                if frame.type is WSMsgType.PONG:
                    pongs.append(bytes(frame.data))

        await socket.ping(b"1")  # nothing came before
        await take(1)
        for frame in (RAW, RAW):
            await socket.send_bytes(frame)
        await socket.ping(b"2")
        await socket.ping(b"3")
        await socket.send_bytes(RAW)
        await socket.ping(b"4")
        await take(4)
        await socket.send_bytes(pack(orjson.dumps(answer), [wallet.connection.key.public], SERVICE))
        await take(6)

    async with (
        asyncio.timeout(30),
        mediator_whose_sockets(pings) as url,
        open_socket(session, replace(wallet.connection, ws_url=url)) as socket,
    ):
        # The answer to this message follows the last ping.
        assert await wallet.over(socket).exchange(message(PING, "question")) == answer
        assert pongs == [b"1", b"alive", b"alive", b"alive"]
        for _ in range(2):
            assert await socket.receive() == RAW
        while len(pongs) < 5:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
        assert await socket.receive() == RAW
        await _until_it_ends(socket)
    assert pongs[4:] == [b"3", b"4"]


async def test_a_question_that_the_mediator_does_not_read_ends_in_time(
    wallet: Wallet, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pings(socket: web.WebSocketResponse) -> None:
        for _ in range(40):
            await socket.ping()
            await asyncio.sleep(0.01)

    monkeypatch.setattr(transport, "ANSWER_S_MAX", 0.1)
    async with (
        asyncio.timeout(10),
        mediator_whose_sockets(pings, reads=False) as url,
        open_socket(session, replace(wallet.connection, ws_url=url)) as socket,
    ):
        with pytest.raises(NoAnswer):
            await wallet.over(socket).ask({**message(PING), "comment": "x" * 16_000_000})


class Frames:
    """A WebSocket that brings frames at once, and does something before it is waited for others."""

    close_code = None

    def __init__(self, *frames: bytes) -> None:
        self.frames = frames
        self.then: Callable[[], object] = bool

    async def send_bytes(self, data: bytes) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[object]:
        for frame in self.frames:
            yield SimpleNamespace(type=WSMsgType.BINARY, data=frame)
        self.then()


async def test_an_envelope_that_comes_as_its_question_is_cancelled_is_not_lost(
    wallet: Wallet,
) -> None:
    """What a noop brings has left the queue."""
    websocket = Frames(RAW)
    socket = Socket(wallet.connection, cast("aiohttp.ClientWebSocketResponse", websocket))
    asking = asyncio.create_task(wallet.over(socket).noop())
    websocket.then = asking.cancel
    await asyncio.sleep(0)
    await socket.listen()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await socket.receive() == RAW


async def test_an_envelope_answers_a_question_that_still_waits_for_one(wallet: Wallet) -> None:
    report = {**problem("e.x", "no"), "~thread": {"thid": "first"}}
    refusal = pack(orjson.dumps(report), [wallet.connection.key.public], SERVICE)
    websocket = cast("aiohttp.ClientWebSocketResponse", Frames(refusal, RAW))
    socket = Socket(wallet.connection, websocket)
    questions = [message("messagepickup/1.0/noop", name) for name in ("first", "second")]
    exchanges = [wallet.over(socket).exchange(one, raw=True) for one in questions]
    first, second = map(asyncio.create_task, exchanges)
    await asyncio.sleep(0)
    await socket.listen()
    assert (await first, await second) == (report, RAW)


async def test_a_socket_ends_that_brings_more_than_is_received(
    wallet: Wallet, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before can be received, the rest is offered again by a queue."""
    sent: list[int] = []

    async def floods(socket: web.WebSocketResponse) -> None:
        while True:
            await socket.send_bytes(RAW)
            sent.append(len(RAW))

    monkeypatch.setattr(transport, "_CLOSE_S_MAX", 0.1)
    monkeypatch.setattr(transport, "UNRECEIVED_BYTES_MAX", 1024 * 1024)
    async with (
        asyncio.timeout(10),
        mediator_whose_sockets(floods) as url,
        open_socket(session, replace(wallet.connection, ws_url=url)) as socket,
    ):
        with pytest.raises(ConnectionLost, match="wait to be received"):
            await wallet.over(socket).ping()
        received = [one async for one in socket]
        for late in (socket.receive(), wallet.over(socket).ping()):
            with pytest.raises(ConnectionLost, match="wait to be received"):
                await late
    assert 0 < len(received) * len(RAW) < 1024 * 1024 < sum(sent)


async def test_the_wait_for_a_delivery_ends_in_time_whatever_else_comes(
    wallet: Wallet, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_CLOSE_S_MAX", 0.1)

    async def goes_on(socket: web.WebSocketResponse) -> None:
        pushed = orjson.dumps(message("messagepickup/2.0/status"))
        while True:
            await socket.send_bytes(pack(pushed, [wallet.connection.key.public], SERVICE))
            await asyncio.sleep(0.05)

    async with (
        asyncio.timeout(10),
        mediator_whose_sockets(goes_on) as url,
        open_socket(session, replace(wallet.connection, ws_url=url)) as socket,
    ):
        with pytest.raises(NoAnswer):
            await Live(wallet.connection, socket).next(0.1)


async def _until_it_ends(socket: Socket) -> None:
    async for received in socket:
        assert received == RAW


async def test_text_frames_are_sent_as_text(
    wallet: Wallet, mediator: ScriptedMediator, session: aiohttp.ClientSession
) -> None:
    mediator.answer(PING, reply("ping_response"))
    async with wallet.socket() as socket:
        await socket.send(wallet.connection.pack(message(PING)).decode())
        answer = await socket.receive()
    assert isinstance(answer, dict)
    assert str(answer["@type"]).endswith("ping_response")
