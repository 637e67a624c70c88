"""One step of an export: the next rows of the log, up to a seal, as one table.

A step ends at the first seal where it has enough rows or bytes, or at the last seal of the log.
Its end depends only on its beginning, these bounds and the contents that the log still has, so the
same log gives the same steps. A step never takes rows that no seal covers yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import repeat
from typing import Final
from uuid import UUID

import pyarrow as pa

from eventstore.log.batch import BATCH_BYTES_MAX
from eventstore.log.codec import content_fault, decode, decode_rows
from eventstore.log.errors import CorruptRow, NotAsSealed, UnknownTopic
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    BatchSealed,
    Event,
    topics_of,
)
from eventstore.log.faults import Head
from eventstore.log.name_erasure import COMING_BACK
from eventstore.log.row_check import head_after, require_types
from eventstore.log.streams import ERASED
from eventstore.log.tree_head import seal_leaf
from eventstore.parquet.columns import identity_of, to_table, with_shards

PAGE_ROWS: Final = 4_096
PAGE_BYTES: Final = 8 * 1024 * 1024
IDENTITIES_KEPT: Final = 200_000
IDENTITIES_AT_ONCE: Final = 1_000


@dataclass(frozen=True)
class Bounds:
    """The size at which a step ends; the transaction that reaches a bound is still part of it.

    ``until_ms``: Unix milliseconds; steps end before the first transaction recorded later.
    """

    rows_max: int = 262_144
    bytes_max: int = 64 * 1024 * 1024
    until_ms: int | None = None


@dataclass(frozen=True)
class ExportStep:
    """Rows of the log from after one seal up to another, and the heads of all partitions there."""

    table: pa.Table
    last: int
    heads: Mapping[str, Head]
    leaves: Sequence[bytes]
    """The leaf hashes of the step's seals (``eventstore.log.tree_head``)."""
    is_full: bool
    """Whether the log may have more rows already."""


_COMING_BACK: Final = topics_of(*COMING_BACK)


class IdentityNames:
    """The names of identities by stream, read from each stream's first row and cached."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._known: dict[bytes, str | None] = {}

    def __call__(self, streams: Collection[bytes]) -> Mapping[bytes, str | None]:
        """The identity of each of these streams, None if its first event names none.

        Raises:
            LogUnavailable, UnknownTopic, CorruptRow: the first rows cannot be read.
        """
        if len(self._known) + len(streams) > IDENTITIES_KEPT:
            self._known = {}
        missing = [stream for stream in streams if stream not in self._known]
        for start in range(0, len(missing), IDENTITIES_AT_ONCE):
            part = [UUID(bytes=stream) for stream in missing[start : start + IDENTITIES_AT_ONCE]]
            # The first row of a stream never leaves the log.
            for key, rows in self._log.read_streams(dict.fromkeys(part, 0), limit=1).items():
                named = [identity_of(decode(row.topic, row.state), key.bytes) for row in rows]
                self._known[key.bytes] = self._name_again(key.bytes, named[0] if named else None)
        return self._known

    def _name_again(self, stream: bytes, named: str | None) -> str | None:
        """The name, which a later row has, of an identity that was erased and came back."""
        if named is None or not named.startswith(ERASED):
            return named
        rows = self._log.stream_rows(UUID(bytes=stream), topics=_COMING_BACK)
        names = [identity_of(decode(row.topic, row.state), stream) for row in rows[-1:]]
        return names[0] if names else named


def next_step(
    log: LogReader,
    *,
    after: int,
    heads: Mapping[str, Head],
    names: IdentityNames,
    bounds: Bounds,
) -> ExportStep | None:
    """Read the step that follows the seal at position ``after``; None if no seal follows yet.

    ``heads`` are the newest seals up to ``after``; the log must continue from them.

    Raises:
        LogUnavailable: the log cannot be read.
        UnknownTopic, CorruptRow: a row cannot be understood.
        NotAsSealed: a seal does not fit the rows and the seal before it.
    """
    collected = _Collected(after, heads, bounds)
    tables: list[pa.Table] = []
    reached = after
    while not (collected.is_full or collected.is_over):
        page = log.read_rows(after=reached, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES)
        if not page:
            break
        events = _understood(page)
        taken = collected.take(page, events)
        tables.append(to_table(page[:taken], names, events and events[:taken]))
        reached = page[-1].position
    if not collected.sections:
        return None
    rows = sum(rows for _, rows in collected.sections)
    return ExportStep(
        table=with_shards(pa.concat_tables(tables).slice(0, rows), collected.sections),
        last=collected.last,
        heads=collected.heads,
        leaves=collected.leaves,
        is_full=collected.is_full,
    )


def _understood(page: Sequence[LogRow]) -> Sequence[Event] | None:
    """Decode the events in rows; None if one fails, which raises after the page's seal checks."""
    try:
        return decode_rows(page)
    except (UnknownTopic, CorruptRow, TypeError):
        return None


