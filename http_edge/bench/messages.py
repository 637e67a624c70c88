"""TWO_WAY_PRIVATE messages, each answered after its commit, from a load process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from http_edge.bench.load import run_apart
from http_edge.bench.measurement import Measurement
from http_edge.bench.population import Pair, contract, messages, registration
from http_edge.bench.shots import fire
from http_edge.bench.subject import Subject, measured_shots
from http_edge.client import Identity

SETUP_CONNECTIONS: Final = 32
_SETUP_S_MAX: Final = 900.0


async def prepare(
    subject: Subject,
    registered: Sequence[Identity],
    people: Sequence[Pair],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Register the identities, then let each recipient save its contract.

    Raises:
        RuntimeError: the mediator refused one.
    """
    for commands in (
        [registration(identity, subject.mediator) for identity in registered],
        [contract(pair, subject.mediator) for pair in people],
    ):
        shots = await fire(
            subject.target,
            commands,
            connections=min(SETUP_CONNECTIONS, len(commands)),
            seconds_max=_SETUP_S_MAX,
            progress=progress,
        )
        if shots.refused:
            raise RuntimeError(f"set-up refused: {shots.refused}")


@dataclass(frozen=True, slots=True)
class Run:
    """One closed-loop run: on how many connections, how many messages, for how long at most."""

    connections: int
    count: int
    seconds_max: float


def accepted_messages(
    name: str,
    subject: Subject,
    people: Sequence[Pair],
    run: Run,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Send messages of 1 KiB, the pairs taking turns."""
    commands = list(messages(people, run.count))
    with subject.costs() as spent:
        shots = run_apart(
            subject.target,
            commands,
            connections=run.connections,
            seconds_max=run.seconds_max,
            progress=progress,
        )
    return measured_shots(f"{name}, {run.connections} connections", shots, spent)
