"""The growth of a log: its size, measured once a minute, over the last day."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from actors.host.clock import Clock
from actors.host.log_outage import reason
from eventstore.log.errors import LogError
from eventstore.log.event_log import EventLog

_LOG = logging.getLogger(__name__)
_LOOK_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_LEAST_MS: Final = 600_000
"""A rate over a shorter time is chance: files grow in steps."""


class Growth:
    """The sizes of a log over the last day; one thread measures, any may read the rate."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._seen: deque[tuple[int, int]] = deque()
        self.bytes_per_day: float | None = None
        """The recent growth of the log, scaled to a day; None in the first ten minutes."""

    def look(self) -> None:
        """Measure the size of the log, unless the last time is less than a minute ago.

        If it cannot be measured now, the rate stays as it is until the next look.
        """
        now_ms, seen = self._clock(), self._seen
        if seen and 0 <= now_ms - seen[-1][0] < _LOOK_MS:
            return
        if seen and now_ms < seen[-1][0]:
            seen.clear()  # the clock went back
        try:
            used_bytes = self._log.storage().used_bytes
        except LogError as error:
            _LOG.warning("the size of the log is not known: %s", reason(error))
            return
        seen.append((now_ms, used_bytes))
        while seen[0][0] < now_ms - _DAY_MS:
            seen.popleft()
        (first_ms, first), (last_ms, last) = seen[0], seen[-1]
        passed_ms = last_ms - first_ms
        if passed_ms >= _LEAST_MS:
            self.bytes_per_day = (last - first) * _DAY_MS / passed_ms
