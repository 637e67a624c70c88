"""The benchmark of the Decentrl protocol: what runs, in which order, how much of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from http_edge.bench.closed_loop import Run
from http_edge.bench.drain import drain
from http_edge.bench.history import query_history, save_history
from http_edge.bench.machine import machine
from http_edge.bench.measurement import Measurement
from http_edge.bench.messages import accepted_messages, prepare
from http_edge.bench.population import Pair, pairs
from http_edge.bench.processes import ProcessTree
from http_edge.bench.progress import ProgressBar
from http_edge.bench.push import push_latency
from http_edge.bench.report import Report
from http_edge.bench.scale import measure_scale
from http_edge.bench.server import OwnServer
from http_edge.bench.subject import Subject, document_at, subject_of
from http_edge.bench.target import Target
from http_edge.client import Identity

PAIRS: Final = 64
_WARM_UP: Final = Run(connections=16, count=500, seconds_max=5.0)
_DRAIN_CONNECTIONS: Final = 16
_PUSH_SOCKETS: Final = 16
_PUSHES_PER_S: Final = 500


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: bounded in count and in time.

    Attributes:
        runs: The closed-loop runs of messages.
        pushes: Messages at 500/s whose push is timed.
        saved_events: Length of the history that is queried; 0 leaves it out.
        identities: Registered identities of the measurement at scale; 0 leaves it out.
        queued: Messages that wait for them.
    """

    runs: tuple[Run, ...]
    pushes: int
    saved_events: int
    identities: int = 0
    queued: int = 0


def plan(*, quick: bool, saved_events: int | None, scale: bool) -> Plan:
    """The usual plan, or one of well under a minute that shows whether all of it works."""
    share, seconds_max = (20, 3.0) if quick else (1, 10.0)
    return Plan(
        runs=tuple(
            Run(connections, count // share, seconds_max)
            for connections, count in ((1, 5_000), (16, 40_000), (64, 80_000))
        ),
        pushes=5_000 // share,
        saved_events=100_000 // share if saved_events is None else saved_events,
        identities=100_000 // (share * share) if scale else 0,
        queued=1_000_000 // (share * share) if scale else 0,
    )


def run(url: str | None, pid: int | None, wanted: Plan, bar: ProgressBar) -> Report:
    """Measure the mediator at ``url``, or one started for this in a temporary directory.

    ``pid`` is the main process of the mediator at ``url``: with it CPU time is measured too.

    Raises:
        ValueError: the URL is not one of this machine.
        RuntimeError: a mediator did not start, or refused what the benchmark needs.
        ClientError: no mediator answers at the URL.
    """
    with _subject(url, pid) as subject:
        measurements = [*_measure(subject, wanted, bar)]
    with tempfile.TemporaryDirectory() as directory, OwnServer(Path(directory), echo=True) as echo:
        alone = subject_of(echo)
        people = pairs(PAIRS, alone.mediator)
        measurements += _messages("edge alone", alone, people, wanted, bar)
    if wanted.identities:
        with tempfile.TemporaryDirectory() as directory:
            measurements += measure_scale(Path(directory), wanted.identities, wanted.queued, bar)
    where = {"mediator": url or "poste serve, started for this", "pairs": PAIRS}
    return Report(machine(), {**where, **msgspec.to_builtins(wanted)}, measurements)


@contextmanager
def _subject(url: str | None, pid: int | None) -> Iterator[Subject]:
    if url is not None:
        target = Target.at(url)
        yield Subject(target, document_at(target), ProcessTree(pid) if pid else None)
        return
    with tempfile.TemporaryDirectory() as directory, OwnServer(Path(directory)) as server:
        yield subject_of(server)


def _measure(subject: Subject, wanted: Plan, bar: ProgressBar) -> Iterator[Measurement]:
    people = pairs(PAIRS, subject.mediator)
    recipients = [pair.recipient for pair in people]
    owner = Identity.create("owner", subject.mediator.did)
    registered = [*recipients, owner]
    uvloop.run(prepare(subject, registered, people, progress=bar("set up", len(registered))))
    yield from _messages("stored", subject, people, wanted, bar, recipients)
    listening = people[:_PUSH_SOCKETS]
    pushed = push_latency(
        subject,
        listening,
        count=wanted.pushes,
        per_s=_PUSHES_PER_S,
        progress=bar("live push", wanted.pushes),
    )
    yield uvloop.run(pushed)
    if wanted.saved_events:
        bars = bar("save events", wanted.saved_events)
        yield uvloop.run(save_history(subject, owner, wanted.saved_events, progress=bars))
        yield from uvloop.run(query_history(subject, owner, wanted.saved_events))


def _messages(
    name: str,
    subject: Subject,
    people: list[Pair],
    wanted: Plan,
    bar: ProgressBar,
    recipients: list[Identity] | None = None,
) -> Iterator[Measurement]:
    """All runs; with ``recipients`` their queues are emptied after each, the last one reported."""
    emptied: list[Measurement] = []
    for run in (_WARM_UP, *wanted.runs):
        title = f"{name}, {run.connections}"
        line = accepted_messages(name, subject, people, run, progress=bar(title, run.count))
        if run is not _WARM_UP:
            yield line
        if recipients is not None:
            bars = bar("drain", line.count)
            draining = drain(subject, recipients, connections=_DRAIN_CONNECTIONS, progress=bars)
            emptied = [uvloop.run(draining)]
    yield from emptied
