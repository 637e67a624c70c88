"""Company: how long a transaction waits for more commands before it is committed.

A commit costs the same for one command as for many. When several clients ask at once, a moment
more brings more of their commands into the transaction, and all of them get through sooner. One
client alone sends when it was answered: nobody comes while it waits.
"""

from __future__ import annotations

from typing import Final

ITEMS_MIN: Final = 5.0
"""So many commands lately are of several clients; one alone leaves two, being counted by halves."""


class Company:
    """What the last transactions of a host say of the next one."""

    def __init__(self, wait_s_max: float) -> None:
        """Nothing is known yet; ``wait_s_max`` 0 never waits."""
        self._wait_s_max = wait_s_max
        self._took_s = 0.0
        self._lately = 0.0

    def committed(self, items: int, took_s: float) -> None:
        """A transaction of so many commands is over, and how long it took."""
        # Each transaction counts half as much as the one after it.
        self._lately = self._lately / 2 + items
        self._took_s = took_s

    def wait_s(self, items: int, waited_s: float) -> float:
        """How much longer is it worth to wait, with so many commands, after so long? 0 is not.

        At most as long as the last transaction took: who is in this one waits for twice that.
        """
        if self._lately < ITEMS_MIN or items >= self._lately:
            return 0.0
        return max(0.0, min(self._took_s, self._wait_s_max) - waited_s)
