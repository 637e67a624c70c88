"""The benchmark of a cluster on one machine: what a second node costs, and what moving shards does.

One node and two nodes take turns within one run, so that both see the same machine: where one
serves, the other is drained. Moves are made one shard each at a time, several shards at once.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import uvloop

from actors.partitions import shard_name
from http_edge.bench.answers import Answer, Heard, unaccepted
from http_edge.bench.envelopes import forwards, letters, routing_key_of
from http_edge.bench.layers import per_1000
from http_edge.bench.load import run_apart
from http_edge.bench.machine import machine
from http_edge.bench.measurement import Measurement, measured, percentile
from http_edge.bench.mediator import mediator_at
from http_edge.bench.messages import prepare
from http_edge.bench.own_cluster import SHARDS, OwnCluster
from http_edge.bench.own_database import database
from http_edge.bench.population import messages, pairs
from http_edge.bench.progress import ProgressBar
from http_edge.bench.registrations import register
from http_edge.bench.report import Report
from http_edge.bench.shots import Shots
from http_edge.bench.subject import Subject, document_at
from http_edge.bench.target import Target
from http_edge.bench.writers import Writers
from http_edge.wallet.transport import MEDIA_TYPE

CONNECTIONS: Final = 64
_PEOPLE: Final = 64
_POOL: Final = 1_024
_GENERATORS: Final = 2
"""One for each node; as many on one node, so that the load is made in the same way."""
_WRITERS: Final = 16
_MOVERS: Final = 4
_WARM_UP: Final = 400
_WARM_UP_S: Final = 3.0
_MICRO: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        rounds: How often one node and two nodes take turns.
        count: Messages of each protocol in each turn, at most.
        seconds_max: How long each turn may take.
        moves: Shards moved under load.
        calm_s: How long the same load runs without moves.
    """

    rounds: int
    count: int
    seconds_max: float
    moves: int
    calm_s: float


def plan(*, quick: bool, moves: int | None) -> Plan:
    """The usual plan of some minutes, or one that shows whether all of it works."""
    if quick:
        return Plan(rounds=1, count=400, seconds_max=2.0, moves=moves or 20, calm_s=1.0)
    return Plan(rounds=3, count=16_000, seconds_max=8.0, moves=moves or 1_000, calm_s=15.0)


def run(dsn: str | None, wanted: Plan, bar: ProgressBar) -> Report:
    """Measure a cluster started for this, with an empty database or a server of its own.

    Raises:
        RuntimeError: something did not start, or refused what the benchmark needs.
    """
    with (
        tempfile.TemporaryDirectory(prefix="poste-") as folder,
        database(dsn) as held,
        OwnCluster(Path(folder), held) as cluster,
    ):
        progress = bar("start nodes", 1)
        cluster.start(1, 2)
        cluster.until_spread(1, 2)
        progress(1)
        measurements = [
            *_throughput(cluster, wanted, bar),
            *uvloop.run(_moves(cluster, wanted, bar)),
        ]
    where = {
        "log": "PostgreSQL, named" if dsn else "PostgreSQL, started for this",
        "nodes": 2,
        "hosts_and_edges_per_node": 1,
        "shards": SHARDS,
        "connections": CONNECTIONS,
    }
    return Report(machine(), {**where, **msgspec.to_builtins(wanted)}, measurements)


@dataclass(slots=True)
class _Turns:
    """All turns of one protocol on so many nodes."""

    shots: list[Shots] = field(default_factory=list)
    seconds: float = 0.0
    spent_s: Counter[str] = field(default_factory=Counter)

    def add(self, fired: Sequence[Shots], spent_s: Mapping[str, float]) -> None:
        """Take one turn: what its generators saw at the same time, and what each layer spent."""
        self.shots += fired
        self.seconds += max(shots.elapsed_s for shots in fired)
        self.spent_s.update(spent_s)

    def measurement(self, name: str, ratio_to: Measurement | None) -> Measurement:
        """One line of all turns, with its rate as a share of another's."""
        latencies = array("Q")
        refused = Counter[str]()
        for shots in self.shots:
            latencies.extend(shots.latencies)
            refused.update(shots.refused)
        count = len(latencies)
        figures = per_1000(dict.fromkeys(self.spent_s, 0.0), self.spent_s, count)
        if ratio_to is not None and ratio_to.per_s:
            figures["ratio"] = count / self.seconds / ratio_to.per_s
        return measured(
            name,
            latencies,
            self.seconds,
            server_cpu_s_per_1000=sum(self.spent_s.values()) / max(1, count) * 1000,
            generator_cpu_us=sum(shots.cpu_s for shots in self.shots) / max(1, count) * _MICRO,
            figures=figures,
            refused=dict(refused),
        )


@dataclass(frozen=True, slots=True)
class _Load:
    """One protocol's messages: ``make`` gives the bodies of a turn for one generator."""

    name: str
    path: str
    media_type: str
    make: Callable[[int], Sequence[bytes]]
    numbered: bool

    def fire(self, targets: Sequence[Target], count: int, seconds_max: float) -> list[Shots]:
        """Post ``count`` messages from two generators, over 64 connections in all."""
        share = count // _GENERATORS
        bodies = [self.make(share) for _ in range(_GENERATORS)]

        def generate(number: int) -> Shots:
            return run_apart(
                targets[number % len(targets)].posting(self.path, self.media_type),
                bodies[number],
                connections=CONNECTIONS // _GENERATORS,
                seconds_max=seconds_max,
                count=share,
                numbered=self.numbered,
            )

        with ThreadPoolExecutor(_GENERATORS) as generators:
            return list(generators.map(generate, range(_GENERATORS)))


