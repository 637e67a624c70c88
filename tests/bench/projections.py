"""The benchmark of the export and of what Spark makes of it, on a log of the tests' histories.

In one run on one machine: serving beside an export, export, verifying, rebuilding with one and two
cores, looking up, the report, and all that once more for what is new. Times are those of whole
programs, the start of Python and Java included. That rebuilt tables are right is what
``tests/projections`` compares with the mediator's own core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import msgspec
import pyarrow.compute as pc

from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.files import open_place
from eventstore.parquet.rows import read_table
from eventstore.stores.open_log import open_log
from http_edge.cli.output import ProgressBar
from http_edge.crypto.mediator_keys import load_or_create
from tests.bench.agents import decentrl_agents
from tests.bench.load import Run, run_apart
from tests.bench.processes import ProcessTree
from tests.bench.report import Measurement, Report, of_load, report, timed, with_figures
from tests.bench.server import MeasuredServer
from tests.cluster.server import MEDIATOR_DID, own_environment
from tests.histories import NOTHING, Written, write_history

_PAYLOAD_BYTES: Final = 200
_WARM_UP: Final = Run(connections=16, count=500, seconds_max=5.0)
_LAG_S_MAX: Final = "1"
"""Shorter than the default: the export has work all the time."""
_SAMPLE_S: Final = 0.5
"""A look at every process of the machine takes a few milliseconds of one of its cores."""
_MIB: Final = 1024 * 1024
_LAST_LINES: Final = 5
_LOOKED_UP: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where in the log, as shares of its files."""
_POSTE: Final = (sys.executable, "-c", "from http_edge.cli.main import main; main()")


STEPS: Final = (
    *("write", "export", "verify", "growth", "rebuild", "look-up", "report"),
    *("write-new", "export-new", "verify-new", "continue"),
)
"""What is done with a log, in this order; each leaves in the folder what later ones need."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        events: Events that are rebuilt, seals included.
        new_events: Events that come later, by which export, check and rebuild are continued.
        serving: The load on the mediator with and without an export beside it.
        rounds: How often that runs; 0 leaves it out.
        steps: What is done with the log, of ``STEPS``.
        seed: Of the history.
    """

    events: int
    new_events: int
    serving: Run
    rounds: int
    steps: Sequence[str] = STEPS
    seed: int = 0


def plan(
    events: int, new_events: int | None = None, *, serving: bool, steps: Sequence[str] = ()
) -> Plan:
    """The plan for a log of so many events; without ``steps`` all are done."""
    load = Run(connections=64, count=100_000, seconds_max=12.0)
    return Plan(
        events=events,
        new_events=events // 10 if new_events is None else new_events,
        serving=load,
        rounds=3 if serving and not steps else 0,
        steps=steps or STEPS,
    )


async def run(wanted: Plan, folder: Path, bar: ProgressBar) -> Report:
    """Measure everything in a folder, which is empty or has what earlier steps left there.

    Raises:
        AssertionError, RuntimeError, ClientError: a part of it failed.
    """
    lines = [line async for line in _served(wanted, bar)] if wanted.rounds else []
    made = _History(folder, wanted, bar)
    lines += [line for step in STEPS if step in wanted.steps for line in made.measured(step)]
    return report(wanted, lines, payload_bytes=_PAYLOAD_BYTES)


async def _served(wanted: Plan, bar: ProgressBar) -> AsyncIterator[Measurement]:
    """Messages accepted without and with the continuous export, in turns; the medians of each."""
    lines: dict[bool, list[Measurement]] = {False: [], True: []}
    for _ in range(wanted.rounds):
        for exporting, found in lines.items():
            found.append(await _stored(wanted.serving, bar, exporting=exporting))
    alone, beside = (
        next(line for line in found if line.per_s == median_low(one.per_s for one in found))
        for found in lines.values()
    )
    yield alone
    yield with_figures(beside, of_without_export=beside.per_s / alone.per_s, runs=wanted.rounds)


