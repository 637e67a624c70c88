"""Builds a log anew from the rows of another one: from its export, or from the log itself.

Rows keep their positions, so that readers that follow the log by position can go on. Only rows that
a seal covers are written. The same code as in an append makes the read models;
``eventstore.read_models.queue_depths`` makes the queue depths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from eventstore.log.batch import BATCH_BYTES_MAX
from eventstore.log.codec import decode_seal, decode_whole
from eventstore.log.errors import CorruptRow, EndsTooEarly, NotAsSealed, UnknownTopic
from eventstore.log.event_contents import ERASING
from eventstore.log.event_log import LogReader, LogRow, Snapshot
from eventstore.log.events import SEAL_TOPIC, TYPE_BY_TOPIC, Event, topics_of
from eventstore.log.faults import Head
from eventstore.log.row_check import head_after, require_types
from eventstore.read_models.queue_depths import FOLDED, QueueFold
from eventstore.read_models.update import INDEXED
from eventstore.stores.log_import import LogImport


class SealCheck:
    """The check of rows against their seals, in one pass over a log from its first row.

    ``position`` is the position of the newest seal, ``rows`` counts the covered rows and their
    seals, ``seals`` the seals alone, and ``heads`` has the newest seal of each partition.
    """

    def __init__(self) -> None:
        self.position = self.rows = self.seals = 0
        self.heads: dict[str, Head] = {}
        self._reached = 0
        self._versions: dict[bytes, int] = {}
        self._unsealed: list[LogRow] = []
        self._unsealed_bytes = 0

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self._versions)

    @property
    def unsealed(self) -> int:
        """How many rows wait for their seal."""
        return len(self._unsealed)

    def take(self, rows: Iterable[LogRow]) -> list[LogRow]:
        """Check the next rows; return those that seals cover by now, in whole transactions.

        Raises:
            NotAsSealed: a row or seal is not as it was sealed, or out of order.
            UnknownTopic, CorruptRow: a seal cannot be understood.
        """
        covered: list[LogRow] = []
        versions = self._versions
        for row in rows:
            expected = versions.get(row.stream, 0) + 1
            if row.position <= self._reached:
                raise NotAsSealed(row.position, f"stands after position {self._reached}")
            if row.version != expected:
                why = f"version {row.version} of its stream, where {expected} should stand"
                raise NotAsSealed(row.position, why)
            require_types(row)
            versions[row.stream] = expected
            self._reached = row.position
            if row.topic == SEAL_TOPIC:
                sealed = decode_seal(row.state)
                self.heads[sealed.partition] = head_after(self.heads, self._unsealed, row, sealed)
                self.position, self.seals = row.position, self.seals + 1
                self.rows += sealed.rows + 1
                covered += self._unsealed
                covered.append(row)
                self._unsealed, self._unsealed_bytes = [], 0
                continue
            self._unsealed.append(row)
            self._unsealed_bytes += len(row.state)
            if self._unsealed_bytes > BATCH_BYTES_MAX:
                why = "no seal follows within the size of a transaction"
                raise NotAsSealed(self._unsealed[0].position, why)
        return covered

    def begin(self, rows: Sequence[LogRow]) -> None:
        """Take what is left of the beginning of a pruned log: no seal proves these rows one by one.

        Raises:
            NotAsSealed: one is out of order.
            UnknownTopic, CorruptRow: a seal cannot be understood.
        """
        for row in rows:
            if row.position <= self._reached or row.version <= self._versions.get(row.stream, 0):
                raise NotAsSealed(row.position, f"stands after position {self._reached}")
            self._reached = row.position
            self._versions[row.stream] = row.version
            if row.topic == SEAL_TOPIC:
                sealed = decode_seal(row.state)
                self.heads[sealed.partition] = Head(row.version, sealed.digest)
                self.position, self.seals = row.position, self.seals + 1
        self.rows += len(rows)


PAGE_ROWS: Final = 8_192
PAGE_BYTES: Final = 16 * 1024 * 1024
TRANSACTION_ROWS: Final = 32_768
TRANSACTION_BYTES: Final = 32 * 1024 * 1024
_STATES_AT_ONCE: Final = 1_000
_WRITTEN: Final = topics_of(*INDEXED, *ERASING)
_DECODED: Final = FOLDED | _WRITTEN

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called after each transaction with the position reached and the rows stored so far."""


