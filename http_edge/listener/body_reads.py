"""When bodies are read: those that arrive together one after the other, large ones apart.

What a body takes to be decrypted or verified depends on what else the processor has just done. In
between two bodies an edge parses requests, writes answers and talks to hosts, and finds little of
what it needs for a body in the caches: an envelope of DIDComm v2 took 165 µs in a busy edge and 78
µs in a loop of nothing but envelopes. So bodies wait until all that have arrived are at hand, which
is the next turn of the event loop, and are read in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final, NamedTuple, TypeVar

from http_edge.listener.large_bodies import read_apart

LARGE_BYTES: Final = 32_768
"""The worst body of this size takes about 4 ms to read and to write in canonical form."""
_T = TypeVar("_T")


class _Read(NamedTuple):
    work: Callable[[], Any]
    context: Context
    done: asyncio.Future[Any]


class BodyReads:
    """Reads the bodies of one event loop."""

    def __init__(self) -> None:
        self._waiting: list[_Read] = []

    async def read(self, size_bytes: int, work: Callable[[], _T]) -> _T:
        """What ``work`` makes of a body of this size; it raises what that raises."""
        if size_bytes > LARGE_BYTES:
            return await read_apart(work)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._read_all)
        self._waiting.append(_Read(work, copy_context(), done))
        return await done

    def _read_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work, context, done in waiting:
            if done.cancelled():
                continue
            try:
                done.set_result(context.run(work))
            except Exception as error:  # noqa: BLE001 - the reader of this body gets it
                done.set_exception(error)
