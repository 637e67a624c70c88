"""Connections that have sent no request yet, by address: all of them may do it at once."""

from __future__ import annotations

from collections import Counter


class Newcomers:
    """Counts connections of addresses from their first moment until a request is taken up.

    Those from before the last ``forget`` do not count: silence costs nothing, and keeps none of its
    neighbours out.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._era = 0

    def of(self, address: str) -> int:
        """How many an address has."""
        return self._counts[address]

    def add(self, address: str) -> int:
        """One more of an address; what ``remove`` has to be given for it."""
        self._counts[address] += 1
        return self._era

    def remove(self, address: str, added: int | None) -> None:
        """It has sent a request, or has ended; None of one that was removed before."""
        if added != self._era:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def forget(self) -> None:
        """Count those that come from now on."""
        self._counts.clear()
        self._era += 1
