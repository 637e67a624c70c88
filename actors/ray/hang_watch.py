"""Ends a host or an edge that hangs: Ray starts a process again when it has ended, and only then.

A process hangs if none of its Python code runs any more: it was stopped, or a call within a library
does not return and lets no other thread run. An edge also hangs if its event loop does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from ray import exceptions as ray_errors

_LOG = logging.getLogger(__name__)
_PAUSE_S: Final = 5.0
"""Between an answer and the next question: a question costs both processes together 6 ms of CPU."""
_LOOK_S: Final = 1.0


def kill(process: int) -> None:
    """Kill a process by its number.

    Raises:
        ProcessLookupError: it has ended.
    """
    os.kill(process, signal.SIGKILL)


async def keep_answering(
    name: str,
    ask: Callable[[], Awaitable[int]],
    silent_s_max: float,
    kill: Callable[[int], None] = kill,
) -> None:
    """Ask a process again and again, and kill it if it does not answer; run until cancelled.

    Seconds are counted one by one, as this process lives through them: if the whole machine was
    paused or busy, the time until it goes on counts as one. A process that starts is not killed,
    because a start has no bound: it may wait for the log, or read a long one. Ray itself would let
    a process end in order first, which takes 5 s if it hangs, and it might be the next one by then.

    Args:
        name: of the process, for the log.
        ask: asks for the number of the process, by a question that waits neither for the log nor
            for a client. It raises ``RayError`` if the process has ended or is being started again.
        silent_s_max: how long a process that has answered before may be silent.
        kill: kills the process with this number.
    """
    process: int | None = None
    while True:
        answer = asyncio.ensure_future(ask())
        silent_s = 0.0
        try:
            while not (await asyncio.wait({answer}, timeout=_LOOK_S))[0]:
                silent_s += _LOOK_S
                if process is not None and silent_s >= silent_s_max:
                    kill(process)
                    _LOG.error("%s hangs: it is killed and started again", name)
                    silent_s = 0.0
            process = await answer
        except (ProcessLookupError, ray_errors.RayError):
            # It has ended, between two questions perhaps: another process may get its number.
            process = None
        finally:
            answer.cancel()
        await asyncio.sleep(_PAUSE_S)
