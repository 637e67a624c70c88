"""Counts refused commands in bounded memory: which command, why, whose, how often.

A record of each refusal would cost the mediator more than the refused client. So refusals are
summed up in a bounded number of entries of bounded size: a refusal that finds no room for an entry
is counted without its sender, then also without its command, and at last without its reason. The
total of each protocol is exact all the same.

Each of these forms has room of its own, so that a client that fills one leaves the others free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

from actors.core.commands import CountRefusals
from actors.host.clock import Clock
from eventstore.log.events import RefusedCommands

OTHER: Final = "other"
"""The reason under which refusals are counted that find no room under their own."""
DECENTRL: Final = "decentrl"
DIDCOMM: Final = "didcomm"
PROTOCOLS: Final = (DECENTRL, DIDCOMM)

_Key: TypeAlias = tuple[str, str, str, str]
_NAMED, _BY_COMMAND, _BY_REASON, _REST = range(4)


class _Entry(msgspec.Struct):
    """The number of refusals, and the times of the first and the last, in Unix ms."""

    count: int
    first_ms: int
    last_ms: int


class RefusalCounts:
    """Counts refusals, until the counts are taken."""

    def __init__(
        self,
        *,
        entries_max: int,
        senders_bytes_max: int,
        clock: Clock,
        on_count: Callable[[str, str], None] = lambda _protocol, _reason: None,
    ) -> None:
        """Counts with room for ``entries_max`` entries (8 at least).

        The senders in them have ``senders_bytes_max`` bytes together. ``on_count`` is called with
        the protocol and the reason of each refusal.
        """
        self._clock = clock
        self._senders_bytes_max = senders_bytes_max
        named, by_command = entries_max // 2, entries_max // 4
        rest = len(PROTOCOLS)
        self._room = (named, by_command, entries_max - named - by_command - rest, rest)
        self.total = 0
        """All refusals since the start, taken or not."""
        self._on_count = on_count
        self._start()

    def __len__(self) -> int:
        """The number of entries in memory."""
        return len(self._entries)

    def count(self, protocol: str, command: str, reason: str, sender_did: str = "") -> None:
        """Count one refused command.

        ``protocol`` is one of ``PROTOCOLS``; ``command`` and ``reason`` are names of ours, never
        text that a client sent. ``sender_did`` is the identity that is proven to have signed or
        packed the command, else empty: an unproven refusal must not count against any identity.
        """
        self.total += 1
        self._on_count(protocol, reason)
        now_ms = self._clock()
        entry = self._entry((protocol, command, reason, sender_did), now_ms)
        entry.count += 1
        entry.first_ms = min(entry.first_ms, now_ms)
        entry.last_ms = max(entry.last_ms, now_ms)

    def take(self, edge: str) -> CountRefusals | None:
        """Return the command that records all counts of ``edge`` since the last call; start anew.

        None if there are none.
        """
        if not self._entries:
            return None
        refusals = [
            RefusedCommands(*key, entry.count, entry.first_ms, entry.last_ms)
            for key, entry in self._entries.items()
        ]
        since_ms, until_ms = self._since_ms, max(self._since_ms, self._clock())
        self._start()
        return CountRefusals(edge, since_ms, until_ms, refusals)

    def _start(self) -> None:
        self._since_ms = self._clock()
        self._entries: dict[_Key, _Entry] = {}
        self._used = [0, 0, 0, 0]
        self._senders_bytes = 0

    def _entry(self, key: _Key, now_ms: int) -> _Entry:
        """The entry to count in: the key's own, or that of the next coarser key with room."""
        for form, coarser in _by_coarseness(key):
            entry = self._entries.get(coarser)
            if entry is not None:
                return entry
            sender_bytes = len(coarser[3].encode())
            fits = self._senders_bytes + sender_bytes <= self._senders_bytes_max
            if fits and self._used[form] < self._room[form]:
                self._used[form] += 1
                self._senders_bytes += sender_bytes
                entry = self._entries[coarser] = _Entry(0, now_ms, now_ms)
                return entry
        raise AssertionError("the last form has room for every protocol")


def _by_coarseness(key: _Key) -> Iterator[tuple[int, _Key]]:
    """The key, then ever coarser ones, each with its form: that decides whose room it takes."""
    protocol, command, reason, sender_did = key
    if sender_did:
        yield _NAMED, key
    if command:
        yield _BY_COMMAND, (protocol, command, reason, "")
    if reason != OTHER:
        yield _BY_REASON, (protocol, "", reason, "")
    yield _REST, (protocol, "", OTHER, "")
