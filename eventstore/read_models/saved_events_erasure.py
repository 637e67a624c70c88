"""Takes the saved events of an identity that is being erased off their lists.

In the order of the lists, so that a step empties pages that lie side by side: an event stands on
ten pages all over the lists of its owner, and a step that took events off one by one wrote each
page a hundred times. The list of all events is the last, and until then says what is listed: a
version takes its event off whatever lists are left.

The lists of two owners whose streams begin with the same 8 bytes lie among each other. Such streams
can be made on purpose, so each posting there is held against the event that it is of, and there
events leave by their versions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from eventstore.log.codec import decode
from eventstore.log.event_log import Listed
from eventstore.log.events import (
    EventSaved,
    EventSaved1,
    EventTagsUpdated,
    SavedEventsErased,
    SavedEventsUnlisted,
)
from eventstore.log.session import Session, StoredPosting
from eventstore.read_models.postings import (
    ListKey,
    Posting,
    at,
    first_of,
    is_empty,
    place_of,
    remove,
    remove_range,
)
from eventstore.read_models.saved_events import SAVED_TOPICS, all_of, listed

_BESIDE: Final = (
    "SELECT 1 FROM stored_events WHERE originator_id >= ? AND originator_id < ? LIMIT 1",
    "SELECT 1 FROM stored_events WHERE originator_id > ? AND originator_id <= ? LIMIT 1",
)


def how_listed(session: Session, owner: UUID) -> Listed:
    """Is any event of the owner on a list, and are its lists apart from those of others?"""
    if is_empty(session, all_of(owner)):
        return Listed.NOT
    return Listed.AMONG_OTHERS if _is_beside(session, owner) else Listed.APART


def unlist(session: Session, owner: UUID, event: SavedEventsUnlisted) -> None:
    """Remove the first postings at the place of the owner, as far as they are its own."""
    if is_empty(session, all_of(owner)):
        return
    left, is_beside = event.count, _is_beside(session, owner)
    for low, high in _ranges(owner):
        if left <= 0:
            return
        if is_beside:
            found = first_of(session, low, high, left)
            _remove_own(session, owner, found)
            left -= len(found)
        else:
            left -= remove_range(session, low, high, left)


def erase(session: Session, owner: UUID, erased: SavedEventsErased) -> None:
    """Take the owner's events at these versions off all lists that they are on."""
    key = all_of(owner)
    if is_empty(session, key):
        return
    rows = session.stored(owner, erased.versions)
    saved = [
        (version, decode(row.topic, row.state))
        for version, row in rows.items()
        if row.topic in SAVED_TOPICS
    ]
    places = [
        (float(event.timestamp_s), version)
        for version, event in saved
        if isinstance(event, EventSaved | EventSaved1)
    ]
    remove(session, _on_all_lists(session, owner, at(session, key, places)))


def _is_beside(session: Session, owner: UUID) -> bool:
    """Does another stream begin with the same 8 bytes?"""
    own = owner.hex
    first, last = own[:16] + "0" * 16, own[:16] + "f" * 16
    before, after = _BESIDE
    return bool(session.rows(before, (first, own)) or session.rows(after, (own, last)))


def _ranges(owner: UUID) -> list[tuple[ListKey, ListKey]]:
    """The lists at the owner's place, up to the second key of each; that of all events last."""
    low, high = place_of(owner)
    key = all_of(owner)
    behind = key + b"\0"
    return [(low, key), (behind, high), (key, behind)]


def _remove_own(session: Session, owner: UUID, found: Collection[StoredPosting]) -> None:
    """Remove those of these postings that are the owner's."""
    postings = {Posting(*row[1:4]) for row in found}
    own = {row[:3] for row in _on_all_lists(session, owner, postings)}
    remove(session, [row for row in found if row[:3] in own])


def _on_all_lists(
    session: Session, owner: UUID, postings: Collection[Posting]
) -> list[StoredPosting]:
    """All postings of the owner's events that stand at these; of what is not, none."""
    saved = session.stored(owner, {posting.version for posting in postings})
    tagged = session.stored(owner, {p.revision for p in postings if p.revision})
    rows: list[StoredPosting] = []
    for posting in postings:
        row = saved.get(posting.version)
        update = tagged.get(posting.revision, row)
        event = None if row is None else decode(row.topic, row.state)
        tags = None if update is None else decode(update.topic, update.state)
        if isinstance(event, EventSaved | EventSaved1) and isinstance(
            tags, EventSaved | EventSaved1 | EventTagsUpdated
        ):
            rows += listed(owner, event, posting, tags.encrypted_tags)
    return rows
