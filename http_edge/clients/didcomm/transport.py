"""The two ways to the mediator: one request over HTTP, or a WebSocket (RFC 0025).

Over HTTP at most one message comes back with the answer. Over a socket anything may come at any
time: what is in the thread of a question is its answer, the rest waits to be received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

import aiohttp

from http_edge.clients.didcomm.connection import MEDIA_TYPE, MediatorConnection, Received
from http_edge.clients.didcomm.errors import (
    ConnectionLost,
    MediatorRefused,
    MediatorUnreachable,
    NoAnswer,
    NotAuthentic,
    UnexpectedAnswer,
    WalletError,
)
from http_edge.clients.retry_after import retry_after_s
from http_edge.didcomm.envelopes.messages import Json

ANSWER_S_MAX: Final = 30.0
"""How long an answer may take, besides the delay that the question allows."""
SILENCE_S_MAX: Final = 75.0
"""A socket that says nothing for so long is dead: two and a half of the mediator's own pings."""
UNRECEIVED_BYTES_MAX: Final = 128 * 1024 * 1024
"""What a socket keeps for a caller that does not receive it; with more it ends."""
_KEPT_BYTES: Final = 1024
"""A message that waits takes about so much more than its envelope has bytes."""
_CONNECT_S_MAX: Final = 5.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_SHOWN_BYTES: Final = 200
_CLOSE_S_MAX: Final = 1.0
_SUCCESS: Final = range(200, 300)
_ASKED: Final = 2 / 3
"""The part of a silence after which a ping asks; the pong has half as long again (aiohttp)."""
_DATA: Final = frozenset({aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY})


