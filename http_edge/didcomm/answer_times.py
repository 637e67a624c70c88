"""Delays of answers, so that their timing does not reveal who is registered.

A stored forward is answered after its commit; a forward to an unknown name would be answered
sooner, and a sender with a clock would learn which names are registered. So a forward to an unknown
name waits as long as a recently stored one did. A message that cannot be opened is answered after a
fixed time, which is usually longer than the lookup of its sender takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

_STORED_MAX: Final = 64
"""Remembered times of stored forwards; several, because their spread is as revealing as their
length."""
_FIRST_S: Final = 0.003
"""The assumed time of a stored forward until one has been stored."""
_HELD_S_MAX: Final = 1.0
"""Longest remembered time: forwards to unknown names do not wait for a log that stands still."""
UNOPENED_S: Final = 0.02
"""Usually more than two questions to hosts and one key agreement take."""


class AnswerTimes:
    """The answer times of one edge, in seconds from the arrival of a message."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        """Begin without stored forwards; ``now_s`` never goes backwards."""
        self.now_s = now_s
        """Returns the current time on the clock of arrivals."""
        self._stored_s: deque[float] = deque([_FIRST_S], _STORED_MAX)

    def stored(self, arrived_s: float) -> None:
        """Record the time of a forward that is stored and about to be answered."""
        self._stored_s.append(min(self.now_s() - arrived_s, _HELD_S_MAX))

    def left_as_stored_s(self, arrived_s: float) -> float:
        """Return how long a forward that was not stored must still wait."""
        self._stored_s.rotate()
        return max(0.0, self._stored_s[0] - (self.now_s() - arrived_s))

    def left_unopened_s(self, arrived_s: float) -> float:
        """Return how long a message that could not be opened must still wait."""
        return max(0.0, UNOPENED_S - (self.now_s() - arrived_s))
