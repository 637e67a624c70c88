"""When identities are dedicated: the bounds, and what their load calls for.

Rules of this file: pure; rates and the time are arguments. What a placer remembers of quiet
identities dies with it, and then the quiet time begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from actors.command_rates import RELEASED_BELOW
from actors.commands import Wish
from actors.placement_table import HostHolds


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When identities are dedicated.

    Attributes:
        shards: how many shards the log has.
        databases: how many databases the log has.
        silent_s_max: a host that is silent for longer is given up.
        identities_max: no more are dedicated, whoever wants it.
        above_per_s: commands per second above which an identity is dedicated; 0 for never.
        quiet_s: one that is dedicated for its load goes back after less than a quarter for so long.
    """

    shards: int
    databases: int = 1
    silent_s_max: float
    identities_max: int = 0
    above_per_s: float = 0
    quiet_s: float = 0


class DedicationLoad:
    """Which identities are busy enough for hosts of their own, and which no more."""

    def __init__(self, rules: Rules) -> None:
        """Nobody has been quiet yet."""
        self._rules = rules
        self._quiet_since: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}

    def released(self, did: str, now_s: float) -> None:
        """An identity is with its shard again, and stays there for as long as quiet takes.

        What its host still tells of it is from before.
        """
        self._rests_until[did] = now_s + self._rules.quiet_s

    def busy(self, said: Iterable[HostHolds], now_s: float) -> list[str]:
        """The identities that hosts of shards tell more commands of than they are to have."""
        self._rests_until = {d: until for d, until in self._rests_until.items() if until > now_s}
        above_per_s = self._rules.above_per_s
        if not above_per_s:
            return []
        told = [(rate, did) for one in said for did, rate in one.rates.items()]
        return [
            did
            for rate, did in sorted(told, reverse=True)
            if rate > above_per_s and did not in self._rests_until
        ]

    def quiet(
        self, dedicated: Mapping[str, str], said: Iterable[HostHolds], now_s: float
    ) -> list[str]:
        """The identities to be given back; ``dedicated`` says why each has its host."""
        least_per_s = self._rules.above_per_s * RELEASED_BELOW or float("inf")  # all, if it is off
        rates = {did: rate for one in said for did, rate in one.rates.items()}
        quiet = [
            did
            for did, reason in dedicated.items()
            if reason == Wish.LOAD and rates.get(did, 0.0) < least_per_s
        ]
        since = {did: self._quiet_since.get(did, now_s) for did in quiet}
        self._quiet_since = since
        return [did for did in quiet if now_s - since[did] >= self._rules.quiet_s]
