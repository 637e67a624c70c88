"""A child process of ``poste serve``: how its parent runs it, and how it begins.

The child gets its settings as one line of JSON on stdin. The end of stdin tells it to end, so it
ends with its parent, however the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from http_edge.settings.settings import Settings
from http_edge.telemetry.logs import configure

_LOG = logging.getLogger(__name__)
_STOP_S_MAX: Final = 10.0


async def run_child(
    command: Sequence[str], settings_line: bytes, stopped: asyncio.Task[Any]
) -> int | None:
    """Run a child process until it ends by itself or ``stopped`` is done; return its exit code.

    The child has some seconds to end after the end of its stdin. If the system cannot start a
    process now, that is logged, and the result is None.
    """
    try:
        child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    except OSError as error:
        _LOG.error("a child process could not be started: %s", error)
        return None
    ended = asyncio.create_task(child.wait())
    try:
        assert child.stdin is not None
        with contextlib.suppress(ConnectionError):
            child.stdin.write(settings_line)
            await child.stdin.drain()
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        child.stdin.close()
        await asyncio.wait({ended}, timeout=_STOP_S_MAX)
    finally:
        if child.returncode is None:
            # Nothing is lost: only what the child has committed counts.
            child.kill()
        await ended
    return child.returncode


class Child(NamedTuple):
    """What a child process works with; ``stopping`` is set when its parent tells it to end.

    ``database`` is the number of the log's database if there are several.
    """

    settings: Settings
    database: int | None
    stopping: threading.Event


def begin_child(process: str, *, niceness: int) -> Child:
    """Begin as the child process of this name."""
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    configure(settings.log_level, process=process)
    os.nice(niceness)
    stopping = threading.Event()
    # Ctrl-C reaches the whole group of processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_until_end, args=(sys.stdin.fileno(), stopping), daemon=True).start()
    (database,) = map(int, sys.argv[1:]) if sys.argv[1:] else (None,)
    return Child(settings, database, stopping)


def _until_end(pipe: int, stopping: threading.Event) -> None:
    # Not a buffered reader: Python needs its lock if this process ends before the pipe does.
    while os.read(pipe, 1):
        pass
    stopping.set()
