"""The span of time that views cover, divided into a bounded number of bins.

All times are Unix milliseconds, ranges half open: ``since <= at < until``. Bins begin at whole
multiples of their length since 1970 in UTC, so that two spans over one log have the same bins. A
span begins with a whole bin. A bin is marked as not complete if the export lacks a part of it: so a
log that is exported once a minute does not seem to break down in the last bin.
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
"""The most points that a plot of a page can show."""
LENGTHS_MS: Final = (
    *(MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS),
    *(7 * DAY_MS << doubled for doubled in range(24)),
)
LATEST_MS: Final = round(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""Plots show no time after the year 9999, and a bin may end long after its span."""
WITHIN_MS: Final = 5 * MINUTE_MS
"""A wallet that is in use asks for messages at least this often."""


class NoSuchTime(ProjectionError):
    """The given span of time is empty."""

    exit_code = USAGE


@dataclass(frozen=True)
class Span:
    """A non-empty range of time, the length of its bins, and how far the export is complete."""

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
            since_ms: where the span begins; its bin is taken whole.
            until_ms: the end of the span, exclusive; later than ``since_ms``.
            complete_ms: until when the export is complete.
            within_ms: see ``projections.views.view.SPAN_COLUMNS``.
            is_open: ``until_ms`` is just after the last event: the last bin is taken whole, too, as
                far as the export is complete.
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
        """The span from one time until another, by default from the log's beginning to its end.

        Args:
            first_ms: when the first event was recorded; None if there is none.
            last_ms: when the last event was recorded; None if there is none.
            complete_until_ms: until when the export is complete, as it says; None if it says
                nothing: then the time up to the last event counts as complete.
            since_ms: where the span begins; before 1970, or None, for the first event.
            until_ms: the end of the span, exclusive; after ``LATEST_MS``, or None, for the last
                event.
            within_ms: see ``over``.

        Returns:
            The span; None if an end is not given and there are no events.

        Raises:
            NoSuchTime: ``until_ms`` is not after ``since_ms``.
        """
        if last_ms is not None and complete_until_ms is None:
            complete_until_ms = last_ms
        if until_ms is not None and until_ms > LATEST_MS:
            until_ms = None
        begin_ms = first_ms if since_ms is None or since_ms < 0 else since_ms
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
    """The number of bins; the first begins at or before ``since_ms``."""
    return -((since_ms // length_ms * length_ms - until_ms) // length_ms)


NO_EVENTS: Final = Span.over(0, 1, 0)
"""The span for an export without events; it contains nothing."""
