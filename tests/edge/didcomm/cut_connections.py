"""A proxy before the mediator that cuts the connection of one message, on its way there or back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Final

_HEAD_ENDS: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"


class Cut(Enum):
    """What happens to one message and its answer."""

    LOST = auto()
    """The message never arrives."""
    CUT_OFF_IN_HEAD = auto()
    """A part of its head arrives."""
    CUT_OFF = auto()
    """Its head and a part of it arrive."""
    CUT_OFF_AT_LAST = auto()
    """All but its last byte arrives."""
    UNANSWERED = auto()
    """It arrives, and its answer is lost."""
    ANSWER_CUT_OFF = auto()
    """A part of the answer arrives."""
    ANSWER_CUT_OFF_AT_LAST = auto()
    """All but the last byte of the answer arrives."""
    REPEATED = auto()
    """It arrives twice, and is answered once."""


_ARRIVING: Final = frozenset({Cut.CUT_OFF_IN_HEAD, Cut.CUT_OFF, Cut.CUT_OFF_AT_LAST})


class CuttingProxy:
    """Passes each message on in a connection of its own, but for the one that is to be cut."""

    def __init__(self, port: int) -> None:
        """A proxy before the mediator on this port."""
        self._port = port
        self._cut: tuple[int, Cut] | None = None
        self.passed = 0
        """Messages since the last order that could be cut."""
        self.was_cut = False
        """Was the message cut that the last order was about?"""

    def cut(self, number: int, how: Cut) -> None:
        """Cut the message with this number, counted from 1 and from now; 0 is none."""
        self.passed, self._cut, self.was_cut = 0, (number, how), False

    def pass_all(self) -> None:
        """Cut and count nothing more."""
        self._cut = None

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Listen on a port of its own."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        async with server:
            yield

    async def _serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        try:
            message = await _message(client)
            number, how = self._cut or (0, None)
            self.passed += self._cut is not None
            is_meant = number > 0 and number == self.passed
            self.was_cut |= is_meant
            back = await self._through(message, how if is_meant else None)
            answer.write(back)
            await answer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            answer.close()

    async def _through(self, message: bytes, how: Cut | None) -> bytes:
        """What comes back for a message."""
        if how is Cut.LOST:
            return b""
        if how in _ARRIVING:
            head = message.index(_HEAD_ENDS) + len(_HEAD_ENDS)
            arriving = {
                Cut.CUT_OFF_IN_HEAD: head // 2,
                Cut.CUT_OFF: (head + len(message)) // 2,
                Cut.CUT_OFF_AT_LAST: len(message) - 1,
            }
            await self._exchange(message[: arriving[how]], is_whole=False)
            return b""
        back = await self._exchange(message)
        if how is Cut.REPEATED:
            back = await self._exchange(message)
        if how is Cut.UNANSWERED:
            return b""
        kept = {Cut.ANSWER_CUT_OFF: len(back) // 2, Cut.ANSWER_CUT_OFF_AT_LAST: len(back) - 1}
        return back if how is None else back[: kept.get(how)]

    async def _exchange(self, sent: bytes, *, is_whole: bool = True) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(sent)
            if not is_whole:
                writer.write_eof()
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def _message(client: asyncio.StreamReader) -> bytes:
    """One request whose sender closes its connection afterwards."""
    head = await client.readuntil(_HEAD_ENDS)
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(_LENGTH)]
    size = int(lengths[0].removeprefix(_LENGTH)) if lengths else 0
    return head + await client.readexactly(size)
