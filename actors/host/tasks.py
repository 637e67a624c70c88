"""Tasks that run concurrently with their caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar

_T = TypeVar("_T")


class Tasks:
    """Holds references to tasks until they are done: the event loop itself keeps none."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def run(
        self, work: Coroutine[Any, Any, _T], context: Context | None = None
    ) -> asyncio.Task[_T]:
        """Run ``work`` in a task, with the caller's context variables unless it gets others."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter([*self._under_way])

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self:
            task.cancel()

    async def finish(self) -> None:
        """Wait for all tasks, and for those that they begin."""
        while under_way := [*self._under_way]:
            await asyncio.gather(*under_way)
            # Their callbacks need a turn of the loop, which ``gather`` skips if all were done.
            self._under_way.difference_update(under_way)
