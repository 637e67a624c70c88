"""An exporter that kills itself, in a process that a server forks: importing takes a second."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from deltalake import DeltaTable

from eventstore.parquet.files import open_place
from eventstore.parquet.write import table
from eventstore.stores.open_log import open_log
from tests.export.samples import export_all, exporter
from tests.forked import exit_code_of

_WATCHED: Final = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
_STEPS: Final = ("create_write_transaction", "create_checkpoint", "cleanup_metadata")


class Steps:
    """Counts the steps of an exporter, and kills the process at one of them."""

    def __init__(self, export: str, fatal: int) -> None:
        self._export = export
        self._fatal = fatal
        self._counted = 0

    def count(self, event: str, arguments: tuple[object, ...]) -> None:
        """Take what Python does as a step if it touches a file of the export."""
        if event in _WATCHED and self._export in str(arguments[0]):
            self.step()

    def step(self) -> None:
        """One more step."""
        self._counted += 1
        if self._counted == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, holder: Any, name: str) -> None:
        """A step before and one after this call of a library."""
        made: Callable[..., None] = getattr(holder, name)

        def call(*arguments: Any, **more: Any) -> None:
            self.step()
            made(*arguments, **more)
            self.step()

        setattr(holder, name, call)


def _export(folder: str, fatal: int, what: str) -> None:
    steps = Steps(f"{folder}/export", fatal)
    if what == "late":
        _go_on_late(folder, steps)
        return
    if what in {"files", "erasing"}:
        sys.addaudithook(steps.count)
    for name in _STEPS:
        steps.around(DeltaTable, name)
    steps.around(table, "create_table_with_add_actions")
    vars(table)["SUMMARY_EVERY"] = 3  # they and checkpoints are made often
    with closing(open_log(f"sqlite:{folder}/log.db")) as log:
        place = open_place(f"{folder}/export")
        if what == "erasing":
            erasing = exporter(log, place)
            erasing.take_out_erased()
            erasing.sweep()
            erasing.close()
            return
        export_all(log, place)
        export = exporter(log, place)
        export.compact(files_min=2)
        export.sweep()
        export.close()


def _go_on_late(folder: str, steps: Steps) -> None:
    """Another exporter takes over before this one's first change; steps count from then on."""
    checks = itertools.count()
    place = open_place(f"{folder}/export")
    with closing(open_log(f"sqlite:{folder}/log.db")) as log:

        def check() -> None:
            if next(checks) == 0:
                export_all(log, place)
                sys.addaudithook(steps.count)

        exporter(log, place.checked(check)).close()


def exit_code(folder: str, fatal: int, what: str) -> int | None:
    """How a process ended that exports and compacts, and kills itself at step ``fatal``.

    Steps are those of the library of the table; with ``what`` "files" also what touches a file;
    with "erasing" it takes erased contents out instead; with "late" another exporter takes over
    before its first change, and its steps count from there.
    """
    return exit_code_of(_export, folder, fatal, what)
