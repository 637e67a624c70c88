"""What a process counts and times about its own work, cheap enough for every command.

A number costs an addition, a time a search among a few bounds; nothing is locked and nothing is
kept for each command. So each measure has one thread that writes it. Others may read it while it
changes: they see a moment between two numbers, never a broken one.
"""

from __future__ import annotations

import resource
from bisect import bisect_left
from pathlib import Path
from typing import Final

import msgspec

SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds of times: from a decoded envelope to the longest call to a host."""
ITEMS: Final = tuple(float(2**power) for power in range(11))
"""Bounds of numbers of items: 1 to 1,024, the most of one transaction."""
BYTES: Final = tuple(float(4**power) for power in range(4, 13))
"""Bounds of sizes: 256 bytes to 16 MiB."""
OTHER: Final = "other"
"""What is counted under when a tally has no room for one more kind."""
_PAGE_BYTES: Final = resource.getpagesize()


class Histogram(msgspec.Struct):
    """How many observations fell between which bounds; ``counts`` has one more, for the rest."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one observation, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


def histogram(bounds: tuple[float, ...]) -> Histogram:
    """A histogram that has seen nothing."""
    return Histogram(bounds, [0] * (len(bounds) + 1))


class Tally(msgspec.Struct):
    """Counts by kind; a kind is a few short names of ours, never text that somebody sent.

    Should that ever fail, the number of kinds is bounded all the same.
    """

    kinds_max: int = 1_024
    counts: dict[tuple[str, ...], int] = {}

    def add(self, *kind: str) -> None:
        """Count one of this kind."""
        counts = self.counts
        if kind not in counts and len(counts) >= self.kinds_max:
            kind = (OTHER,) * len(kind)
        counts[kind] = counts.get(kind, 0) + 1

    def of(self, *kind: str) -> int:
        """How many there were of this kind."""
        return self.counts.get(kind, 0)


class ProcessUse(msgspec.Struct, frozen=True):
    """What a process has taken from its machine: CPU seconds since its start, and memory now."""

    cpu_s: float
    resident_bytes: int


def process_use() -> ProcessUse:
    """What this process has taken."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return ProcessUse(used.ru_utime + used.ru_stime, int(pages) * _PAGE_BYTES)


class HostMeasures(msgspec.Struct, kw_only=True):
    """What a host measures; times in seconds.

    ``waited``: a batch, from its arrival to its transaction. ``transaction``: from the first
    command to the replies. ``commit``: the append within. ``items`` and ``batch_bytes`` are those
    of a transaction. ``commands`` are by type and result.
    """

    waited: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    transaction: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    commit: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    items: Histogram = msgspec.field(default_factory=lambda: histogram(ITEMS))
    batch_bytes: Histogram = msgspec.field(default_factory=lambda: histogram(BYTES))
    commands: Tally = msgspec.field(default_factory=Tally)
