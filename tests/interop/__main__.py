"""Play every scenario by every handshake: ``python -m tests.interop``.

Prints a table; exit code 1 when a scenario failed. The agents' logs of failed scenarios are kept
in the directory that ``--logs`` names.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.interop.mediators import POSTE_LOG, AcaPyMediator, Poste
from tests.interop.scenarios import DURABLE, SCENARIOS, NewMediator, staged
from tests.interop.wallets import Handshake

FINDING_CHARS_MAX: Final = 200
SCENARIO_S_MAX: Final = 240.0
INTERRUPTED: Final = 130
PROGRAM: Final = Path(".venv-interop/bin/aca-py")


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario by one handshake; ``finding`` is empty when it succeeded."""

    scenario: str
    handshake: Handshake
    seconds: float
    figures: str
    finding: str


async def play(name: str, handshake: Handshake, arguments: argparse.Namespace) -> Played:
    """Play one scenario in a directory of its own."""
    figures, finding = "", ""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="poste-interop-") as place:
        home = Path(place)
        try:
            async with (
                asyncio.timeout(SCENARIO_S_MAX),
                staged(arguments.program, home, handshake, _mediator(arguments)) as stage,
            ):
                started = time.monotonic()
                figures = await (SCENARIOS | DURABLE)[name](stage)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this scenario's finding
            first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
            finding = first_line[:FINDING_CHARS_MAX]
            kept = arguments.logs / f"{name}, {handshake.name.lower()}"
            _keep_logs(home, kept)
            (kept / "error.log").write_text("".join(traceback.format_exception(error)), "utf-8")
    return Played(name, handshake, time.monotonic() - started, figures, finding)


def _mediator(arguments: argparse.Namespace) -> NewMediator:
    if arguments.mediator == "poste":
        return Poste
    return lambda home: AcaPyMediator(arguments.program, home)


def _keep_logs(home: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for log in home.glob("*.log"):
        shutil.copy(log, kept)
    if (home / POSTE_LOG).exists():
        shutil.copy(home / POSTE_LOG, kept / "poste.log")


def _print(results: list[Played]) -> None:
    table = Table("scenario", "handshake", "result", "s", "figures")
    for played in results:
        verdict = f"[red]{escape(played.finding)}" if played.finding else "[green]passed"
        row = (played.scenario, played.handshake.value, verdict)
        table.add_row(*row, f"{played.seconds:.1f}", played.figures)
    Console().print(table)


async def main(arguments: argparse.Namespace) -> int:
    """Play them one after another: the exit code."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    names = [*SCENARIOS, *(DURABLE if arguments.mediator == "poste" else ())]
    results = [await play(name, handshake, arguments) for name in names for handshake in Handshake]
    _print(results)
    return int(any(played.finding for played in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="aca-py of 0.12")
    parser.add_argument(
        "--mediator",
        choices=("poste", "acapy"),
        default="poste",
        help="acapy: without the scenarios that need a durable queue, to see what the wallets do",
    )
    parser.add_argument("--logs", type=Path, default=Path("build/interop"), help="of failures")
    arguments = parser.parse_args()
    if not arguments.program.exists():
        parser.error(f"there is no {arguments.program}: make interop installs it")
    return arguments


def _run() -> int:
    try:
        return asyncio.run(main(_arguments()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(_run())
