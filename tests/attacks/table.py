"""The measured attacks as a table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from http_edge.server.exits import escaped
from tests.attacks.figures import Latency, Quiet, Row, times

_COLUMNS: Final = (
    *("attack", "sent/s", "answered", "accept p50", "p99 ms", "times"),
    *("deliver p50", "p99 ms", "times", "refused", "edge MiB", "host MiB", "log MB/day"),
    *("disk p99", "broken"),
)
_TEXTS: Final = {"attack", "answered", "broken"}
_WIDTH_WITHOUT_TERMINAL: Final = 190
_ANSWERS_SHOWN: Final = 2


def print_rows(
    rows: Sequence[Row], quiet: Mapping[str, Quiet], faults: Mapping[str, Sequence[str]]
) -> None:
    """Print a run: ``quiet`` is who was alone for each row, ``faults`` what each breaks."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, justify="left" if title in _TEXTS else "right")
    for row in rows:
        alone = quiet[row.name]
        table.add_row(
            row.name,
            f"{row.sent_per_s:,.0f}",
            escaped(_answers(row.answers)),
            *_latency(row.beside.accepted, alone.accepted),
            *_latency(row.beside.delivered, alone.delivered),
            f"{sum(row.beside.refused.values())}",
            f"{row.edge_mib:,.0f}",
            f"{row.host_mib:,.0f}",
            f"{row.log_mb_a_day:,.0f}",
            f"{row.disk_p99_ms:,.1f}",
            escaped("; ".join(faults[row.name]) or "-"),
        )
    for alone in {id(found): found for found in quiet.values()}.values():
        accepted, delivered = alone.accepted, alone.delivered
        console.print(
            f"alone: accept p50 {accepted.p50_ms or 0:.1f}, p99 {accepted.p99_ms or 0:.1f} ms;"
            f" deliver p50 {delivered.p50_ms or 0:.1f}, p99 {delivered.p99_ms or 0:.1f} ms"
            f" ({accepted.count:,} messages)"
        )
    console.print(table)


def _latency(beside: Latency, alone: Latency) -> tuple[str, str, str]:
    found = times(beside, alone)
    if beside.p50_ms is None or beside.p99_ms is None or found is None:
        return ("-", "-", "-")
    return (f"{beside.p50_ms:,.1f}", f"{beside.p99_ms:,.1f}", f"{found:,.1f}")


def _answers(answers: Mapping[str, int]) -> str:
    most = sorted(answers.items(), key=lambda item: -item[1])
    shown = [f"{answer} {count:,}" for answer, count in most[:_ANSWERS_SHOWN]]
    return "; ".join(shown + ["…"] * (len(most) > _ANSWERS_SHOWN)) or "-"
