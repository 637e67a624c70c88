"""What a log takes is known without reading it."""

from __future__ import annotations

from contextlib import closing

from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import rebuild_read_models
from tests.contract.conftest import OpenLog
from tests.log.raw_sql import remove_erased, run_sql
from tests.log.samples import OTHER, OWNER, append, message, removed, saved

_LARGE = 100_000


def test_rows_contents_and_read_models_are_distinguished(log: EventLog) -> None:
    append(log, OWNER, message(bytes(_LARGE)))
    storage = log.storage()
    assert storage.facts_bytes
    assert storage.contents_bytes is not None
    assert storage.contents_bytes >= _LARGE
    assert storage.read_models_bytes
    assert storage.used_bytes > _LARGE


def test_what_a_killed_process_leaves_is_in_the_sums(
    log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    for number in range(1, 301, 2):
        append(log, OWNER, message(bytes(1_000)))
        append(log, OWNER, removed([number], "a"))
    append(log, OTHER, message(bytes(_LARGE)))
    now, left = log.storage(), open_another().storage()
    assert now.contents_bytes is not None
    assert left.contents_bytes is not None
    assert abs(now.contents_bytes - left.contents_bytes) < _LARGE // 10
    append(log, OTHER, removed([1], "a"))
    now, left = log.storage(), open_another().storage()
    assert now.facts_bytes is not None
    assert left.facts_bytes is not None
    assert left.facts_bytes > now.facts_bytes * 3 // 4
    assert (left.contents_bytes or 0) - (now.contents_bytes or 0) < _LARGE // 10
    if log_url.startswith("sqlite:"):
        assert (now.facts_bytes, now.contents_bytes) == (left.facts_bytes, left.contents_bytes)


def test_what_is_erased_in_sqlite_leaves_the_sum_of_contents(
    log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    append(log, OWNER, message(b"one"), message(b"three"))
    append(log, OTHER, saved("x"))
    append(log, OWNER, removed([1], "a"))
    if not log_url.startswith("sqlite:"):
        return
    remove_erased(log_url)
    before = log.storage()
    log.close()
    with closing(open_store(log_url)) as store:
        rebuild_read_models(store)
    again = open_another().storage()
    assert (again.facts_bytes, again.contents_bytes) == (before.facts_bytes, before.contents_bytes)
    facts = before.facts_bytes
    assert facts is not None
    ((gone,),) = run_sql(log_url, "SELECT length(state) FROM stored_events WHERE rowid = 1")
    run_sql(log_url, "DELETE FROM stored_events WHERE rowid = 1")
    assert open_another().storage().facts_bytes == facts - gone


def test_a_log_of_an_earlier_release_has_its_sums_once_its_read_models_are_rebuilt(
    log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    append(log, OWNER, message(b"one"), saved("x"))
    if not log_url.startswith("sqlite:"):
        return
    before = log.storage()
    run_sql(log_url, "DELETE FROM log_bytes")
    unknown = open_another().storage()
    assert (unknown.facts_bytes, unknown.contents_bytes) == (None, None)
    assert unknown.used_bytes > 0
    with closing(open_store(log_url)) as store:
        rebuild_read_models(store)
    again = open_another().storage()
    assert (again.facts_bytes, again.contents_bytes) == (before.facts_bytes, before.contents_bytes)
