"""The benchmark of the export and of what Spark makes of it, on a made-up log.

In one run on one machine: export, serving beside it, rebuilding with one and two cores, the same
by folding the same files in plain Python with the mediator's own core, and continuing a rebuild.
Times are those of whole programs, the start of Python and Java included. The rebuilt tables are
compared with the folded ones row by row: a run whose tables differ has no result.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from http_edge.bench.closed_loop import Run
from http_edge.bench.folded_tables import differing
from http_edge.bench.folding import Job, command
from http_edge.bench.machine import machine
from http_edge.bench.made_log import write_log
from http_edge.bench.measurement import Measurement
from http_edge.bench.programs import Ran, run_programs
from http_edge.bench.progress import ProgressBar
from http_edge.bench.projections_serving import serving_with_and_without_export
from http_edge.bench.report import Report
from http_edge.mediator_keys import load_or_create

PAYLOAD_BYTES: Final = 200
EXPORTED_PAYLOAD_BYTES: Final = 1_024
_EXPORTED_EVENTS_MAX: Final = 500_000
_NEW_EVENTS_MAX: Final = 100_000
_MIB: Final = 1024 * 1024
_DISK_BYTES_PER_EVENT: Final = 1_300
_DISK_BYTES_PER_EXPORTED_EVENT: Final = 3_000
_S_PER_MILLION: Final = 95
_S_MIN: Final = 330
_DID: Final = "did:web:bench.test"
_POSTE: Final = (sys.executable, "-c", "from http_edge.cli.main import main; main()")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        events: Events that are rebuilt, seals included.
        new_events: Events that a rebuild is then continued by.
        exported_events: Events with payloads of 1 KiB whose export is timed.
        serving: The load on the mediator with and without an export beside it.
        rounds: How often that runs; 0 leaves it out.
        seed: Of the made-up log.
    """

    events: int
    new_events: int
    exported_events: int
    serving: Run
    rounds: int
    seed: int = 0

    @property
    def seconds(self) -> float:
        """About how long it takes on two cores, from what it took on others."""
        return _S_MIN + (self.events + self.exported_events) / 1e6 * _S_PER_MILLION

    @property
    def disk_bytes(self) -> int:
        """About how much disk it takes while it runs."""
        return (
            self.events * _DISK_BYTES_PER_EVENT
            + self.exported_events * _DISK_BYTES_PER_EXPORTED_EVENT
        )


