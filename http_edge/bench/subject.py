"""What a run is taken from: the mediator, and the counters that tell what the run cost it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.processes import ProcessTree
from http_edge.bench.server import OwnServer, commits
from http_edge.bench.shots import Shots
from http_edge.bench.target import Target
from http_edge.client import ONCE, MediatorClient
from http_edge.dids import DidDocument

_MICRO = 1_000_000


@dataclass(slots=True)
class Costs:
    """What the server spent between two moments; None where it cannot be known."""

    cpu_s: float | None = None
    commits: int | None = None

    def per(self, count: int, seconds: float) -> dict[str, float]:
        """The figures of a measurement of ``count`` things in ``seconds``."""
        figures = {}
        if self.cpu_s is not None and count:
            figures["server_cpu_s_per_1000"] = self.cpu_s / count * 1000
        if self.commits is not None and seconds:
            figures["commits_per_s"] = self.commits / seconds
        return figures


class Measured(Protocol):
    """A running mediator of whatever kind."""

    @property
    def target(self) -> Target:
        """Where the load goes."""

    def costs(self) -> AbstractContextManager[Costs]:
        """What the server spends while the block runs; filled in when it ends."""


@contextmanager
def spending(target: Target, processes: ProcessTree | None) -> Iterator[Costs]:
    """What a server with these processes spends while the block runs."""
    spent = Costs()
    commits_before = commits(target)
    cpu_before_s = processes.cpu_s() if processes else None
    yield spent
    if processes and cpu_before_s is not None:
        spent.cpu_s = processes.cpu_s() - cpu_before_s
    commits_after = commits(target)
    if commits_before is not None and commits_after is not None:
        spent.commits = commits_after - commits_before


@dataclass(frozen=True, slots=True)
class Subject:
    """A running mediator; ``processes`` is None where its process id was not given."""

    target: Target
    mediator: DidDocument
    processes: ProcessTree | None = field(default=None)

    def costs(self) -> AbstractContextManager[Costs]:
        """What the server spends while the block runs; filled in when it ends."""
        return spending(self.target, self.processes)


def subject_of(server: OwnServer) -> Subject:
    """A server of our own, asked for its DID document."""
    return Subject(server.target, document_at(server.target), server.processes)


def document_at(target: Target) -> DidDocument:
    """The DID document of the mediator there.

    Raises:
        ClientError: there is none.
    """

    async def fetch() -> DidDocument:
        async with MediatorClient(target.url, backoff=ONCE) as client:
            return await client.document()

    return asyncio.run(fetch())


def measured_shots(name: str, shots: Shots, spent: Costs) -> Measurement:
    """The measurement of one run of the load generator."""
    return measured(
        name,
        shots.latencies,
        shots.elapsed_s,
        generator_cpu_us=shots.cpu_s / max(1, shots.accepted) * _MICRO,
        refused=shots.refused,
        **spent.per(shots.accepted, shots.elapsed_s),
    )
