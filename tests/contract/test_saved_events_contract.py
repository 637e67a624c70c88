"""What QUERY_EVENTS promises (DCTRL-0004 8.9 to 8.11), on each store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from eventstore.log.codec import encode
from eventstore.log.content import text_of
from eventstore.log.errors import CorruptRow, PageTooLarge
from eventstore.log.event_log import EventLog, PageBounds, SavedEvent, SavedEventsFilter
from eventstore.log.events import Event, EventSaved, EventTagsUpdated, Seconds
from eventstore.log.streams import identity_stream
from tests.contract.conftest import OpenLog
from tests.examples import examples
from tests.log.between_statements import appended_between_statements
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER_DID, OWNER, OWNER_DID, append, message, saved, tagged

ALL = SavedEventsFilter()


def _ids(log: EventLog, where: SavedEventsFilter = ALL) -> list[str]:
    page = log.query_saved_events(OWNER, where, PageBounds(0, 1000))
    assert page.total == len(page.events)
    return [event.event_id for event in page.events]


def test_an_event_comes_back_as_it_was_saved(log: EventLog) -> None:
    event = saved("id", 1.5, tags=["b", "a", "b"])
    append(log, OWNER, message(), event)
    page = log.query_saved_events(OWNER, ALL, PageBounds(0, 10))
    assert page.events == [SavedEvent("id", text_of(event.payload), ["b", "a", "b"], 1.5)]
    assert page.total == 1


@pytest.mark.parametrize("timestamp", [0, 2, 2.0, -7, 0.1, 1_699_123_456.25, 2**53 + 1, 1e308])
def test_a_timestamp_stays_the_number_that_the_client_wrote(
    log: EventLog, timestamp: Seconds
) -> None:
    append(log, OWNER, saved("id", timestamp))
    (event,) = log.query_saved_events(OWNER, ALL, PageBounds(0, 1)).events
    assert repr(event.timestamp_s) == repr(timestamp)


def test_an_event_with_very_many_tags_is_found_by_each(log: EventLog) -> None:
    tags = [f"tag {n}" for n in range(1500)]
    append(log, OWNER, saved("many", tags=tags))
    assert _ids(log, SavedEventsFilter(encrypted_tags=["tag 1499"])) == ["many"]
    append(log, OWNER, tagged("many", "only"))
    assert _ids(log, SavedEventsFilter(encrypted_tags=tags)) == []
    assert _ids(log, SavedEventsFilter(encrypted_tags=["only"])) == ["many"]
    assert _ids(log, SavedEventsFilter(encrypted_tags=[*tags, "only"])) == ["many"]


def test_updates_of_unknown_and_foreign_events_change_nothing(log: EventLog) -> None:
    append(log, OWNER, saved("mine", tags=["a"]))
    append(log, identity_stream(OTHER_DID), tagged("mine", "stolen"), tagged("unknown", "x"))
    append(log, OWNER, tagged("unknown", "x"))
    unchanged = SavedEventsFilter(encrypted_tags=["a"], unprocessed_only=True)
    assert _ids(log, unchanged) == ["mine"]
    assert _ids(log, SavedEventsFilter(encrypted_tags=["stolen", "x"])) == []


def test_ids_are_known_as_those_of_their_owner_alone(log: EventLog) -> None:
    append(log, OWNER, saved("a", 1), saved("b\0", 2), tagged("a", "t"))
    append(log, identity_stream(OTHER_DID), saved("other", 1))
    named = ["a", "b\0", "other", "unknown"]
    assert log.known_saved_events(OWNER, named) == {"a", "b\0"}
    assert log.known_saved_events(OWNER, []) == set()
    many = [f"unknown {number}" for number in range(1_000)]
    assert log.known_saved_events(identity_stream(OTHER_DID), [*many, "other"]) == {"other"}


def test_the_events_of_a_page_and_their_total_are_those_of_one_moment(
    log: EventLog, open_another: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, OWNER, saved("first", 1), saved("second", 2))
    beside, numbers = open_another(), count(3)

    def append_another() -> None:
        n = next(numbers)
        append(beside, OWNER, saved(f"beside {n}", n))

    with appended_between_statements(monkeypatch, append_another):
        page = log.query_saved_events(OWNER, ALL, PageBounds(0, 1))
    assert next(numbers) > 4, "others appended between its statements"
    assert ([event.event_id for event in page.events], page.total) == (["first"], 2)


def test_a_page_of_too_many_bytes_is_refused_unless_it_is_one_event(log: EventLog) -> None:
    append(log, OWNER, saved("a", 1), saved("b", 2), tagged("a", "t"))
    with pytest.raises(PageTooLarge):
        log.query_saved_events(OWNER, ALL, PageBounds(0, 2, 10))
    (one,) = log.query_saved_events(OWNER, ALL, PageBounds(0, 1, 10)).events
    assert (one.event_id, one.encrypted_tags) == ("a", ["t"])


AWKWARD = ["", "\x00", "a\x00", "a", "😀", "e\u0301", "\u00e9", "%", "?", "'", "x" * 10_000]


def test_any_text_is_a_tag_a_participant_and_an_id(log: EventLog) -> None:
    append(
        log,
        OWNER,
        *[
            saved(text, number, tags=[text], sender=text or "-")
            for number, text in enumerate(AWKWARD)
        ],
    )
    for text in AWKWARD:
        assert _ids(log, SavedEventsFilter(encrypted_tags=[text])) == [text]
        assert _ids(log, SavedEventsFilter(participant_did=text or "-")) == [text]
        append(log, OWNER, tagged(text, f"new {text}"))
        assert _ids(log, SavedEventsFilter(encrypted_tags=[f"new {text}"])) == [text]


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (0, 3, ["0", "1", "2"]),
        (5, 3, ["5", "6"]),
        (4, 3, ["4", "5", "6"]),
        (7, 3, []),
        (3, 0, []),
        (0, 0, []),
        (2**70, 5, []),
    ],
)
def test_every_page_has_the_exact_total(
    log: EventLog, offset: int, limit: int, expected: list[str]
) -> None:
    append(log, OWNER, *[saved(str(n), n // 3, tags=["t"]) for n in range(7)])
    for where in (ALL, SavedEventsFilter(encrypted_tags=["t", "u"])):
        page = log.query_saved_events(OWNER, where, PageBounds(offset, limit))
        assert [event.event_id for event in page.events] == expected
        assert page.total == 7


def test_a_page_whose_event_is_not_in_the_log_is_called_corrupt(
    log: EventLog, log_url: str
) -> None:
    append(log, OWNER, message(), saved("id"))
    run_sql(log_url, "UPDATE stored_events SET originator_version = 9 WHERE originator_version = 2")
    with pytest.raises(CorruptRow):
        log.query_saved_events(OWNER, ALL, PageBounds(0, 1))
    run_sql(log_url, "UPDATE postings SET version = 1")
    with pytest.raises(CorruptRow):
        log.query_saved_events(OWNER, ALL, PageBounds(0, 1))


_TEXTS = ["a", "b", "\x00", "😀"]
_STAMPS: list[Seconds] = [-1, 0, 0.0, 1, 1.5, 2]
_events = st.builds(
    saved,
    event_id=st.sampled_from(["1", "2", "3", "4", "5", "6"]),
    timestamp_s=st.sampled_from(_STAMPS),
    tags=st.lists(st.sampled_from(_TEXTS), max_size=4),
    sender=st.sampled_from([OWNER_DID, *_TEXTS]),
    recipient=st.sampled_from([OWNER_DID, *_TEXTS]),
    processed=st.booleans(),
)
_updates = st.builds(
    lambda event_id, tags: tagged(event_id, *tags),
    st.sampled_from(["1", "2", "3", "4", "5", "6", "unknown"]),
    st.lists(st.sampled_from(_TEXTS), max_size=3),
)
_bounds = st.none() | st.sampled_from(_STAMPS)
_filters = st.builds(
    SavedEventsFilter,
    after_timestamp_s=_bounds,
    before_timestamp_s=_bounds,
    participant_did=st.none() | st.sampled_from([OWNER_DID, *_TEXTS, "unknown"]),
    encrypted_tags=st.lists(st.sampled_from([*_TEXTS, "none"]), max_size=6),
    unprocessed_only=st.booleans(),
)
_fresh_owner = count()


class _Model:
    """QUERY_EVENTS in the plainest words: a list, and a filter over all of it."""

    def __init__(self) -> None:
        self._events: dict[str, EventSaved] = {}
        self._tags: dict[str, list[str]] = {}
        self._processed: set[str] = set()

    def apply(self, event: Event) -> None:
        if isinstance(event, EventSaved):
            self._events[event.event_id] = event
            self._tags[event.event_id] = event.encrypted_tags
            if event.processed:
                self._processed.add(event.event_id)
        elif isinstance(event, EventTagsUpdated) and event.event_id in self._events:
            self._tags[event.event_id] = event.encrypted_tags
            self._processed.add(event.event_id)

    def query(self, where: SavedEventsFilter) -> list[SavedEvent]:
        found = [event for event in self._events.values() if self._matches(event, where)]
        found.sort(key=lambda event: event.timestamp_s)
        return [
            SavedEvent(e.event_id, text_of(e.payload), self._tags[e.event_id], e.timestamp_s)
            for e in found
        ]

    def _matches(self, event: EventSaved, where: SavedEventsFilter) -> bool:
        after, before = where.after_timestamp_s, where.before_timestamp_s
        tags = self._tags[event.event_id]
        return (
            (after is None or event.timestamp_s > after)
            and (before is None or event.timestamp_s < before)
            and where.participant_did in (None, event.sender_did, event.recipient_did)
            and (not where.encrypted_tags or not set(tags).isdisjoint(where.encrypted_tags))
            and not (where.unprocessed_only and event.event_id in self._processed)
        )


def _with_unique_ids(events: Sequence[Event]) -> Iterator[Event]:
    """Ids are made by the server: no two events of an owner have the same."""
    seen = set[str]()
    for event in events:
        if isinstance(event, EventSaved):
            if event.event_id in seen:
                continue
            seen.add(event.event_id)
        yield event


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(st.lists(_events | _updates, min_size=1, max_size=6), max_size=4),
    wanted=st.lists(_filters, min_size=1, max_size=6),
    offset=st.integers(0, 4),
    limit=st.integers(1, 4),
)
def test_pages_and_totals_are_those_of_the_plain_model(
    log: EventLog,
    history: list[list[Event]],
    wanted: list[SavedEventsFilter],
    offset: int,
    limit: int,
) -> None:
    owner_did = f"did:example:owner-{next(_fresh_owner)}"
    owner, model = identity_stream(owner_did), _Model()

    def renamed(did: str | None) -> str | None:
        return owner_did if did == OWNER_DID else did

    kept = iter(list(_with_unique_ids([event for batch in history for event in batch])))
    version = 0
    for batch in history:
        events = [_with_owner(event, owner_did) for _, event in zip(batch, kept, strict=False)]
        log.append([encode(owner, version + n, event) for n, event in enumerate(events, 1)], events)
        version += len(events)
        for event in events:
            model.apply(event)
    for where in wanted:
        owned = SavedEventsFilter(
            after_timestamp_s=where.after_timestamp_s,
            before_timestamp_s=where.before_timestamp_s,
            participant_did=renamed(where.participant_did),
            encrypted_tags=where.encrypted_tags,
            unprocessed_only=where.unprocessed_only,
        )
        expected = model.query(owned)
        page = log.query_saved_events(owner, owned, PageBounds(offset, limit))
        assert page.total == len(expected)
        assert page.events == expected[offset : offset + limit]


def _with_owner(event: Event, owner_did: str) -> Event:
    if not isinstance(event, EventSaved):
        return event
    return saved(
        event.event_id,
        event.timestamp_s,
        tags=event.encrypted_tags,
        sender=owner_did if event.sender_did == OWNER_DID else event.sender_did,
        recipient=owner_did if event.recipient_did == OWNER_DID else event.recipient_did,
        processed=event.processed,
    )
