"""The two transports to the mediator: requests over HTTP, or a WebSocket (RFC 0025).

Over HTTP at most one message comes back with the answer. Over a socket messages may come at any
time: a message in the thread of a request is its answer, the others wait for ``receive``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Protocol, cast

import aiohttp
import orjson

from http_edge.clients.didcomm.connection import MediatorConnection, Received
from http_edge.clients.didcomm.errors import (
    ConnectionLost,
    MediatorRefused,
    MediatorUnreachable,
    NoAnswer,
    NotAuthentic,
    UnexpectedAnswer,
    WalletError,
)
from http_edge.clients.didcomm.flat_messages import delivered_in, member
from http_edge.clients.retry_after import retry_after_s
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE

ANSWER_S_MAX: Final = 30.0
"""How long an answer may take, in addition to the delay that the request allows."""
SILENCE_S_MAX: Final = 75.0
"""A socket that is silent for so long is dead: almost four of the mediator's ping periods."""
UNRECEIVED_BYTES_MAX: Final = 128 * 1024 * 1024
"""The most that a socket keeps for a caller that does not receive; with more the socket ends."""
_KEPT_BYTES: Final = 1024
"""The memory that a waiting message takes in addition to the bytes of its envelope, about."""
_CONNECT_S_MAX: Final = 5.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_SHOWN_BYTES: Final = 200
_CLOSE_S_MAX: Final = 1.0
_SUCCESS: Final = range(200, 300)
_ASKED: Final = 2 / 3
"""The part of the allowed silence after which we ping; aiohttp waits for the pong half as long."""
_ALIVE: Final = b"alive"
"""A pong that answers no ping (RFC 6455 5.5.3); a mediator of Poste numbers its pings."""
_DATA: Final = frozenset({aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY})


class Transport(Protocol):
    """A way to exchange messages with the mediator."""

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        """Send a message that has an id; return its answer, or None if it gets none.

        With ``raw`` an envelope for another key is an answer, too, and so is one of the mediator
        itself that answered an earlier message and waited: both are returned unopened.

        Raises: WalletError.
        """

    def came_about(self, message_id: str) -> Json | None:
        """A message that has come about a message without a return route; None for none."""


class Posted(NamedTuple):
    """A successful answer over HTTP; its body is often empty."""

    status: int
    body: bytes


async def post(
    session: aiohttp.ClientSession,
    url: str,
    envelope: bytes,
    *,
    patience_s: float = 0.0,
    media_type: str = MEDIA_TYPE,
) -> Posted:
    """``POST`` an envelope; the answer may take ``patience_s`` longer than usual.

    Raises:
        MediatorRefused: the status is no success.
        MediatorUnreachable: there was no answer.
        UnexpectedAnswer: the answer is too long.
    """
    try:
        async with session.post(
            url,
            data=envelope,
            headers={"Content-Type": media_type},
            timeout=aiohttp.ClientTimeout(
                total=ANSWER_S_MAX + patience_s, sock_connect=_CONNECT_S_MAX
            ),
            allow_redirects=False,
        ) as response:
            body = await read_bounded(response, _ANSWER_BYTES_MAX)
            if response.status not in _SUCCESS:
                raise refused(response, body)
            return Posted(response.status, body)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise MediatorUnreachable(f"{url}: {str(error) or type(error).__name__}") from error


