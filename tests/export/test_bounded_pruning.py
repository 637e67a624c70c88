"""What stays of a pruned archive is written and read in bounded parts, however long it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from actors.archive.unneeded_rows import ReadRows, not_needed
from actors.host.clock import system_clock
from eventstore.log.errors import LockLost, LogUnavailable
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import DataFile, Manifest, heads_of, is_data
from eventstore.parquet.rows import log_rows, manifest_rows, manifest_tables, read_table
from eventstore.parquet.verify.manifests import ManifestPart
from eventstore.parquet.verify.rows import CheckedPart, check_part
from eventstore.parquet.write import compaction, pruning
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.exporter import ExportTimes
from eventstore.parquet.write.pruning import Positions
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.server import exporting
from http_edge.server.archive_round import archive_once
from http_edge.server.exporting import ContinuousExport
from http_edge.server.status_files import ExportReporter, Rewriting
from http_edge.settings.sections import Archive, Export
from tests.export.forging import with_value
from tests.export.leaving import LATER_MS, leave, plan, played, prune, read_ids, settings_of
from tests.export.samples import (
    DAY_MS,
    SIGNER,
    Growing,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    findings,
)
from tests.histories import LIMITS, Crowd, History, random_script
from tests.log.faulty_log import FaultyLog

BYTES_MAX = 10_000


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a history whose steps had a few kilobytes each, without its first part."""
    folder = tmp_path_factory.mktemp("pruned")
    place = open_place(str(folder / "export"))
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        history = played(log)
        export_all(log, place, Bounds(rows_max=40))
        leave(log, place)
        bounds = Bounds(rows_max=10**6, bytes_max=BYTES_MAX)
        with closing(exporter(log, place, bounds)) as export:
            assert export.prune(history.now_ms - 400_000, plan)
    return Path(place.root)


@pytest.fixture
def rest(pruned: Path, place: ExportPlace) -> Manifest:
    """What stays of that first part, in a copy of the archive."""
    shutil.copytree(pruned, place.root)
    return catalog_of(place).statements[0].manifest


def test_files_of_what_stays_are_bounded_in_bytes(place: ExportPlace, rest: Manifest) -> None:
    assert rest.is_pruned
    assert len(rest.files) > 3
    assert max(file.state_bytes for file in rest.files) < 4 * BYTES_MAX
    assert findings(place) == []


def test_what_stays_is_read_a_file_at_a_time_in_the_order_of_the_log(
    place: ExportPlace, rest: Manifest
) -> None:
    read = list(manifest_tables(place, rest))
    assert [is_last for _, is_last in read] == [False] * (len(rest.files) - 1) + [True]
    most = max(file.rows for file in rest.files)
    assert max(table.num_rows for table, _ in read) <= most < rest.rows / 2
    rows = [row for table, _ in read for row in log_rows(table)]
    assert rows == exported_log(place)[: rest.rows]


def test_rows_of_days_that_interleave_are_read_in_the_order_of_the_log(
    place: ExportPlace, rest: Manifest
) -> None:
    """As around midnight, where hosts have different clocks."""
    whole = _whole(place, rest)
    files = _written(place, whole, [[0, 1, 4, 8], [2, 6], [3, 5, 7], range(9, whole.num_rows)])
    read = list(manifest_tables(place, replace(rest, files=files[::-1])))
    assert [is_last for _, is_last in read] == [False] * 3 + [True]
    assert [row for table, _ in read for row in log_rows(table)] == exported_log(place)[: rest.rows]


