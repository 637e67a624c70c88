"""The export of the log beside a serving mediator.

``ContinuousExport`` follows the log until ``stopping`` is set, and outlives a full disk or a lost
store: it says so and tries again. ``main`` runs it in a child process of ``poste serve``
(``http_edge.server.export_process``). The child ends with its parent, however that ends: it reads
the pipe that the parent holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Final

import base58

from actors.host.clock import system_clock
from eventstore.log.databases import PLACE
from eventstore.log.errors import LockedElsewhere, LogError
from eventstore.log.event_log import EventLog
from eventstore.log.name_erasure import erased_identities
from eventstore.log.public_key import PublicKey
from eventstore.parquet.errors import ExportError, ExportRefused
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.tree import head_in, published_note
from eventstore.parquet.write.exporter import (
    Completeness,
    Exported,
    Exporter,
    ExportOwner,
    Kept,
)
from eventstore.parquet.write.step import Bounds
from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import KeyFileRefused, load, load_or_create
from http_edge.server.export_status import Reporter
from http_edge.server.log_head import HeadFile
from http_edge.server.pruning import prune_old
from http_edge.settings.settings import Settings
from http_edge.telemetry.logs import configure

_LOG = logging.getLogger(__name__)
_RETRY_S_MIN: Final = 1.0
_FIRST_ERASING_S: Final = 3_600.0
"""After the start, so that a mediator which is started anew each day does it, too."""
_GIVE_WAY: Final = 5
"""Nice value: the mediator goes first, and the export keeps a quarter of a full core."""


def opened_to_read(settings: Settings) -> EventLog:
    """The log for tools that only read it, or its first database; see ``Settings.each_database``.

    Raises:
        LogError: as ``eventstore.stores.open_log.open_log``.
    """
    return open_log(settings.log_dsn, to_read=True, postgres=settings.postgres.bounds)


class OtherExporter(ExportRefused):
    """Another process, of this machine or of another one, exports the log to the place."""


@contextlib.contextmanager
def exporter_of(
    settings: Settings, log: EventLog, place: ExportPlace, *, until_ms: int | None = None
) -> Iterator[Exporter]:
    """The exporter of this mediator to a place, the only one while it is used.

    It takes nothing that was recorded after ``until_ms``, Unix milliseconds, where that is given.

    Raises:
        OtherExporter: another process exports there.
        ExportRefused: the place is of another mediator or log, or this mediator has no keys yet.
        ExportError, LogError, KeyFileRefused: as ``Exporter`` and ``load_or_create``.
    """
    if not settings.keys_path.exists():
        raise ExportRefused(f"there are no mediator keys at {settings.keys_path}")
    keys = load_or_create(settings.keys_path)
    number = log.settings().get(PLACE)
    owner = ExportOwner(
        log.setting("mediator_did", settings.mediator_did),
        int(log.setting("shards", str(settings.shards))),
        None if number is None else int(number),
    )
    signer = Signer(
        base58.b58encode(keys.signing_public).decode(), partial(signatures.sign, keys.signing_seed)
    )
    verify = partial(signatures.verify, keys.signing_public)
    bounds = Bounds(settings.export.rows_per_file_max, settings.export.bytes_per_step_max, until_ms)
    export = settings.export
    kept = Kept(export.replaced_kept_s, export.versions_kept_s)
    completeness = Completeness(export.settled_s, export.complete_every_s)
    with _locked(settings, place) as own:
        exporter = Exporter(
            log, own, owner, signer, verify, bounds,
            kept=kept, completeness=completeness, clock=system_clock,
        )  # fmt: skip
        with contextlib.closing(exporter):
            yield exporter


def export_erasures(
    log: EventLog, exporter: Exporter, after_step: Callable[[], None] = lambda: None
) -> None:
    """Export the rest of a log if it has the erasure of an identity, whose names then may leave.

    ``after_step`` is called after each full step; what it raises ends the work there.

    Raises:
        ExportError, LogError: as ``Exporter.step``.
    """
    if max(erased_identities(log).values(), default=0) <= exporter.catalog.last:
        return
    while (step := exporter.step()) is not None and step.is_full:
        after_step()


class ContinuousExport:
    """Follows the log of a mediator and exports it, until ``stopping`` is set.

    Where another process exports to the same place, it stands by and takes over when that one ends.
    """

    def __init__(
        self,
        settings: Settings,
        target: str,
        *,
        on_step: Callable[[Exported], None] = lambda _step: None,
        on_caught_up: Callable[[int, int | None], None] = lambda _position, _until_ms: None,
        on_fault: Callable[[Exception], None] = lambda _error: None,
        on_head: Callable[[bytes], None] = lambda _note: None,
    ) -> None:
        """An export to a path or URI.

        ``on_caught_up`` is called with the position reached, and until when the export is complete
        (Unix milliseconds), whenever all of the log is exported, ``on_fault`` once for each new
        fault, ``on_head`` with each new signed head of the log, also of another process that
        exports.
        """
        self._settings = settings
        self._target = target
        self._on_step = on_step
        self._on_caught_up = on_caught_up
        self._on_fault = on_fault
        self._on_head = on_head
        self._note: bytes | None = None
        self._fault = ""
        self._wait_s = _RETRY_S_MIN

    def run(self, stopping: threading.Event) -> None:
        """Export until ``stopping`` is set; what fails is tried again after a while."""
        while not stopping.is_set():
            try:
                self._follow(stopping)
            except OtherExporter as error:
                # Ready to go on when that one ends: this one looks as often as that one writes.
                self._report(error)
                self._publish(self._note_of_other())
                stopping.wait(
                    min(self._settings.export.lag_s_max, self._settings.export.retry_s_max)
                )
            except BrokenPipeError:
                raise  # of the lines that say each step: none reads them any more
            except (ExportError, LogError, KeyFileRefused, OSError) as error:
                # Some of these an operator has to mend, without a restart of the mediator.
                self._report(error)
                stopping.wait(self._wait_s)
                self._wait_s = min(2 * self._wait_s, self._settings.export.retry_s_max)

    def _follow(self, stopping: threading.Event) -> None:
        export = self._settings.export
        steps = 0
        began_s, archive = time.monotonic(), self._settings.archive
        erasing_at_s = began_s + min(export.erased_every_s, _FIRST_ERASING_S)
        pruning_at_s = began_s + min(archive.prune_every_s, _FIRST_ERASING_S)
        with (
            contextlib.closing(opened_to_read(self._settings)) as log,
            exporter_of(self._settings, log, open_place(self._target)) as exporter,
        ):
            while not stopping.is_set():
                self._publish(exporter.head_note)
                step = exporter.step()
                self._publish(exporter.head_note)
                self._fault, self._wait_s = "", _RETRY_S_MIN
                if step is not None:
                    self._on_step(step)
                    steps += 1
                    if steps % export.compact_files_min == 0:
                        exporter.compact(files_min=export.compact_files_min)
                if export.erased_every_s and time.monotonic() >= erasing_at_s:
                    exporter.take_out_erased()
                    erasing_at_s = time.monotonic() + export.erased_every_s
                if archive.keep_s and time.monotonic() >= pruning_at_s:
                    prune_old(exporter, archive)
                    pruning_at_s = time.monotonic() + archive.prune_every_s
                if step is None or not step.is_full:
                    catalog = exporter.catalog
                    self._on_caught_up(catalog.last, catalog.complete_until_ms)
                    stopping.wait(export.lag_s_max)

    def _publish(self, note: bytes | None) -> None:
        if note is not None and note != self._note:
            self._note = note
            self._on_head(note)

    def _note_of_other(self) -> bytes | None:
        """The newest head in the place, None if there is none that this mediator has signed."""
        with contextlib.suppress(ExportError, KeyFileRefused, OSError):
            note = published_note(open_place(self._target))
            key = PublicKey(load(self._settings.keys_path).signing_public)
            if note is not None and head_in(note, key):
                return note
        return None

    def _report(self, error: Exception) -> None:
        if str(error) != self._fault:
            self._fault = str(error)
            self._on_fault(error)


def report_fault(reporter: Reporter, error: Exception) -> None:
    """Report what keeps an export from going on: it stands by where another one exports."""
    if isinstance(error, OtherExporter):
        reporter.on_standby()
    else:
        reporter.on_fault(error)


def main() -> None:
    """The child: export until stdin ends."""
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    configure(settings.log_level, process="export")
    assert settings.export.to is not None
    os.nice(_GIVE_WAY)
    stopping = threading.Event()
    # Ctrl-C reaches the whole group of processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_until_end, args=(sys.stdin.buffer, stopping), daemon=True).start()
    (database,) = map(int, sys.argv[1:]) if sys.argv[1:] else (None,)
    reporter = Reporter(settings.data_dir, system_clock, database)

    def on_step(step: Exported) -> None:
        _log_step(step)
        reporter.on_step(step.last)

    def on_fault(error: Exception) -> None:
        report_fault(reporter, error)
        if isinstance(error, OtherExporter):
            _LOG.info("the export stands by: %s", error)
        else:
            _LOG.error("the export waits: %s", error)

    ContinuousExport(
        settings,
        settings.export.to,
        on_step=on_step,
        on_caught_up=reporter.on_caught_up,
        on_fault=on_fault,
        on_head=HeadFile(settings.data_dir, database).publish,
    ).run(stopping)


def _until_end(pipe: IO[bytes], stopping: threading.Event) -> None:
    pipe.read()
    stopping.set()


def _log_step(step: Exported) -> None:
    _LOG.debug("exported", extra={"position": step.last, "rows": step.rows})


@contextlib.contextmanager
def _locked(settings: Settings, place: ExportPlace) -> Iterator[ExportPlace]:
    """The place for one exporter alone: two would write over each other.

    A file is locked against others of this machine, an advisory lock in the database keeps out
    those of all machines. It is checked before each change of the place.
    """
    name = hashlib.sha256(place.address().encode()).hexdigest()[:16]
    with (settings.data_dir / f"export-{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _other(place) from error
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
