"""How often each identity of a host is asked: found out by counting, told once in a while.

Counting costs one look-up for each command, and nothing where nobody wants to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Final

_TOLD_MAX: Final = 16
RELEASED_BELOW: Final = 0.25
"""Of the rate above which an identity is dedicated: so far apart that it does not come and go."""


class CommandRates:
    """Commands per second of the identities that are asked most, over the last window."""

    def __init__(self, above_per_s: float) -> None:
        """No commands yet; rates are wanted around ``above_per_s``, 0 for none at all."""
        self._least_per_s = above_per_s * RELEASED_BELOW
        self._counts: dict[str, int] = {}
        self.told: Mapping[str, float] = {}
        """Commands per second by DID. Replaced, never changed: any thread may read it."""

    def count(self, did: str, *, is_known: bool) -> None:
        """A command was for this identity; of one that is not known nobody wants to hear."""
        if self._least_per_s and is_known:
            self._counts[did] = self._counts.get(did, 0) + 1

    def end_window(self, elapsed_s: float) -> None:
        """Tell the rates of a window that took so long, and begin another one."""
        counts, self._counts = self._counts, {}
        least = self._least_per_s * elapsed_s
        busiest = nlargest(_TOLD_MAX, ((n, did) for did, n in counts.items() if n >= least))
        self.told = {did: n / elapsed_s for n, did in busiest}
