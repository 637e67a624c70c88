"""Old files of the continuous export that cannot be rewritten: a fault that stops nothing else."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.host.clock import Clock
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.write.exporter import Exported, Exporter
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server import exporting
from http_edge.server.exporting import ContinuousExport
from http_edge.server.status_files import ExportReporter, export_figures
from http_edge.settings.settings import Archive, Export, Settings
from tests.export.leaving import played, read_ids
from tests.export.samples import Growing, catalog_of, export_all, exporter, whole_log
from tests.log.raw_sql import run_sql

NOW_MS = 1_700_000_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    export = Export(
        to=str(tmp_path / "export"), lag_s_max=0.01, retry_s_max=0.1, compact_files_min=4
    )
    load_or_create(tmp_path / "mediator-keys.json")
    return Settings(data_dir=tmp_path, did="did:web:mediator.test", export=export)


@pytest.fixture
def log(settings: Settings) -> Iterator[EventLog]:
    with closing(open_log(settings.log_dsn)) as opened:
        yield opened


class StopOnceCaughtUp(ExportReporter):
    """Stops the export with the first round that finds all exported and all rewriting done."""

    def __init__(self, data_dir: Path, clock: Clock, stopping: threading.Event) -> None:
        super().__init__(data_dir, clock)
        self._stopping = stopping

    def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
        super().on_caught_up(position, complete_until_ms)
        if not self.figures()["fault"]:
            self._stopping.set()


REWRITINGS = ("compact", "take_out_erased", "prune")
DAMAGED = ExportDamaged("events/old.parquet", Damage.CHANGED, "not the file that was signed")


@pytest.fixture
def rewriting(settings: Settings) -> Settings:
    """Settings by which files are rewritten after each step, and for the first time in an hour."""
    export = settings.export.model_copy(update={"compact_files_min": 1})
    return settings.model_copy(update={"export": export, "archive": Archive(keep_s=1)})


class Hours:
    """Seconds of a clock for intervals, of which each step of an export takes some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: int) -> None:
        self.now_s = 0
        self.step_s = step_s
        self.steps_failing = 0
        step = Exporter.step

        def slow(exporter: Exporter) -> Exported | None:
            self.now_s += self.step_s
            if self.steps_failing:
                self.steps_failing -= 1
                raise ExportUnavailable("events", "the store is away")
            return step(exporter)

        monkeypatch.setattr(Exporter, "step", slow)
        monkeypatch.setattr(exporting, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.mark.parametrize("name", REWRITINGS)
def test_a_file_that_cannot_be_rewritten_is_a_fault_until_it_can(
    rewriting: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Growing(log).grow()
    hours, stopping, seen = Hours(monkeypatch, 3_600), threading.Event(), list[Any]()
    run = getattr(Exporter, name)

    def now_ms() -> int:
        return NOW_MS + 1_000 * hours.now_s

    def shown() -> Any:
        status = export_figures(rewriting.data_dir, None, now_ms())
        return status["fault"], status["fault_age_s"]

    def damaged_thrice(*arguments: Any, **named: Any) -> Any:
        seen.append(shown())
        hours.step_s = 400
        if len(seen) <= 3:
            raise DAMAGED
        return run(*arguments, **named)

    monkeypatch.setattr(Exporter, name, damaged_thrice)
    reporter = StopOnceCaughtUp(rewriting.data_dir, now_ms, stopping)
    ContinuousExport(rewriting, reporter).run(stopping)
    fault = str(DAMAGED)
    assert seen == [("", None), (fault, 400), (fault, 800), (fault, 1_200)]
    assert shown() == ("", None)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("compact", DAMAGED),
        ("take_out_erased", CorruptRow("row 3", "its state does not decode")),
        ("prune", ExportUnavailable("events/old.parquet", "Input/output error")),
    ],
)
def test_steps_go_on_while_a_file_cannot_be_rewritten_which_is_tried_less_and_less_often(
    rewriting: Settings,
    log: EventLog,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Exception,
) -> None:
    growing, hours, stopping = Growing(log), Hours(monkeypatch, 900), threading.Event()
    tried_s, faults, shown = list[int](), list[Exception](), list[tuple[Any, ...]]()
    growing.grow()

    def failing(*_: object, **__: object) -> None:
        tried_s.append(hours.now_s)
        raise fault

    def go_on(step: Exported) -> None:
        if step.last == 5 * 30:
            stopping.set()
        else:
            growing.grow()

    class Shown(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            super().on_caught_up(position, complete_until_ms)
            status = self.figures()
            shown.append((position, status["fault"], status["fault_age_s"]))

    monkeypatch.setattr(Exporter, name, failing)
    reporter = Shown(None, lambda: NOW_MS + 1_000 * hours.now_s)
    ContinuousExport(rewriting, reporter, on_step=go_on, on_fault=faults.append).run(stopping)
    first = tried_s[0] // 900
    assert shown == [
        *[(5 * step, "", None) for step in range(1, first)],
        *[(5 * step, str(fault), 900 * (step - first)) for step in range(first, 31)],
    ]
    waited_s = [later - earlier for earlier, later in itertools.pairwise(tried_s)]
    assert waited_s[:14] == [*[900] * 10, 1_800, 2_700, 3_600, 3_600]
    assert faults == [fault]


@pytest.mark.parametrize("name", REWRITINGS)
def test_what_the_last_process_could_not_rewrite_is_a_fault_of_its_age_beside_further_steps(
    rewriting: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Growing(log).grow()
    ExportReporter(rewriting.data_dir, lambda: NOW_MS).on_fault(DAMAGED)
    stopping = threading.Event()

    def failing(*_: object, **__: object) -> None:
        raise DAMAGED

    monkeypatch.setattr(Exporter, name, failing)
    reporter = ExportReporter(rewriting.data_dir, lambda: NOW_MS + 400_000)
    ContinuousExport(rewriting, reporter, on_step=lambda _: stopping.set()).run(stopping)
    status = export_figures(rewriting.data_dir, None, NOW_MS + 400_000)
    assert (status["position"], status["fault"], status["fault_age_s"]) == (5, str(DAMAGED), 400)


def test_files_are_merged_beside_further_steps_once_a_damaged_one_is_back(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, hours, stopping = Growing(log), Hours(monkeypatch, 10), threading.Event()
    growing.grow()
    events, shown = settings.data_dir / "export" / "events", list[tuple[int, bool]]()
    kept = dict[Path, bytes]()

    def go_on(step: Exported) -> None:
        number = step.last // 5
        if number == 1:
            kept.update((path, path.read_bytes()) for path in events.rglob("*.parquet"))
            for path, content in kept.items():
                path.write_bytes(content[::-1])
        elif number == 8:
            for path, content in kept.items():
                path.write_bytes(content)
        if number == 12:
            stopping.set()
        else:
            growing.grow()

    class Shown(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            super().on_caught_up(position, complete_until_ms)
            shown.append((position // 5, bool(self.figures()["fault"])))

    reporter = Shown(None, lambda: NOW_MS + 1_000 * hours.now_s)
    ContinuousExport(settings, reporter, on_step=go_on).run(stopping)
    assert shown == [(number, 4 <= number < 8) for number in range(1, 13)]
    catalog = catalog_of(open_place(str(settings.export.to)), None)
    assert catalog.rows == len(whole_log(log))
    assert len(catalog.statements) < 12


def test_rewriting_that_fails_keeps_no_other_from_being_done(
    rewriting: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    Growing(log).grow()
    Hours(monkeypatch, 3_600)
    tried, faults, stopping = list[str](), list[Exception](), threading.Event()

    def failing(name: str) -> Any:
        tried.append(name)
        raise DAMAGED

    def stop_at(fault: Exception) -> None:
        faults.append(fault)
        stopping.set()

    for name in REWRITINGS:
        monkeypatch.setattr(Exporter, name, lambda *_, name=name, **__: failing(name))
    reporter = StopOnceCaughtUp(rewriting.data_dir, lambda: NOW_MS, stopping)
    ContinuousExport(rewriting, reporter, on_fault=stop_at).run(stopping)
    assert (tried, faults) == ([*REWRITINGS], [DAMAGED])


@pytest.mark.parametrize("name", ["take_out_erased", "prune"])
def test_faults_that_pass_do_not_put_off_what_is_due(
    rewriting: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Growing(log).grow()
    hours, stopping, done = Hours(monkeypatch, 1_500), threading.Event(), list[int]()
    hours.steps_failing = 2
    run = getattr(Exporter, name)

    def noted(*arguments: Any) -> Any:
        done.append(hours.now_s)
        return run(*arguments)

    monkeypatch.setattr(Exporter, name, noted)
    reporter = StopOnceCaughtUp(rewriting.data_dir, lambda: NOW_MS, stopping)
    ContinuousExport(rewriting, reporter).run(stopping)
    assert done == [4_500]


class Killed(BaseException):
    """Instead of the end of the process."""


@pytest.mark.parametrize("name", REWRITINGS)
def test_the_fault_of_a_process_that_died_rewriting_lasts_until_another_has_done_it(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = settings.model_copy(update={"archive": Archive(keep_s=1)})
    Growing(log).grow()
    ExportReporter(settings.data_dir, lambda: NOW_MS).on_fault(ChildProcessError("killed"))

    def export(age_s: int) -> Any:
        stopping = threading.Event()
        reporter = StopOnceCaughtUp(settings.data_dir, lambda: NOW_MS + 1_000 * age_s, stopping)
        ContinuousExport(settings, reporter).run(stopping)

    def die(*_: object, **__: object) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Exporter, name, die)
        for age_s in (400, 800):
            with pytest.raises(Killed):
                export(age_s)
            status = export_figures(settings.data_dir, None, NOW_MS + 1_000 * age_s)
            assert (status["fault"], status["fault_age_s"]) == ("killed", age_s)
    export(1_200)
    assert export_figures(settings.data_dir, None, NOW_MS)["fault"] == ""


@pytest.mark.parametrize("name", REWRITINGS)
@pytest.mark.parametrize(("step_s", "exported"), [(1, 25), (300, 10)])
def test_processes_that_die_rewriting_export_what_waits_first_but_not_for_long(
    rewriting: Settings,
    log: EventLog,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    step_s: int,
    exported: int,
) -> None:
    # Taking out what was erased goes on making steps, which this is not about.
    few = {"rows_per_file_max": 5, "erased_every_s": int(name == "take_out_erased")}
    small = rewriting.export.model_copy(update=few)
    settings = rewriting.model_copy(update={"export": small})
    Growing(log).grow(5)
    ExportReporter(settings.data_dir, lambda: NOW_MS).on_fault(ChildProcessError("killed"))
    Hours(monkeypatch, step_s)

    def die(*_: object, **__: object) -> Any:
        raise Killed

    monkeypatch.setattr(Exporter, name, die)
    reporter = ExportReporter(settings.data_dir, lambda: NOW_MS + 400_000)
    with pytest.raises(Killed):
        ContinuousExport(settings, reporter).run(threading.Event())
    assert catalog_of(open_place(str(settings.export.to)), None).last == exported
    status = export_figures(settings.data_dir, None, NOW_MS + 400_000)
    assert (status["fault"], status["fault_age_s"]) == ("killed", 400)


def test_erased_contents_leave_the_export_of_a_log_that_cannot_be_written(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    """Such as a backup that is read-only, a log of which a role may only read, or a full disk."""
    history = played(log, 200)
    export_all(log, place)
    read_ids(history)
    dsn = f"sqlite:{settings.data_dir / 'log.db'}"
    full = "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    run_sql(dsn, f"CREATE TRIGGER full BEFORE INSERT ON settings {full}")
    with closing(exporter(log, place)) as export:
        assert export.take_out_erased().contents
