"""Checks the index of an export against the entries that its rows give.

The check makes every index file again from the rows and compares it to the byte: so the index names
all rows, and no others. If rows are damaged, which is reported, it compares a file only with its
root.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.parquet.catalog import require_named
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.index import (
    OFFSET_BITS,
    ExportIndex,
    IndexFile,
    encoded_index,
    entries_in,
    index_bytes,
    runs_of,
    sorted_entries,
)
from eventstore.parquet.manifest import Manifest
from eventstore.parquet.verify.findings import ExportFinding, file_finding, finding_of

HELD_ENTRIES_MAX: Final = 8_388_608
"""64 MiB, and three times that while they are sorted."""


class _RunEntries:
    """The entries of the rows of one run: up to a bound in memory, the others in temporary files.

    A run may be as long as the log, with 24 bytes for each row. A temporary file has no name, and
    ends with its memory map.
    """

    def __init__(self) -> None:
        self._held: list[pa.UInt64Array] = []
        self._count = 0
        self._written: list[pa.UInt64Array] = []

    def add(self, entries: pa.UInt64Array) -> None:
        """Add entries, in any order.

        Raises:
            ExportUnavailable: no temporary file can be written.
        """
        self._held.append(entries)
        self._count += len(entries)
        if self._count > HELD_ENTRIES_MAX:
            self._written.append(_in_file(self._take_sorted()))

    def sort(self) -> None:
        """Sort what is in memory, before the entries are read."""
        self._held = [self._take_sorted()]

    def within(self, low: int, high: int) -> pa.UInt64Array:
        """Return the sorted entries with ``low <= key < high``."""
        parts = [entries_in(part, low, high) for part in [*self._written, *self._held]]
        return parts[0] if len(parts) == 1 else sorted_entries(parts)

    def _take_sorted(self) -> pa.UInt64Array:
        held, self._held, self._count = self._held, [], 0
        return sorted_entries(held)


def _in_file(entries: pa.UInt64Array) -> pa.UInt64Array:
    """The same entries in a file that is mapped to memory."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(entries.buffers()[1])
            file.flush()
            mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise ExportUnavailable(tempfile.tempdir or "a temporary file", str(error)) from error
    return pa.Array.from_buffers(pa.uint64(), len(entries), [None, pa.py_buffer(mapped)])


