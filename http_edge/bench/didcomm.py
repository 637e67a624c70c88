"""The benchmark of DIDComm v1 mediation: what runs, in which order, how much of it.

What is compared takes turns within one run: at each number of connections the mediator, then the
edge alone, then the peer, so that all of them see the same machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from http_edge.bench.acapy_peer import AcaPy, come_to_rest
from http_edge.bench.closed_loop import Run, fired
from http_edge.bench.envelopes import forwards, letters, routing_key_of
from http_edge.bench.idle_sockets import idle_sockets
from http_edge.bench.live import at_a_pace, one_by_one
from http_edge.bench.machine import machine
from http_edge.bench.measurement import Measurement
from http_edge.bench.mediator import Door, Mailbox, Mediator, mediator_at, mediator_of
from http_edge.bench.pickup import Way, drain
from http_edge.bench.processes import ProcessTree
from http_edge.bench.progress import ProgressBar
from http_edge.bench.queue_memory import queue_memory
from http_edge.bench.registrations import register
from http_edge.bench.report import Report
from http_edge.bench.server import OwnServer
from http_edge.bench.target import Target

MAILBOXES: Final = 64
STORED: Final = "forwards"
ALONE: Final = "edge alone"
PEER: Final = "ACA-Py"
_POOL: Final = 4_096
_WARM_UP: Final = Run(connections=16, count=1_000, seconds_max=3.0)
_FILL: Final = 32
_FILL_S_MAX: Final = 120.0
_EMPTYING: Final = 100
"""Limit of the deliveries that empty the queues between runs."""
_DRAINS: Final[tuple[tuple[Way, int], ...]] = (
    ("HTTP", 10),
    ("HTTP", 100),
    ("WebSocket", 10),
    ("WebSocket", 100),
)
_LIVE_SOCKETS: Final = 16
_LIVE_PER_S: Final = 300


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: bounded in count and in time.

    Attributes:
        runs: The closed-loop runs of forwards.
        drained: Messages that each way of picking up empties from the queues.
        single: Live deliveries one by one.
        paced: Live deliveries at 300/s.
        registrations: Wallets that register.
        queued: Messages whose memory is measured.
        sockets: Idle sockets.
    """

    runs: tuple[Run, ...]
    drained: int
    single: int
    paced: int
    registrations: int
    queued: int
    sockets: int


