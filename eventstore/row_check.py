"""The check of rows in the order of the log: versions of streams, seals and their chain.

It is the same for rows of a log (``eventstore.verify``) and for rows of an export
(``eventstore.parquet.verify_export``), and for a part of either that follows a seal.

Memory: one integer for each stream, one head for each partition, the rows of one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from eventstore.batch import BATCH_BYTES_MAX
from eventstore.codec import decode, encode, partition_stream
from eventstore.errors import CorruptRow
from eventstore.events import TOPIC_BY_TYPE, BatchSealed
from eventstore.log import LogRow
from eventstore.seal import GENESIS, digest_by

_SEAL_TOPIC: Final = TOPIC_BY_TYPE[BatchSealed]


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
    WRONG_HEAD = "wrong-head"
    """The manifest names another newest seal of a partition than its rows have."""
    WRONG_COLUMN = "wrong-column"
    """A column of the export is not what the row's state and the rows around it say."""
    WRONG_POSITION = "wrong-position"
    """The position does not follow the one before, or is not where the file says it is."""


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


class RowCheck:
    """The state of one pass over rows, from the first of the log or from after a seal.

    Attributes:
        versions: the last version of each stream (16 bytes) that was seen.
        begins: in a part of a log, the first row of each stream there, whose version nothing
            before it tells; None where the rows begin with the log.
        heads: the newest seal of each partition.
        known: heads that are looked for and were not seen yet, by partition.
        known_to: the position of the newest of the known heads that were seen.
        seals: how many there were.
    """

    def __init__(
        self,
        *,
        known: Mapping[str, Head] | None = None,
        heads: Mapping[str, Head] | None = None,
        part_after: int | None = None,
    ) -> None:
        """Begin a check.

        Args:
            known: heads that have to be found.
            heads: in a part, the newest seals before it; None if they are not known: then the
                first seal of each partition is taken as it is.
            part_after: the position of the seal that the part follows; None: no part.
        """
        self.versions: dict[bytes, int] = {}
        self.begins: dict[bytes, LogRow] | None = None if part_after is None else {}
        self.heads: dict[str, Head] = dict(heads or {})
        self.known = dict(known or {})
        self.known_to: int | None = None
        self.seals = 0
        self._heads_are_known = part_after is None or heads is not None
        self._sealed_to = part_after or 0
        self._unsealed: list[LogRow] = []
        self._unsealed_bytes = 0
        self._malformed: set[int] = set()

    def follow(self, rows: Iterable[LogRow]) -> Iterator[Finding]:
        """Check the next rows. Each must hold the types of its columns."""
        for row in rows:
            last = self.versions.get(row.stream)
            if last is None and self.begins is not None:
                self.begins[row.stream] = row
            elif row.version != (last or 0) + 1:
                expected = f"version {(last or 0) + 1} should stand here"
                yield finding(Fault.VERSION_BREAK, row, expected)
            self.versions[row.stream] = row.version
            sealed = _sealed(row) if row.topic == _SEAL_TOPIC else None
            if sealed is not None:
                yield from self._check_seal(row, sealed)
                continue
            self._unsealed.append(row)
            self._unsealed_bytes += len(row.state)
            if self._unsealed_bytes > BATCH_BYTES_MAX:
                # No transaction is that large: the seal of these rows is gone.
                yield from self._drop_unsealed(len(self._unsealed))

    def take_malformed(self, row: LogRow) -> None:
        """Take a row whose columns do not hold their types: no seal can cover it."""
        self._unsealed.append(row)
        self._malformed.add(row.position)

    def end(self) -> Iterator[Finding]:
        """Report the rows at the end that no seal covers."""
        yield from self._drop_unsealed(len(self._unsealed))

    def _drop_unsealed(self, count: int) -> Iterator[Finding]:
        """Report the first rows that wait for a seal, and wait no longer for them."""
        dropped, self._unsealed = self._unsealed[:count], self._unsealed[count:]
        self._unsealed_bytes = sum(
            len(row.state) for row in self._unsealed if row.position not in self._malformed
        )
        for row in dropped:
            yield finding(Fault.UNSEALED_ROWS, row, "no seal covers this row")

    def _check_seal(self, row: LogRow, sealed: BatchSealed) -> Iterator[Finding]:
        self.seals += 1
        name = sealed.partition
        if _stream_of(name) != row.stream:
            yield finding(Fault.FOREIGN_SEAL, row, "not in the stream of its partition", name)
        head = self.heads.get(name)
        if head is None and self._heads_are_known:
            head = Head(0, GENESIS)
        if head is not None and sealed.previous != head.digest:
            yield finding(Fault.BROKEN_CHAIN, row, f"does not continue seal {head.version}", name)
        spare = len(self._unsealed) - sealed.rows
        if spare > 0:
            yield from self._drop_unsealed(spare)
        covered, self._unsealed, self._unsealed_bytes = self._unsealed, [], 0
        malformed, self._malformed = self._malformed, set()
        first_position, self._sealed_to = self._sealed_to + 1, row.position
        if spare < 0:
            missing = f"{-spare} of the {sealed.rows} rows that it covers are missing"
            yield finding(Fault.MISSING_ROWS, row, missing, name, first_position)
        elif (malformed and any(r.position in malformed for r in covered)) or not _is_seal_of(
            covered, row, sealed
        ):
            changed = f"not the seal of the {sealed.rows} rows before it"
            yield finding(Fault.BROKEN_SEAL, row, changed, name, first_position)
        self.heads[name] = found = Head(row.version, sealed.digest)
        if self.known.get(name) == found:
            del self.known[name]
            self.known_to = row.position


def finding(
    fault: Fault,
    row: LogRow,
    explanation: str,
    partition: str | None = None,
    first_position: int | None = None,
) -> Finding:
    """A finding about a row, or about the rows from ``first_position`` to it."""
    stream: Any = row.stream
    return Finding(
        fault=fault,
        first_position=row.position if first_position is None else first_position,
        last_position=row.position,
        stream=UUID(bytes=stream) if isinstance(stream, bytes) else stream,
        version=row.version,
        partition=partition,
        explanation=explanation,
    )


def _sealed(row: LogRow) -> BatchSealed | None:
    """The seal in a row of its topic, None if it does not decode."""
    try:
        event = decode(row.topic, row.state)
    except CorruptRow:
        return None
    assert isinstance(event, BatchSealed)
    return event


def _is_seal_of(covered: Sequence[LogRow], row: LogRow, sealed: BatchSealed) -> bool:
    """Whether the row is, to the byte, the seal of these rows."""
    digest = digest_by(sealed, [(r.stream, r.version, r.topic, r.state) for r in covered])
    if digest is None:
        return False
    expected = msgspec.structs.replace(sealed, command=b"", rows=len(covered), digest=digest)
    return encode(partition_stream(sealed.partition), row.version, expected).state == row.state


@lru_cache(maxsize=4_096)
def _stream_of(partition: str) -> bytes:
    return partition_stream(partition).bytes
