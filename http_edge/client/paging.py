"""Walks over paged queries (DCTRL-0004 section 9).

Two kinds of set need two kinds of walk. One that only grows at its end is read page after page.
One that shrinks while it is read (because what was read is acknowledged) is read at page 0
again and again: asking for page 1 after page 0 was acknowledged would skip a page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from http_edge.client.errors import UnexpectedAnswer
from http_edge.client.records import Page

Item = TypeVar("Item")


class Acknowledgeable(Protocol):
    """A record with an id under which it is acknowledged."""

    @property
    def id(self) -> str:
        """The mediator's id of the record."""


Waiting = TypeVar("Waiting", bound=Acknowledgeable)


async def each(read: Callable[[int], Awaitable[Page[Item]]]) -> AsyncIterator[Item]:
    """Every record of a set that does not shrink; ``read`` gets the page number."""
    number = 0
    while True:
        page = await read(number)
        for item in page.items:
            yield item
        if not page.has_more or not page.items:
            return
        number += 1


async def drained(
    read: Callable[[int], Awaitable[Page[Waiting]]],
    acknowledge: Callable[[Sequence[str]], Awaitable[None]],
) -> AsyncIterator[Waiting]:
    """Every waiting record, acknowledged a page at a time until none is left.

    A page is acknowledged when the caller asks for the record after its last one, so a caller
    that fails in between is offered the whole page again.

    Raises:
        UnexpectedAnswer: the mediator offers a record again that it said was acknowledged.
    """
    acknowledged: frozenset[str] = frozenset()
    while True:
        page = await read(0)
        if not page.items:
            return
        ids = [item.id for item in page.items]
        if not acknowledged.isdisjoint(ids):
            raise UnexpectedAnswer("a record is offered again after its acknowledgement")
        for item in page.items:
            yield item
        await acknowledge(ids)
        acknowledged = frozenset(ids)
