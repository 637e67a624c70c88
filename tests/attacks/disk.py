"""How long the disk takes beside a phase, by a writer of as little and as often as the pair.

A disk that stands still, because its machine shares it with others, is felt by all who commit. So
a phase beside which it did says nothing about an attack, and is measured again.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from pathlib import Path
from typing import Final, Self

from http_edge.clients.load.closed_loop import percentile

DISK_P99_MS_MAX: Final = 10.0
"""Three times what a commit takes on a disk that does nothing else."""
_EVERY_S: Final = 0.05
_WRITTEN: Final = bytes(4_096)
_NS_PER_MS: Final = 1_000_000


class DiskWatch:
    """Writes a block in a folder 20 times a second within a block, each time until it is stored."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "watched"
        self._took_ns = array("Q")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disk", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def p99_ms(self) -> float:
        """99 of 100 writes took no longer; 0 where nothing could be written."""
        return percentile(sorted(self._took_ns), 99) / _NS_PER_MS if self._took_ns else 0.0

    def _watch(self) -> None:
        file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            while True:
                started_ns = time.perf_counter_ns()
                os.pwrite(file, _WRITTEN, 0)
                os.fsync(file)
                self._took_ns.append(time.perf_counter_ns() - started_ns)
                if self._over.wait(_EVERY_S):
                    return
        finally:
            os.close(file)
