"""The read model behind GET /public/:did (DCTRL-0007).

Lists of a publisher: by event id; all; for each tag; for each channel; and for each tag within a
channel. A withdrawn event leaves every list at once. An event whose content is not in the log is on
no page: the log was restored from an export that ended before the event was withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from eventstore.log.content import is_there, text_of
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import PageBounds, PublicEvent, PublicEventsFilter, PublicEventsPage
from eventstore.log.events import AnyPublicEventPublished, Event
from eventstore.log.session import Session
from eventstore.read_models.postings import (
    ListKey,
    Narrowing,
    Posting,
    add,
    events_of_page,
    facts_of,
    list_key,
    list_keys,
    newest,
    on_lists,
    page,
    remove,
    tag_lists,
)

_ALL: Final = "public"
_ID: Final = "public id"


def publish(session: Session, owner: UUID, version: int, event: AnyPublicEventPublished) -> None:
    """Record a public event that stands at ``version`` of the publisher's stream."""
    add(session, on_lists(_lists(owner, event), Posting(float(event.timestamp_s), version)))


def withdraw(
    session: Session, owner: UUID, event_ids: Iterable[str], channel_id: str | None = None
) -> None:
    """Remove the publisher's events from all lists; ids that it does not have change nothing.

    If ``channel_id`` is given, events of other channels stay.
    """
    ids = list_keys(owner, (_ID,), dict.fromkeys(event_ids))
    postings = list(newest(session, ids).values())
    events = _read(owner, postings, partial(facts_of, session, owner))
    remove(
        session,
        [
            row
            for posting, published in zip(postings, events, strict=True)
            if channel_id in (None, published.channel_id)
            for row in on_lists(_lists(owner, published), posting)
        ],
    )


def query(
    session: Session, owner: UUID, where: PublicEventsFilter, bounds: PageBounds
) -> PublicEventsPage:
    """A page of the publisher's events, newest first, and the exact total.

    Raises:
        CorruptRow: the log does not hold what the read model refers to.
        PageTooLarge: its records are more than ``bytes_max``.
    """
    names = _names(where.channel_id)
    postings, total = page(
        session,
        tag_lists(owner, names, where.tags) or [list_key(owner, *names)],
        Narrowing(where.after_timestamp_s, where.before_timestamp_s),
        bounds,
        newest_first=True,
    )
    bytes_max = bounds.bytes_max if len(postings) > 1 else None  # one event may have any size
    read = partial(events_of_page, session, owner, bytes_max=bytes_max)
    events = [
        PublicEvent(
            event.event_id,
            event.channel_id,
            text_of(event.event),
            event.tags,
            event.timestamp_s,
            event.event_signature,
        )
        for event in _read(owner, postings, read)
        if is_there(event.event)
    ]
    return PublicEventsPage(events, total)


def _lists(owner: UUID, event: AnyPublicEventPublished) -> list[ListKey]:
    """Every list that the event is on."""
    keys = [list_key(owner, _ID, event.event_id)]
    for channel in (None, event.channel_id):
        keys.append(list_key(owner, *_names(channel)))
        keys += tag_lists(owner, _names(channel), event.tags)
    return keys


def _names(channel_id: str | None) -> tuple[str, ...]:
    return (_ALL,) if channel_id is None else (_ALL, "channel", channel_id)


def _read(
    owner: UUID, postings: Sequence[Posting], read: Callable[[set[int]], dict[int, Event]]
) -> list[AnyPublicEventPublished]:
    """The events of postings; ``read`` reads the events at some versions."""
    found = read({posting.version for posting in postings})
    events = []
    for posting in postings:
        event = found.get(posting.version)
        if not isinstance(event, AnyPublicEventPublished):
            raise CorruptRow(f"{owner} at {posting.version}: not a public event")
        events.append(event)
    return events
