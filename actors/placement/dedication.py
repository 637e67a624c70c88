"""Which identities are dedicated, by the list in the log, and which should be, by their load.

Rates and the time are arguments: nothing here asks a clock. A placer's memory of quiet identities
ends with it: with the next placer the quiet time begins anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from actors.core.commands import DedicationReason
from actors.core.partitioning import Placement
from actors.core.placement_table import HostHoldings
from actors.host.measures import RELEASED_BELOW
from actors.host.port import HostUnavailable, ListDedicated, OwnerPort
from actors.placement.membership import Membership

ANY_LOAD_PER_S: Final = 1e-6
"""A rate that a single command in a window exceeds: it dedicates every identity that has registered
or connected, for as long as it is used."""
NAMED_S: Final = 10.0
"""How often the identities that the settings name are looked at: one may not be registered yet."""


class DedicationRules(msgspec.Struct, frozen=True, kw_only=True):
    """When identities are dedicated.

    Attributes:
        placement: the shards and databases of the log.
        database: the one whose shards and identities are placed.
        silent_s_max: a host that is silent for longer is given up.
        identities_max: how many identities may be dedicated, by load and by order together.
        above_per_s: commands per second above which an identity is dedicated; 0 for never.
        quiet_s: how long an identity that is dedicated for its load has to stay below a quarter of
            ``above_per_s`` until it goes back.
        named: identities that the settings name; each is dedicated as soon as the log knows it.
    """

    placement: Placement
    database: int = 0
    silent_s_max: float
    identities_max: int = 0
    above_per_s: float = 0
    quiet_s: float = 0
    named: frozenset[str] = frozenset()


class DedicationLoad:
    """Decides which identities are busy enough for hosts of their own, and which no longer."""

    def __init__(self, rules: DedicationRules) -> None:
        self._rules = rules
        self._quiet_since: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}
        self._named_due_s = float("-inf")

    def released(self, did: str, now_s: float) -> None:
        """Note that an identity is with its shard again, and keep it there for ``quiet_s``.

        Its host may still report a rate from before.
        """
        self._rests_until[did] = now_s + self._rules.quiet_s

    def busy(self, holdings: Iterable[HostHoldings], now_s: float) -> list[str]:
        """The identities above ``above_per_s`` on hosts of shards, busiest first."""
        self._rests_until = {d: until for d, until in self._rests_until.items() if until > now_s}
        above_per_s = self._rules.above_per_s
        if not above_per_s:
            return []
        rates = [(rate, did) for one in holdings for did, rate in one.rates.items()]
        return [
            did
            for rate, did in sorted(rates, reverse=True)
            if rate > above_per_s and did not in self._rests_until
        ]

    def named(self, known: Mapping[str, str], now_s: float) -> list[str]:
        """The identities to dedicate, or to keep dedicated, because the settings name them.

        It returns them once in ``NAMED_S``, else none. ``known`` has the reason of each that is
        dedicated.
        """
        if now_s < self._named_due_s:
            return []
        self._named_due_s = now_s + NAMED_S
        named = sorted(self._rules.named)
        return [did for did in named if known.get(did) != DedicationReason.OPERATOR]

    def quiet(
        self, dedicated: Mapping[str, str], holdings: Iterable[HostHoldings], now_s: float
    ) -> list[str]:
        """The identities to give back; ``dedicated`` has the reason of each dedicated identity."""
        least_per_s = self._rules.above_per_s * RELEASED_BELOW or float("inf")  # all, if 0
        rates = {did: rate for one in holdings for did, rate in one.rates.items()}
        quiet = [
            did
            for did, reason in dedicated.items()
            if reason == DedicationReason.LOAD and rates.get(did, 0.0) < least_per_s
        ]
        since = {did: self._quiet_since.get(did, now_s) for did in quiet}
        self._quiet_since = since
        return [did for did in quiet if now_s - since[did] >= self._rules.quiet_s]


_LOOK_S: Final = 2.0
"""How often the list is read; changes by this placer are in it at once."""


class DedicationList:
    """The list of dedicated identities as last read, with this placer's changes since."""

    def __init__(self, hosts: Membership) -> None:
        """An unread list; the hosts of shards in ``hosts`` read it."""
        self._hosts = hosts
        self._due_s = float("-inf")
        self._changes = self._changing = self._looks = 0
        self._is_being_read = False
        self.was_read = False
        self.known: Mapping[str, str] = {}
        """The dedicated identities, each with its reason; empty until the list was read."""

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the list as changing within the block: what is read of it then is discarded."""
        self._changing += 1
        try:
            yield
        finally:
            self._changes += 1
            self._changing -= 1

    def keep(self, did: str, reason: str) -> None:
        """Note why an identity is dedicated in the log; an empty ``reason`` means it is not."""
        others = {one: why for one, why in self.known.items() if one != did}
        self.known = others | {did: reason} if reason else others

    def look_again(self) -> None:
        """Make the list due at once: it may have changed."""
        self._due_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Is it time to read the list?"""
        return not self._is_being_read and now_s >= self._due_s

    async def read(self, now_s: float) -> None:
        """Read the list; discard what was read if this placer changes it meanwhile."""
        self._is_being_read, changes = True, self._changes
        try:
            found = await self._reader().ask(ListDedicated())
        except HostUnavailable:
            return
        finally:
            self._is_being_read = False
        if not self._changing and changes == self._changes:
            self.known = {one.did: one.reason for one in found}
            self._due_s, self.was_read = now_s + _LOOK_S, True

    def _reader(self) -> OwnerPort:
        """Another host each time: one whose log has a fault must not block the list.

        Raises:
            HostUnavailable: no host lives.
        """
        hosts = sorted(host.name for host in self._hosts.living())
        if not hosts:
            raise HostUnavailable("no host lives that could list the dedicated identities")
        turn = self._looks % len(hosts)
        self._looks += 1
        return self._hosts.port(hosts[turn])
