"""Removes the saved events of an identity that is being erased from their lists.

Steps follow the order of the lists, so that each step empties adjacent pages: an event is on nine
lists scattered over those of its owner, and steps that removed event by event wrote each page
dozens of times. The list of all events comes last, and until then says which events are listed: an
event that is erased by its version leaves whatever lists it is still on.

The lists of two owners whose streams begin with the same 8 bytes are interleaved. A client can make
such streams on purpose, so there each posting is compared with its event, and events leave by their
versions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from eventstore.log.codec import decode
from eventstore.log.event_log import Listed
from eventstore.log.events import (
    AnyEventSaved,
    Event,
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


class Reached(NamedTuple):
    """How far a step came: the version and event of the step, and the key that it reached."""

    version: int
    event: Event
    key: ListKey | None
    """None: nothing is listed now."""


LastSteps: TypeAlias = dict[UUID, Reached]
"""The last step of each owner's erasure in one log; it may lack any."""
_LAST_STEPS_MAX: Final = 64


def how_listed(session: Session, owner: UUID) -> Listed:
    """Whether an event of the owner is on a list, and whether its lists lie apart from others."""
    if is_empty(session, all_of(owner)):
        return Listed.NOT
    return Listed.AMONG_OTHERS if _is_beside(session, owner) else Listed.APART


def unlist(
    session: Session, owner: UUID, version: int, event: SavedEventsUnlisted, steps: LastSteps
) -> None:
    """Remove the first postings in the key range of the owner, as far as they are its own.

    In PostgreSQL a scan passes over removed rows until VACUUM. So a step starts at the key that the
    step before it reached, if ``steps`` has that step; the result is the same.
    """
    start = _start(session, owner, version, steps)
    if start is None or is_empty(session, all_of(owner)):
        _note(steps, owner, Reached(version, event, None))
    elif _is_beside(session, owner):
        _unlist_own(session, owner, event.count)
    else:
        reached = _remove_first(session, owner, start, event.count)
        _note(steps, owner, Reached(version, event, reached))


def erase(
    session: Session, owner: UUID, version: int, erased: SavedEventsErased, steps: LastSteps
) -> None:
    """Remove the owner's events at these versions from all lists that they are on."""
    key = all_of(owner)
    if _start(session, owner, version, steps) is None or is_empty(session, key):
        _note(steps, owner, Reached(version, erased, None))
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
        if isinstance(event, AnyEventSaved)
    ]
    remove(session, _on_all_lists(session, owner, at(session, key, places)))


def _is_beside(session: Session, owner: UUID) -> bool:
    """Whether another stream begins with the same 8 bytes."""
    own = owner.hex
    first, last = own[:16] + "0" * 16, own[:16] + "f" * 16
    before, after = _BESIDE
    return bool(session.rows(before, (first, own)) or session.rows(after, (own, last)))


def _start(session: Session, owner: UUID, version: int, steps: LastSteps) -> ListKey | None:
    """The key before which the step at a version finds nothing but the list of all events.

    None if nothing is listed. The key that a step reached holds for the very next step, if the row
    of the former is the one that was stored.
    """
    reached = steps.get(owner)
    if reached is not None and reached.version == version - 1:
        row = session.stored(owner, (reached.version,)).get(reached.version)
        if row is not None and decode(row.topic, row.state) == reached.event:
            return reached.key
    return place_of(owner)[0]


def _note(steps: LastSteps, owner: UUID, reached: Reached) -> None:
    if len(steps) >= _LAST_STEPS_MAX:
        steps.clear()
    steps[owner] = reached


def _ranges(owner: UUID, start: ListKey) -> list[tuple[ListKey, ListKey]]:
    """The key ranges of the owner's lists from ``start`` on, each half-open; all events last."""
    key, (_, end) = all_of(owner), place_of(owner)
    behind = key + b"\0"
    ranges = [(start, key), (max(start, behind), end), (key, behind)]
    return [(low, high) for low, high in ranges if low < high]


def _remove_first(session: Session, owner: UUID, start: ListKey, most: int) -> ListKey | None:
    """Remove ``most`` postings of the owner; return the key of the next, None if none is left."""
    for low, high in _ranges(owner, start):
        count, reached = remove_range(session, low, high, most)
        most -= count
        if most <= 0:
            return place_of(owner)[1] if low == all_of(owner) else reached
    return None


def _unlist_own(session: Session, owner: UUID, most: int) -> None:
    """Remove the owner's from the first ``most`` postings of a key range that others share."""
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
    """All postings of those events at ``postings`` that are saved events of the owner."""
    saved = session.stored(owner, {posting.version for posting in postings})
    tagged = session.stored(owner, {p.revision for p in postings if p.revision})
    rows: list[StoredPosting] = []
    for posting in postings:
        row = saved.get(posting.version)
        update = tagged.get(posting.revision, row)
        event = None if row is None else decode(row.topic, row.state)
        tags = None if update is None else decode(update.topic, update.state)
        if isinstance(event, AnyEventSaved) and isinstance(tags, AnyEventSaved | EventTagsUpdated):
            rows += listed(owner, event, posting, tags.encrypted_tags)
    return rows
