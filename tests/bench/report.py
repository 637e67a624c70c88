"""What a benchmark reports: the machine, what ran, and one line for each measurement."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from http_edge.clients.load.closed_loop import LoadResult, percentile
from http_edge.server.exits import escaped
from tests.bench.server import Costs

Figures: TypeAlias = Mapping[str, int | float]

_NS_PER_MS: Final = 1_000_000
_COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("count", "{0.count:,}"),
    ("per s", "{0.per_s:,.0f}"),
    ("p50 ms", "{0.p50_ms:,.2f}"),
    ("p95 ms", "{0.p95_ms:,.2f}"),
    ("p99 ms", "{0.p99_ms:,.2f}"),
    ("CPU s/1k", "{0.server_cpu_s_per_1000:.3f}"),
    ("commits/s", "{0.commits_per_s:,.0f}"),
)
_COLUMNS_WITHOUT_TERMINAL: Final = 120
_LARGE: Final = 10


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured; a figure that does not apply is absent.

    Attributes:
        name: What was done.
        count: How often.
        seconds: How long it took in all.
        per_s: ``count`` in a second.
        p50_ms: Half were faster.
        p95_ms: One in twenty was slower.
        p99_ms: One in a hundred was slower.
        server_cpu_s_per_1000: CPU seconds of all server processes for 1,000.
        commits_per_s: Transactions of the log in a second.
        figures: Other figures by name, with their units.
        refused: What was not accepted, by status and code.
    """

    name: str
    count: int
    seconds: float
    per_s: float
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    server_cpu_s_per_1000: float | None = None
    commits_per_s: float | None = None
    figures: Figures = {}
    refused: Mapping[str, int] = {}


def measured(
    name: str,
    latencies_ns: Sequence[int],
    seconds: float,
    *,
    costs: Costs | None = None,
    figures: Figures | None = None,
    refused: Mapping[str, int] | None = None,
) -> Measurement:
    """A measurement from latencies; without any, only the count of 0 remains."""
    ordered, count = sorted(latencies_ns), len(latencies_ns)
    quantiles = (
        {f"p{p}_ms": percentile(ordered, p) / _NS_PER_MS for p in (50, 95, 99)} if ordered else {}
    )
    return Measurement(
        name=name,
        count=count,
        seconds=seconds,
        per_s=count / seconds if seconds else 0.0,
        server_cpu_s_per_1000=costs.cpu_s / count * 1000 if costs and count else None,
        commits_per_s=costs.commits / seconds if costs and seconds else None,
        figures=figures or {},
        refused=refused or {},
        **quantiles,
    )


def of_load(name: str, result: LoadResult, costs: Costs | None = None) -> Measurement:
    """The measurement of a closed loop, with what the load itself spent."""
    spent_us = result.cpu_s / max(1, result.accepted) * 1e6
    return measured(
        name,
        result.latencies,
        result.elapsed_s,
        costs=costs,
        figures={"load_cpu_us": spent_us},
        refused=result.refused,
    )


def of_rounds(
    lines: Sequence[Measurement],
    ratio: str = "",
    above: Sequence[Measurement] = (),
    below: Sequence[Measurement] = (),
) -> Measurement:
    """One load in rounds: the round of the median rate, with all that was refused.

    ``ratio`` names the rates of ``above`` divided by those of ``below``, round by round: median,
    least and most.
    """
    middle = sorted(lines, key=_rate)[len(lines) // 2]
    refused = sum((Counter(line.refused) for line in lines), Counter[str]())
    ratios = [_rate(a) / _rate(b) if _rate(b) else 0.0 for a, b in zip(above, below, strict=True)]
    figures = {**middle.figures}
    if ratios:
        figures |= {ratio: median(ratios), f"{ratio}_min": min(ratios), f"{ratio}_max": max(ratios)}
    return msgspec.structs.replace(middle, figures=figures, refused=refused)


def _rate(line: Measurement) -> float:
    """What ``line`` did in a second; its messages, if each of what it counts has several."""
    return line.figures.get("messages_per_s", line.per_s)


def timed(name: str, count: int, seconds: float, **figures: float) -> Measurement:
    """A measurement of something that took so long in all."""
    per_s = count / seconds if seconds else 0.0
    return Measurement(name=name, count=count, seconds=seconds, per_s=per_s, figures=figures)


def with_figures(line: Measurement, **figures: float) -> Measurement:
    """The same measurement with more figures."""
    return msgspec.structs.replace(line, figures={**line.figures, **figures})


class Report(msgspec.Struct, frozen=True):
    """The machine, what ran on it, and what was measured."""

    machine: Mapping[str, object]
    run: Mapping[str, object]
    measurements: list[Measurement]


def report(plan: msgspec.Struct, measurements: list[Measurement], **facts: object) -> Report:
    """The report of a plan that was carried out on this machine."""
    return Report(machine(), {**facts, **msgspec.to_builtins(plan)}, measurements)


def machine() -> dict[str, object]:
    """Cores, processor, memory and versions of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = (
        value.strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        for name, _, value in [line.partition(":")]
        if name.strip() == "model name"
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu_model": next(names, platform.machine()),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def print_report(shown: Report) -> None:
    """The report as tables, on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_COLUMNS_WITHOUT_TERMINAL)
    facts = Table(box=SIMPLE_HEAD, show_header=False)
    for name, value in (*shown.machine.items(), *shown.run.items()):
        facts.add_row(name, value if isinstance(value, str) else json.dumps(value))
    lines = Table("measured", box=SIMPLE_HEAD, pad_edge=False)
    for title, _ in _COLUMNS:
        lines.add_column(title, justify="right")
    others = Table("measured", "figure", box=SIMPLE_HEAD, pad_edge=False)
    others.add_column("value", justify="right")
    for line in shown.measurements:
        lines.add_row(line.name, *(_cell(form, line) for _, form in _COLUMNS))
        for name, figure in line.figures.items():
            # Ratios are small, and their second digit matters.
            others.add_row(line.name, name, f"{figure:,.{1 if figure >= _LARGE else 3}f}")
        for answer, count in line.refused.items():
            others.add_row(line.name, escaped(f"refused: {answer}"), f"{count:,}")
    console.print(facts, lines, others)


def _cell(form: str, line: Measurement) -> str:
    try:
        return form.format(line)
    except TypeError:  # the figure does not apply
        return "-"
