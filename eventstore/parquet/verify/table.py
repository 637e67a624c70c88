"""Checks the table of an export, and reads which manifests count, even if its log is damaged.

Each commit has a signed statement, which names the commit before it by its SHA-256; the mark of the
end names the newest one. So every file of the table's log is checked to the byte, except files that
an exporter left which was killed between a commit and the mark. At last the library opens the
table, and the check compares the files it finds with the signed ones, and all else that other
programs go by: columns, protocol, and the statistics by which they leave files out. It compares
these with each file whose rows it reads, and with all files if no mark names the newest commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from deltalake import DeltaTable

from eventstore.parquet.catalog import counting_in
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import END, INDEX, SUMMARIES, TABLE_LOG, ExportPlace, FileMissing
from eventstore.parquet.index import ExportIndex, explained_by
from eventstore.parquet.manifest import Verify, day_of, owner_damage
from eventstore.parquet.table import (
    DATE,
    DELTA_SCHEMA,
    LAST_CHECKPOINT,
    Described,
    TableFile,
    described_in,
    files_of,
    require_table,
    statistics_in,
)
from eventstore.parquet.verify.findings import ExportFinding, file_finding, finding_of
from eventstore.parquet.versions import (
    EndMark,
    TableVersion,
    commit_path,
    is_checkpoint_due,
    parse_version,
    read_mark,
    read_summary,
    version_of,
)

_READER: Final = 1
"""The version of the format for readers: a later one can hide rows of a file."""


class TableContents(NamedTuple):
    """The contents of a table, and the damage to its log."""

    manifests: Mapping[str, str] | None
    """The SHA-256 of each manifest that counts, by path; None if it is unknown."""
    files: Mapping[str, TableFile] | None
    """The newest version's files as other programs read them; None if they cannot."""
    mark: EndMark | None
    findings: list[ExportFinding]
    explained: frozenset[str]
    """Summaries that are as signed, or reported, and index files that a version named."""
    row_index: ExportIndex | None = None
    """The index that the newest version names."""
    described: Mapping[str, Described] = {}
    """What other programs read of each file, unless it was compared with the files already."""


