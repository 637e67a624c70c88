"""The place of rebuilt tables: lists, reads, checks and commits generations.

    <target>/generations/                            a Delta table with a row for each generation
    <target>/<table>/                                a Delta table (``delta_table``)

A generation counts once a commit of ``generations`` names it. The commit is one put-if-absent: if
two rebuilds end at the same time, each makes a generation of its own, one after the other. A
rebuild that is killed before its commit changes nothing for readers. The same commit removes the
generations that are no longer kept; only then are their files removed.

    generation, made_at, position, at, complete_until, tables
                                                     for other programs: which versions to open
    description                                      the ``Generation`` as JSON, for our programs

The name of the file with the row has the SHA-256 of its content.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import ExportPlace, FileMissing, open_place
from eventstore.parquet.opening import OpenedExport
from projections.generations.delta_table import (
    DeltaFolder,
    TablesBusy,
    TablesDamaged,
    bucket_of,
    check_files,
    commit_files,
    read_footer,
)
from projections.generations.generation import (
    FORMAT,
    Generation,
    GenerationTable,
    TableFile,
    content_hash,
)

GENERATIONS: Final = "generations"
SEALS: Final = "seals"
LOCK: Final = ".rebuild.lock"
_TRIES: Final = 10
_AT_ONCE: Final = 4
_PIECE_BYTES: Final = 1 << 20
_END_BYTES: Final = 8
"""The bytes after the footer of a Parquet file: the footer's size, and the magic number."""
_NAME: Final = re.compile(r"(\d{8,})-([0-9a-f]{64})\.parquet")
_UNNAMED_KEPT_S: Final = 7 * 86_400
"""How long files and versions that no generation names stay in a place without a lock: a rebuild
that still runs may have written them."""
_VERSIONED: Final = pa.struct(
    {"name": pa.string(), "version": pa.int64(), "rows": pa.int64(), "sha256": pa.string()}
)
DESCRIBED: Final = pa.schema(
    {
        "generation": pa.int64(),
        "made_at": pa.timestamp("us", "UTC"),
        "position": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "complete_until": pa.timestamp("us", "UTC"),
        "tables": pa.list_(_VERSIONED),
        "description": pa.string(),
    }
)


@contextmanager
def only_rebuild(place: ExportPlace) -> Iterator[None]:
    """Hold the lock of a place during the block; the lock ends with the process, too.

    A missing folder is made, for its owner alone: its tables say who writes to whom.

    Raises:
        TablesBusy: another process has it.
        ExportUnavailable: the folder cannot be made.
    """
    if not place.is_local:
        yield
        return
    path = Path(place.root) / LOCK
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        why = f"not a folder that can be written: {error.strerror}"
        raise ExportUnavailable(place.root, why) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = "another rebuild writes to this place; nothing was changed"
            raise TablesBusy(f"{place.root}: {why}") from None
        yield


class Kept(NamedTuple):
    """Which generations stay: the ``newest``, and each for ``replaced_s`` after the next one."""

    newest: int = 2
    replaced_s: float = 3_600


