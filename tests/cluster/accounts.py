"""Accounts at a real mediator, and what tests wait for."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiohttp

from http_edge.clients.decentrl import (
    ONCE,
    Account,
    Channel,
    ClientError,
    Identity,
    Mediator,
    MediatorClient,
    Sources,
    signed_command,
)
from tests.cluster.server import MEDIATOR_DID

REGISTERED_S: Final = 86_400
WAIT_S_MAX: Final = 60.0
_PAUSE_S: Final = 0.05
_PAGE_SIZE: Final = 1_000
_ROUND_TRIPS: Final = 3
SOURCES: Final = Sources()
Found = TypeVar("Found")


def client(url: str) -> MediatorClient:
    """A client that tries everything once: what fails is what the test wants to see."""
    return MediatorClient(url, backoff=ONCE)


async def newcomer(mediator: MediatorClient, alias: str) -> Account:
    """A fresh identity, registered for a day."""
    return await register(mediator.as_(Identity.create(alias, MEDIATOR_DID)))


async def register(account: Account) -> Account:
    """Register an identity for a day."""
    await account.register(expires_at_s=SOURCES.now_ms() // 1000 + REGISTERED_S)
    return account


async def befriend(writer: Account, reader: Account) -> None:
    """The whole contract flow, after which each may write to the other."""
    expires_at_s = SOURCES.now_ms() // 1000 + REGISTERED_S
    await writer.request_contract(reader.identity.did, expires_at_s=expires_at_s)
    async for waiting in reader.contract_requests():
        if waiting.sender_did == writer.identity.did:
            await reader.answer_contract(waiting)
            return
    raise AssertionError("the contract request did not arrive")


def message(writer: Account, reader: Account, payload: str) -> bytes:
    """A signed TWO_WAY_PRIVATE command, to be sent as often as a test likes."""
    return signed_command(
        writer.identity,
        Channel.TWO_WAY_PRIVATE,
        reader.identity.did,
        payload,
        now_ms=SOURCES.now_ms(),
        nonce=SOURCES.new_nonce(),
    )


async def waiting_payloads(reader: Account) -> list[str]:
    """What waits for an identity, oldest first."""
    payloads: list[str] = []
    for number in itertools.count():
        page = await reader.query_pending_events(page=number, page_size=_PAGE_SIZE)
        payloads += [event.payload for event in page.items]
        if len(page.items) < _PAGE_SIZE:
            break
    return payloads


async def post(mediator: Mediator, body: bytes) -> tuple[int, dict[str, Any]]:
    """POST a command as it is: status and answer, without the detail, which is free text."""
    async with mediator.transport.session.post(mediator.transport.at("/"), data=body) as response:
        answer: dict[str, Any] = await response.json()
        answer.pop("detail", None)
        return response.status, answer


async def in_flight(
    mediator: MediatorClient, bodies: list[bytes]
) -> list[asyncio.Task[tuple[int, dict[str, Any]]]]:
    """Commands that have reached a host which does not answer now.

    Each finds a connection that the edge has accepted. It reads them in turn, so a few answers to
    later requests prove that it has taken and passed on the earlier ones.
    """
    await asyncio.gather(*[_introduced(mediator) for _ in range(len(bodies) + 1)])
    tasks = [asyncio.create_task(post(mediator, body)) for body in bodies]
    for _ in range(_ROUND_TRIPS):
        await _introduced(mediator)
    assert not any(task.done() for task in tasks)
    return tasks


async def _introduced(mediator: MediatorClient) -> None:
    """Have the mediator say what it is: by a new connection if all others are in use."""
    async with mediator.transport.session.get(mediator.transport.at("/")) as response:
        assert response.status == 200


class Socket:
    """An authenticated WebSocket as it is: every frame but PING, which is answered, and the close
    code. A test may last longer than the mediator waits for a PONG."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._frames: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, account: Account) -> Socket:
        """Connect and authenticate (DCTRL-0004 10.2)."""
        identity, transport = account.identity, account.mediator.transport
        socket = await transport.session.ws_connect(transport.at("/ws"))
        signed = {
            "did": identity.did,
            "signing_key_id": identity.signing_key_id,
            "timestamp": SOURCES.now_ms(),
            "nonce": SOURCES.new_nonce(),
        }
        await socket.send_json(
            {"type": "AUTHENTICATE", **signed, "signature": identity.sign(signed)}
        )
        assert await socket.receive_json(timeout=WAIT_S_MAX) == {"type": "AUTH_SUCCESS"}
        return cls(socket)

    @property
    def local_port(self) -> int:
        """The port on this side, which identifies a connection."""
        port: int = self._socket.get_extra_info("sockname")[1]
        return port

    async def _read(self) -> None:
        is_open = True
        while is_open:
            frame = await self._socket.receive()
            is_open = frame.type is aiohttp.WSMsgType.TEXT
            if is_open and json.loads(frame.data)["type"] == "PING":
                with suppress(ConnectionError):  # the next frame says why
                    await self._socket.send_json({"type": "PONG", "timestamp": 0})
            else:
                self._frames.put_nowait(frame)

    async def _next(self) -> aiohttp.WSMessage:
        async with asyncio.timeout(WAIT_S_MAX):
            return await self._frames.get()

    async def pushed(self) -> list[str]:
        """The payloads in the next PENDING_EVENTS."""
        frame = await self._next()
        assert frame.type is aiohttp.WSMsgType.TEXT, frame
        notice = json.loads(frame.data)
        assert notice["type"] == "PENDING_EVENTS", notice
        return [event["payload"] for event in notice["events"]]

    async def close_code(self) -> int | None:
        """The code in the mediator's close frame; None when the connection ended without one."""
        while True:
            frame = await self._next()
            if frame.type is not aiohttp.WSMsgType.TEXT:
                code: int | None = frame.data
                return code if frame.type is aiohttp.WSMsgType.CLOSE else None

    async def closed_within(self, seconds: float) -> int | None:
        """The code in the mediator's close frame; None when it says nothing for so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self.close_code()
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Close from this side."""
        await self._socket.close()
        await self._reading


async def until(ask: Callable[[], Awaitable[Found]]) -> Found:
    """What ``ask`` answers as soon as it neither fails nor answers with nothing."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                found = await ask()
                if found:
                    return found
            except (ClientError, aiohttp.ClientError, OSError):
                pass
            await asyncio.sleep(_PAUSE_S)


async def healthy(mediator: MediatorClient) -> bool:
    """Does the mediator say that it is able to do its work?"""
    return (await mediator.health()).get("status") == "ok"
