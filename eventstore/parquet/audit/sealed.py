"""Reads single transactions of an export, and proves each by its seal and the tree over all seals.

It reads only the row groups of a data file that have the wanted positions, and only the columns of
the log itself. It trusts nothing in them: rows must give the digest of the seal that follows them,
and the seal with its position must be a leaf of the tree whose root the newest manifest signs. An
export of an earlier release has no such tree: there each file that is read must have the SHA-256
that its manifest signs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import LogRow
from eventstore.log.events import SEAL_TOPIC, SEAL_TYPE, BatchSealed
from eventstore.log.merkle import Subtrees, inclusion_proof, is_included
from eventstore.log.row_check import is_seal_of
from eventstore.log.tree_head import seal_leaf
from eventstore.parquet.catalog import Catalog, read_data
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import HEAD, ExportPlace, FileMissing
from eventstore.parquet.manifest import DataFile, Manifest
from eventstore.parquet.rows import log_rows
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.tree import tiles_in

_COLUMNS: Final = ("position", "stream", "identity", "version", "type", "type_version", "state")
_OF_SEALS_ALONE: Final = "epoch"
"""The column that all seals and no other rows fill: a group has as many seals as values."""
_CHUNKS_KEPT: Final = 2
"""The row groups that stay in memory: some 20 MB each, or as many as a file with contents has."""


class Transaction(NamedTuple):
    """A seal and the rows that it covers, both proven."""

    seal: LogRow
    sealed: BatchSealed
    rows: Sequence[LogRow]
    identities: Mapping[int, str | None]
    """The export's name for the stream of each row, by position; no seal proves it."""
    leaf: int
    """The number of the seal in the tree."""
    path: str
    """The data file with the seal."""


class SealedRows:
    """Finds and proves transactions of one export by position; a context manager.

    The files of one manifest are open at a time: callers go by position.
    """

    def __init__(self, place: ExportPlace, catalog: Catalog) -> None:
        """``catalog`` is what the export held when it was opened."""
        self._place = place
        self._manifests = [statement.manifest for statement in catalog.statements]
        self._lasts = [manifest.last for manifest in self._manifests]
        self._seals = [0, *accumulate(map(_seals_in, self._manifests))]
        self._tree = self._manifests[-1].tree if self._manifests else None
        self._subtree: Subtrees = cache(tiles_in(place, self._tree.size if self._tree else 0))
        self._opened: tuple[int, _ManifestRows] | None = None
        self._found: Transaction | None = None  # only the last: each has all contents of its rows

    def at(self, position: int) -> Transaction:
        """The transaction with the row at a position of the export.

        Raises:
            ExportDamaged: the rows are not those that were sealed, or are missing.
            ExportUnavailable: the place cannot be read now.
        """
        number = bisect_left(self._lasts, position)
        rows = self._rows_of(number)
        with _readable(self._place, self._manifests[number]):
            window = rows.around(position)
            found = self._found
            if found is None or found.seal.position != window.seal_position:
                found = self._found = self._proven(window, self._seals[number])
        if position != found.seal.position and position not in found.identities:
            why = f"position {position} is not there, between others of its transaction"
            raise ExportDamaged(found.path, Damage.CHANGED, why)
        return found

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The path from a seal's leaf to the root of the tree of this size. Raises as ``at``."""
        return inclusion_proof(index, size, cache(tiles_in(self._place, size)))

    def _rows_of(self, number: int) -> _ManifestRows:
        """The rows of a manifest, which stays open until another one is needed."""
        if self._opened is not None and self._opened[0] == number:
            return self._opened[1]
        self._close()
        manifest = self._manifests[number]
        with _readable(self._place, manifest):
            rows = _ManifestRows(self._place, manifest, is_hashed=self._tree is None)
        self._opened = number, rows
        return rows

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        self._close()

    def _proven(self, window: _Window, seals_before: int) -> Transaction:
        path, table = window.path, window.table
        [seal] = log_rows(table.slice(window.seal, 1))
        try:
            sealed = decode_seal(seal.state)
        except CorruptRow as error:
            raise _changed(path, seal, str(error)) from error
        covered = table.slice(window.begin, window.seal - window.begin)
        rows = log_rows(covered) if covered.num_rows else []
        if sealed.rows != len(rows):
            why = f"covers {sealed.rows} rows, and {len(rows)} stand before it"
            raise _changed(path, seal, why)
        if not is_seal_of(rows, seal, sealed):
            why = f"is not that of the {len(rows)} rows before it: one of them, or it, was changed"
            raise _changed(path, seal, why)
        positions = [row.position for row in rows]
        if positions != sorted({*positions, seal.position})[:-1] or None in positions:
            raise _changed(path, seal, "covers rows whose positions are not in order")
        index = seals_before + window.seals_before
        self._check_leaf(path, seal, sealed, index)
        names = dict(zip(positions, covered["identity"].to_pylist(), strict=True))
        return Transaction(seal, sealed, rows, names, index, path)

    def _check_leaf(self, path: str, seal: LogRow, sealed: BatchSealed, index: int) -> None:
        tree = self._tree
        if tree is None:
            return  # the file is the one that was signed
        try:
            leaf = seal_leaf(seal.position, seal.version, sealed)
            proof = inclusion_proof(index, tree.size, self._subtree)
        except ValueError as error:
            raise _changed(path, seal, str(error)) from error
        if not is_included(leaf, index, tree.size, proof, bytes.fromhex(tree.root)):
            why = f"is not leaf {index} of the tree that the newest manifest names"
            raise _changed(path, seal, why)


