"""Two checkouts compared in one run: ``python -m tests.bench compare --old DIR``.

``poste serve`` runs from both trees side by side, and in each round one gets the same load after
the other for some seconds, in an order that turns round each time: what the machine does besides,
and what its disk does, hits both. A ratio is of the two runs of one round; its median and its
spread over the rounds are what counts.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Final, Literal, TypeAlias

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from http_edge.cli.output import ProgressBar
from http_edge.clients.load.agents import Agents
from tests.bench.agents import decentrl_agents, didcomm_agents
from tests.bench.load import Run, run_apart
from tests.bench.report import Measurement, of_load
from tests.bench.server import MeasuredServer

Tree: TypeAlias = Literal["old", "new"]
CONNECTIONS: Final = (64, 1)
_MESSAGES: Final = "Decentrl messages"
_FORWARDS: Final = "forwards"
_LOADS: Final = (_MESSAGES, _FORWARDS)
_POOL: Final = 2_048
_WARM_UP: Final = Run(connections=16, count=2_000, seconds_max=3.0)
_PER_S_MAX: Final = {64: 4_000, 1: 1_200}
"""No more are prepared for each second of a run."""
_FIGURES: Final[Mapping[str, Callable[[Measurement], float]]] = {
    "accepted/s": lambda line: line.per_s,
    "p50 ms": lambda line: line.p50_ms or 0.0,
    "CPU ms per 1,000": lambda line: (line.server_cpu_s_per_1000 or 0.0) * 1000,
}


class Comparison(msgspec.Struct, frozen=True):
    """One figure of one load: its median of each tree, and the ratios new/old of all rounds."""

    load: str
    figure: str
    old: float
    new: float
    ratios: Sequence[float]


def compare(
    trees: Mapping[Tree, Path], rounds: int, seconds: float, bar: ProgressBar
) -> list[Comparison]:
    """Measure both trees in turns.

    Raises:
        AssertionError, RuntimeError, ClientError, WalletError: a server did not start, or refused
            what the load needs.
    """
    lines = asyncio.run(_measured(trees, rounds, seconds, bar))
    return [
        comparison(load, figure, lines[load, "old"], lines[load, "new"])
        for load in dict.fromkeys(name for name, _ in lines)
        for figure in _FIGURES
    ]


def comparison(
    load: str, figure: str, old: Sequence[Measurement], new: Sequence[Measurement]
) -> Comparison:
    """One figure of both trees, round by round."""
    before, after = [list(map(_FIGURES[figure], lines)) for lines in (old, new)]
    ratios = [b / a if a else 0.0 for a, b in zip(before, after, strict=True)]
    return Comparison(load, figure, median(before), median(after), ratios)


class _Side(msgspec.Struct):
    """One tree's server, and the loads for it; ``pool`` are the forwards that take turns."""

    server: MeasuredServer
    loads: Mapping[str, Agents]
    pool: Sequence[bytes]

    async def measured(self, name: str, run: Run) -> Measurement:
        """One run of one load."""
        agents, numbered = self.loads[name], name == _FORWARDS
        bodies = self.pool if numbered else list(agents.messages(run.count))
        with self.server.spending() as costs:
            result = await asyncio.to_thread(run_apart, agents, bodies, run, numbered=numbered)
        return of_load(f"{name}, {run.connections} connections", result, costs)


async def _measured(
    trees: Mapping[Tree, Path], rounds: int, seconds: float, bar: ProgressBar
) -> Mapping[tuple[str, Tree], list[Measurement]]:
    """Every load on both servers, which run side by side, in turns that last seconds."""
    lines: dict[tuple[str, Tree], list[Measurement]] = defaultdict(list)
    progress, done = bar("rounds", rounds), 0
    async with AsyncExitStack() as stack:
        sides = {tree: await _side(stack, path) for tree, path in trees.items()}
        for side in sides.values():
            for name in side.loads:
                await side.measured(name, _WARM_UP)
        for number in range(rounds):
            turns: tuple[Tree, Tree] = ("old", "new") if number % 2 == 0 else ("new", "old")
            for each in CONNECTIONS:
                run = Run(each, int(_PER_S_MAX[each] * seconds), seconds)
                for name in _LOADS:
                    for tree in turns:
                        line = await sides[tree].measured(name, run)
                        lines[line.name, tree].append(line)
            done += 1
            progress(done)
    return lines


async def _side(stack: AsyncExitStack, tree: Path) -> _Side:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(MeasuredServer(folder / "data", tree=tree))
    loads: dict[str, Agents] = {
        _MESSAGES: await stack.enter_async_context(decentrl_agents(server)),
        _FORWARDS: await stack.enter_async_context(didcomm_agents(server)),
    }
    return _Side(server, loads, list(loads[_FORWARDS].messages(_POOL)))


def print_comparison(compared: Sequence[Comparison]) -> None:
    """The comparison as a table, on stdout."""
    table = Table("load", "figure", box=SIMPLE_HEAD, pad_edge=False)
    for title in ("old", "new", "new/old", "spread"):
        table.add_column(title, justify="right")
    for one in compared:
        table.add_row(
            one.load,
            one.figure,
            f"{one.old:,.2f}",
            f"{one.new:,.2f}",
            f"{median(one.ratios):.3f}",
            f"{min(one.ratios):.3f} to {max(one.ratios):.3f}",
        )
    Console(highlight=False, width=120).print(table)