def plan(*, quick: bool, scale: bool, sockets: int | None) -> Plan:
    """The usual plan, or one of about a minute that shows whether all of it works.

    ``sockets`` of None is 2,000, and 10,000 at scale.
    """
    share, seconds_max = (20, 3.0) if quick else (1, 10.0)
    idle = (10_000 if scale else 2_000) // share
    return Plan(
        runs=tuple(
            Run(connections, count // share, seconds_max)
            for connections, count in ((1, 4_000), (16, 30_000), (64, 40_000))
        ),
        drained=20_000 // share,
        single=1_000 // share,
        paced=6_000 // share,
        registrations=2_000 // share,
        queued=40_000 // share,
        sockets=idle if sockets is None else sockets,
    )


def run(
    url: str | None, pid: int | None, wanted: Plan, acapy: Path | None, bar: ProgressBar
) -> Report:
    """Measure the mediator at ``url``, or one started for this in a temporary directory.

    ``pid`` is the main process of the mediator at ``url``: with it CPU time is measured too.
    ``acapy`` is the program of the peer; None leaves it out. Memory is measured of servers that
    are started for it.

    Raises:
        ValueError: the URL is not one of this machine.
        RuntimeError: a server did not start, or refused what the benchmark needs.
        WalletError: no mediator answers at the URL, or it does not answer as it should.
    """
    with _mediator(url, pid) as mediator:
        mailboxes, _ = uvloop.run(register(mediator, MAILBOXES, progress=bar("set up", MAILBOXES)))
        own = _Own(mediator, mailboxes, _pool(mailboxes, routing_key_of(mailboxes[0])))
        measurements = [*_compared(own, wanted, acapy, bar), *_measured(own, wanted, bar)]
    with tempfile.TemporaryDirectory() as directory:
        measurements.append(queue_memory(Path(directory), wanted.queued, bar))
    if wanted.sockets:
        with tempfile.TemporaryDirectory() as directory:
            measurements.append(idle_sockets(Path(directory), wanted.sockets, bar))
    where = {
        "mediator": url or "poste serve, started for this",
        "peer": str(acapy) if acapy else "none",
        "mailboxes": MAILBOXES,
    }
    return Report(machine(), {**where, **msgspec.to_builtins(wanted)}, measurements)


@contextmanager
def _mediator(url: str | None, pid: int | None) -> Iterator[Mediator]:
    if url is not None:
        processes = ProcessTree(pid) if pid else None
        yield uvloop.run(mediator_at(Target.at(url), processes))
        return
    with tempfile.TemporaryDirectory() as directory, OwnServer(Path(directory)) as server:
        yield mediator_of(server)


def _pool(mailboxes: Sequence[Mailbox], routing_key: bytes) -> list[bytes]:
    return forwards(letters(mailboxes, _POOL), routing_key)


@dataclass(frozen=True, slots=True)
class _Own:
    """The mediator, wallets that it holds messages for, and forwards for them."""

    mediator: Mediator
    mailboxes: Sequence[Mailbox]
    pool: Sequence[bytes]

    def empty(
        self, accepted: int, limit: int, way: Way, progress: Callable[[int], None]
    ) -> Measurement:
        """Take what was accepted out of the queues again.

        Raises:
            RuntimeError: it is not as many messages.
        """
        draining = drain(self.mediator, self.mailboxes, limit=limit, way=way, progress=progress)
        line = uvloop.run(draining)
        if line.figures["messages"] != accepted:
            raise RuntimeError(f"{accepted} accepted, {line.figures['messages']} delivered")
        return line


@dataclass(frozen=True, slots=True)
class _Contender:
    """One of those that take the same load in turns.

    ``knows_retries``: the same bytes are no second message there, so each body has to differ.
    ``settle`` brings the server back to where it was before so many messages were accepted, and
    gives figures about it.
    """

    name: str
    door: Door
    pool: Sequence[bytes]
    settle: Callable[[int], dict[str, float]]
    knows_retries: bool = True


def _compared(
    own: _Own, wanted: Plan, acapy: Path | None, bar: ProgressBar
) -> Iterator[Measurement]:
    """The runs of forwards; what is compared with the mediator tells how many times its rate is."""

    def settle(accepted: int) -> dict[str, float]:
        own.empty(accepted, _EMPTYING, "HTTP", bar("drain", accepted))
        return {}

    with ExitStack() as stack:
        contenders = [_Contender(STORED, own.mediator, own.pool, settle), _alone(stack, own)]
        if acapy is not None:
            contenders.append(_peer(stack, acapy))
        for run in (_WARM_UP, *wanted.runs):
            rate = 0.0
            for one in contenders:
                bars = bar(f"{one.name}, {run.connections}", run.count)
                line = fired(
                    one.name, one.door, one.pool, run, numbered=one.knows_retries, progress=bars
                )
                figures = one.settle(line.count)
                if one.name == STORED:
                    rate = line.per_s
                elif line.per_s:
                    figures = {**figures, "mediator_ratio": rate / line.per_s}
                if run is not _WARM_UP:
                    yield msgspec.structs.replace(line, figures=figures)


def _alone(stack: ExitStack, own: _Own) -> _Contender:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    alone = mediator_of(stack.enter_context(OwnServer(directory, echo=True)))
    pool = _pool(own.mailboxes, alone.invitation.key)
    return _Contender(ALONE, alone, pool, lambda _: {})


def _peer(stack: ExitStack, acapy: Path) -> _Contender:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(AcaPy(acapy, directory))
    mailboxes = uvloop.run(server.mailboxes(MAILBOXES))
    pool = _pool(mailboxes, routing_key_of(mailboxes[0]))

    def settle(_: int) -> dict[str, float]:
        return {"worked_off_after_s": come_to_rest(server.processes)}

    return _Contender(PEER, server.door, pool, settle, knows_retries=False)


def _measured(own: _Own, wanted: Plan, bar: ProgressBar) -> Iterator[Measurement]:
    for way, limit in _DRAINS:
        fill = Run(_FILL, wanted.drained, _FILL_S_MAX)
        bars = bar("fill", fill.count)
        filled = fired("fill", own.mediator, own.pool, fill, numbered=True, progress=bars)
        title = f"drain by {limit}, {way}"
        yield own.empty(filled.count, limit, way, bar(title, filled.count))
    bars = bar("live, one by one", wanted.single)
    yield uvloop.run(one_by_one(own.mediator, own.mailboxes[0], wanted.single, progress=bars))
    live = at_a_pace(
        own.mediator,
        own.mailboxes[:_LIVE_SOCKETS],
        count=wanted.paced,
        per_s=_LIVE_PER_S,
        progress=bar(f"live at {_LIVE_PER_S}/s", wanted.paced),
    )
    yield uvloop.run(live)
    bars = bar("register", wanted.registrations)
    _, line = uvloop.run(register(own.mediator, wanted.registrations, progress=bars))
    yield line
