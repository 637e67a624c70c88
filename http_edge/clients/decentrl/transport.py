"""HTTP to one mediator: sends requests, returns answers or raises typed errors.

After a failure only one question matters: can the command have taken effect?
``MediatorUnreachable`` means no, ``OutcomeUnknown`` means that the client cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from http_edge.clients.decentrl.errors import (
    CommandRefused,
    MediatorUnreachable,
    OutcomeUnknown,
    UnexpectedAnswer,
)
from http_edge.clients.retry_after import retry_after_s
from http_edge.crypto.strict_json import JsonRefused, parse_answer

_SERVER_FAILURE: Final = 500
_OK: Final = 200
_NOTHING_CHANGED: Final = "INSUFFICIENT_STORAGE"
"""The code of the only server failure that changed nothing."""
_SHOWN_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds on one exchange with a mediator.

    Attributes:
        connect_s_max: Seconds until a connection must be open.
        answer_s_max: Seconds from the start until the whole answer has arrived.
        answer_bytes_max: Larger answers are not read to the end.
        connections_max: Open connections to the mediator, WebSockets included.
        frame_bytes_max: Larger WebSocket messages close the socket.
        silence_s_max: Seconds of silence after which a WebSocket is dead: two and a half times
            the 30 seconds between the mediator's pings.
    """

    connect_s_max: float = 5.0
    answer_s_max: float = 30.0
    answer_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 100
    frame_bytes_max: int = 16 * 1024 * 1024
    silence_s_max: float = 75.0


class Transport:
    """Requests to one mediator over keep-alive connections.

    ``session`` is used if given and then stays open; else the transport makes and owns one.

    Raises:
        ValueError: the URL is not an absolute http or https URL.
    """

    def __init__(
        self,
        url: str,
        *,
        session: aiohttp.ClientSession | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        self.url: Final = URL(url)
        if self.url.scheme not in {"http", "https"} or not self.url.host:
            raise ValueError(f"{url!r} is not an http or https URL")
        self.limits: Final = limits or TransportLimits()
        self._session = session
        self._is_own = session is None
        self._closed = False

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session in use; made at the first call, which must be inside the event loop.

        Raises:
            RuntimeError: this transport, or the session that was given to it, is closed.
        """
        if self._closed or (self._session is not None and self._session.closed):
            raise RuntimeError(f"the client of {self.url} is closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self.limits.connections_max)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout())
        return self._session

    async def close(self) -> None:
        """Close the session that the transport owns; a session given to it stays open.

        Nothing can be sent afterwards. Closing again does nothing.
        """
        self._closed = True
        if self._is_own and self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> tuple[int, Mapping[str, object]]:
        """``GET`` a path; return any status, and the JSON object.

        Raises: MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer.
        """
        status, _, body = await self._exchange("GET", path)
        return status, _json_object(status, body)

    async def query(self, path: str, where: Sequence[tuple[str, str]]) -> Mapping[str, object]:
        """``GET`` a path (already percent-encoded) with a query; return the SUCCESS answer.

        Raises: CommandRefused, OutcomeUnknown, MediatorUnreachable, UnexpectedAnswer.
        """
        return read_answer(*await self._exchange("GET", path, where=where))

    async def post(self, command: bytes) -> Mapping[str, object]:
        """``POST`` a signed command; return the SUCCESS answer.

        Raises: CommandRefused, OutcomeUnknown, MediatorUnreachable, UnexpectedAnswer.
        """
        return read_answer(*await self._exchange("POST", "/", body=command))

    async def _exchange(
        self, method: str, path: str, *, where: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> tuple[int, str | None, bytes]:
        target = self.at(path).with_query(list(where)) if where else self.at(path)
        try:
            async with self.session.request(
                method,
                target,
                data=body or None,
                headers={"Content-Type": "application/json"} if body else None,
                timeout=self._timeout(),
                allow_redirects=False,
            ) as response:
                answer = await self._read_bounded(response)
                return response.status, response.headers.get("Retry-After"), answer
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            UnicodeError,  # by the resolver, of a host that is none in IDNA
        ) as error:
            raise MediatorUnreachable(f"{self.url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise OutcomeUnknown(f"{self.url}: {reason}") from error

    def at(self, path: str) -> URL:
        """The URL of ``path`` (already percent-encoded) below the mediator's own path."""
        base = str(self.url).rstrip("/")
        return URL(base + path, encoded=True)

    async def _read_bounded(self, response: aiohttp.ClientResponse) -> bytes:
        received = bytearray()
        async for chunk in response.content.iter_any():
            received += chunk
            if len(received) > self.limits.answer_bytes_max:
                raise UnexpectedAnswer(f"an answer over {self.limits.answer_bytes_max} bytes")
        return bytes(received)

    def _timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self.limits.answer_s_max, sock_connect=self.limits.connect_s_max
        )


def read_answer(status: int, retry_after: str | None, body: bytes) -> Mapping[str, object]:
    """The SUCCESS answer in a response (DCTRL-0004 section 11). Pure.

    Raises:
        CommandRefused: the answer is an ERROR and nothing changed: the client caused it (status
            below 500), or it is INSUFFICIENT_STORAGE.
        OutcomeUnknown: the mediator, or something in front of it, failed.
        UnexpectedAnswer: the answer is no answer of this protocol.
    """
    pause_s = retry_after_s(retry_after)
    try:
        answer = _json_object(status, body)
    except UnexpectedAnswer:
        if status < _SERVER_FAILURE:
            raise
        answer = {}
    code = answer.get("code")
    is_error = answer.get("type") == "ERROR" and isinstance(code, str)
    if status >= _SERVER_FAILURE and not (is_error and code == _NOTHING_CHANGED):
        raise OutcomeUnknown(f"HTTP {status} {_shown(body)}", pause_s)
    if is_error:
        detail = answer.get("detail")
        text = detail if isinstance(detail, str) else ""
        raise CommandRefused(str(code), status, pause_s, text)
    if status == _OK and answer.get("type") == "SUCCESS":
        return answer
    raise UnexpectedAnswer(f"HTTP {status} {_shown(body)}")


def _json_object(status: int, body: bytes) -> Mapping[str, object]:
    try:
        value = parse_answer(body)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"HTTP {status} without JSON: {_shown(body)}") from error
    if not isinstance(value, dict):
        raise UnexpectedAnswer(f"HTTP {status} without a JSON object: {_shown(body)}")
    return value


def _shown(body: bytes) -> str:
    return repr(body[:_SHOWN_CHARS].decode(errors="replace"))
