"""Which identities are in memory: activation from snapshot and tail, passivation, snapshots.

An identity is loaded by the first command that needs it and dropped when it has been idle too
long or memory is short; the least recently used goes first. Dropping is always safe: the log has
everything. An identity without events is kept for one transaction, in which it may get its first
event and be asked again; so asking for unknown DIDs costs no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

import msgspec

from actors.evolution import evolve, from_snapshot, to_snapshot
from actors.identity import FOLD, Identity
from actors.limits import HostLimits
from eventstore.codec import decode, identity_stream
from eventstore.errors import CorruptRow
from eventstore.log import EventLog, QueueDepth, Snapshot

_ROWS_PER_READ = 1_000


class Resident(msgspec.Struct, gc=True):
    """An identity in memory and what its host must know about it."""

    did: str
    stream: UUID
    partition: str
    state: Identity
    snapshot_version: int
    used_ms: int
    weight_bytes: int = 0

    def depth(self) -> QueueDepth:
        """What waits for the identity now."""
        messages = self.state.messages
        oldest = next(iter(messages.values()), None)
        return QueueDepth(
            self.stream,
            len(messages),
            self.state.queue_bytes,
            None if oldest is None else oldest.at_ms,
            self.did,
            self.state.connection is not None and bool(self.state.connection.endpoint),
        )


class Residency:
    """The identities in memory, bounded by number, bytes and idle time."""

    def __init__(self, log: EventLog, limits: HostLimits) -> None:
        """An empty residency over a log."""
        self._log = log
        self._limits = limits
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._newcomers: dict[str, Resident] = {}
        self._bytes = 0
        self.activations = 0

    def __len__(self) -> int:
        """How many identities are in memory."""
        return len(self._residents)

    @property
    def bytes(self) -> int:
        """Roughly what they take."""
        return self._bytes

    def peek(self, did: str) -> Identity | None:
        """The state of an identity that is in memory; this counts as no use of it."""
        resident = self._residents.get(did)
        return None if resident is None else resident.state

    def dids(self) -> list[str]:
        """The identities in memory."""
        return list(self._residents)

    def get(self, did: str, partition: str, now_ms: int) -> Resident:
        """The identity, from memory or from the log.

        Raises:
            LogUnavailable: the log cannot be read.
            UnknownTopic, CorruptRow: its stream cannot be understood.
        """
        resident = self._residents.get(did)
        if resident is not None:
            self._residents.move_to_end(did)
            resident.used_ms = now_ms
            return resident
        resident = self._newcomers.get(did)
        if resident is None:
            resident = self._activate(did, partition, now_ms)
            if resident.state.version:
                self.settle(resident)
            else:
                self._newcomers[did] = resident
        return resident

    def settle(self, resident: Resident) -> None:
        """Account for what a changed identity takes now, and keep it if it is new."""
        if resident.did not in self._residents:
            self._newcomers.pop(resident.did, None)
            self._residents[resident.did] = resident
        weight = resident.state.weight_bytes()
        self._bytes += weight - resident.weight_bytes
        resident.weight_bytes = weight

    def drop(self, did: str) -> None:
        """Forget an identity, which belongs to another owner now."""
        self._newcomers.pop(did, None)
        resident = self._residents.get(did)
        if resident is not None:
            self._drop(resident)

    def drop_partition(self, partition: str) -> None:
        """Forget every identity of a partition: what is in memory may differ from the log."""
        for resident in [r for r in self._residents.values() if r.partition == partition]:
            self._drop(resident)
        for resident in [r for r in self._newcomers.values() if r.partition == partition]:
            del self._newcomers[resident.did]

    def passivate(self, now_ms: int) -> list[tuple[UUID, Snapshot]]:
        """Drop what is idle or over the bounds; the snapshots that are due for them.

        Called between transactions.
        """
        self._newcomers.clear()
        idle_before_ms = now_ms - int(self._limits.identity_idle_s * 1000)
        due: list[tuple[UUID, Snapshot]] = []
        while self._residents:
            oldest = next(iter(self._residents.values()))
            if not (
                oldest.used_ms < idle_before_ms
                or len(self._residents) > self._limits.active_identities_max
                or self._bytes > self._limits.active_bytes_max
            ):
                break
            snapshot = self.snapshot_if_due(oldest)
            if snapshot is not None:
                due.append((oldest.stream, snapshot))
            self._drop(oldest)
        return due

    def snapshot_if_due(self, resident: Resident) -> Snapshot | None:
        """A snapshot when enough events came since the last one.

        "Enough" grows with the size of the state, so the cost per event stays constant.
        """
        state = resident.state
        due_after = max(self._limits.snapshot_after_events, 2 * state.live_records())
        if state.version - resident.snapshot_version < due_after:
            return None
        resident.snapshot_version = state.version
        return Snapshot(version=state.version, fold=FOLD, state=to_snapshot(state))

    def _drop(self, resident: Resident) -> None:
        del self._residents[resident.did]
        self._bytes -= resident.weight_bytes

    def _activate(self, did: str, partition: str, now_ms: int) -> Resident:
        stream = identity_stream(did)
        self.activations += 1
        state, snapshot_version = read_identity(self._log, stream)
        return Resident(did, stream, partition, state, snapshot_version, now_ms)


def read_identity(log: EventLog, stream: UUID) -> tuple[Identity, int]:
    """The identity from its snapshot and the events after it; the version of the snapshot.

    Raises:
        LogUnavailable: the log cannot be read.
        UnknownTopic, CorruptRow: its stream cannot be understood.
    """
    state = _from_snapshot(log, stream)
    snapshot_version = state.version
    while True:
        rows = log.read_stream(stream, after=state.version, limit=_ROWS_PER_READ)
        for row in rows:
            if row.originator_version != state.version + 1:
                raise CorruptRow(row.topic, f"version {state.version + 1} is missing")
            evolve(state, decode(row.topic, row.state))
        if len(rows) < _ROWS_PER_READ:
            return state, snapshot_version


def _from_snapshot(log: EventLog, stream: UUID) -> Identity:
    snapshot = log.load_snapshot(stream)
    if snapshot is None or snapshot.fold != FOLD:
        return Identity()
    return from_snapshot(snapshot.state) or Identity()
