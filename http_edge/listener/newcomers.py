"""Count, by address, the connections without a request yet: all may send one at once."""

from __future__ import annotations

from collections import Counter


class Newcomers:
    """Counts the connections of an address from their start until their first request.

    Connections from before the last ``forget`` do not count: an idle connection costs nothing, and
    must not keep others of its address out.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._era = 0

    def of(self, address: str) -> int:
        """The number of newcomers of an address."""
        return self._counts[address]

    def add(self, address: str) -> int:
        """Count one more newcomer; return the token for ``remove``."""
        self._counts[address] += 1
        return self._era

    def remove(self, address: str, added: int | None) -> None:
        """Stop counting a newcomer that sent a request or ended; None if it was removed before."""
        if added == self._era:
            self._counts[address] -= 1

    def forget(self) -> None:
        """Forget all newcomers so far; count only those from now on."""
        self._counts.clear()
        self._era += 1