class _Group(NamedTuple):
    """A row group of a data file, as the file's footer describes it; not trusted."""

    first: int
    last: int
    seals: int
    file: int
    number: int


class _Window(NamedTuple):
    """Consecutive rows with one whole transaction among them.

    ``begin`` and ``seal`` are the numbers of the transaction's first row and of its seal;
    ``seals_before`` counts the manifest's seals before it.
    """

    table: pa.Table
    begin: int
    seal: int
    seal_position: int
    seals_before: int
    path: str


class _Chunk(NamedTuple):
    """Rows of a manifest between two positions, in order."""

    table: pa.Table
    positions: memoryview
    seals: memoryview
    """The numbers of the rows that are seals."""


class _ManifestRows:
    """The rows of one manifest, read in parts."""

    def __init__(self, place: ExportPlace, manifest: Manifest, *, is_hashed: bool) -> None:
        self._manifest = manifest
        self._read: dict[int, _Chunk] = {}  # the one used last is the last
        self._close = ExitStack()
        self._files = [self._open(place, file, is_hashed=is_hashed) for file in manifest.files]
        groups = [
            group
            for number, file in enumerate(self._files)
            for group in _groups(number, file.metadata)
        ]
        # The positions of two days' files may interleave.
        self._chunks: list[list[_Group]] = []
        for group in sorted(groups):
            if self._chunks and group.first <= max(one.last for one in self._chunks[-1]):
                self._chunks[-1].append(group)
            else:
                self._chunks.append([group])
        self._firsts = [chunk[0].first for chunk in self._chunks]
        self._seals = [0, *accumulate(sum(g.seals for g in chunk) for chunk in self._chunks)]

    def close(self) -> None:
        """Close the files, and forget what was read."""
        self._close.close()
        self._read.clear()

    def around(self, position: int) -> _Window:
        """Read the transaction around a position, without proving it."""
        first = last = max(0, bisect_right(self._firsts, position) - 1)
        chunk = self._chunk(first)
        while True:
            row = bisect_left(chunk.positions, position)
            found = bisect_left(chunk.seals, row)
            if found == len(chunk.seals):
                last += 1
                if last == len(self._chunks):
                    raise ValueError(f"no seal follows position {position}")
                chunk = _joined([chunk, self._chunk(last)])
            elif found == 0 and first > 0:
                first -= 1
                chunk = _joined([self._chunk(first), chunk])
            else:
                break
        seal = chunk.seals[found]
        begin = chunk.seals[found - 1] + 1 if found else 0
        at = chunk.positions[seal]
        file = next((f for f in self._manifest.files if f.first <= at <= f.last), None)
        path = file.path if file else self._manifest.path
        return _Window(chunk.table, begin, seal, at, self._seals[first] + found, path)

    def _chunk(self, number: int) -> _Chunk:
        found = self._read.pop(number, None)
        if found is None:
            while len(self._read) >= _CHUNKS_KEPT:  # before another one is in memory
                del self._read[next(iter(self._read))]
            found = self._read_chunk(number)
        self._read[number] = found
        return found

    def _read_chunk(self, number: int) -> _Chunk:
        tables = [
            self._files[group.file].read_row_group(group.number, columns=list(_COLUMNS))
            for group in self._chunks[number]
        ]
        wanted = pa.schema(map(SCHEMA.field, _COLUMNS))
        table = pa.concat_tables(tables).replace_schema_metadata().cast(wanted).combine_chunks()
        return _chunk_of(table if len(tables) == 1 else table.sort_by("position"))

    def _open(self, place: ExportPlace, file: DataFile, *, is_hashed: bool) -> pq.ParquetFile:
        if is_hashed:
            return pq.ParquetFile(pa.BufferReader(read_data(place, file)))
        try:
            opened = self._close.enter_context(place.opened(file.path))
        except FileMissing as error:
            why = f"{self._manifest.path} names it"
            raise ExportDamaged(file.path, Damage.MISSING, why) from error
        return pq.ParquetFile(opened, pre_buffer=True)


