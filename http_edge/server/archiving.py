"""Lets the old rows of a log leave for its archive, which is an export of it.

Only what stands in a signed manifest, in files with the SHA-256 that it names, leaves: each row is
compared with the one in the archive, and both with their seals, before
``actors.host.archiving.Archiver`` takes it. May run beside the mediator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from actors.core.identity import FOLD
from actors.host.archiving import Archiver, Section
from eventstore.log.codec import decode
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
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import MediatorKeys

SECTION_ROWS: Final = 65_536
ROWS_PER_STEP: Final = 256
SECTION_BYTES: Final = 64 * 1024 * 1024
_PAGE_ROWS: Final = 4_096
_PAGE_BYTES: Final = 8 * 1024 * 1024
_ARCHIVED_AT_ONCE: Final = 16_384
WINDOW_MS: Final = 3_600_000
"""The widest that ``protocol.timestamp_window_ms`` can be set to."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the position of the seam and that of the end of the archive."""


class Archived(NamedTuple):
    """What a run has done: the seam before and after it, and rows that left in it."""

    before: int
    seam: int
    left: int
    left_in_all: int
    stayed: int
    states: int
    has_written: bool = True
    """Whether the archive was written to; another process may have had it."""


def let_rows_leave(  # noqa: PLR0913 - what leaves, where to, whose, and until when
    log: EventLog,
    place: ExportPlace,
    keys: MediatorKeys,
    mediator_did: str,
    *,
    until_ms: int,
    clock: Callable[[], int],
    window_ms: int = WINDOW_MS,
    section_rows: int = SECTION_ROWS,
    rows_per_step_max: int = ROWS_PER_STEP,
    is_checked: bool = True,
    after_step: Callable[[], None] = lambda: None,
    progress: Progress = lambda _seam, _end: None,
) -> Archived:
    """Let leave what is older and stands in the archive.

    Args:
        log: the log.
        place: its archive.
        keys: the mediator's.
        mediator_did: the mediator's.
        until_ms: Unix milliseconds; no transaction that was recorded later is touched.
        clock: tells Unix milliseconds.
        window_ms: the widest window of timestamps that the mediator may be given.
        section_rows: how many rows are looked at together.
        rows_per_step_max: rows that leave in one transaction.
        is_checked: compare what stands before the seam with its sums first, which reads all of
            it. Without that nothing is hidden: sums of which something wrong is taken away stay
            wrong, and ``poste log verify`` finds it.
        after_step: called after each transaction; what it raises ends the work there.
        progress: called after each section.

    Raises:
        TurnLost: another process does the same.
        RowsStay: the log or its archive is not as it should be.
        SeamRefused: the seam of the log is not the mediator's.
        ExportError: the archive is damaged or cannot be read now.
        LogError: the log cannot be read or written now, or a row cannot be understood.
    """
    key = PublicKey(keys.signing_public)
    text, seam = _verified(log, key, mediator_did)
    catalog = _catalog(place, key, seam)
    sign = partial(signatures.sign, keys.signing_seed)
    archiver = Archiver(
        log, seam, text, sign,
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
    """Tell what is wrong with rows from rows that another process let leave meanwhile.

    Raises:
        TurnLost: another process does the same.
    """
    try:
        yield
    except (RowsStay, CorruptRow) as error:
        if log.settings().get(SEAM) == archiver.text:
            raise
        raise TurnLost from error


def _catalog(place: ExportPlace, key: PublicKey, seam: Seam) -> Catalog:
    """What the archive has.

    Raises:
        RowsStay: it lacks rows that have left.
        ExportError: it is damaged or cannot be read now.
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
    """The seam of a log as it has it and in parts.

    Raises:
        RowsStay: it is of another mediator or release.
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
    """The rows behind the seam, as log and archive have them, in parts that end with seals."""
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
    """Rows that are as they were sealed, with the seals among them.

    Raises:
        RowsStay: one is not.
    """
    for row in rows:
        for wrong in check.follow([row]):
            raise RowsStay(f"position {wrong.last_position}: {wrong.explanation}")
        sealed = decode(row.topic, row.state) if row.topic == SEAL_TOPIC else None
        assert sealed is None or isinstance(sealed, BatchSealed)
        yield row, sealed


def _same_rows(
    log: EventLog, place: ExportPlace, manifest: Manifest, after: int
) -> Iterator[LogRow]:
    """The rows of a manifest behind a position, each the same in log and archive.

    Raises:
        RowsStay: one is not.
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
    """Whether two rows are the same but for names that were erased in one of them."""
    if other is None or _place(row) != _place(other):
        return False
    if row.state == other.state:
        return True
    redacted = redacted_state(row.topic, row.state)
    return redacted is not None and redacted == redacted_state(other.topic, other.state)


def _place(row: LogRow) -> tuple[int, bytes, int, str]:
    return row.position, row.stream, row.version, row.topic
