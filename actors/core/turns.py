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

    @property
    def next(self) -> T:
        """The item that ``take(0)`` takes. Raises: IndexError: none waits."""
        return self._waiting[0][-1]

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


class GroupedTurns(Generic[T]):
    """Waiting items of senders in groups: groups take turns, and in each group its senders do.

    However many senders a group has, it gets no more than another group. Items of one sender in one
    group are taken in order of arrival. Two turns cost more than a place in a list, so items get
    theirs only once not all of them can be taken.
    """

    def __init__(self) -> None:
        self._arrived: list[tuple[Hashable, Hashable, float, T]] = []
        """The group, sender and cost of each item that has no turns yet, and the item."""
        self._arrived_cost = 0.0
        self._groups: Turns[Hashable] = Turns()
        """The group of each other item. A turn goes to whichever item is next in its group."""
        self._of: dict[Hashable, Turns[T]] = {}

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._arrived) + len(self._groups)

    def put(self, group: Hashable, sender: Hashable, cost: float, item: T) -> None:
        """Add an item of a sender in a group with its cost, which is above 0."""
        self._arrived.append((group, sender, cost, item))
        self._arrived_cost += cost

    def take_all(self, cost_max: float) -> list[T]:
        """Take all items in order of arrival; none if they may cost more than ``cost_max``."""
        if self._groups or self._arrived_cost > cost_max:
            return []
        taken = [item for *_, item in self._arrived]
        self._forget_arrived()
        return taken

    @property
    def next(self) -> T:
        """The item that ``take`` takes. Raises: IndexError: none waits."""
        self._give_turns()
        return self._of[self._groups.next].next

    def take(self) -> T:
        """Take the next item. Raises: ValueError: none waits."""
        self._give_turns()
        (group,) = self._groups.take(0)
        turns = self._of[group]
        (item,) = turns.take(0)
        if not turns:
            del self._of[group]
        return item

    def _give_turns(self) -> None:
        for group, sender, cost, item in self._arrived:
            turns = self._of.get(group)
            if turns is None:
                turns = self._of[group] = Turns()
            turns.put(sender, cost, item)
            self._groups.put(group, cost, group)
        self._forget_arrived()

    def _forget_arrived(self) -> None:
        self._arrived.clear()
        self._arrived_cost = 0.0
