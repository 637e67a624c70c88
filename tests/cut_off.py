"""Work that is cut off at one of its awaits, as the end of its socket or its process does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any


class _CutOff:
    """Work whose task is cancelled at its await number ``at``, from 1."""

    def __init__(self, work: Coroutine[Any, Any, object], at: int) -> None:
        self._work, self._left = work, at

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], object] = partial(self._work.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration:
                return
            self._left -= 1
            if not self._left and (task := asyncio.current_task()) is not None:
                task.cancel()
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - the work decides what comes of it
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, None)


async def cut_off(work: Coroutine[Any, Any, object], at: int) -> bool:
    """Do this work in a task, and cancel it at an await; False if it ended before."""

    async def run() -> None:
        await _CutOff(work, at)

    task = asyncio.create_task(run())
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return task.cancelled()
