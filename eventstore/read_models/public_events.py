"""The read model behind GET /public/:did (DCTRL-0007).

Lists of a publisher: by event id; all; for each tag; for each channel; and for each tag within a
channel. A withdrawn event leaves every list at once; the log keeps what was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from eventstore.log.codec import decode
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import PublicEvent, PublicEventsFilter, PublicEventsPage
from eventstore.log.events import PublicEventPublished, PublicEventsDeleted
from eventstore.log.session import Session
from eventstore.read_models.postings import (
    ListKey,
    Narrowing,
    Posting,
    add,
    list_key,
    list_keys,
    newest,
    on_lists,
    page,
    remove,
    rows_of_page,
)

_ALL: Final = "public"
_ID: Final = "public id"
_TAG: Final = "tag"


def publish(session: Session, owner: UUID, version: int, event: PublicEventPublished) -> None:
    """Record a public event that stands at ``version`` of the publisher's stream."""
    add(session, on_lists(_lists(owner, event), Posting(float(event.timestamp_s), version)))


def withdraw(session: Session, owner: UUID, event: PublicEventsDeleted) -> None:
    """Take the publisher's events off all lists; ids that it does not have change nothing."""
    ids = list_keys(owner, (_ID,), dict.fromkeys(event.event_ids))
    postings = list(newest(session, ids).values())
    remove(
        session,
        [
            row
            for posting, published in zip(postings, _read(session, owner, postings), strict=True)
            if event.channel_id in (None, published.channel_id)
            for row in on_lists(_lists(owner, published), posting)
        ],
    )


def query(
    session: Session,
    owner: UUID,
    where: PublicEventsFilter,
    *,
    offset: int,
    limit: int,
    bytes_max: int | None,
) -> PublicEventsPage:
    """A page of the publisher's events, newest first, and the exact total.

    Raises:
        CorruptRow: the log does not hold what the read model refers to.
        PageTooLarge: its records are more than ``bytes_max``.
    """
    any_of: Sequence[str | None] = sorted(set(where.tags)) or (None,)
    postings, total = page(
        session,
        [_list(owner, where.channel_id, tag) for tag in any_of],
        Narrowing(where.after_timestamp_s, where.before_timestamp_s),
        newest_first=True,
        offset=offset,
        limit=limit,
    )
    events = [
        PublicEvent(
            event.event_id,
            event.channel_id,
            event.event,
            event.tags,
            event.timestamp_s,
            event.event_signature,
        )
        for event in _read(session, owner, postings, bytes_max)
    ]
    return PublicEventsPage(events, total)


def _lists(owner: UUID, event: PublicEventPublished) -> list[ListKey]:
    """Every list that the event is on."""
    tags = set(event.tags)
    keys = [list_key(owner, _ID, event.event_id)]
    for channel in (None, event.channel_id):
        keys.append(_list(owner, channel, None))
        keys += list_keys(owner, (*_names(channel), _TAG), tags)
    return keys


def _list(owner: UUID, channel_id: str | None, tag: str | None) -> ListKey:
    """The list for a channel and a tag; None stands for any."""
    by_tag = () if tag is None else (_TAG, tag)
    return list_key(owner, *_names(channel_id), *by_tag)


def _names(channel_id: str | None) -> tuple[str, ...]:
    return (_ALL,) if channel_id is None else (_ALL, "channel", channel_id)


def _read(
    session: Session, owner: UUID, postings: Sequence[Posting], bytes_max: int | None = None
) -> list[PublicEventPublished]:
    """The events of postings, from the log."""
    versions = {posting.version for posting in postings}
    rows = rows_of_page(session, owner, versions, bytes_max)
    events = []
    for posting in postings:
        row = rows.get(posting.version)
        event = decode(row.topic, row.state) if row is not None else None
        if not isinstance(event, PublicEventPublished):
            raise CorruptRow(f"{owner} at {posting.version}: not a public event")
        events.append(event)
    return events