class TablesPlace:
    """A folder of tables, at a local path or a URI.

    Every method raises ExportUnavailable if the place cannot be read or written now, and
    TablesDamaged if what it reads is not as it was written.
    """

    def __init__(self, target: str, place: ExportPlace | None = None) -> None:
        """``place`` is ``target`` if the caller has opened it already."""
        self.target = target
        self.place = place or open_place(target)
        self._generations = DeltaFolder(self.place, GENERATIONS)

    def numbers(self) -> list[int]:
        """The numbers of all generations, in order; empty if there are no tables yet."""
        return sorted(self._listed(self._generations.opened()))

    def generation(self, number: int | None = None) -> Generation | None:
        """Read a generation by its number, or the newest one; None if there are no tables yet.

        Raises:
            TablesDamaged: the generation is not as it was written, or does not exist.
        """
        found = self._listed(self._generations.opened())
        if number is None and not found:
            return None
        number = max(found) if number is None else number
        if number not in found:
            raise TablesDamaged(f"generation {number}: it does not exist, or was removed")
        return self._read(found[number])

    def opened(self, number: int | None = None) -> Generation:
        """Read a generation by its number, or the newest one, and check its tables.

        Raises:
            TablesDamaged: there is no such generation, or its tables are not as it says.
        """
        found = self.generation(number)
        if found is None:
            raise TablesDamaged(f"{self.target}: there are no rebuilt tables")
        self.check(found)
        return found

    def check(self, generation: Generation) -> None:
        """Check that the tables of a generation are as it says, but not yet their content.

        Raises:
            TablesDamaged: a table is not; says which one, and why.
        """
        with ThreadPoolExecutor(_AT_ONCE) as checking:
            list(checking.map(self._check, generation.tables))

    def check_content(self, table: GenerationTable, files: Iterable[TableFile]) -> None:
        """Check the SHA-256 of these files of a table.

        Raises:
            TablesDamaged: names the first file that is not as its generation says.
        """
        wanted = {f"{table.name}/{file.path}": file.sha256 for file in files}
        with ThreadPoolExecutor(_AT_ONCE) as reading:
            hashes = reading.map(lambda path: self._hashes(path, 0), wanted)
            for path, (found, _) in zip(wanted, hashes, strict=True):
                if found != wanted[path]:
                    raise TablesDamaged(f"{path}: its SHA-256 does not match its generation")

    def is_of(self, generation: Generation, export: OpenedExport) -> bool:
        """Whether an export has the rows that the tables of a generation were made from.

        The digest of a seal follows from all that its partition had before, and the table of seals
        has the newest one of each partition: the newest of all is among them, unless the log went
        on from an earlier point. Of rows that were removed from the export since, it cannot tell.

        Args:
            generation: its table of seals is checked and read.
            export: of the same number of databases, none of which ends before the tables.

        Raises:
            ExportDamaged: a file of the export is not the one that was signed.
        """
        seals = generation.table(SEALS)
        self.check_content(seals, seals.files)
        known: set[tuple[int, bytes]] = set()
        for file in seals.files:
            with self.place.opened(f"{seals.name}/{file.path}") as opened:
                rows = pq.ParquetFile(opened).read(["position", "digest"])
            known.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        for part, at in zip(export.parts, generation.at, strict=True):
            newest = part.newest_seal(at) if at >= part.catalog.pruned_up_to else None
            if newest is not None and newest not in known:
                return False
        return True

    def staged(self, table: str, run: str) -> list[TableFile]:
        """Describe the files of a table that Spark wrote in one run, with their SHA-256."""
        sizes = {
            path: size
            for path, size in sorted(self.place.sizes(f"{table}/{run}").items())
            if path.endswith(".parquet")
        }

        def described(path: str) -> TableFile:
            self.place.sync(path)
            below = path.removeprefix(f"{table}/")
            footer, size = read_footer(self.place, path), sizes[path]
            whole, pages = self._hashes(path, size - footer.serialized_size - _END_BYTES)
            return TableFile(below, bucket_of(path), footer.num_rows, size, whole, pages)

        with ThreadPoolExecutor(_AT_ONCE) as reading:
            return list(reading.map(described, sizes))

    def remove_run(self, tables: Iterable[str], run: str) -> None:
        """Remove the uncommitted files that Spark wrote in one run."""
        for table in tables:
            for path in self.place.sizes(f"{table}/{run}"):
                self.place.remove(path)

    def commit_table(self, table: GenerationTable, base: int | None) -> GenerationTable:
        """Commit a version of a table with its files; return the table with this version.

        ``base`` is the number of the generation whose files the table shares, None for none.

        Raises:
            TablesBusy: another rebuild removed ``base``, or others committed first each time.
        """
        _check_is_there(base, self.numbers())
        return commit_files(self.place, table, _now_ms())

    def commit(
        self, draft: Generation, base: int | None, kept: Kept, *, hides_names: bool = False
    ) -> Generation:
        """Add a generation, whose tables are committed already, under the next number.

        Args:
            draft: the generation; this method sets its number and ``made_at_ms``.
            base: the number of the generation whose files it shares, None for none.
            kept: which generations stay; the files of others are removed.
            hides_names: whether earlier versions of its tables, and the bounds that an earlier
                release wrote of them, may have names that it hides: their commits go at once, in a
                place without a lock a week after they were made.

        Raises:
            TablesBusy: another rebuild removed ``base``, or others committed first each time.
        """
        for _ in range(_TRIES):
            table = self._generations.opened()
            found = self._listed(table)
            _check_is_there(base, found)
            earlier = {number: self._read(path) for number, path in found.items()}
            number = max(found, default=0) + 1
            new = msgspec.structs.replace(draft, generation=number, made_at_ms=_now_ms())
            gone = _expired([*earlier.values(), new], kept)
            path = self._write(new)
            if not self._is_committed(table, path, [found[each] for each in gone]):
                self.place.remove(f"{GENERATIONS}/{path}")
                continue
            left = [each for n, each in earlier.items() if n not in gone]
            self._remove([earlier[each] for each in gone], [*left, new], hides_names=hides_names)
            for each in gone:
                self.place.remove(f"{GENERATIONS}/{found[each]}")
            return new
        raise TablesBusy(f"other rebuilds keep writing to {self.place.root}")

    def _check(self, table: GenerationTable) -> None:
        if content_hash(table.files) != table.sha256:
            raise TablesDamaged(f"{table.name}: its SHA-256 does not match its files")
        if sum(file.rows for file in table.files) != table.rows:
            raise TablesDamaged(f"{table.name}: its files do not have {table.rows} rows together")
        check_files(self.place, table)

    def _listed(self, table: DeltaTable | None) -> dict[int, str]:
        if table is None:
            return {}
        found: dict[int, str] = {}
        for path in self._generations.files(table):
            named = _NAME.fullmatch(path)
            if named is None or int(named[1]) in found:
                raise TablesDamaged(f"{GENERATIONS}/{path}: not the file of one generation")
            found[int(named[1])] = path
        return found

    def _read(self, name: str) -> Generation:
        path = f"{GENERATIONS}/{name}"
        try:
            content = self.place.read(path)
        except FileMissing as error:
            raise TablesDamaged(f"{path}: the file is missing") from error
        named = _NAME.fullmatch(name)
        if named is None or hashlib.sha256(content).hexdigest() != named[2]:
            raise TablesDamaged(f"{path}: its SHA-256 does not match its name")
        try:
            (row,) = pq.read_table(pa.BufferReader(content)).to_pylist()
            if json.loads(row["description"])["format"] != FORMAT:
                raise TablesDamaged(
                    f"{path}: made by another release: rebuild the tables elsewhere"
                )
            return msgspec.json.decode(row["description"], type=Generation)
        except (pa.ArrowException, msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
            raise TablesDamaged(f"{path}: {error}") from error

    def _write(self, generation: Generation) -> str:
        until_ms = generation.complete_until_ms
        row = {
            "generation": generation.generation,
            "made_at": _time(generation.made_at_ms),
            "position": generation.position,
            "at": _time(generation.at_ms),
            "complete_until": None if until_ms is None else _time(until_ms),
            "tables": [
                {"name": t.name, "version": t.version, "rows": t.rows, "sha256": t.sha256}
                for t in generation.tables
            ],
            "description": msgspec.json.encode(generation).decode(),
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([row], DESCRIBED), sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
        path = f"{generation.generation:08d}-{hashlib.sha256(content).hexdigest()}.parquet"
        self.place.write(f"{GENERATIONS}/{path}", content)
        return path

    def _is_committed(self, table: DeltaTable | None, path: str, gone: Sequence[str]) -> bool:
        """Commit the file of a generation in place of others; False if another was first."""
        size = self.place.sizes(GENERATIONS)[f"{GENERATIONS}/{path}"]
        number = int(path.partition("-")[0])
        bounds = {"minValues": {"generation": number}, "maxValues": {"generation": number}}
        stats = json.dumps({"numRecords": 1} | bounds | {"nullCount": {"generation": 0}})
        added = AddAction(path, size, {}, _now_ms(), data_change=True, stats=stats)
        version = self._generations.make_version(
            table,
            [added],
            [RemoveAction(each, True, _now_ms(), 0, {}) for each in gone],  # noqa: FBT003
            Schema.from_arrow(DESCRIBED),
            about="Rebuilds: which versions of the tables beside this one are of one.",
        )
        if version is not None:
            self._generations.trim(version)
        return version is not None

    def _remove(
        self, gone: Sequence[Generation], left: Sequence[Generation], *, hides_names: bool
    ) -> None:
        """Remove the files of generations that are gone, and files that no generation names."""
        named = _paths(left)
        tables = [table for each in left for table in each.tables]
        for name in sorted({table.name for table in tables}):
            oldest = min(table.version for table in tables if table.name == name)
            folder = DeltaFolder(self.place, name)
            folder.trim(self._first_needed(folder, oldest), is_due=hides_names)
            was_named = _paths(gone)
            found = [path for path in self.place.sizes(name) if "/_delta_log/" not in path]
            unnamed = [path for path in found if path not in named]
            for path, is_old in zip(unnamed, self._are_old(unnamed), strict=True):
                if path in was_named or is_old:
                    self.place.remove(path)

    def _first_needed(self, folder: DeltaFolder, named: int) -> int:
        """The oldest version that is ``named``, or that a rebuild which still runs may name."""
        earlier = {path: version for path, version in folder.commits().items() if version < named}
        ages = zip(earlier.values(), self._are_old([*earlier]), strict=True)
        return min([version for version, is_old in ages if not is_old], default=named)

    def _are_old(self, paths: Sequence[str]) -> list[bool]:
        if self.place.is_local:
            return [True] * len(paths)  # the lock ensures that no other rebuild writes here
        oldest_s = time.time() - _UNNAMED_KEPT_S
        return [written_s < oldest_s for written_s in self.place.written_s(paths)]

    def _hashes(self, path: str, begin_bytes: int) -> tuple[str, str]:
        """The SHA-256 of a file, and of its first ``begin_bytes`` bytes."""
        digest, left = hashlib.sha256(), begin_bytes
        try:
            with self.place.filesystem.open_input_file(self.place.full_path(path)) as opened:
                while piece := opened.read(min(_PIECE_BYTES, left)):
                    digest.update(piece)
                    left -= len(piece)
                begin = digest.hexdigest()
                while piece := opened.read(_PIECE_BYTES):
                    digest.update(piece)
        except OSError as error:
            raise ExportUnavailable(path, str(error)) from error
        return digest.hexdigest(), begin


def _check_is_there(base: int | None, numbers: Container[int]) -> None:
    if base is not None and base not in numbers:
        why = "was meanwhile removed by another rebuild: run this again"
        raise TablesBusy(f"generation {base}, the base of this rebuild, {why}")


def _paths(generations: Iterable[Generation]) -> frozenset[str]:
    return frozenset(
        f"{table.name}/{file.path}"
        for generation in generations
        for table in generation.tables
        for file in table.files
    )


def _expired(generations: Sequence[Generation], kept: Kept) -> set[int]:
    """The numbers of the generations that do not stay."""
    ordered: Sequence[Generation] = sorted(generations, key=lambda each: each.generation)
    now_ms = ordered[-1].made_at_ms
    replaced = [
        each.generation
        for each, following in pairwise(ordered)
        if following.made_at_ms + kept.replaced_s * 1_000 <= now_ms
    ]
    newest = {each.generation for each in ordered[-max(kept.newest, 1) :]}
    return set(replaced) - newest


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
