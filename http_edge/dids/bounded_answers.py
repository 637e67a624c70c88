"""Connections to hosts that strangers name, from which so many bytes are read and no more.

A host can send interim answers (1xx) or pings on a WebSocket without end. The library parses all of
them, before a time limit or the reader of the answer can act: a host that wrote as fast as it could
held up the event loop for seconds. Beneath HTTP it can do the same by tickets for new sessions of
TLS, 18 bytes each, which no protocol above TLS ever sees: 10 MB of them held up an edge for 14 s.
"""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from ssl import SSLCertVerificationError
from typing import Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from typing_extensions import override

_TLS_BYTES_MAX: Final = 65_536
"""Bytes of a connection that carry no answer: certificates, tickets, and what each record adds.
Chains of certificates have some 8 KiB. So many tickets take 20 ms."""


def plain_session(
    connector: aiohttp.TCPConnector,
    headers: Mapping[str, str],
    *middlewares: aiohttp.ClientMiddlewareType,
) -> aiohttp.ClientSession:
    """Open a session without cookies, without a proxy of the environment, and with these headers.

    Decompression could exceed any bound: an answer that is compressed unbidden stays so.
    """
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={**headers, "Accept-Encoding": "identity"},
        trust_env=False,
        middlewares=middlewares,
    )


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that end after ``answer_bytes_max`` bytes of one answer, head included.

    What came before the end still counts, so an answer that is only too long has its status.
    """

    def __init__(self, answer_bytes_max: int, **options: Any) -> None:
        """Read so much; ``options`` are those of the library's connector."""
        super().__init__(**options)
        # There is no public way to choose the protocol of a connection, nor a type for another.
        self._factory = partial(  # type: ignore[assignment]
            _BoundedAnswers, answer_bytes_max, loop=self._loop
        )

    @override
    async def _wrap_create_connection(
        self, *args: Any, req: Any, ssl: Any = None, server_hostname: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connect, and begin TLS above a count of its bytes: the library's own has none."""
        connect = partial(super()._wrap_create_connection, req=req, **options)
        if not ssl:
            return await connect(*args)
        answers = cast("_BoundedAnswers", self._factory())
        shaken: asyncio.Future[None] = self._loop.create_future()
        tls = partial(_BoundedTls, self._loop, answers, ssl, shaken, server_hostname)
        wire, _ = await connect(tls)
        try:
            with ExitStack() as unless_begun:
                # Also if the request ends in the same moment as the handshake.
                unless_begun.callback(wire.abort)
                await shaken
                if answers.transport is None:
                    raise ConnectionResetError("ended before its TLS had begun")
                unless_begun.pop_all()
        except SSLCertVerificationError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return answers.transport, answers


class _BoundedTls(SSLProtocol):
    """The TLS beneath the answers of one connection."""

    max_size = 16_384
    """Bytes of one read, so that the bound acts in time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answers: _BoundedAnswers,
        context: Any,
        shaken: asyncio.Future[None],
        server_hostname: str,
    ) -> None:
        super().__init__(loop, answers, context, shaken, server_hostname=server_hostname)
        self._answers = answers
        self._read_bytes = 0
        self._wire: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # A transport of uvloop has the interface of asyncio.Transport, not its type.
        self._wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)

    @override
    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what came, and end the connection if too much of it was no answer."""
        self._read_bytes += nbytes
        super().buffer_updated(nbytes)
        unread = self._get_read_buffer_size()  # type: ignore[attr-defined]  # not in its stub
        answered = self._answers.received_bytes + unread
        if self._read_bytes - answered > _TLS_BYTES_MAX and self._wire is not None:
            self._wire.abort()


class _BoundedAnswers(ResponseHandler):
    """The client's side of one connection."""

    def __init__(self, bytes_max: int, *, loop: Any) -> None:
        super().__init__(loop)
        self._bytes_max = self._bytes_left = bytes_max
        self.received_bytes = 0

    def set_response_params(self, **parameters: Any) -> None:
        """Begin to read the answer to the next request."""
        self._bytes_left = self._bytes_max
        super().set_response_params(**parameters)

    def set_parser(self, *parser: Any, **options: Any) -> None:
        """Begin to read frames; those that came behind the head are counted when they are read."""
        self._bytes_left += len(self._tail)
        super().set_parser(*parser, **options)

    @override
    def close(self) -> None:
        """End the connection at once; of an orderly end its host decides how long it takes."""
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Parse no more than what is left, and end the connection when nothing is."""
        self.received_bytes += len(data)
        read = data[: self._bytes_left]
        left = self._bytes_left - len(read)
        super().data_received(read)  # calls this again for what follows the consent to a WebSocket
        self._bytes_left = left
        if not self._bytes_left and self.transport is not None:
            self.transport.abort()
