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
    newest,
    page,
    remove,
)

_ALL: Final = "public"
_ID: Final = "public id"


def publish(session: Session, owner: UUID, version: int, event: PublicEventPublished) -> None:
    """Record a public event that stands at ``version`` of the publisher's stream."""
    add(session, _lists(owner, event), Posting(float(event.timestamp_s), version))


def withdraw(session: Session, owner: UUID, event: PublicEventsDeleted) -> None:
    """Take the publisher's events off all lists; ids that it does not have change nothing."""
    for event_id in dict.fromkeys(event.event_ids):
        posting = newest(session, list_key(owner, _ID, event_id))
        if posting is None:
            continue
        published = _read(session, owner, [posting])[0]
        if event.channel_id in (None, published.channel_id):
            remove(session, _lists(owner, published), posting)


def query(
    session: Session, owner: UUID, where: PublicEventsFilter, *, offset: int, limit: int
) -> PublicEventsPage:
    """A page of the publisher's events, newest first, and the exact total.

    Raises:
        CorruptRow: the log does not hold what the read model refers to.
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
        for event in _read(session, owner, postings)
    ]
    return PublicEventsPage(events, total)


def _lists(owner: UUID, event: PublicEventPublished) -> list[ListKey]:
    """Every list that the event is on."""
    tags = (None, *set(event.tags))
    by_filter = [_list(owner, channel, tag) for channel in (None, event.channel_id) for tag in tags]
    return [list_key(owner, _ID, event.event_id), *by_filter]


def _list(owner: UUID, channel_id: str | None, tag: str | None) -> ListKey:
    """The list for a channel and a tag; None stands for any."""
    by_channel = () if channel_id is None else ("channel", channel_id)
    by_tag = () if tag is None else ("tag", tag)
    return list_key(owner, _ALL, *by_channel, *by_tag)


def _read(session: Session, owner: UUID, postings: Sequence[Posting]) -> list[PublicEventPublished]:
    """The events of postings, from the log."""
    rows = session.stored(owner, {posting.version for posting in postings})
    events = []
    for posting in postings:
        row = rows.get(posting.version)
        event = decode(row.topic, row.state) if row is not None else None
        if not isinstance(event, PublicEventPublished):
            raise CorruptRow(f"{owner} at {posting.version}: not a public event")
        events.append(event)
    return events
