from __future__ import annotations

from collections.abc import Sequence

import pytest

from http_edge.clients.decentrl import CommandRefused, Page, PendingEvent, UnexpectedAnswer
from http_edge.clients.decentrl.records import Pagination, drained, each


class Shelf:
    """A queue of numbered events that shrinks when they are acknowledged.

    Pages of more than ``fit`` events are refused.
    """

    def __init__(self, count: int, fit: int = 100) -> None:
        self.waiting = [PendingEvent(str(number), "did:a", "p") for number in range(count)]
        self.fit = fit
        self.reads: list[int] = []
        self.acknowledged: list[list[str]] = []

    async def read(self, *, page: int, page_size: int) -> Page[PendingEvent]:
        if page_size > self.fit:
            raise CommandRefused("INVALID_COMMAND", 400)
        self.reads.append(page)
        items = self.waiting[page * page_size :][:page_size]
        return Page(tuple(items), Pagination(page, page_size, len(self.waiting)))

    async def acknowledge(self, ids: Sequence[str]) -> None:
        self.acknowledged.append(list(ids))
        self.waiting = [event for event in self.waiting if event.id not in ids]


@pytest.mark.parametrize(
    ("count", "reads"), [(0, [0]), (1, [0]), (3, [0]), (4, [0, 1]), (7, [0, 1, 2])]
)
async def test_a_set_that_stays_is_read_page_after_page(count: int, reads: list[int]) -> None:
    shelf = Shelf(count)
    assert [event.id async for event in each(shelf.read, 3)] == [str(n) for n in range(count)]
    assert shelf.reads == reads


async def test_any_other_refusal_of_a_page_is_raised() -> None:
    async def read(*, page: int, page_size: int) -> Page[PendingEvent]:
        raise CommandRefused(code, 400, None)

    for code, size in (("UNAUTHORIZED_COMMAND", 100), ("INVALID_COMMAND", 1)):
        with pytest.raises(CommandRefused, match=code):
            _ = [event async for event in each(read, size)]


async def test_a_set_that_shrinks_is_read_at_page_0_until_it_is_empty() -> None:
    shelf = Shelf(7)
    taken = [event.id async for event in drained(shelf.read, shelf.acknowledge, 3)]
    assert taken == [str(n) for n in range(7)]
    assert shelf.reads == [0, 0, 0, 0]
    assert shelf.acknowledged == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_a_page_is_not_acknowledged_before_all_of_it_was_taken() -> None:
    shelf = Shelf(7)
    async for event in drained(shelf.read, shelf.acknowledge, 3):
        if event.id == "5":
            break
    assert shelf.acknowledged == [["0", "1", "2"]]


async def test_a_mediator_that_forgets_acknowledgements_cannot_keep_the_client_busy() -> None:
    shelf = Shelf(2)

    async def ignore(_ids: Sequence[str]) -> None:
        pass

    taken = []

    async def take() -> None:
        async for event in drained(shelf.read, ignore, 3):
            taken.append(event.id)  # noqa: PERF401 - what was taken before the error counts

    with pytest.raises(UnexpectedAnswer, match="offered again"):
        await take()
    assert taken == ["0", "1"]


@pytest.mark.parametrize("fit", [12, 6, 4, 1])
async def test_pages_that_are_too_large_become_smaller_and_nothing_is_passed_over(fit: int) -> None:
    shelf = Shelf(31)
    taken = []
    async for event in each(shelf.read, 12):
        taken.append(event.id)
        shelf.fit = fit  # what comes later is larger
    assert taken == [str(n) for n in range(31)]
    assert [event.id async for event in drained(shelf.read, shelf.acknowledge, 12)] == taken


async def test_a_record_that_is_refused_by_itself_is_no_page_that_is_too_large() -> None:
    shelf = Shelf(3, fit=0)
    with pytest.raises(CommandRefused):
        await anext(each(shelf.read))
