"""The time that views are about, cut into a bounded number of bins.

All times are Unix milliseconds, ranges half open: ``since <= at < until``. Bins begin at whole
multiples of their length since 1970 in UTC, so that two spans over one log have the same bins. A
span begins with a whole bin. A bin that the export does not have all of is not complete, and says
so: a log that is exported once a minute does not seem to break down in the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from projections.errors import USAGE, ProjectionError

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
BINS_MAX: Final = 400
"""More points than this a plot of a page cannot show."""
LENGTHS_MS: Final = (
    *(MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS),
    *(7 * DAY_MS << doubled for doubled in range(24)),
)
WITHIN_MS: Final = 5 * MINUTE_MS
"""A wallet that is in use asks for messages at least this often."""


class NoSuchTime(ProjectionError):
    """The time that was named ends before it begins."""

    exit_code = USAGE


@dataclass(frozen=True)
class Span:
    """A range of time that is not empty, the length of its bins, and how far the export goes."""

    since_ms: int
    until_ms: int
    complete_ms: int
    bin_ms: int
    within_ms: int = WITHIN_MS

    @classmethod
    def over(
        cls,
        since_ms: int,
        until_ms: int,
        complete_ms: int,
        *,
        within_ms: int = WITHIN_MS,
        is_open: bool = False,
    ) -> Self:
        """The span from ``since_ms`` to ``until_ms`` in at most ``BINS_MAX`` bins.

        Args:
            since_ms: where it begins; the bin is taken whole.
            until_ms: before which it ends; later than ``since_ms``.
            complete_ms: until when the export is complete.
            within_ms: see ``projections.views.view.SPAN_COLUMNS``.
            is_open: ``until_ms`` is just behind the last event: the bin is taken whole, too, as far
                as the export is complete.
        """
        bin_ms = next(
            (length for length in LENGTHS_MS if _bins(since_ms, until_ms, length) <= BINS_MAX),
            LENGTHS_MS[-1],
        )
        if is_open:
            whole_ms = since_ms // bin_ms * bin_ms + _bins(since_ms, until_ms, bin_ms) * bin_ms
            until_ms = max(until_ms, min(whole_ms, complete_ms))
        complete_ms = min(until_ms, complete_ms)
        return cls(since_ms // bin_ms * bin_ms, until_ms, complete_ms, bin_ms, within_ms)

    @classmethod
    def of_log(
        cls,
        first_ms: int | None,
        last_ms: int | None,
        complete_until_ms: int | None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        within_ms: int = WITHIN_MS,
    ) -> Self | None:
        """The span from one time until another; what is not named is where the log begins and ends.

        Args:
            first_ms: when the first event was recorded; None where there is none.
            last_ms: when the last one was.
            complete_until_ms: what the export says; None where it says nothing, and then all is
                taken for complete that is older than the last event.
            since_ms: where it begins, None for the first event.
            until_ms: before which it ends, None for the last event.
            within_ms: see ``over``.

        Returns:
            The span; None if it is not named and there are no events.

        Raises:
            NoSuchTime: ``until_ms`` is not after ``since_ms``.
        """
        if last_ms is not None and complete_until_ms is None:
            complete_until_ms = last_ms
        begin_ms = first_ms if since_ms is None else since_ms
        end_ms = last_ms if until_ms is None else until_ms - 1
        if begin_ms is None or end_ms is None:
            return None
        if end_ms < begin_ms:
            ends = [datetime.fromtimestamp(ms / 1000, UTC) for ms in (begin_ms, end_ms + 1)]
            shown = [at.isoformat(timespec="seconds") for at in ends]
            raise NoSuchTime(f"the time from {shown[0]} until {shown[1]} is empty")
        return cls.over(
            begin_ms,
            end_ms + 1,
            complete_until_ms or 0,
            within_ms=within_ms,
            is_open=until_ms is None,
        )

    @property
    def edges_ms(self) -> range:
        """The beginnings of all bins, and the end of the last one."""
        bins = _bins(self.since_ms, self.until_ms, self.bin_ms)
        return range(self.since_ms, self.since_ms + bins * self.bin_ms + 1, self.bin_ms)


def _bins(since_ms: int, until_ms: int, length_ms: int) -> int:
    """How many bins there are; the first begins at or before ``since_ms``."""
    return -((since_ms // length_ms * length_ms - until_ms) // length_ms)
