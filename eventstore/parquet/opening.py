"""Opens the export at a path or URI: of one database, or of all databases of a log together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.databases import folder_name
from eventstore.log.events import SEAL_TYPE
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.parquet.catalog import Catalog, catalog_of, read_data
from eventstore.parquet.databases import check_one_log, exports_in
from eventstore.parquet.errors import ExportDamaged, ExportError, SignedByAnother
from eventstore.parquet.files import HEAD, ExportPlace, FileMissing, open_place
from eventstore.parquet.manifest import DataFile, ExportHead, Verify, parse_statement
from eventstore.parquet.rows import read_table
from eventstore.parquet.schema import TIME
from eventstore.parquet.tree import CHECKPOINT, check_not_cut

AsOf: TypeAlias = datetime | int | None
"""A time (with its zone) or a position of the log; None for all that is exported."""
Position: TypeAlias = tuple[int, ...]
"""A point in a log: the position of a row in each of its databases, in their order."""
_MS: Final = 1_000
_AT_ONCE: Final = 4
"""Files in memory at once, some 30 MB each; two cores hash faster than a disk reads."""


def point_in_log(text: str) -> AsOf:
    """Parse a position of the log, or a time in ISO 8601; without a zone it is in UTC.

    Raises:
        ValueError: the text is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        said = f"{text!r} is neither a position nor a time like 2030-12-31T23:59:59Z"
        raise ValueError(said) from error


class NoExport(ExportError):
    """There is no export at the given path or URI."""


class NotExported(ExportError):
    """The export does not reach the given position or time, or cannot tell whether it does."""


class FileHashes:
    """Compares each file of exports once, and remembers it; compares none if ``is_skipped``.

    A file that changes between this comparison and the other program's reading goes unnoticed.
    Skipping is for callers that have just verified the export.
    """

    def __init__(self, *, is_skipped: bool = False) -> None:
        self.is_skipped = is_skipped
        self._compared: set[tuple[str, str]] = set()

    def check(self, place: ExportPlace, files: Iterable[DataFile]) -> None:
        """Compare the files that were not compared yet.

        Raises:
            ExportDamaged: a file is missing, or not the one that its manifest names.
            ExportUnavailable: a file cannot be read now.
        """
        at = place.address()
        new = [file for file in files if (at, file.sha256) not in self._compared]
        if self.is_skipped or not new:
            return

        def compare(file: DataFile) -> None:
            read_data(place, file)

        with ThreadPoolExecutor(_AT_ONCE, "export-hashes") as readers:
            for _ in readers.map(compare, new):
                pass
        self._compared.update((at, file.sha256) for file in new)


@dataclass(frozen=True)
class DatabaseExport:
    """The export of one database, and what it held when it was opened."""

    target: str
    place: ExportPlace
    catalog: Catalog
    hashes: FileHashes = field(default_factory=FileHashes, repr=False, compare=False)

    def files(self, after: int, until: int) -> list[DataFile]:
        """The data files with rows at ``after < position <= until``."""
        return [f for f in self.catalog.files if f.last > after and f.first <= until]

    def position_at(self, as_of: AsOf) -> int:
        """The position that the log had reached at ``as_of``: for a time, that of the last seal.

        Raises:
            ExportDamaged: a file is not the one that was signed.
            ExportUnavailable: the place cannot be read now.
        """
        if as_of is None:
            return self.catalog.last
        if isinstance(as_of, int):
            return as_of
        day = as_of.astimezone(UTC).date().isoformat()
        files = [file for file in self.catalog.files if file.day <= day]
        newest = self._newest_seal(files, "recorded_at", pa.scalar(as_of, TIME))
        return newest[0] if newest else 0

    def newest_seal(self, position: int) -> tuple[int, bytes] | None:
        """The position and the digest of the newest seal up to a position; None if there is none.

        It tells this log from every other up to there. Raises as ``position_at``.
        """
        return self._newest_seal(self.files(0, position), "position", position)

    def _newest_seal(
        self, files: Iterable[DataFile], column: str, most: Any
    ) -> tuple[int, bytes] | None:
        """The newest seal in files among those with at most this value in a column."""
        newest: tuple[int, bytes] | None = None
        for file in sorted(files, key=lambda file: -file.last):
            if newest is None or file.last > newest[0]:
                rows = self._read(file, "position", "type", "recorded_at", "digest")
                is_until = pc.less_equal(rows[column], most)
                seals = rows.filter(pc.and_(pc.equal(rows["type"], SEAL_TYPE), is_until))
                for last in seals.slice(max(seals.num_rows - 1, 0)).to_pylist():
                    newest = max(newest or (0, b""), (last["position"], last["digest"]))
        return newest

    def recorded_ms(self, position: int) -> int:
        """When the events up to a position were recorded, Unix milliseconds; 0 for none.

        This is the latest such time in the file that holds the position. Raises as ``position_at``.
        """
        files = self.files(0, position)
        if not files:
            return 0
        rows = self._read(max(files, key=lambda file: file.first), "position", "recorded_at")
        rows = rows.filter(pc.less_equal(rows["position"], position))
        latest = pc.max(rows["recorded_at"]).as_py()
        return 0 if latest is None else round(latest.timestamp() * _MS)

    def _read(self, file: DataFile, *columns: str) -> pa.Table:
        return read_table(self.place, file, columns, is_compared=not self.hashes.is_skipped)

    def is_whole(self, after: int, until: int) -> bool:
        """Whether those files have no rows outside of these positions."""
        return all(after < f.first and f.last <= until for f in self.files(after, until))


