"""``poste bench``: measure a mediator on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from http_edge.bench import acapy_peer
from http_edge.bench import cluster as cluster_bench
from http_edge.bench import didcomm as didcomm_bench
from http_edge.bench import failover as failover_bench
from http_edge.bench import projections as projections_bench
from http_edge.bench.decentrl import plan, run
from http_edge.bench.measurement import Measurement
from http_edge.bench.progress import ProgressBar
from http_edge.bench.report import Report, print_report
from http_edge.bench.report import as_json as report_as_json
from http_edge.bench.target import Target
from http_edge.cli.output import Exit, Stop, json_option, print_json
from http_edge.client import ClientError
from http_edge.wallet import MediatorUnreachable, WalletError


@click.group()
def bench() -> None:
    """Measure a mediator on this machine; other machines are refused."""


_url = click.option(
    "--url", help="A running mediator on loopback, its rates at 0; else one is started for this."
)
_pid = click.option("--pid", type=int, help="Its main process, to measure its CPU time too.")
_quick = click.option("--quick", is_flag=True, help="A twentieth of everything: does it all work?")


@bench.command()
@_url
@_pid
@_quick
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
    wanted = plan(quick=quick, saved_events=saved_events, scale=scale)
    return _report(url, lambda bar: run(url, pid, wanted, bar), as_json=as_json)


@bench.command()
@_url
@_pid
@_quick
@click.option("--scale", is_flag=True, help="10,000 idle sockets instead of 2,000.")
@click.option("--sockets", type=click.IntRange(0, 100_000), help="Idle sockets; 0 leaves them out.")
@click.option("--peer", type=click.Choice(["acapy"]), help="Compare with this mediator as well.")
@click.option(
    "--acapy",
    type=click.Path(path_type=Path),
    default=acapy_peer.PROGRAM,
    show_default=True,
    help="The program of the peer, in a virtual environment of its own.",
)
@json_option
def didcomm(  # noqa: PLR0913 - one argument for each option
    url: str | None,
    pid: int | None,
    *,
    quick: bool,
    scale: bool,
    sockets: int | None,
    peer: str | None,
    acapy: Path,
    as_json: bool,
) -> Exit:
    """Measure DIDComm v1 mediation.

    Forwards of 1 KiB accepted at 1, 16 and 64 connections, the same by the edge alone and on
    request by ACA-Py, picking up, live delivery, registering, and memory: of a waiting message and
    of an idle socket. Load and server share the machine; state it with the figures.
    """
    wanted = didcomm_bench.plan(quick=quick, scale=scale, sockets=sockets)
    program = acapy if peer else None
    return _report(
        url, lambda bar: didcomm_bench.run(url, pid, wanted, program, bar), as_json=as_json
    )


@bench.command()
@click.option(
    "--events",
    type=click.IntRange(10_000, 100_000_000),
    default=1_000_000,
    show_default=True,
    help="Length of the made-up log that is rebuilt.",
)
@click.option("--serving/--no-serving", default=True, help="Also serve beside an export.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work in this empty folder and leave the log, the export and the tables there.",
)
@json_option
def projections(*, events: int, serving: bool, keep: Path | None, as_json: bool) -> Exit:
    """Measure the export of the log and what Spark makes of it.

    A log is made up and exported; a mediator serves beside an export; Spark rebuilds all tables
    with one and two cores; one Python process folds the same files with the mediator's own core,
    and the tables of both are compared; the rebuild is continued. Each line is told as it ends.
    """
    wanted = projections_bench.plan(events, serving=serving)
    need = f"about {wanted.seconds / 60:.0f} minutes and {wanted.disk_bytes / 2**30:.1f} GiB"
    click.echo(f"This takes {need} of disk.", err=True)

    def told(line: Measurement) -> None:
        figures = "".join(f", {name} {value:,.2f}" for name, value in line.figures.items())
        click.echo(f"{line.name}: {line.seconds:,.1f} s, {line.per_s:,.0f}/s{figures}", err=True)

    with _folder(keep) as folder:
        return _report(
            None,
            lambda bar: projections_bench.run(wanted, folder, bar, told),
            as_json=as_json,
        )


_log = click.option(
    "--log", help="An empty PostgreSQL database; else a server is started for this."
)


@bench.command()
@_log
@_quick
@click.option(
    "--moves", type=click.IntRange(1, 100_000), help="Shards moved under load.  [default: 1000]"
)
@json_option
def cluster(log: str | None, *, quick: bool, moves: int | None, as_json: bool) -> Exit:
    """Measure a cluster of two nodes on this machine.

    Starts Ray nodes and a mediator on each. Messages of both protocols accepted by one node and by
    two in turns and what each layer spends on them; then shards moved under load: what was lost,
    not accepted or doubled, and how long commands took meanwhile.
    """
    wanted = cluster_bench.plan(quick=quick, moves=moves)
    return _report(None, lambda bar: cluster_bench.run(log, wanted, bar), as_json=as_json)


@bench.command()
@_log
@_quick
@json_option
def failover(log: str | None, *, quick: bool, as_json: bool) -> Exit:
    """Measure how soon everybody is served again after a fault.

    Starts Ray nodes and a mediator on each, and kills a host, an edge, a serve process, a whole
    node and PostgreSQL, one after the other, while people of both protocols write; then drains a
    node and stops it. After each everything is fetched and held against what was accepted.
    A database that is named with --log is not killed.
    """
    wanted = failover_bench.plan(quick=quick)
    return _report(None, lambda bar: failover_bench.run(log, wanted, bar), as_json=as_json)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """An empty folder: a named one, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="poste-bench-") as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise Stop(Exit.USAGE, f"{keep} is not empty", "Name a folder that is, or a new one.")
    yield keep.absolute()


def _report(url: str | None, work: Callable[[ProgressBar], Report], *, as_json: bool) -> Exit:
    """Do the work, and print what it found."""
    _check_url(url)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            report = work(_bar(bars))
    except (ClientError, MediatorUnreachable) as error:
        raise Stop(Exit.UNREACHABLE, f"no mediator answers: {error}") from error
    except (RuntimeError, OSError, WalletError) as error:
        raise Stop(Exit.FINDING, f"the benchmark did not finish: {error}") from error
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


def _bar(bars: Progress) -> ProgressBar:
    def make(title: str, total: int) -> Callable[[int], None]:
        task = bars.add_task(title, total=total)
        return lambda done: bars.update(task, completed=done)

    return make
