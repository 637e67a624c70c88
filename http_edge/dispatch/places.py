"""Places in pools of limited size that end by time, so that hosts that hang do not keep them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager


@asynccontextmanager
async def place_in(pool: asyncio.Semaphore, seconds_max: float) -> AsyncIterator[None]:
    """Wait for a place in ``pool``, and keep it while the block runs, for ``seconds_max`` at most.

    After that others get the place, and the block runs on beside them: what it waits for has a
    bound of its own (``limits.host_call_s_max``).
    """
    await pool.acquire()
    with ExitStack() as place:
        place.callback(pool.release)
        ends = asyncio.get_running_loop().call_later(seconds_max, place.close)
        place.callback(ends.cancel)
        yield
