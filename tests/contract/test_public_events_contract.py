"""What GET /public/:did promises (DCTRL-0007), on each store."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from eventstore.log.codec import encode
from eventstore.log.content import text_of
from eventstore.log.errors import CorruptRow, PageTooLarge
from eventstore.log.event_log import EventLog, PageBounds, PublicEvent, PublicEventsFilter
from eventstore.log.events import Event, PublicEventPublished, PublicEventsDeleted, Seconds
from eventstore.log.streams import identity_stream
from tests.contract.conftest import OpenLog
from tests.examples import examples
from tests.log.between_statements import appended_between_statements
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, append, message, published, withdrawn

ALL = PublicEventsFilter()


def _ids(log: EventLog, where: PublicEventsFilter = ALL) -> list[str]:
    page = log.query_public_events(OWNER, where, PageBounds(0, 1000))
    assert page.total == len(page.events)
    return [event.event_id for event in page.events]


def test_an_event_comes_back_with_all_that_its_signature_covers(log: EventLog) -> None:
    event = published("id", 7, channel="c\x00", tags=["b", "a", "b"])
    append(log, OWNER, message(), event)
    page = log.query_public_events(OWNER, ALL, PageBounds(0, 1))
    expected = PublicEvent(
        "id", "c\x00", text_of(event.event), ["b", "a", "b"], 7, event.event_signature
    )
    assert (page.events, page.total) == ([expected], 1)


def test_the_events_of_a_page_and_their_total_are_those_of_one_moment(
    log: EventLog, open_another: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, OWNER, published("first", 1), published("second", 2))
    beside, numbers = open_another(), count(3)

    def append_another() -> None:
        n = next(numbers)
        append(beside, OWNER, published(f"beside {n}", -n))

    with appended_between_statements(monkeypatch, append_another):
        page = log.query_public_events(OWNER, ALL, PageBounds(0, 1))
    assert next(numbers) > 4, "others appended between its statements"
    assert ([event.event_id for event in page.events], page.total) == (["second"], 2)


def test_a_page_of_too_many_bytes_is_refused_unless_it_is_one_event(log: EventLog) -> None:
    append(log, OWNER, published("a", 1), published("b", 2))
    with pytest.raises(PageTooLarge):
        log.query_public_events(OWNER, ALL, PageBounds(0, 2, 10))
    (one,) = log.query_public_events(OWNER, ALL, PageBounds(0, 1, 10)).events
    assert one.event_id == "b"


def test_a_withdrawn_event_is_gone_at_once(log: EventLog) -> None:
    append(log, OWNER, published("1", 1, tags=["t"]), published("2", 2, tags=["t"]))
    append(log, OWNER, withdrawn("1", "1", "unknown"))
    assert _ids(log) == ["2"]
    assert _ids(log, PublicEventsFilter(tags=["t"])) == ["2"]
    assert _ids(log, PublicEventsFilter(channel_id="news", tags=["t", "u"])) == ["2"]


def test_no_identity_withdraws_the_events_of_another(log: EventLog) -> None:
    append(log, OWNER, published("1"))
    append(log, OTHER, withdrawn("1"))
    assert _ids(log) == ["1"]


def test_a_page_whose_event_is_not_in_the_log_is_called_corrupt(
    log: EventLog, log_url: str
) -> None:
    append(log, OWNER, message(), published("id"))
    run_sql(log_url, "UPDATE postings SET version = 1")
    with pytest.raises(CorruptRow):
        log.query_public_events(OWNER, ALL, PageBounds(0, 1))
    run_sql(log_url, "UPDATE postings SET version = 7")
    with pytest.raises(CorruptRow):
        log.query_public_events(OWNER, ALL, PageBounds(0, 1))


_TEXTS = ["", "a", "\x00", "😀"]
_STAMPS: list[Seconds] = [-1, 0, 0.0, 1, 1.5]
_events = st.builds(
    lambda stamp, channel, tags: (stamp, channel, tags),
    st.sampled_from(_STAMPS),
    st.sampled_from(_TEXTS),
    st.lists(st.sampled_from(_TEXTS), max_size=3),
)
_removals = st.builds(
    lambda ids, channel: withdrawn(*map(str, ids), channel=channel),
    st.lists(st.integers(0, 6), max_size=3),
    st.none() | st.sampled_from(_TEXTS),
)
_bounds = st.none() | st.sampled_from(_STAMPS)
_filters = st.builds(
    PublicEventsFilter,
    channel_id=st.none() | st.sampled_from(_TEXTS),
    tags=st.lists(st.sampled_from([*_TEXTS, "none"]), max_size=6),
    after_timestamp_s=_bounds,
    before_timestamp_s=_bounds,
)
_fresh_owner = count()


def _expected(events: list[Event], where: PublicEventsFilter) -> list[str]:
    """The ids in the plainest words: go over everything, newest first."""
    live: dict[str, PublicEventPublished] = {}
    for event in events:
        if isinstance(event, PublicEventPublished):
            live[event.event_id] = event
        elif isinstance(event, PublicEventsDeleted):
            for event_id in event.event_ids:
                if event_id in live and event.channel_id in (None, live[event_id].channel_id):
                    del live[event_id]
    after, before = where.after_timestamp_s, where.before_timestamp_s
    found = [
        event
        for event in reversed(live.values())
        if where.channel_id in (None, event.channel_id)
        and (not where.tags or not set(event.tags).isdisjoint(where.tags))
        and (after is None or event.timestamp_s > after)
        and (before is None or event.timestamp_s < before)
    ]
    return [e.event_id for e in sorted(found, key=lambda event: -event.timestamp_s)]


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(_events | _removals, min_size=1, max_size=9),
    appended_first=st.integers(0, 9),
    wanted=st.lists(_filters, min_size=1, max_size=6),
    offset=st.integers(0, 3),
    limit=st.integers(1, 4),
)
def test_pages_and_totals_are_those_of_the_plain_model(
    log: EventLog,
    history: list[tuple[Seconds, str, list[str]] | PublicEventsDeleted],
    appended_first: int,
    wanted: list[PublicEventsFilter],
    offset: int,
    limit: int,
) -> None:
    owner = identity_stream(f"did:example:publisher-{next(_fresh_owner)}")
    events: list[Event] = [
        item
        if isinstance(item, PublicEventsDeleted)
        else published(str(number), item[0], channel=item[1], tags=item[2])
        for number, item in enumerate(history)
    ]
    rows = [encode(owner, version, event) for version, event in enumerate(events, 1)]
    for part in (slice(appended_first), slice(appended_first, None)):
        log.append(rows[part], events[part])
    for where in wanted:
        expected = _expected(events, where)
        page = log.query_public_events(owner, where, PageBounds(offset, limit))
        assert page.total == len(expected)
        assert [event.event_id for event in page.events] == expected[offset : offset + limit]
