"""Notices of transactions whose outcome is unknown: pushed once the log turns out to have these.

An append that failed may be stored all the same. Who repeats the command may then change nothing,
and the erasure of an identity has already begun. A wake-up is a hint, so it is pushed at once
(``SessionRegistry.undo``); the notices here say that something is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from actors.core.replies import EnvelopeDelivered, EnvelopesWaiting, Notice
from actors.host.owned_partition import is_sealed
from actors.host.ownership import Ownership
from actors.host.transaction import Transaction
from eventstore.log.errors import LogError
from eventstore.log.event_log import LogReader, SealPlace

_TRANSACTIONS_MAX: Final = 64
"""Each has the messages of one transaction. The first ones are kept: when a log fails, these were
on their way to it, and later ones hardly reach it."""
_LOOK_MS: Final = 5_000
"""The log is read at this interval until a command has claimed the partition again, or if the last
look failed: a log that is away holds up the writer each time."""


class _Unknown(NamedTuple):
    """A transaction that may be stored: one of its partitions, the seal there, its notices."""

    partition: str
    place: SealPlace
    notices: Sequence[tuple[str, Notice]]


class UnknownOutcomes:
    """The transactions of one host that may be stored although their appends failed."""

    def __init__(self, log: LogReader, ownership: Ownership) -> None:
        self._log = log
        self._ownership = ownership
        self._unknown: list[_Unknown] = []
        self._looked_ms = 0
        self._is_away = False

    def note(self, transaction: Transaction, is_listening: Callable[[str], object]) -> None:
        """Keep the notices for the sessions of a transaction whose append has failed."""
        notices = [
            (did, notice)
            for did, notice in transaction.notices
            if not isinstance(notice, EnvelopesWaiting | EnvelopeDelivered) and is_listening(did)
        ]
        if notices and len(self._unknown) < _TRANSACTIONS_MAX:
            first = transaction.partitions[0]
            self._unknown.append(_Unknown(first.name, first.place, notices))
            self._looked_ms = transaction.now_ms

    def stored(self, now_ms: int) -> list[tuple[str, Notice]]:
        """The notices, each with its identity, of transactions that turned out to be stored.

        What is not in the log once its partition is claimed again, or is another host's, never will
        be: that claim has its place.
        """
        is_due = abs(now_ms - self._looked_ms) >= _LOOK_MS
        found: list[tuple[str, Notice]] = []
        for one in self._unknown[:]:
            is_fenced = one.partition in self._ownership.owned
            is_fenced |= one.partition not in self._ownership.holdings
            if not is_due and (self._is_away or not is_fenced):
                continue
            self._looked_ms = now_ms
            try:
                is_stored = is_sealed(self._log, one.place)
            except LogError:
                self._is_away = True
                break
            self._is_away = False
            if is_stored or is_fenced:
                self._unknown.remove(one)
            if is_stored:
                found += one.notices
        return found
