"""The read model behind QUERY_EVENTS (DCTRL-0004 8.9 to 8.11).

Lists of an owner: by event id; all; for each tag; for each participant other than the owner; for
each pair of those two; and all of these (but the ids) again for unprocessed events only. The
owner takes part in nearly all of its events: a flag says so instead of yet another set of lists,
and as long as the list of exceptions is empty, queries ignore the flag.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Final
from uuid import UUID

from eventstore.log.content import text_of
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import PageBounds, SavedEvent, SavedEventsFilter, SavedEventsPage
from eventstore.log.events import AnyEventSaved, Event, EventTagsUpdated, topics_of
from eventstore.log.session import Session, StoredPosting
from eventstore.log.streams import identity_stream, stream_of
from eventstore.read_models.postings import (
    ListKey,
    Narrowing,
    Posting,
    add,
    events_of_page,
    facts_of,
    is_empty,
    list_key,
    list_keys,
    newest,
    on_lists,
    page,
    remove,
    tag_lists,
)

_ID: Final = "saved id"
_FOREIGN: Final = "saved foreign"
_ALL: Final = "saved"
_UNPROCESSED: Final = "saved unprocessed"
SAVED_TOPICS: Final = topics_of(AnyEventSaved)
_stream_of: Final = lru_cache(maxsize=1_000)(stream_of)
"""Also for the erased form of a name. Cached, because the events of one command have few
participants and a UUID takes 25 us."""


def save(session: Session, owner: UUID, saved: Sequence[tuple[int, AnyEventSaved]]) -> None:
    """Record saved events with their versions in the owner's stream (8.9)."""
    rows: list[StoredPosting] = []
    for version, event in saved:
        rows += listed(owner, event, Posting(float(event.timestamp_s), version))
    add(session, rows)


def known(session: Session, owner: UUID, event_ids: Collection[str]) -> dict[str, Posting]:
    """The postings of those ``event_ids`` that the owner has, by event id."""
    keys = list_keys(owner, (_ID,), event_ids)
    found = newest(session, keys)
    return {
        event_id: found[key] for event_id, key in zip(event_ids, keys, strict=True) if key in found
    }


def update_tags(
    session: Session, owner: UUID, updates: Sequence[tuple[int, EventTagsUpdated]]
) -> None:
    """Replace the tags of the owner's events, and mark them processed (8.11).

    Each update has its version; the last update of an event counts. Events that the owner does not
    have are skipped.
    """
    last = {update.event_id: (version, update) for version, update in updates}
    found = [(before, *last[event_id]) for event_id, before in known(session, owner, last).items()]
    gone: list[StoredPosting] = []
    there: list[StoredPosting] = []
    read = _read(owner, [before for before, _, _ in found], partial(facts_of, session, owner))
    for (before, version, update), (saved, tags) in zip(found, read, strict=True):
        others = _others(owner, saved)
        old = _lists(owner, others, tags, processed=saved.processed)
        new = [
            *_lists(owner, others, update.encrypted_tags, processed=True),
            *_fixed_lists(owner, update.event_id, before),
        ]
        gone += on_lists(set(old).difference(new), before)
        there += on_lists(new, before._replace(revision=version))
    remove(session, gone)
    add(session, there)


def all_of(owner: UUID) -> ListKey:
    """The list of all events of an owner."""
    return list_key(owner, _ALL)


def listed(
    owner: UUID,
    event: AnyEventSaved,
    posting: Posting,
    tags: Collection[str] | None = None,
) -> list[StoredPosting]:
    """All postings of an event at ``posting``, with ``tags``, if given, in place of its own."""
    others = _others(owner, event)
    own = len(others) < len({event.sender_did, event.recipient_did})
    posting = posting._replace(own=own)
    current = event.encrypted_tags if tags is None else tags
    lists = _lists(owner, others, current, processed=event.processed or posting.revision > 0)
    return on_lists([*lists, *_fixed_lists(owner, event.event_id, posting)], posting)


def query(
    session: Session, owner: UUID, where: SavedEventsFilter, bounds: PageBounds
) -> SavedEventsPage:
    """A page of the owner's saved events, oldest first, and the exact total (8.10).

    Raises:
        CorruptRow: the log does not hold what the read model refers to.
        ContentMissing: the log does not hold the content of an event.
        PageTooLarge: its records are more than ``bytes_max``.
    """
    kind = _UNPROCESSED if where.unprocessed_only else _ALL
    participant, own = where.participant_did, False
    if participant is not None and identity_stream(participant) == owner:
        participant, own = None, not is_empty(session, list_key(owner, _FOREIGN))
    names = _names(kind, participant)
    postings, total = page(
        session,
        tag_lists(owner, names, where.encrypted_tags) or [list_key(owner, *names)],
        Narrowing(where.after_timestamp_s, where.before_timestamp_s, own),
        bounds,
        newest_first=False,
    )
    bytes_max = bounds.bytes_max if len(postings) > 1 else None  # one event may have any size
    read = partial(events_of_page, session, owner, bytes_max=bytes_max)
    events = [
        SavedEvent(event.event_id, text_of(event.payload), tags, event.timestamp_s)
        for event, tags in _read(owner, postings, read)
    ]
    return SavedEventsPage(events, total)


def _others(owner: UUID, event: AnyEventSaved) -> set[str]:
    """The participants other than the owner."""
    participants = {event.sender_did, event.recipient_did}
    return {did for did in participants if _stream_of(did) != owner.bytes}


def _fixed_lists(owner: UUID, event_id: str, posting: Posting) -> list[ListKey]:
    """The lists that an event is on whatever its tags are."""
    by_id = list_key(owner, _ID, event_id)
    return [by_id] if posting.own else [by_id, list_key(owner, _FOREIGN)]


def _lists(
    owner: UUID, others: Collection[str], tags: Collection[str], *, processed: bool
) -> list[ListKey]:
    """The lists that queries name, for an event with these tags."""
    keys = []
    for kind in (_ALL,) if processed else (_ALL, _UNPROCESSED):
        for participant in (None, *others):
            names = _names(kind, participant)
            keys.append(list_key(owner, *names))
            keys += tag_lists(owner, names, tags)
    return keys


def _names(kind: str, participant: str | None) -> tuple[str, ...]:
    return (kind,) if participant is None else (kind, "participant", participant)


def _read(
    owner: UUID, postings: Sequence[Posting], read: Callable[[set[int]], dict[int, Event]]
) -> list[tuple[AnyEventSaved, list[str]]]:
    """The events of postings, with current tags; ``read`` reads the events at some versions."""
    versions = {posting.version for posting in postings}
    versions |= {posting.revision for posting in postings if posting.revision}
    decoded = read(versions)
    found = []
    try:
        for posting in postings:
            saved = decoded[posting.version]
            tagged = decoded[posting.revision or posting.version]
            if not isinstance(saved, AnyEventSaved) or not isinstance(
                tagged, AnyEventSaved | EventTagsUpdated
            ):
                raise CorruptRow(f"{owner} at {posting.version}: not a saved event")
            found.append((saved, tagged.encrypted_tags))
    except KeyError as error:
        raise CorruptRow(f"{owner} at {error}: a saved event is missing") from error
    return found
