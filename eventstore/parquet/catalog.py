"""Reads an export: which files hold the log, and that nothing of it is missing or doubled.

Only what manifests name exists. A manifest inside the positions of a wider one was replaced by it
(``eventstore.parquet.write.compaction``) and is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyarrow import fs

from eventstore.log.verify import Head
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import EVENTS, HEAD, MANIFESTS, ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    DataFile,
    ExportHead,
    Manifest,
    Statement,
    Verify,
    heads_of,
    is_manifest,
    parse_head,
    parse_manifest,
)

__all__ = ["Catalog", "DataFile", "read_catalog"]

_TRIES: Final = 3
_READ_AT_ONCE: Final = 8
CheckedFile = Callable[[DataFile], None]


@dataclass(frozen=True)
class Catalog:
    """What an export holds. ``head`` is None where there is no export yet."""

    head: ExportHead | None
    statements: Sequence[Statement] = ()
    """The manifests that count, in the order of the log."""
    strays: Sequence[str] = ()
    """Files below ``events`` and ``manifests`` that do not count."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """The newest seal of each partition up to ``last``."""

    @property
    def files(self) -> list[DataFile]:
        """The data files, in the order of the log and, within a manifest, of days."""
        return [file for statement in self.statements for file in statement.manifest.files]

    @property
    def last(self) -> int:
        """The position up to which the log is exported; 0 for an empty export."""
        return self.statements[-1].manifest.last if self.statements else 0

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(statement.manifest.rows for statement in self.statements)

    @property
    def link(self) -> str:
        """What the next manifest is chained to."""
        return self.statements[-1].link if self.statements else ""


def read_catalog(
    filesystem: fs.FileSystem,
    root: str,
    verify: Verify | None = None,
    *,
    check_hashes: bool = False,
    progress: CheckedFile = lambda _file: None,
) -> Catalog:
    """Read the manifests of an export and check them, and that every file is there and whole.

    May run beside an exporter: a catalog is what was complete at some time of the reading.

    Args:
        filesystem: any file system of ``pyarrow.fs``.
        root: the folder of the export in it.
        verify: checks the mediator's signatures; without it nothing proves who wrote the export.
        check_hashes: read every data file and compare its SHA-256.
        progress: called for each data file whose hash was compared.

    Raises:
        ExportDamaged: names the file and says what is wrong with it.
        ExportUnavailable: the place cannot be read now.
    """
    catalog = catalog_of(ExportPlace(filesystem, root), verify)
    if check_hashes:
        for file in catalog.files:
            read_data(ExportPlace(filesystem, root), file)
            progress(file)
    return catalog


def catalog_of(
    place: ExportPlace, verify: Verify | None, known: Sequence[Statement] = ()
) -> Catalog:
    """The catalog of a place, without hashes of data files. Raises as ``read_catalog``.

    Manifests that are ``known`` from an earlier reading are not read again.
    """
    for _ in range(_TRIES):
        before = place.sizes(MANIFESTS)
        try:
            return _read(place, before, verify, known)
        except (ExportDamaged, FileMissing) as error:
            # An exporter or a compaction may have been between two of the looks.
            if place.sizes(MANIFESTS) == before:
                if isinstance(error, FileMissing):
                    raise ExportDamaged(str(error), Damage.MISSING, "it was listed") from error
                raise
    raise ExportDamaged(MANIFESTS, Damage.BROKEN_MANIFEST, "changes faster than it can be read")


def read_data(place: ExportPlace, file: DataFile) -> bytes:
    """The content of a data file, which is the one that its manifest names.

    Raises:
        ExportDamaged: it is missing or another one.
    """
    try:
        content = place.read(file.path)
    except FileMissing as error:
        raise ExportDamaged(file.path, Damage.MISSING, "a manifest names it") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ExportDamaged(file.path, Damage.CHANGED, "its SHA-256 is not that of the manifest")
    return content


def _read(
    place: ExportPlace,
    listed: Mapping[str, int],
    verify: Verify | None,
    known: Sequence[Statement],
) -> Catalog:
    names = sorted(filter(is_manifest, listed))
    try:
        head = parse_head(HEAD, place.read(HEAD), verify)
    except FileMissing as error:
        if names:
            raise ExportDamaged(HEAD, Damage.MISSING, "there are manifests beside it") from error
        return Catalog(None, strays=sorted([*listed, *place.sizes(EVENTS)]))
    with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
        found = [s for s in known if s.manifest.path in listed]
        unread = sorted(set(names) - {statement.manifest.path for statement in found})
        contents = readers.map(place.read, unread)
        found += [
            parse_manifest(name, content, verify)
            for name, content in zip(unread, contents, strict=True)
        ]
    statements = _chain(found, head)
    sizes = place.sizes(EVENTS)
    files = _checked_files(statements, sizes)
    counting = {statement.manifest.path for statement in statements}
    newest = statements[-1].manifest if statements else None
    return Catalog(
        head=head,
        statements=statements,
        strays=sorted((listed.keys() - counting) | (sizes.keys() - files)),
        heads=heads_of(newest.path, newest) if newest else {},
    )


def _chain(found: Sequence[Statement], head: ExportHead) -> list[Statement]:
    """The manifests that count, each of which continues from the one before."""
    chain: list[Statement] = []
    reached, link = 0, ""
    for statement in sorted(found, key=lambda s: (s.manifest.first, -s.manifest.last)):
        manifest = statement.manifest
        if manifest.last <= reached:
            continue  # inside a wider one
        check_continues(manifest, reached, link)
        if manifest.signed_by != head.public_key:
            why = f"signed by {manifest.signed_by}, the export is of {head.public_key}"
            raise ExportDamaged(manifest.path, Damage.BAD_SIGNATURE, why)
        chain.append(statement)
        reached, link = manifest.last, statement.link
    return chain


def check_continues(manifest: Manifest, reached: int, link: str) -> None:
    """Raise ``ExportDamaged`` unless a manifest follows the one that ended at ``reached``."""
    if manifest.first > reached + 1:
        why = f"positions {reached + 1} to {manifest.first - 1} are missing before it"
        raise ExportDamaged(manifest.path, Damage.GAP, why)
    if manifest.first <= reached:
        why = f"positions {manifest.first} to {reached} are also in the manifest before it"
        raise ExportDamaged(manifest.path, Damage.OVERLAP, why)
    if manifest.previous != link:
        raise ExportDamaged(
            manifest.path, Damage.BROKEN_CHAIN, "it was written after another manifest"
        )


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
