"""Fair queueing: waiting items are taken from their senders in turn, equal work from each.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each sender has a virtual time that advances by
the cost of its work, and the sender with the least virtual time is next. A new sender starts at the
time of the sender taken last: it has no credit and no debt. While every ``take`` empties the queue,
order does not matter and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Waiting items by sender; those of one sender are taken in order of arrival."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Hashable, float, T]] = []
        self.cost = 0.0
        """The total cost of the waiting items."""
        self._now = 0.0
        self._ends: dict[Hashable, float] = {}
        """The virtual times of the senders that are ahead of ``_now``."""

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def put(self, sender: Hashable, cost: float, item: T) -> None:
        """Add an item of a sender with its cost."""
        self._waiting.append((sender, cost, item))
        self.cost += cost

    def take(self, cost_max: float) -> list[T]:
        """Take the next items up to a total cost; at least one, if any wait."""
        if self.cost <= cost_max or len(self._waiting) == 1:
            taken = [item for _, _, item in self._waiting]
            self._waiting, self.cost, self._now, self._ends = [], 0.0, 0.0, {}
            return taken
        chosen = self._next(cost_max)
        taken = [self._waiting[index][2] for index in chosen]
        left = set(range(len(self._waiting))).difference(chosen)
        self._waiting = [self._waiting[index] for index in sorted(left)]
        self.cost = sum(cost for _, cost, _ in self._waiting)
        self._ends = {sender: end for sender, end in self._ends.items() if end > self._now}
        return taken

    def _next(self, cost_max: float) -> list[int]:
        """Choose the next items by their index in ``_waiting`` and advance the virtual times."""
        ends = dict(self._ends)
        starts = []
        for index, (sender, cost, _) in enumerate(self._waiting):
            start = max(self._now, ends.get(sender, 0.0))
            ends[sender] = start + cost
            starts.append((start, index))
        starts.sort()
        chosen: list[int] = []
        left = cost_max
        for start, index in starts:
            sender, cost, _ = self._waiting[index]
            if chosen and cost > left:
                break
            chosen.append(index)
            left -= cost
            self._now = start
            self._ends[sender] = start + cost
        return chosen
