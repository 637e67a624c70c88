"""Fair queueing: waiting items are taken from their senders in turn, equal work from each.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each item gets a start, which is the end of its
sender's item before, or the start of the item taken last if that is later; its end is its start and
its cost. The item with the least start is next. So a new sender has no credit and no debt. While
every ``take`` empties the queue, order does not matter and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")
_ARRIVAL = itemgetter(1)


class Turns(Generic[T]):
    """Waiting items by sender; those of one sender are taken in order of arrival."""

    def __init__(self) -> None:
        self._arrived = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._waiting: list[tuple[float, int, float, T]] = []
        """A heap: the start, number of arrival and cost of each item, and the item."""
        self.cost = 0.0
        """The total cost of the waiting items."""
        self._now = 0.0
        self._ends: dict[Hashable, float] = {}
        """The ends of the senders that are ahead of ``_now``, and of some that no longer are."""
        self._taken = 0

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def put(self, sender: Hashable, cost: float, item: T) -> None:
        """Add an item of a sender with its cost."""
        start = max(self._now, self._ends.get(sender, 0.0))
        self._ends[sender] = start + cost
        self._arrived += 1
        heappush(self._waiting, (start, self._arrived, cost, item))
        self.cost += cost

    def take(self, cost_max: float) -> list[T]:
        """Take the next items up to a total cost; at least one, if any wait."""
        if self.cost <= cost_max or len(self._waiting) == 1:
            taken = [item for *_, item in sorted(self._waiting, key=_ARRIVAL)]
            self._forget_all()
            return taken
        taken, left = [], cost_max
        while self._waiting and (not taken or self._waiting[0][2] <= left):
            self._now, _, cost, item = heappop(self._waiting)
            taken.append(item)
            left -= cost
            self.cost -= cost
        self._taken += len(taken)
        if self._taken > len(self._ends):  # now and then, so each item costs the same
            self._taken = 0
            self._ends = {sender: end for sender, end in self._ends.items() if end > self._now}
        return taken
