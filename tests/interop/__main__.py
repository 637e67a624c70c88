"""Play every scenario with every wallet by every handshake: ``python -m tests.interop``.

Installs the agents that are missing, and prints a table. Exit code 1 when a scenario failed; one
whose agents cannot be installed here is skipped, and its row says why. The agents' logs of failed
scenarios are kept in the directory that ``--logs`` names.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.interop import credo_scenarios, scenarios
from tests.interop.mediators import POSTE_LOG, AcaPyMediator, Poste
from tests.interop.parts import Credo, install_acapy, install_credo
from tests.interop.scenarios import DURABLE, SCENARIOS, NewMediator, Scenario
from tests.interop.wallets import Handshake

FINDING_CHARS_MAX: Final = 200
SCENARIO_S_MAX: Final = 240.0
INTERRUPTED: Final = 130
PROGRAM: Final = Path(".venv-interop/bin/aca-py")
ACAPY: Final = "acapy"
WALLETS: Final = {
    ACAPY: "ACA-Py 0.12",
    Credo.V0_5.value: "Credo 0.5",
    Credo.V0_6.value: "Credo 0.6",
}
"""What ``--wallets`` takes, and how the table names it."""


@dataclass(slots=True)
class Row:
    """One scenario with one wallet by one handshake.

    ``finding`` is empty when it succeeded, and ``skipped`` unless it could not be played.
    """

    wallet: str
    handshake: Handshake
    scenario: str
    seconds: float = 0.0
    figures: str = ""
    finding: str = ""
    skipped: str = ""

    @property
    def result(self) -> str:
        """The result, in the markup of ``rich``."""
        if self.skipped:
            return f"[yellow]skipped: {escape(self.skipped)}"
        return f"[red]{escape(self.finding)}" if self.finding else "[green]passed"


class Play:
    """Plays scenarios one after the other, each for its row."""

    def __init__(self, logs: Path) -> None:
        self.rows: list[Row] = []
        self._logs = logs

    def row(self, wallet: str, handshake: Handshake, scenario: str, *, skipped: str = "") -> Row:
        """A new row of the table."""
        row = Row(WALLETS[wallet], handshake, scenario, skipped=skipped[:FINDING_CHARS_MAX])
        self.rows.append(row)
        return row

    @contextmanager
    def home(self) -> Iterator[Path]:
        """A new directory for the files of one stage."""
        with tempfile.TemporaryDirectory(prefix="poste-interop-") as place:
            yield Path(place)

    async def play(
        self, row: Row, home: Path, scenario: Callable[[], Awaitable[str]], seconds_max: float
    ) -> None:
        """Play one scenario; what goes wrong is its finding."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds_max):
                row.figures = await scenario()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this scenario's finding
            self.keep(row, home, error)
        row.seconds = time.monotonic() - started
        Console().print(f"{row.wallet}, {row.handshake.value}, {row.scenario}: {row.result}")

    def keep(self, row: Row, home: Path, error: Exception) -> None:
        """Note what went wrong, and keep the logs of all sides."""
        row.finding = f"{type(error).__name__}: {error}".partition("\n")[0][:FINDING_CHARS_MAX]
        handshake = row.handshake.name.lower()
        kept = self._logs / f"{row.wallet}, {handshake}, {row.scenario}"
        kept.mkdir(parents=True, exist_ok=True)
        for log in home.glob("*.log"):
            shutil.copy(log, kept)
        if (home / POSTE_LOG).exists():
            shutil.copy(home / POSTE_LOG, kept / "poste.log")
        (kept / "error.log").write_text("".join(traceback.format_exception(error)), "utf-8")

    def print(self) -> None:
        """The table."""
        table = Table("wallet", "handshake", "scenario", "result", "s", "figures")
        for row in self.rows:
            named = (row.wallet, row.handshake.value, row.scenario, row.result)
            table.add_row(*named, f"{row.seconds:.1f}", row.figures)
        Console().print(table)


async def play_acapy(play: Play, program: Path, mediator: str) -> None:
    """The scenarios of ACA-Py's wallets, each with a mediator of its own."""
    missing = await asyncio.to_thread(install_acapy, program)
    named = SCENARIOS | (DURABLE if mediator == "poste" else {})
    for (name, scenario), handshake in itertools.product(named.items(), Handshake):
        row = play.row(ACAPY, handshake, name, skipped=missing)
        if missing:
            continue
        with play.home() as home:
            new = Poste if mediator == "poste" else partial(AcaPyMediator, program)
            staged = partial(_on_a_stage, scenario, program, home, handshake, new)
            await play.play(row, home, staged, SCENARIO_S_MAX)


async def _on_a_stage(
    scenario: Scenario, program: Path, home: Path, handshake: Handshake, mediator: NewMediator
) -> str:
    async with scenarios.staged(program, home, handshake, mediator) as stage:
        return await scenario(stage)


async def play_credo(play: Play, version: Credo) -> None:
    """The scenarios of Credo's wallets, with one mediator for each handshake."""
    missing = await asyncio.to_thread(install_credo, version)
    for handshake in Handshake:
        rows = {
            name: play.row(version.value, handshake, name, skipped=missing)
            for name in credo_scenarios.scenarios(version)
        }
        if missing:
            continue
        with play.home() as home:
            await _play_rows(play, version, handshake, home, rows)


async def _play_rows(
    play: Play, version: Credo, handshake: Handshake, home: Path, rows: Mapping[str, Row]
) -> None:
    try:
        async with credo_scenarios.staged(version, home, handshake) as stage:
            for name, scenario in credo_scenarios.scenarios(version).items():
                await play.play(rows[name], home, partial(scenario, stage), SCENARIO_S_MAX)
    except Exception as error:  # noqa: BLE001 - without a stage no scenario was played to its end
        for row in rows.values():
            play.keep(row, home, error)


async def main(arguments: argparse.Namespace) -> int:
    """Play them one after another: the exit code."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    play = Play(arguments.logs)
    try:
        if ACAPY in arguments.wallets:
            await play_acapy(play, arguments.program, arguments.mediator)
        for version in Credo:
            if version.value in arguments.wallets and arguments.mediator == "poste":
                await play_credo(play, version)
    finally:
        play.print()
    return int(any(row.finding for row in play.rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="aca-py of 0.12")
    parser.add_argument(
        "--wallets", nargs="+", choices=list(WALLETS), default=list(WALLETS), help="all by default"
    )
    parser.add_argument(
        "--mediator",
        choices=("poste", "acapy"),
        default="poste",
        help="acapy: ACA-Py's wallets alone, without the scenarios that need a durable queue",
    )
    parser.add_argument("--logs", type=Path, default=Path("build/interop"), help="of failures")
    return parser.parse_args()


def _run() -> int:
    try:
        return asyncio.run(main(_arguments()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(_run())
