"""Attacking a mediator on this machine: ``python -m tests.attacks [NAMES]``."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

from http_edge.cli.output import json_option, print_json, print_table
from http_edge.clients.decentrl import ClientError
from http_edge.clients.didcomm import WalletError
from tests.attacks.attack import Attack
from tests.attacks.attacker import AttackFailed
from tests.attacks.disk import DISK_P99_MS_MAX
from tests.attacks.figures import Quiet, Row, broken
from tests.attacks.measuring import measure
from tests.attacks.registry import ATTACKS
from tests.attacks.table import print_rows
from tests.attacks.target import Options
from tests.bench.report import machine

_FAULTS = (AttackFailed, AssertionError, ClientError, WalletError, OSError, sqlite3.Error)
"""Why an attack could not be measured; the others still can."""
_AGAIN_MAX: Final = 3


class _Run(msgspec.Struct, frozen=True):
    """A run for machines: ``broken`` is what each attack broke, by its name."""

    machine: dict[str, object]
    seconds: float
    rows: list[Row]
    quiet: dict[str, Quiet]
    broken: dict[str, list[str]]
    failed: dict[str, str]


def _own_machine(_: click.Context, __: click.Parameter, url: str | None) -> str | None:
    if url is not None:
        try:
            loopback = ip_address(urlsplit(url).hostname or "").is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise click.BadParameter("attacks only what listens on an address of loopback")
    return url


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seconds", type=click.FloatRange(1, 3600), default=15.0, show_default=True)
@click.option(
    "--events",
    type=click.IntRange(1_000, 5_000_000),
    default=20_000,
    show_default=True,
    help="Saved events that are queried.",
)
@click.option(
    "--gives-way/--competes",
    default=True,
    show_default=True,
    help="Leave the cores to all others, or compete for them where others keep them busy.",
)
@click.option("--url", callback=_own_machine, help="A mediator that runs already, on loopback.")
@click.option("--list", "listed", is_flag=True, help="Show the attacks and begin none.")
@json_option
def attacks(  # noqa: PLR0913 - one for each option
    *,
    names: tuple[str, ...],
    seconds: float,
    events: int,
    gives_way: bool,
    url: str | None,
    listed: bool,
    as_json: bool,
) -> None:
    """Attack a mediator that is started for each attack, and measure what an honest pair feels.

    All attacks where none is named. The exit code is 1 when one of them breaks a bound, and 2 when
    one could not be carried out. What was measured before SIGTERM or Ctrl-C is shown, too.
    """
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        raise click.BadParameter(f"no attack is called {', '.join(unknown)}; see --list")
    chosen = [ATTACKS[name] for name in names] or list(ATTACKS.values())
    if listed:
        columns = ["attack", "rate", "about"]
        print_table("Attacks", columns, [[a.name, a.rate, a.about] for a in chosen])
        return
    options = Options(seconds=seconds, events=events, gives_way=gives_way)
    run = asyncio.run(_measured(chosen, options, url))
    if as_json:
        print_json(msgspec.to_builtins(run))
    else:
        print_rows(run.rows, run.quiet, run.broken)
    for name, why in run.failed.items():
        click.echo(f"{name}: not measured: {why}", err=True)
    if run.failed:
        sys.exit(2)
    sys.exit(1 if any(run.broken.values()) else 0)


async def _on_a_steady_disk(attack: Attack, options: Options, url: str | None) -> Row:
    """An attack as it is where the disk does not stand still; the last of some tries, if it does.

    Raises:
        AttackFailed, AssertionError, ClientError, WalletError: as ``measure``.
    """
    row = await measure(attack, options, url)
    for _ in range(_AGAIN_MAX):
        if row.disk_p99_ms <= DISK_P99_MS_MAX:
            break
        click.echo(f"{attack.name}: the disk took {row.disk_p99_ms:,.0f} ms, again", err=True)
        row = await measure(attack, options, url)
    return row


async def _measured(chosen: Sequence[Attack], options: Options, url: str | None) -> _Run:
    rows: list[Row] = []
    failed: dict[str, str] = {}
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    for turn, attack in enumerate(chosen, 1):
        click.echo(f"{turn}/{len(chosen)} {attack.name}, {attack.rate}: {attack.about}", err=True)
        try:
            rows.append(await _on_a_steady_disk(attack, options, url))
        except _FAULTS as error:
            failed[attack.name] = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            task.uncancel()
            failed |= {left.name: "ended before" for left in chosen[turn - 1 :]}
            break
    quiet: dict[str, Quiet] = {}
    for pair in {attack.pair for attack in chosen}:
        same = [row for row in rows if ATTACKS[row.name].pair == pair]
        quiet |= dict.fromkeys([row.name for row in same], Quiet.of(same))
    found = {row.name: broken(row, quiet[row.name], ATTACKS[row.name].bounds) for row in rows}
    return _Run(machine(), options.seconds, rows, quiet, found, failed)


if __name__ == "__main__":
    attacks()
