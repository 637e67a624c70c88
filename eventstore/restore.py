"""Builds a log anew from the rows of another one: from its export, or from the log itself.

Rows keep their positions, so that whatever follows the log by position goes on. Nothing is
written that no seal covers; read models are made by the code that makes them in an append, depths
of queues by ``eventstore.queue_fold``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from eventstore.codec import decode
from eventstore.errors import NotAsSealed, UnknownTopic
from eventstore.events import TOPIC_BY_TYPE, Event
from eventstore.log import EventLog, LogRow
from eventstore.log_import import LogImport
from eventstore.queue_fold import ENTRIES_MAX, FOLDED, QueueFold
from eventstore.read_models import INDEXED
from eventstore.sealed_rows import SealedRows
from eventstore.verify import Head

PAGE_ROWS: Final = 8_192
PAGE_BYTES: Final = 16 * 1024 * 1024
TRANSACTION_ROWS: Final = 32_768
TRANSACTION_BYTES: Final = 32 * 1024 * 1024
_DEPTHS_AT_ONCE: Final = 10_000
_FOLDED: Final = {TOPIC_BY_TYPE[kind] for kind in FOLDED}
_INDEXED: Final = {TOPIC_BY_TYPE[kind] for kind in INDEXED}
_KNOWN: Final = set(TOPIC_BY_TYPE.values())

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called after each transaction with the position reached and the rows stored so far."""


class Section(NamedTuple):
    """Rows that follow each other in a log.

    ``heads``, where they are known, are the newest seals of all partitions up to the last row.
    """

    rows: Sequence[LogRow]
    heads: Mapping[str, Head] | None = None


class Restored(NamedTuple):
    """What a restore stored."""

    position: int
    rows: int
    seals: int
    streams: int
    identities: int


def log_sections(log: EventLog) -> Iterator[Section]:
    """All rows of a log, up to where it ends when that is reached. Raises as ``read_rows``."""
    reached = 0
    while rows := log.read_rows(after=reached, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES):
        reached = rows[-1].position
        yield Section(rows)


def restore(
    sections: Iterable[Section],
    target: LogImport,
    constants: Mapping[str, str],
    *,
    until: int | None = None,
    progress: OnProgress = lambda _position, _rows: None,
    entries_max: int = ENTRIES_MAX,
) -> Restored:
    """Store all rows of a log, each checked against its seal before; then it is a log.

    Args:
        sections: the rows, from the first on.
        target: where to, begun; finished here.
        constants: of the log, by name.
        until: end with the last seal at or before this position.
        progress: called after each transaction.
        entries_max: queues and waiting messages to keep in memory.

    Raises:
        NotAsSealed: a row is not as it was sealed, or the end is missing.
        UnknownTopic, CorruptRow: a row cannot be understood by this release.
        ImportRefused: the target must not be restored into.
        LogUnavailable: the target cannot be written now.
        Whatever reading ``sections`` raises. After any of these nothing opens the target as a log.
    """
    sealed = SealedRows()
    writer = _Writer(target, QueueFold(entries_max=entries_max))
    for section in sections:
        rows = section.rows
        if until is not None and rows[-1].position > until:
            rows = [row for row in rows if row.position <= until]
        writer.take(sealed.take(rows))
        if len(rows) < len(section.rows):
            break
        if section.heads is not None and sealed.heads != section.heads:
            raise NotAsSealed(sealed.position, "the newest seals are not those of the manifest")
        if writer.is_due:
            writer.flush()
            progress(sealed.position, sealed.rows)
    writer.flush()
    if until is not None and not sealed.seals:
        raise NotAsSealed(until, "no transaction ends at or before this position")
    if until is None and sealed.unsealed:
        why = f"no seal covers the last {sealed.unsealed} rows"
        raise NotAsSealed(sealed.position + 1, why)
    progress(sealed.position, sealed.rows)
    identities = _save_depths(target, writer.fold, entries_max)
    target.finish(constants)
    return Restored(sealed.position, sealed.rows, sealed.seals, sealed.streams, identities)


class _Writer:
    """Gathers rows for the next transaction, and folds them."""

    def __init__(self, target: LogImport, fold: QueueFold) -> None:
        self.fold = fold
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
            self._bytes += len(row.state)
            topic = row.topic
            if topic in _FOLDED:
                self.fold.take(row.stream, decode(topic, row.state))
            elif topic in _INDEXED:
                self._events.append((row, decode(topic, row.state)))
            elif topic not in _KNOWN:
                raise UnknownTopic(topic)

    def flush(self) -> None:
        if self._rows:
            self._target.write(self._rows, self._events)
            self._rows, self._events, self._bytes = [], [], 0


def _save_depths(target: LogImport, fold: QueueFold, entries_max: int) -> int:
    """Store the depths of all queues; how many there are."""
    identities = 0
    while True:
        depths = fold.depths()
        while some := list(islice(depths, _DEPTHS_AT_ONCE)):
            target.save_depths(some)
            identities += len(some)
        if fold.rest is None:
            return identities
        fold = _folded_again(target, fold.rest, entries_max)


def _folded_again(target: LogImport, start: bytes, entries_max: int) -> QueueFold:
    """The queues of the streams from ``start`` on, from what was stored."""
    fold = QueueFold(start, entries_max=entries_max)
    reached = 0
    while rows := target.read_rows(after=reached, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES):
        for row in rows:
            if row.topic in _FOLDED and row.stream >= start:
                fold.take(row.stream, decode(row.topic, row.state))
        reached = rows[-1].position
    return fold
