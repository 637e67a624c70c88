"""Leases: which session holds which delivered message, until when. In memory only.

A lease keeps a message from being handed out to two sessions at a time; it is no promise. If a host
restarts and loses this table, unacknowledged messages are offered again, as at the end of any
lease. Only an event in the log removes a message. So a table that is full ends leases early, but
no delay, which only so many messages get.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Final

import msgspec

HELD_BACK: Final = "held back"
"""The session in the lease of a message that its sender delays."""

SET_ASIDE: Final = "set aside"
"""The session in the lease of a message that its recipient's endpoint did not accept."""

LEASE_MS_MAX: Final = 3_600_000
"""No setting allows a longer lease."""

SLOTS_MAX: Final = 49_152
"""Slots for the leases of one host, of up to 320 bytes each: a lease takes one, and an identity
that has any takes three, and more if its DID is long."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The lease of a message: ``session`` holds it until ``until_ms`` (Unix)."""

    session: str
    until_ms: int


_NONE: Final[Mapping[str, Lease]] = {}
_ENDED_EARLY: Final = ""
"""In place of a message that is leased: those whose leases ended early are to be announced when
this lease ends, also if all that are still leased are acknowledged before."""
_LEFT_MAX: Final = 64
"""Times without leases that a heap keeps besides one for each identity that has leases."""
_EMPTY_BYTES: Final = getsizeof({"": 0})
_SPARSE_BYTES: Final = 128
"""Of a table for each of its leases, above which most of its room is that of former leases."""


