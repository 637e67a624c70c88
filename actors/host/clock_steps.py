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
from typing import Final

from actors.host.clock import Clock, uptime_s

_LOG = logging.getLogger(__name__)
_STEP_MS: Final = 60_000
"""A time service corrects less than this without a step; nothing that expires is that exact."""


class ClockSteps:
    """The steps of one wall clock since this was made; any thread may ask."""

    def __init__(
        self, clock: Clock, settles_s: float, uptime_s: Callable[[], float] = uptime_s
    ) -> None:
        """A step ahead counts once it has lasted ``settles_s``; 0 is at once.

        ``clock`` tells Unix milliseconds, ``uptime_s`` seconds that pass whatever the clock does.
        """
        self._clock, self._uptime_s, self._settles_s = clock, uptime_s, settles_s
        self._turn = threading.Lock()
        self._started_ms = self._look()[1]
        self._step: tuple[int, float] | None = None

    def ahead_ms(self) -> int:
        """By how many milliseconds the clock has stepped ahead if that does not count yet, else 0.

        Logs each step as a warning.
        """
        with self._turn:
            now_s, started_ms = self._look()
            ahead_ms = started_ms - self._started_ms
            if ahead_ms < _STEP_MS:
                self._say_back(ahead_ms)
                self._started_ms, self._step = started_ms, None
                return 0
            if self._step is None or abs(ahead_ms - self._step[0]) >= _STEP_MS:
                self._step = ahead_ms, now_s
                _LOG.warning(
                    "the clock of this machine went ahead by %s s: until that has lasted %s s,"
                    " nothing expires by it",
                    round(ahead_ms / 1000),
                    round(self._settles_s),
                )
            if now_s - self._step[1] < self._settles_s:
                return ahead_ms
            _LOG.warning("what expires follows the clock of this machine again")
            self._started_ms, self._step = started_ms, None
            return 0

    def _look(self) -> tuple[float, int]:
        """The uptime, and when the machine started by the wall clock, in Unix milliseconds."""
        now_s = self._uptime_s()
        return now_s, self._clock() - round(now_s * 1000)

    def _say_back(self, ahead_ms: int) -> None:
        if self._step is not None:
            _LOG.warning("the clock of this machine is back from its step ahead")
        elif ahead_ms <= -_STEP_MS:
            _LOG.warning("the clock of this machine was set back by %s s", round(-ahead_ms / 1000))
