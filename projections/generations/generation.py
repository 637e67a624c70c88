"""What a generation is: all tables of one rebuild, each at one version and with these files.

A generation never changes. Its description names the export that it was made of, and of each table
the version, the rows, and the SHA-256 of every file, so that what is read is what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

FORMAT: Final = 4
"""Of the description. In 3 a file has no hash of its pages; in 2 a table has no recent bucket; 1
was a file ``catalog.json`` beside plain folders of Parquet files."""
FORMATS_READ: Final = (2, 3, FORMAT)


class TableColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column: its type as Spark names it, and what it holds."""

    name: str
    type: str
    about: str


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet file: its path below the folder of the table, and the rows' bucket.

    ``pages_sha256`` is of all before its footer: that names the encodings of each column in an
    order which is another in each process. Earlier releases did not say it.
    """

    path: str
    bucket: int
    rows: int
    bytes: int
    sha256: str
    pages_sha256: str = ""


class GenerationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of a generation.

    ``version`` is that of the Delta table, whose files then are ``files``; ``buckets`` is among how
    many buckets its rows are shared out by their stream, from 0 on; ``recent`` is one more, with
    the rows of streams that began since; ``sha256`` is ``content_hash`` of the files.
    """

    name: str
    about: str
    version: int
    rows: int
    sha256: str
    buckets: int
    columns: Sequence[TableColumn]
    files: Sequence[TableFile]

    @property
    def recent(self) -> int:
        """The number of the bucket of streams that began since the others were written."""
        return self.buckets


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables of one rebuild, as the log stood at one position.

    ``positions`` are those of its databases, ``position`` is their sum; ``export_versions`` are
    those of their exported tables (-1 for an export of an earlier release, which has none).
    ``at_ms`` is the latest recorded time up to there; all that was recorded until
    ``complete_until_ms`` is in the tables, null where the export did not say so; ``made_at_ms`` is
    when the generation was made: all Unix milliseconds. ``window_ms_max`` is the longest timestamp
    window of any seal. ``mediator`` and ``public_key`` name the export; ``pseudonyms`` is the
    fingerprint of the key that names were replaced by, empty for none.
    """

    format: int = FORMAT
    generation: int
    made_at_ms: int
    mediator: str
    public_key: str
    position: int
    positions: Sequence[int]
    export_versions: Sequence[int]
    complete_until_ms: int | None
    at_ms: int
    window_ms_max: int
    pseudonyms: str = ""
    tables: Sequence[GenerationTable]

    @property
    def at(self) -> tuple[int, ...]:
        """The position in each database."""
        return tuple(self.positions)

    def table(self, name: str) -> GenerationTable:
        """The table of this name.

        Raises:
            KeyError: there is none.
        """
        return {table.name: table for table in self.tables}[name]


def content_hash(files: Iterable[TableFile]) -> str:
    """The SHA-256 of a table: of the buckets and pages of its files, whatever they are called.

    Rows are sorted in their bucket, so two rebuilds of the same log have the same one. The whole of
    each file is proven by its ``sha256``, and that by the hash of the generation.
    """
    lines = sorted(f"{f.bucket} {f.pages_sha256 or f.sha256} {f.rows}\n" for f in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