def _groups(file: int, footer: pq.FileMetaData) -> Iterator[_Group]:
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    of_positions, of_seals = names.index("position"), names.index(_OF_SEALS_ALONE)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        positions = group.column(of_positions).statistics
        seals = group.column(of_seals).statistics
        if positions is None or seals is None or not positions.has_min_max:
            raise ValueError("a group of rows says nothing about its positions or seals")
        count = group.num_rows - seals.null_count
        yield _Group(positions.min, positions.max, count, file, number)


def _joined(chunks: Sequence[_Chunk]) -> _Chunk:
    return _chunk_of(pa.concat_tables([chunk.table for chunk in chunks]).combine_chunks())


def _chunk_of(table: pa.Table) -> _Chunk:
    seals = pc.indices_nonzero(pc.equal(table["type"], SEAL_TYPE))
    return _Chunk(table, _numbers(table["position"], "q"), _numbers(seals, "Q"))


def _numbers(column: pa.ChunkedArray | pa.Array, kind: Any) -> memoryview:
    """The memory of an array of 64-bit integers; raises ValueError if one is null."""
    array = pa.concat_arrays(getattr(column, "chunks", [column]))
    if array.null_count:
        raise ValueError("a row has no position")
    if not len(array):
        return memoryview(b"").cast(kind)
    numbers = memoryview(array.buffers()[1]).cast("B").cast(kind)
    return numbers[array.offset : array.offset + len(array)]


def _seals_in(manifest: Manifest) -> int:
    """Count the seals of a manifest, including pruned ones, which still have their leaves."""
    if manifest.is_pruned:
        assert manifest.tree is not None
        return manifest.tree.size
    return sum(file.types.get(SEAL_TOPIC, 0) for file in manifest.files)


def _changed(path: str, seal: LogRow, why: str) -> ExportDamaged:
    return ExportDamaged(path, Damage.CHANGED, f"the seal at position {seal.position} {why}")


@contextmanager
def _readable(place: ExportPlace, manifest: Manifest) -> Iterator[None]:
    """Report read errors as damage, unless the whole place cannot be read."""
    try:
        yield
    except (pa.ArrowException, ValueError, LookupError, OverflowError, OSError) as error:
        path = manifest.files[0].path if len(manifest.files) == 1 else manifest.path
        if isinstance(error, OSError):
            with suppress(FileMissing):
                place.read(HEAD)
        why = f"cannot be read as it was written: {(str(error) or repr(error)).splitlines()[0]}"
        raise ExportDamaged(path, Damage.CHANGED, why) from error
