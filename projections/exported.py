"""An export as it was when it was opened: its files, and how far it goes. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from eventstore.log.databases import folder_name
from eventstore.log.public_key import PublicKey
from eventstore.parquet.catalog import Catalog, DataFile
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.hashes import FileHashes
from eventstore.parquet.manifest import ExportHead
from eventstore.parquet.opening import AsOf, NoExport, NotExported, open_exports, require
from eventstore.parquet.schema import SCHEMA

__all__ = [
    "READ",
    "AsOf",
    "DatabaseExport",
    "NoExport",
    "NotExported",
    "OpenedExport",
    "Position",
    "open_parts",
    "position_text",
]
Position: TypeAlias = tuple[int, ...]
"""How far a log is: the position of a row in each of its databases, in their order."""
_NOT_READ: Final = {"type_version", "command", "state", "previous"}
READ: Final = pa.schema([field for field in SCHEMA if field.name not in _NOT_READ])
"""The columns of the exported files that projections read: nothing that was said to others."""


@dataclass(frozen=True)
class DatabaseExport:
    """The export of one database, and what it held when it was opened."""

    target: str
    place: ExportPlace
    catalog: Catalog
    hashes: FileHashes = field(default_factory=FileHashes, repr=False, compare=False)

    def files(self, after: int, until: int) -> list[DataFile]:
        """Those with rows at ``after < position <= until``."""
        return [f for f in self.catalog.files if f.last > after and f.first <= until]

    def rows(self, until: int) -> ds.Dataset:
        """The rows up to a position, or some more, for programs that read Arrow.

        Raises:
            ExportDamaged: a file is missing, or not the one that its manifest names.
            ExportUnavailable: a file cannot be read now.
        """
        self.hashes.check(self.place, self.files(0, until))
        paths = [self.place.full_path(file.path) for file in self.files(0, until)]
        return ds.dataset(paths, schema=READ, filesystem=self.place.filesystem)

    def is_whole(self, after: int, until: int) -> bool:
        """Whether these have no other rows."""
        return all(after < f.first and f.last <= until for f in self.files(after, until))


@dataclass(frozen=True)
class OpenedExport:
    """An export as it was when it was opened, whatever is added since.

    Where the log has several databases, all their exports are its parts, in their order. With a
    key, all that is read of it has pseudonyms (``projections.spark.pseudonyms``).
    """

    parts: Sequence[DatabaseExport]
    key: bytes | None = field(default=None, repr=False)

    @property
    def head(self) -> ExportHead:
        """Whose export it is."""
        head = self.parts[0].catalog.head
        assert head is not None
        return head

    @property
    def files(self) -> list[list[DataFile]]:
        """The data files of each part."""
        return [part.catalog.files for part in self.parts]

    @property
    def versions(self) -> list[int]:
        """The version of each part's table; -1 for an export of an earlier release without one."""
        found = [part.catalog.version for part in self.parts]
        return [-1 if version is None else version.version for version in found]

    @property
    def start(self) -> Position:
        """Before the first row."""
        return (0,) * len(self.parts)

    @property
    def last(self) -> Position:
        """Where the export ends."""
        return tuple(part.catalog.last for part in self.parts)

    def types(self, after: Position, until: Position) -> frozenset[str]:
        """Event types that may stand at ``after < position <= until``; no other ones do."""
        return frozenset(
            topic.rpartition(".")[0]
            for part, first, last in zip(self.parts, after, until, strict=True)
            for file in part.files(first, last)
            for topic in file.types
        )

    def counts(self, until: Position) -> Counter[str]:
        """Events of each type up to a position, or some more: whole files are counted."""
        found: Counter[str] = Counter()
        for part, last in zip(self.parts, until, strict=True):
            for file in part.files(0, last):
                for topic, count in file.types.items():
                    found[topic.rpartition(".")[0]] += count
        return found

    @property
    def complete_until_ms(self) -> int | None:
        """All that was recorded until then (Unix milliseconds) is here; None if that is unknown."""
        said = [part.catalog.complete_until_ms for part in self.parts]
        known = [until_ms for until_ms in said if until_ms is not None]
        return min(known) if len(known) == len(said) else None

    def require(self, as_of: AsOf) -> None:
        """Say what is wrong with a point in the log before Spark is asked for it.

        Raises:
            NotExported: as ``position``.
        """
        require([part.catalog for part in self.parts], as_of)


def open_parts(
    target: str, signer: PublicKey | None = None, *, skip_hashes: bool = False
) -> list[DatabaseExport]:
    """The exports of all databases at a path of this machine or a URI.

    Everything in them that is signed has to be signed by ``signer``; without one by the key that
    the export names itself, and whose that is, nothing says. With ``skip_hashes`` data files are
    read as they are, and not compared with what was signed.

    Raises:
        NoExport: there is no export.
        ExportDamaged: names the file and says what is wrong with it, a wrong signature included;
            also if an export of several is missing.
        ExportUnavailable: the place cannot be read now.
    """
    hashes = FileHashes(is_skipped=skip_hashes)
    return [DatabaseExport(*part, hashes) for part in open_exports(target, signer)]


def position_text(position: Position) -> str:
    """A position in words; of several databases with the names of their exports."""
    if len(position) == 1:
        return f"{position[0]:,}"
    return ", ".join(f"{folder_name(number)} {last:,}" for number, last in enumerate(position))
