from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiohttp import WSMsgType, web

from http_edge.clients.decentrl import (
    Account,
    Backoff,
    ContractsUpdated,
    Identity,
    MediatorClient,
    MediatorUnreachable,
    MessagesArrived,
    PendingEvent,
    Reconnected,
    SocketRefused,
    TransportLimits,
    UnexpectedAnswer,
)
from http_edge.clients.decentrl import socket as client_socket
from http_edge.clients.decentrl.errors import SOCKET_REFUSALS
from http_edge.clients.decentrl.socket import Notice
from http_edge.crypto.signatures import public_key, verify_object
from tests.unit.client.conftest import NOW_MS, World
from tests.unit.client.scripted_mediator import ScriptedMediator, SocketScript

FEW = Backoff(attempts_max=3, first_s=1.0)
ENDS_S_MAX = 10
EVENT = {"id": "1", "sender_did": "did:b", "payload": "p"}


def accept(*messages: object) -> SocketScript:
    """Accept, send these messages, then wait until the client goes."""

    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "AUTH_SUCCESS"})
        for message in messages:
            await socket.send_json(message)
        async for _ in socket:
            pass

    return script


def accept_then_close(code: int) -> SocketScript:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "AUTH_SUCCESS"})
        await socket.close(code=code)

    return script


def refuse(code: int, name: str) -> SocketScript:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "AUTH_FAILED", "code": name})
        await socket.close(code=code)

    return script


async def first(notices: AsyncIterator[Notice], count: int) -> list[Notice]:
    return [await anext(notices) for _ in range(count)]


async def test_a_socket_authenticates_yields_notices_and_is_closed_when_it_is_left(
    alice: Account, mediator: ScriptedMediator
) -> None:
    left = asyncio.Event()

    async def script(socket: web.WebSocketResponse) -> None:
        await accept(
            {"type": "CONTRACTS_UPDATED"},
            {"type": "SOMETHING_NEW"},
            {"type": "PENDING_EVENTS", "events": [EVENT]},
        )(socket)
        left.set()

    mediator.sockets.append(script)
    async with alice.socket(backoff=FEW) as socket:
        assert await first(aiter(socket), 2) == [
            ContractsUpdated(),
            MessagesArrived((PendingEvent("1", "did:b", "p"),)),
        ]
    await asyncio.wait_for(left.wait(), ENDS_S_MAX)
    (message,) = mediator.authenticated
    signed = {name: message[name] for name in ("did", "signing_key_id", "timestamp", "nonce")}
    assert signed["did"] == alice.identity.did
    assert signed["timestamp"] == NOW_MS
    assert message.keys() == {*signed, "type", "signature"}
    key = public_key(alice.identity.signing_seed)
    assert verify_object(key, signed, message["signature"])


async def test_a_ping_is_answered_with_its_timestamp(
    alice: Account, mediator: ScriptedMediator
) -> None:
    pongs: list[object] = []

    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "AUTH_SUCCESS"})
        await socket.send_json({"type": "PING", "timestamp": 5})
        pongs.append(await socket.receive_json())
        await socket.send_json({"type": "CONTRACTS_UPDATED"})

    mediator.sockets.append(script)
    async with alice.socket(backoff=FEW) as socket:
        assert await first(aiter(socket), 1) == [ContractsUpdated()]
    assert pongs == [{"type": "PONG", "timestamp": 5}]


async def test_a_lost_connection_is_replaced_and_the_caller_notified(
    alice: Account, mediator: ScriptedMediator, world: World
) -> None:
    mediator.sockets.extend(
        [
            accept_then_close(1001),
            refuse(4001, "AUTH_TIMEOUT"),
            accept({"type": "CONTRACTS_UPDATED"}),
        ]
    )
    async with alice.socket(backoff=FEW) as socket:
        assert await first(aiter(socket), 2) == [Reconnected(attempts=2), ContractsUpdated()]
    assert world.waits_s == [0.5, 1.0]
    nonces = {message["nonce"] for message in mediator.authenticated}
    assert len(nonces) == 3


