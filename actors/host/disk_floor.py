"""A floor of free disk: below it a host accepts only commands that store next to nothing.

A full disk stops all clients, even those whose acknowledgements would make room; the floor takes
effect before that. The host measures the disk at most once a second, on the writer's thread, and
resumes only with some room to spare, so that answers do not alternate between commands.
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
"""The host accepts all commands again when this multiple of the floor is free."""
_PART_MAX: Final = 0.1
"""The floor is at most this part of the disk: on a small disk it would leave no room at all."""


class DiskSpace(msgspec.Struct, frozen=True):
    """The bytes that this process may still use on the disk of a log, and the disk's size."""

    free_bytes: int
    total_bytes: int


MeasureDisk: TypeAlias = Callable[[], DiskSpace | None]
"""Measures the disk; None if it is unknown, such as for a database server elsewhere."""


def unknown_disk() -> DiskSpace | None:
    """The ``MeasureDisk`` of an unknown disk, which has no floor."""
    return None


def disk_of(folder: Path) -> MeasureDisk:
    """Make a ``MeasureDisk`` for the disk that a folder is on."""

    def measure() -> DiskSpace | None:
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    return measure


class DiskFloor:
    """Decides whether the disk is too full for more records."""

    def __init__(self, measure: MeasureDisk, free_bytes_min: int) -> None:
        """Start without a measurement; a ``free_bytes_min`` of 0 is no floor."""
        self._measure = measure
        self._free_bytes_min = free_bytes_min
        self._looked_ms: int | None = None
        self.free_bytes: int | None = None
        """The last measurement; None if unknown."""
        self.is_short = False

    def look(self, now_ms: int) -> bool:
        """Is the disk short? Measures again after a second, and logs a change."""
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
            _LOG.error("disk is nearly full: commands that store data are refused")
        elif before and not self.is_short:
            _LOG.warning("disk has room again: all commands are accepted")
        return self.is_short