class IndexCheck:
    """Checks one index. Manifests are joined in the order of the log.

    Memory: ``HELD_ENTRIES_MAX`` entries, and those of one file of the index.
    """

    def __init__(self, place: ExportPlace, index: ExportIndex | None) -> None:
        """``index`` is the index that the newest version names, None for none."""
        self._place = place
        self._last = 0 if index is None else index.last
        self._runs = deque([] if index is None else runs_of(index))
        self._entries = _RunEntries()
        self._is_known = True
        self._reached = 0
        self._known_from = 0

    def join(self, manifest: Manifest, entries: pa.UInt64Array | None) -> Iterator[ExportFinding]:
        """Continue with the entries of a manifest, counted from its first position.

        ``entries`` is None if they are unknown.

        Raises:
            ExportUnavailable: a file cannot be read now, or no temporary file can be written.
        """
        first = manifest.first
        if first != self._reached + 1:
            yield from self._lose(first)
        self._reached = manifest.last
        while first <= min(manifest.last, self._last):
            files = self._runs[0] if self._runs else []
            start = files[0].first if files else self._last + 1
            if first < start:  # no file has these rows: they must have no entries
                yield from self._check_none(manifest, entries, first, start - 1)
                first = start
                continue
            if entries is None:
                self._is_known = False
            else:
                part = _between(entries, manifest.first, first, files[0].last)
                self._entries.add(_moved(part, manifest.first - files[0].first))
            first = files[0].last + 1
            if manifest.last >= files[0].last:
                yield from self._check(self._runs.popleft())
        if manifest.first <= self._last < manifest.last:
            why = f"the index ends at {self._last}, so a look-up finds no rows behind that"
            yield file_finding(manifest.path, Damage.WRONG_INDEX, why)

    def skip(self, last: int) -> None:
        """Skip rows up to this position, which were verified before, and their index files."""
        self._known_from = last + 1
        self._reached = last
        while self._runs and self._runs[0][0].last <= last:
            self._runs.popleft()

    def pass_over(self, manifest: Manifest) -> Iterator[ExportFinding]:
        """Pass over a pruned manifest, whose index files still name removed rows.

        The check compares the bytes of these files, and only the entries of later rows. Raises as
        ``join``.
        """
        self._known_from = manifest.last + 1  # it is the first one of an export
        yield from self.join(manifest, pa.array([], pa.uint64()))

    def end(self) -> Iterator[ExportFinding]:
        """Check the remaining files, after lost rows. Raises as ``join``."""
        yield from self._lose(self._last + 1)

    def _lose(self, until: int) -> Iterator[ExportFinding]:
        """Note that rows before ``until`` are missing; check the files of such rows."""
        self._is_known = False
        while self._runs and self._runs[0][0].last < until:
            yield from self._check(self._runs.popleft())
            self._is_known = False
        self._is_known = bool(self._runs) and self._runs[0][0].first >= until

    def _check(self, files: list[IndexFile]) -> Iterator[ExportFinding]:
        entries = self._entries if self._is_known else None
        self._entries, self._is_known = _RunEntries(), True
        if entries is not None:
            entries.sort()
        lows = [0, *(file.low for file in files[1:]), 1 << OFFSET_BITS]
        for file, (low, end) in zip(files, pairwise(lows), strict=True):
            content, damage = self._read(file)
            if damage is None and not file.low == low < end:
                why = f"begins with key {file.low}, which does not follow the file before it"
                damage = ExportDamaged(file.path, Damage.WRONG_INDEX, why)
            elif damage is None and entries is not None:
                wanted = entries.within(low, end)
                if not self._newer(content, file).equals(wanted):
                    why = "leaves out rows that it must name, or names others"
                    damage = ExportDamaged(file.path, Damage.WRONG_INDEX, why)
            if damage is not None:
                yield finding_of(damage)

    def _check_none(
        self, manifest: Manifest, entries: pa.UInt64Array | None, first: int, last: int
    ) -> Iterator[ExportFinding]:
        if entries is not None and len(_between(entries, manifest.first, first, last)):
            why = f"no file of the index has the rows between positions {first} and {last}"
            yield file_finding(manifest.path, Damage.WRONG_INDEX, why)

    def _newer(self, entries: pa.UInt64Array, file: IndexFile) -> pa.UInt64Array:
        """The entries of a file for rows that were not verified before."""
        if file.first >= self._known_from:
            return entries
        return _between(entries, file.first, self._known_from, file.last)

    def _read(self, file: IndexFile) -> tuple[pa.UInt64Array, ExportDamaged | None]:
        """Read the entries of a file, and the damage to its bytes, if any."""
        nothing = pa.array([], pa.uint64())
        try:
            content = self._place.read(file.path, index_bytes(file.entries))
        except FileMissing:
            damage = ExportDamaged(file.path, Damage.MISSING, "the newest version names it")
            require_named(self._place, damage)
            return nothing, damage
        entries = pa.Array.from_buffers(
            pa.uint64(), min(file.entries, len(content) // 8), [None, pa.py_buffer(content)]
        )
        is_whole = len(entries) == file.entries > 0
        if is_whole and encoded_index(entries) == (content, file.root):
            return entries, None
        return nothing, ExportDamaged(file.path, Damage.CHANGED, "not the file that was signed")


def _between(entries: pa.UInt64Array, start: int, first: int, last: int) -> pa.UInt64Array:
    """The entries for positions from ``first`` to ``last``; entries count from ``start``."""
    offsets = pc.bit_wise_and(entries, pa.scalar((1 << OFFSET_BITS) - 1, pa.uint64()))
    is_in = pc.and_(
        pc.greater_equal(offsets, pa.scalar(first - start, pa.uint64())),
        pc.less_equal(offsets, pa.scalar(max(0, last - start), pa.uint64())),
    )
    return entries.filter(is_in)


def _moved(entries: pa.UInt64Array, by: int) -> pa.UInt64Array:
    """The entries, counted from ``by`` positions earlier."""
    move = pc.add if by >= 0 else pc.subtract
    return move(entries, pa.scalar(abs(by), pa.uint64()))