def test_what_stays_is_checked_with_some_files_in_memory_however_many_it_has(
    place: ExportPlace, rest: Manifest
) -> None:
    whole = _whole(place, rest)
    # Two days whose rows alternate, in files of some rows each.
    days = [range(start + day, min(start + 16, whole.num_rows), 2)
            for start in range(0, whole.num_rows, 16) for day in (0, 1)]  # fmt: skip
    files = _written(place, whole, [day for day in days if day])
    assert len(files) > 20
    held_bytes: list[int] = []

    class Watched(ExportPlace):
        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            held_bytes.append(pa.total_allocated_bytes())
            return super().read(path, bytes_max)

    watched = Watched(place.filesystem, place.root)
    checked = _checked(watched, replace(rest, files=files))
    assert (checked.findings, checked.rows) == ([], rest.rows)
    assert len(held_bytes) == len(files)
    assert max(held_bytes) - held_bytes[0] < whole.nbytes / 8


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_changed_row_of_days_that_interleave_is_named_to_its_file(
    place: ExportPlace, rest: Manifest, is_lost: bool
) -> None:
    """Also if a later file is lost."""
    whole = _whole(place, rest)
    again = next(n for n, version in enumerate(whole["version"].to_pylist()) if version > 1)
    forged = with_value(whole, again, "version", 0)
    days = [range(day, whole.num_rows - 5, 2) for day in (0, 1)]
    files = _written(place, forged, [*days, range(whole.num_rows - 5, whole.num_rows)])
    if is_lost:
        place.remove(files[-1].path)
    found = _checked(place, replace(rest, files=files)).findings
    position = whole["position"][again].as_py()
    assert (Fault.VERSION_BREAK, files[again % 2].path, again // 2, position) in {
        (one.fault, one.path, one.row, one.last_position) for one in found
    }
    assert (files[-1].path in {one.path for one in found}) == is_lost


