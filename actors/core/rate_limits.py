"""Token buckets by key, in bounded memory: a client that sends too often learns how long to wait.

A bucket is one number (the generic cell rate algorithm): the time at which it is full again. The
bucket of a key that has been quiet for its depth, or for twice that if the key owes, is full, and
forgetting it loses nothing. No other bucket is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

_ROUNDING_S: Final = 1e-6
"""Slack for times as floats: a client that waits as long as it should must not be refused."""
Key: TypeAlias = str | bytes
_SHARED: Final = ""
"""The bucket of all keys for which there is no room."""


class RateLimit:
    """A rate per key with bursts.

    In any ``w`` seconds a key gets at most ``per_s * w`` tokens plus one full bucket. Charges made
    afterwards can leave it owing up to one more bucket; it gets no tokens until that is paid.

    At most ``keys_max`` buckets are kept. While all of them are in use (not full), keys without a
    bucket share one. So an attacker with more keys gains no fresh bucket by having old ones
    forgotten: all keys together get at most ``keys_max + 1`` times what one may have. The price is
    that newcomers share a bucket during the attack and for at most ``burst_s`` after it.
    """

    def __init__(self, per_s: float, *, burst_s: float, keys_max: int) -> None:
        """Buckets of ``per_s * burst_s`` tokens, at least one; ``per_s`` 0 is no limit."""
        self._interval_s = 1 / per_s if per_s else 0.0
        self._depth_s = max(burst_s, self._interval_s)
        self._keys_max = keys_max
        self._full_at_s: OrderedDict[Key, float] = OrderedDict()  # by time of the last token

    def __len__(self) -> int:
        """Buckets in memory: ``keys_max`` and the shared one at most."""
        return len(self._full_at_s)

    def take(self, key: Key, now_s: float, tokens: float = 1) -> float | None:
        """Take tokens of ``key`` at ``now_s``; more than a bucket holds takes one full bucket.

        After the clock is set back, buckets count as full, so that no client waits until the clock
        has caught up.

        Returns None if the tokens were available, else the seconds until they are.
        """
        return self._spend(key, now_s, tokens, owing=False)

    def charge(self, key: Key, now_s: float, tokens: float) -> None:
        """Take tokens for work that is already done; the key may owe up to one bucket.

        Without debt, a key that comes often enough would always find the one token that it needs to
        get in, and would never pay for the work that follows.
        """
        self._spend(key, now_s, tokens, owing=True)

    def give_back(self, key: Key, now_s: float) -> None:
        """Give a token back that ``key`` took for what came to nothing."""
        self._spend(key, now_s, -1, owing=True)

    def has(self, key: Key, now_s: float, tokens: float) -> bool:
        """Does ``key`` have this many tokens? A key that owes does not even have 0."""
        _, full_at_s = self._bucket(key, now_s)
        return full_at_s + tokens * self._interval_s <= now_s + self._depth_s + _ROUNDING_S

    def _spend(self, key: Key, now_s: float, tokens: float, *, owing: bool) -> float | None:
        if not self._interval_s:
            return None
        key, full_at_s = self._bucket(key, now_s)
        if owing:
            full_at_s = min(full_at_s + tokens * self._interval_s, now_s + 2 * self._depth_s)
        else:
            full_at_s += min(tokens * self._interval_s, self._depth_s)
            wait_s = full_at_s - now_s - self._depth_s
            if wait_s > _ROUNDING_S:
                return wait_s
        self._full_at_s[key] = full_at_s
        self._full_at_s.move_to_end(key)
        return None

    def _bucket(self, key: Key, now_s: float) -> tuple[Key, float]:
        """The key of the bucket that ``key`` takes from, and when that is full, now or later."""
        if key not in self._full_at_s and not self._makes_room(now_s):
            key = _SHARED
        full_at_s = self._full_at_s.get(key, now_s)
        return key, full_at_s if self._in_use(full_at_s, now_s) else now_s

    def _in_use(self, full_at_s: float, now_s: float) -> bool:
        return now_s < full_at_s <= now_s + 2 * self._depth_s + _ROUNDING_S

    def _makes_room(self, now_s: float) -> bool:
        """Forget buckets that are full again, longest unused first, until there is room."""
        while len(self._full_at_s) >= self._keys_max:
            oldest = next(iter(self._full_at_s))
            if self._in_use(self._full_at_s[oldest], now_s):
                return False
            del self._full_at_s[oldest]
        return True
