"""The rows after the seam of a log that its archive has too, read from both and compared.

Each row is compared with the archive's, whose files have the SHA-256 that a signed manifest names,
and both with their seals. A log from a backup may have rows that were pruned from the archive
since: these are compared with their seals alone, of which the manifest names the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from eventstore.log.codec import decode_seal
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import SEAL_TOPIC, BatchSealed
from eventstore.log.faults import Head
from eventstore.log.redaction import redacted_state
from eventstore.log.row_check import RowCheck
from eventstore.log.seam import Seam
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Manifest, heads_of
from eventstore.parquet.rows import manifest_rows

SECTION_BYTES: Final = 64 * 1024 * 1024


class Section(NamedTuple):
    """Rows that follow the seam, up to a seal, which the archive has too, or had.

    ``heads`` are the newest seals up to the section's end; ``manifest`` is the archive's manifest
    that covers the section, with its SHA-256.
    """

    rows: Sequence[LogRow]
    heads: Mapping[str, Head]
    manifest: str
    manifest_sha256: str


def same_sections(
    log: LogReader,
    place: ExportPlace,
    catalog: Catalog,
    seam: Seam,
    *,
    until_ms: int,
    rows_max: int,
) -> Iterator[Section]:
    """The rows after the seam that log and archive agree on, in sections that end with seals.

    ``catalog`` has the heads of every manifest, and ``seam`` is verified. If rows behind it were
    pruned, the caller has compared the seals where those end (``meeting`` in
    ``actors.archive.archive_check``): sections come before that is reached. The rows end before the
    first seal made after ``until_ms``, Unix milliseconds; a section ends with the seal that reaches
    ``rows_max`` rows, if not before.

    Raises:
        RowsStay: a row differs, or does not match its seal.
        ExportDamaged, ExportUnavailable: a file is not what its manifest says, or cannot be read.
        LogUnavailable, UnknownTopic, CorruptRow: the log cannot be read or understood.
    """
    check = RowCheck(heads=seam.heads, part_after=seam.position)
    heads = dict(seam.heads)
    for statement in catalog.statements:
        manifest = statement.manifest
        if manifest.last < seam.position:
            continue
        named = heads_of(manifest.path, manifest)
        rows: list[LogRow] = []
        sealed, size_bytes = 0, 0
        for row, seal in _checked(_same_rows(log, place, manifest, seam.position), check):
            rows.append(row)
            size_bytes += len(row.state)
            if seal is None:
                continue
            if seal.at_ms > until_ms:
                if sealed:
                    yield Section(rows[:sealed], dict(heads), manifest.path, statement.sha256)
                return
            heads[seal.partition] = Head(row.version, seal.digest)
            sealed = len(rows)
            if sealed >= rows_max or size_bytes >= SECTION_BYTES:
                yield Section(rows, dict(heads), manifest.path, statement.sha256)
                rows, sealed, size_bytes = [], 0, 0
        if heads != named:
            raise RowsStay(f"the newest seals differ from those in {manifest.path}")
        if rows:
            yield Section(rows, dict(heads), manifest.path, statement.sha256)


def _checked(
    rows: Iterator[LogRow], check: RowCheck
) -> Iterator[tuple[LogRow, BatchSealed | None]]:
    """Rows that match their seals; each seal also in decoded form.

    Raises:
        RowsStay: a row does not match its seal.
    """
    for row in rows:
        for wrong in check.follow([row]):
            raise RowsStay(f"position {wrong.last_position}: {wrong.explanation}")
        yield row, decode_seal(row.state) if row.topic == SEAL_TOPIC else None


def _same_rows(
    log: LogReader, place: ExportPlace, manifest: Manifest, after: int
) -> Iterator[LogRow]:
    """The log's rows of a manifest after a position: the archive has the same, or pruned them.

    Raises:
        RowsStay: a row differs.
        ExportDamaged, ExportUnavailable: a file is not what the manifest says, or cannot be read.
        LogUnavailable: the log cannot be read.
    """
    pages = manifest_rows(place, manifest)
    archived = (row for rows in pages for row in rows if row.position > after)
    rows = log.rows_after(max(after, manifest.first - 1))
    other = next(archived, None)
    for row in takewhile(lambda one: one.position <= manifest.last, rows):
        is_pruned = manifest.is_pruned and (other is None or row.position < other.position)
        if not is_pruned:
            if not is_same(row, other):
                raise RowsStay(f"the archive has another row at position {row.position}")
            other = next(archived, None)
        yield LogRow(*_place(row), row.state)
        if row.position == manifest.last:
            break
    if other is not None:
        raise RowsStay(f"the archive has a row at position {other.position} that the log lacks")


def is_same(row: LogRow, other: LogRow | None) -> bool:
    """Are two rows the same, apart from names that were erased in one of them?"""
    if other is None or _place(row) != _place(other):
        return False
    if row.state == other.state:
        return True
    redacted = redacted_state(row.topic, row.state)
    return redacted is not None and redacted == redacted_state(other.topic, other.state)


def _place(row: LogRow) -> tuple[int, bytes, int, str]:
    return row.position, row.stream, row.version, row.topic
