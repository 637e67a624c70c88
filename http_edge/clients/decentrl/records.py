"""A mediator's answers as frozen records, and iteration over their pages (DCTRL-0004 section 9).

Names on the wire are in ``name=``; if such a name lacks its unit, ours has it.

Two kinds of set need two kinds of iteration. A set that only grows at its end is read page after
page. A set that shrinks while it is read, because each page is acknowledged, is always read at page
0: asking for page 1 after acknowledging page 0 would skip a page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from http_edge.clients.decentrl.errors import CommandRefused, UnexpectedAnswer

PAGE_SIZE: Final = 100
_TOO_LARGE: Final = "INVALID_COMMAND"
Seconds: TypeAlias = int | float
Item = TypeVar("Item")


class PendingEvent(msgspec.Struct, frozen=True):
    """A message that waits until it is acknowledged (DCTRL-0004 8.7, 10.5)."""

    id: str
    sender_did: str
    payload: str


class PendingContractRequest(msgspec.Struct, frozen=True):
    """An encrypted contract request that waits until it is acknowledged (8.3)."""

    id: str
    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class StoredContract(msgspec.Struct, frozen=True):
    """A contract with the mediator's id for it (8.6); it may have expired."""

    id: str
    signed: dict[str, object] = msgspec.field(name="signed_communication_contract")


class SavedEvent(msgspec.Struct, frozen=True):
    """A storage-encrypted event of the identity's own history (8.10)."""

    id: str
    payload: str
    encrypted_tags: tuple[str, ...]
    timestamp_s: Seconds = msgspec.field(name="timestamp")


class EventToSave(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event for SAVE_EVENTS (8.9); ``payload`` is storage-encrypted already."""

    sender_did: str
    recipient_did: str
    timestamp_s: Seconds = msgspec.field(name="timestamp")
    payload: str
    encrypted_tags: list[str]
    contract_id: str | None = None


class PublicEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A public event with all that its signature covers (DCTRL-0007)."""

    id: str
    channel_id: str
    event: str
    tags: tuple[str, ...]
    timestamp_s: Seconds = msgspec.field(name="timestamp")
    event_signature: str


class Pagination(msgspec.Struct, frozen=True):
    """Where a page stands: zero-based index, requested size, matching records (9.2)."""

    page: int
    page_size: int
    total: int


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a query."""

    items: tuple[Item, ...]
    pagination: Pagination

    @property
    def has_more(self) -> bool:
        """Whether a further page exists (9.2)."""
        return (self.pagination.page + 1) * self.pagination.page_size < self.pagination.total


def page_of(answer: Mapping[str, object], name: str, kind: type[Item]) -> Page[Item]:
    """The page under ``name`` in a query's answer.

    Raises:
        UnexpectedAnswer: the page is absent or of another shape.
    """
    payload = member(answer, "payload", dict[str, object])
    items = member(payload, name, tuple[kind, ...])  # type: ignore[valid-type]  # kind is a value
    return Page(items, member(payload, "pagination", Pagination))


def member(answer: Mapping[str, object], name: str, kind: type[Item]) -> Item:
    """The member ``name`` of an answer as ``kind``.

    Raises:
        UnexpectedAnswer: the member is absent or of another shape.
    """
    try:
        return msgspec.convert(answer.get(name), kind)
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"member {name!r}: {error}") from error


class ReadPage(Protocol[Item]):
    """A query that returns one page of its records."""

    def __call__(self, *, page: int, page_size: int) -> Awaitable[Page[Item]]:
        """Read a page by its number, from 0, and its size."""


Waiting = TypeVar("Waiting", PendingEvent, PendingContractRequest)


async def each(read: ReadPage[Item], page_size: int = PAGE_SIZE) -> AsyncIterator[Item]:
    """Iterate over a set that does not shrink, in smaller pages where records are large.

    Raises:
        CommandRefused: the mediator refuses even a page of one record.
    """
    number = 0
    while True:
        page, number, page_size = await _fitting(read, number, page_size)
        for item in page.items:
            yield item
        if not page.has_more or not page.items:
            return
        number += 1


async def drained(
    read: ReadPage[Waiting],
    acknowledge: Callable[[Sequence[str]], Awaitable[None]],
    page_size: int = PAGE_SIZE,
) -> AsyncIterator[Waiting]:
    """Iterate over waiting records, and acknowledge them a page at a time until none is left.

    A page is acknowledged when the caller asks for the record after its last one, so a caller
    that fails in between is offered the whole page again.

    Raises:
        CommandRefused: the mediator refuses even a page of one record.
        UnexpectedAnswer: the mediator offers a record again after its acknowledgement.
    """
    acknowledged: frozenset[str] = frozenset()
    while True:
        page, _, page_size = await _fitting(read, 0, page_size)
        if not page.items:
            return
        ids = [item.id for item in page.items]
        if not acknowledged.isdisjoint(ids):
            raise UnexpectedAnswer("a record is offered again after its acknowledgement")
        for item in page.items:
            yield item
        await acknowledge(ids)
        acknowledged = frozenset(ids)


async def _fitting(
    read: ReadPage[Item], number: int, page_size: int
) -> tuple[Page[Item], int, int]:
    """Read the page, or a smaller one with the same beginning; return it, its number and its size.

    A mediator refuses a page of too many bytes as a whole.
    """
    while True:
        try:
            return await read(page=number, page_size=page_size), number, page_size
        except CommandRefused as refused:
            if refused.code != _TOO_LARGE or page_size == 1:
                raise
        smaller = page_size // 2 if page_size % 2 == 0 else 1
        number, page_size = number * (page_size // smaller), smaller
