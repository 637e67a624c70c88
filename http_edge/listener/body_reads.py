"""Schedule the reading of bodies: small ones in batches on the event loop, large ones in a thread.

The time to decrypt or verify a body depends on what the processor has just done. Between two bodies
an edge parses requests, writes answers and talks to hosts, and so little of the code and data for a
body is left in the CPU caches: an envelope of DIDComm v2 took 165 µs in a busy edge and 78 µs in a
loop of nothing but envelopes. So the bodies that arrive in one turn of the event loop wait for the
next turn, and are read one after the other there.

The thread reads one body at a time, so that the event loop serves other requests meanwhile. The
interpreter runs one thread at a time in turn: one reading thread delays the event loop by a few
milliseconds now and then, and each further thread would delay it by as much. Client addresses take
turns at the thread, equal bytes for each: what one sends without end delays itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from http_edge.dispatch.slots import TurnSlots
from http_edge.listener.address_charge import paying_address

LARGE_BYTES: Final = 32_768
"""Reading the worst body of this size (3,600 objects of one fraction each) and writing its
canonical form takes 6 ms, verifying it as a contract 1 ms more. The rate of an address allows 40
unproven ones a second."""
_AT_ONCE_S: Final = 0.005
"""Time for which bodies are read before the event loop does its other work, then those left."""
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
_AT_THREAD_MAX: Final = 2
"""One is read, and the next one is there as soon as the thread is free, however busy the event loop
is."""
_SLOTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, TurnSlots]] = WeakKeyDictionary()
_T = TypeVar("_T")


async def in_reading_thread(work: Callable[[], _T], size_bytes: int = LARGE_BYTES) -> _T:
    """Run ``work`` on a body of this size in the thread for large ones; return its result.

    It waits for its turn: as many bytes for each address that pays for a request.
    """
    loop = asyncio.get_running_loop()
    slots = _SLOTS.setdefault(loop, TurnSlots(_AT_THREAD_MAX))
    async with slots.slot(paying_address(), size_bytes):
        return await loop.run_in_executor(_READER, copy_context().run, work)


class _Read(NamedTuple):
    work: Callable[[], Any]
    context: Context
    done: asyncio.Future[Any]


class BodyReads:
    """Reads the bodies of one event loop."""

    def __init__(self, *, now_s: Callable[[], float] = perf_counter) -> None:
        self._waiting: deque[_Read] = deque()
        self._now_s = now_s

    async def read(self, size_bytes: int, work: Callable[[], _T]) -> _T:
        """Run ``work`` on a body of this size; return its result or raise its exception."""
        if size_bytes > LARGE_BYTES:
            return await in_reading_thread(work, size_bytes)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._read_all)
        self._waiting.append(_Read(work, copy_context(), done))
        return await done

    def _read_all(self) -> None:
        until_s = self._now_s() + _AT_ONCE_S
        while self._waiting:
            work, context, done = self._waiting.popleft()
            if done.cancelled():
                continue
            try:
                done.set_result(context.run(work))
            except Exception as error:  # noqa: BLE001 - raised to the caller of ``read``
                done.set_exception(error)
            if self._waiting and self._now_s() >= until_s:
                asyncio.get_running_loop().call_soon(self._read_all)
                return
