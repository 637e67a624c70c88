"""The report: the machine, what ran, and one line for each measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from http_edge.bench.measurement import Measurement
from http_edge.cli.output import escaped

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


class Report(msgspec.Struct, frozen=True):
    """Everything a reader needs to judge the figures."""

    machine: Mapping[str, object]
    run: Mapping[str, object]
    measurements: list[Measurement]


def as_json(report: Report) -> object:
    """The report as plain data."""
    return msgspec.to_builtins(report)


def print_report(report: Report) -> None:
    """The report as tables, on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_COLUMNS_WITHOUT_TERMINAL)
    facts = Table(box=SIMPLE_HEAD, show_header=False)
    for name, value in (*report.machine.items(), *report.run.items()):
        facts.add_row(name, value if isinstance(value, str) else json.dumps(value))
    lines = Table("measured", box=SIMPLE_HEAD, pad_edge=False)
    for title, _ in _COLUMNS:
        lines.add_column(title, justify="right")
    for line in report.measurements:
        lines.add_row(line.name, *(_shown(form, line) for _, form in _COLUMNS))
    others = Table("measured", "figure", box=SIMPLE_HEAD, pad_edge=False)
    others.add_column("value", justify="right")
    for line in report.measurements:
        own = {"generator_cpu_us": line.generator_cpu_us} if line.generator_cpu_us else {}
        for name, value in (line.figures | own).items():
            # Ratios are small, and their second digit matters.
            others.add_row(line.name, name, f"{value:,.{1 if value >= _LARGE else 3}f}")
        for answer, count in line.refused.items():
            others.add_row(line.name, escaped(f"refused: {answer}"), f"{count:,}")
    console.print(facts, lines, others)


def _shown(form: str, line: Measurement) -> str:
    try:
        return form.format(line)
    except TypeError:  # the figure does not apply, or was not to be had
        return "-"