class ExportSteps:
    """Reads the steps of a log, each while the previous one is being written.

    Not safe for several threads.

    Attributes:
        began_ms: when the reading of the last step began, Unix milliseconds.
        append_age_s: ``LogReader.append_age_s`` between then and its first row.
    """

    def __init__(self, log: LogReader, bounds: Bounds, clock: Callable[[], int]) -> None:
        """``clock`` gives Unix milliseconds."""
        self.began_ms = 0
        self.append_age_s = 0.0
        self._log = log
        self._bounds = bounds
        self._clock = clock
        self._names = IdentityNames(log)
        self._reader = ThreadPoolExecutor(1, "export-reader")
        self._ahead: tuple[int, Future[tuple[float, ExportStep | None]]] | None = None
        self._ahead_of = 0

    def after(self, position: int, heads: Mapping[str, Head]) -> ExportStep | None:
        """The step after the seal at this position. Raises as ``next_step``."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or self._ahead_of != position:
            ahead = self._read(position, heads)  # runs after any abandoned read-ahead
        self.began_ms, reading = ahead
        self.append_age_s, step = reading.result()
        if step is not None and step.is_full:
            self._ahead, self._ahead_of = self._read(step.last, step.heads), step.last
        return step

    def read_anew(self) -> None:
        """Forget what was read ahead, and names: the log may have erased some of it since."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            wait([ahead[1]])  # it would bring names back
        self._names = IdentityNames(self._log)

    def close(self) -> None:
        """Wait for a running read; the log may be closed afterwards."""
        self._reader.shutdown(cancel_futures=True)

    def _read(
        self, position: int, heads: Mapping[str, Head]
    ) -> tuple[int, Future[tuple[float, ExportStep | None]]]:
        def read() -> tuple[float, ExportStep | None]:
            age_s = self._log.append_age_s()
            return age_s, next_step(
                self._log, after=position, heads=heads, names=self._names, bounds=self._bounds
            )

        return self._clock(), self._reader.submit(read)


class _Collected:
    """The step so far: sections of rows, each with the partition that sealed it."""

    def __init__(self, after: int, heads: Mapping[str, Head], bounds: Bounds) -> None:
        self.last = after
        self.heads = dict(heads)
        self.sections: list[tuple[str, int]] = []
        self.leaves: list[bytes] = []
        self.is_full = False
        self.is_over = False
        """Whether the next transaction was recorded after ``Bounds.until_ms``."""
        self._bounds = bounds
        self._rows = self._bytes = 0
        self._unsealed: list[tuple[LogRow, Event | None]] = []
        self._unsealed_bytes = 0

    def take(self, page: Sequence[LogRow], events: Sequence[Event] | None) -> int:
        """Take all rows, or those up to the seal that fills the step; return their number.

        ``events`` are the rows' events; None if one does not decode.
        """
        taken = 0
        for row, event in zip(page, events or repeat(None), strict=False):
            taken += 1
            require_types(row)
            self._unsealed_bytes += len(row.state) + len(row.content or b"")
            if row.topic == SEAL_TOPIC:
                self._take_seal(row, event)
                if self.is_full or self.is_over:
                    break
            else:
                self._unsealed.append((row, event))
        if self._unsealed_bytes > BATCH_BYTES_MAX:
            raise NotAsSealed(self.last + 1, "no seal follows within the size of a transaction")
        return taken

    def _take_seal(self, row: LogRow, event: Event | None) -> None:
        sealed = event or decode(row.topic, row.state)
        assert isinstance(sealed, BatchSealed)
        until_ms = self._bounds.until_ms
        if until_ms is not None and sealed.at_ms > until_ms:
            self.is_over = True
            return
        unsealed, self._unsealed = self._unsealed, []
        covered, events = [one for one, _ in unsealed], [event for _, event in unsealed]
        head = head_after(self.heads, covered, row, sealed, events)
        for one, fact in unsealed:
            if (wrong := content_fault(one, fact)) is not None:
                raise NotAsSealed(one.position, wrong)
        name = sealed.partition
        self.heads[name] = head
        self.leaves.append(seal_leaf(row.position, row.version, sealed))
        self.sections.append((name, len(covered) + 1))
        self.last = row.position
        self._rows += len(covered) + 1
        self._bytes += self._unsealed_bytes
        self._unsealed_bytes = 0
        self.is_full = self._rows >= self._bounds.rows_max or self._bytes >= self._bounds.bytes_max
