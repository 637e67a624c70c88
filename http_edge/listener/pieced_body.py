"""Read large request bodies in one thread, and write large answers in pieces.

The thread reads one body at a time, so that the event loop serves other requests meanwhile. The
interpreter runs one thread at a time in turn: one reading thread delays the event loop by a few
milliseconds now and then, and each further thread would delay it by as much.

A piece of an answer leaves when the client has read most of the pieces before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, Protocol, TypeVar, cast, runtime_checkable

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_writer import StreamWriter
from aiohttp.payload import Payload
from typing_extensions import override

_T = TypeVar("_T")
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")


async def read_apart(work: Callable[[], _T]) -> _T:
    """Run the work on a large body in the reading thread."""
    return await asyncio.get_running_loop().run_in_executor(_READER, copy_context().run, work)


@runtime_checkable
class WritesInPieces(Protocol):
    """A connection of this edge, as an answer in pieces sees it."""

    def write_in_pieces(self, left_bytes: Callable[[], int] | None) -> None:
        """Count the unwritten rest of an answer in pieces; None when the answer is written."""


class PiecedBody(Payload):
    """A body in pieces; frees each piece as soon as it is written."""

    _value: deque[bytes]

    def __init__(self, pieces: Iterable[bytes], *, content_type: str) -> None:
        """A body that can be written once."""
        super().__init__(deque(pieces), content_type=content_type)
        self._size = sum(map(len, self._value))

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    @override
    async def write(self, writer: AbstractStreamWriter) -> None:
        # Unwritten pieces take memory as well as written ones that the client has not read.
        connection = cast("StreamWriter", writer).protocol
        assert isinstance(connection, WritesInPieces)
        connection.write_in_pieces(lambda: sum(map(len, self._value)))
        try:
            while self._value:
                await writer.write(self._value.popleft())
        finally:
            connection.write_in_pieces(None)

    @override
    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        await self.write(writer)