def test_streams_without_new_rows_are_not_planned_again_and_lost_what_they_could(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    first = played(sqlite_log)
    read_ids(first)
    leave(sqlite_log, place)
    before = exported_log(place)
    assert prune(sqlite_log, place) > 0
    pruned_up_to = catalog_of(place).pruned_up_to
    second = History(
        sqlite_log,
        crowd=Crowd.of(2, 20),
        start_ms=first.now_ms,
        after=sqlite_log.position(),
    )
    second.play(random_script(2, 100))
    read_ids(second)
    first.play(random_script(3, 8))  # some of what was needed is not any more
    leave(sqlite_log, place)
    new = [row for row in exported_log(place) if row.position > pruned_up_to]
    reads: list[int] = []

    def counted(read: ReadRows, up_to: int) -> Positions:
        def again() -> Iterable[Sequence[LogRow]]:
            reads.append(up_to)
            return read()

        window_ms = LIMITS.timestamp_window_ms
        return not_needed(again, up_to, window_ms=window_ms, streams_at_once=1)

    with closing(exporter(sqlite_log, place, Bounds())) as export:
        assert export.prune(LATER_MS, counted) > 0
    whole = [*before, *new]
    grown, streams = (
        {row.stream for row in rows if row.topic != SEAL_TOPIC} for rows in (new, whole)
    )
    assert len(grown) < len(streams)
    assert len(reads) == 2 + 2 * len(grown)
    at_once = plan(lambda: [whole], 0)
    left = [row.position for row in whole if row.position not in at_once]
    assert [row.position for row in exported_log(place)] == left


def test_a_pruning_takes_memory_for_the_rows_that_leave_and_not_for_the_age_of_the_log() -> None:
    leaving = [1, 65_535, 65_536, 10**12, 10**12 + 1, 2**53 + 1]
    positions = Positions()
    for position in [*leaving, *leaving]:
        positions.add(position)
    assert len(positions) == len(leaving)
    around = {position + by for position in leaving for by in range(-9, 10)}
    assert sorted(position for position in around if position in positions) == leaving


def test_a_day_of_which_no_row_leaves_keeps_its_file(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    history, before, stayed = played(sqlite_log, 100), dict[str, DataFile](), set[bool]()
    for number in range(6):
        read_ids(history)
        leave(sqlite_log, place)
        assert prune(sqlite_log, place)
        files = catalog_of(place).statements[0].manifest.files
        after = {file.day: file for file in files}
        assert len(files) == len(after) == 1 + number
        for day, file in before.items():
            is_same = file.rows == after[day].rows
            assert (file == after[day]) == is_same
            stayed.add(is_same)
        crowd, later_ms = Crowd.of(number, 20), history.now_ms + DAY_MS
        history = History(sqlite_log, crowd=crowd, start_ms=later_ms, after=sqlite_log.position())
        history.play(random_script(number, 60))
        before = after
    assert stayed == {False, True}
    assert findings(place) == []


def test_a_file_of_which_every_row_leaves_is_not_kept_for_another_that_is_as_long(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place, Bounds(rows_max=5))
    catalog, rows = catalog_of(place), exported_log(place)
    first, second = (statement.manifest for statement in catalog.statements)
    assert first.rows == second.rows
    leaving = Positions()
    for row in rows[: first.rows]:
        leaving.add(row.position)
    found = pruning.prune(
        compaction.Rewriting(place, sqlite_log, SIGNER, catalog.next_version),
        catalog.statements,
        lambda _rows, _pruned: leaving,
        until_ms=LATER_MS,
        clock=system_clock,
        bounds=Bounds(),
    )
    assert found
    assert [row for page in manifest_rows(place, found[0].manifest) for row in page] == rows[5:]


def test_a_first_pruning_is_done_in_parts_between_which_the_export_goes_on(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    """Each part reads a file or two; no step removes files of the pruning or is undone by it."""
    history = played(sqlite_log, 150)
    read_ids(history)
    export_all(sqlite_log, place, Bounds(rows_max=20))
    leave(sqlite_log, place)
    reads, parts, steps, now_ms = [0], list[int](), list[int](), [system_clock()]

    class Watched(ExportPlace):
        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            reads[0] += is_data(path)
            return super().read(path, bytes_max)

    def go_on() -> None:
        parts.append(reads[0])
        history.play(random_script(len(parts), 1))
        while step := export.step():
            steps.append(step.last)
        reads[0] = 0

    def planned(read: ReadRows, up_to: int) -> Positions:
        found = plan(read, up_to)
        now_ms[0] += 1_000_000  # now the next step would remove what the merging replaced
        return found

    watched = Watched(place.filesystem, place.root)
    times, bounds = ExportTimes(replaced_kept_s=900), Bounds(rows_max=60, bytes_max=BYTES_MAX)
    with closing(exporter(sqlite_log, watched, bounds, times, lambda: now_ms[0])) as export:
        end = export.catalog.last
        assert export.compact(files_min=2) > 0
        reads[0] = 0
        assert export.prune(history.now_ms - 200_000, planned, go_on) > 0
        pruned = export.catalog
        export.sweep()
    assert len(parts) > 10
    assert max(parts) <= 2
    assert pruned.pruned_up_to < end < steps[-1] == pruned.last == sqlite_log.position()
    assert findings(place) == []


def test_a_pruning_says_when_it_was_signed_however_long_it_took(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    read_ids(played(sqlite_log, 150))
    leave(sqlite_log, place)
    now_ms = began_ms = LATER_MS

    def pass_time() -> None:
        nonlocal now_ms
        now_ms += 1_000

    with closing(exporter(sqlite_log, place, clock=lambda: now_ms)) as export:
        assert export.prune(LATER_MS, plan, pass_time) > 0
        pruned = export.catalog.pruned
    assert pruned is not None
    assert began_ms < now_ms == pruned.at_ms


def test_what_is_recorded_during_a_first_pruning_is_exported_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Export(to=str(tmp_path / "export")).model_copy(update={"lag_s_max": 1e-9})
    archive = Archive(keep_s=1, pause_s=0, rows_age_s_min=0)
    archive = archive.model_copy(update={"prune_every_s": 1e-9})
    settings = settings_of(tmp_path / "data", export=export, archive=archive)
    done, stopping = list[str](), threading.Event()

    def planned(read: ReadRows, up_to: int) -> Positions:
        history.play(random_script(5, 20))
        done.append("planning")
        found = plan(read, up_to)
        done.append("planned")
        return found

    def fail(error: Exception) -> None:
        raise AssertionError from error

    class Stop(ExportReporter):
        def on_rewritten(self, purpose: Rewriting) -> None:
            super().on_rewritten(purpose)
            if purpose == "pruning":
                stopping.set()

    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        history = played(log, 100)
        archive_once(settings, is_checked=True, prunes=False, clock=lambda: LATER_MS)
        monkeypatch.setattr(exporting, "not_needed", planned)
        reporter = Stop(None, lambda: LATER_MS)
        ContinuousExport(
            settings, reporter, on_step=lambda _: done.append("step"), on_fault=fail
        ).run(stopping)
        assert reporter.figures()["position"] == log.position()
    assert done == ["planning", "step", "planned"]
    assert catalog_of(open_place(settings.archive_place), None).pruned_up_to


class Away(FaultyLog):
    """A log of which one reading of this kind fails, once ``reads_left`` of them are done."""

    def __init__(self, log: EventLog, kind: str) -> None:
        super().__init__(log)
        self.kind, self.reads_left = kind, -1

    def fail_at(self, kind: str) -> None:
        if kind == self.kind:
            self.reads_left -= 1
            if self.reads_left == -1:
                raise LogUnavailable("planned")

    def close(self) -> None:
        """The test goes on with the log."""

    def position(self) -> int:
        self.fail_at("position")
        return super().position()

    def read_rows(self, *, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        self.fail_at("read_rows")
        return super().read_rows(after=after, rows_max=rows_max, bytes_max=bytes_max)


@pytest.mark.parametrize(
    ("kind", "reads_left", "plannings"),
    [("position", 0, 1), ("read_rows", 0, 1), ("lock", 0, 2), ("lock", 1, 2)],
)
def test_a_log_that_is_away_for_a_moment_ends_no_pruning_unless_the_lock_is_lost_or_a_step_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reads_left: int, plannings: int
) -> None:
    at_once = {"lag_s_max": 1e-9, "retry_s_max": 1e-9}
    export = Export(to=str(tmp_path / "export")).model_copy(update=at_once)
    archive = Archive(keep_s=1, pause_s=0, rows_age_s_min=0)
    archive = archive.model_copy(update={"prune_every_s": 1e-9})
    settings = settings_of(tmp_path / "data", export=export, archive=archive)
    done, stopping, faults = list[str](), threading.Event(), list[str]()

    def planned(read: ReadRows, up_to: int) -> Positions:
        done.append("planning")
        history.play(random_script(5, 20))
        away.reads_left = -1 if faults else reads_left
        return plan(read, up_to)

    class Stop(ExportReporter):
        def on_rewritten(self, purpose: Rewriting) -> None:
            super().on_rewritten(purpose)
            if purpose == "pruning":
                stopping.set()

    @contextmanager
    def locked(*_: object) -> Iterator[Callable[[], None]]:
        def check() -> None:
            try:
                away.fail_at("lock")
            except LogUnavailable as error:
                raise LockLost(str(error)) from error

        yield check

    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        history, away = played(log, 100), Away(log, kind)
        archive_once(settings, is_checked=True, prunes=False, clock=lambda: LATER_MS)
        monkeypatch.setattr(exporting, "not_needed", planned)
        monkeypatch.setattr(exporting, "_RETRY_S_MIN", 0)
        monkeypatch.setattr(exporting, "opened_to_export", lambda _: away)
        monkeypatch.setattr(exporting, "advisory_lock", locked)
        reporter = Stop(None, lambda: LATER_MS)
        ContinuousExport(
            settings, reporter,
            on_step=lambda _: done.append("step"), on_fault=lambda error: faults.append(str(error)),
        ).run(stopping)  # fmt: skip
        assert reporter.figures()["position"] == log.position()
    assert faults == ["planned"]
    assert (done.count("planning"), reporter.fault) == (plannings, "")
    assert "step" in done[done.index("planning") :]
    place = open_place(str(settings.export.to))
    assert catalog_of(place, None).pruned_up_to
    assert findings(place)[1:] == []


def _whole(place: ExportPlace, rest: Manifest) -> pa.Table:
    return pa.concat_tables([read_table(place, file) for file in rest.files])


def _written(place: ExportPlace, whole: pa.Table, days: Iterable[Sequence[int]]) -> list[DataFile]:
    """Write these rows, by their numbers, as files of a day each."""
    return [write_data(place, "2023-11-14", whole.take(pa.array(day)), 99) for day in days]


def _checked(place: ExportPlace, rest: Manifest) -> CheckedPart:
    return check_part(place, ManifestPart(rest, heads_of(rest.path, rest), {}), {})
