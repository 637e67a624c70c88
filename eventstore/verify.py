"""Proves that a log is the one that was sealed: nothing changed, removed, added or moved.

Every transaction ends the rows of each partition with a seal (``eventstore.seal``) that chains
them to the partition's previous seal. Reading the log once in its order is enough to check
all of it.

What this cannot see: whole transactions that are missing from the end of a partition, since a
chain has no mark of its end. Compare ``Summary.heads`` with heads kept elsewhere (the exporter's
signed manifest), or pass those as ``known_heads``.

Memory: one integer for each stream, one head for each partition, the rows of one transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from eventsourcing.persistence import Notification, StoredEvent

from eventstore.batch import BATCH_BYTES_MAX
from eventstore.codec import decode, encode, partition_stream
from eventstore.errors import CorruptRow, UnknownTopic
from eventstore.events import BatchSealed, Event
from eventstore.log import EventLog
from eventstore.seal import GENESIS, seal

PAGE_ROWS: Final = 256

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the position reached and the position where the check ends."""


class Fault(Enum):
    """What can be wrong with a row or a seal."""

    MALFORMED_ROW = "malformed-row"
    """A column does not hold its type, or the stream is not a UUID as it is written here."""
    UNKNOWN_TOPIC = "unknown-topic"
    UNDECODABLE_STATE = "undecodable-state"
    VERSION_BREAK = "version-break"
    """The version does not follow the stream's last one: rows are missing, moved or added."""
    UNSEALED_ROWS = "unsealed-rows"
    """No seal covers these rows: they were added, or their seal was removed."""
    MISSING_ROWS = "missing-rows"
    """The seal covers more rows than stand before it."""
    FOREIGN_SEAL = "foreign-seal"
    """The seal names another partition than the one whose stream it stands in."""
    BROKEN_CHAIN = "broken-chain"
    """The seal does not continue from the partition's last seal."""
    BROKEN_SEAL = "broken-seal"
    """The seal is not the one that these rows give: some of them, or it, was changed."""
    MISSING_HEAD = "missing-head"
    """A head that was known before is not in the log: its end was cut off."""


class Head(NamedTuple):
    """The newest seal of a partition: its version in the partition's stream and its digest."""

    version: int
    digest: bytes


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong in the rows of these positions.

    ``stream`` and ``version`` are those of the row at ``last_position``; ``partition`` is set
    when a seal says it.
    """

    fault: Fault
    first_position: int
    last_position: int
    stream: UUID | str
    version: int
    partition: str | None
    explanation: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: what was read, and the head of each partition's chain."""

    position: int
    rows: int
    seals: int
    streams: int
    findings: int
    heads: dict[str, Head]


