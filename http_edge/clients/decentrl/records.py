"""What a mediator answers, as frozen records, and walks over their pages (DCTRL-0004 section 9).

The wire names stand in ``name=``; where the protocol leaves the unit out of a name, ours has it.

Two kinds of set need two kinds of walk. One that only grows at its end is read page after page.
One that shrinks while it is read (because what was read is acknowledged) is read at page 0
again and again: asking for page 1 after page 0 was acknowledged would skip a page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec

from http_edge.clients.decentrl.errors import CommandRefused, UnexpectedAnswer

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
    """A contract under the mediator's id for it (8.6); expired ones are listed too."""

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
    """The page under ``name`` of a query's answer.

    Raises:
        UnexpectedAnswer: the answer lacks it or it has another shape.
    """
    payload = member(answer, "payload", dict[str, object])
    items = member(payload, name, tuple[kind, ...])  # type: ignore[valid-type]  # kind is a value
    return Page(items, member(payload, "pagination", Pagination))


def member(answer: Mapping[str, object], name: str, kind: type[Item]) -> Item:
    """The member ``name`` of an answer as ``kind``.

    Raises:
        UnexpectedAnswer: it is absent or of another shape.
    """
    try:
        return msgspec.convert(answer.get(name), kind)
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"member {name!r}: {error}") from error


class Acknowledgeable(Protocol):
    """A record with an id under which it is acknowledged."""

    @property
    def id(self) -> str:
        """The mediator's id of the record."""


Waiting = TypeVar("Waiting", bound=Acknowledgeable)


async def each(
    read: Callable[[int, int], Awaitable[Page[Item]]], page_size: int
) -> AsyncIterator[Item]:
    """Every record of a set that does not shrink; ``read`` gets number and size of a page.

    A page of large records is refused as a whole: from there on there are fewer on each.
    """
    number, size = 0, page_size
    while True:
        try:
            page = await read(number, size)
        except CommandRefused as refused:
            if refused.code != "INVALID_COMMAND" or size <= 1:
                raise
            # What was read fills whole pages of any size that divides the one before.
            smaller = next(part for part in range(max(1, size // 4), 0, -1) if size % part == 0)
            number, size = number * (size // smaller), smaller
            continue
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
