"""Takes the saved events of an identity that is being erased off their lists.

In the order of the lists, so that a step empties pages that lie side by side: an event stands on
nine lists all over those of its owner, and steps that took events off one by one wrote each page
dozens of times. The list of all events is the last, and until then says what is listed: a
version takes its event off whatever lists are left.

The lists of two owners whose streams begin with the same 8 bytes lie among each other. Such streams
can be made on purpose, so each posting there is held against the event that it is of, and there
events leave by their versions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from eventstore.log.codec import decode
from eventstore.log.event_log import Listed
from eventstore.log.events import (
    Event,
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


class _Reached(NamedTuple):
    """Up to where a step came: the event of it, at its version."""

    version: int
    event: Event
    key: ListKey | None
    """None: nothing is listed any more."""


_REACHED: Final[dict[UUID, _Reached]] = {}
_REACHED_MAX: Final = 64


def how_listed(session: Session, owner: UUID) -> Listed:
    """Is any event of the owner on a list, and are its lists apart from those of others?"""
    if is_empty(session, all_of(owner)):
        return Listed.NOT
    return Listed.AMONG_OTHERS if _is_beside(session, owner) else Listed.APART


def unlist(session: Session, owner: UUID, version: int, event: SavedEventsUnlisted) -> None:
    """Remove the first postings at the place of the owner, as far as they are its own.

    In PostgreSQL what was removed is still passed over until VACUUM, so a step goes on from where
    the one before came to, if this process has done that; so far the result is the same.
    """
    start = _start(session, owner, version)
    if start is None or is_empty(session, all_of(owner)):
        _note(owner, _Reached(version, event, None))
    elif _is_beside(session, owner):
        _unlist_own(session, owner, event.count)
    else:
        reached = _remove_first(session, owner, start, event.count)
        _note(owner, _Reached(version, event, reached))


def erase(session: Session, owner: UUID, version: int, erased: SavedEventsErased) -> None:
    """Take the owner's events at these versions off all lists that they are on."""
    key = all_of(owner)
    if _start(session, owner, version) is None or is_empty(session, key):
        _note(owner, _Reached(version, erased, None))
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


def _start(session: Session, owner: UUID, version: int) -> ListKey | None:
    """The key before which the step at a version finds nothing but the list of all events.

    None where nothing is listed. What a step of this process left holds for the one right behind
    it, if its own row is the one that was stored.
    """
    reached = _REACHED.get(owner)
    if reached is not None and reached.version == version - 1:
        row = session.stored(owner, (reached.version,)).get(reached.version)
        if row is not None and decode(row.topic, row.state) == reached.event:
            return reached.key
    return place_of(owner)[0]


def _note(owner: UUID, reached: _Reached) -> None:
    if len(_REACHED) >= _REACHED_MAX:
        _REACHED.clear()
    _REACHED[owner] = reached


def _ranges(owner: UUID, start: ListKey) -> list[tuple[ListKey, ListKey]]:
    """The lists of the owner from a key on, up to the second key of each; all events last."""
    key, (_, end) = all_of(owner), place_of(owner)
    behind = key + b"\0"
    ranges = [(start, key), (max(start, behind), end), (key, behind)]
    return [(low, high) for low, high in ranges if low < high]


def _remove_first(session: Session, owner: UUID, start: ListKey, most: int) -> ListKey | None:
    """Remove so many postings of the owner; where the next ones are, None where there are none."""
    for low, high in _ranges(owner, start):
        count, reached = remove_range(session, low, high, most)
        most -= count
        if most <= 0:
            return place_of(owner)[1] if low == all_of(owner) else reached
    return None


def _unlist_own(session: Session, owner: UUID, most: int) -> None:
    """Of so many postings at a place that others share, remove the owner's."""
    for low, high in _ranges(owner, place_of(owner)[0]):
        found = first_of(session, low, high, most)
        postings = {Posting(*row[1:4]) for row in found}
        own = {row[:3] for row in _on_all_lists(session, owner, postings)}
        remove(session, [row for row in found if row[:3] in own])
        most -= len(found)
        if most <= 0:
            return


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
