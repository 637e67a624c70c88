"""The child processes of ``poste serve``: how the parent runs each, and how a child begins.

The export and archiving run in processes of their own, so that their work does not slow down the
hosts and edges, and their end does not end the mediator. The parent imports nothing of theirs:
pyarrow would take 48 MB of its memory.

A child gets its settings as one line of JSON on stdin. The end of stdin tells it to end, so it ends
with its parent, however the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from actors.host.clock import system_clock
from http_edge.server.status_files import ArchiveReporter, ExportReporter
from http_edge.settings.settings import Settings
from http_edge.telemetry.logs import LogPipe

_LOG = logging.getLogger(__name__)
_STOP_S_MAX: Final = 5.0
"""A child may wait for a database that hangs; nothing is lost when it is killed."""
_RESTART_S: Final = 5.0
ARCHIVING_AFTER_S: Final = 60.0
"""Time from the start of the mediator to the first archiving: by then its clients are back."""
EXPORT: Final = (sys.executable, "-c", "from http_edge.server.exporting import main; main()")
ARCHIVE: Final = (sys.executable, "-c", "from http_edge.server.archive_round import main; main()")
"""The commands of the children."""


async def work_beside(settings: Settings, stopping: asyncio.Event, number: int | None) -> None:
    """Keep running the children that one database of the log needs, until ``stopping`` is set.

    ``number`` as for ``keep_exporting``.
    """
    kinds = []
    if settings.export.to is not None:
        kinds.append(keep_exporting)
    if settings.has_rounds:
        kinds.append(keep_archiving)
    await asyncio.gather(*[keep(settings, stopping, number) for keep in kinds])


async def keep_exporting(settings: Settings, stopping: asyncio.Event, number: int | None) -> None:
    """Keep a child running that exports to ``settings.export.to``, until ``stopping`` is set.

    Then end it and wait for its end. ``number`` is that of the log's database if there are several.
    """
    stopped = asyncio.create_task(stopping.wait())
    while not stopping.is_set():
        code = await _run_child(EXPORT, settings, number, stopped)
        if not stopping.is_set():
            reporter = ExportReporter(settings.data_dir, system_clock, number)
            reporter.on_fault(_failed("exporting", code))
            await asyncio.wait({stopped}, timeout=_RESTART_S)


async def keep_archiving(
    settings: Settings,
    stopping: asyncio.Event,
    number: int | None,
    *,
    first_s: float = ARCHIVING_AFTER_S,
) -> None:
    """Start a child for each round of archiving, until ``stopping`` ends a round under way, too.

    The first round begins after ``first_s`` at most. ``number`` as for ``keep_exporting``.
    """
    every_s = settings.round_s
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({stopped}, timeout=min(first_s, every_s))
    while not stopping.is_set():
        code = await _run_child(ARCHIVE, settings, number, stopped)
        if code != 0 and not stopping.is_set():
            reporter = ArchiveReporter(settings.data_dir, system_clock, number)
            reporter.on_fault(_failed("archiving", code))
        await asyncio.wait({stopped}, timeout=every_s)


def _failed(process: str, code: int | None) -> ChildProcessError:
    """Log how a child failed: it may have ended without a report, as the next one may."""
    how = "could not be started" if code is None else f"ended with code {code}"
    _LOG.error("the %s process %s", process, how)
    return ChildProcessError(f"the {process} process {how}")


async def _run_child(
    program: Sequence[str], settings: Settings, database: int | None, stopped: asyncio.Task[Any]
) -> int | None:
    """Run a child process until it ends by itself or ``stopped`` is done; return its exit code.

    The child has some seconds to end after the end of its stdin. If the system cannot start a
    process now, that is logged, and the result is None.
    """
    command = program if database is None else (*program, str(database))
    try:
        # In a group of its own: the parent decides about signals to the whole of its own (Ctrl-C).
        child = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, process_group=0
        )
    except OSError as error:
        _LOG.error("a child process could not be started: %s", error)
        return None
    ended = asyncio.create_task(child.wait())
    try:
        assert child.stdin is not None
        with contextlib.suppress(ConnectionError):
            child.stdin.write(settings.model_dump_json().encode() + b"\n")
            await child.stdin.drain()
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        child.stdin.close()
        await asyncio.wait({ended}, timeout=_STOP_S_MAX)
    finally:
        if child.returncode is None:
            # Nothing is lost: only what the child has committed counts.
            child.kill()
        await ended
    return child.returncode


def begin_child(process: str, *, niceness: int) -> tuple[Settings, int | None, threading.Event]:
    """Begin as the child process of this name.

    Return the settings, the number of the log's database if there are several, and an event that is
    set when the parent tells this process to end.
    """
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    os.nice(niceness)
    LogPipe(settings.log_level, process)  # which Python closes at the end, as it does all handlers
    # Python's own lines about a failure would wait for a stderr that is not read.
    sys.excepthook = partial(_log_failure, process)
    stopping = threading.Event()
    threading.Thread(target=_until_end, args=(sys.stdin.fileno(), stopping), daemon=True).start()
    (database,) = map(int, sys.argv[1:]) if sys.argv[1:] else (None,)
    return settings, database, stopping


def _log_failure(process: str, _type: object, error: BaseException, _trace: object) -> None:
    _LOG.critical("the %s process failed", process, exc_info=error)


def _until_end(pipe: int, stopping: threading.Event) -> None:
    # Not a buffered reader: Python needs its lock if this process ends before the pipe does.
    while os.read(pipe, 1):
        pass
    stopping.set()
