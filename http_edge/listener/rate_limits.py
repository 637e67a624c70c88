"""Token buckets by key, in bounded memory: a client that sends too often gets the time to wait.

A bucket is one number (the generic cell rate algorithm): the time at which it is full again. So
the state of a key that has been quiet for the depth of its bucket is "full", and forgetting it
loses nothing. That is the only kind of forgetting here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_ROUNDING_S: Final = 1e-6
"""Slack for times as floats: a client that waits as long as it should must not be refused."""
_SHARED: Final = ""
"""The bucket of the keys that find no room."""


class RateLimit:
    """A rate per key with bursts.

    In any ``w`` seconds a key gets at most ``per_s * w`` tokens and one full bucket.

    At most ``keys_max`` buckets are kept. While all of them are in use (not full), keys without a
    bucket share one. An attacker with more keys than that gains no fresh bucket by having old
    ones forgotten: all keys together get at most ``keys_max + 1`` times what one may have. The
    price is that newcomers share a bucket for so long, ``burst_s`` after the attack at most.
    """

    def __init__(self, per_s: float, *, burst_s: float, keys_max: int) -> None:
        """Buckets of ``per_s * burst_s`` tokens, at least one; ``per_s`` 0 is no limit."""
        self._interval_s = 1 / per_s if per_s else 0.0
        self._depth_s = max(burst_s, self._interval_s)
        self._keys_max = keys_max
        self._full_at_s: OrderedDict[str, float] = OrderedDict()  # by time of the last token

    def __len__(self) -> int:
        """Buckets in memory: ``keys_max`` and the shared one at most."""
        return len(self._full_at_s)

    def take(self, key: str, now_s: float) -> float | None:
        """Take a token of ``key`` at ``now_s``.

        After the clock was set back buckets count as full: no client waits until it has caught up.

        Returns None when there was one, else the seconds until there is one.
        """
        if not self._interval_s:
            return None
        buckets = self._full_at_s
        if key not in buckets and not self._makes_room(now_s):
            key = _SHARED
        full_at_s = buckets.get(key, now_s)
        if not self._in_use(full_at_s, now_s):
            full_at_s = now_s
        full_at_s += self._interval_s
        wait_s = full_at_s - now_s - self._depth_s
        if wait_s > _ROUNDING_S:
            return wait_s
        buckets[key] = full_at_s
        buckets.move_to_end(key)
        return None

    def give_back(self, key: str) -> None:
        """Return the token taken last: what it was taken for turned out not to count."""
        if self._interval_s:
            key = key if key in self._full_at_s else _SHARED
            if key in self._full_at_s:
                self._full_at_s[key] -= self._interval_s

    def _in_use(self, full_at_s: float, now_s: float) -> bool:
        return now_s < full_at_s <= now_s + self._depth_s + _ROUNDING_S

    def _makes_room(self, now_s: float) -> bool:
        """Forget buckets that are full again, longest unused first, until there is room."""
        while len(self._full_at_s) >= self._keys_max:
            oldest = next(iter(self._full_at_s))
            if self._in_use(self._full_at_s[oldest], now_s):
                return False
            del self._full_at_s[oldest]
        return True
