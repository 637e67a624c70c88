"""Steps that prove something, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

PUSH_S_MAX: Final = 10.0
"""How long a step waits for a push."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One step of a walk: what was done, what it proves, whether that held, and the evidence."""

    step: str
    proves: str
    held: bool
    evidence: str


class Step(NamedTuple):
    """What is done, what it proves, and the method that does it and returns the evidence."""

    done: str
    proves: str
    run: Callable[[Any], Awaitable[str]]


def step(done: str, proves: str) -> Callable[[Callable[[Any], Awaitable[str]]], Step]:
    """Make a method of a walk one of its steps, which are run in the order of the class."""
    return partial(Step, done, proves)


class NotProven(Exception):
    """The mediator did not answer as it should."""


def check(condition: object, reason: str) -> None:
    """Raise NotProven with the reason unless the condition holds."""
    if not condition:
        raise NotProven(reason)


async def prove(failure: type[Exception], *walks: object) -> AsyncIterator[Proof]:
    """Run the steps of each walk up to the first that does not hold.

    A step does not hold if it raises NotProven, TimeoutError or ``failure``.
    """
    members = [(walk, member) for walk in walks for member in vars(type(walk)).values()]
    for walk, one in members:
        if not isinstance(one, Step):
            continue
        try:
            proof = Proof(one.done, one.proves, held=True, evidence=await one.run(walk))
        except (NotProven, TimeoutError, failure) as error:
            reason = str(error) or f"nothing arrived within {PUSH_S_MAX} s"
            proof = Proof(one.done, one.proves, held=False, evidence=reason)
        yield proof
        if not proof.held:
            return
