"""A query of a long history ends in bounded time, on each store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventstore.log.errors import ReadTooLong
from eventstore.log.event_log import EventLog, PageBounds, SavedEventsFilter
from eventstore.log.session import StoredPosting
from eventstore.read_models.postings import tag_lists
from eventstore.stores import recorder_log
from eventstore.stores.open_log import open_store
from tests.log.samples import OWNER

TAGS = [f"tag {number}" for number in range(16)]
EVENTS = 120_000
BEHIND_ALL = PageBounds(EVENTS, 10)


def postings() -> Iterator[StoredPosting]:
    """Each event has one of the tags."""
    for number, key in enumerate(tag_lists(OWNER, ("saved",), TAGS)):
        for version in range(number + 1, EVENTS + 1, len(TAGS)):
            yield key, 0.0, version, 0, 1


@pytest.mark.thorough
def test_a_query_of_a_history_that_takes_too_long_is_ended_and_others_are_answered(
    log: EventLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(log_url)
    with store.writing() as session:
        session.import_postings(list(postings()))
    store.close()
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(recorder_log, "HISTORY_S_MAX", 0.001)
            with pytest.raises(ReadTooLong):
                log.query_saved_events(OWNER, SavedEventsFilter(encrypted_tags=TAGS), BEHIND_ALL)
        few = log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 10))
        assert few.total == 0
    page = log.query_saved_events(OWNER, SavedEventsFilter(encrypted_tags=TAGS), BEHIND_ALL)
    assert page.total == EVENTS
