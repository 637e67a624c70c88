"""The parent's side of archiving beside a serving mediator: a child process for each round.

Rounds run in processes of their own, so that the work does not slow down the hosts and edges. The
process ends with its round: between two rounds archiving takes no memory.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

from http_edge.server.child_process import run_child
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
FIRST_S: Final = 60.0
"""Time from the start of the mediator to the first round: by then its clients are back."""
CHILD: Final = (sys.executable, "-c", "from http_edge.server.archive_round import main; main()")
"""The command of the child; its settings come as one line of JSON on stdin."""


class ArchiveProcess:
    """Starts a round of archiving from time to time."""

    def __init__(
        self, settings: Settings, database: int | None = None, first_s: float = FIRST_S
    ) -> None:
        """Archiving of the log in ``settings``; the first round begins after ``first_s`` at most.

        ``database`` is the number of the log's database if there are several.
        """
        self._settings = settings
        self._child = CHILD if database is None else (*CHILD, str(database))
        self._first_s = first_s

    async def run(self, stopping: asyncio.Event) -> None:
        """Start rounds until ``stopping`` is set, which also ends a round under way."""
        settings_line = self._settings.model_dump_json().encode() + b"\n"
        every_s = self._settings.archive.every_s
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({stopped}, timeout=min(self._first_s, every_s))
        while not stopping.is_set():
            code = await run_child(self._child, settings_line, stopped)
            if code and not stopping.is_set():
                _LOG.error("the archiving process ended", extra={"code": code})
            await asyncio.wait({stopped}, timeout=every_s)
