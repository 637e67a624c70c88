"""Small files of the data directory that tell other processes of the machine what one has done.

One process writes a file and any number read it: how far the export is and archiving, which fault
stops either, and which databases of the log this node does not serve. Edges read them for
``/status`` and ``/health``. Readers need neither the log nor pyarrow (48 MB of memory in each).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from actors.host.clock import Clock

if TYPE_CHECKING:
    from http_edge.settings.settings import Settings

Rewriting = Literal["merging", "erasing", "pruning"]
"""A purpose for which files of the export are rewritten."""

_MS: Final = 1_000
_EXPORT: Final = "export-status.json"
_ARCHIVE: Final = "archive-status.json"
_AWAY: Final = "databases-away.json"
_Content = TypeVar("_Content")


class Status(msgspec.Struct, kw_only=True):
    """The status of some work, whose ``fault`` is empty while nothing is wrong; times are Unix ms.

    ``fault_since_ms`` is when the first of its faults was noted that came without a success since.
    """

    fault: str = ""
    fault_since_ms: int | None = None


_Status = TypeVar("_Status", bound=Status)


class Unreadable(msgspec.Struct, frozen=True):
    """A file is there and cannot be read, or a part of it was written; ``why`` names it.

    ``since_ms`` is when the file was last changed, in Unix milliseconds; 0 if that is unknown.
    """

    why: str
    since_ms: int


def status_path(data_dir: Path, name: str, database: int | None) -> Path:
    """The path of a file of this name; of one database of the log if it has several."""
    path = data_dir / name
    return path if database is None else path.with_stem(f"{path.stem}-{database}")


def database_numbers(count: int) -> Sequence[int | None]:
    """The numbers that distinguish the databases of a log; a single one has none."""
    return [None] if count == 1 else range(count)


def of_databases(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join the records of each database of a log into one; a single record is returned itself."""
    return records[0] if len(records) == 1 else {"databases": records}


def age_s(at_ms: int | None, now_ms: int) -> float | None:
    """The seconds since a time; None if that is unknown."""
    return None if at_ms is None else max(0.0, (now_ms - at_ms) / 1000)


