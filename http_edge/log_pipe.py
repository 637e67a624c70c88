"""One stream of log lines from all processes on this machine: the operator's stderr.

Ray sends the output of its workers to files of its own. So the main process opens a pipe, every
actor writes its lines there (lines below PIPE_BUF stay whole), and a thread copies them to stderr.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Final

from actors.ray_cluster import Prepare
from http_edge import event_logging

_CHUNK_BYTES: Final = 65_536


class LogPipe:
    """The reading end, in the main process."""

    def __init__(self) -> None:
        """A pipe that nobody has written to."""
        self._reading, self._writing = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        self._thread.start()

    def prepare(self, level: str) -> Prepare:
        """What an actor calls first, in its own process, so that its lines come here."""
        return partial(_log_to, f"/proc/{os.getpid()}/fd/{self._writing}", level)

    def _copy(self) -> None:
        while chunk := os.read(self._reading, _CHUNK_BYTES):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()


def _log_to(path: str, level: str, name: str) -> None:
    """Send this process's log lines to the pipe."""
    event_logging.configure(level, pipe=path, process=name)
