"""The status of archiving for operators: how far it is, and which fault keeps rows in the log.

The status is one small file of the data directory for each database of the log. Each round replaces
it; edges read it for ``/status``, so this module does without pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from actors.host.clock import Clock
from http_edge.server.status_files import (
    Status,
    StatusFile,
    age_s,
    database_numbers,
    read_status,
    status_path,
)
from http_edge.settings.settings import Settings

_MS: Final = 1_000
_NAME: Final = "archive-status.json"


class ArchiveStatus(Status, kw_only=True):
    """The status of archiving. Positions are those of the log, times Unix ms.

    ``position`` is that of the seam, ``rows_left`` counts all rows that have left, ``rows_stayed``
    those before the seam that are still in the log; all None until a round has found rows that are
    old enough. ``ended_at_ms`` is when a round last completed, ``erased_at_ms`` when erased
    contents were last taken out of the archive, ``pruned_at_ms`` when the archive was last pruned.
    """

    position: int | None = None
    rows_left: int | None = None
    rows_stayed: int | None = None
    ended_at_ms: int | None = None
    erased_at_ms: int | None = None
    pruned_at_ms: int | None = None


class Reporter(StatusFile[ArchiveStatus]):
    """Keeps the status file up to date. A file that cannot be written stops no round."""

    def __init__(self, data_dir: Path, clock: Clock, database: int | None = None) -> None:
        """A reporter that goes on from the status of an earlier process.

        ``database`` is the number of the log's database if there are several.
        """
        super().__init__(status_path(data_dir, _NAME, database), clock, ArchiveStatus)

    def on_seam(self, position: int, rows_left: int, rows_stayed: int) -> None:
        """Note the seam after a round; see ``ArchiveStatus`` for the figures."""
        status = self._status
        status.position, status.rows_left, status.rows_stayed = position, rows_left, rows_stayed

    def is_erasing_due(self, every_s: float) -> bool:
        """Is it time to take erased contents out of the archive? Never if ``every_s`` is 0."""
        return every_s > 0 and self._is_over(self._status.erased_at_ms, every_s)

    def on_erased(self) -> None:
        """Note that erased contents were taken out of the archive."""
        self._status.erased_at_ms = self._clock()

    def is_pruning_due(self, keep_s: float, every_s: float) -> bool:
        """Is it time to prune the archive again? Never if ``keep_s`` is 0."""
        return keep_s > 0 and self._is_over(self._status.pruned_at_ms, every_s)

    def on_pruned(self) -> None:
        """Note that the archive was pruned."""
        self._status.pruned_at_ms = self._clock()

    def on_end(self) -> None:
        """Note that a round has completed."""
        status = self._status
        status.ended_at_ms = self._clock()
        status.fault, status.fault_since_ms = "", None
        self._write()

    def _is_over(self, last_ms: int | None, every_s: float) -> bool:
        """Has this time passed since? A last time in the future is from a clock that ran fast."""
        return not 0 <= self._clock() - (last_ms or 0) < every_s * _MS


def figures(data_dir: Path, now_ms: int, database: int | None = None) -> dict[str, Any]:
    """The status of archiving as ``/status`` shows it: ages in seconds, None if unknown."""
    status = read_status(status_path(data_dir, _NAME, database), ArchiveStatus) or ArchiveStatus()
    return {
        "position": status.position,
        "rows_left": status.rows_left,
        "rows_stayed": status.rows_stayed,
        "last_round_age_s": age_s(status.ended_at_ms, now_ms),
        "fault": status.fault,
        "fault_age_s": age_s(status.fault_since_ms, now_ms),
    }


def figures_by_database(settings: Settings, now_ms: int) -> Sequence[dict[str, Any]]:
    """The ``figures`` of each database of the log; none if no round looks at it."""
    numbers = database_numbers(len(settings.log_dsns)) if settings.has_rounds else ()
    return [figures(settings.data_dir, now_ms, number) for number in numbers]