class Transport(Protocol):
    """A way to ask the mediator."""

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        """Send a message that has an id; what came back, or None when nothing should.

        ``raw``: an envelope for another key is an answer too.

        Raises: WalletError.
        """

    def came_about(self, message_id: str) -> Json | None:
        """What has come about a message that nothing was to come back for; None for nothing."""


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
        UnexpectedAnswer: it is too long.
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
    """What an answer whose status is no success stands for."""
    text = body[:_SHOWN_BYTES].decode(errors="replace")
    return MediatorRefused(
        response.status, text, retry_after_s(response.headers.get("Retry-After"))
    )


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body of a response.

    Raises:
        UnexpectedAnswer: it has more than ``bytes_max`` bytes.
    """
    received = bytearray()
    async for chunk in response.content.iter_any():
        received += chunk
        if len(received) > bytes_max:
            raise UnexpectedAnswer(f"an answer of more than {bytes_max} bytes")
    return bytes(received)


class Http:
    """Each message is a request of its own."""

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
            raise UnexpectedAnswer("an answer to another question")
        return received

    def came_about(self, message_id: str) -> None:
        """See ``Transport``: nothing, for the status of the answer has said it."""


class Socket:
    """An open WebSocket: ``say`` and ``receive``, or ``exchange`` for a question and its answer.

    Several tasks may ask at once. Iterating gives what ``receive`` gives until the socket ends.
    """

    def __init__(
        self, connection: MediatorConnection, websocket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._connection = connection
        self.websocket: Final = websocket
        self._inbox: deque[tuple[Received, int]] = deque()
        self._unreceived_bytes = 0
        self._arrived = asyncio.Event()
        self._threads: dict[str, asyncio.Future[Received | None]] = {}
        self._raw: deque[asyncio.Future[Received | None]] = deque()
        self._ended: WalletError | None = None

    async def say(self, message: Json) -> None:
        """Send a message and wait for nothing.

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
        """The next message that answers no question: the mediator's own, or an envelope.

        ``None`` waits as long as the socket is open.

        Raises:
            NoAnswer: nothing came in time.
            ConnectionLost, UnexpectedAnswer: the socket ended, and why.
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
        received, size_bytes = self._inbox.popleft()
        self._unreceived_bytes -= size_bytes
        return received

    def came_about(self, message_id: str) -> Json | None:
        """See ``Transport``: the first of it, which is not received any more."""
        for number, (received, size_bytes) in enumerate(self._inbox):
            if not isinstance(received, bytes) and _thread(received) == message_id:
                del self._inbox[number]
                self._unreceived_bytes -= size_bytes
                return received
        return None

    async def __aiter__(self) -> AsyncIterator[Received]:
        """What is received, until the socket ends."""
        while True:
            try:
                yield await self.receive(None)
            except ConnectionLost:
                return

    async def exchange(self, message: Json, *, raw: bool = False) -> Received | None:
        """See ``Transport``; None at once for a message that opens no return route.

        Raises: ConnectionLost, NoAnswer, UnexpectedAnswer.
        """
        if "~transport" not in message:
            await self.say(message)
            return None
        if self._ended is not None:
            raise self._ended
        answer: asyncio.Future[Received | None] = asyncio.get_running_loop().create_future()
        thread = _thread_of_question(message)
        self._threads[thread] = answer
        if raw:
            self._raw.append(answer)
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
            self._threads.pop(thread, None)
            if answer in self._raw:
                self._raw.remove(answer)
        if received is None and self._ended is not None:
            raise self._ended
        return received

    async def listen(self) -> None:
        """Take what arrives until the socket ends; ``open_socket`` runs this beside its user."""
        ended: WalletError | None = None
        try:
            async for frame in self.websocket:
                if frame.type in _DATA:
                    data = frame.data
                    self._take(data.encode() if isinstance(data, str) else data)
        except WalletError as error:
            ended = error
        finally:
            # Whatever ended it, also that it was cut off: no task waits for what cannot come.
            code = self.websocket.close_code
            self._ended = ended or ConnectionLost(f"the socket ended with {code}", code)
            self._arrived.set()
            for waiting in self._threads.values():
                if not waiting.done():
                    waiting.set_result(None)

    def _take(self, body: bytes) -> None:
        received = _opened(self._connection, body)
        if isinstance(received, bytes):
            answered = self._raw.popleft() if self._raw else None
        else:
            answered = self._threads.get(_thread(received))
        if answered is not None and not answered.done():
            answered.set_result(received)
        else:
            self._keep(received, len(body) + _KEPT_BYTES)

    def _put_back(self, answer: asyncio.Future[Received | None]) -> None:
        """Let an answer wait to be received that came as its question was given up.

        It may be a message that has left its queue.
        """
        received = answer.result() if answer.done() and not answer.cancelled() else None
        if received is not None:
            self._inbox.append((received, 0))
            self._arrived.set()

    def _keep(self, received: Received, size_bytes: int) -> None:
        """Let a message wait to be received. Raises: ConnectionLost."""
        if self._unreceived_bytes + size_bytes > UNRECEIVED_BYTES_MAX:
            reason = f"more than {UNRECEIVED_BYTES_MAX} bytes wait to be received"
            raise ConnectionLost(reason, self.websocket.close_code)
        self._unreceived_bytes += size_bytes
        self._inbox.append((received, size_bytes))
        self._arrived.set()


@asynccontextmanager
async def open_socket(
    session: aiohttp.ClientSession,
    connection: MediatorConnection,
    *,
    silence_s_max: float = SILENCE_S_MAX,
) -> AsyncIterator[Socket]:
    """A socket to the mediator of a connection; it is closed when the context is left.

    It ends, as lost, when the mediator answers no ping and says nothing for ``silence_s_max``
    seconds: a connection that broke without a word would otherwise be waited on for ever.

    Raises:
        MediatorUnreachable: it did not open.
    """
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            websocket = await session.ws_connect(
                connection.ws_url,
                max_msg_size=_ANSWER_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S_MAX),
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

    A mediator that goes on sending is cut off: aiohttp waits after each message.
    """
    try:
        async with asyncio.timeout(_CLOSE_S_MAX):
            await websocket.close()
            await listening
    except TimeoutError:
        listening.cancel()
        await asyncio.wait([listening])


def _opened(connection: MediatorConnection, body: bytes) -> Received:
    """What came, where an envelope of the queue may: one for the wallet's own key is such, too.

    Raises:
        UnexpectedAnswer: it is no envelope, or its content no message.
    """
    try:
        return connection.open(body)
    except NotAuthentic:
        return body


def _thread_of_question(message: Json) -> str:
    """The thread in which a question is answered: its parent is another."""
    thread = message.get("~thread")
    named = thread.get("thid") if isinstance(thread, dict) else None
    return str(named or message["@id"])


def _answers_another(answer: Json, question: Json) -> bool:
    """Whether a message is in the thread of another question; one in no thread is in none."""
    thread = answer.get("~thread")
    names = [thread.get("thid"), thread.get("pthid")] if isinstance(thread, dict) else []
    named = {str(name) for name in names if name}
    return bool(named) and named.isdisjoint({_thread_of_question(question), str(question["@id"])})


def _thread(message: Json) -> str:
    """The thread that a message says it is in; of a problem report its parent will do."""
    thread = message.get("~thread")
    if not isinstance(thread, dict):
        return ""
    return str(thread.get("thid") or thread.get("pthid") or "")


def _delay_s(message: Json) -> float:
    """Seconds that a question allows for its answer (RFC 0032)."""
    timing = message.get("~timing")
    delay_ms = timing.get("delay_milli") if isinstance(timing, dict) else None
    return delay_ms / 1000 if isinstance(delay_ms, int | float) else 0.0
