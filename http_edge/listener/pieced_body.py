"""Large answers in pieces: a piece leaves when the client has read most of those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import cast

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_writer import StreamWriter
from aiohttp.payload import Payload
from typing_extensions import override

from http_edge.listener.connection import Connection


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
        assert isinstance(connection, Connection)
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