@dataclass(frozen=True)
class OpenedExport:
    """An export as it was when it was opened, without what was added later.

    If the log has several databases, ``parts`` has the export of each, in their order.
    """

    parts: Sequence[DatabaseExport]

    @property
    def head(self) -> ExportHead:
        """The owner of the export."""
        head = self.parts[0].catalog.head
        assert head is not None
        return head

    @property
    def versions(self) -> list[int]:
        """The version of each part's table; -1 for an export of an earlier release without one."""
        found = [part.catalog.version for part in self.parts]
        return [-1 if version is None else version.version for version in found]

    @property
    def start(self) -> Position:
        """The position before the first row."""
        return (0,) * len(self.parts)

    @property
    def last(self) -> Position:
        """The position at which the export ends."""
        return tuple(part.catalog.last for part in self.parts)

    def position(self, as_of: AsOf) -> Position:
        """The position that the log had reached at ``as_of``.

        For a time, this is the last seal that was made until then in each database, so that
        transactions are whole. Raises as ``require`` and ``DatabaseExport.position_at``.
        """
        self.require(as_of)
        return tuple(part.position_at(as_of) for part in self.parts)

    def at_ms(self, position: Position, as_of: AsOf = None) -> int:
        """When the events up to a position were recorded, Unix milliseconds; 0 for none.

        If ``as_of``, by which the position was found, is a time, this is that time.
        """
        if isinstance(as_of, datetime):
            return round(as_of.timestamp() * _MS)
        return max(part.recorded_ms(at) for part, at in zip(self.parts, position, strict=True))

    def types(self, after: Position, until: Position) -> frozenset[str]:
        """Event types that may occur at ``after < position <= until``; no others occur there."""
        return frozenset(self.counts(until, after))

    def counts(self, until: Position, after: Position | None = None) -> Counter[str]:
        """Count the events of each type up to a position, or a few more: whole files count.

        Files that end at or before the position ``after`` are left out.
        """
        found: Counter[str] = Counter()
        for part, first, last in zip(self.parts, after or self.start, until, strict=True):
            for file in part.files(first, last):
                for topic, count in file.types.items():
                    found[topic.rpartition(".")[0]] += count
        return found

    @property
    def pruned_up_to(self) -> Position:
        """The position up to which the export is pruned; 0 if no rows were removed."""
        return tuple(part.catalog.pruned_up_to for part in self.parts)

    @property
    def complete_until_ms(self) -> int | None:
        """The time until which the export is complete (Unix milliseconds); None if unknown."""
        said = [part.catalog.complete_until_ms for part in self.parts]
        known = [until_ms for until_ms in said if until_ms is not None]
        return min(known) if len(known) == len(said) else None

    def require(self, as_of: AsOf) -> None:
        """Refuse a point in the log whose state the export cannot give.

        Raises:
            NotExported: the export ends before it, or may be incomplete until then, or it is one
                position for several databases.
            RowsPruned: rows that existed at this point were removed since.
        """
        catalogs = [part.catalog for part in self.parts]
        if len(catalogs) == 1 or isinstance(as_of, datetime):
            for catalog in catalogs:
                catalog.check_not_pruned(as_of)
        if isinstance(as_of, datetime):
            _check_complete(catalogs, as_of)
        elif as_of is None:
            return
        elif len(catalogs) > 1:
            raise NotExported(
                f"position {as_of}: each of the log's {len(catalogs)} databases has its own"
                " positions: name a time, or the export of one database"
            )
        elif as_of > catalogs[0].last:
            raise NotExported(f"position {as_of}: the export ends at {catalogs[0].last}")


