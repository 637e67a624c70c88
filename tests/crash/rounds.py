"""Who is written to next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

_T = TypeVar("_T")


def in_rounds(chance: Random, ones: Sequence[_T]) -> Iterator[_T]:
    """Each of these, in another order every time around.

    After a fault each is reached within two rounds: if chance alone chose, the time until all are
    served again would be that of the last to be chosen.
    """
    while True:
        yield from chance.sample(ones, len(ones))
