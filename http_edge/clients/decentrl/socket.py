"""Live notices over the WebSocket of a mediator (DCTRL-0004 section 10).

The socket is a convenience and never the only way: messages that arrive while it is down are not
pushed later, so query the backlog after each ``Reconnected``. A push does not acknowledge anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

import aiohttp

from http_edge.clients.decentrl.backoff import Backoff
from http_edge.clients.decentrl.errors import (
    SOCKET_REFUSALS,
    MediatorUnreachable,
    SocketRefused,
    UnexpectedAnswer,
)
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator
from http_edge.clients.decentrl.records import PendingEvent, member
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.strict_json import object_in, parse_answer

AUTHENTICATION_S_MAX: Final = 10.0
_CLOSE_S_MAX: Final = 1.0
_ENDS: Final = frozenset(
    {
        aiohttp.WSMsgType.CLOSE,
        aiohttp.WSMsgType.CLOSING,
        aiohttp.WSMsgType.CLOSED,
        aiohttp.WSMsgType.ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Events were queued for this identity; they wait until they are acknowledged."""

    events: tuple[PendingEvent, ...]


@dataclass(frozen=True, slots=True)
class ContractsUpdated:
    """Contracts or contract requests of this identity changed; query them."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The connection was lost and is open again: query the backlog, pushes were missed."""

    attempts: int


Notice: TypeAlias = MessagesArrived | ContractsUpdated | Reconnected


class _Lost(Exception):
    """The connection ended; connecting again may help."""


class NoticeSocket:
    """An authenticated WebSocket that connects again by itself.

    Use it as an async context manager and iterate over it. Entering raises the errors of the first
    connection: MediatorUnreachable, SocketRefused, UnexpectedAnswer. Iterating raises SocketRefused
    if the identity itself is the reason (4004-4007), UnexpectedAnswer for a message outside the
    protocol, and the last error after ``backoff.attempts_max`` failed attempts in a row. The
    iteration ends when another task leaves the context, at the latest after the pause between two
    attempts; then the socket does not connect again.

    Raises:
        RuntimeError: the socket is iterated over and was never entered.
    """

    def __init__(self, identity: Identity, mediator: Mediator, backoff: Backoff) -> None:
        """A socket of this identity at its mediator; ``backoff`` bounds attempts to reconnect."""
        self._identity = identity
        self._mediator = mediator
        self._backoff = backoff
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._left = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._socket = await self._connect()
        self._left.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        if self._socket is not None:
            await _close(self._socket)

    async def __aiter__(self) -> AsyncIterator[Notice]:
        if self._socket is None:
            raise RuntimeError("enter the socket with 'async with' first")
        while not self._left.is_set():
            try:
                notice = await self._next(self._socket)
            except _Lost:
                await _close(self._socket)
                notice = Reconnected(await self._connect_again())
                if self._left.is_set():  # left while connecting: close the new socket here
                    await _close(self._socket)
                    return
            if notice is not None:
                yield notice

    async def _next(self, socket: aiohttp.ClientWebSocketResponse) -> Notice | None:
        """Receive the next message; return its notice, None if it has none."""
        message = await _receive(socket, self._mediator.transport.limits.silence_s_max)
        match message.get("type"):
            case "PING":
                await _send(socket, {"type": "PONG", "timestamp": message.get("timestamp")})
                return None
            case "PENDING_EVENTS":
                return MessagesArrived(member(message, "events", tuple[PendingEvent, ...]))
            case "CONTRACTS_UPDATED":
                return ContractsUpdated()
            case _:
                return None  # ignore messages of later versions

    async def _connect_again(self) -> int:
        """Connect after pauses, unless the context is left; return the number of attempts."""
        sources = self._mediator.sources
        attempt = 1
        while not self._left.is_set():
            # Wait before the first attempt, too: a mediator that goes down loses all sockets
            # together, and they must not come back together.
            await sources.sleep(self._backoff.pause_s(attempt, sources.chance()))
            if self._left.is_set():
                break
            try:
                self._socket = await self._connect()
            except (MediatorUnreachable, SocketRefused, UnexpectedAnswer) as error:
                final = isinstance(error, SocketRefused) and error.final
                if final or attempt >= self._backoff.attempts_max:
                    raise
                attempt += 1
            else:
                break
        return attempt

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        transport = self._mediator.transport
        try:
            async with asyncio.timeout(transport.limits.answer_s_max):
                socket = await transport.session.ws_connect(
                    transport.at("/ws"),
                    max_msg_size=transport.limits.frame_bytes_max,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S_MAX),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise UnexpectedAnswer(f"no WebSocket: HTTP {error.status}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            raise MediatorUnreachable(f"{transport.url}: {error!r}") from error
        try:
            # The whole of it: a WebSocket ping would begin the wait for one message anew.
            async with asyncio.timeout(AUTHENTICATION_S_MAX):
                await self._authenticate(socket)
        except (_Lost, TimeoutError) as error:
            await _close(socket)
            raise MediatorUnreachable(f"{transport.url}: {str(error) or 'no answer'}") from error
        except BaseException:
            await _close(socket)
            raise
        return socket

    async def _authenticate(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Do the handshake of 10.2. Raises: SocketRefused, UnexpectedAnswer, _Lost."""
        identity, sources = self._identity, self._mediator.sources
        signed = {
            "did": identity.did,
            "signing_key_id": identity.signing_key_id,
            "timestamp": sources.now_ms(),
            "nonce": sources.new_nonce(),
        }
        await _send(socket, {"type": "AUTHENTICATE", **signed, "signature": identity.sign(signed)})
        answer = await _receive(socket, AUTHENTICATION_S_MAX)
        if answer.get("type") == "AUTH_FAILED":
            # The close frame that follows carries the reason; _receive raises it.
            await _receive(socket, AUTHENTICATION_S_MAX)
        if answer.get("type") != "AUTH_SUCCESS":
            raise UnexpectedAnswer(f"answer to AUTHENTICATE: {answer.get('type')!r}")


async def _close(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Close a socket; one that goes on sending is cut off: aiohttp waits after each message."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S_MAX):
            await socket.close()


async def _send(socket: aiohttp.ClientWebSocketResponse, message: dict[str, object]) -> None:
    try:
        await socket.send_str(canonical(message).decode())
    except ConnectionError as error:
        raise _Lost(repr(error)) from error


async def _receive(
    socket: aiohttp.ClientWebSocketResponse, seconds_max: float
) -> dict[str, object]:
    """Receive the next JSON message.

    Raises:
        SocketRefused: the mediator closed the socket with a code of 10.3.
        UnexpectedAnswer: the message is not a JSON object in a text frame.
        _Lost: the connection ended, broke, or was silent for ``seconds_max``.
    """
    try:
        frame = await socket.receive(timeout=seconds_max)
    except TimeoutError as error:
        raise _Lost(f"nothing was received for {seconds_max} s") from error
    if frame.type in _ENDS:
        if socket.close_code in SOCKET_REFUSALS:
            raise SocketRefused(socket.close_code)
        raise _Lost(f"closed with {socket.close_code}")
    is_text = frame.type is aiohttp.WSMsgType.TEXT
    message = object_in(frame.data.encode(), parse_answer) if is_text else None
    if message is None:
        raise UnexpectedAnswer("a WebSocket message that is no JSON object")
    return message