class LogSection(NamedTuple):
    """Rows that follow each other in a log.

    ``heads``, if they are known, are the newest seals of all partitions up to the last row.
    ``is_rest``: the rows are what is left of the beginning of a log that was pruned.
    """

    rows: Sequence[LogRow]
    heads: Mapping[str, Head] | None = None
    is_rest: bool = False


class Restored(NamedTuple):
    """What a restore stored."""

    position: int
    rows: int
    seals: int
    streams: int
    identities: int


def log_sections(log: LogReader, after: int = 0) -> Iterator[LogSection]:
    """The rows of a log behind a position, up to its end at the time when that is reached.

    Raises: as ``read_rows``.
    """
    reached = after
    while rows := log.read_rows(after=reached, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES):
        reached = rows[-1].position
        yield LogSection(rows)


def restore(
    sections: Iterable[LogSection],
    target: LogImport,
    constants: Mapping[str, str],
    *,
    until: int | None = None,
    states: Sequence[tuple[UUID, Snapshot]] = (),
    progress: OnProgress = lambda _position, _rows: None,
) -> Restored:
    """Check all rows of a log against their seals, store them, and finish the new log.

    Args:
        sections: the rows, from the first on.
        target: the import to write to, already begun; finished here.
        constants: the constants of the log, by name.
        until: end with the last seal at or before this position, which is behind the pruned rows.
        states: the states of streams, in place of their pruned rows.
        progress: called after each transaction.

    Raises:
        NotAsSealed: a row is not as it was sealed, or the end is missing.
        EndsTooEarly: no transaction ends at or before ``until``.
        UnknownTopic, CorruptRow: a row cannot be understood by this release.
        ImportRefused: the target must not be restored into.
        LogUnavailable: the target cannot be written now.
        Whatever reading ``sections`` raises. After any of these nothing can open the target.
    """
    sealed = SealCheck()
    writer = _Writer(target)
    for section in sections:
        rows = section.rows
        if until is not None and rows[-1].position > until:
            rows = [row for row in rows if row.position <= until]
        if section.is_rest:
            sealed.begin(rows)
            writer.take(rows)
        else:
            writer.take(sealed.take(rows))
        if len(rows) < len(section.rows):
            break
        if section.heads is not None and sealed.heads != section.heads:
            raise NotAsSealed(sealed.position, "the newest seals differ from those of the manifest")
        if writer.is_due:
            writer.flush()
            progress(sealed.position, sealed.rows)
    writer.flush()
    if until is not None and not sealed.seals:
        raise EndsTooEarly(until, "no transaction ends at or before this position")
    if until is None and sealed.unsealed:
        why = f"no seal covers the last {sealed.unsealed} rows"
        raise NotAsSealed(sealed.position + 1, why)
    progress(sealed.position, sealed.rows)
    read_rows = partial(target.read_rows, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES)
    identities = writer.fold.save(read_rows, target.save_depths)
    for start in range(0, len(states), _STATES_AT_ONCE):
        target.save_states(states[start : start + _STATES_AT_ONCE])
    target.finish(constants)
    return Restored(sealed.position, sealed.rows, sealed.seals, sealed.streams, identities)


def _whole(row: LogRow) -> Event:
    """Decode the event of a row, and check its content if that is there."""
    try:
        return decode_whole(row.topic, row.state, row.content)
    except CorruptRow as error:
        if row.content is None:
            raise
        raise NotAsSealed(row.position, str(error)) from error


class _Writer:
    """Gathers rows for the next transaction, and folds them."""

    def __init__(self, target: LogImport) -> None:
        self.fold = QueueFold()
        self._target = target
        self._rows: list[LogRow] = []
        self._events: list[tuple[LogRow, Event]] = []
        self._bytes = 0

    @property
    def is_due(self) -> bool:
        return len(self._rows) >= TRANSACTION_ROWS or self._bytes >= TRANSACTION_BYTES

    def take(self, rows: Sequence[LogRow]) -> None:
        self._rows += rows
        for row in rows:
            self._bytes += len(row.state) + len(row.content or b"")
            topic = row.topic
            if topic not in TYPE_BY_TOPIC:
                raise UnknownTopic(topic)
            if row.content is None and topic not in _DECODED:
                continue
            event = _whole(row)
            if topic in FOLDED:
                self.fold.take(row.stream, event)
            if topic in _WRITTEN:
                self._events.append((row, event))

    def flush(self) -> None:
        if self._rows:
            self._target.write(self._rows, self._events)
            self._rows, self._events, self._bytes = [], [], 0
