"""What the continuous export costs a mediator that serves: the same load with it and without."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from eventstore.parquet.catalog import read_catalog
from eventstore.parquet.files import open_place
from http_edge.bench.closed_loop import Run
from http_edge.bench.measurement import Measurement
from http_edge.bench.messages import accepted_messages, prepare
from http_edge.bench.population import pairs
from http_edge.bench.progress import ProgressBar
from http_edge.bench.server import OwnServer
from http_edge.bench.subject import subject_of

_PAIRS: Final = 64
_WARM_UP: Final = Run(connections=16, count=500, seconds_max=5.0)
_LAG_S_MAX: Final = "1"
"""Shorter than the default: the export has work all the time."""


def serving_with_and_without_export(
    scratch: Path,
    run: Run,
    rounds: int,
    bar: ProgressBar,
    told: Callable[[Measurement], None],
) -> list[Measurement]:
    """Messages accepted without and with the export, in turns; the medians of each.

    Raises:
        RuntimeError: a mediator did not start, or refused what the benchmark needs.
    """
    without: list[Measurement] = []
    exporting: list[Measurement] = []
    for _ in range(rounds):
        without.append(_served("stored", scratch, run, bar, is_exporting=False))
        told(without[-1])
        exporting.append(_served("stored while exporting", scratch, run, bar, is_exporting=True))
        told(exporting[-1])
    alone, beside = _median(without), _median(exporting)
    ratio = {"of_without_export": beside.per_s / alone.per_s, "runs": rounds}
    return [alone, msgspec.structs.replace(beside, figures=beside.figures | ratio)]


def _served(
    name: str, scratch: Path, run: Run, bar: ProgressBar, *, is_exporting: bool
) -> Measurement:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        data_dir, target = Path(folder) / "data", Path(folder) / "export"
        data_dir.mkdir()
        settings = {"export.to": str(target), "export.lag_s_max": _LAG_S_MAX}
        with OwnServer(data_dir, settings=settings if is_exporting else {}) as server:
            subject = subject_of(server)
            people = pairs(_PAIRS, subject.mediator)
            recipients = [pair.recipient for pair in people]
            uvloop.run(prepare(subject, recipients, people))
            accepted_messages(name, subject, people, _WARM_UP)
            progress = bar(name, run.count)
            line = accepted_messages(name, subject, people, run, progress=progress)
        figures = {}
        if is_exporting:
            place = open_place(str(target))
            figures["events_exported"] = read_catalog(place.filesystem, place.root).rows
    return msgspec.structs.replace(line, figures=figures)


def _median(lines: list[Measurement]) -> Measurement:
    middle = statistics.median_low(line.per_s for line in lines)
    return next(line for line in lines if line.per_s == middle)
