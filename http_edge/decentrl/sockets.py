"""The WebSocket endpoint (DCTRL-0004 section 10): authenticate, keep alive, push.

A socket goes through three phases: ``_authenticate`` (10.2, with the checks in that order),
``_keep`` (PING, PONG, registration) and the close. Two tasks serve it: the handler reads,
``Outgoing.run`` writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import WSMessage, WSMsgType, web

from actors.core.commands import OpenSession
from actors.core.cost import source_key
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import IdentityGone, Notice, Registered, Reply
from actors.core.submissions import Submission
from actors.host.clock import Clock
from http_edge.crypto.signatures import verify_object
from http_edge.decentrl import frames
from http_edge.decentrl.frames import Authenticate, AuthFailure, AuthRejected
from http_edge.dids.document import Fetch
from http_edge.dids.resolver import Resolver
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.hub import Hub
from http_edge.listener.address_charge import (
    charge_body,
    charge_bytes,
    charge_message,
    charge_unproven,
    until_paid,
)
from http_edge.listener.connection import Connection, peer_of
from http_edge.listener.outgoing import POLICY, PONGS_MISSED, Outgoing, upgraded
from http_edge.settings.settings import Settings
from http_edge.telemetry.refusal_counts import DECENTRL, RefusalCounts
from http_edge.telemetry.request_id import current

_AUTHENTICATE: Final = "AUTHENTICATE"
_WITH_MESSAGE: Final = (WSMsgType.TEXT, WSMsgType.BINARY)


class _Notices:
    """The subscriber of one socket: sends it the frames of its identity's notices."""

    def __init__(self, outgoing: Outgoing, frame_of: Callable[[Notice], bytes | None]) -> None:
        self._outgoing = outgoing
        self._frame_of = frame_of

    def notify(self, notice: Notice) -> None:
        if isinstance(notice, IdentityGone):
            _end(self._outgoing)
            return
        frame = self._frame_of(notice)
        if frame is not None:
            self._outgoing.put(frame)

    def close(self, code: int) -> None:
        self._outgoing.close(code)


class _Session(msgspec.Struct):
    """An authenticated socket: its identity, the end of its registration, unanswered pings."""

    did: str
    subscriber: _Notices
    until_s: float
    pings_unanswered: int = 0