def _loads(target: Target) -> list[_Load]:
    """The load of both protocols, with everybody registered."""
    subject = Subject(target, document_at(target))
    people = pairs(_PEOPLE, subject.mediator)
    uvloop.run(prepare(subject, [pair.recipient for pair in people], people))
    mediator = uvloop.run(mediator_at(target, None))
    mailboxes, _ = uvloop.run(register(mediator, _PEOPLE))
    pool = forwards(letters(mailboxes, _POOL), routing_key_of(mailboxes[0]))
    return [
        _Load(
            "TWO_WAY_PRIVATE",
            target.path,
            target.media_type,
            lambda count: list(messages(people, count)),
            numbered=False,
        ),
        _Load("forwards", "/didcomm", MEDIA_TYPE, lambda _: pool, numbered=True),
    ]


def _throughput(cluster: OwnCluster, wanted: Plan, bar: ProgressBar) -> Iterator[Measurement]:
    first, second = cluster.nodes[1], cluster.nodes[2]
    loads = _loads(first.target)
    both = [first.target, second.target]
    for load in loads:
        load.fire(both, _WARM_UP, _WARM_UP_S)
    turns = {(load.name, nodes): _Turns() for load in loads for nodes in (1, 2)}
    progress, done = bar("one and two nodes", wanted.rounds * len(turns)), 0
    for number in range(wanted.rounds):
        # The order turns round each time: what comes first is not always the same.
        for nodes in (1, 2) if number % 2 == 0 else (2, 1):
            cluster.orders.drain(first.target, second.name, draining=nodes == 1)
            cluster.until_spread(*range(1, nodes + 1))
            for load in loads:
                before = cluster.spent_s()
                shots = load.fire(both[:nodes], wanted.count, wanted.seconds_max)
                after = cluster.spent_s()
                spent = {layer: after[layer] - before[layer] for layer in after}
                turns[load.name, nodes].add(shots, spent)
                done += 1
                progress(done)
    cluster.orders.drain(first.target, second.name, draining=False)
    cluster.until_spread(1, 2)
    for load in loads:
        one = turns[load.name, 1].measurement(f"{load.name}, one node", None)
        yield one
        yield turns[load.name, 2].measurement(f"{load.name}, two nodes", one)


async def _moves(cluster: OwnCluster, wanted: Plan, bar: ProgressBar) -> list[Measurement]:
    """The same load without and with moves, and what was lost of it."""
    nodes = [cluster.nodes[1], cluster.nodes[2]]
    targets = [node.target for node in nodes]
    mediator = await asyncio.to_thread(document_at, targets[0])
    writers = await Writers.arrive(targets, Subject(targets[0], mediator), _WRITERS)
    progress = bar("moves", wanted.moves)
    async with writers:
        calm_since_s = time.monotonic()
        await asyncio.sleep(wanted.calm_s)
        moving_since_s = time.monotonic()
        moved = await _move(cluster, wanted.moves, progress)
        over_s = time.monotonic()
        await asyncio.sleep(1.0)
    calm = writers.sent(calm_since_s, moving_since_s)
    moving = writers.sent(moving_since_s, over_s)
    judgement = await writers.judgement()
    figures = {
        "moves": len(moved.latencies_ns),
        "moves_not_done": moved.failed,
        "moves_per_s": len(moved.latencies_ns) / (over_s - moving_since_s),
        "move_p50_ms": moved.percentile_ms(50),
        "move_p99_ms": moved.percentile_ms(99),
        "not_accepted": sum(unaccepted(moving).values()),
        **judgement._asdict(),
    }
    return [
        commands("commands without moves", calm, moving_since_s - calm_since_s, {}),
        commands("commands during moves", moving, over_s - moving_since_s, figures),
    ]


def commands(
    name: str, answers: Sequence[Answer], seconds: float, figures: Mapping[str, float]
) -> Measurement:
    """What writers heard in this time, as a measurement of what was accepted."""
    accepted = [answer for answer in answers if answer.heard is Heard.ACCEPTED]
    waited = [int((one.answered_s - one.sent_s) * _NS_PER_S) for one in accepted]
    longest = {"longest_ms": max(waited) / _NS_PER_MS} if waited else {}
    return measured(
        name, waited, seconds, figures={**longest, **figures}, refused=dict(unaccepted(answers))
    )


@dataclass(slots=True)
class _Moved:
    latencies_ns: list[int] = field(default_factory=list)
    failed: int = 0

    def percentile_ms(self, percent: float) -> float:
        """Of the moves that were made; 0 without any."""
        ordered = sorted(self.latencies_ns)
        return percentile(ordered, percent) / _NS_PER_MS if ordered else 0.0


async def _move(cluster: OwnCluster, count: int, progress: Callable[[int], None]) -> _Moved:
    """Move shards to and fro, each mover its own."""
    nodes = [cluster.nodes[1], cluster.nodes[2]]
    places = await asyncio.to_thread(cluster.orders.places, nodes[0].target)
    if places is None:
        raise RuntimeError("the placer does not say where the shards are")
    where = {place.shard: place.node for place in places.shards}
    moved, left = _Moved(), iter(range(count))

    async def move(session: aiohttp.ClientSession, mover: int) -> None:
        own = [shard_name(index) for index in range(mover, SHARDS, _MOVERS)]
        for turn, _ in enumerate(left):
            shard = own[turn % len(own)]
            to = next(node.name for node in nodes if node.name != where[shard])
            began = time.perf_counter_ns()
            if await cluster.orders.move(session, nodes[0].target, shard, to):
                where[shard] = to
                moved.latencies_ns.append(time.perf_counter_ns() - began)
            else:
                moved.failed += 1
            progress(len(moved.latencies_ns) + moved.failed)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(move(session, mover) for mover in range(_MOVERS)))
    return moved
