"""DIDComm over WebSocket: the same URL as HTTP, any number of agents on one socket (RFC 0025).

Trust comes from each envelope, never from the socket. A return route that an agent asked for
(RFC 0092) holds as long as the socket. The messages of one socket are handled one after the other,
so that each sender's messages keep their order; only a long poll may be overtaken by the next.

Text and binary frames are both accepted. What goes back is of the kind of the client's last one:
Credo 0.5 reads binary frames, and the wallets of Identus read text frames alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiohttp import WebSocketError, WSCloseCode, WSMessage, WSMsgType, web

from actors.core.rate_limits import RateLimit
from http_edge.didcomm.inbound_sockets import InboundSocket, SocketDependencies
from http_edge.didcomm.rejections import RejectionReason
from http_edge.listener.address_charge import charge_message, until_paid
from http_edge.listener.connection import Connection, peer_of
from http_edge.listener.outgoing import POLICY, PONGS_MISSED, Outgoing, upgraded

_PINGS_MISSED_MAX: Final = 2
_UNREAD_MAX: Final = 16
"""Messages read from a socket and not handled yet; when it is reached, reading pauses."""
_FRAMES: Final = frozenset({WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.PING, WSMsgType.PONG})


class DidCommSockets:
    """Serves the sockets of one edge."""

    def __init__(self, dependencies: SocketDependencies) -> None:
        self._dependencies = dependencies
        self._open: set[Outgoing] = set()

    def close_all(self, code: int) -> None:
        """Close every socket, including sockets that have sent no message yet."""
        for outgoing in self._open:
            outgoing.close(code)

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one socket until it closes."""
        message_bytes_max = self._dependencies.settings.didcomm.message_bytes_max
        socket = await upgraded(request, message_bytes_max=message_bytes_max)
        outgoing = Outgoing(
            socket,
            peer=peer_of(request),
            bytes_max=self._dependencies.settings.limits.socket_buffer_bytes_max,
            kind=WSMsgType.BINARY,
        )
        writing = asyncio.get_running_loop().create_task(outgoing.run())
        self._open.add(outgoing)
        try:
            await _Socket(self._dependencies, socket, outgoing, peer_of(request)).serve()
        finally:
            self._open.discard(outgoing)
            await outgoing.finish(writing)
        return socket


class _Socket:
    """The reading half of one socket, and the task that handles the read messages in order."""

    def __init__(
        self,
        dependencies: SocketDependencies,
        socket: web.WebSocketResponse,
        outgoing: Outgoing,
        client: Connection,
    ) -> None:
        self._settings = dependencies.settings.didcomm
        self._inbound = dependencies.inbound
        self._finish_s = dependencies.settings.limits.host_call_s_max
        self._socket = socket
        self._outgoing = outgoing
        self._inbound_socket = InboundSocket(dependencies, outgoing, client)
        self._unread: asyncio.Queue[bytes] = asyncio.Queue(_UNREAD_MAX)

    async def serve(self) -> None:
        """Read until the socket closes; messages read by then are still handled."""
        handling = asyncio.get_running_loop().create_task(self._handle_all())
        try:
            await self._read_all()
            # Some wallets close right after a message that wants no answer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._finish_s):
                    await self._unread.join()
        finally:
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)
            await self._inbound_socket.end()

    async def _read_all(self) -> None:
        loop = asyncio.get_running_loop()
        taken = RateLimit(self._settings.socket_messages_per_s_max, burst_s=2, keys_max=1)
        started = loop.time()
        ping_at = started + self._settings.ping_interval_s
        while not self._socket.closed:
            message = await self._receive(ping_at - loop.time())
            if message is None:
                ping_at = loop.time() + self._settings.ping_interval_s
                silent = loop.time() - started > self._settings.socket_first_message_s
                if silent and not self._inbound_socket.is_in_use:
                    self._outgoing.close(POLICY)
                    return
                if self._inbound_socket.beat() >= _PINGS_MISSED_MAX:
                    self._outgoing.close(PONGS_MISSED)
                    return
            elif message.type in _FRAMES:
                # A flood is slowed down and loses no message: the network holds it back.
                wait_s = taken.take("", loop.time())
                if wait_s is not None:
                    await asyncio.sleep(wait_s)
                    taken.take("", loop.time())
                # As for a request: what the address owes for earlier messages is paid first.
                text = message.data
                charge_message(len(text.encode() if isinstance(text, str) else text))
                await until_paid()
                await self._take(message)
            else:
                error = message.data
                if isinstance(error, WebSocketError) and error.code == WSCloseCode.MESSAGE_TOO_BIG:
                    self._inbound.rejected(RejectionReason.MESSAGE_TOO_LARGE)
                return

    async def _take(self, frame: WSMessage) -> None:
        match frame.type:
            case WSMsgType.PING:
                self._outgoing.pong(bytes(frame.data))
            case WSMsgType.PONG:
                self._inbound_socket.take_pong(bytes(frame.data))
            case WSMsgType.TEXT:
                self._outgoing.kind = frame.type
                await self._unread.put(frame.data.encode())
            case _:
                self._outgoing.kind = frame.type
                await self._unread.put(frame.data)

    async def _receive(self, seconds: float) -> WSMessage | None:
        first_s = self._settings.socket_first_message_s
        bound_s = seconds if self._inbound_socket.is_in_use else min(seconds, first_s)
        try:
            async with asyncio.timeout(max(0.0, bound_s)):
                return await self._socket.receive()
        except TimeoutError:
            return None

    async def _handle_all(self) -> None:
        while True:
            body = await self._unread.get()
            try:
                await self._inbound_socket.take(body)
            finally:
                self._unread.task_done()