class SocketEndpoint:
    """Answers ``GET /ws`` after the upgrade was allowed."""

    def __init__(
        self,
        settings: Settings,
        resolver: Resolver,
        gateway: Gateway,
        hub: Hub,
        *,
        clock: Clock,
        refusals: RefusalCounts,
    ) -> None:
        """Sockets of one edge; ``refusals`` counts failed authentications."""
        self._limits = settings.limits
        self._protocol = settings.protocol
        self._resolver = resolver
        self._gateway = gateway
        self._hub = hub
        self._clock = clock
        self._refusals = refusals
        self._last: tuple[Notice, bytes | None] | None = None
        self._unauthenticated: set[web.WebSocketResponse] = set()

    async def close_unauthenticated(self, code: int) -> None:
        """Close the sockets that have no subscriber yet; wait for their clients' answers."""
        await asyncio.gather(*[socket.close(code=code) for socket in self._unauthenticated])

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one socket until it closes."""
        frame_bytes_max = self._limits.socket_frame_bytes_max
        socket = await upgraded(request, message_bytes_max=frame_bytes_max)
        outgoing = Outgoing(
            socket,
            peer=peer_of(request),
            bytes_max=self._limits.socket_buffer_bytes_max,
        )
        self._unauthenticated.add(socket)
        try:
            message = await self._authenticate(socket, peer_of(request))
        finally:
            self._unauthenticated.discard(socket)
        if isinstance(message, AuthRejected):
            await self._refuse(socket, message)
            return socket
        session = await self._begin(message.did, outgoing)
        if isinstance(session, AuthFailure):
            await self._refuse(socket, AuthRejected(session), message.did)
            return socket
        outgoing.put_first(frames.AUTH_SUCCESS)
        writing = asyncio.get_running_loop().create_task(outgoing.run())
        try:
            await self._keep(socket, outgoing, session, peer_of(request))
        finally:
            self._hub.remove(session.did, session.subscriber)
            await outgoing.finish(writing)
        return socket

    async def _authenticate(
        self, socket: web.WebSocketResponse, client: Connection
    ) -> Authenticate | AuthRejected:
        """Authenticate the client: return its verified message, or why it failed (10.2).

        The bytes of its message cost its address what those of a request do.
        """
        frames_taken = self._frame_rate()
        try:
            async with asyncio.timeout(self._protocol.socket_auth_s):
                frame = await _first_message(socket, frames_taken)
        except TimeoutError:
            return AuthRejected(AuthFailure.AUTH_TIMEOUT)
        if frame is None:
            return AuthRejected(AuthFailure.RATE_LIMITED)
        size_bytes = _size_bytes(frame)
        client.handled(size_bytes)
        charge_body(size_bytes)
        message = await self._verified(frame)
        if isinstance(message, AuthRejected):
            charge_bytes(size_bytes)  # the rest of the price is charged with the refusal
        return message

    async def _verified(self, frame: WSMessage) -> Authenticate | AuthRejected:
        """The verified message in the first frame, or why it proves nothing."""
        if frame.type is not WSMsgType.TEXT:
            return AuthRejected(AuthFailure.INVALID_MESSAGE, "message: is not a text frame")
        message = frames.read_authenticate(frame.data, did_bytes_max=self._limits.did_bytes_max)
        if isinstance(message, AuthRejected):
            return message
        if abs(self._clock() - message.timestamp) > self._protocol.timestamp_window_ms:
            return AuthRejected(AuthFailure.TIMESTAMP_OUT_OF_RANGE)
        document = await self._resolver.resolve(message.did)
        if document is Fetch.NEEDED:
            return AuthRejected(AuthFailure.TEMPORARILY_UNAVAILABLE)
        if document is None or isinstance(document, Fetch):
            rule = self._resolver.why_unknown(message.did)
            return AuthRejected(AuthFailure.DID_NOT_FOUND, f"message.did: {rule}")
        public_key = document.signing_keys.get(message.signing_key_id)
        if public_key is None:
            return AuthRejected(AuthFailure.SIGNING_KEY_NOT_FOUND)
        if not verify_object(public_key, message.signed(), message.signature):
            return AuthRejected(AuthFailure.INVALID_SIGNATURE)
        return message

    async def _begin(self, did: str, outgoing: Outgoing) -> _Session | AuthFailure:
        """Begin the session of an authenticated client, or say why it is refused."""
        if self._hub.subscribers_of(did) >= self._limits.sockets_per_identity_max:
            return AuthFailure.TEMPORARILY_UNAVAILABLE
        # From here on pushes may come; they wait behind AUTH_SUCCESS.
        session = _Session(did, _Notices(outgoing, self._frame_of), 0)
        self._hub.add(did, session.subscriber)
        await self._hub.session_ended(did)
        failure = await self._open(session)
        if failure is not None:
            self._hub.remove(did, session.subscriber)
            outgoing.discard()
            return failure
        return session

    async def _refuse(
        self, socket: web.WebSocketResponse, rejected: AuthRejected, did: str = ""
    ) -> None:
        """Send AUTH_FAILED, then the close frame with its code, in this order (10.2).

        ``did`` is the client's, empty unless it is proven.
        """
        if not socket.closed:  # a client that went away was not refused
            self._refusals.count(DECENTRL, _AUTHENTICATE, rejected.failure.name, did)
            if not did:
                charge_unproven(0)
            with contextlib.suppress(ConnectionError):
                await socket.send_frame(frames.auth_failed(rejected), WSMsgType.TEXT)
                await socket.close(code=rejected.failure.value)

    async def _open(self, session: _Session) -> AuthFailure | None:
        """Open or confirm the session at the host, and update the end of the registration."""
        partition = self._gateway.routes.partition_of(session.did)
        submission = Submission(
            partition,
            session.did,
            b"",
            command=OpenSession(self._hub.edge),
            request_id=current(),
            source=source_key(session.did),  # as for the end of a session (``Hub``)
        )
        reply: Reply = await self._gateway.submit(submission)
        if isinstance(reply, Registered):
            session.until_s = reply.until_s
            return None
        unknown = getattr(reply, "code", None) is Refusal.TEMPORARILY_UNAVAILABLE
        return AuthFailure.TEMPORARILY_UNAVAILABLE if unknown else AuthFailure.NOT_REGISTERED

    def _frame_of(self, notice: Notice) -> bytes | None:
        """The frame of a notice (10.5), or None, made once for all sockets of its identity.

        The hub passes a notice to these sockets in one go, and it may have a MiB of text.
        """
        if self._last is None or self._last[0] is not notice:
            self._last = notice, frames.notice(notice)
        return self._last[1]

    def _frame_rate(self) -> RateLimit:
        return RateLimit(self._limits.socket_frames_per_s_max, burst_s=2, keys_max=1)

    async def _keep(
        self,
        socket: web.WebSocketResponse,
        outgoing: Outgoing,
        session: _Session,
        client: Connection,
    ) -> None:
        """Read until the socket closes; ping it, and watch its registration."""
        loop = asyncio.get_running_loop()
        frames_taken = self._frame_rate()
        ping_at = loop.time() + self._protocol.ping_interval_s
        while not socket.closed:
            lapse_s = session.until_s - self._clock() / 1000
            if lapse_s <= 0:
                if await self._open(session) is AuthFailure.NOT_REGISTERED:
                    _end(outgoing)
                    return
                # No answer from the host: ask again at the next ping.
                lapse_s = self._protocol.ping_interval_s
            try:
                async with asyncio.timeout(max(0.0, min(ping_at - loop.time(), lapse_s))):
                    message = await socket.receive()
            except TimeoutError:
                if loop.time() >= ping_at:
                    # From now on: a client owes no pongs for a time in which this edge hung.
                    ping_at = loop.time() + self._protocol.ping_interval_s
                    if session.pings_unanswered >= self._protocol.pings_missed_max:
                        outgoing.close(PONGS_MISSED)
                        return
                    session.pings_unanswered += 1
                    outgoing.put(frames.ping(self._clock()))
                continue
            size_bytes = _size_bytes(message)
            await _take(message, size_bytes, outgoing, session)
            client.handled(size_bytes)
            if frames_taken.take("", loop.time()) is not None:
                self._refusals.count(DECENTRL, "", Refusal.RATE_LIMITED.value, session.did)
                outgoing.close(POLICY)
                return


def _end(outgoing: Outgoing) -> None:
    """End a socket whose client is no longer registered."""
    rejected = AuthRejected(AuthFailure.NOT_REGISTERED)
    outgoing.close(rejected.failure.value, frames.auth_failed(rejected))


async def _take(message: WSMessage, size_bytes: int, outgoing: Outgoing, session: _Session) -> None:
    """Take a frame; charge every message but an expected PONG, and wait until that is paid.

    Until then the edge reads nothing more from this socket, so the network holds a flood back. The
    socket stays open and its pushes go on: other clients of the address may have made the debt.
    """
    if message.type is WSMsgType.PING:
        outgoing.pong(bytes(message.data))
    if message.type not in _WITH_MESSAGE:
        return
    is_pong = message.type is WSMsgType.TEXT and frames.is_pong(message.data)
    if is_pong and session.pings_unanswered:
        session.pings_unanswered = 0
        return
    charge_message(size_bytes)
    await until_paid()


def _size_bytes(message: WSMessage) -> int:
    """The bytes of a message; other frames have none that count."""
    if message.type not in _WITH_MESSAGE:
        return 0
    data = message.data
    return len(data.encode() if isinstance(data, str) else data)


async def _first_message(
    socket: web.WebSocketResponse, frames_taken: RateLimit
) -> WSMessage | None:
    """The first frame that is neither ping nor pong; None after too many of these."""
    loop = asyncio.get_running_loop()
    while frames_taken.take("", loop.time()) is None:
        frame = await socket.receive()
        if frame.type is WSMsgType.PING:
            with contextlib.suppress(ConnectionError):
                await socket.pong(bytes(frame.data))
        elif frame.type is not WSMsgType.PONG:
            return frame
    return None
