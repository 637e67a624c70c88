"""A floor of free disk: below it a host takes only what frees some, or adds next to nothing.

A disk that is full stops everybody, also who would acknowledge and so make room. The floor stops
before that. It is looked at once a second at most, on the writer's thread, and left with some room
to spare, so that answers do not alternate from one command to the next.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

_LOG = logging.getLogger(__name__)
_LOOK_MS: Final = 1_000
_SPARE: Final = 1.125
"""So much more than the floor has to be free before everything is taken again."""
_PART_MAX: Final = 0.1
"""The floor is no more than this part of the disk: on a small one it would leave no room at all."""


class DiskSpace(msgspec.Struct, frozen=True):
    """What is free on the disk of a log for this process, and how large it is."""

    free_bytes: int
    total_bytes: int


MeasureDisk: TypeAlias = Callable[[], DiskSpace | None]
"""The disk now; None when that is not known, as for a database server elsewhere."""


def unknown_disk() -> DiskSpace | None:
    """Nothing is known: there is no floor."""
    return None


def disk_of(folder: Path) -> MeasureDisk:
    """Measures the disk that a folder is on."""

    def measure() -> DiskSpace | None:
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    return measure


class DiskFloor:
    """Says whether the disk is too full to take more."""

    def __init__(self, measure: MeasureDisk, free_bytes_min: int) -> None:
        """Nothing was measured yet; a ``free_bytes_min`` of 0 is no floor."""
        self._measure = measure
        self._free_bytes_min = free_bytes_min
        self._looked_ms: int | None = None
        self.free_bytes: int | None = None
        """As it was seen last; None where it is not known."""
        self.is_short = False

    def look(self, now_ms: int) -> bool:
        """Is the disk short now? Measured if the last time is a second ago; a change is logged."""
        if self._looked_ms is not None and abs(now_ms - self._looked_ms) < _LOOK_MS:
            return self.is_short
        self._looked_ms = now_ms
        space, before = self._measure(), self.is_short
        if space is None:
            self.free_bytes, self.is_short = None, False
        else:
            floor = min(self._free_bytes_min, space.total_bytes * _PART_MAX)
            self.free_bytes = space.free_bytes
            self.is_short = space.free_bytes < floor * (_SPARE if before else 1)
        if self.is_short and not before:
            _LOG.error("disk is nearly full: only what frees some is taken")
        elif before and not self.is_short:
            _LOG.warning("disk has room again: everything is taken")
        return self.is_short