async def _stored(run: Run, bar: ProgressBar, *, exporting: bool) -> Measurement:
    name = "stored while exporting" if exporting else "stored"
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "export")
        settings = {"export.to": target, "export.lag_s_max": _LAG_S_MAX} if exporting else {}
        with MeasuredServer(Path(folder) / "data", settings) as server:
            async with decentrl_agents(server) as agents:
                warm_up = list(agents.messages(_WARM_UP.count))
                await asyncio.to_thread(run_apart, agents, warm_up, _WARM_UP)
                bodies = list(agents.messages(run.count))
                with server.spending() as costs:
                    result = await asyncio.to_thread(
                        run_apart, agents, bodies, run, progress=bar(name, run.count)
                    )
        line = of_load(name, result, costs)
        if exporting:
            place = open_place(target)
            exported = catalog_of(place, None).rows
            line = with_figures(line, events_exported=exported)
    return line


class _History:
    """A log in a folder, its export, and the tables of it."""

    def __init__(self, folder: Path, wanted: Plan, bar: ProgressBar) -> None:
        self._folder = folder
        self._wanted = wanted
        self._bar = bar
        self._log = f"sqlite:{folder / 'log.db'}"
        self._export = str(folder / "export")
        self._tables = str(folder / "tables")

    def measured(self, step: str) -> Iterable[Measurement]:
        """Do one of the steps."""
        events, new = self._wanted.events, self._wanted.new_events
        work: dict[str, Callable[[], Iterable[Measurement]]] = {
            "write": lambda: [self._write(events)],
            "export": lambda: [self._exported(step)],
            "verify": lambda: [self._verified(step)],
            "growth": self._growth,
            "rebuild": lambda: [self._rebuilt(events, 2)],
            "look-up": self._looked_up,
            "report": lambda: [self._reported()],
            "write-new": lambda: [self._write(events + new)],
            "export-new": lambda: [self._exported(step)],
            "verify-new": lambda: [self._verified(step)],
            "continue": lambda: [self._continued(new)],
        }
        return work[step]()

    def _write(self, events: int) -> Measurement:
        """Have a real host write the log, from where it is."""
        load_or_create(self._folder / "mediator-keys.json")
        state, after = self._folder / "history.json", NOTHING
        if state.exists():
            after = msgspec.json.decode(state.read_bytes(), type=Written)
        name, started_s = f"write a history of {events:_} events", time.monotonic()
        # In memory, if the machine has room for files there: each commit is synced to the disk.
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(dir=place) as folder:
            written = Path(folder) / "log.db"
            if after.events:
                shutil.move(self._folder / "log.db", written)
            with closing(open_log(f"sqlite:{written}")) as log:
                made = write_history(
                    log,
                    events,
                    payload_bytes=_PAYLOAD_BYTES,
                    seed=self._wanted.seed,
                    after=after,
                    progress=self._bar(name, events),
                )
            shutil.move(written, self._folder / "log.db")
        state.write_bytes(msgspec.json.encode(made))
        return timed(name, made.events - after.events, time.monotonic() - started_s)

    def _exported(self, name: str) -> Measurement:
        """Export what is new, nothing else running."""
        ran = self._run(*_POSTE, "export", *self._settings(), "--to", self._export, "--json")
        said = msgspec.json.decode(ran.output)
        figures = {"bytes": said["bytes_written"], "with_the_start_s": ran.seconds}
        return self._line(name, said["events_written"], ran, said["seconds"], **figures)

    def _looked_up(self) -> Iterator[Measurement]:
        """Look messages and identities up all over the log, whole programs; the median of each."""
        place = open_place(self._export)
        files = catalog_of(place, None).files
        columns = ("message_id", "identity", "sender_did")
        found = []
        for share in _LOOKED_UP:
            rows = read_table(place, files[int(len(files) * share)], columns)
            is_message = pc.and_(
                pc.is_valid(rows["message_id"]), pc.greater(rows["sender_did"], "")
            )
            found += rows.filter(is_message).slice(0, 1).to_pylist()
        for what, column in (("message", "message_id"), ("identity", "identity")):
            places = ("--from", self._export, "--json")
            each = [self._run(*_POSTE, "audit", what, one[column], *places) for one in found]
            each.sort(key=lambda ran: ran.seconds)
            ran = each[len(each) // 2]
            yield self._line(f"audit one {what}", 1, ran, ran.seconds, slowest_s=each[-1].seconds)

    def _verified(self, name: str) -> Measurement:
        """Verify the export: what was not verified before."""
        ran = self._run(*_POSTE, "verify", "--from", self._export, *self._settings(), "--json")
        rows = msgspec.json.decode(ran.output)["summary"]["rows"]
        return self._line(name, rows, ran, ran.seconds)

    def _growth(self) -> Iterator[Measurement]:
        """Rebuild nothing, a tenth and all of it, with one core and two."""
        events = self._wanted.events
        nothing, small = self._rebuilt(0, 2), self._rebuilt(events // 10, 2)
        one_core, two_cores = self._rebuilt(events, 1), self._rebuilt(events, 2)
        yield from (nothing, small, one_core)
        yield with_figures(
            two_cores,
            time_per_event_to_that_of_a_tenth=small.per_s / two_cores.per_s,
            the_same_without_the_start=(two_cores.seconds - nothing.seconds)
            / max(0.001, small.seconds - nothing.seconds)
            / 10,
            times_as_fast_as_one_core=one_core.seconds / two_cores.seconds,
        )

    def _rebuilt(self, events: int, cores: int) -> Measurement:
        """Rebuild all tables as of a position."""
        what = f"{events:_} events" if events else "nothing (the start)"
        ran = self._rebuild(cores, "--as-of", str(events))
        return self._line(f"rebuild {what}, cores: {cores}", events, ran, ran.seconds)

    def _reported(self) -> Measurement:
        """Write the report of all that is exported."""
        ran = self._run(
            *(sys.executable, "-m", "projections", "report", "--master", "local[2]"),
            *("--from", self._export, "--to", str(self._folder / "page")),
        )
        return self._line("report, cores: 2", self._wanted.events, ran, ran.seconds)

    def _continued(self, new: int) -> Measurement:
        """Continue the rebuild by what was exported since."""
        ran = self._rebuild(2, "--incremental")
        return self._line(f"continue by {new:_} events, cores: 2", new, ran, ran.seconds)

    def _settings(self) -> list[str]:
        settings = {"data_dir": self._folder, "log": self._log, "did": MEDIATOR_DID}
        return [f"--set={name}={value}" for name, value in settings.items()]

    def _rebuild(self, cores: int, *more: str) -> Ran:
        places = ("--from", self._export, "--to", self._tables, "--master", f"local[{cores}]")
        return self._run(sys.executable, "-m", "projections", "rebuild", *places, *more)

    def _run(self, *command: str) -> Ran:
        return run_program(command, self._folder)

    @staticmethod
    def _line(name: str, count: int, ran: Ran, seconds: float, **more: float) -> Measurement:
        peak_mib = ran.memory_peak_bytes / _MIB
        return timed(name, count, seconds, memory_peak_mib=peak_mib, cpu_s=ran.cpu_s, **more)


class Ran(NamedTuple):
    """A program that ran to its end.

    Attributes:
        seconds: From its start to its end.
        memory_peak_bytes: Most memory of all its processes together, with what they share counted
            for each, sampled twice a second.
        cpu_s: CPU seconds of all its processes.
        output: What it wrote to stdout.
    """

    seconds: float
    memory_peak_bytes: int
    cpu_s: float
    output: bytes


def run_program(command: Sequence[str], scratch: Path) -> Ran:
    """Run a program in a session of its own to its end; its temporary files go to ``scratch``.

    Raises:
        RuntimeError: it failed; its last words are the message.
    """
    environment = own_environment() | {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    started_s, peak_bytes, cpu_s = time.monotonic(), 0, 0.0
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command, stdout=output, stderr=words, env=environment, start_new_session=True
        )
        try:
            tree = ProcessTree(process.pid)
            while process.returncode is None:
                cpu_s, peak_bytes = max(cpu_s, tree.cpu_s()), max(peak_bytes, tree.resident_bytes())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SAMPLE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        seconds = time.monotonic() - started_s
        output.seek(0)
        words.seek(0)
        if process.returncode:
            last = words.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
            raise RuntimeError(f"{' '.join(command[1:4])}: {' | '.join(last)}")
        return Ran(seconds, peak_bytes, cpu_s, output.read())
