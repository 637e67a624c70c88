"""One round of archiving: export old rows, then let them leave the log.

A round beside a mediator also removes names of erased identities, if no exporting process does so;
where rows stay in the log, it does nothing else.

``poste log archive`` runs one round. ``poste serve`` starts a process for each round (``main``,
``http_edge.server.child_process``); in a cluster one node at a time does so. That process gives
way to the mediator: it first checks whether any row is old enough, then works in transactions of
few rows with pauses between them, and ends between two of them when its parent ends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Final

from actors.archive.archived_states import fold_again
from actors.archive.departure import Archived, Progress, let_rows_leave
from actors.archive.unneeded_rows import not_needed
from actors.host.clock import system_clock
from eventstore.log.codec import decode_seal
from eventstore.log.errors import LockedElsewhere, LogError, RowsStay, SeamRefused, TurnLost
from eventstore.log.event_log import LogReader
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.name_erasure import NameErasure, erased_identities, is_pass_due, note_pass
from eventstore.log.seam import Seam, seam_position, stored_seam
from eventstore.parquet.errors import ExportError
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.stores.advisory_lock import advisory_lock
from http_edge.crypto.mediator_keys import load
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.child_process import ARCHIVING_AFTER_S, begin_child
from http_edge.server.exporting import (
    OtherExporter,
    export_erasures,
    exporter_of,
)
from http_edge.server.mediator_log import opened_to_export
from http_edge.server.status_files import ArchiveReporter
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
_MS: Final = 1_000
_GIVE_WAY: Final = 10
"""Nice value: less priority than the export, for which others may be waiting."""
_NOT_FROM_ARCHIVE: Final = (
    "names of erased identities have left the log, but not its archive, which is not where the"
    " settings say: unless poste export --watch writes it, run poste export compact --to its place"
)
_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 1024 * 1024


class Interrupted(Exception):
    """The round has to end here; the next one goes on."""


def archive_once(  # noqa: PLR0913 - what is done, and how
    settings: Settings,
    *,
    is_checked: bool,
    takes_out_erased: bool = False,
    prunes: bool = True,
    after_step: Callable[[], None] = lambda: None,
    progress: Progress = lambda _seam, _end: None,
    clock: Callable[[], int] = system_clock,
) -> Archived | None:
    """Export old rows that the archive lacks, then let them leave; None if there is nothing to do.

    ``settings`` are those of one database. ``takes_out_erased``: take names of erased identities
    out of the log and, in an archive that is not an export as well, rewrite the files with such
    names or with contents that were erased since. ``prunes``: remove rows from the archive that it
    no longer keeps. An exception from ``after_step`` ends the round there.

    Raises:
        KeyFileRefused, OSError: the keys cannot be used.
        Interrupted, LogError, ExportError, RowsStay, SeamRefused: as ``let_rows_leave``.
    """
    prunes = prunes and settings.archive.keep_s > 0
    until_ms = clock() - round(settings.archive.rows_age_s_min * _MS)
    keys = load(settings.keys_path)
    with closing(opened_to_export(settings)) as log:
        # The archive may have erased contents although the rows that say so have left, too.
        takes_out = takes_out_erased and (seam_position(log) > 0 or bool(erased_identities(log)))
        if not (is_checked or prunes or takes_out or _is_due(log, until_ms)):
            return None
        place = open_place(settings.archive_place)
        mediator_did = log.setting("mediator_did", settings.mediator_did)
        fold_again(log, place, keys, mediator_did, clock=clock)
        has_written = _export_rest(
            settings, place, until_ms, after_step, clock,
            takes_out_erased=takes_out_erased, prunes=prunes,
        )  # fmt: skip
        archived = let_rows_leave(
            log,
            place,
            keys,
            mediator_did,
            until_ms=until_ms,
            rows_per_step_max=settings.archive.rows_per_step_max,
            is_checked=is_checked,
            clock=clock,
            after_step=after_step,
            progress=progress,
        )
    return archived._replace(has_written=has_written)


def erase_names(
    settings: Settings,
    *,
    after_step: Callable[[], None] = lambda: None,
    clock: Callable[[], int] = system_clock,
) -> None:
    """Remove names of erased identities from a log whose rows stay, and from an earlier archive.

    Do nothing if ``is_pass_due`` says that another process has done so lately: another node, or
    ``poste export --watch``, which these settings do not name. Of an archive that these settings do
    not name either, a warning says that it keeps the names. ``after_step`` as in ``archive_once``.

    Raises:
        KeyFileRefused, OSError, ExportError: as ``exporter_of``, if there is an archive.
        LogError: the log cannot be read or changed.
    """
    with closing(opened_to_export(settings)) as log:
        if not is_pass_due(log, settings.export.erased_every_s, clock()):
            return
        is_file = settings.log_dsn.startswith("sqlite:")
        if is_file and settings.exported_place is not None:
            place = open_place(settings.archive_place)
            _export_rest(settings, place, 0, after_step, clock, takes_out_erased=True, prunes=False)
            return
        work = NameErasure(log)
        try:
            while work.step():
                after_step()
        except RowsStay:  # a row left or was changed meanwhile; the next round does the rest
            return
        if work.erased and seam_position(log):
            _LOG.warning(_NOT_FROM_ARCHIVE)
        note_pass(log, clock())


def _is_due(log: LogReader, until_ms: int) -> bool:
    """Whether the first transaction behind the seam is old enough to leave."""
    reached = seam_position(log)
    while page := log.read_rows(after=reached, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES):
        for row in page:
            if row.topic == SEAL_TOPIC:
                sealed = decode_seal(row.state)
                return sealed.at_ms <= until_ms
        reached = page[-1].position
    return False


def _export_rest(  # noqa: PLR0913 - what is done with the archive, and when
    settings: Settings,
    place: ExportPlace,
    until_ms: int,
    after_step: Callable[[], None],
    clock: Callable[[], int],
    *,
    takes_out_erased: bool,
    prunes: bool,
) -> bool:
    """Export rows that the archive lacks, and remove rows that it no longer keeps.

    Return False if another process exports there, such as an exporting mediator: it does both.

    An archive that is not an export as well gets old rows only, so contents that are erased before
    never reach it. After the erasure of an identity it gets all rows, so that names can leave.
    """
    bound_ms = until_ms if settings.export.to is None else None
    settings = settings.exporting_to(settings.archive_place)
    try:
        if takes_out_erased and bound_ms is not None:
            with (
                closing(opened_to_export(settings)) as log,
                exporter_of(settings, log, place) as exporter,
            ):
                export_erasures(log, exporter, after_step)
        with (
            closing(opened_to_export(settings)) as log,
            exporter_of(settings, log, place, until_ms=bound_ms) as exporter,
        ):
            while (step := exporter.step()) is not None and step.is_full:
                after_step()
            exporter.compact(files_min=settings.export.compact_files_min)
            if takes_out_erased and bound_ms is not None:
                exporter.take_out_erased(lambda _position, _end: after_step())
            if prunes:
                exporter.prune(clock() - round(settings.archive.keep_s * _MS), not_needed)
    except OtherExporter:
        return False
    return True


def main() -> None:
    """Run one round, which ends early when stdin does: the program of the child process."""
    settings, database, stopping = begin_child("archive", niceness=_GIVE_WAY)
    run_beside(settings, stopping, ArchiveReporter(settings.data_dir, system_clock, database))


def run_beside(settings: Settings, stopping: threading.Event, reporter: ArchiveReporter) -> None:
    """Run one round beside the mediator; report any fault, and let the mediator go on serving.

    Do nothing if another node has a round under way.
    """

    def pause() -> None:
        if stopping.wait(settings.archive.pause_s):
            raise Interrupted

    archive, export = settings.archive, settings.export
    is_erasing_due = settings.erases_names and reporter.is_erasing_due(export.erased_every_s)
    is_pruning_due = export.to is None and reporter.is_pruning_due(
        archive.keep_s, archive.prune_every_s
    )
    archived = None
    with contextlib.suppress(Interrupted):
        try:
            with _turn(settings):
                reporter.on_begin()
                if settings.lets_rows_leave:
                    archived = archive_once(
                        settings,
                        is_checked=False,
                        takes_out_erased=is_erasing_due,
                        prunes=is_pruning_due,
                        after_step=pause,
                    )
                else:
                    erase_names(settings, after_step=pause)
            seam = _seam(settings)
        except (LockedElsewhere, TurnLost):
            return
        except (ExportError, LogError, SeamRefused, KeyFileRefused, OSError) as error:
            reporter.on_fault(error)
            _LOG.error("old rows or erased names stay in the log: %s", error)
            return
        if seam is not None:
            reporter.on_seam(seam.position, seam.left, seam.stayed.number)
        if archived is not None:
            about = {"position": archived.seam, "rows": archived.left}
            _LOG.info("old rows have left the log", extra=about)
        has_written = archived is not None and archived.has_written
        reporter.on_end(
            has_erased=is_erasing_due and has_written, has_pruned=is_pruning_due and has_written
        )


def run_rounds(settings: Settings, reporter: ArchiveReporter, stopping: threading.Event) -> None:
    """Run rounds in this process, until ``stopping`` is set."""
    every_s = settings.round_s
    wait_s = min(ARCHIVING_AFTER_S, every_s)
    while not stopping.wait(wait_s):
        run_beside(settings, stopping, reporter)
        wait_s = every_s


def _turn(settings: Settings) -> AbstractContextManager[object]:
    # Nodes whose rows stay have no place in common.
    name = f"archive to {settings.archive_place}" if settings.lets_rows_leave else "erase names"
    return advisory_lock(settings.log_dsn, name, settings.postgres.bounds)


def _seam(settings: Settings) -> Seam | None:
    """Read the current seam of the log, which another node may have moved."""
    with closing(opened_to_export(settings)) as log:
        return stored_seam(log)
