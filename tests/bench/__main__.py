"""Measuring a mediator on this machine: ``python -m tests.bench NAME``."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

import click
import msgspec

from http_edge.cli.output import ProgressBar, json_option, print_json, progress_bars
from tests.bench import (
    acapy_peer,
    cluster,
    day,
    decentrl,
    didcomm,
    envelopes,
    erasure,
    idle,
    many_identities,
    projections,
    scale_model,
    scale_report,
    scrape,
)
from tests.bench.compare import compare, print_comparison
from tests.bench.report import Report, print_report

_HERE = Path(__file__).parents[2]
_quick = click.option("--quick", is_flag=True, help="A twentieth of everything: does it all work?")
_checkout = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


@click.group()
def bench() -> None:
    """Measure a mediator on this machine.

    Figures of one machine compare versions of one program; state the machine with them. Load and
    server share the machine.
    """


@bench.command("compare")
@click.option("--old", type=_checkout, required=True, help="The checkout to compare with.")
@click.option("--new", type=_checkout, default=_HERE, help="The other one.  [default: this]")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=6.0, show_default=True)
@json_option
def compare_command(*, old: Path, new: Path, rounds: int, seconds: float, as_json: bool) -> None:
    """Compare two checkouts in one run, in turns, with the same load of both protocols."""
    with progress_bars() as bar:
        compared = compare({"old": old, "new": new}, rounds, seconds, bar)
    if as_json:
        print_json(msgspec.to_builtins(compared))
    else:
        print_comparison(compared)


@bench.command("decentrl")
@_quick
@click.option("--saved-events", type=click.IntRange(0), help="Length of the queried history.")
@click.option("--scale", is_flag=True, help="Also 100,000 identities and 1,000,000 messages.")
@json_option
def decentrl_command(*, quick: bool, saved_events: int | None, scale: bool, as_json: bool) -> None:
    """Measure the Decentrl protocol.

    Messages accepted at 1, 16 and 64 connections, the same by the edge alone, draining queues,
    live push, queries of a long history, and on request memory and restart at scale.
    """
    wanted = decentrl.plan(quick=quick, saved_events=saved_events, scale=scale)
    _measure(lambda bar: decentrl.run(wanted, bar), as_json=as_json)


@bench.command("didcomm")
@_quick
@click.option("--scale", is_flag=True, help="10,000 idle sockets instead of 2,000.")
@click.option("--sockets", type=click.IntRange(0), help="Idle sockets; 0 leaves them out.")
@click.option("--peer", type=click.Choice(["acapy"]), help="Compare with this mediator as well.")
@click.option(
    "--acapy",
    type=click.Path(path_type=Path),
    default=acapy_peer.PROGRAM,
    show_default=True,
    help="The program of the peer, in a virtual environment of its own.",
)
@json_option
def didcomm_command(
    *, quick: bool, scale: bool, sockets: int | None, peer: str | None, acapy: Path, as_json: bool
) -> None:
    """Measure DIDComm v1 mediation.

    Forwards of 1 KiB accepted at 1, 16 and 64 connections, the same by the edge alone and on
    request by ACA-Py, picking up, live delivery, registering, and memory: of a waiting message and
    of an idle socket.
    """
    wanted = didcomm.plan(quick=quick, scale=scale, sockets=sockets)
    program = acapy if peer else None
    _measure(lambda bar: didcomm.run(wanted, program, bar), as_json=as_json)


@bench.command("projections")
@click.option("--events", type=click.IntRange(1_000), default=200_000, show_default=True)
@click.option("--new-events", type=click.IntRange(1), help="Added later.  [default: a tenth]")
@click.option("--serving/--no-serving", default=True, help="Also serve beside an export.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where log, export and tables stay, for steps that are run one by one.",
)
@click.option(
    "--only",
    "steps",
    multiple=True,
    type=click.Choice(projections.STEPS),
    help="This step; those before it have left what it needs in the folder.",
)
@json_option
def projections_command(
    *,
    events: int,
    new_events: int | None,
    serving: bool,
    folder: Path | None,
    steps: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the export of the log and what Spark makes of it, on a log of so many events."""
    wanted = projections.plan(events, new_events, serving=serving, steps=steps)
    with tempfile.TemporaryDirectory(prefix="poste-bench-") as scratch:
        place = Path(scratch) if folder is None else folder
        place.mkdir(exist_ok=True)
        _measure(lambda bar: projections.run(wanted, place, bar), as_json=as_json)


@bench.command("cluster")
@_quick
@click.option("--moves", type=click.IntRange(0), help="Shards moved.  [default: 1000]")
@click.option(
    "--nodes", multiple=True, type=click.IntRange(1, 8), help="That serve.  [default: 1, 2]"
)
@json_option
def cluster_command(
    *, quick: bool, moves: int | None, nodes: tuple[int, ...], as_json: bool
) -> None:
    """Measure a cluster of some nodes on this machine, with a PostgreSQL of its own.

    Messages of both protocols accepted by one node and by more in turns and what each layer spends
    on them; then shards moved under load.
    """
    wanted = cluster.plan(quick=quick, moves=moves, nodes=nodes or (1, 2))
    _measure(lambda bar: cluster.run(wanted, bar), as_json=as_json)


