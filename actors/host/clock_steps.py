"""Notices a wall clock that steps, so that nothing expires by a clock that is ahead for a while.

What expires is removed for good. A time service, an operator or a machine without a good clock of
its own may put the clock ahead by hours or years and correct it soon. So a step ahead does not
count for what expires until it has lasted; meanwhile time goes on as the machine counts it. All
else follows the wall clock at once, because it can be undone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from actors.host.clock import Clock, uptime_s
from eventstore.log.codec import decode
from eventstore.log.errors import LogError
from eventstore.log.event_log import LogReader
from eventstore.log.events import SEAL_TOPIC

_LOG = logging.getLogger(__name__)
_STEP_MS: Final = 60_000
"""A time service corrects less than this without a step; nothing that expires is that exact."""
_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 1024 * 1024
_PAGES_MAX: Final = 16
"""A start seals each shard, and a question of a client its nonce, without a record between them."""


class ClockSteps:
    """The steps of one wall clock since this was made; any thread may ask."""

    def __init__(
        self,
        clock: Clock,
        settles_s: float,
        *,
        newest_ms: int | None = None,
        uptime_s: Callable[[], float] = uptime_s,
    ) -> None:
        """A step ahead counts once it has lasted ``settles_s``; 0 is at once.

        ``clock`` tells Unix milliseconds, ``uptime_s`` seconds that pass whatever the clock does.
        ``newest_ms`` is the time of the newest record, if there is one: a clock that shows a later
        time at the start may be ahead, so the time since then is such a step.
        """
        self._clock, self._uptime_s, self._settles_s = clock, uptime_s, settles_s
        self._turn = threading.Lock()
        self._steps: list[tuple[int, float]] = []
        """The steps ahead that do not count yet: when the machine started by the clock after the
        step, in Unix milliseconds, and the uptime at the step. Each is later than the one before.
        """
        now_s, self._started_ms = self._look()
        since_ms = 0 if newest_ms is None else clock() - newest_ms
        if since_ms <= -_STEP_MS:
            _LOG.warning(
                "the clock of this machine is %s s behind the newest record: unless it was ahead"
                " then, what is recorded now expires earlier by as much",
                round(-since_ms / 1000),
            )
        if settles_s and since_ms >= _STEP_MS:
            self._steps.append((self._started_ms, now_s))
            self._started_ms -= since_ms
            _LOG.info(
                "the newest record is %s s old: nothing expires by the time since then for %s s",
                round(since_ms / 1000),
                round(settles_s),
            )

    def ahead_ms(self) -> int:
        """By how many milliseconds the clock has stepped ahead if that does not count yet, else 0.

        Logs each step as a warning.
        """
        with self._turn:
            now_s, started_ms = self._look()
            ahead_ms = started_ms - self._started_ms
            if ahead_ms < _STEP_MS:
                self._say_back(ahead_ms)
                self._started_ms, self._steps = started_ms, []
                return 0
            # Later steps do not make an earlier one wait longer: a machine may have one each hour.
            self._steps = [step for step in self._steps if step[0] - started_ms < _STEP_MS]
            if not self._steps or started_ms - self._steps[-1][0] >= _STEP_MS:
                self._steps.append((started_ms, now_s))
                _LOG.warning(
                    "the clock of this machine went ahead by %s s: until that has lasted %s s,"
                    " nothing expires by it",
                    round(ahead_ms / 1000),
                    round(self._settles_s),
                )
            while self._steps and now_s - self._steps[0][1] >= self._settles_s:
                self._started_ms, _ = self._steps.pop(0)
            if self._steps:
                return started_ms - self._started_ms
            _LOG.info("what expires follows the clock of this machine again")
            self._started_ms = started_ms
            return 0

    def _look(self) -> tuple[float, int]:
        """The uptime, and when the machine started by the wall clock, in Unix milliseconds."""
        now_s = self._uptime_s()
        return now_s, self._clock() - round(now_s * 1000)

    def _say_back(self, ahead_ms: int) -> None:
        if self._steps:
            _LOG.warning("the clock of this machine is back from its step ahead")
        elif ahead_ms <= -_STEP_MS:
            _LOG.warning("the clock of this machine was set back by %s s", round(-ahead_ms / 1000))


def newest_ms(log: LogReader) -> int | None:
    """When the newest record of a log was made, in Unix milliseconds; None if that is unknown.

    Seals do not count: after a clock that was ahead their times stay there until it has caught up.
    But where thousands of questions were sealed since that record, it is the earliest of their
    times: a later one may be by a clock that was ahead.
    """
    earliest_ms: int | None = None
    with suppress(LogError):
        until = log.position()
        for _ in range(_PAGES_MAX):
            after = max(0, until - _PAGE_ROWS)
            rows = log.read_rows(after=after, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES)
            records = [row for row in rows if row.topic != SEAL_TOPIC]
            if records or not after:
                return decode(records[-1].topic, records[-1].state).at_ms if records else None
            sealed_ms = (decode(row.topic, row.state).at_ms for row in rows)
            earliest_ms = min(sealed_ms, default=earliest_ms)
            until = after
    return earliest_ms
