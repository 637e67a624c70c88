"""The process that lets old rows leave beside a serving mediator: one for each round.

A process of its own, so that the work does not slow down the hosts and edges, and one that ends:
between two rounds it takes no memory.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

from http_edge.server.export_process import run_child
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
FIRST_S: Final = 60.0
"""After the start of the mediator, when its clients have come back."""
CHILD: Final = (sys.executable, "-c", "from http_edge.server.archive_round import main; main()")
"""The command of the child; its settings come as one line of JSON on stdin."""


class ArchiveProcess:
    """Starts a round of archiving from time to time."""

    def __init__(
        self, settings: Settings, database: int | None = None, first_s: float = FIRST_S
    ) -> None:
        """One for the log in ``settings``, whose first round begins after ``first_s`` at most.

        It is one database of several where it has a number.
        """
        self._settings = settings
        self._child = CHILD if database is None else (*CHILD, str(database))
        self._first_s = first_s

    async def run(self, stopping: asyncio.Event) -> None:
        """Start rounds until ``stopping`` is set; one that is under way ends then."""
        settings_line = self._settings.model_dump_json().encode() + b"\n"
        every_s = self._settings.archive.every_s
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({stopped}, timeout=min(self._first_s, every_s))
        while not stopping.is_set():
            code = await run_child(self._child, settings_line, stopped)
            if code and not stopping.is_set():
                _LOG.error("the archiving process ended", extra={"code": code})
            await asyncio.wait({stopped}, timeout=every_s)