def publish(path: Path, content: bytes) -> None:
    """Replace the content of a file; ignore a failure.

    Where no new file can be written, as on a full disk, the old one is overwritten, which has its
    room already. A reader may find a part of it then.
    """
    draft = path.with_suffix(".part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.write(content)
            file.truncate()


class StatusFile(Generic[_Status]):
    """Keeps the file of a status up to date. If it cannot be written, the work goes on."""

    def __init__(self, path: Path | None, clock: Clock, kind: type[_Status]) -> None:
        """Go on from the status of an earlier process; without ``path`` there is no file."""
        self._path, self._clock = path, clock
        earlier = None if path is None else read_file(path, kind)
        self._status = earlier if isinstance(earlier, kind) else kind()

    def on_fault(self, error: Exception) -> None:
        """Note a fault that lasts until the work succeeds."""
        if not self._status.fault:
            self._status.fault_since_ms = self._clock()
        self._status.fault = str(error)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            publish(self._path, msgspec.json.encode(self._status))


def read_status(path: Path, kind: type[_Status]) -> _Status | None:
    """The status in a file; a fault if it cannot be read, None if there is no such file."""
    status = read_file(path, kind)
    if isinstance(status, Unreadable):
        return kind(fault=status.why, fault_since_ms=status.since_ms)
    return status


def read_file(path: Path, kind: type[_Content]) -> _Content | Unreadable | None:
    """The content of a file of JSON, None if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: no JSON, not of this kind, no UTF-8
        return Unreadable(f"{path} cannot be read: {error}", _changed_ms(path))


def _changed_ms(path: Path) -> int:
    with contextlib.suppress(OSError):
        return int(path.stat().st_mtime * 1000)
    return 0


# ---- the export


class ExportStatus(Status, kw_only=True):
    """The status of the export. Positions are those of the log, times Unix ms.

    Everything recorded until ``complete_until_ms`` is exported; None if that time is unknown.
    ``position`` is None until this process has exported something or found the whole log exported,
    ``stepped_at_ms`` until it has exported something. ``caught_up_at_ms`` is when a process last
    found the whole log exported, or, if none has, when the first one began: one that hangs in its
    first step has no fault to note. ``is_standing_by`` means that another process exports.
    """

    position: int | None = None
    stepped_at_ms: int | None = None
    caught_up_at_ms: int | None = None
    complete_until_ms: int | None = None
    is_standing_by: bool = False


class ExportReporter(StatusFile[ExportStatus]):
    """Keeps the status file up to date. A file that cannot be written stops no export."""

    def __init__(self, data_dir: Path | None, clock: Clock, database: int | None = None) -> None:
        """A reporter, of one database if there are several; without ``data_dir`` it has no file.

        It takes over the fault and the time of the last catching up from an earlier process: else
        a process that ends again and again before it has caught up would seem to have just begun.
        """
        path = None if data_dir is None else status_path(data_dir, _EXPORT, database)
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
        """The status of the export now; see ``export_figures``."""
        return _export_figures(self._status, self._log_position, self._clock())

    def _reach(self, position: int) -> None:
        self._status.position = position
        oldest = min(self._not_rewritten.values(), default=(None, ""))
        self._status.fault_since_ms, self._status.fault = oldest
        self._leave_standby()
        self._write()

    def _leave_standby(self) -> None:
        self._status.is_standing_by = False
        if self._status.caught_up_at_ms is None:
            self._status.caught_up_at_ms = self._clock()


def export_figures(
    data_dir: Path, log_position: int | None, now_ms: int, database: int | None = None
) -> dict[str, Any]:
    """The status of the export as ``/status`` shows it; ages in seconds.

    ``rows_behind`` counts positions of the log, some of which PostgreSQL skips; it is None if
    either end is unknown. ``caught_up_age_s`` is the age of the last catching up: rows recorded
    since may be missing; before the first one it counts from the first start. ``complete_until`` is
    the time until which everything recorded is exported, according to the export itself.
    ``standby`` means that another process exports, perhaps on another machine, whose status has the
    other figures.
    """
    status = read_status(status_path(data_dir, _EXPORT, database), ExportStatus)
    if status is None:
        # Edges on other machines have no such file.
        fault = "the exporting process runs on another machine or has not started"
        status = ExportStatus(fault=fault)
    return _export_figures(status, log_position, now_ms)


def _export_figures(status: ExportStatus, log_position: int | None, now_ms: int) -> dict[str, Any]:
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


def export_figures_by_database(
    data_dir: Path, log_positions: Sequence[int | None], now_ms: int
) -> list[dict[str, Any]]:
    """The ``export_figures`` of each database of the log, whose positions are ``log_positions``."""
    each = zip(log_positions, database_numbers(len(log_positions)), strict=True)
    return [export_figures(data_dir, last, now_ms, number) for last, number in each]


# ---- archiving


class ArchiveStatus(Status, kw_only=True):
    """The status of archiving. Positions are those of the log, times Unix ms.

    ``position`` is that of the seam, ``rows_left`` counts all rows that have left, ``rows_stayed``
    those before the seam that are still in the log; all None until a round has found rows that are
    old enough. ``ended_at_ms`` is when a round last completed, or, if none has, when the first one
    began, ``erased_at_ms`` when erased contents were last taken out of the archive,
    ``pruned_at_ms`` when the archive was last pruned.
    """

    position: int | None = None
    rows_left: int | None = None
    rows_stayed: int | None = None
    ended_at_ms: int | None = None
    erased_at_ms: int | None = None
    pruned_at_ms: int | None = None


class ArchiveReporter(StatusFile[ArchiveStatus]):
    """Keeps the status file up to date. A file that cannot be written stops no round."""

    def __init__(self, data_dir: Path, clock: Clock, database: int | None = None) -> None:
        """A reporter that goes on from the status of an earlier process.

        ``database`` is the number of the log's database if there are several.
        """
        super().__init__(status_path(data_dir, _ARCHIVE, database), clock, ArchiveStatus)

    def on_begin(self) -> None:
        """Note that a round has begun: the first one may hang before it has a fault to note."""
        if self._status.ended_at_ms is None:
            self._status.ended_at_ms = self._clock()
            self._write()

    def on_seam(self, position: int, rows_left: int, rows_stayed: int) -> None:
        """Note the seam after a round; see ``ArchiveStatus`` for the figures."""
        status = self._status
        status.position, status.rows_left, status.rows_stayed = position, rows_left, rows_stayed

    def is_erasing_due(self, every_s: float) -> bool:
        """Is it time to take erased contents out of the archive? Never if ``every_s`` is 0."""
        return every_s > 0 and self._is_over(self._status.erased_at_ms, every_s)

    def is_pruning_due(self, keep_s: float, every_s: float) -> bool:
        """Is it time to prune the archive again? Never if ``keep_s`` is 0."""
        return keep_s > 0 and self._is_over(self._status.pruned_at_ms, every_s)

    def on_end(self, *, has_erased: bool = False, has_pruned: bool = False) -> None:
        """Note that a round has completed, and what it has done with the archive."""
        status = self._status
        status.ended_at_ms = self._clock()
        if has_erased:
            status.erased_at_ms = status.ended_at_ms
        if has_pruned:
            status.pruned_at_ms = status.ended_at_ms
        status.fault, status.fault_since_ms = "", None
        self._write()

    def figures(self) -> dict[str, Any]:
        """The status of archiving now; see ``archive_figures``."""
        return _archive_figures(self._status, self._clock())

    def _is_over(self, last_ms: int | None, every_s: float) -> bool:
        """Has this time passed since? A last time in the future is from a clock that ran fast."""
        return not 0 <= self._clock() - (last_ms or 0) < every_s * _MS


def archive_figures(data_dir: Path, now_ms: int, database: int | None = None) -> dict[str, Any]:
    """The status of archiving as ``/status`` shows it: ages in seconds, None if unknown."""
    path = status_path(data_dir, _ARCHIVE, database)
    return _archive_figures(read_status(path, ArchiveStatus) or ArchiveStatus(), now_ms)


def _archive_figures(status: ArchiveStatus, now_ms: int) -> dict[str, Any]:
    return {
        "position": status.position,
        "rows_left": status.rows_left,
        "rows_stayed": status.rows_stayed,
        "last_round_age_s": age_s(status.ended_at_ms, now_ms),
        "fault": status.fault,
        "fault_age_s": age_s(status.fault_since_ms, now_ms),
    }


def archive_figures_by_database(settings: Settings, now_ms: int) -> Sequence[dict[str, Any]]:
    """The ``archive_figures`` of each database of the log; none if no round looks at it."""
    numbers = database_numbers(len(settings.log_dsns)) if settings.has_rounds else ()
    return [archive_figures(settings.data_dir, now_ms, number) for number in numbers]


# ---- the databases of the log, and what ``/status`` shows of all this


def publish_away(data_dir: Path, away: Mapping[int, str]) -> None:
    """Publish to the edges of this machine why each of these databases is not served.

    It was away at the start, or was found wrong. Edges look for no hosts in it, and keep those that
    they have found.
    """
    publish(data_dir / _AWAY, msgspec.json.encode(away))


def read_away(settings: Settings) -> dict[int, str]:
    """What was published last; empty if every database is served, as a single one always is.

    If it cannot be read, none of several is known to be served: one may be another log's.
    """
    count = len(settings.log_dsns)
    away = read_file(settings.data_dir / _AWAY, dict[int, str]) if count > 1 else None
    return dict.fromkeys(range(count), away.why) if isinstance(away, Unreadable) else away or {}


def problems_of(settings: Settings) -> Sequence[str]:
    """What was published last, a sentence for each database."""
    return [f"database {n} is not served here: {why}" for n, why in read_away(settings).items()]


def status_parts(
    settings: Settings,
    clock: Clock,
    figures: Mapping[str, Any],
    *,
    outbound: Callable[[], Mapping[str, int]] | None,
    push: Callable[[], Mapping[str, int]] | None,
) -> dict[str, Any]:
    """The figures of each part by its name, which follow from the other ``figures``.

    ``outbound`` and ``push`` return the counts of one edge; None if it does no such work.
    """
    parts: dict[str, Any] = {}
    if away := read_away(settings):
        parts["databases_away"] = {str(number): why for number, why in away.items()}
    if outbound is not None:
        parts["outbound"] = dict(outbound())
    if push is not None:
        parts["push"] = dict(push())
    if settings.export.to is not None:
        positions = figures.get("log_positions", [figures.get("log_position")])
        each = export_figures_by_database(settings.data_dir, positions, clock())
        parts["export"] = of_databases(each)
    if settings.has_rounds:
        parts["archive"] = of_databases(archive_figures_by_database(settings, clock()))
    for name, hangs_s in settings.hangs_s.items():
        if name in parts:
            parts[name] = {**parts[name], "hangs_after_s": hangs_s}
    return parts
