"""Lets the old rows of a log leave for its archive, which is an export of it.

A row leaves only if a signed manifest covers it, and its file has the SHA-256 that the manifest
names: each row is compared with the archive's, and both with their seals, before
``actors.host.archiving.Archiver`` takes it. This may run beside the mediator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from actors.core.identity import FOLD
from actors.host.archiving import Archiver, Section
from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow, RowsStay, TurnLost
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import SEAL_TOPIC, BatchSealed
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.redaction import redacted_state
from eventstore.log.seam import SEAM, Seam, verified_seam
from eventstore.log.seam_check import check_before
from eventstore.log.verify import RowCheck
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Manifest, heads_of
from eventstore.parquet.rows import log_rows, manifest_table
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.settings.sections import TIMESTAMP_WINDOW_MS_MAX

SECTION_ROWS: Final = 65_536
ROWS_PER_STEP: Final = 256
SECTION_BYTES: Final = 64 * 1024 * 1024
_PAGE_ROWS: Final = 4_096
_PAGE_BYTES: Final = 8 * 1024 * 1024
_ARCHIVED_AT_ONCE: Final = 16_384

Progress: TypeAlias = Callable[[int, int], None]
"""Called with two positions: of the seam, and of the end of the archive."""


class Archived(NamedTuple):
    """The result of a run: the seam before and after it, and the rows that left."""

    before: int
    seam: int
    left: int
    left_in_all: int
    stayed: int
    states: int
    has_written: bool = True
    """Was the archive written to? Not if another process was exporting there."""


def let_rows_leave(  # noqa: PLR0913 - what leaves, where to, whose, and until when
    log: EventLog,
    place: ExportPlace,
    keys: MediatorKeys,
    mediator_did: str,
    *,
    until_ms: int,
    clock: Callable[[], int],
    window_ms: int = TIMESTAMP_WINDOW_MS_MAX,
    section_rows: int = SECTION_ROWS,
    rows_per_step_max: int = ROWS_PER_STEP,
    is_checked: bool = True,
    after_step: Callable[[], None] = lambda: None,
    progress: Progress = lambda _seam, _end: None,
) -> Archived:
    """Let the rows leave that are old enough and stand in the archive.

    Args:
        log: the log.
        place: its archive.
        keys: the mediator's.
        mediator_did: the mediator's.
        until_ms: Unix milliseconds; transactions recorded later stay.
        clock: returns Unix milliseconds.
        window_ms: the widest window of timestamps that the mediator may be given.
        section_rows: how many rows are compared together.
        rows_per_step_max: rows that leave in one transaction.
        is_checked: first compare everything before the seam with its sums, which reads all of
            it. Skipping this hides no damage: a sum from which a wrong entry is subtracted stays
            wrong, and ``poste log verify`` finds it.
        after_step: called after each transaction; an exception from it ends the work there.
        progress: called after each section.

    Raises:
        TurnLost: another process archives as well.
        RowsStay: the log or its archive is not as it should be.
        SeamRefused: the seam of the log is not the mediator's.
        ExportError: the archive is damaged or cannot be read now.
        LogError: the log cannot be read or written now, or a row cannot be understood.
    """
    key = PublicKey(keys.signing_public)
    text, seam = _verified(log, key, mediator_did)
    catalog = _catalog(place, key, seam)
    archiver = Archiver(
        log, seam, text, keys.sign,
        window_ms=window_ms, rows_max=rows_per_step_max, clock=clock, after_step=after_step,
    )  # fmt: skip
    with _turn(log, archiver):
        for wrong in check_before(log, seam) if is_checked else ():
            raise RowsStay(f"{wrong.explanation} ({wrong.fault.value}): see poste log verify")
        for section in _sections(log, place, catalog, seam, until_ms, section_rows):
            archiver.take(section)
            progress(archiver.seam.position, catalog.last)
    return _archived(seam, archiver.seam)


@contextmanager
def _turn(log: EventLog, archiver: Archiver) -> Iterator[None]:
    """Distinguish damaged rows from rows that another process let leave meanwhile.

    Raises:
        TurnLost: another process archives as well.
    """
    try:
        yield
    except (RowsStay, CorruptRow) as error:
        if log.settings().get(SEAM) == archiver.text:
            raise
        raise TurnLost from error


def _catalog(place: ExportPlace, key: PublicKey, seam: Seam) -> Catalog:
    """The catalog of the archive.

    Raises:
        RowsStay: the archive lacks rows that have left.
        ExportError: the archive is damaged or cannot be read now.
    """
    catalog = catalog_of(place, key.verify, is_whole=True)
    if catalog.last < seam.position:
        where = f"the archive at {place.address()} ends at position {catalog.last}"
        raise RowsStay(f"{where}, but rows up to {seam.position} have left the log for it")
    return catalog


def _archived(before: Seam, after: Seam) -> Archived:
    return Archived(
        before.position,
        after.position,
        after.left - before.left,
        after.left,
        after.stayed.number,
        after.states.number,
    )


def _verified(log: EventLog, key: PublicKey, mediator_did: str) -> tuple[str | None, Seam]:
    """The seam of a log: its text as stored, None for a new one, and the parsed seam.

    Raises:
        RowsStay: the seam is of another mediator or release.
        SeamRefused: the seam is not the mediator's.
        LogUnavailable: the log cannot be read.
    """
    text = log.settings().get(SEAM)
    if text is None:
        return None, Seam(mediator_did=mediator_did, fold=FOLD, signed_by=key.text)
    seam = verified_seam(text, key)
    if seam.mediator_did != mediator_did:
        raise RowsStay(f"the seam of the log belongs to {seam.mediator_did}")
    if seam.fold != FOLD:
        raise RowsStay("the states that replace archived rows were made by another release")
    return text, seam


def _sections(
    log: EventLog,
    place: ExportPlace,
    catalog: Catalog,
    seam: Seam,
    until_ms: int,
    rows_max: int,
) -> Iterator[Section]:
    """The rows after the seam that log and archive agree on, in sections that end with seals."""
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
    log: EventLog, place: ExportPlace, manifest: Manifest, after: int
) -> Iterator[LogRow]:
    """The rows of a manifest after a position, which are the same in log and archive.

    Raises:
        RowsStay: a row differs.
        ExportDamaged, ExportUnavailable: a file is not what the manifest says, or cannot be read.
        LogUnavailable: the log cannot be read.
    """
    archived = _rows_behind(manifest_table(place, manifest), after)
    reached = max(after, manifest.first - 1)
    while reached < manifest.last:
        page = log.read_rows(after=reached, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES)
        for row in page:
            if row.position > manifest.last:
                break
            if not _is_same(row, next(archived, None)):
                raise RowsStay(f"the archive has another row at position {row.position}")
            yield LogRow(*_place(row), row.state)
        reached = page[-1].position if page else manifest.last
    for row in archived:
        raise RowsStay(f"the archive has a row at position {row.position} that the log lacks")


def _rows_behind(table: pa.Table, after: int) -> Iterator[LogRow]:
    for start in range(0, table.num_rows, _ARCHIVED_AT_ONCE):
        for row in log_rows(table.slice(start, _ARCHIVED_AT_ONCE)):
            if row.position > after:
                yield row


def _is_same(row: LogRow, other: LogRow | None) -> bool:
    """Are two rows the same, apart from names that were erased in one of them?"""
    if other is None or _place(row) != _place(other):
        return False
    if row.state == other.state:
        return True
    redacted = redacted_state(row.topic, row.state)
    return redacted is not None and redacted == redacted_state(other.topic, other.state)


def _place(row: LogRow) -> tuple[int, bytes, int, str]:
    return row.position, row.stream, row.version, row.topic