class Leases:
    """Leases by identity and message."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Lease]] = {}
        self._slots = 0
        self._delayed = 0
        """Slots of the leases of delayed messages, if each had an identity of its own."""
        self._looks: dict[str, int] = {}
        """When to look for ended leases of an identity that has any: no later than its first end
        (Unix ms)."""
        self._due: list[tuple[int, str]] = []
        """A heap of these times, and of earlier ones that do not count any more."""

    def __len__(self) -> int:
        """How many messages are leased."""
        return sum(len(held) - (_ENDED_EARLY in held) for held in self._held.values())

    def of(self, did: str) -> Mapping[str, Lease]:
        """The leases on an identity's messages; one under an empty id is on none."""
        return self._held.get(did, _NONE)

    def take(self, did: str) -> Mapping[str, Lease]:
        """End all leases of an identity and return them for another host."""
        self._looks.pop(did, None)
        held = self._held.pop(did, None)
        if held is None:
            return _NONE
        self._slots -= len(held) + _slots_of(did)
        self._delayed -= _delayed(did, held.values())
        return held

    def put(self, did: str, taken: Mapping[str, Lease], now_ms: int) -> bool:
        """Continue leases that another host has handed over; its clock may be ahead by years.

        Return whether all found room, as ``grant`` does.
        """
        latest_ms, count = now_ms + LEASE_MS_MAX, 0
        for message_id, lease in taken.items():
            ends = Lease(lease.session, min(lease.until_ms, latest_ms))
            count += self.grant(did, [message_id], ends)
        return count == len(taken)

    def grant(self, did: str, message_ids: Iterable[str], lease: Lease) -> bool:
        """Lease messages, replacing the leases that they already have.

        Return False, and change nothing, if this delays messages and delays have half of the
        slots: they never end early, and no acknowledgement ends them.
        """
        granted = dict.fromkeys(message_ids, lease)
        delayed = _delayed(did, granted.values()) if lease.session == HELD_BACK else 0
        if delayed and self._delayed + delayed > SLOTS_MAX // 2:
            return False
        self.end(did, granted)
        if did not in self._held:
            self._slots += _slots_of(did)
        self._held.setdefault(did, {}).update(granted)
        self._slots += len(granted)
        self._delayed += delayed
        if lease.until_ms < self._looks.get(did, lease.until_ms + 1):
            self._look_at(did, lease.until_ms)
        if self._slots > SLOTS_MAX:
            self._make_room()
        return True

    def set_back(self, back_ms: int) -> None:
        """Have all leases last as long as before after the clock was set back by ``back_ms``."""
        for held in self._held.values():
            for message_id, lease in held.items():
                held[message_id] = Lease(lease.session, lease.until_ms - back_ms)
        self._looks = {did: at_ms - back_ms for did, at_ms in self._looks.items()}
        self._tidy()

    def end(self, did: str, message_ids: Iterable[str]) -> None:
        """End the leases of messages that are removed or were not handed out after all."""
        held = self._held.get(did)
        if held is not None:
            ended = [held.pop(i) for i in message_ids if i in held]
            self._slots -= len(ended)
            if self._delayed:
                self._delayed -= _delayed(did, ended)
            if not held:
                self.take(did)
            elif getsizeof(held) > _EMPTY_BYTES + _SPARSE_BYTES * len(held):
                self._held[did] = dict(held)

    def release(self, did: str, session: str) -> bool:
        """End the leases of a session; were there any?"""
        ended = [i for i, lease in self.of(did).items() if lease.session == session]
        self.end(did, ended)
        return bool(ended)

    def end_all_but(self, session: str) -> set[str]:
        """End the leases of all sessions but one; return the identities that had such leases."""
        ended = {
            did: [i for i, lease in held.items() if lease.session != session]
            for did, held in self._held.items()
        }
        for did, message_ids in ended.items():
            self.end(did, message_ids)
        return {did for did, message_ids in ended.items() if message_ids}

    def expire(self, now_ms: int) -> set[str]:
        """End the leases whose time is over; return the identities that had such leases."""
        expired: set[str] = set()
        while self._due and self._due[0][0] <= now_ms:
            at_ms, did = heapq.heappop(self._due)
            if self._looks.get(did) != at_ms:
                continue
            held = self._held[did]
            ended = [i for i, lease in held.items() if lease.until_ms <= now_ms]
            if ended:
                expired.add(did)
                self.end(did, ended)
            if held:
                self._look_at(did, min(lease.until_ms for lease in held.values()))
        return expired

    def _make_room(self) -> None:
        """End leases until half of the slots are free, first of the identities with the most.

        Delays stay, and their slots do not count: an end is all that announces these messages.
        Requests get at once what is free again. Live sessions are notified only when the first of
        these leases would have ended: those that acknowledge nothing would fill the table again at
        once. Of too many identities some are not, and wait for their next wake-up.
        """
        most = [
            (-sum(lease.session != HELD_BACK for lease in held.values()), self._looks[did], did)
            for did, held in self._held.items()
        ]
        heapq.heapify(most)
        while self._slots > (SLOTS_MAX + self._delayed) // 2:
            count, ends_ms, did = heapq.heappop(most)
            leases = self._held[did].items()
            ends = {i: lease.until_ms for i, lease in leases if lease.session != HELD_BACK}
            if count == -1:
                self.end(did, ends)
                continue
            first = min(ends, key=ends.__getitem__)
            self.end(did, ends.keys() - {first})
            held = self._held[did]
            held[_ENDED_EARLY] = held.pop(first)
            heapq.heappush(most, (-1, ends_ms, did))

    def _look_at(self, did: str, at_ms: int) -> None:
        self._looks[did] = at_ms
        heapq.heappush(self._due, (at_ms, did))
        # Of an identity whose leases came and went, or ended ever earlier, many times are left.
        if len(self._due) > _LEFT_MAX + 2 * len(self._looks):
            self._tidy()

    def _tidy(self) -> None:
        self._due = [(at_ms, did) for did, at_ms in self._looks.items()]
        heapq.heapify(self._due)


def _slots_of(did: str) -> int:
    """The slots that an identity takes besides those of its leases."""
    return 3 + len(did) // 128


def _delayed(did: str, leases: Iterable[Lease]) -> int:
    """The slots of those among an identity's leases that delay messages, if it had no others."""
    return (1 + _slots_of(did)) * sum(lease.session == HELD_BACK for lease in leases)
