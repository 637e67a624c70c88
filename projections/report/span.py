"""The time that a report is about, cut into a bounded number of bins.

All times are Unix milliseconds, ranges half open: ``since <= at < until``. Bins begin at whole
multiples of their length since 1970 in UTC, so that two reports over one log have the same bins;
the first and the last bin may stick out of the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
BINS_MAX: Final = 400
"""More points than this a plot of a page cannot show."""
VOLUME_MS: Final = (MINUTE_MS, HOUR_MS, DAY_MS)
"""Lengths of bins for what is counted: read in hours and days."""
STANDING_MS: Final = (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
"""Lengths of bins for how things stood at a time."""


@dataclass(frozen=True)
class Bins:
    """Bins of one length over a range. ``edges`` are one more than bins: since, …, until."""

    since_ms: int
    until_ms: int
    length_ms: int

    @property
    def origin_ms(self) -> int:
        """Where the first bin begins, at or before ``since_ms``."""
        return self.since_ms // self.length_ms * self.length_ms

    @property
    def count(self) -> int:
        """How many there are."""
        return -((self.origin_ms - self.until_ms) // self.length_ms)

    def index(self, at_ms: Column) -> Column:
        """The bin of a time inside the range, from 0."""
        return F.floor((at_ms - F.lit(self.origin_ms)) / F.lit(self.length_ms)).cast("int")

    def start_ms(self, index: Column) -> Column:
        """When a bin begins."""
        return F.lit(self.origin_ms) + index.cast("long") * F.lit(self.length_ms)

    def edge_after(self, at_ms: Column) -> Column:
        """The first edge that a time before ``until_ms`` lies before."""
        inside = self.index(at_ms) + F.lit(1)
        return F.when(at_ms < F.lit(self.since_ms), F.lit(0)).otherwise(inside)

    def edge_upto(self, at_ms: Column) -> Column:
        """The last edge at or before a time; -1 if it lies before the range, the last for null."""
        return (
            F.when(at_ms.isNull() | (at_ms >= F.lit(self.until_ms)), F.lit(self.count))
            .when(at_ms < F.lit(self.since_ms), F.lit(-1))
            .otherwise(self.index(at_ms))
        )

    def edge_ms(self, edge: Column) -> Column:
        """The time of an edge."""
        return F.greatest(F.lit(self.since_ms), F.least(F.lit(self.until_ms), self.start_ms(edge)))


@dataclass(frozen=True)
class Span:
    """A range of time that is not empty."""

    since_ms: int
    until_ms: int

    @property
    def volume(self) -> Bins:
        """Bins for what is counted."""
        return self._bins(VOLUME_MS)

    @property
    def standing(self) -> Bins:
        """Bins for how things stood at their edges."""
        return self._bins(STANDING_MS)

    def holds(self, at_ms: Column) -> Column:
        """Whether a time is in the range."""
        return (at_ms >= F.lit(self.since_ms)) & (at_ms < F.lit(self.until_ms))

    def _bins(self, lengths_ms: Sequence[int]) -> Bins:
        length_ms = lengths_ms[-1]
        wider = [*lengths_ms, *(7 * DAY_MS << doubled for doubled in range(24))]
        for length_ms in wider:
            bins = Bins(self.since_ms, self.until_ms, length_ms)
            if bins.count <= BINS_MAX:
                return bins
        return Bins(self.since_ms, self.until_ms, length_ms)
