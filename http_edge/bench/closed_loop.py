"""One closed-loop run: prepared bodies from a load process of its own, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from http_edge.bench.load import run_apart
from http_edge.bench.measurement import Measurement
from http_edge.bench.subject import Measured, measured_shots


@dataclass(frozen=True, slots=True)
class Run:
    """One closed-loop run: on how many connections, how many messages, for how long at most."""

    connections: int
    count: int
    seconds_max: float


def fired(
    name: str,
    subject: Measured,
    commands: Sequence[bytes],
    run: Run,
    *,
    numbered: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Post ``run.count`` commands, in turns when they are fewer; ``numbered`` as in ``Job``."""
    with subject.costs() as spent:
        shots = run_apart(
            subject.target,
            commands,
            connections=run.connections,
            seconds_max=run.seconds_max,
            count=run.count,
            numbered=numbered,
            progress=progress,
        )
    return measured_shots(f"{name}, {run.connections} connections", shots, spent)
