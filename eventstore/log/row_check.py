"""Checks rows in the order of the log against their seals, wherever they were read.

``RowCheck`` checks the rows of a log (``eventstore.log.verify``), of an export
(``eventstore.parquet.verify``), or a part of either that follows a seal. The functions are the
rules that it shares with readers that stop at the first wrong row.

Memory: one integer for each stream, one head for each partition, the rows of one transaction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

from eventsourcing.persistence import Notification

from eventstore.log.batch import BATCH_BYTES_MAX
from eventstore.log.codec import decode, state_of
from eventstore.log.errors import CorruptRow, NotAsSealed, UnknownTopic
from eventstore.log.event_log import LogRow
from eventstore.log.events import SEAL_TOPIC, BatchSealed, Event
from eventstore.log.faults import Fault, Finding, Head, finding
from eventstore.log.redaction import redacted_state
from eventstore.log.seal import GENESIS, SealedRow, has_digest_over
from eventstore.log.streams import partition_stream


class _Waiting(NamedTuple):
    """A row that waits for its seal, with its event if that is decoded."""

    row: LogRow
    event: Event | None = None
    is_well_formed: bool = True

    @property
    def size_bytes(self) -> int:
        """What it counts towards the bound; a malformed state can be of any type, or empty."""
        state = self.row.state
        return len(state) if self.is_well_formed else sys.getsizeof(state)


class RowCheck:
    """The state of one pass over rows, from the first of the log or from after a seal.

    Attributes:
        versions: the last version of each stream (16 bytes) that was seen.
        begins: in a part of a log, the first row of each stream there, whose version the part
            alone cannot prove; None if the rows begin with the log.
        heads: the newest seal of each partition.
        known: the known heads that were not seen yet, by partition.
        known_to: the position of the newest of the known heads that were seen.
        seals: the number of seals that were seen.
    """

    def __init__(
        self,
        *,
        known: Mapping[str, Head] | None = None,
        heads: Mapping[str, Head] | None = None,
        part_after: int | None = None,
    ) -> None:
        """See the attributes.

        Args:
            known: heads that must be found.
            heads: in a part, the newest seals before it; if None, the check accepts the first
                seal of each partition as it is.
            part_after: the position of the seal that the part follows; None for a whole log.
        """
        self.versions: dict[bytes, int] = {}
        self.begins: dict[bytes, LogRow] | None = None if part_after is None else {}
        self.heads: dict[str, Head] = dict(heads or {})
        self.known = dict(known or {})
        self.known_to: int | None = None
        self.seals = 0
        self._heads_are_known = part_after is None or heads is not None
        self._sealed_to = part_after or 0
        self._unsealed: list[_Waiting] = []
        self._unsealed_bytes = 0

    def follow(
        self, rows: Iterable[LogRow], events: Iterable[Event | None] | None = None
    ) -> Iterator[Finding]:
        """Check the next rows, in which every column holds its type.

        ``events`` are the events in the rows, if they are already decoded.
        """
        for row, event in zip(rows, events or repeat(None), strict=False):
            last = self.versions.get(row.stream)
            if last is None and self.begins is not None:
                self.begins[row.stream] = row
            elif row.version != (last or 0) + 1:
                expected = f"version {(last or 0) + 1} should stand here"
                yield finding(Fault.VERSION_BREAK, row, expected)
            self.versions[row.stream] = row.version
            sealed = _sealed(row, event) if row.topic == SEAL_TOPIC else None
            if sealed is not None:
                yield from self._check_seal(row, sealed)
                continue
            yield from self._wait(_Waiting(row, event))

    def take_malformed(self, row: LogRow) -> Iterator[Finding]:
        """Take a row whose columns do not hold their types: no seal can cover it."""
        yield from self._wait(_Waiting(row, is_well_formed=False))

    def end(self) -> Iterator[Finding]:
        """Report the rows at the end that no seal covers."""
        yield from self._drop_unsealed(len(self._unsealed))

    def _wait(self, one: _Waiting) -> Iterator[Finding]:
        self._unsealed.append(one)
        self._unsealed_bytes += one.size_bytes
        if self._unsealed_bytes > BATCH_BYTES_MAX:
            # No transaction is that large: the seal of these rows is gone.
            yield from self._drop_unsealed(len(self._unsealed))

    def _drop_unsealed(self, count: int) -> Iterator[Finding]:
        """Report and drop the first ``count`` rows that wait for a seal."""
        dropped, self._unsealed = self._unsealed[:count], self._unsealed[count:]
        self._unsealed_bytes = sum(one.size_bytes for one in self._unsealed)
        for one in dropped:
            yield finding(Fault.UNSEALED_ROWS, one.row, "no seal covers this row")

    def _check_seal(self, row: LogRow, sealed: BatchSealed) -> Iterator[Finding]:
        self.seals += 1
        name = sealed.partition
        if partition_stream(name).bytes != row.stream:
            yield finding(Fault.FOREIGN_SEAL, row, "not in the stream of its partition", name)
        head = self.heads.get(name)
        if head is None and self._heads_are_known:
            head = Head(0, GENESIS)
        if head is not None and sealed.previous != head.digest:
            yield finding(
                Fault.BROKEN_CHAIN, row, f"does not continue from seal {head.version}", name
            )
        spare = len(self._unsealed) - sealed.rows
        if spare > 0:
            yield from self._drop_unsealed(spare)
        covered, self._unsealed, self._unsealed_bytes = self._unsealed, [], 0
        first_position, self._sealed_to = self._sealed_to + 1, row.position
        if spare < 0:
            missing = f"{-spare} of the {sealed.rows} rows that it covers are missing"
            yield finding(Fault.MISSING_ROWS, row, missing, name, first_position)
        elif not all(one.is_well_formed for one in covered) or not is_seal_of(
            [one.row for one in covered], row, sealed, [one.event for one in covered]
        ):
            changed = f"does not match the {sealed.rows} rows before it"
            yield finding(Fault.BROKEN_SEAL, row, changed, name, first_position)
        self.heads[name] = found = Head(row.version, sealed.digest)
        if self.known.get(name) == found:
            del self.known[name]
            self.known_to = row.position


def _sealed(row: LogRow, event: Event | None) -> BatchSealed | None:
    """The seal in a row of its topic, None if it does not decode."""
    try:
        event = event or decode(row.topic, row.state)
    except CorruptRow:
        return None
    assert isinstance(event, BatchSealed)
    return event


def is_seal_of(
    covered: Sequence[LogRow],
    row: LogRow,
    sealed: BatchSealed,
    events: Iterable[Event | None] | None = None,
) -> bool:
    """Whether the row is, to the byte, the seal of these rows; ``sealed`` is the event in it.

    ``events`` are the events in the covered rows, if they are already decoded.
    """
    if (sealed.command, sealed.rows) != (b"", len(covered)) or state_of(sealed) != row.state:
        return False
    if covers_redacted(covered, sealed, events or repeat(None)):
        return True
    whole = [(r.stream, r.version, r.topic, r.state) for r in covered]
    return has_digest_over(sealed, whole, are_redacted=False)


def head_after(
    heads: Mapping[str, Head],
    covered: Sequence[LogRow],
    row: LogRow,
    sealed: BatchSealed,
    events: Iterable[Event | None] | None = None,
) -> Head:
    """The head that a seal makes behind ``heads``, the newest ones; other arguments as above.

    Raises:
        NotAsSealed: the seal does not follow its partition's head, or is not that of these rows.
    """
    name = sealed.partition
    head = heads.get(name, Head(0, GENESIS))
    if sealed.rows != len(covered):
        why = f"a seal over {sealed.rows} rows follows {len(covered)} rows"
    elif partition_stream(name).bytes != row.stream:
        why = f"a seal of {name} in another stream"
    elif (row.version, sealed.previous) != (head.version + 1, head.digest):
        why = f"seal {row.version} of {name} does not continue seal {head.version}"
    elif not is_seal_of(covered, row, sealed, events):
        first = covered[0].position if covered else row.position
        why = f"not the seal of the {len(covered)} rows from position {first} on before it"
        why += ": one of them, or it, was changed"
    else:
        return Head(row.version, sealed.digest)
    raise NotAsSealed(row.position, why)


def require_types(row: LogRow) -> None:
    """Refuse a row that has text for bytes, or bytes for text: a column of SQLite takes any type.

    Raises:
        NotAsSealed: the row is such a one.
    """
    if type(row.state) is not bytes or type(row.topic) is not str:
        raise NotAsSealed(row.position, "a column does not hold its type")


def covers_redacted(
    covered: Sequence[LogRow], sealed: BatchSealed, events: Iterable[Event | None]
) -> bool:
    """Whether the digest of a seal is that of the redacted states of these rows.

    Seals of earlier releases cover rows as they stand. ``events`` are the events in the rows, None
    for a row that is not decoded.
    """
    rows: list[SealedRow] = []
    for row, event in zip(covered, events, strict=False):
        state = redacted_state(row.topic, row.state, event)
        if state is None:
            return False
        rows.append((row.stream, row.version, row.topic, state))
    return has_digest_over(sealed, rows, are_redacted=True)


def not_understood(row: LogRow) -> Finding:
    """The finding about a row that does not decode."""
    try:
        decode(row.topic, row.state)
    except UnknownTopic:
        return finding(Fault.UNKNOWN_TOPIC, row, f"topic {row.topic!r}")
    except CorruptRow as error:
        return finding(Fault.UNDECODABLE_STATE, row, str(error))
    raise AssertionError


def log_row(row: Notification) -> LogRow:
    """The row, also one of which a column does not hold its type, without its content."""
    stream: Any = row.originator_id
    key = stream.bytes if isinstance(stream, UUID) else stream
    return LogRow(row.id, key, row.originator_version, row.topic, row.state)


def is_well_formed(row: Notification) -> bool:
    """Whether every column holds its type (SQLite columns take any) in the form we write."""
    columns = (row.originator_id, row.originator_version, row.topic, row.state)
    return tuple(map(type, columns)) == (UUID, int, str, bytes) and row.topic.isascii()
