"""The life of an identity in the memory of its host: load, run, account, snapshot, passivate.

1. *Load*: the first command that needs an identity reads its snapshot and the events after it
   (``StateCache.get``, ``actors.host.stored_states``).
2. *Run*: each command is decided on the state, and its events advance the state at once, so the
   next command of the batch sees them (``CachedIdentity.run``). After a failed append everything
   that it touched is dropped, because it may differ from the log (``StateCache.drop_partition``).
3. *Account*: after the commit, the memory of the identity is counted again (``StateCache.settle``);
   pages that its answers name are read from the log (``actors.host.pages``).
4. *Snapshot*: after enough events (``StateCache.snapshot_if_due``).
5. *Passivate*: an identity that has been idle for long, or the least recently used one when memory
   is short, is dropped (``StateCache.passivate``). Dropping is always safe: the log has everything.

An identity without events is kept for one transaction, in which it may get its first event and be
needed again; so commands for unknown DIDs cost no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent

from actors.core.commands import Command, ExpireRecords, UpdateEventTags
from actors.core.decide import decide
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.erasure import is_at_saved_events
from actors.core.evolve import evolve_all
from actors.core.identity import Identity
from actors.core.limits import HostLimits
from actors.core.message_queue import lost
from actors.core.retention import due_times, lapsed
from actors.host.measures import HostStats
from actors.host.owned_partition import OwnedPartition
from actors.host.stored_states import read_identities, read_identity, snapshot_of
from eventstore.log.codec import encode
from eventstore.log.errors import LogError
from eventstore.log.event_log import Changed, DueSnapshot, EventLog, Listed, QueueDepth
from eventstore.log.events import Event
from eventstore.log.streams import identity_stream

_RECORDS_EACH: Final = 8
"""A snapshot of so many records for each event since the last one is worth its cost: 0.3 KiB and
1 µs for each event, and a queue that was only filled is loaded four times as fast as row by row."""
_COUNTED_AFTER: Final = 16
"""The names of a state are counted anew after one change to each 16 of its records."""
_AHEAD_AT_ONCE: Final = 32
"""Identities that are read together. Their snapshots may be of any size: 24 MiB for full queues."""
LOADS_PER_CACHE: Final = 16
"""The part of ``active_bytes_max`` that one transaction loads: 16 MiB by default, thousands of
usual identities. It takes 30 ms from snapshots, as long as costly commands have."""
_AHEAD_MIN: Final = 2
"""Identities that are worth reading together: a single one is read as fast by ``get``."""


class CachedIdentity(msgspec.Struct, gc=True):
    """An identity in memory, with what its host must know about it."""

    did: str
    stream: UUID
    partition: str
    state: Identity
    snapshot_version: int
    used_ms: int
    weight_bytes: int = 0
    name_bytes: int = 0
    """Of ``weight_bytes``; counted anew when much has changed since the version ``named_at``."""
    named_at: int = 0
    named_records: int = 0
    missing: set[int] = set()
    """Versions of waiting records whose content was found to be missing."""
    damaged: set[int] = set()
    """Versions of records that were left out of a page since the host last looked."""
    stored_oldest_ms: int | None = None
    stored_rest: tuple[object, ...] = ()
    """The fields of ``depth``, apart from sizes, that the log has; a failed append drops them."""
    unlisted: int = 0
    """The version of the erasure whose saved events were found to be on no list any more."""

    def take_damaged(self) -> list[str]:
        """The ids of envelopes that were left out of a page since this was last called."""
        waiting, damaged, self.damaged = self.state.messages, self.damaged, set()
        return [i for i in self.state.envelopes if waiting[i].version in damaged]

    def listed(self, log: EventLog) -> Listed:
        """Where the saved events that an erasure is about to erase are listed.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        erasing = self.state.erasing
        if not is_at_saved_events(self.state) or self.unlisted == erasing:
            return Listed.NOT
        found = log.how_listed(self.stream)
        self.unlisted = erasing if found is Listed.NOT else 0
        return found

    def saved(self, command: Command, log: EventLog) -> Collection[str]:
        """The ids in the command that are saved events of this identity.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        if not isinstance(command, UpdateEventTags) or not self.state.saved_events:
            return ()
        return log.known_saved_events(self.stream, {u.event_id for u in command.updates})

    def run(self, command: Command, context: DecisionContext, record: Record) -> Decision:
        """Decide on one command, after removing records that have expired.

        ``record`` gets the events of each step for the transaction, and calls ``advance``.
        """
        if self.missing:
            gone = lost(self.state, self.missing, context)
            self.missing = set()
            if gone:
                record(self, gone)
        # ``ExpireRecords`` itself removes expired records, within a bound of its own.
        if not isinstance(command, ExpireRecords) and (over := lapsed(self.state, context)):
            record(self, over)
        decision = decide(self.state, command, context)
        if isinstance(decision, Accepted) and decision.events:
            record(self, decision.events)
        return decision

    def advance(self, events: Sequence[Event]) -> list[StoredEvent]:
        """Apply the next events to the state; return their rows for the log."""
        rows = [
            encode(self.stream, version, event)
            for version, event in enumerate(events, self.state.version + 1)
        ]
        evolve_all(self.state, events)
        return rows

    def depth(self) -> QueueDepth:
        """The queue and the due times of the identity now, to be stored with the append."""
        state = self.state
        oldest = next(iter(state.messages.values()), None)
        oldest_ms = None if oldest is None else oldest.at_ms
        did = "" if state.is_erased else self.did
        outbound = state.connection is not None and bool(state.connection.endpoint)
        due = due_times(state)
        rest = (did, outbound, *due)
        changed = Changed.SIZE if oldest_ms == self.stored_oldest_ms else Changed.OLDEST
        if rest != self.stored_rest:
            changed = Changed.ANYTHING
        self.stored_oldest_ms, self.stored_rest = oldest_ms, rest
        size = len(state.messages), state.queue_bytes
        return QueueDepth(self.stream, *size, oldest_ms, did, outbound, *due, changed)


Record: TypeAlias = Callable[[CachedIdentity, Sequence[Event]], None]
"""Takes the events of a command into the transaction; see ``TransactionPart.record``."""


class StateCache:
    """The identities in memory, bounded by number, bytes and idle time."""

    def __init__(self, log: EventLog, limits: HostLimits) -> None:
        self._log = log
        self._limits = limits
        self._cached: OrderedDict[str, CachedIdentity] = OrderedDict()
        self._newcomers: dict[str, CachedIdentity] = {}
        self.bytes = 0
        """The approximate size of the identities in memory."""
        self._is_unreadable = False
        self.activations = 0
        self._wanted: Iterator[tuple[str, str]] = iter(())
        """What is to be read ahead, each with its partition."""
        self._loaded_bytes = 0

    def __len__(self) -> int:
        """How many identities are in memory."""
        return len(self._cached)

    def count_in(self, stats: HostStats) -> None:
        """Set the figures of identities in memory."""
        stats.activations = self.activations
        stats.cached_identities = len(self)
        stats.cached_bytes = self.bytes

    def peek(self, did: str) -> Identity | None:
        """The state of an identity if it is in memory; this does not count as a use."""
        cached = self._cached.get(did)
        return None if cached is None else cached.state

    def dids(self) -> list[str]:
        """The identities in memory."""
        return list(self._cached)

    def get(self, did: str, partition: str, now_ms: int) -> CachedIdentity:
        """The identity, from memory or from the log.

        Raises:
            LogUnavailable: the log cannot be read.
            UnknownTopic, CorruptRow: the identity's stream cannot be understood.
        """
        cached = self._cached.get(did)
        if cached is not None:
            self._cached.move_to_end(did)
            cached.used_ms = now_ms
            return cached
        if self.lacks(did):
            self._read_some(now_ms)
        cached = self._cached.get(did) or self._newcomers.get(did)
        if cached is None:
            stream = identity_stream(did)
            state, version = read_identity(self._log, stream)
            cached = CachedIdentity(did, stream, partition, state, version, now_ms)
            self._take(cached)
        return cached

    def read_ahead(self, wanted: Iterable[tuple[str, str]], owned: Container[str]) -> None:
        """Have ``get`` load the next of the wanted identities together with the one that it needs.

        ``wanted`` names each with its partition, in the order in which they are needed. Identities
        of partitions not owned yet are left out, since a state read before the claim may be
        outdated after it; so are those that belong to another partition, whose owner changes them.
        ``get`` loads all that this does not.
        """
        self._wanted = ((did, partition) for did, partition in wanted if partition in owned)

    def _read_some(self, now_ms: int) -> None:
        """Load the next wanted identities that are not in memory with two queries."""
        some = islice((one for one in self._wanted if self.lacks(one[0])), _AHEAD_AT_ONCE)
        absent = {identity_stream(one[0]): one for one in some}
        if len(absent) < _AHEAD_MIN:
            return
        read = read_identities(self._log, list(absent))
        with suppress(LogError):
            for stream, state, version in takewhile(lambda _: not self.has_loaded_enough, read):
                did, partition = absent[stream]
                if bool(state.dedicated_by) == (partition == did):
                    self._take(CachedIdentity(did, stream, partition, state, version, now_ms))

    def settle(self, cached: CachedIdentity) -> None:
        """Count the memory of a changed identity again, and keep the identity if it is new."""
        if cached.did not in self._cached:
            self._newcomers.pop(cached.did, None)
            self._cached[cached.did] = cached
        state, records = cached.state, cached.state.live_records()
        changes = state.version - cached.named_at + abs(records - cached.named_records)
        if _COUNTED_AFTER * changes > records:
            cached.name_bytes = state.name_bytes()
            cached.named_at, cached.named_records = state.version, records
        weight = state.weight_bytes() + cached.name_bytes + len(cached.did)
        self.bytes += weight - cached.weight_bytes
        cached.weight_bytes = weight

    def lack(self, did: str, missing: Collection[int], damaged: Collection[int]) -> None:
        """Note waiting records without content, or with a damaged one, found by a separate read."""
        if (cached := self._cached.get(did)) is not None:
            cached.missing.update(missing)
            cached.damaged.update(damaged)

    def drop(self, did: str) -> None:
        """Drop an identity that belongs to another owner now."""
        self._newcomers.pop(did, None)
        cached = self._cached.get(did)
        if cached is not None:
            self._drop(cached)

    def drop_partition(self, partition: str) -> None:
        """Drop every identity of a partition: those in memory may differ from the log."""
        for cached in [r for r in self._cached.values() if r.partition == partition]:
            self._drop(cached)
        for cached in [r for r in self._newcomers.values() if r.partition == partition]:
            del self._newcomers[cached.did]

    def passivate(self, now_ms: int, owned: Mapping[str, OwnedPartition]) -> list[DueSnapshot]:
        """Drop idle identities and those beyond the bounds; return their due snapshots.

        Call this between transactions, with the owned partitions.
        """
        self._newcomers.clear()
        self._loaded_bytes = 0
        self._is_unreadable = False
        idle_before_ms = now_ms - int(self._limits.identity_idle_s * 1000)
        due: list[DueSnapshot] = []
        while self._cached:
            oldest = next(iter(self._cached.values()))
            if not (
                oldest.used_ms < idle_before_ms
                or len(self._cached) > self._limits.active_identities_max
                or self.bytes > self._limits.active_bytes_max
            ):
                break
            snapshot = self.snapshot_if_due(oldest, owned)
            if snapshot is not None:
                due.append(snapshot)
            self._drop(oldest)
        return due

    def set_back(self, back_ms: int) -> None:
        """Have no identity stay longer because the clock was set back by ``back_ms``."""
        for cached in self._cached.values():
            cached.used_ms -= back_ms

    def snapshot_if_due(
        self, cached: CachedIdentity, owned: Mapping[str, OwnedPartition]
    ) -> DueSnapshot | None:
        """A snapshot if enough events came since the last one, behind its partition's newest seal.

        "Enough" grows with the size of the state, so the cost per event stays constant. That of a
        key, of a DID that speaks for an account, or of an account that another DID spoke for until
        its end, is made from the log; there is none if the log cannot be read, which is tried once
        until the next ``passivate``.
        """
        state, partition = cached.state, owned.get(cached.partition)
        due_after = max(self._limits.snapshot_after_events, state.live_records() // _RECORDS_EACH)
        # A snapshot from before an erasure has the names that the erasure ended: replace it.
        new = state.version - cached.snapshot_version
        if partition is None or (new < due_after and not (state.is_erased and new)):
            return None
        is_over = state.connection is None
        if state.claim or state.account_did or (state.speaker_did and is_over):
            # An earlier owner of the key, the account, or the DID that spoke for it may have been
            # erased: then the rows no longer name it.
            if self._is_unreadable:
                return None
            try:
                state, _ = read_identity(self._log, cached.stream)
            except LogError:
                self._is_unreadable = True
                return None
            if state.version != cached.state.version:
                return None  # with rows of the next owner, for which the seal does not stand
        cached.snapshot_version = state.version
        return DueSnapshot(cached.stream, snapshot_of(state), partition.place)

    def _drop(self, cached: CachedIdentity) -> None:
        del self._cached[cached.did]
        self.bytes -= cached.weight_bytes

    def lacks(self, did: str) -> bool:
        """Is an identity to be loaded before it is used?"""
        return did not in self._cached and did not in self._newcomers

    @property
    def has_loaded_enough(self) -> bool:
        """Has the transaction loaded its part of the cache?"""
        return self._loaded_bytes >= self._limits.active_bytes_max // LOADS_PER_CACHE

    def _take(self, loaded: CachedIdentity) -> None:
        self.activations += 1
        state = loaded.state
        if state.version:
            self.settle(loaded)
            self._loaded_bytes += loaded.weight_bytes
        else:
            self._newcomers[loaded.did] = loaded
