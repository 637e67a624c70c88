from __future__ import annotations

from collections.abc import Sequence

import pytest

from http_edge.clients.decentrl import CommandRefused, Page, PendingEvent, UnexpectedAnswer
from http_edge.clients.decentrl.records import Pagination, drained, each


class Shelf:
    """A queue of numbered events that shrinks when they are acknowledged."""

    def __init__(self, count: int, page_size: int) -> None:
        self.waiting = [PendingEvent(str(number), "did:a", "p") for number in range(count)]
        self.page_size = page_size
        self.reads: list[int] = []
        self.acknowledged: list[list[str]] = []
        self.payload_max = 1_000

    async def read(self, number: int) -> Page[PendingEvent]:
        self.reads.append(number)
        items = self.waiting[number * self.page_size :][: self.page_size]
        return Page(tuple(items), Pagination(number, self.page_size, len(self.waiting)))

    async def read_sized(self, number: int, size: int) -> Page[PendingEvent]:
        self.page_size = size
        page = await self.read(number)
        if sum(len(event.payload) for event in page.items) > self.payload_max and size > 1:
            raise CommandRefused("INVALID_COMMAND", 400, None)
        return page

    async def acknowledge(self, ids: Sequence[str]) -> None:
        self.acknowledged.append(list(ids))
        self.waiting = [event for event in self.waiting if event.id not in ids]


@pytest.mark.parametrize(
    ("count", "reads"), [(0, [0]), (1, [0]), (3, [0]), (4, [0, 1]), (7, [0, 1, 2])]
)
async def test_a_set_that_stays_is_read_page_after_page(count: int, reads: list[int]) -> None:
    shelf = Shelf(count, page_size=3)
    found = [event.id async for event in each(shelf.read_sized, 3)]
    assert found == [str(n) for n in range(count)]
    assert shelf.reads == reads


async def test_where_a_page_is_too_large_smaller_ones_go_on_from_there() -> None:
    shelf = Shelf(350, page_size=100)
    large = range(260, 270)
    for number in large:
        shelf.waiting[number] = PendingEvent(str(number), "did:a", "p" * 400)
    found = [event.id async for event in each(shelf.read_sized, 100)]
    assert found == [str(n) for n in range(350)]
    assert shelf.reads[:5] == [0, 1, 2, 8, 9]
    assert shelf.page_size == 1


async def test_any_other_refusal_of_a_page_is_raised() -> None:
    async def read(_number: int, _size: int) -> Page[PendingEvent]:
        raise CommandRefused(code, 400, None)

    for code, size in (("UNAUTHORIZED_COMMAND", 100), ("INVALID_COMMAND", 1)):
        with pytest.raises(CommandRefused, match=code):
            _ = [event async for event in each(read, size)]


async def test_a_set_that_shrinks_is_read_at_page_0_until_it_is_empty() -> None:
    shelf = Shelf(7, page_size=3)
    taken = [event.id async for event in drained(shelf.read, shelf.acknowledge)]
    assert taken == [str(n) for n in range(7)]
    assert shelf.reads == [0, 0, 0, 0]
    assert shelf.acknowledged == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_a_page_is_not_acknowledged_before_all_of_it_was_taken() -> None:
    shelf = Shelf(7, page_size=3)
    async for event in drained(shelf.read, shelf.acknowledge):
        if event.id == "5":
            break
    assert shelf.acknowledged == [["0", "1", "2"]]


async def test_a_mediator_that_forgets_acknowledgements_cannot_keep_the_client_busy() -> None:
    shelf = Shelf(2, page_size=3)

    async def ignore(_ids: Sequence[str]) -> None:
        pass

    taken = []

    async def take() -> None:
        async for event in drained(shelf.read, ignore):
            taken.append(event.id)  # noqa: PERF401 - what was taken before the error counts

    with pytest.raises(UnexpectedAnswer, match="offered again"):
        await take()
    assert taken == ["0", "1"]
