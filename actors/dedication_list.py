"""Which identities are dedicated: the list in the log, read from time to time."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.host_port import HostUnavailable
from actors.partitions import database_of_host
from actors.roster import Roster
from eventstore.log import DedicatedIdentity

_LOOK_S: Final = 2.0
"""The list is read this often, besides after each change that is made from here."""
_LISTS: Final = msgspec.msgpack.Decoder(list[DedicatedIdentity])


class DedicationList:
    """The list as it was read last, with the changes made from here since."""

    def __init__(self, hosts: Roster, databases: int) -> None:
        """Nothing is known yet; ``hosts`` of shards read the list, one of each database."""
        self._hosts = hosts
        self._databases = databases
        self._looked_s = float("-inf")
        self._changes = self._looks = 0
        self.known: dict[str, str] | None = None
        """The dedicated identities, each with the reason; None as long as nobody has looked."""

    def changes(self) -> None:
        """Something changes now: a list that is being read may be from before or after it."""
        self._changes += 1

    def look_again(self) -> None:
        """The list may have changed, nobody knows: it is read as soon as possible."""
        self._looked_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Is it time to read the list?"""
        return now_s - self._looked_s >= _LOOK_S

    async def read(self, now_s: float) -> bool:
        """Read the list from each database; was it, and did nothing change meanwhile?"""
        changes = self._changes
        hosts = sorted(host.name for host in self._hosts.living())
        # Another one each time: who has trouble with its log must not keep it from everybody.
        self._looks += 1
        turn = self._looks % max(1, len(hosts))
        readers = {
            database_of_host(name, self._databases): name for name in hosts[turn:] + hosts[:turn]
        }
        if len(readers) < self._databases:
            return False
        try:
            lists = [await self._hosts.port(name).dedicated() for name in readers.values()]
        except HostUnavailable:
            return False
        if changes != self._changes:
            return False
        self.known = {one.did: one.reason for found in lists for one in _LISTS.decode(found)}
        self._looked_s = now_s
        return True