def verify(
    log: EventLog,
    *,
    known_heads: Mapping[str, Head] | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding | Summary]:
    """Check the log up to its present end; the last item is the ``Summary``.

    Args:
        log: the log to read; others may append meanwhile.
        known_heads: heads by partition from an earlier check or export; each must be found.
        progress: called after each page of rows.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    return _Check(known_heads or {}).run(log, progress or (lambda _reached, _end: None))


class _Check:
    """The state of one pass over the log."""

    def __init__(self, known_heads: Mapping[str, Head]) -> None:
        self._missing = dict(known_heads)
        self._versions: dict[UUID | str, int] = {}
        self._heads: dict[str, Head] = {}
        self._unsealed: list[Notification] = []
        self._unsealed_bytes = self._sealed_to = 0
        self._rows = self._seals = self._findings = 0

    def run(self, log: EventLog, progress: Progress) -> Iterator[Finding | Summary]:
        end = log.position()
        reached = 0
        while reached < end:
            page = [row for row in log.read_log(after=reached, limit=PAGE_ROWS) if row.id <= end]
            if not page:
                break
            for row in page:
                yield from self._counted(self._check_row(row))
            reached = page[-1].id
            progress(reached, end)
        yield from self._counted(self._drop_unsealed(len(self._unsealed)))
        yield from self._counted(self._check_known_heads(end))
        yield Summary(
            position=end,
            rows=self._rows,
            seals=self._seals,
            streams=len(self._versions),
            findings=self._findings,
            heads=self._heads,
        )

    def _counted(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        for finding in findings:
            self._findings += 1
            yield finding

    def _check_row(self, row: Notification) -> Iterator[Finding]:
        self._rows += 1
        if not _is_well_formed(row):
            yield _finding(Fault.MALFORMED_ROW, row, "a column does not hold its type")
            self._take_unsealed(row)
            return
        expected = self._versions.get(row.originator_id, 0) + 1
        if row.originator_version != expected:
            yield _finding(Fault.VERSION_BREAK, row, f"version {expected} should stand here")
        self._versions[row.originator_id] = row.originator_version
        event: Event | None = None
        try:
            event = decode(row.topic, row.state)
        except UnknownTopic:
            yield _finding(Fault.UNKNOWN_TOPIC, row, f"topic {row.topic!r}")
        except CorruptRow as error:
            yield _finding(Fault.UNDECODABLE_STATE, row, str(error))
        if isinstance(event, BatchSealed):
            yield from self._check_seal(row, event)
            return
        self._take_unsealed(row)
        if self._unsealed_bytes > BATCH_BYTES_MAX:
            # No transaction is that large: the seal of these rows is gone.
            yield from self._drop_unsealed(len(self._unsealed))

    def _take_unsealed(self, row: Notification) -> None:
        self._unsealed.append(row)
        self._unsealed_bytes += _state_bytes(row)

    def _drop_unsealed(self, count: int) -> Iterator[Finding]:
        """Report the first rows that wait for a seal, and wait no longer for them."""
        dropped, self._unsealed = self._unsealed[:count], self._unsealed[count:]
        self._unsealed_bytes = sum(map(_state_bytes, self._unsealed))
        for row in dropped:
            yield _finding(Fault.UNSEALED_ROWS, row, "no seal covers this row")

    def _check_seal(self, row: Notification, sealed: BatchSealed) -> Iterator[Finding]:
        self._seals += 1
        name = sealed.partition
        if partition_stream(name) != row.originator_id:
            yield _finding(Fault.FOREIGN_SEAL, row, "not in the stream of its partition", name)
        head = self._heads.get(name, Head(0, GENESIS))
        if sealed.previous != head.digest:
            yield _finding(Fault.BROKEN_CHAIN, row, f"does not continue seal {head.version}", name)
        spare = len(self._unsealed) - sealed.rows
        if spare > 0:
            yield from self._drop_unsealed(spare)
        covered, self._unsealed, self._unsealed_bytes = self._unsealed, [], 0
        first_position, self._sealed_to = self._sealed_to + 1, row.id
        if spare < 0:
            missing = f"{-spare} of the {sealed.rows} rows that it covers are missing"
            yield _finding(Fault.MISSING_ROWS, row, missing, name, first_position)
        elif not _is_seal_of(covered, row, sealed):
            changed = f"not the seal of the {sealed.rows} rows before it"
            yield _finding(Fault.BROKEN_SEAL, row, changed, name, first_position)
        self._heads[name] = found = Head(row.originator_version, sealed.digest)
        if self._missing.get(name) == found:
            del self._missing[name]

    def _check_known_heads(self, end: int) -> Iterator[Finding]:
        for name, known in self._missing.items():
            yield Finding(
                fault=Fault.MISSING_HEAD,
                first_position=end,
                last_position=end,
                stream=partition_stream(name),
                version=known.version,
                partition=name,
                explanation=f"seal {known.version} with digest {known.digest.hex()} is not here",
            )


def _state_bytes(row: StoredEvent) -> int:
    return len(row.state) if _is_well_formed(row) else 0


def _is_well_formed(row: StoredEvent) -> bool:
    """Whether every column holds its type (SQLite columns take any) in the form we write."""
    columns = (row.originator_id, row.originator_version, row.topic, row.state)
    return tuple(map(type, columns)) == (UUID, int, str, bytes) and row.topic.isascii()


def _is_seal_of(covered: Sequence[StoredEvent], row: Notification, sealed: BatchSealed) -> bool:
    """Whether the row is, to the byte, the seal of these rows."""
    if not all(map(_is_well_formed, covered)):
        return False
    try:
        expected = seal(
            covered,
            partition=sealed.partition,
            epoch=sealed.epoch,
            at_ms=sealed.at_ms,
            window_ms=sealed.window_ms,
            nonces=sealed.nonces,
            previous=sealed.previous,
        )
    except struct.error:
        return False  # a number that no seal can hold
    stream = partition_stream(sealed.partition)
    return encode(stream, row.originator_version, expected).state == row.state


def _finding(
    fault: Fault,
    row: Notification,
    explanation: str,
    partition: str | None = None,
    first_position: int | None = None,
) -> Finding:
    return Finding(
        fault=fault,
        first_position=row.id if first_position is None else first_position,
        last_position=row.id,
        stream=row.originator_id,
        version=row.originator_version,
        partition=partition,
        explanation=explanation,
    )