def refused(response: aiohttp.ClientResponse, body: bytes) -> MediatorRefused:
    """The error for an answer whose status is no success."""
    text = body[:_SHOWN_BYTES].decode(errors="replace")
    return MediatorRefused(
        response.status, text, retry_after_s(response.headers.get("Retry-After"))
    )


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Read the whole body of a response.

    Raises:
        UnexpectedAnswer: the body has more than ``bytes_max`` bytes.
    """
    received = bytearray()
    async for chunk in response.content.iter_any():
        received += chunk
        if len(received) > bytes_max:
            raise UnexpectedAnswer(f"an answer of more than {bytes_max} bytes")
    return bytes(received)


class Http:
    """The transport over HTTP: each message is a request of its own."""

    def __init__(self, connection: MediatorConnection, session: aiohttp.ClientSession) -> None:
        self._connection = connection
        self._session = session

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        """See ``Transport``; an empty body is None.

        Raises: MediatorRefused, MediatorUnreachable, NotAuthentic, UnexpectedAnswer.
        """
        envelope = self._connection.pack(message)
        posted = await post(
            self._session,
            self._connection.http_url,
            envelope,
            patience_s=_delay_s(message),
            media_type=self._connection.media_type,
        )
        if not posted.body:
            return None
        connection, body = self._connection, posted.body
        received = _opened(connection, body) if raw else connection.open(body)
        if isinstance(received, bytes) and not raw:
            raise UnexpectedAnswer("an envelope for another key instead of an answer")
        if isinstance(received, dict) and _answers_another(received, message):
            if raw:
                return body  # it waited in the queue, which it has left
            raise UnexpectedAnswer("an answer to another question")
        return received

    def came_about(self, message_id: str) -> None:
        """See ``Transport``: always None, since the status of the answer has reported it."""


def _has_messages(received: Received) -> bool:
    """Is it an envelope for a key of the wallet, or a message that brings such?"""
    # The batch of queue 1.0 has no attachments.
    return isinstance(received, bytes) or any(
        "attach" in name or name == "messages" for name in received
    )


class _Kept(NamedTuple):
    """A message that waits to be received."""

    received: Received
    size_bytes: int
    ping: bytes | None = None
    """The last ping that came after it and before the next message."""


class _Waiting(NamedTuple):
    """A request without an answer yet; ``is_raw`` is ``raw`` of ``Transport.exchange``."""

    thread: str
    answer: asyncio.Future[Received | None]
    is_raw: bool


class Socket:
    """An open WebSocket: ``say`` and ``receive``, or ``exchange`` for a request and its answer.

    Several tasks may send requests at once. Iterating yields what ``receive`` returns, until the
    socket ends. The pong to a ping acknowledges what came before the ping, so it waits until that
    has been received; until then a pong that answers no ping shows that this end is alive.
    """

    def __init__(
        self, connection: MediatorConnection, websocket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._connection = connection
        self.websocket: Final = websocket
        self._inbox: deque[_Kept] = deque()
        self.taken = 0
        """Messages that were received."""
        self._unreceived_bytes = 0
        self._unreceived_ids: set[str] = set()
        """Of the messages in deliveries that wait."""
        self._arrived = asyncio.Event()
        self._waiting: list[_Waiting] = []
        self._ended: WalletError | None = None
        self._due: bytes | None = None
        # The loop itself keeps no task alive.
        self._ponging: asyncio.Task[None] | None = None

    @property
    def arrived(self) -> int:
        """Messages that were received, and those that wait to be."""
        return self.taken + len(self._inbox)

    async def say(self, message: Json) -> None:
        """Send a message without waiting for an answer.

        Raises: ConnectionLost.
        """
        await self.send(self._connection.pack(message))

    async def send(self, frame: bytes | str) -> None:
        """Send an envelope as it is, in a binary or a text frame.

        Raises: ConnectionLost.
        """
        try:
            if isinstance(frame, str):
                await self.websocket.send_str(frame)
            else:
                await self.websocket.send_bytes(frame)
        except (ConnectionError, aiohttp.ClientError) as error:
            raise ConnectionLost(repr(error), self.websocket.close_code) from error

    async def receive(self, seconds: float | None = ANSWER_S_MAX) -> Received:
        """Receive the next message that answers no request: the mediator's own, or an envelope.

        ``None`` waits as long as the socket is open.

        Raises:
            NoAnswer: nothing came in time.
            ConnectionLost, UnexpectedAnswer: the reason for the end of the socket.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self._inbox:
                    if self._ended is not None:
                        raise self._ended
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError as error:
            raise NoAnswer(f"nothing came for {seconds} s") from error
        return self._take_out(0)

    def came_about(self, message_id: str) -> Json | None:
        """See ``Transport``: the first such message, which ``receive`` does not return any more."""
        for number, (received, _, _) in enumerate(self._inbox):
            if not isinstance(received, bytes) and _thread(received) == message_id:
                self._take_out(number)
                return received
        return None

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Iterate over received messages, until the socket ends."""
        while True:
            try:
                yield await self.receive(None)
            except ConnectionLost:
                return

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        """See ``Transport``; return None at once for a message without a return route.

        Raises: ConnectionLost, NoAnswer, UnexpectedAnswer.
        """
        if "~transport" not in message:
            await self.say(message)
            return None
        if self._ended is not None:
            raise self._ended
        answer: asyncio.Future[Received | None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(_thread_of_question(message), answer, raw)
        self._waiting.append(waiting)
        seconds = ANSWER_S_MAX + _delay_s(message)
        try:
            async with asyncio.timeout(seconds):
                await self.say(message)
                received = await answer
        except (TimeoutError, asyncio.CancelledError) as error:
            self._put_back(answer)
            if isinstance(error, TimeoutError):
                raise NoAnswer(f"no answer within {seconds} s") from error
            raise
        finally:
            self._waiting.remove(waiting)
        if received is None and self._ended is not None:
            raise self._ended
        return received

    async def listen(self) -> None:
        """Take arriving messages until the socket ends; ``open_socket`` runs this in a task."""
        ended: WalletError | None = None
        try:
            async for frame in self.websocket:
                if frame.type in _DATA:
                    data = frame.data
                    self._take(data.encode() if isinstance(data, str) else data)
                elif frame.type is aiohttp.WSMsgType.PING:
                    await self._answer(frame.data)
        except WalletError as error:
            ended = error
        finally:
            # Also if the socket was cut off: no task may wait for an answer that cannot come.
            code = self.websocket.close_code
            self._ended = ended or ConnectionLost(f"the socket ended with {code}", code)
            self._arrived.set()
            for waiting in self._waiting:
                if not waiting.answer.done():
                    waiting.answer.set_result(None)

    def _take(self, body: bytes) -> None:
        received = _opened(self._connection, body)
        thread = None if isinstance(received, bytes) else _thread(received)
        unanswered = [one for one in self._waiting if not one.answer.done()]  # the oldest first
        in_thread = (one for one in unanswered if one.thread == thread)
        # An answer that waited is in an earlier thread; a delivery of live mode is in none at all.
        raw = (one for one in unanswered if one.is_raw and thread != "")
        if one := next(in_thread, None):
            one.answer.set_result(received)
        elif one := next(raw, None):
            one.answer.set_result(body)
        else:
            self._keep(received, len(body) + _KEPT_BYTES)

    async def _answer(self, ping: bytes) -> None:
        """Send the pong to a ping, or keep it until the messages that came before are received."""
        if self._note_ping(len(self._inbox), ping):
            ping = _ALIVE
        await self._send_pong(ping)

    def _note_ping(self, number: int, ping: bytes) -> bool:
        """Keep a ping with what waits before a number and is lost with its pong, if anything is."""
        for earlier in reversed(range(number)):
            kept = self._inbox[earlier]
            if _has_messages(kept.received):
                self._inbox[earlier] = kept._replace(ping=ping)
                return True
        return False

    def _take_out(self, number: int) -> Received:
        """Take a message out; answer the ping behind it if nothing before that is left."""
        received, size_bytes, ping = self._inbox[number]
        del self._inbox[number]
        self.taken += 1
        self._unreceived_bytes -= size_bytes
        self._unreceived_ids.difference_update(delivered_in(received))
        if ping is not None and not self._note_ping(number, ping):
            self._due = ping
            if self._ponging is None or self._ponging.done():
                self._ponging = asyncio.create_task(self._send_due())
        return received

    async def _send_due(self) -> None:
        """Send the pong that is due; while it cannot be sent, a later one takes its place."""
        while (ping := self._due) is not None:
            self._due = None
            await self._send_pong(ping)

    async def _send_pong(self, ping: bytes) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):  # the socket has ended
            await self.websocket.pong(ping)

    def _put_back(self, answer: asyncio.Future[Received | None]) -> None:
        """Keep an answer that came as its request was cancelled, so that it can be received.

        The answer may be a message that has left its queue.
        """
        received = answer.result() if answer.done() and not answer.cancelled() else None
        if received is not None:
            self._inbox.append(_Kept(received, 0))
            self._arrived.set()

    def _keep(self, received: Received, size_bytes: int) -> None:
        """Keep a message until it is received, without those of a delivery that wait already.

        The mediator pushes again what a slow program has not acknowledged at the end of its lease.

        Raises: ConnectionLost.
        """
        found = delivered_in(received)
        if copies := found.keys() & self._unreceived_ids:
            new = [one for message_id, one in found.items() if message_id not in copies]
            if not new:
                return
            received = {**cast("Json", received), "~attach": new}
            size_bytes -= sum(len(orjson.dumps(found[one])) for one in copies)
        self._unreceived_ids.update(found)
        if self._unreceived_bytes + size_bytes > UNRECEIVED_BYTES_MAX:
            reason = f"more than {UNRECEIVED_BYTES_MAX} bytes wait to be received"
            raise ConnectionLost(reason, self.websocket.close_code)
        self._unreceived_bytes += size_bytes
        self._inbox.append(_Kept(received, size_bytes))
        self._arrived.set()


@asynccontextmanager
async def open_socket(
    session: aiohttp.ClientSession,
    connection: MediatorConnection,
    *,
    silence_s_max: float = SILENCE_S_MAX,
) -> AsyncIterator[Socket]:
    """Open a socket to the mediator of a connection; close it at the end of the block.

    The socket ends, as lost, if the mediator answers no ping and is silent for ``silence_s_max``
    seconds: else a wait on a connection that broke silently would never end.

    Raises:
        MediatorUnreachable: the socket did not open.
    """
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            websocket = await session.ws_connect(
                connection.ws_url,
                max_msg_size=_ANSWER_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S_MAX),
                autoping=False,
                heartbeat=silence_s_max * _ASKED,
            )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise MediatorUnreachable(f"{connection.ws_url}: {error!r}") from error
    socket = Socket(connection, websocket)
    listening = asyncio.create_task(socket.listen())
    try:
        yield socket
    finally:
        await _close(websocket, listening)


async def _close(websocket: aiohttp.ClientWebSocketResponse, listening: asyncio.Task[None]) -> None:
    """Close a socket and wait for the end of its task.

    A mediator that goes on sending is cut off, because aiohttp restarts its wait at each message.
    """
    try:
        async with asyncio.timeout(_CLOSE_S_MAX):
            await websocket.close()
            await listening
    except TimeoutError:
        listening.cancel()
        await asyncio.wait([listening])


def _opened(connection: MediatorConnection, body: bytes) -> Received:
    """Open a message if it may be a queued envelope; return one that is not authentic unopened.

    Raises:
        UnexpectedAnswer: ``body`` is no envelope, or its content is no message.
    """
    try:
        return connection.open(body)
    except NotAuthentic:
        return body


def _thread_of_question(message: Json) -> str:
    """The thread of the answer to a request; the parent thread is another one."""
    return str(member(message, "~thread").get("thid") or message["@id"])


def _answers_another(answer: Json, question: Json) -> bool:
    """Whether an answer is in the thread of another request; an answer may have no thread."""
    thread = member(answer, "~thread")
    named = {str(name) for name in (thread.get("thid"), thread.get("pthid")) if name}
    return bool(named) and named.isdisjoint({_thread_of_question(question), str(question["@id"])})


def _thread(message: Json) -> str:
    """The thread of a message, else its parent thread, as a problem report may have."""
    thread = member(message, "~thread")
    return str(thread.get("thid") or thread.get("pthid") or "")


def _delay_s(message: Json) -> float:
    """The delay in seconds that a request allows for its answer (RFC 0032)."""
    delay_ms = member(message, "~timing").get("delay_milli")
    return delay_ms / 1000 if isinstance(delay_ms, int | float) else 0.0
