"""Reads which rows an export claims to hold, even if it is damaged.

This reads the same files as ``eventstore.parquet.catalog``, but continues where the catalog stops:
it reports all damage, and returns the manifests that are as they were signed, so that their rows
are checked too. Nothing proves which files another one names, so these are not decoded for it.

The table says which manifests count (``eventstore.parquet.verify.table``). Without a usable table,
every manifest counts that is not inside the positions of a wider one.

Other files are explained if possible: they belong to manifests that a counting one replaced
(``Leftovers``). The files of such manifests are checked like the rest.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKeyRefused, read_public_key
from eventstore.parquet.catalog import check_continues, counting_among, table_damage
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import (
    HEAD,
    INDEX,
    MANIFESTS,
    SUMMARIES,
    TABLE_LOG,
    ExportPlace,
)
from eventstore.parquet.index import ExportIndex
from eventstore.parquet.manifest import (
    DataFile,
    ExportHead,
    Manifest,
    Statement,
    Verify,
    heads_of,
    is_data,
    is_manifest,
    owner_damage,
    parse_statement,
    positions_of,
    read_manifest,
    signature_damage,
)
from eventstore.parquet.schema import FORMAT
from eventstore.parquet.table import Described
from eventstore.parquet.verify.findings import ExportFinding, finding_of
from eventstore.parquet.verify.table import TableCheck, TableContents


class ReadManifest(NamedTuple):
    """A manifest that is validly signed and in its place, with its heads."""

    statement: Statement
    heads: Mapping[str, Head]

    @property
    def manifest(self) -> Manifest:
        """The manifest itself."""
        return self.statement.manifest


class Leftovers:
    """Finds the files that the counting manifests explain, and damage to those they replaced."""

    def __init__(
        self,
        place: ExportPlace,
        data: Collection[str],
        found: Sequence[ReadManifest],
        counting: Sequence[ReadManifest],
        unreadable: Collection[str],
    ) -> None:
        """``found`` are all manifests; ``unreadable`` are the paths of those that do not count.

        ``data`` are the paths of the data files.
        """
        self.findings: list[ExportFinding] = []
        self._place = place
        self._data = data
        self._unreadable = unreadable
        self._found = {read.manifest.path: read for read in found}
        self._explained = {read.manifest.path for read in counting}
        for read in counting:
            for file in read.manifest.files:
                if file.path in self._explained:
                    why = f"{read.manifest.path} names it too"
                    self._report(ExportDamaged(file.path, Damage.DUPLICATED, why))
                self._explained.add(file.path)
        for read in counting:
            self._explain_replaced(read.manifest)

    def strays(self, listed: Collection[str]) -> frozenset[str]:
        """The files of an export that nothing explains.

        Files at the positions of an unreadable manifest are left out: it may name them.
        """
        ranges = sorted(positions_of(path) for path in self._unreadable)
        reached = [*accumulate((last for _, last in ranges), max, initial=-1)]
        data = ((path, positions_of(path)) for path in filter(is_data, self._data))
        lost = {
            path for path, (first, last) in data
            if last <= reached[bisect_right(ranges, first, key=itemgetter(0))]
        }  # fmt: skip
        every = {*listed, *self._data}
        return frozenset(every - self._explained - lost - {*self._unreadable})

    def _report(self, damage: ExportDamaged) -> None:
        self.findings.append(finding_of(damage))

    def _explain_replaced(self, manifest: Manifest) -> None:
        """Explain the manifests and files that this manifest replaced, and those they replaced."""
        waiting = [manifest]
        while waiting:
            replacing = waiting.pop()
            for read in self._replaced_by(replacing):
                self._explained.add(read.manifest.path)
                is_last = read.manifest.path == replacing.replaces[-1]
                if is_last and read.statement.link != replacing.stands_for:
                    why = f"not the manifest that {replacing.path} replaced"
                    self._report(ExportDamaged(read.manifest.path, Damage.BROKEN_CHAIN, why))
                for file in read.manifest.files:
                    self._check_replaced(file)
                waiting.append(read.manifest)

    def _replaced_by(self, manifest: Manifest) -> Iterator[ReadManifest]:
        for path in manifest.replaces:
            read = self._found.get(path)
            if read is not None and path not in self._explained:
                yield read

    def _check_replaced(self, file: DataFile) -> None:
        if file.path in self._explained or file.path not in self._data:
            return
        self._explained.add(file.path)
        # A compaction may have just removed it.
        content = self._place.read_if_there(file.path, file.bytes)
        if content is not None and hashlib.sha256(content).hexdigest() != file.sha256:
            why = "replaced, and not as it was then; the next export removes it"
            self._report(ExportDamaged(file.path, Damage.CHANGED, why))


_TRIES: Final = 3


class ManifestPart(NamedTuple):
    """A manifest whose rows can be checked, with the heads before and after them."""

    manifest: Manifest
    heads: Mapping[str, Head]
    """The newest seals after the manifest's rows."""
    before: Mapping[str, Head] | None
    """The newest seals before the manifest's rows; None if rows before it may be missing."""
    described: Mapping[str, Described] = {}
    """What the table says of the files, as far as it is known and was not compared with them."""


