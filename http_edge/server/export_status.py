"""The status of the export for operators: how far it is, and which fault stops it.

The status is one small file of the data directory. The exporting process replaces it; edges on the
same machine read it for ``/status``, so this module does without pyarrow (48 MB of memory in each
edge).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from actors.host.clock import Clock
from http_edge.server.status_files import (
    Status,
    StatusFile,
    age_s,
    database_numbers,
    read_status,
    status_path,
)

Rewriting = Literal["merging", "erasing", "pruning"]
"""A purpose for which files of the export are rewritten."""

_NAME: Final = "export-status.json"


class ExportStatus(Status, kw_only=True):
    """The status of the export. Positions are those of the log, times Unix ms.

    Everything recorded until ``complete_until_ms`` is exported; None if that time is unknown.
    ``position`` is None until this process has exported something or found the whole log exported,
    ``stepped_at_ms`` until it has exported something, ``caught_up_at_ms`` until any process has
    found the whole log exported. ``is_standing_by`` means that another process exports.
    """

    position: int | None = None
    stepped_at_ms: int | None = None
    caught_up_at_ms: int | None = None
    complete_until_ms: int | None = None
    is_standing_by: bool = False


class Reporter(StatusFile[ExportStatus]):
    """Keeps the status file up to date. A file that cannot be written stops no export."""

    def __init__(self, data_dir: Path | None, clock: Clock, database: int | None = None) -> None:
        """A reporter, of one database if there are several; without ``data_dir`` it has no file.

        It takes over the fault and the time of the last catching up from an earlier process: else
        a process that ends again and again before it has caught up would seem to have just begun.
        Without a file that time counts from when this process began to export.
        """
        path = None if data_dir is None else status_path(data_dir, _NAME, database)
        super().__init__(path, clock, ExportStatus)
        self._status = ExportStatus(
            caught_up_at_ms=self._status.caught_up_at_ms,
            fault=self._status.fault,
            fault_since_ms=self._status.fault_since_ms,
        )
        self._log_position: int | None = None
        self._not_rewritten: dict[Rewriting, tuple[int, str]] = {}
        """Since when files cannot be rewritten for a purpose, in Unix ms, and why."""
        self._leave_standby()
        self._write()

    @property
    def fault(self) -> str:
        """The fault that is noted, by this process or an earlier one; empty without one."""
        return self._status.fault

    def on_log(self, position: int) -> None:
        """Note where the log ends now, which only ``figures`` shows."""
        self._log_position = position

    def on_step(self, position: int) -> None:
        """Note that the log is exported up to ``position``."""
        self._status.stepped_at_ms = self._clock()
        self._reach(position)

    def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
        """Note that all of the log is exported, which ends at ``position``."""
        self._status.caught_up_at_ms = self._clock()
        self._status.complete_until_ms = complete_until_ms
        self._reach(position)

    def on_fault(self, error: Exception) -> None:
        """Note a fault that lasts until the next step or catching up."""
        self._leave_standby()
        super().on_fault(error)

    def on_rewriting_fault(self, purpose: Rewriting, error: Exception) -> None:
        """Note why files cannot be rewritten for a purpose: a fault that lasts until they are.

        Steps need no old file, so they go on meanwhile; the next one, or catching up, shows it.
        """
        status, fault = self._status, str(error)
        # An earlier process may have noted the same.
        since_ms = status.fault_since_ms if status.fault == fault else None
        first = self._not_rewritten.get(purpose, (since_ms or self._clock(), fault))
        self._not_rewritten[purpose] = first[0], fault

    def on_rewritten(self, purpose: Rewriting) -> None:
        """Note that files are rewritten for a purpose, or need not be."""
        self._not_rewritten.pop(purpose, None)

    def on_standby(self) -> None:
        """Note that another process exports; only that process knows how far the export is."""
        self._not_rewritten.clear()
        self._status = ExportStatus(is_standing_by=True)
        self._write()

    def figures(self) -> dict[str, Any]:
        """The status of the export now; see ``figures``."""
        return _figures(self._status, self._log_position, self._clock())

    def _reach(self, position: int) -> None:
        self._status.position = position
        oldest = min(self._not_rewritten.values(), default=(None, ""))
        self._status.fault_since_ms, self._status.fault = oldest
        self._leave_standby()
        self._write()

    def _leave_standby(self) -> None:
        self._status.is_standing_by = False
        if self._path is None and self._status.caught_up_at_ms is None:
            self._status.caught_up_at_ms = self._clock()


def figures(
    data_dir: Path, log_position: int | None, now_ms: int, database: int | None = None
) -> dict[str, Any]:
    """The status of the export as ``/status`` shows it; ages in seconds.

    ``rows_behind`` counts positions of the log, some of which PostgreSQL skips; it is None if
    either end is unknown. ``caught_up_age_s`` is the age of the last catching up: rows recorded
    since may be missing. ``complete_until`` is the time until which everything recorded is
    exported, according to the export itself. ``standby`` means that another process exports,
    perhaps on another machine, whose status has the other figures.
    """
    status = read_status(status_path(data_dir, _NAME, database), ExportStatus)
    if status is None:
        # Edges on other machines have no such file.
        fault = "the exporting process runs on another machine or has not started"
        status = ExportStatus(fault=fault)
    return _figures(status, log_position, now_ms)


def _figures(status: ExportStatus, log_position: int | None, now_ms: int) -> dict[str, Any]:
    is_known = log_position is not None and status.position is not None
    return {
        "position": status.position,
        "rows_behind": max(0, (log_position or 0) - (status.position or 0)) if is_known else None,
        "last_step_age_s": age_s(status.stepped_at_ms, now_ms),
        "caught_up_age_s": age_s(status.caught_up_at_ms, now_ms),
        "complete_until": time_text(status.complete_until_ms),
        "fault": status.fault,
        "fault_age_s": age_s(status.fault_since_ms, now_ms),
        "standby": status.is_standing_by,
    }


def time_text(at_ms: int | None) -> str | None:
    """Unix milliseconds as a time in UTC."""
    if at_ms is None:
        return None
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def figures_by_database(
    data_dir: Path, log_positions: Sequence[int | None], now_ms: int
) -> list[dict[str, Any]]:
    """The ``figures`` of each database of the log, whose positions are ``log_positions``."""
    each = zip(log_positions, database_numbers(len(log_positions)), strict=True)
    return [figures(data_dir, last, now_ms, number) for last, number in each]
