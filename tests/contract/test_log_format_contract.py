"""A log says what a release has to know to go on with it; the same on both stores."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventstore.log import log_format
from eventstore.log.errors import LogOfLaterRelease
from eventstore.log.event_log import EventLog
from eventstore.log.log_format import FORMAT, FORMAT_NAME, record_format
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import rebuild_read_models
from tests.log.stored import tables_of


def test_a_log_of_a_later_release_is_not_opened_and_its_tables_are_not_rebuilt(
    log: EventLog, log_url: str
) -> None:
    log.mark(FORMAT_NAME, str(FORMAT + 1))
    before = tables_of(log_url)
    for to_read in (False, True):
        with pytest.raises(LogOfLaterRelease, match=f"format {FORMAT + 1}"):
            open_log(log_url, to_read=to_read)
    with closing(open_store(log_url)) as store, pytest.raises(LogOfLaterRelease):
        rebuild_read_models(store)
    assert tables_of(log_url) == before


@pytest.mark.parametrize(
    ("stored", "own", "then"), [(None, 1, 1), (1, 1, 1), (1, 2, 2), (9, 10, 10), (10, 9, 10)]
)
def test_a_log_records_the_latest_release_that_has_served_it(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, stored: int | None, own: int, then: int
) -> None:
    if stored is not None:
        log.mark(FORMAT_NAME, str(stored))
    monkeypatch.setattr(log_format, "FORMAT", own)
    record_format(log)
    assert log.settings()[FORMAT_NAME] == str(then)
