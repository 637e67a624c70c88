"""``poste bench``: measure a mediator on this machine."""

from __future__ import annotations

from collections.abc import Callable

import click
from rich.console import Console
from rich.progress import Progress

from http_edge.bench.decentrl import plan, run
from http_edge.bench.report import as_json as report_as_json
from http_edge.bench.report import print_report
from http_edge.bench.target import Target
from http_edge.cli.output import Exit, Stop, json_option, print_json
from http_edge.client import ClientError


@click.group()
def bench() -> None:
    """Measure a mediator on this machine; other machines are refused."""


@bench.command()
@click.option(
    "--url", help="A running mediator on loopback, its rates at 0; else one is started for this."
)
@click.option("--pid", type=int, help="Its main process, to measure its CPU time too.")
@click.option("--quick", is_flag=True, help="A twentieth of everything: does it all work?")
@click.option(
    "--saved-events",
    type=click.IntRange(0, 5_000_000),
    help="Length of the history that is queried; 0 leaves it out.  [default: 100000]",
)
@click.option("--scale", is_flag=True, help="Also 100,000 identities and 1,000,000 messages.")
@json_option
def decentrl(
    url: str | None,
    pid: int | None,
    *,
    quick: bool,
    saved_events: int | None,
    scale: bool,
    as_json: bool,
) -> Exit:
    """Measure the Decentrl protocol.

    Messages accepted at 1, 16 and 64 connections, the same by the edge alone, draining queues,
    live push, queries of a long history, and on request memory and restart at scale. Figures of
    one machine compare versions of one program; state the machine with them.
    """
    _check_url(url)
    wanted = plan(quick=quick, saved_events=saved_events, scale=scale)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            report = run(url, pid, wanted, _bar(bars))
    except (RuntimeError, OSError) as error:
        raise Stop(Exit.FINDING, f"the benchmark did not finish: {error}") from error
    except ClientError as error:
        raise Stop(Exit.UNREACHABLE, f"no mediator answers: {error}") from error
    if as_json:
        print_json(report_as_json(report))
    else:
        print_report(report)
    return Exit.OK


def _check_url(url: str | None) -> None:
    if url is not None:
        try:
            Target.at(url)
        except ValueError as error:
            raise Stop(Exit.USAGE, str(error)) from error


def _bar(bars: Progress) -> Callable[[str, int], Callable[[int], None]]:
    def make(title: str, total: int) -> Callable[[int], None]:
        task = bars.add_task(title, total=total)
        return lambda done: bars.update(task, completed=done)

    return make
