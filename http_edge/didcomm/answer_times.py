"""When answers go out that must not tell by their time who is registered.

A forward that is stored waits for its commit, and one to an unknown name would be answered sooner:
a sender with a clock would learn which names are registered. So the latter is answered when one
that was stored lately would have been. What cannot be opened is answered after a fixed time, within
which it makes no difference whether an account knows its sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

_STORED_MAX: Final = 64
"""Times of stored forwards that are remembered: how they differ is as telling as how long they
are."""
_FIRST_S: Final = 0.003
"""The time of a forward as long as none was stored."""
_HELD_S_MAX: Final = 1.0
"""A log that stands still does not make unknown names wait for it."""
UNOPENED_S: Final = 0.02
"""More than two questions to hosts and a key agreement take as a rule."""


class AnswerTimes:
    """The times of one edge, in seconds from the arrival of a message."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        """No forward stored yet; ``now_s`` never goes backwards."""
        self._now_s = now_s
        self._stored_s: deque[float] = deque([_FIRST_S], _STORED_MAX)

    def now_s(self) -> float:
        """The time that arrivals are given in."""
        return self._now_s()

    def stored(self, arrived_s: float) -> None:
        """A forward that arrived then is stored, and is about to be answered."""
        self._stored_s.append(min(self._now_s() - arrived_s, _HELD_S_MAX))

    def left_as_stored_s(self, arrived_s: float) -> float:
        """How long one that was not stored waits, to be answered like one that was."""
        self._stored_s.rotate()
        return max(0.0, self._stored_s[0] - (self._now_s() - arrived_s))

    def left_unopened_s(self, arrived_s: float) -> float:
        """How long one waits that could not be opened."""
        return max(0.0, UNOPENED_S - (self._now_s() - arrived_s))
