"""TWO_WAY_PRIVATE messages, each answered after its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from http_edge.bench.closed_loop import Run, fired
from http_edge.bench.measurement import Measurement
from http_edge.bench.population import Pair, contract, messages, registration
from http_edge.bench.shots import fire
from http_edge.bench.subject import Subject
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


def accepted_messages(
    name: str,
    subject: Subject,
    people: Sequence[Pair],
    run: Run,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Send messages of 1 KiB, the pairs taking turns."""
    return fired(name, subject, list(messages(people, run.count)), run, progress=progress)
