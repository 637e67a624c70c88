"""Notices of transactions whose outcome is unknown: pushed once the log turns out to have these.

An append that failed may be stored all the same. Who repeats the command may then change nothing,
and the erasure of an identity has already begun. A wake-up is a hint, so it is pushed at once
(``SessionRegistry.undo``); the notices here say that something is stored.

Sessions move with their shard, and notices do not: they are pushed before, unless the log does not
have the transaction by then, or cannot be read. Of what it has later, no notice comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import Final, NamedTuple

from actors.core.replies import EnvelopeDelivered, EnvelopesWaiting, MessageArrived, Notice, Push
from actors.host.owned_partition import is_sealed
from actors.host.ownership import Ownership
from actors.host.session_registry import SessionRegistry
from actors.host.transaction import Transaction
from eventstore.log.errors import LogError
from eventstore.log.event_log import LogReader, SealPlace

NOTICES_BYTES_MAX: Final = 4 * 1_024 * 1_024
"""Of all notices: that of a message has its payload. The first ones are kept: when a log fails,
these were on their way to it, and later ones hardly reach it."""
_NOTICE_BYTES: Final = 512
"""Of a notice besides its names and its payload."""
_TRANSACTIONS_MAX: Final = 64
"""Each is a read of the log."""
_LOOK_MS: Final = 5_000
"""The log is read at this interval until a command has claimed the partition again, or if the last
look failed: a log that is away holds up the writer each time."""


class _Unknown(NamedTuple):
    """A transaction that may be stored: one of its partitions, the seal there, its notices."""

    partition: str
    place: SealPlace
    notices: Sequence[tuple[str, Notice]]
    size_bytes: int


class UnknownOutcomes:
    """The transactions of one host that may be stored although their appends failed."""

    def __init__(self, log: LogReader, ownership: Ownership, registry: SessionRegistry) -> None:
        self._log = log
        self._ownership = ownership
        self._registry = registry
        self._unknown: list[_Unknown] = []
        self._pushes: list[tuple[str, Push]] = []
        self._looked_ms = 0
        self._is_away = False

    def note(self, transaction: Transaction) -> None:
        """Keep the notices for the sessions of a transaction whose append has failed, if they fit.

        A notice that does not fit is not pushed; the client finds what it is about by a query.
        """
        if len(self._unknown) >= _TRANSACTIONS_MAX:
            return
        notices: list[tuple[str, Notice]] = []
        size_bytes, left_bytes = 0, NOTICES_BYTES_MAX - sum(one.size_bytes for one in self._unknown)
        for did, notice in transaction.notices:
            is_hint = isinstance(notice, EnvelopesWaiting | EnvelopeDelivered)
            if is_hint or not self._registry.sessions.edges_of(did):
                continue
            notice_bytes = _bytes_of(did, notice)
            if size_bytes + notice_bytes <= left_bytes:
                size_bytes += notice_bytes
                notices.append((did, notice))
        if notices:
            first = transaction.partitions[0]
            self._unknown.append(_Unknown(first.name, first.place, notices, size_bytes))
            self._looked_ms = transaction.now_ms

    def look(self, now_ms: int, *, at_once: bool = False) -> None:
        """Find out which transactions are stored, those that may be found out now, or all at once.

        What is not in the log once its partition is claimed again never will be: that claim has its
        place. When the partition has left this host, so have its sessions.
        """
        is_due = at_once or abs(now_ms - self._looked_ms) >= _LOOK_MS
        for one in self._unknown[:]:
            is_over = one.partition in self._ownership.owned
            is_over |= one.partition not in self._ownership.holdings
            if not is_due and (self._is_away or not is_over):
                continue
            self._looked_ms = now_ms
            try:
                is_stored = is_sealed(self._log, one.place)
            except LogError:
                self._is_away = True
                break
            self._is_away = False
            if is_stored or is_over:
                self._unknown.remove(one)
            if is_stored:
                for did, notice in one.notices:
                    self._pushes += self._registry.pushes(did, notice)

    def pushes(self) -> list[tuple[str, Push]]:
        """The pushes, each with its edge, for what was found to be stored since the last call."""
        pushes, self._pushes = self._pushes, []
        return pushes


def _bytes_of(did: str, notice: Notice) -> int:
    size_bytes = _NOTICE_BYTES + getsizeof(did)
    if isinstance(notice, MessageArrived):
        size_bytes += getsizeof(notice.message.sender_did) + len(notice.message.payload)
    return size_bytes
