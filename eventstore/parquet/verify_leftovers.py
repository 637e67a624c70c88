"""Files of an export that do not count: replaced by a compaction, or nobody knows why.

What a compaction replaced may stand there until the next one removes it. It is checked like the
rest, so that only unchanged files are passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.export_findings import ExportFinding, finding_of
from eventstore.parquet.files import EVENTS, ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Statement,
    is_data,
    positions_of,
)
from eventstore.row_check import Head


class ReadManifest(NamedTuple):
    """A manifest that could be read, with its heads."""

    statement: Statement
    heads: Mapping[str, Head]
    is_certain: bool
    """It is signed and in its place."""

    @property
    def manifest(self) -> Manifest:
        """What it says."""
        return self.statement.manifest


class Leftovers:
    """The files that the manifests that count explain, and what is wrong with the others."""

    def __init__(
        self,
        place: ExportPlace,
        found: Sequence[ReadManifest],
        counting: Sequence[ReadManifest],
        unreadable: Collection[str],
    ) -> None:
        """Look at all manifests, those that count, and paths of those that cannot be read."""
        self.findings: list[ExportFinding] = []
        self._place = place
        self._sizes = place.sizes(EVENTS)
        self._unreadable = unreadable
        self._certain = {read.manifest.path: read for read in found if read.is_certain}
        # These are told already.
        self._damaged = {*unreadable, *(r.manifest.path for r in found if not r.is_certain)}
        self._explained = {read.manifest.path for read in counting}
        for read in counting:
            for file in read.manifest.files:
                if file.path in self._explained:
                    why = f"{read.manifest.path} names it too"
                    self._tell(ExportDamaged(file.path, Damage.DUPLICATED, why))
                self._explained.add(file.path)
        for read in counting:
            self._explain_replaced(read.manifest)

    def strays(self, listed: Collection[str]) -> frozenset[str]:
        """Files below the folders of an export that nothing explains.

        Files where a manifest cannot be read may be those that it names.
        """
        ranges = [positions_of(path) for path in self._unreadable]
        lost = {
            path
            for path in filter(is_data, self._sizes)
            for first, last in ranges
            if first <= positions_of(path)[0] and positions_of(path)[1] <= last
        }
        every = {*listed, *self._sizes}
        return frozenset(every - self._explained - lost - self._damaged)

    def _tell(self, damage: ExportDamaged) -> None:
        self.findings.append(finding_of(damage))

    def _explain_replaced(self, manifest: Manifest) -> None:
        """Pass over what this manifest says it replaced, and what that replaced."""
        waiting = [manifest]
        while waiting:
            replacing = waiting.pop()
            for read in self._replaced_by(replacing):
                self._explained.add(read.manifest.path)
                is_last = read.manifest.path == replacing.replaces[-1]
                if is_last and read.statement.link != replacing.stands_for:
                    why = f"not the manifest that {replacing.path} replaced"
                    self._tell(ExportDamaged(read.manifest.path, Damage.BROKEN_CHAIN, why))
                for file in read.manifest.files:
                    self._check_replaced(file)
                waiting.append(read.manifest)

    def _replaced_by(self, manifest: Manifest) -> Iterator[ReadManifest]:
        for path in manifest.replaces:
            read = self._certain.get(path)
            if read is not None and path not in self._explained:
                yield read

    def _check_replaced(self, file: DataFile) -> None:
        if file.path in self._explained or file.path not in self._sizes:
            return
        self._explained.add(file.path)
        try:
            content = self._place.read(file.path)
        except FileMissing:
            return  # a compaction removed it just now
        if hashlib.sha256(content).hexdigest() != file.sha256:
            why = "replaced, and not as it was then; the next export removes it"
            self._tell(ExportDamaged(file.path, Damage.CHANGED, why))
