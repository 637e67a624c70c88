"""Slots in pools of limited size: some end by time, others are taken in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from actors.core.turns import Turns


@contextmanager
def counted(counts: Counter[str], name: str) -> Iterator[None]:
    """Count a name within the block; forget it when its count is zero."""
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


@asynccontextmanager
async def slot_in(pool: asyncio.Semaphore, seconds_max: float) -> AsyncIterator[None]:
    """Wait for a slot in ``pool``, and keep it while the block runs, for ``seconds_max`` at most.

    So hosts that hang do not keep slots. After that others get the slot, and the block runs on
    beside them: what it waits for has a bound of its own (``limits.host_call_s_max``).
    """
    await pool.acquire()
    with ExitStack() as slot:
        slot.callback(pool.release)
        ends = asyncio.get_running_loop().call_later(seconds_max, slot.close)
        slot.callback(ends.cancel)
        yield


class TurnSlots:
    """Slots that those who wait get in turn, equal work for each (``actors.core.turns``).

    Whatever waits of others, the first item of one who came waits for what has a slot and for one
    item of each of them, and a later one besides for as much work of each as is before it.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: Turns[asyncio.Future[None]] = Turns()

    @asynccontextmanager
    async def slot(self, payer: Hashable, cost: float) -> AsyncIterator[None]:
        """Wait for a slot in the turn of ``payer``, for work of this cost; keep it in a block."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.put(payer, cost, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had its turn already
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            (turn,) = self._waiting.take(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
