"""Who is next: what waits is taken from its senders in turn, each as much work as the others.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each sender has a virtual time that its work
moves on by its cost, and the one whose time is least is next. A sender that comes anew starts at
the time of the one that was taken last: it has saved nothing up, and owes nothing. As long as
everything that waits is taken at once there is no order to make, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits, by sender. Of one sender's, what came first is taken first."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: list[tuple[Hashable, float, T]] = []
        self._cost = 0.0
        self._now = 0.0
        self._ends: dict[Hashable, float] = {}
        """The virtual time of senders that are ahead of ``_now``."""

    def __len__(self) -> int:
        """How much waits."""
        return len(self._waiting)

    @property
    def cost(self) -> float:
        """What all that waits costs."""
        return self._cost

    def put(self, sender: Hashable, cost: float, item: T) -> None:
        """Something of a sender waits, and costs so much."""
        self._waiting.append((sender, cost, item))
        self._cost += cost

    def take(self, cost_max: float) -> list[T]:
        """What is next, up to a cost; one at least, if anything waits."""
        if self._cost <= cost_max or len(self._waiting) == 1:
            taken = [item for _, _, item in self._waiting]
            self._waiting, self._cost, self._now, self._ends = [], 0.0, 0.0, {}
            return taken
        chosen = self._next(cost_max)
        taken = [self._waiting[index][2] for index in chosen]
        left = set(range(len(self._waiting))).difference(chosen)
        self._waiting = [self._waiting[index] for index in sorted(left)]
        self._cost = sum(cost for _, cost, _ in self._waiting)
        self._ends = {sender: end for sender, end in self._ends.items() if end > self._now}
        return taken

    def _next(self, cost_max: float) -> list[int]:
        """The places of what is next in ``_waiting``; the virtual times move on."""
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
