"""Lets the old rows of a log leave for its archive, which is an export of it.

A row leaves only if log and archive agree on it (``actors.archive.same_rows``) and nothing needs it
any more (``actors.archive.leaving_rows``). This may run beside the mediator. The log may be from a
backup, and its archive pruned since: then the two have to meet where the pruned part ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from actors.archive.archive_check import meeting
from actors.archive.leaving_rows import Leaving, leaving_with
from actors.archive.same_rows import Section, same_sections
from actors.archive.seam_writer import SeamWriter, SigningKey
from actors.core.identity import FOLD
from actors.core.limits import TIMESTAMP_WINDOW_MS_MAX
from actors.host.clock import Clock
from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow, RowsStay, TurnLost
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM, Seam, row_entry
from eventstore.log.seam_check import check_before
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import heads_of

SECTION_ROWS: Final = 65_536

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
    key: SigningKey,
    mediator_did: str,
    *,
    until_ms: int,
    clock: Clock,
    rows_per_step_max: int,
    window_ms: int = TIMESTAMP_WINDOW_MS_MAX,
    section_rows: int = SECTION_ROWS,
    is_checked: bool = True,
    after_step: Callable[[], None] = lambda: None,
    progress: Progress = lambda _seam, _end: None,
) -> Archived:
    """Let the rows leave that are old enough and stand in the archive.

    Transactions recorded after ``until_ms``, Unix milliseconds, stay. ``section_rows`` are compared
    together, and ``rows_per_step_max`` leave in one transaction; an exception from ``after_step``
    ends the work there. ``window_ms`` is the widest window of timestamps that the mediator may be
    given. ``is_checked``: first compare everything before the seam with its sums, which reads all
    of it. Skipping this hides no damage: a sum from which a wrong entry is subtracted stays wrong,
    and ``poste log verify`` finds it.

    Raises:
        TurnLost: another process archives as well.
        RowsStay: the log or its archive is not as it should be.
        SeamRefused: the seam of the log is not the mediator's.
        ExportError: the archive is damaged or cannot be read now.
        LogError: the log cannot be read or written now, or a row cannot be understood.
    """
    writer = SeamWriter(log, key, mediator_did, clock=clock, after_step=after_step)
    before = writer.seam
    if before.fold != FOLD:
        raise RowsStay("the states that replace archived rows were made by another release")
    catalog = _catalog(place, writer.key, before)
    with _turn(log, writer):
        for wrong in check_before(log, before) if is_checked else ():
            raise RowsStay(f"{wrong.explanation} ({wrong.fault.value}): see poste log verify")
        _check_pruned(log, catalog, before)
        for section in same_sections(
            log, place, catalog, before, until_ms=until_ms, rows_max=section_rows
        ):
            leaving = leaving_with(log, section, writer.seam, window_ms)
            _take(writer, section, leaving, rows_per_step_max)
            progress(writer.seam.position, catalog.last)
    after = writer.seam
    left = after.left - before.left
    moved = before.position, after.position, left, after.left
    return Archived(*moved, after.stayed.number, after.states.number)


@contextmanager
def _turn(log: LogReader, writer: SeamWriter) -> Iterator[None]:
    """Distinguish damaged rows from rows that another process let leave meanwhile.

    Raises:
        TurnLost: another process archives as well.
    """
    try:
        yield
    except (RowsStay, CorruptRow) as error:
        if log.settings().get(SEAM) == writer.text:
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


def _check_pruned(log: LogReader, catalog: Catalog, seam: Seam) -> None:
    """Check that the rows that were pruned behind the seam are those of this log.

    The log has their seals, and the manifest names the newest of these.

    Raises:
        RowsStay: they are not; or the log ends before them.
        LogUnavailable, CorruptRow, NotAsSealed: the log cannot be read.
    """
    if catalog.pruned_up_to > seam.position:
        pruned = catalog.statements[0].manifest
        if meeting(log, seam, catalog).heads != heads_of(pruned.path, pruned):
            raise RowsStay(f"the newest seals differ from those in {pruned.path}")


def _take(writer: SeamWriter, section: Section, leaving: Leaving, rows_max: int) -> None:
    """Remove the rows that leave with a section, in the order of ``leaving_rows``.

    Raises as ``SeamWriter.write``.
    """
    writer.store_states(leaving.states)
    for start in range(0, len(leaving.earlier), rows_max):
        rows = leaving.earlier[start : start + rows_max]
        stayed = writer.seam.stayed.minus(entry for _, entry in rows)
        left = [position for position, _ in rows]
        writer.write(replace(writer.seam, stayed=stayed), left=left)
    _advance(writer, section, leaving.passed, rows_max)


def _advance(writer: SeamWriter, section: Section, leaving: set[int], rows_max: int) -> None:
    """Move the seam to the end of a section, without the rows at these positions."""
    heads, stayed = dict(writer.seam.heads), writer.seam.stayed
    left: list[int] = []
    stay: list[bytes] = []
    for row in section.rows:
        if row.position in leaving:
            left.append(row.position)
        else:
            stay.append(row_entry(row))
        if row.topic != SEAL_TOPIC:
            continue
        sealed = decode_seal(row.state)
        heads[sealed.partition] = Head(row.version, sealed.digest)
        if row is section.rows[-1] or len(left) >= rows_max:
            stayed = stayed.plus(stay)
            seam = replace(
                writer.seam,
                position=row.position,
                stayed=stayed,
                heads=dict(heads),
                manifest=section.manifest,
                manifest_sha256=section.manifest_sha256,
            )
            writer.write(seam, left=left)
            left, stay = [], []
