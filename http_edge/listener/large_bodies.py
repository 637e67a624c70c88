"""Large bodies are read beside the event loop, one at a time, so that others are served meanwhile.

The interpreter runs one thread at a time and gives each its turn: one thread that reads costs the
event loop a few milliseconds now and then, and several would cost it as much each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

LARGE_BYTES: Final = 32_768
"""The worst body of this size takes about 4 ms to read and to write in canonical form."""
_T = TypeVar("_T")
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")


async def read_apart(work: Callable[[], _T]) -> _T:
    """Do the work on a body of more than ``LARGE_BYTES`` beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_READER, copy_context().run, work)
