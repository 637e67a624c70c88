"""Which identities are dedicated, by the list in the log, and which are to be, by their load.

Rates and the time are arguments: nothing here asks a clock. What a placer remembers of quiet
identities ends with it, and then the quiet time begins anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from actors.core.commands import DedicationReason
from actors.core.partitioning import database_of_host
from actors.core.placement_table import HostHoldings
from actors.host.measures import RELEASED_BELOW
from actors.host.port import HostUnavailable, ListDedicated
from actors.placement.membership import Membership
from eventstore.log.event_log import DedicatedIdentity

ANY_LOAD_PER_S: Final = 1e-6
"""A rate that one command within any window exceeds: with it every identity that registered or
connected is dedicated while it is used."""
NAMED_S: Final = 10.0
"""What the settings name is looked at so often: it may not be registered yet."""


class DedicationRules(msgspec.Struct, frozen=True, kw_only=True):
    """When identities are dedicated.

    Attributes:
        shards: how many shards the log has.
        databases: how many databases the log has.
        silent_s_max: a host that is silent for longer is given up.
        identities_max: no more are dedicated, by load or by order.
        above_per_s: commands per second above which an identity is dedicated; 0 for never.
        quiet_s: one that is dedicated for its load goes back after less than a quarter for so long.
        named: those that the settings name: each is dedicated as soon as the log knows it.
    """

    shards: int
    databases: int = 1
    silent_s_max: float
    identities_max: int = 0
    above_per_s: float = 0
    quiet_s: float = 0
    named: frozenset[str] = frozenset()


class DedicationLoad:
    """Which identities are busy enough for hosts of their own, and which no more."""

    def __init__(self, rules: DedicationRules) -> None:
        """No identity has been quiet yet."""
        self._rules = rules
        self._quiet_since: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}
        self._named_due_s = float("-inf")

    def released(self, did: str, now_s: float) -> None:
        """An identity is with its shard again, and stays there for as long as quiet takes.

        What its host still reports of it is from before.
        """
        self._rests_until[did] = now_s + self._rules.quiet_s

    def busy(self, holdings: Iterable[HostHoldings], now_s: float) -> list[str]:
        """The identities that hosts of shards tell more commands of than they are to have."""
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
        """The identities that are to be dedicated, or to stay so, because the settings name them.

        Every few seconds; ``known`` says why each that is dedicated is.
        """
        if now_s < self._named_due_s:
            return []
        self._named_due_s = now_s + NAMED_S
        named = sorted(self._rules.named)
        return [did for did in named if known.get(did) != DedicationReason.OPERATOR]

    def quiet(
        self, dedicated: Mapping[str, str], holdings: Iterable[HostHoldings], now_s: float
    ) -> list[str]:
        """The identities to be given back; ``dedicated`` says why each has its host."""
        least_per_s = self._rules.above_per_s * RELEASED_BELOW or float("inf")  # all, if it is off
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
"""The list is read this often; a change that is made from here is in it at once."""


class DedicationList:
    """The list as it was read last, with the changes made from here since."""

    def __init__(self, hosts: Membership, databases: int) -> None:
        """Nothing is known yet; ``hosts`` of shards read the list, one of each database."""
        self._hosts = hosts
        self._databases = databases
        self._due_s = float("-inf")
        self._changes = self._changing = self._looks = 0
        self._is_being_read = False
        self.was_read = False
        self.known: dict[str, str] = {}
        """The dedicated identities, each with the reason; none until the list was read."""

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """It changes meanwhile: a list that is being read may be from before or after that."""
        self._changes += 1
        self._changing += 1
        try:
            yield
        finally:
            self._changes += 1
            self._changing -= 1

    def keep(self, did: str, reason: str) -> None:
        """The log says now why an identity is dedicated; it is not, without a reason."""
        if reason:
            self.known[did] = reason
        else:
            self.known.pop(did, None)

    def look_again(self) -> None:
        """The list may have changed: it is read as soon as possible."""
        self._due_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Is it time to read the list?"""
        return not self._is_being_read and now_s >= self._due_s

    async def read(self, now_s: float) -> None:
        """Read the list from each database, and believe it if it does not change meanwhile."""
        self._is_being_read, changes = True, self._changes
        try:
            lists = await self._lists()
        except HostUnavailable:
            return
        finally:
            self._is_being_read = False
        if not self._changing and changes == self._changes:
            self.known = {one.did: one.reason for found in lists for one in found}
            self._due_s, self.was_read = now_s + _LOOK_S, True

    async def _lists(self) -> list[list[DedicatedIdentity]]:
        """That of each database. Raises: HostUnavailable."""
        hosts = sorted(host.name for host in self._hosts.living())
        # Another one each time: a host whose log has a fault must not delay it for all.
        self._looks += 1
        turn = self._looks % max(1, len(hosts))
        readers = {
            database_of_host(name, self._databases): name for name in hosts[turn:] + hosts[:turn]
        }
        if len(readers) < self._databases:
            raise HostUnavailable("no host works on a database")
        return [await self._hosts.port(name).ask(ListDedicated()) for name in readers.values()]
