"""Compares the clock of this machine with the database's, which all nodes of a log share.

The database's time alone decides which hosts live, and no wrong clock lets a nonce in twice. But a
host takes times of events, ages for retention and the window of timestamps from its own clock: a
clock that is months ahead removes for good what has not expired, and one that is minutes behind
refuses honest commands. So a node with a wrong clock does not start, and a node whose clock drifts
away logs a warning.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing, suppress
from typing import Final

from actors.host.clock import Clock, system_clock
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLeases
from http_edge.server.exits import Exit, Stop

_LOG = logging.getLogger(__name__)
_LOOK_S: Final = 60.0


class ClockWatch:
    """Compares the clock of this machine with that of one database."""

    def __init__(self, leases: HostLeases, off_s_max: float, clock: Clock = system_clock) -> None:
        """With an ``off_s_max`` of 0 it compares nothing; ``clock`` returns Unix milliseconds."""
        self._leases, self._off_s_max, self._clock = leases, off_s_max, clock
        self._is_off = False

    def off_s(self) -> float:
        """Seconds by which this clock is certainly ahead; negative if it is behind.

        The time of the call itself is allowed for. 0 if the database has no clock of its own. The
        connection is closed after each look: all nodes share the database's number of connections.

        Raises:
            LogUnavailable: the database did not answer.
        """
        with closing(self._leases):
            before_s = self._clock() / 1000
            theirs_s = self._leases.clock_s()
            after_s = (self._clock() + 1) / 1000
        if theirs_s is None:
            return 0.0
        return max(0.0, before_s - theirs_s) + min(0.0, after_s - theirs_s)

    def check(self) -> None:
        """Refuse a clock that is off.

        Raises:
            Stop: the clock is off by more than ``off_s_max``.
        """
        try:
            off_s = self.off_s() if self._off_s_max else 0.0
        except LogUnavailable as error:
            _LOG.warning("the clock was not compared: %s", error)
            return
        if abs(off_s) > self._off_s_max:
            raise Stop(
                Exit.UNSAFE,
                f"The clock of this machine is {_said(off_s)} that of the database.",
                "Correct it with a time service, or allow more with limits.clock_off_s_max.",
            )

    def look(self) -> None:
        """Log once that the clock is off, and once that it is right again."""
        try:
            off_s = self.off_s()
        except LogUnavailable:
            return  # hosts say that the database is away
        is_off = abs(off_s) > self._off_s_max
        if is_off and not self._is_off:
            _LOG.warning("the clock of this machine is %s that of the database", _said(off_s))
        elif self._is_off and not is_off:
            _LOG.info("the clock of this machine agrees with that of the database again")
        self._is_off = is_off

    async def run(self) -> None:
        """Compare the clocks every minute, until cancelled."""
        while self._off_s_max:
            await asyncio.sleep(_LOOK_S)
            with suppress(RuntimeError):  # no thread can be started now
                await asyncio.to_thread(self.look)


def _said(off_s: float) -> str:
    return f"{abs(off_s):,.1f} s {'ahead of' if off_s > 0 else 'behind'}"