class TableCheck:
    """One check of the log of a table; may run beside an exporter.

    Both steps raise ``ExportUnavailable`` if the place cannot be read now.
    """

    def __init__(self, place: ExportPlace, verify: Verify | None, key: str) -> None:
        """``verify`` checks the mediator's signatures; ``key`` is the public key of the export."""
        self._place = place
        self._verify = verify
        self._key = key
        self._findings: list[ExportFinding] = []
        # Read before the commits: a new commit is then later than the mark, not missing.
        self._mark = self._read_mark()
        self._listed = place.sizes(TABLE_LOG)
        found = sorted(v for path in self._listed if (v := version_of(path)) >= 0)
        self._newest = found[-1] if found else -1
        self._sha256: dict[int, str] = {}
        """The SHA-256 of each commit; an old one may be removed at this moment."""
        self._versions = dict(sorted(self._signed_versions(found)))

    def read(self) -> TableContents:
        """Check the log, and return what it says."""
        if not self._sha256:
            self._report(TABLE_LOG, Damage.MISSING, "the export has a table")
            return TableContents(None, None, self._mark, self._findings, frozenset())
        self._check_chain()
        self._check_end()
        self._check_checkpoints()
        explained = self._check_summaries()
        manifests = self._manifests()
        files, described = None, dict[str, Described]()
        if not self._findings:
            try:
                table = require_table(self._place, self._newest)
                files = files_of(self._place, table)
                described = self._described(table)
            except ExportDamaged as error:
                self._findings.append(finding_of(error))
        said = self._versions.get(self._newest)
        index = said.index if said else None
        explained |= {
            path
            for path in self._place.sizes(INDEX)
            if said is None or (index is not None and explained_by(path, index))
        }
        explained_files = frozenset(explained)
        return TableContents(
            manifests, files, self._mark, self._findings, explained_files, index, described
        )

    def _report(self, path: str, damage: Damage, why: str) -> None:
        self._findings.append(file_finding(path, damage, why))

    def _read_mark(self) -> EndMark | None:
        try:
            mark = read_mark(self._place, self._verify)
        except ExportDamaged as error:
            self._findings.append(finding_of(error))
            return None
        if mark is None:
            self._report(END, Damage.MISSING, "every export with a table has one")
        else:
            self._check_owner(END, mark.signed_by)
        return mark

    def _signed_versions(self, versions: list[int]) -> Iterator[tuple[int, TableVersion]]:
        """Yield what the commits say, from the newest on, and report those that nothing proves.

        A signed commit proves the one before by its SHA-256, because the exporter signs the SHA-256
        only of a commit with a statement that it signed: of thousands that are kept, comparing them
        takes a tenth of the time of their signatures.
        """
        proven = ""
        for path, content in self._place.read_all(map(commit_path, reversed(versions))):
            version, sha256 = version_of(path), hashlib.sha256(content).hexdigest()
            self._sha256[version] = sha256
            try:
                is_proven = sha256 == proven
                said = parse_version(version, content, self._verify, is_proven=is_proven)
            except ExportDamaged as error:
                proven = ""
                self._findings.append(finding_of(error))
                continue
            self._check_owner(path, said.signed_by)
            proven = said.previous
            yield version, said

    def _check_owner(self, path: str, signed_by: str) -> None:
        if self._key:
            self._findings += map(finding_of, owner_damage(path, signed_by, self._key))

    def _check_chain(self) -> None:
        """Check that each commit is the one that the next commit names."""
        found = sorted(self._sha256)
        for before, after in pairwise(found):
            said = self._versions.get(after)
            if before + 1 != after:
                # One finding, because an added name can have any number.
                why = f"versions {before} and {after} are there, and none between them"
                self._report(commit_path(before + 1), Damage.MISSING, why)
                continue
            if said is None:
                continue
            path = commit_path(before)
            if before in self._versions and said.previous != self._sha256[before]:
                why = f"its SHA-256 is not that of version {after}"
                self._report(path, Damage.CHANGED, why)
        if found[0] > 0 and not any(v >= found[0] - 1 for v in self._checkpoints()):
            why = f"no checkpoint stands for what was before version {found[0]}"
            self._report(commit_path(found[0] - 1), Damage.MISSING, why)

    def _check_end(self) -> None:
        """Check that the mark names the newest commit, or the one before if a kill came between."""
        mark = self._mark
        latest = max([self._newest, *self._checkpoints()])
        if latest > self._newest:
            why = f"there is a checkpoint of it, and the table ends at version {self._newest}"
            self._report(commit_path(latest), Damage.ROLLED_BACK, why)
        if mark is None:
            return
        if mark.version > latest:
            why = f"{END} names it, and the table ends at version {self._newest}"
            self._report(commit_path(mark.version), Damage.ROLLED_BACK, why)
        elif mark.version < self._newest - 1:
            why = f"it is of version {mark.version}, the table is at {self._newest}: an earlier one"
            self._report(END, Damage.ROLLED_BACK, why)
        elif mark.version in self._versions:
            path = commit_path(mark.version)
            if mark.commit != self._sha256[mark.version]:
                self._report(path, Damage.CHANGED, f"its SHA-256 is not that of {END}")

    def _described(self, table: DeltaTable) -> dict[str, Described]:
        """Check what other programs read of the table, and return what they read of its files.

        The files are compared with it when they are read, and at once for a newest commit whose
        SHA-256 no mark has.
        """
        path = commit_path(self._newest)
        protocol, about = table.protocol(), table.metadata()
        if (
            (protocol.min_reader_version, about.partition_columns) != (_READER, [DATE])
            or table.schema() != DELTA_SCHEMA
        ):  # fmt: skip
            self._report(path, Damage.BROKEN_COMMIT, "no exporter makes such a table")
            return {}  # entries of such a table have other fields
        described = described_in(self._place, table)
        if self._mark is None or self._mark.version == self._newest:
            return described
        for name, said in described.items():
            try:
                statistics = statistics_in(self._place, name)
            except (FileMissing, ExportDamaged):
                continue  # the check of the files reports it
            if said != (day_of(name), statistics):
                why = f"its entry for {name} does not fit the file"
                self._report(path, Damage.BROKEN_COMMIT, why)
        return {}

    def _check_checkpoints(self) -> None:
        """Check that a commit or the mark names every checkpoint."""
        named: dict[str, str] = {}
        for _, said in sorted(self._versions.items()):
            named |= said.checkpoint
        if self._mark is not None:
            named |= self._mark.checkpoint
        is_marked = self._mark is not None and self._mark.version == self._newest
        newest_said = self._versions.get(self._newest)
        is_due = newest_said is not None and is_checkpoint_due(newest_said)
        for path in sorted(self._listed):
            name = path.removeprefix(f"{TABLE_LOG}/")
            if version_of(path) >= 0:
                continue
            is_new = name in (LAST_CHECKPOINT, f"{self._newest:020d}.checkpoint.parquet")
            if is_new and is_due and not is_marked and self._mark is not None:
                continue  # an exporter may have been killed before it wrote the mark
            if name not in named:
                why = "no commit names it: added, or left by an exporter that was stopped"
                self._report(path, Damage.STRAY, why)
            elif named[name] != self._place.sha256(path):
                self._report(path, Damage.CHANGED, "its SHA-256 is not that of the commit after it")
        newest = self._mark or self._versions.get(self._newest)
        for name in newest.checkpoint if newest else ():
            if f"{TABLE_LOG}/{name}" not in self._listed:
                self._report(f"{TABLE_LOG}/{name}", Damage.MISSING, "the newest commit names it")

    def _check_summaries(self) -> set[str]:
        """Check existing summaries of earlier versions; the newest one is read later."""
        named = {said.summary: said for said in self._versions.values() if said.summary}
        newest = self._versions.get(self._newest)
        for path in self._place.sizes(SUMMARIES):
            if path in named and not (newest and path == newest.summary):
                try:
                    read_summary(self._place, named[path])
                except ExportDamaged as error:
                    if error.damage is not Damage.MISSING:
                        self._findings.append(finding_of(error))
        return set(named)

    def _manifests(self) -> dict[str, str] | None:
        said = self._versions.get(self._newest)
        if said is None:
            return None
        try:
            return counting_in(said, read_summary(self._place, said))
        except ExportDamaged as error:
            self._findings.append(finding_of(error))
            return None

    def _checkpoints(self) -> set[int]:
        """The versions that have a checkpoint."""
        names = [path.removeprefix(f"{TABLE_LOG}/").partition(".") for path in self._listed]
        return {
            int(number) for number, _, kind in names
            if kind.startswith("checkpoint") and number.isdecimal()
        }  # fmt: skip
