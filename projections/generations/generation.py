"""Generations: all tables of one rebuild, each at one version with its files.

A generation never changes. Its description names the export from which it was made, and for each
table the version, the rows, and the SHA-256 of every file, so that readers can check every file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

FORMAT: Final = 4
"""The version of the description; no other is read."""
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class TableColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column: its type by Spark's name, and what it holds."""

    name: str
    type: str
    about: str


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet file: its path below the folder of the table, and the rows' bucket.

    ``pages_sha256`` is the SHA-256 of all bytes before the footer, because the footer names the
    encodings of each column in an order that differs by process.
    """

    path: str
    bucket: int
    rows: int
    bytes: int
    sha256: str
    pages_sha256: str


class GenerationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of a generation.

    ``files`` are the files of the Delta table at ``version``. The rows are divided by their stream
    among ``buckets`` buckets, numbered from 0; one more bucket, ``recent``, has the rows of streams
    that began since. ``sha256`` is ``content_hash`` of the files.
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

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns for Arrow, with what they hold as the comments of Delta Lake."""
        return pa.schema(
            [
                pa.field(column.name, arrow_type(column.type), metadata={"comment": column.about})
                for column in self.columns
            ]
        )


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables of one rebuild, for the log up to one position.

    ``positions`` has the position in each of the log's databases, ``position`` is their sum;
    ``export_versions`` has the versions of their exported tables (-1 for an export of an earlier
    release, which has none). ``at_ms`` is the latest recorded time up to there. The tables have all
    that was recorded until ``complete_until_ms``; null if the export did not say so. ``made_at_ms``
    is when the generation was made. These times are Unix milliseconds. ``window_ms_max`` is the
    longest timestamp window of any seal. ``mediator`` and ``public_key`` name the export;
    ``pseudonyms`` is the fingerprint of the key of the pseudonyms, empty for none.
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
            KeyError: there is no such table.
        """
        return {table.name: table for table in self.tables}[name]


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type of a column of a table, by Spark's name of the type."""
    if text.startswith("array<"):
        return pa.list_(arrow_type(text.removeprefix("array<").removesuffix(">")))
    return _ARROW[text]


def content_hash(files: Iterable[TableFile]) -> str:
    """The SHA-256 of a table: of the buckets and pages of its files, without their names.

    Rows are sorted in their bucket, so two rebuilds of the same log have the same hash. The
    ``sha256`` of each file proves the whole file, and the hash of the generation proves that.
    """
    lines = sorted(f"{f.bucket} {f.pages_sha256} {f.rows}\n" for f in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
