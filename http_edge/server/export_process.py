"""The parent's side of the exporting process of a mediator: start it, watch it, end it.

The export runs in a process of its own, so that its work does not slow down the hosts and edges,
and its end does not end the mediator. The parent imports nothing of the export: pyarrow would take
48 MB of its memory.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

from actors.host.clock import system_clock
from http_edge.server.child_process import run_child
from http_edge.server.export_status import Reporter
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
_RESTART_S: Final = 5.0
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
                how = "could not be started" if code is None else f"ended with code {code}"
                _LOG.error("the exporting process %s", how)
                # The child may have ended without a report, and the next one may end so too.
                reporter = Reporter(self._settings.data_dir, system_clock, self._database)
                reporter.on_fault(ChildProcessError(f"the exporting process {how}"))
                await asyncio.wait({stopped}, timeout=_RESTART_S)