def plan(events: int, *, serving: bool) -> Plan:
    """The plan for a log of this many events."""
    return Plan(
        events=events,
        new_events=min(_NEW_EVENTS_MAX, events // 10),
        exported_events=min(_EXPORTED_EVENTS_MAX, events),
        serving=Run(connections=64, count=100_000, seconds_max=12.0),
        rounds=3 if serving else 0,
    )


def run(
    wanted: Plan, folder: Path, bar: ProgressBar, told: Callable[[Measurement], None]
) -> Report:
    """Measure everything in an empty folder; ``told`` hears each line as soon as it is known.

    Raises:
        RuntimeError: a part of it failed, the tables differ, or the disk is too small.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < wanted.disk_bytes:
        raise RuntimeError(
            f"{wanted.disk_bytes // _MIB:,} MiB of disk are needed in {folder},"
            f" {free_bytes // _MIB:,} are free"
        )
    lines: list[Measurement] = []
    for line in _measure(wanted, folder, bar, told):
        lines.append(line)
        told(line)
    facts = {"payload_bytes": PAYLOAD_BYTES, "exported_payload_bytes": EXPORTED_PAYLOAD_BYTES}
    return Report(machine(), {**facts, **msgspec.to_builtins(wanted)}, lines)


def _measure(
    wanted: Plan, folder: Path, bar: ProgressBar, told: Callable[[Measurement], None]
) -> Iterator[Measurement]:
    if wanted.rounds:
        yield from serving_with_and_without_export(folder, wanted.serving, wanted.rounds, bar, told)
    large = _Made(folder / "1KiB", wanted.exported_events, EXPORTED_PAYLOAD_BYTES, wanted.seed)
    large.make(bar)
    yield large.exported(bar)
    shutil.rmtree(large.folder)
    made = _Made(folder / "log", wanted.events + wanted.new_events, PAYLOAD_BYTES, wanted.seed)
    yield made.make(bar)
    yield made.exported(bar)
    yield from _rebuilt(wanted, made, bar)


def _rebuilt(wanted: Plan, made: _Made, bar: ProgressBar) -> Iterator[Measurement]:
    events, tenth = wanted.events, wanted.events // 10
    nothing = made.rebuilt(0, 2, bar)
    yield nothing
    small = made.rebuilt(tenth, 2, bar)
    yield small
    one_core = made.rebuilt(events, 1, bar)
    yield one_core
    two_cores = made.rebuilt(events, 2, bar)
    start_s = nothing.seconds
    growth = {
        "time_per_event_to_that_of_a_tenth": small.per_s / two_cores.per_s,
        "the_same_without_the_start": (two_cores.seconds - start_s)
        / max(0.001, small.seconds - start_s)
        * tenth
        / events,
        "times_as_fast_as_one_core": one_core.seconds / two_cores.seconds,
    }
    yield _with(two_cores, growth)
    folded = made.folded(events, 1, bar)
    wrong = differing(made.tables, made.folder / "folded-0")
    if wrong:
        raise RuntimeError(f"rebuilt and folded tables differ: {', '.join(wrong)}")
    compared = {
        "tables_that_differ": 0,
        "times_as_long_as_spark_with_one_core": folded.seconds / one_core.seconds,
        "times_as_long_as_spark_with_two_cores": folded.seconds / two_cores.seconds,
    }
    yield _with(folded, compared)
    yield made.folded(events, 2, bar)
    yield made.continued(wanted.new_events, bar)


class _Made:
    """A made-up log in a folder, its export, and the tables of both ways."""

    def __init__(self, folder: Path, events: int, payload_bytes: int, seed: int) -> None:
        self.folder = folder
        self.tables = folder / "tables"
        self._events = events
        self._payload_bytes = payload_bytes
        self._seed = seed
        self._log = folder / "log.db"
        self._export = folder / "export"

    def make(self, bar: ProgressBar) -> Measurement:
        """Make the log up."""
        self.folder.mkdir()
        load_or_create(self.folder / "mediator-keys.json")
        started = time.monotonic()
        title = f"make up {self._events:_} events"
        made = write_log(
            self._log,
            self._events,
            payload_bytes=self._payload_bytes,
            seed=self._seed,
            progress=bar(title, self._events),
        )
        seconds = time.monotonic() - started
        figures: dict[str, int | float] = {"bytes": self._log.stat().st_size}
        return Measurement(
            name=title, count=made, seconds=seconds, per_s=made / seconds, figures=figures
        )

    def exported(self, bar: ProgressBar) -> Measurement:
        """Export it, nothing else running."""
        title = f"export {self._events:_} events of {self._payload_bytes} bytes"
        settings = {"data_dir": self.folder, "log": f"sqlite:{self._log}", "did": _DID}
        sets = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        asked = [*_POSTE, "export", *sets, "--to", str(self._export), "--json"]
        ran = self._run(title, bar, asked)
        said = msgspec.json.decode(ran.outputs[0])
        events, seconds = said["events_written"], said["seconds"]
        bytes_written = {"bytes": said["bytes_written"], "with_the_start_s": ran.seconds}
        return _line(title, events, seconds, ran, bytes_written)

    def rebuilt(self, events: int, cores: int, bar: ProgressBar) -> Measurement:
        """Rebuild all tables as of a position."""
        what = f"{events:_} events" if events else "nothing (the start)"
        title = f"rebuild {what}, cores: {cores}"
        ran = self._run(title, bar, self._rebuild(cores, "--as-of", str(events)))
        return _line(title, events, ran.seconds, ran, {})

    def continued(self, new_events: int, bar: ProgressBar) -> Measurement:
        """Continue the rebuild to the end of the log."""
        title = f"continue the rebuild by {new_events:_} events, cores: 2"
        ran = self._run(title, bar, self._rebuild(2, "--incremental"))
        return _line(title, new_events, ran.seconds, ran, {})

    def folded(self, events: int, processes: int, bar: ProgressBar) -> Measurement:
        """Fold the same files, each process its part of the streams."""
        title = f"fold {events:_} events, Python processes: {processes}"
        names = [str(self.folder / f"folded-{number}") for number in range(processes)]
        jobs = [
            Job(str(self._export), events, name, number, processes)
            for number, name in enumerate(names)
        ]
        ran = self._run(title, bar, *map(command, jobs))
        return _line(title, events, ran.seconds, ran, {})

    def _rebuild(self, cores: int, *more: str) -> list[str]:
        source, target = str(self._export), str(self.tables)
        asked = [sys.executable, "-m", "projections", "rebuild", "--from", source, "--to", target]
        return [*asked, "--master", f"local[{cores}]", *more]

    def _run(self, title: str, bar: ProgressBar, *commands: list[str]) -> Ran:
        shown = bar(title, 1)
        ran = run_programs(*commands, scratch=self.folder)
        shown(1)
        return ran


def _line(
    name: str, count: int, seconds: float, ran: Ran, more: dict[str, int | float]
) -> Measurement:
    figures = {"memory_peak_mib": ran.memory_peak_bytes / _MIB, "cpu_s": ran.cpu_s, **more}
    return Measurement(
        name=name, count=count, seconds=seconds, per_s=count / seconds, figures=figures
    )


def _with(line: Measurement, figures: dict[str, int | float]) -> Measurement:
    return msgspec.structs.replace(line, figures=line.figures | figures)
