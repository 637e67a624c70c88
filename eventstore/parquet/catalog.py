"""Reads an export: finds the files that hold the log, and checks that none is missing or doubled.

The newest version of the table (``eventstore.parquet.table``) says which files count, and which
signed manifests name them. Exports of earlier releases have no table: there every manifest counts,
except those inside the positions of a wider one, which replaced them
(``eventstore.parquet.write.compaction``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from eventstore.log.faults import Head
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable, RowsPruned
from eventstore.parquet.files import (
    END,
    HEAD,
    INDEX,
    MANIFESTS,
    SUMMARIES,
    TABLE_LOG,
    ExportPlace,
    FileMissing,
)
from eventstore.parquet.index import ExportIndex
from eventstore.parquet.manifest import (
    DataFile,
    ExportHead,
    Manifest,
    Pruned,
    Statement,
    Verify,
    export_head,
    heads_of,
    is_manifest,
    owner_damage,
    parse_manifest,
    positions_of,
)
from eventstore.parquet.schema import FORMAT
from eventstore.parquet.table import TableFile, check_checkpoint, files_of, require_table
from eventstore.parquet.versions import (
    EndMark,
    TableVersion,
    commit_path,
    newest_version,
    read_mark,
    read_summary,
    read_version,
)

LISTED_FILES_MAX: Final = 10_000
"""Ten pages of an object store's listing; in a larger export a file is missed when it is read."""
_TRIES: Final = 3


