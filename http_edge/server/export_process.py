"""The parent's side of the exporting process of a mediator: start it, watch it, end it.

The export runs in a process of its own, so that its work does not slow down the hosts and edges,
and its end does not end the mediator. The parent imports nothing of the export: pyarrow would take
48 MB of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

from actors.host.clock import system_clock
from http_edge.server.export_status import Reporter
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
_RESTART_S: Final = 5.0
_STOP_S_MAX: Final = 10.0
CHILD: Final = (sys.executable, "-c", "from http_edge.server.exporting import main; main()")
"""The command of the child; its settings come as one line of JSON on stdin."""


class ExportProcess:
    """The child process of ``poste serve`` that exports to ``settings.export.to``."""

    def __init__(self, settings: Settings, database: int | None = None) -> None:
        """A child for the log in ``settings``; ``database`` is its number if there are several."""
        self._settings = settings
        self._database = database
        self._child = CHILD if database is None else (*CHILD, str(database))

    async def run(self, stopping: asyncio.Event) -> None:
        """Keep the child running until ``stopping`` is set; then end it and wait for its end."""
        settings_line = self._settings.model_dump_json().encode() + b"\n"
        stopped = asyncio.create_task(stopping.wait())
        while not stopping.is_set():
            code = await run_child(self._child, settings_line, stopped)
            if not stopping.is_set():
                _LOG.error("the exporting process ended", extra={"code": code})
                # The child may have ended without a report, and the next one may end so too.
                reporter = Reporter(self._settings.data_dir, system_clock, self._database)
                reporter.on_fault(
                    ChildProcessError(f"the exporting process ended with code {code}")
                )
                await asyncio.wait({stopped}, timeout=_RESTART_S)


async def run_child(
    command: Sequence[str], settings_line: bytes, stopped: asyncio.Task[Any]
) -> int | None:
    """Run a child process until it ends by itself or ``stopped`` is done; return its exit code.

    The child gets its settings on stdin; the end of stdin tells it to end, within some seconds.
    """
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
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