def open_exports(
    target: str, signer: PublicKey | None = None, *, skip_hashes: bool = False
) -> OpenedExport:
    """Open the export at a local path or a URI, or the exports of all databases there as one.

    All signatures in the export must be by ``signer``; without one, by the key that the export
    names itself, whose owner is then unproven. With ``skip_hashes`` data files are not compared
    with their signed hashes.

    Raises:
        NoExport: there is no export.
        ExportDamaged: names the file and says what is wrong with it, a wrong signature included;
            also if one of several exports is missing.
        ExportUnavailable: the place cannot be read now.
        SignedByAnother: the export is signed by another key than ``signer``.
    """
    targets, hashes = exports_in(target), FileHashes(is_skipped=skip_hashes)
    parts = [_opened(one, signer, hashes) for one in targets or [target]]
    if targets not in ([], [target]):
        check_one_log([part.catalog for part in parts])
    return OpenedExport(parts)


def position_text(position: Position) -> str:
    """A position as text; for several databases with the names of their exports."""
    if len(position) == 1:
        return f"{position[0]:,}"
    return ", ".join(f"{folder_name(number)} {last:,}" for number, last in enumerate(position))


def signer_said(key: str, signer: PublicKey | None) -> str:
    """Text that says which key signed an export, and whether the caller expected this key."""
    if signer is None:
        return f"{key}, whose owner is unknown because no key was named (--public-key)"
    return f"{key}, the key that was expected"


def _check_complete(catalogs: Sequence[Catalog], at: datetime) -> None:
    for number, catalog in enumerate(catalogs):
        until_ms = catalog.complete_until_ms
        name = f"{folder_name(number)}: " if len(catalogs) > 1 else ""
        if until_ms is None:
            raise NotExported(
                f"{name}the export has no completion time, because it is unfinished or was"
                " made by an earlier release: export again, or name a position"
            )
        if at.timestamp() * _MS > until_ms:
            until = datetime.fromtimestamp(until_ms / _MS, UTC).isoformat(timespec="seconds")
            raise NotExported(
                f"{name}{at.isoformat()}: the export is complete until {until}, position"
                f" {catalog.last}: name an earlier time, or wait for the next export"
            )


def _opened(target: str, signer: PublicKey | None, hashes: FileHashes) -> DatabaseExport:
    place = open_place(target)
    # Read before the catalog: a head of more seals than the newest version has proves a cut export.
    note = place.read_if_there(CHECKPOINT)
    catalog = catalog_of(place, _verify_of(place, signer), is_listed=False)
    if catalog.head is None:
        why = "there is no export here" if place.exists() else "there is no such folder"
        raise NoExport(f"{place.address()}: {why}")
    if note is not None:
        newest = catalog.statements[-1].manifest if catalog.statements else None
        check_not_cut(note, read_public_key(catalog.head.public_key), newest)
    return DatabaseExport(target, place, catalog, hashes)


def _verify_of(place: ExportPlace, signer: PublicKey | None) -> Verify | None:
    """The function that checks signatures.

    Without a signer None if there is no export, or an unreadable one.

    Raises:
        SignedByAnother: the export names another key than that of ``signer``.
    """
    try:
        named = read_public_key(parse_statement(HEAD, place.read(HEAD), ExportHead).public_key)
    except (FileMissing, ExportDamaged):
        return None if signer is None else signer.verify
    except PublicKeyRefused:
        return lambda _message, _signature: False
    if signer is not None and named != signer:
        why = f"signed by another key, {named.text}, and not by {signer.text}"
        raise SignedByAnother(f"the export at {place.address()} is {why}")
    return named.verify