@bench.command("idle")
@_quick
@click.option(
    "--nodes", multiple=True, type=click.IntRange(1, 16), help="Of how many.  [default: 1, 2, 4]"
)
@click.option("--hosts", type=click.IntRange(1, 64), default=1, show_default=True, help="Of each.")
@click.option("--among", type=click.IntRange(1), default=100, show_default=True)
@json_option
def idle_command(
    *, quick: bool, nodes: tuple[int, ...], hosts: int, among: int, as_json: bool
) -> None:
    """Measure what a node costs that does nothing, and read off what it would among many."""
    wanted = idle.plan(quick=quick, nodes=nodes or (1, 2, 4), hosts=hosts, among=among)
    _measure(lambda bar: idle.run(wanted, bar), as_json=as_json)


@bench.command("model")
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A report of cluster or idle, as JSON.  [default: those in tests/bench/measured]",
)
@click.option("--nodes", multiple=True, type=click.IntRange(1), help="[default: 10, 30, 100]")
@click.option("--databases", multiple=True, type=click.IntRange(1), help="[default: 1, 4, 16]")
@click.option("--edges", type=click.IntRange(1), default=8, show_default=True, help="Of a node.")
@click.option("--hosts", type=click.IntRange(1), default=1, show_default=True)
@json_option
def model_command(
    *,
    measured: tuple[Path, ...],
    nodes: tuple[int, ...],
    databases: tuple[int, ...],
    edges: int,
    hosts: int,
    as_json: bool,
) -> None:
    """Predict what larger clusters carry, and what breaks first, from what was measured of small
    ones; say how far the predictions are from that."""
    deployments = [
        scale_model.Deployment(
            nodes=each, databases=parts, edges_per_node=edges, hosts_per_node=hosts
        )
        for each in nodes or (10, 30, 100)
        for parts in databases or (1, 4, 16)
    ]
    files = measured or tuple(sorted(scale_report.MEASURED.glob("*.json")))
    found = scale_report.model(scale_report.read(files), deployments)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        scale_report.print_model(found)


@bench.command("envelopes")
@_quick
@json_option
def envelopes_command(*, quick: bool, as_json: bool) -> None:
    """Measure envelopes of DIDComm v2 against other libraries, packed and opened in turns."""
    wanted = envelopes.plan(quick=quick)
    _measure(lambda bar: envelopes.run(wanted, bar), as_json=as_json)


@bench.command("identities")
@_quick
@click.option("--count", type=click.IntRange(1_000), default=100_000, show_default=True)
@click.option("--waiting", type=click.IntRange(1_000), help="Queues.  [default: a tenth]")
@json_option
def identities_command(*, quick: bool, count: int, waiting: int | None, as_json: bool) -> None:
    """Measure a mediator with so many registered identities beside one with a thousand."""
    wanted = many_identities.plan(count, waiting, quick=quick)
    _measure(lambda bar: many_identities.run(wanted, bar), as_json=as_json)


@bench.command("scrape")
@click.option("--queues", type=click.IntRange(1_000), default=1_000_000, show_default=True)
@click.option("--log", "dsn", default="", help="An empty PostgreSQL database in place of SQLite.")
@json_option
def scrape_command(*, queues: int, dsn: str, as_json: bool) -> None:
    """Measure what a scrape and poste status cost a host where so many queues wait."""
    with tempfile.TemporaryDirectory(prefix="poste-bench-") as scratch:
        wanted = scrape.ScrapePlan(queues, dsn)
        _measure(lambda bar: scrape.run(wanted, Path(scratch), bar), as_json=as_json)


@bench.command("erasure")
@_quick
@json_option
def erasure_command(*, quick: bool, as_json: bool) -> None:
    """Measure the erasure of an identity with a long history, and what others feel of it."""
    wanted = erasure.plan(quick=quick)
    _measure(lambda bar: erasure.run(wanted, bar), as_json=as_json)


@bench.command("day")
@click.option("--messages", type=click.IntRange(10_000), default=5_000_000, show_default=True)
@click.option("--queues", type=click.IntRange(2), default=1_000, show_default=True)
@click.option("--rows-age", "rows_age_s", type=click.IntRange(0), default=3_600, show_default=True)
@click.option(
    "--every", "every_s", type=click.IntRange(60, 3_600), default=3_600, show_default=True
)
@click.option("--postgres", "on_postgres", is_flag=True, help="In PostgreSQL in place of SQLite.")
@json_option
def day_command(
    *, messages: int, queues: int, rows_age_s: int, every_s: int, on_postgres: bool, as_json: bool
) -> None:
    """Measure the disk that a day of messages takes, in simulated time."""
    with tempfile.TemporaryDirectory(prefix="poste-bench-") as scratch:
        wanted = day.DayPlan(messages, queues, rows_age_s, every_s, on_postgres)
        _measure(lambda bar: day.run_day(wanted, Path(scratch), bar), as_json=as_json)


def _measure(
    work: Callable[[ProgressBar], Coroutine[object, object, Report]], *, as_json: bool
) -> None:
    with progress_bars() as bar:
        report = asyncio.run(work(bar))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        print_report(report)


if __name__ == "__main__":
    bench()
