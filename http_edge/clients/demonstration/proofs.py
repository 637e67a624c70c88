"""Steps that prove something, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

PUSH_S_MAX: Final = 10.0
"""How long a step waits for a push."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One step of a walk: what was done, what it proves, whether that held, and the evidence."""

    step: str
    proves: str
    held: bool
    evidence: str


Step: TypeAlias = tuple[str, str, Callable[[], Awaitable[str]]]
"""What is done, what it proves, and the function that does it and returns the evidence."""


class NotProven(Exception):
    """The mediator did not answer as it should."""


def check(condition: object, reason: str) -> None:
    """Raise NotProven with the reason unless the condition holds."""
    if not condition:
        raise NotProven(reason)


async def prove(steps: Sequence[Step], failure: type[Exception]) -> AsyncIterator[Proof]:
    """Run the steps up to the first that does not hold.

    A step does not hold if it raises NotProven, TimeoutError or ``failure``.
    """
    for step, proves, run in steps:
        try:
            proof = Proof(step, proves, held=True, evidence=await run())
        except (NotProven, TimeoutError, failure) as error:
            reason = str(error) or f"nothing arrived within {PUSH_S_MAX} s"
            proof = Proof(step, proves, held=False, evidence=reason)
        yield proof
        if not proof.held:
            return
