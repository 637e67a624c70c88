"""What one transaction gathers before its single append: rows, nonces, and who is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventsourcing.persistence import StoredEvent

from actors.commands import Submission
from actors.decision import Leasing
from actors.evolution import evolve
from actors.nonces import expiry_ms
from actors.partition import Partition
from actors.residency import Resident
from eventstore.codec import encode
from eventstore.events import Event
from eventstore.log import QueueDepth

_REQUESTS_NAMED_MAX: Final = 20


class _Part:
    """The part of a transaction that belongs to one partition."""

    def __init__(self) -> None:
        self.rows: list[StoredEvent] = []
        self.events: list[Event] = []
        self.nonces: list[tuple[bytes, int]] = []


class Transaction:
    """Events and nonces of many commands, on their way to one append.

    States and nonce windows are advanced at once, so the next command of the batch sees them; if
    the append fails, everything touched has to be dropped.

    Attributes:
        log_failed: Could the log not be read or written? Then nothing more is asked of it: each
            question may take as long as the log's time-out, and everybody waits for the sum.
    """

    def __init__(self, now_ms: int, window_ms: int) -> None:
        """An empty transaction, decided at ``now_ms`` under a timestamp window."""
        self.now_ms = now_ms
        self._window_ms = window_ms
        self._parts: dict[Partition, _Part] = {}
        self.touched: dict[str, Resident] = {}
        self.leased: list[tuple[str, Leasing]] = []
        self.items: Sequence[tuple[str, Submission]] = ()
        """What is run in it, each with the edge that asks."""
        self.log_failed = False
        self.misplaced: set[str] = set()
        """Identities that belong to another owner once this is committed."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions that this transaction writes to."""
        return list(self._parts)

    def touch(self, partition: Partition) -> None:
        """Seal this partition, whether or not anything is stored in it."""
        self._part(partition)

    def claim_nonce(self, partition: Partition, key: bytes, timestamp_ms: float) -> None:
        """Take a sender's nonce (DCTRL-0004 5.4 step 3)."""
        expires_ms = expiry_ms(self.now_ms, timestamp_ms, self._window_ms)
        partition.nonces.add(key, expires_ms)
        self._part(partition).nonces.append((key, expires_ms))

    def record(self, partition: Partition, resident: Resident, events: Sequence[Event]) -> None:
        """Take the events of one accepted command and advance its identity."""
        part = self._part(partition)
        state = resident.state
        for event in events:
            part.rows.append(encode(resident.stream, state.version + 1, event))
            part.events.append(event)
            evolve(state, event)
        self.touched[resident.did] = resident

    def sealed(self) -> tuple[list[StoredEvent], list[Event]]:
        """All rows in log order, each partition's rows directly followed by its seal."""
        rows: list[StoredEvent] = []
        events: list[Event] = []
        for partition, part in self._parts.items():
            row, event = partition.seal(
                part.rows, part.nonces, at_ms=self.now_ms, window_ms=self._window_ms
            )
            rows += part.rows
            rows.append(row)
            events += part.events
            events.append(event)
        return rows, events

    def depths(self) -> list[QueueDepth]:
        """The queues of the touched identities as they are after this transaction."""
        # Keys and invitations have streams too, but nothing ever waits for them.
        return [r.depth() for did, r in self.touched.items() if did.startswith("did:")]

    def _part(self, partition: Partition) -> _Part:
        part = self._parts.get(partition)
        if part is None:
            part = self._parts[partition] = _Part()
        return part


def request_ids(items: Sequence[tuple[str, Submission]]) -> list[str]:
    """The requests that these commands belong to, the first of them, for a line of the log."""
    named = dict.fromkeys(submission.request_id for _, submission in items)
    return [request_id for request_id in named if request_id][:_REQUESTS_NAMED_MAX]
