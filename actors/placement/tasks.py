"""Work that goes on beside its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Tasks:
    """Tasks that are held until they are over: the loop holds none."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._under_way: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin this."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def finish(self) -> None:
        """Wait for what is under way, and for what that begins."""
        while under_way := [*self._under_way]:
            await asyncio.gather(*under_way)
            # Their callbacks need a turn of the loop, which this does not give where all were done.
            self._under_way.difference_update(under_way)
