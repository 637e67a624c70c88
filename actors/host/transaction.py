"""A transaction before its single append: rows, nonces, and the identities that it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from eventsourcing.persistence import StoredEvent

from actors.core.cost import page_cost
from actors.core.decision import (
    TOGETHER_BYTES_MAX,
    Accepted,
    DeliveryRefs,
    Leasing,
    MessageRefs,
    Refs,
)
from actors.core.nonces import NonceClaim, expiry_ms
from actors.core.replies import Notice, Reply
from actors.core.submissions import Submission
from actors.host.owned_partition import OwnedPartition
from actors.host.state_cache import CachedIdentity, StateCache
from eventstore.log.event_log import QueueDepth
from eventstore.log.events import Event, MessagesRemoved

_REQUESTS_NAMED_MAX: Final = 20
_SMALL_BYTES: Final = 65_536
"""Up to this size a page of messages is always read in its transaction."""


class Outcome(msgspec.Struct):
    """The outcome of a command before the commit: the answer if the append succeeds.

    ``is_beside``: the answer is a page that is too large for the transaction to read it.
    ``units``: what the page costs, and the search for it, even if the edge reads it later.
    """

    reply: Reply | Refs
    cached: CachedIdentity | None = None
    notice: Notice | None = None
    leasing: Leasing | None = None
    is_beside: bool = False
    units: float = 0.0

    @property
    def page_bytes(self) -> int:
        """The approximate size of the answer if it is a page, else 0."""
        return self.reply.size_bytes if isinstance(self.reply, Refs) else 0


def _named(one: Submission) -> tuple[str, ...]:
    """The identities to load for it: the sender of a claim, too, where its shard is crowded."""
    return (one.target_did,) if one.claim is None else (one.target_did, one.claim.sender_did)


class TransactionPart:
    """The part of a transaction that belongs to one partition."""

    def __init__(
        self, touched: dict[str, CachedIdentity], removed: list[tuple[str, MessagesRemoved]]
    ) -> None:
        """An empty part of a transaction, which collects what all parts touch and remove."""
        self.rows: list[StoredEvent] = []
        self.events: list[Event] = []
        self.nonces: list[tuple[bytes, int]] = []
        self._touched = touched
        self._removed = removed

    def record(self, cached: CachedIdentity, events: Sequence[Event]) -> None:
        """Take the events of one accepted command and advance its identity."""
        self.rows += cached.advance(events)
        self.events += events
        self._touched[cached.did] = cached
        for event in events:
            if isinstance(event, MessagesRemoved):
                self._removed.append((cached.did, event))


class Transaction:
    """Events and nonces of many commands, collected for one append.

    States and nonce windows advance at once, so that the next command of the batch sees them; if
    the append fails, everything touched has to be dropped.

    Attributes:
        items: The submissions, each with the edge that sent it; ``submissions`` may drop the last.
        log_failed: Could the log not be read or written? Then no further identity or page is read:
            each question may take as long as the log's time-out, and all clients wait for the sum.
        has_claimed: Has it claimed a partition, which is an append of its own?
        is_short_of_disk: Does it accept only commands that store next to nothing?
        ahead_ms: By how much the clock has gone ahead, if nothing expires by that yet.
    """

    def __init__(
        self, items: Sequence[tuple[str, Submission]], now_ms: int, window_ms: int
    ) -> None:
        """An empty transaction, decided at ``now_ms`` under a timestamp window."""
        self.items = items
        self.now_ms = now_ms
        self._window_ms = window_ms
        self._parts: dict[OwnedPartition, TransactionPart] = {}
        self.touched: dict[str, CachedIdentity] = {}
        self.leased: list[tuple[str, Leasing]] = []
        self.removed: list[tuple[str, MessagesRemoved]] = []
        self.notices: list[tuple[str, Notice]] = []
        self.unproven: list[bytes] = []
        """Nonces that it claimed and that are kept in memory alone."""
        self.log_failed = False
        self.has_claimed = False
        self.is_short_of_disk = False
        self.ahead_ms = 0
        self._page_bytes_left = TOGETHER_BYTES_MAX
        self.misplaced: set[str] = set()
        """Identities that belong to another owner once the transaction is committed."""

    def submissions(
        self, cache: StateCache, has_read_long: Callable[[], bool]
    ) -> Iterator[Submission]:
        """Yield the submissions in order until enough is loaded; drop the rest from ``items``.

        A request that costs next to nothing may name an identity whose state takes megabytes, and
        the next request another one. A log that is slow to read gives only so many in time.
        """
        for number, (_, one) in enumerate(self.items):
            is_full = cache.has_loaded_enough or has_read_long()
            if number and is_full and any(map(cache.lacks, _named(one))):
                self.items = self.items[:number]
                return
            yield one

    @property
    def partitions(self) -> Sequence[OwnedPartition]:
        """The partitions that this transaction writes to."""
        return list(self._parts)

    def part(self, partition: OwnedPartition) -> TransactionPart:
        """The part of a partition; the transaction counts only if the host owns that partition."""
        part = self._parts.get(partition)
        if part is None:
            part = self._parts[partition] = TransactionPart(self.touched, self.removed)
        return part

    @property
    def has_used_log(self) -> bool:
        """Has it used any partition? A command that is turned away before may still claim one."""
        return self.has_claimed or bool(self._parts)

    @property
    def is_empty(self) -> bool:
        """Is there nothing to store?"""
        return not any(part.rows or part.nonces for part in self._parts.values())

    def expiry_ms(self, claim: NonceClaim) -> int:
        """When the nonce of this claim may be dropped."""
        return expiry_ms(self.now_ms, claim.timestamp_ms, self._window_ms)

    @property
    def page_bytes_max(self) -> int:
        """The size up to which one more page of messages is read in the transaction."""
        return max(self._page_bytes_left, _SMALL_BYTES)

    def outcome(self, decision: Accepted, cached: CachedIdentity) -> Outcome:
        """The outcome of an accepted command; its page counts if it is read in the transaction."""
        reply, is_beside = decision.reply, False
        if isinstance(reply, MessageRefs | DeliveryRefs):
            is_beside = reply.size_bytes > self.page_bytes_max
            self._page_bytes_left -= 0 if is_beside else reply.size_bytes
        units = page_cost(0, 0, decision.looked_at)
        if isinstance(reply, Refs):
            units = page_cost(len(reply.versions), reply.size_bytes, decision.looked_at)
        if decision.notice is not None:
            self.notices.append((cached.did, decision.notice))
        return Outcome(reply, cached, decision.notice, decision.leasing, is_beside, units)

    def claim_nonce(
        self, partition: OwnedPartition, claim: NonceClaim, *, counted_for: bytes | None
    ) -> None:
        """Claim a sender's nonce together with its command's effect (DCTRL-0004 5.2)."""
        expires_ms = self.expiry_ms(claim)
        partition.nonces.add(claim.key, expires_ms, counted_for)
        self.part(partition).nonces.append((claim.key, expires_ms))

    def claimed(self) -> Iterator[tuple[OwnedPartition, bytes, int]]:
        """The nonces that it claimed with effects, each with its partition and expiry."""
        for partition, part in self._parts.items():
            for key, expires_ms in part.nonces:
                yield partition, key, expires_ms

    def stored(self) -> Sequence[tuple[Sequence[StoredEvent], Sequence[Event]]]:
        """The rows to store for each partition, and the events in them."""
        return [(part.rows, part.events) for part in self._parts.values()]

    def sealed(self) -> tuple[list[StoredEvent], list[Event]]:
        """All rows in log order, each partition's rows directly followed by its seal."""
        rows: list[StoredEvent] = []
        events: list[Event] = []
        for partition, part in self._parts.items():
            row, event = partition.seal(
                part.rows, part.events, part.nonces, at_ms=self.now_ms, window_ms=self._window_ms
            )
            rows += part.rows
            rows.append(row)
            events += part.events
            events.append(event)
        return rows, events

    def depths(self) -> list[QueueDepth]:
        """The queues of the touched identities after this transaction."""
        # Keys, invitations and DIDs that speak for another account have streams but no queue.
        return [
            r.depth()
            for did, r in self.touched.items()
            if did.startswith("did:") and (r.state.is_known or not r.state.account_did)
        ]


def request_ids(items: Sequence[tuple[str, Submission]]) -> list[str]:
    """The ids of the first requests that these commands belong to, for a log line."""
    named = dict.fromkeys(submission.request_id for _, submission in items)
    return [request_id for request_id in named if request_id][:_REQUESTS_NAMED_MAX]
