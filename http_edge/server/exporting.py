"""The export of the log beside a serving mediator.

``ContinuousExport`` follows the log until ``stopping`` is set. It survives a full disk or a lost
store: it reports the fault and tries again. ``main`` runs it in a child process of ``poste serve``
(``http_edge.server.child_process``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from actors.archive.unneeded_rows import not_needed
from actors.host.clock import system_clock
from eventstore.log.databases import PLACE
from eventstore.log.errors import LockedElsewhere, LockLost, LogError, LogUnavailable
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.name_erasure import erased_identities
from eventstore.log.public_key import PublicKey
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import ExportDamaged, ExportError, ExportRefused, ExportUnavailable
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.write.exporter import (
    Exported,
    Exporter,
    ExportOwner,
    ExportTimes,
)
from eventstore.parquet.write.step import Bounds
from eventstore.stores.advisory_lock import advisory_lock
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.child_process import begin_child
from http_edge.server.data_dir import opened_lock
from http_edge.server.log_head import HeadFile, public_head, renewed_head
from http_edge.server.mediator_log import keys_of, opened_to_export
from http_edge.server.status_files import ExportReporter, Rewriting
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
_RETRY_S_MIN: Final = 1.0
_REWRITING_S_MAX: Final = 3_600.0
"""Longest wait before files are to be rewritten again that could not be: each attempt may read many
of them before the one that is damaged."""
_FIRST_ERASING_S: Final = 3_600.0
"""Time from the start to the first removal of erased names and first pruning, so that a mediator
that is restarted every day does both, too."""
_STEPS_FIRST_S: Final = 600.0
"""Time for which a process that finds a fault makes steps alone, if so many wait."""
_GIVE_WAY: Final = 5
"""Nice value: the mediator has priority; on a fully used core the export still gets a quarter."""


class OtherExporter(ExportRefused):
    """Another process, on this machine or another, exports the log to the place."""


class _Failed(NamedTuple):
    """A rewriting that failed: why, and when it is tried again, in seconds of the monotonic clock.

    That was ``wait_s`` after the failure.
    """

    why: str = ""
    wait_s: float = 0.0
    retry_at_s: float = 0.0


@contextlib.contextmanager
def exporter_of(
    settings: Settings, log: EventLog, place: ExportPlace, *, until_ms: int | None = None
) -> Iterator[Exporter]:
    """This mediator's exporter to a place, which has no other exporter within the block.

    It exports nothing that was recorded after ``until_ms`` (Unix milliseconds), if given.

    Raises:
        OtherExporter: another process exports there.
        ExportRefused: the place is of another mediator or log, or this mediator has no keys yet.
        KeyFileRefused: the keys cannot be used, or the log is of another mediator.
        ExportError, LogError: as ``Exporter``.
        OSError: the lock for the place cannot be taken.
    """
    keys = keys_of(settings, log)
    number = log.settings().get(PLACE)
    owner = ExportOwner(
        log.setting("mediator_did", settings.mediator_did),
        int(log.setting("shards", str(settings.shards))),
        None if number is None else int(number),
    )
    key = PublicKey(keys.signing_public)
    bounds = Bounds(settings.export.rows_per_file_max, settings.export.bytes_per_step_max, until_ms)
    export = settings.export
    times = ExportTimes(
        export.replaced_kept_s, export.versions_kept_s, export.settled_s, export.complete_every_s
    )
    with _locked(settings, place) as own:
        exporter = Exporter(
            log, own, owner, Signer(key.text, keys.sign), bounds,
            times=times, clock=system_clock,
        )  # fmt: skip
        with contextlib.closing(exporter):
            yield exporter


def export_erasures(
    log: LogReader, exporter: Exporter, after_step: Callable[[], None] = lambda: None
) -> None:
    """Export the rest of a log if that contains an erasure: then erased names can be taken out.

    ``after_step`` is called after each full step; an exception from it ends the work there.

    Raises:
        ExportError, LogError: as ``Exporter.step``.
    """
    if not any(one.position > exporter.catalog.last for one in erased_identities(log).values()):
        return
    while (step := exporter.step()) is not None and step.is_full:
        after_step()


class ContinuousExport:
    """Follows the log of a mediator and exports it, until ``stopping`` is set.

    If another process exports to the same place, it stands by and takes over when that one ends.
    """

    def __init__(
        self,
        settings: Settings,
        reporter: ExportReporter,
        *,
        on_step: Callable[[Exported], None] = lambda _step: None,
        on_fault: Callable[[Exception], None] = lambda _error: None,
        on_head: Callable[[bytes], None] = lambda _note: None,
    ) -> None:
        """An export to ``settings.export.to``, which keeps the status of ``reporter`` up to date.

        ``on_fault`` is called once for each new fault, ``on_head`` whenever the whole log is
        exported, and while this stands by, with the signed head of the log for strangers.
        """
        assert settings.export.to is not None
        self._settings = settings
        self._target = settings.export.to
        self._reporter = reporter
        self._on_step = on_step
        self._on_fault = on_fault
        self._on_head = on_head
        self._fault = ""
        self._wait_s = _RETRY_S_MIN
        self._steps = 0
        self._is_behind = True
        self._erasing_at_s = self._pruning_at_s = self._rewriting_from_s = self._step_at_s = 0.0
        self._failed: dict[Rewriting, _Failed] = {}

    def run(self, stopping: threading.Event) -> None:
        """Export until ``stopping`` is set; try again after each failure."""
        # Not at each opening of the export: passing faults would put off for ever what is due.
        began_s, settings = time.monotonic(), self._settings
        self._erasing_at_s = began_s + min(settings.export.erased_every_s, _FIRST_ERASING_S)
        self._pruning_at_s = began_s + min(settings.archive.prune_every_s, _FIRST_ERASING_S)
        if self._reporter.fault:
            # An earlier process may have died of this work: until it succeeds, the fault lasts.
            # Should this process, too, it has first exported what waits, or for a while.
            self._erasing_at_s = self._pruning_at_s = began_s
            self._steps = settings.export.compact_files_min
            self._rewriting_from_s = began_s + _STEPS_FIRST_S
            for purpose in self._purposes():
                self._reporter.on_rewriting_fault(purpose, ChildProcessError(self._reporter.fault))
        while not stopping.is_set():
            try:
                self._follow(stopping)
            except OtherExporter as error:
                # Look as often as the other process writes, so as to go on soon after its end.
                self._report(error)
                stopping.wait(
                    min(self._settings.export.lag_s_max, self._settings.export.retry_s_max)
                )
            except BrokenPipeError:
                raise  # no process reads our lines about each step any more
            except (ExportError, LogError, KeyFileRefused, OSError) as error:
                # An operator can mend some of these faults without restarting the mediator.
                self._report(error)
                stopping.wait(self._wait_s)
                self._wait_s = min(2 * self._wait_s, self._settings.export.retry_s_max)

    def _follow(self, stopping: threading.Event) -> None:
        with contextlib.closing(opened_to_export(self._settings)) as log:
            # Rows wait also while the place cannot be used.
            self._reporter.on_log(log.position())
            if (note := public_head(log)) is not None:
                self._on_head(note)
            with exporter_of(self._settings, log, open_place(self._target)) as exporter:
                while not stopping.is_set():
                    self._export_next(log, exporter, stopping)

    def _export_next(self, log: EventLog, exporter: Exporter, stopping: threading.Event) -> None:
        self._step(log, exporter)
        if not self._is_behind or time.monotonic() >= self._rewriting_from_s:
            self._rewrite_due(exporter, partial(self._keep_up, log, exporter))
        self._show(exporter.catalog)
        if not self._is_behind:
            stopping.wait(self._settings.export.lag_s_max)

    def _step(self, log: EventLog, exporter: Exporter) -> None:
        self._is_behind = True  # so it stays if this fails
        self._reporter.on_log(log.position())
        step = exporter.step()
        if step is not None:
            self._reporter.on_step(step.last)
            self._on_step(step)
            self._steps += 1
        self._is_behind = step is not None and step.is_full
        self._step_at_s = time.monotonic()
        if not self._is_behind:
            self._publish(log, exporter.head_note)
            self._step_at_s += self._settings.export.lag_s_max
        self._fault, self._wait_s = "", _RETRY_S_MIN

    def _show(self, catalog: Catalog) -> None:
        """Show that all is exported, if it is, and which files could not be rewritten."""
        if not self._is_behind:
            self._reporter.on_caught_up(catalog.last, catalog.complete_until_ms)

    def _keep_up(self, log: EventLog, exporter: Exporter, *_progress: int) -> None:
        """Make the next step once it is due: rewriting old files may take hours.

        A log that cannot be read ends the step alone: pruning would begin again from nothing.
        """
        if time.monotonic() < self._step_at_s:
            return
        try:
            self._step(log, exporter)
        except LogUnavailable as error:
            # The lock is taken anew with the log; the next step finds what this has begun to write.
            if isinstance(error, LockLost) or not exporter.is_certain:
                raise
            self._report(error)
            self._step_at_s = time.monotonic() + self._settings.export.retry_s_max
        self._show(exporter.catalog)

    def _purposes(self) -> Iterator[Rewriting]:
        """Yield the purposes for which the settings have files rewritten."""
        yield "merging"
        if self._settings.export.erased_every_s:
            yield "erasing"
        if self._settings.archive.keep_s:
            yield "pruning"

    def _rewrite_due(self, exporter: Exporter, keep_up: Callable[..., None]) -> None:
        """Rewrite files for each purpose that is due; one that fails stays due, and stops none.

        ``keep_up`` is called between parts of what has no bound.
        """
        export, archive = self._settings.export, self._settings.archive
        if self._steps >= export.compact_files_min:
            merge = partial(exporter.compact, files_min=export.compact_files_min)
            if self._has_rewritten("merging", merge):
                self._steps = 0
        is_erasing_due = export.erased_every_s and time.monotonic() >= self._erasing_at_s
        if is_erasing_due and self._has_rewritten(
            "erasing", partial(exporter.take_out_erased, keep_up)
        ):
            self._erasing_at_s = time.monotonic() + export.erased_every_s
        if archive.keep_s and time.monotonic() >= self._pruning_at_s:
            until_ms = system_clock() - round(archive.keep_s * 1_000)
            prune = partial(exporter.prune, until_ms, not_needed, keep_up)
            if self._has_rewritten("pruning", prune):
                self._pruning_at_s = time.monotonic() + archive.prune_every_s

    def _has_rewritten(self, purpose: Rewriting, rewrite: Callable[[], object]) -> bool:
        """Call ``rewrite``, less and less often while it fails; return whether it succeeded now.

        An old file that is damaged keeps no step from being made. What concerns steps as well, such
        as a store that is away, the next one finds itself.
        """
        failed = self._failed.get(purpose, _Failed())
        if time.monotonic() < failed.retry_at_s:
            return False
        try:
            rewrite()
        except (ExportDamaged, ExportUnavailable, LogError) as error:
            is_new = str(error) not in {each.why for each in self._failed.values()}
            wait_s = min(max(_RETRY_S_MIN, 2 * failed.wait_s), _REWRITING_S_MAX)
            self._failed[purpose] = _Failed(str(error), wait_s, time.monotonic() + wait_s)
            self._reporter.on_rewriting_fault(purpose, error)
            if is_new:
                self._on_fault(error)
            return False
        self._failed.pop(purpose, None)
        self._reporter.on_rewritten(purpose)
        return True

    def _publish(self, log: EventLog, newest: bytes | None) -> None:
        """Renew the head for strangers; an export goes on where the disk of the log is full."""
        every_s = self._settings.export.head_every_s
        if newest is not None:
            with contextlib.suppress(LogError):
                self._on_head(renewed_head(log, newest, every_s, system_clock()))

    def _report(self, error: Exception) -> None:
        if str(error) == self._fault:
            return
        self._fault = str(error)
        if isinstance(error, OtherExporter):
            self._failed.clear()
            self._reporter.on_standby()
        else:
            self._reporter.on_fault(error)
        self._on_fault(error)


def main() -> None:
    """Export until stdin ends: the program of the child process."""
    settings, database, stopping = begin_child("export", niceness=_GIVE_WAY)

    def on_step(step: Exported) -> None:
        _LOG.debug("exported", extra={"position": step.last, "rows": step.rows})

    ContinuousExport(
        settings,
        ExportReporter(settings.data_dir, system_clock, database),
        on_step=on_step,
        on_fault=log_fault,
        on_head=HeadFile(settings.data_dir, database).publish,
    ).run(stopping)


def log_fault(error: Exception, title: str = "") -> None:
    """Log why a continuous export does not go on; ``title`` begins the line."""
    if isinstance(error, OtherExporter):
        _LOG.info("%sthe export stands by: %s", title, error)
    else:
        _LOG.error("%sthe export has a fault: %s", title, error)


@contextlib.contextmanager
def _locked(settings: Settings, place: ExportPlace) -> Iterator[ExportPlace]:
    """Lock the place for one exporter: two would overwrite each other's files.

    A file lock keeps out others on this machine, an advisory lock in the database those on all
    machines. The advisory lock is checked before each change of the place.
    """
    name = hashlib.sha256(place.address().encode()).hexdigest()[:16]
    file = settings.data_dir / f"export-{name}.lock"
    with opened_lock(file) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _other(place) from error
        except OSError as error:  # which does not name the file
            raise OSError(error.errno, error.strerror, str(file)) from error
        with contextlib.ExitStack() as stack:
            try:
                name = f"export to {place.address()}"
                check = stack.enter_context(
                    advisory_lock(settings.log_dsn, name, settings.postgres.bounds)
                )
            except LockedElsewhere as error:
                raise _other(place) from error
            yield place.checked(check)


def _other(place: ExportPlace) -> OtherExporter:
    return OtherExporter(f"another process exports to {place.address()}")