@dataclass(frozen=True)
class Catalog:
    """The contents of an export. ``head`` is None if there is no export yet."""

    head: ExportHead | None
    statements: Sequence[Statement] = ()
    """The manifests that count, in the order of the log."""
    strays: Sequence[str] = ()
    """Files of the export that do not count, if the caller requested a listing."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """The newest seal of each partition up to ``last``."""
    version: TableVersion | None = None
    """The version of the table; None in an export of an earlier release."""
    commit: str = ""
    """The SHA-256 of the commit of this version."""
    mark: EndMark | None = None
    """The end mark when the catalog was read; it may be of an earlier version."""

    @property
    def files(self) -> list[DataFile]:
        """The data files, in the order of the log and, within a manifest, of days."""
        return [file for statement in self.statements for file in statement.manifest.files]

    @property
    def last(self) -> int:
        """The position up to which the log is exported; 0 for an empty export."""
        return self.statements[-1].manifest.last if self.statements else 0

    @property
    def pruned_up_to(self) -> int:
        """The position up to which only needed rows are left; 0 if nothing was pruned."""
        first = self.statements[0].manifest if self.statements else None
        return first.last if first is not None and first.is_pruned else 0

    @property
    def pruned(self) -> Pruned | None:
        """The statement about the rows removed up to ``pruned_up_to``; None if none were."""
        return self.statements[0].manifest.pruned if self.statements else None

    def check_not_pruned(self, as_of: datetime | int | None) -> None:
        """Refuse a time or position whose rows were pruned since.

        Raises:
            RowsPruned: says up to when rows were removed.
        """
        pruned = self.pruned
        if pruned is None or as_of is None:
            return
        is_before = (
            as_of < self.pruned_up_to
            if isinstance(as_of, int)
            else as_of < _time(pruned.recorded_until_ms)
        )
        if is_before:
            raise RowsPruned(f"the state as of {as_of} is no longer known: {pruned_text(self)}")

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(statement.manifest.rows for statement in self.statements)

    @property
    def link(self) -> str:
        """The ``previous`` of the next manifest."""
        return self.statements[-1].link if self.statements else ""

    @property
    def next_version(self) -> int:
        """The version of the table that the next commit makes."""
        assert self.version is not None
        return self.version.version + 1

    @property
    def index(self) -> ExportIndex | None:
        """The index of the rows that name messages and identities; None if there is none."""
        return self.version.index if self.version else None

    @property
    def is_marked(self) -> bool:
        """Whether the end mark is of this version."""
        mark, version = self.mark, self.version
        return mark is not None and version is not None and mark.version == version.version

    @property
    def complete_until_ms(self) -> int | None:
        """The time until which the export is complete (Unix milliseconds); None if unknown."""
        mark = self.mark
        if mark is None or not mark.complete_until_ms or mark.complete_position > self.last:
            return None
        return mark.complete_until_ms


def pruned_text(catalog: Catalog) -> str:
    """A sentence about the rows that were removed from a pruned export."""
    pruned = catalog.pruned
    assert pruned is not None
    until, at = (
        _time(ms).isoformat(timespec="seconds") for ms in (pruned.recorded_until_ms, pruned.at_ms)
    )
    return (
        f"{pruned.rows:,} rows up to position {catalog.pruned_up_to:,}, recorded until {until},"
        f" were removed from the archive at {at}"
    )


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def catalog_of(
    place: ExportPlace,
    verify: Verify | None,
    known: Sequence[Statement] = (),
    *,
    is_listed: bool = True,
    is_whole: bool = False,
) -> Catalog:
    """Read what counts in an export and check it; of data files the sizes, not the hashes.

    May run beside an exporter: a catalog is a state that was complete at some time during the call.

    Args:
        place: where the export is.
        verify: checks the mediator's signatures; without it nothing proves who wrote the export.
        known: manifests from an earlier call, which are not read again.
        is_listed: list all files, to find those that are missing, cut or do not count, and compare
            the manifests with the table that other programs open. Without it an export with a
            table is opened with a bounded number of reads, and not by the library of the table:
            data files are listed only if there are at most ``LISTED_FILES_MAX``.
        is_whole: read every manifest, with its heads, and no summary.

    Raises:
        ExportDamaged: names the file and says what is wrong with it.
        ExportUnavailable: the place cannot be read now.
    """
    read = partial(_catalog, place, verify, known, is_listed=is_listed, is_whole=is_whole)
    for _ in range(_TRIES - 1):
        # An exporter or a compaction may have changed the export between two reads.
        with suppress(ExportDamaged):
            return read()
    return read()


def read_data(place: ExportPlace, file: DataFile, *, is_compared: bool = True) -> bytes:
    """Read a data file and compare it with the SHA-256 in its manifest if ``is_compared``.

    Raises:
        ExportDamaged: the file is missing or has another SHA-256.
    """
    content = place.read_named(file.path, "a manifest names it", file.bytes)
    if is_compared and hashlib.sha256(content).hexdigest() != file.sha256:
        raise ExportDamaged(file.path, Damage.CHANGED, "its SHA-256 is not that of the manifest")
    return content


def require_named(place: ExportPlace, damage: ExportDamaged) -> None:
    """Check that the newest version names a file, after finding it missing.

    Raises:
        ExportUnavailable: it was replaced and removed meanwhile, so the file is not damaged.
    """
    if damage.damage is Damage.MISSING and not _is_named(place, damage.path):
        why = "replaced by another one while it was being read; read the export again"
        raise ExportUnavailable(damage.path, why) from damage


def _is_named(place: ExportPlace, path: str) -> bool:
    """Whether the newest version names a data or index file; also if it is damaged."""
    try:
        newest = catalog_of(place, None, is_listed=False)
    except ExportDamaged:
        return True
    indexed = {file.path for file in newest.index.files} if newest.index else set()
    return path in indexed.union(file.path for file in newest.files)


def _catalog(
    place: ExportPlace,
    verify: Verify | None,
    known: Sequence[Statement],
    *,
    is_listed: bool,
    is_whole: bool,
) -> Catalog:
    head = _head(place, verify)
    if head is None:
        return Catalog(None, strays=sorted([*place.sizes(MANIFESTS), *place.data_sizes()]))
    reading = _Reading(place, head, verify, known)
    if head.format == FORMAT:
        return reading.by_manifests()
    return reading.by_table(is_listed=is_listed, is_whole=is_whole)


def _head(place: ExportPlace, verify: Verify | None) -> ExportHead | None:
    try:
        return export_head(place, verify)
    except FileMissing as error:
        if any(map(is_manifest, place.sizes(MANIFESTS))):
            raise ExportDamaged(HEAD, Damage.MISSING, "there are manifests beside it") from error
        return None


class _Reading(NamedTuple):
    """One reading of an export."""

    place: ExportPlace
    head: ExportHead
    verify: Verify | None
    known: Sequence[Statement]

    def by_manifests(self) -> Catalog:
        """Read an export of an earlier release, where only the manifests say what counts."""
        listed, sizes = self.place.sizes(MANIFESTS), self.place.data_sizes()
        known = [s for s in self.known if s.manifest.path in listed]
        statements = self._chain(self._read([*filter(is_manifest, listed)], known))
        files = _checked_files(statements, self.place.data_sizes())
        counting = {statement.manifest.path for statement in statements}
        newest = statements[-1].manifest if statements else None
        return Catalog(
            head=self.head,
            statements=statements,
            strays=sorted((listed.keys() - counting) | (sizes.keys() - files)),
            heads=heads_of(newest.path, newest) if newest else {},
        )

    def by_table(self, *, is_listed: bool, is_whole: bool) -> Catalog:
        """Read an export whose table says what counts."""
        # Read before the table: a mark of a later version than the table's then proves a cut table.
        mark = read_mark(self.place, self.verify)
        log = self.place.sizes(TABLE_LOG)
        said, commit = read_version(self.place, newest_version(log), self.verify)
        self._check_owner(commit_path(said.version), said.signed_by)
        if mark is not None:
            self._check_owner(END, mark.signed_by)
            check_end(mark, said.version, commit)
        statements = self._statements(said, is_whole=is_whole)
        if is_listed:
            check_checkpoint(self.place, log, said, mark)
            files = files_of(self.place, require_table(self.place, said.version))
            for damage in table_damage(files, statements):
                raise damage
        heads = self._heads(said, statements)
        counting = {statement.manifest.path for statement in statements}
        strays: list[str] = []
        if is_listed or said.files <= LISTED_FILES_MAX:
            sizes = self.place.data_sizes()
            strays = sorted(sizes.keys() - _checked_files(statements, sizes))
        if is_listed:
            folders = (MANIFESTS, SUMMARIES, INDEX)
            listed = {path for folder in folders for path in self.place.sizes(folder)}
            indexed = {file.path for file in said.index.files} if said.index else set()
            strays = sorted([*strays, *(listed - counting - indexed - {said.summary})])
        return Catalog(self.head, statements, strays, heads, said, commit, mark)

    def _statements(self, said: TableVersion, *, is_whole: bool) -> list[Statement]:
        summary = read_summary(self.place, said)
        named = counting_in(said, summary)
        # A rewritten manifest stands for the same rows as the one in the summary.
        found = [] if is_whole else [s for s in summary if s.manifest.path in named]
        known = [s for s in self.known if named.get(s.manifest.path) == s.sha256]
        unread = named.keys() - {s.manifest.path for s in found}
        found += self._read(unread, known)
        for statement in found:
            path = statement.manifest.path
            if named.get(path, statement.sha256) != statement.sha256:
                why = f"its SHA-256 is not that of {commit_path(said.version)}"
                raise ExportDamaged(path, Damage.CHANGED, why)
        statements = self._chain(found)
        newest = statements[-1].manifest if statements else None
        if (said.manifest, said.position) != ((newest.path, newest.last) if newest else ("", 0)):
            why = f"names {said.manifest or 'no manifest'} as the newest one, which is another"
            raise ExportDamaged(commit_path(said.version), Damage.BROKEN_CHAIN, why)
        return statements

    def _heads(self, said: TableVersion, statements: Sequence[Statement]) -> dict[str, Head]:
        if not statements:
            return {}
        newest = statements[-1]
        if said.manifest not in said.since:
            content = self.place.read_named(said.manifest, f"named by {commit_path(said.version)}")
            newest = parse_manifest(said.manifest, content, self.verify)
            if newest.sha256 != statements[-1].sha256:
                why = f"its SHA-256 is not that of {said.summary}"
                raise ExportDamaged(said.manifest, Damage.CHANGED, why)
        return heads_of(said.manifest, newest.manifest)

    def _read(self, names: Iterable[str], known: Sequence[Statement]) -> list[Statement]:
        """Read the manifests of these names, except known ones."""
        unread = sorted({*names} - {statement.manifest.path for statement in known})
        contents = self.place.read_all(unread)
        found = [parse_manifest(name, content, self.verify) for name, content in contents]
        for name in sorted({*unread} - {statement.manifest.path for statement in found}):
            raise ExportDamaged(name, Damage.MISSING, "it was listed before")
        return [*known, *found]

    def _chain(self, found: Sequence[Statement]) -> list[Statement]:
        """The manifests that count, checked that each continues from the one before."""
        chain: list[Statement] = []
        reached, link = 0, ""
        for statement in counting_among(found):
            manifest = statement.manifest
            check_continues(manifest, reached, link)
            self._check_owner(manifest.path, manifest.signed_by)
            chain.append(statement)
            reached, link = manifest.last, statement.link
        return chain

    def _check_owner(self, path: str, signed_by: str) -> None:
        for damage in owner_damage(path, signed_by, self.head.public_key):
            raise damage


def counting_in(said: TableVersion, summary: Sequence[Statement]) -> dict[str, str]:
    """The SHA-256 of each manifest that counts in a version, by path.

    ``summary`` has the manifests in the version's summary.
    """
    spans = [positions_of(path) for path in said.since]
    return dict(said.since) | {
        s.manifest.path: s.sha256
        for s in summary
        if not any(a <= s.manifest.first and s.manifest.last <= b for a, b in spans)
    }


def check_end(mark: EndMark, version: int, commit: str) -> None:
    """Raise ``ExportDamaged`` if the mark contradicts this newest version: is later, or differs.

    A mark of an earlier version is no damage: the exporter writes the mark after the commit.
    """
    path = commit_path(mark.version)
    if mark.version > version:
        why = f"the table ends at version {version}, and end.json names version {mark.version}"
        raise ExportDamaged(path, Damage.ROLLED_BACK, why)
    if mark.version == version and mark.commit != commit:
        raise ExportDamaged(path, Damage.CHANGED, "its SHA-256 is not that of end.json")


def table_damage(
    table: Mapping[str, TableFile], statements: Sequence[Statement]
) -> Iterator[ExportDamaged]:
    """Yield each file whose entry in the table differs from the manifests, or is only in one.

    Args:
        table: the files of the table.
        statements: the manifests that count.
    """
    named = {
        file.path: TableFile(file.bytes, file.rows)
        for statement in statements
        for file in statement.manifest.files
    }
    for path in sorted(named.keys() | table.keys()):
        if named.get(path) != table.get(path):
            why = "the table differs from the manifests that its newest version names"
            yield ExportDamaged(path, Damage.BROKEN_COMMIT, why)


class _WithManifest(Protocol):
    @property
    def manifest(self) -> Manifest: ...


_M = TypeVar("_M", bound=_WithManifest)


def counting_among(found: Iterable[_M]) -> Iterator[_M]:
    """The manifests not inside the positions of a wider one, in the order of the log."""
    reached = 0
    for read in sorted(found, key=lambda read: _widest_first(read.manifest)):
        if read.manifest.last > reached:
            yield read
            reached = read.manifest.last


def _widest_first(manifest: Manifest) -> tuple[int, int, int]:
    """The key of an order in which a manifest stands before those that it replaced."""
    return manifest.first, -manifest.last, -(manifest.rewritten or 0)


def check_continues(manifest: Manifest, reached: int, link: str) -> None:
    """Raise ``ExportDamaged`` unless a manifest follows the one that ended at ``reached``."""
    if manifest.first > reached + 1:
        why = f"positions {reached + 1} to {manifest.first - 1} are missing before it"
        raise ExportDamaged(manifest.path, Damage.GAP, why)
    if manifest.first <= reached:
        why = f"positions {manifest.first} to {reached} are also in the manifest before it"
        raise ExportDamaged(manifest.path, Damage.OVERLAP, why)
    if manifest.previous != link:
        raise ExportDamaged(manifest.path, Damage.BROKEN_CHAIN, "it continues another manifest")


def _checked_files(statements: Sequence[Statement], sizes: Mapping[str, int]) -> set[str]:
    files: set[str] = set()
    for statement in statements:
        for file in statement.manifest.files:
            by = f"named by {statement.manifest.path}"
            if file.path in files:
                raise ExportDamaged(file.path, Damage.DUPLICATED, f"{by} again")
            if file.path not in sizes:
                raise ExportDamaged(file.path, Damage.MISSING, by)
            if sizes[file.path] != file.bytes:
                why = f"{sizes[file.path]} bytes, {file.bytes} when it was written; {by}"
                raise ExportDamaged(file.path, Damage.TRUNCATED, why)
            files.add(file.path)
    return files
