"""Connections to hosts that strangers name, from which so many bytes are read and no more.

A host can send interim answers (1xx) or pings on a WebSocket without end. The library parses all of
them, before a time limit or the reader of the answer can act: a host that wrote as fast as it could
held up the event loop for seconds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler


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


class _BoundedAnswers(ResponseHandler):
    """The client's side of one connection."""

    def __init__(self, bytes_max: int, *, loop: Any) -> None:
        super().__init__(loop)
        self._bytes_max = self._bytes_left = bytes_max

    def set_response_params(self, **parameters: Any) -> None:
        """Begin to read the answer to the next request."""
        self._bytes_left = self._bytes_max
        super().set_response_params(**parameters)

    def set_parser(self, *parser: Any, **options: Any) -> None:
        """Begin to read frames; those that came behind the head are counted when they are read."""
        self._bytes_left += len(self._tail)
        super().set_parser(*parser, **options)

    def data_received(self, data: bytes) -> None:
        """Parse no more than what is left, and end the connection when nothing is."""
        read = data[: self._bytes_left]
        left = self._bytes_left - len(read)
        super().data_received(read)  # calls this again for what follows the consent to a WebSocket
        self._bytes_left = left
        if not self._bytes_left and self.transport is not None:
            self.transport.abort()