class ManifestContents(NamedTuple):
    """The contents of an export's manifests, and the damage to them."""

    head: ExportHead | None
    parts: Sequence[ManifestPart]
    """In the order of the log."""
    findings: Sequence[ExportFinding]
    strays: frozenset[str]
    """Files that no manifest explains."""
    complete_until_ms: int | None
    """See ``EndMark``; None if unknown."""
    row_index: ExportIndex | None
    """The index of the export's rows, if it has one."""


def read_manifests(place: ExportPlace, verify: Verify | None) -> ManifestContents:
    """Read ``export.json`` and all manifests; may run beside an exporter.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    for _ in range(_TRIES):
        listed, commits = place.sizes(MANIFESTS), place.sizes(TABLE_LOG)
        contents = _Reading(place, listed).read(verify)
        # An exporter or a compaction may have changed the export between two reads.
        is_same = (place.sizes(MANIFESTS), place.sizes(TABLE_LOG)) == (listed, commits)
        if not contents.findings or is_same:
            return contents
    raise ExportUnavailable(MANIFESTS, "changes faster than it can be read")


class _Reading:
    """One reading of the manifests of an export.

    The files are listed before the table is read: so it names each file that an exporter had
    finished by then, and manifests that were written since are read by their names in it.
    """

    def __init__(self, place: ExportPlace, listed: Mapping[str, int]) -> None:
        self._place = place
        self._listed = listed
        self._data = place.data_sizes()
        self._beside = {*place.sizes(SUMMARIES), *place.sizes(INDEX)}
        self._findings: list[ExportFinding] = []
        self._unreadable: list[str] = []

    def read(self, verify: Verify | None) -> ManifestContents:
        head = self._head(verify)
        key = head.public_key if head else ""
        names = sorted(filter(is_manifest, self._listed))
        if verify is None:
            # With a damaged head, still check whether one key signed everything else.
            verify = _verify_of(key or _any_key(self._place.read_all(names)))
        found = self._manifests(names, "it was listed", verify)
        table = self._table(head, verify, key)
        self._findings += table.findings
        later = sorted((table.manifests or {}).keys() - self._listed.keys())
        found += self._manifests(later, "the table names its files", verify)
        for read in found:
            if key:
                for damage in owner_damage(read.manifest.path, read.manifest.signed_by, key):
                    self._report(damage)
        # Only manifests that were written for a version of a table have a digest.
        is_later = any(read.manifest.digest for read in found)
        if head is not None and head.format == FORMAT and is_later:
            why = "it is of before the export had a table, and manifests are of later"
            self._report(ExportDamaged(HEAD, Damage.ROLLED_BACK, why))
        counting = list(counting_among(self._committed(found, table)))
        parts = [_described(part, table.described) for part in self._chain(counting)]
        self._check_files(table, [read.statement for read in counting])
        leftovers = Leftovers(self._place, self._data, found, counting, self._unreadable)
        self._findings += leftovers.findings
        strays = leftovers.strays({*self._listed, *(self._beside - table.explained)})
        until_ms = (table.mark.complete_until_ms or None) if table.mark else None
        return ManifestContents(head, parts, self._findings, strays, until_ms, table.row_index)

    def _table(self, head: ExportHead | None, verify: Verify, key: str) -> TableContents:
        """Check the table, even if ``export.json`` is damaged."""
        has_table = bool(self._place.sizes(TABLE_LOG)) if head is None else head.format != FORMAT
        if has_table:
            return TableCheck(self._place, verify, key).read()
        return TableContents(None, None, None, [], frozenset())

    def _committed(self, found: Sequence[ReadManifest], table: TableContents) -> list[ReadManifest]:
        """The manifests that the table names; report those that differ.

        In place of a lost manifest, keep those that it replaced.
        """
        if table.manifests is None:
            return list(found)
        there = {read.manifest.path for read in found}
        lost = [positions_of(path) for path in table.manifests.keys() - there]
        committed = [
            read
            for read in found
            if read.manifest.path in table.manifests
            or any(a <= read.manifest.first and read.manifest.last <= b for a, b in lost)
        ]
        for read in committed:
            path = read.manifest.path
            if read.statement.sha256 != table.manifests.get(path, read.statement.sha256):
                self._report(ExportDamaged(path, Damage.CHANGED, "not the one that was committed"))
        return committed

    def _check_files(self, table: TableContents, statements: Sequence[Statement]) -> None:
        """Check that the table has the files of the manifests, if no manifest is missing."""
        if table.files is None or table.manifests is None:
            return
        if table.manifests.keys() == {statement.manifest.path for statement in statements}:
            for damage in table_damage(table.files, statements):
                self._report(damage)

    def _report(self, damage: ExportDamaged) -> None:
        self._findings.append(finding_of(damage))

    def _manifests(self, names: Sequence[str], why: str, verify: Verify) -> list[ReadManifest]:
        """Read manifests that must be there for a reason; report those that are not."""
        found: list[ReadManifest] = []
        missing = set(names)
        for path, content in self._place.read_all(names):
            found += self._manifest(path, content, verify)
            missing.remove(path)
        for path in sorted(missing):
            self._report(ExportDamaged(path, Damage.MISSING, why))
        return found

    def _head(self, verify: Verify | None) -> ExportHead | None:
        """Read ``export.json``; None if it is missing or damaged."""
        try:
            content = self._place.read_named(HEAD, "every export has one")
            head = parse_statement(HEAD, content, ExportHead)
        except ExportDamaged as error:
            self._report(error)
            return None
        verify = verify or _verify_of(head.public_key)
        damages = list(signature_damage(HEAD, head, content, verify))
        for damage in damages:
            self._report(damage)
        return None if damages else head

    def _manifest(self, path: str, content: bytes, verify: Verify) -> Iterator[ReadManifest]:
        """Yield a manifest, unless it is damaged: then nothing proves what it says of its files."""
        try:
            statement, damages = read_manifest(path, content, verify)
            heads = heads_of(path, statement.manifest)
        except ExportDamaged as error:
            self._report(error)
            self._unreadable.append(path)
            return
        for damage in damages:
            self._report(damage)
        if all(damage.damage is Damage.UNKNOWN_EVENT for damage in damages):
            yield ReadManifest(statement, heads)
        else:
            self._unreadable.append(path)

    def _chain(self, counting: Sequence[ReadManifest]) -> Iterator[ManifestPart]:
        """Yield the manifests whose rows can be checked, each with the heads before it."""
        reached, link = 0, ""
        before: Mapping[str, Head] | None = {}
        for read in counting:
            manifest = read.manifest
            try:
                # A manifest is not blamed for damage to the one before it.
                check_continues(manifest, reached, manifest.previous if before is None else link)
            except ExportDamaged as error:
                if error.damage is not Damage.GAP or not self._is_explained(reached, manifest):
                    self._report(error)
                if error.damage is not Damage.BROKEN_CHAIN:
                    before = None
                if error.damage is Damage.OVERLAP:
                    reached = manifest.last  # those that count end one behind the other
                    continue
            yield ManifestPart(manifest, read.heads, before)
            reached, link, before = manifest.last, read.statement.link, read.heads

    def _is_explained(self, reached: int, following: Manifest) -> bool:
        """Whether an unreadable manifest has, by its name, the missing positions."""
        ranges = map(positions_of, self._unreadable)
        return any(first <= reached + 1 and last >= following.first - 1 for first, last in ranges)


def _described(part: ManifestPart, every: Mapping[str, Described]) -> ManifestPart:
    paths = (file.path for file in part.manifest.files)
    return part._replace(described={path: every[path] for path in paths if path in every})


def _verify_of(key: str) -> Verify:
    try:
        return read_public_key(key).verify
    except PublicKeyRefused:
        return lambda _message, _signature: False


def _any_key(contents: Iterable[tuple[str, bytes]]) -> str:
    """The key that the first readable manifest names."""
    for path, content in contents:
        with suppress(ExportDamaged):
            return read_manifest(path, content, None)[0].manifest.signed_by
    return ""