@pytest.mark.parametrize("close_code", sorted(SOCKET_REFUSALS))
async def test_a_refusal_at_the_first_connection_says_its_code_and_whether_it_is_final(
    close_code: int, alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.sockets.append(refuse(close_code, "NAME"))
    with pytest.raises(SocketRefused, match=str(close_code)) as refused:
        async with alice.socket(backoff=FEW):
            pass
    assert refused.value.close_code == close_code
    assert refused.value.final == (close_code >= 4004)


@pytest.mark.parametrize("close_code", [4004, 4005, 4006, 4007])
async def test_a_final_refusal_ends_the_iteration_at_once(
    close_code: int, alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.sockets.extend([accept_then_close(1001), refuse(close_code, "NAME")])
    async with alice.socket(backoff=FEW) as socket:
        with pytest.raises(SocketRefused, match=str(close_code)):
            await first(aiter(socket), 1)
    assert len(mediator.authenticated) == 2


async def test_a_silent_connection_is_dead(mediator: ScriptedMediator, world: World) -> None:
    mediator.sockets.extend([accept(), accept({"type": "CONTRACTS_UPDATED"})])
    limits = TransportLimits(silence_s_max=0.5)
    async with MediatorClient(mediator.url, sources=world.sources(), limits=limits) as client:
        alice = client.as_(Identity.create("alice", mediator.did))
        async with alice.socket(backoff=FEW) as socket:
            assert await first(aiter(socket), 2) == [Reconnected(attempts=1), ContractsUpdated()]


async def test_an_expired_registration_ends_an_open_socket(
    alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.sockets.append(accept_then_close(4007))
    async with alice.socket(backoff=FEW) as socket:
        with pytest.raises(SocketRefused, match="4007"):
            await first(aiter(socket), 1)
    assert len(mediator.authenticated) == 1


async def test_connecting_again_is_bounded(alice: Account, mediator: ScriptedMediator) -> None:
    mediator.sockets.append(accept_then_close(1001))
    mediator.sockets.extend([refuse(4003, "TIMESTAMP_OUT_OF_RANGE")] * 4)
    async with alice.socket(backoff=FEW) as socket:
        with pytest.raises(SocketRefused, match="4003"):
            await first(aiter(socket), 1)
    assert len(mediator.authenticated) == 1 + FEW.attempts_max


async def test_a_socket_that_was_left_ends_its_iteration_and_connects_no_more(
    alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.sockets.extend([accept({"type": "CONTRACTS_UPDATED"}), accept()])
    async with alice.socket(backoff=FEW) as socket:
        notices = aiter(socket)
        assert await first(notices, 1) == [ContractsUpdated()]
        waiting = asyncio.create_task(anext(notices, None))
        await asyncio.sleep(0)
    async with asyncio.timeout(ENDS_S_MAX):
        assert await waiting is None
        assert [notice async for notice in socket] == []
    assert len(mediator.authenticated) == 1


async def test_a_socket_that_is_left_while_it_connects_again_stays_closed(
    alice: Account, mediator: ScriptedMediator
) -> None:
    connecting, has_left = asyncio.Event(), asyncio.Event()
    ends: list[WSMsgType] = []

    async def accept_late(socket: web.WebSocketResponse) -> None:
        connecting.set()
        await has_left.wait()
        await socket.send_json({"type": "AUTH_SUCCESS"})
        ends.append((await socket.receive()).type)

    mediator.sockets.extend([accept_then_close(1001), accept_late])
    async with asyncio.timeout(ENDS_S_MAX):
        async with alice.socket(backoff=FEW) as socket:
            waiting = asyncio.create_task(anext(aiter(socket), None))
            await connecting.wait()
        has_left.set()
        assert await waiting is None
    assert ends == [WSMsgType.CLOSE]


async def test_an_authentication_that_is_not_answered_ends_in_time_whatever_is_pinged(
    alice: Account, mediator: ScriptedMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pings(socket: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            while True:
                await socket.ping()
                await asyncio.sleep(0.05)

    monkeypatch.setattr(client_socket, "AUTHENTICATION_S_MAX", 0.3)
    mediator.sockets.append(pings)
    with pytest.raises(MediatorUnreachable):
        async with asyncio.timeout(ENDS_S_MAX), alice.socket(backoff=FEW):
            pass


async def test_a_socket_is_left_though_the_mediator_goes_on_sending(
    alice: Account, mediator: ScriptedMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "_CLOSE_S_MAX", 0.1)

    async def goes_on(socket: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            await socket.send_json({"type": "AUTH_SUCCESS"})
            while True:
                await socket.send_json({"type": "CONTRACTS_UPDATED"})
                await asyncio.sleep(0.05)

    mediator.sockets.append(goes_on)
    async with asyncio.timeout(ENDS_S_MAX), alice.socket(backoff=FEW) as socket:
        assert await first(aiter(socket), 1) == [ContractsUpdated()]


async def test_no_mediator_is_distinguished_from_a_refusal(
    alice: Account, mediator: ScriptedMediator
) -> None:
    await alice.mediator.document()
    await mediator.server.close()
    with pytest.raises(MediatorUnreachable):
        async with alice.socket(backoff=FEW):
            pass


async def test_an_answer_that_is_no_protocol_message_is_refused(
    alice: Account, mediator: ScriptedMediator
) -> None:
    async def binary(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x00")
        assert (await socket.receive()).type is WSMsgType.CLOSE

    mediator.sockets.append(binary)
    with pytest.raises(UnexpectedAnswer):
        async with alice.socket(backoff=FEW):
            pass
