"""Contents stand apart from the facts about them, and leave when no fact needs them any more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from eventstore.log.batch import ROW_BYTES_MAX
from eventstore.log.codec import encode
from eventstore.log.content import SALT_BYTES
from eventstore.log.errors import AppendConflict, AppendRefused, CorruptRow
from eventstore.log.event_log import (
    EventLog,
    PageBounds,
    PublicEventsFilter,
    SavedEventsFilter,
)
from eventstore.log.events import Event
from eventstore.log.faults import Fault, Finding
from eventstore.log.streams import identity_stream
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import rebuild_read_models, wrong_read_models
from tests.log.raw_sql import remove_erased, run_sql
from tests.log.samples import (
    OTHER,
    OWNER,
    SALT,
    SealedWriter,
    append,
    message,
    published,
    removed,
    saved,
    tagged,
    withdrawn,
)
from tests.log.stored import faults


def contents(log: EventLog) -> dict[int, bytes]:
    return {p: stored[SALT_BYTES:] for p, stored in log.read_contents(after=0, until=99).items()}


def test_a_row_has_the_digest_and_the_content_stands_beside_it(log: EventLog) -> None:
    append(log, OWNER, message(b"secret text"), message(b""), saved("x"))
    rows = log.read_rows(after=0, rows_max=9, bytes_max=10_000)
    assert [row.content for row in rows] == [
        SALT + b"secret text", SALT, SALT + b"payload of x",
    ]  # fmt: skip
    assert not any(b"secret text" in row.state for row in rows)
    records = log.read_records({OWNER: [1, 3, 9]})
    assert {v: record.content for v, record in records[OWNER].items()} == {
        1: SALT + b"secret text",
        3: SALT + b"payload of x",
    }
    assert contents(log) == {1: b"secret text", 2: b"", 3: b"payload of x"}


def test_records_of_many_streams_are_read_at_once_as_each_by_itself(log: EventLog) -> None:
    for number in range(3):
        append(log, OWNER, message(b"%d" % number), saved(f"{number}"))
        append(log, OTHER, message(b"other"))
    append(log, OWNER, removed([1]))
    third = identity_stream("third")
    wanted = {OWNER: [4, 1, 2, 99], OTHER: [3], third: [1]}
    found = log.read_records(wanted)
    assert found == {s: log.read_records({s: versions})[s] for s, versions in wanted.items()}
    assert {v: record.content for v, record in found[OWNER].items()} == {
        1: None,
        2: SALT + b"payload of 0",
        4: SALT + b"payload of 1",
    }
    assert (list(found[OTHER]), list(found[third])) == ([3], [])
    assert log.read_records({}) == {}


def test_a_removal_erases_what_it_names_of_its_stream_alone(log: EventLog) -> None:
    append(log, OWNER, message(b"one"), message(b"two"), message(b"three"))
    append(log, OTHER, message(b"of another"))
    append(log, OWNER, removed([1, 3, 77], "a", "c"))
    assert contents(log) == {2: b"two", 4: b"of another"}
    assert len(log.read_stream(OWNER)) == 4


def test_what_comes_and_goes_in_one_transaction_is_not_kept(log: EventLog) -> None:
    append(log, OWNER, message(b"one"), removed([1], "a"), message(b"two"))
    assert contents(log) == {3: b"two"}


def test_an_append_that_fails_erases_nothing_and_keeps_nothing(log: EventLog) -> None:
    append(log, OWNER, message(b"one"))
    gone, new = removed([1], "a"), message(b"two")
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 2, gone), encode(OWNER, 1, new)], [gone, new])
    assert contents(log) == {1: b"one"}


def test_contents_count_in_the_bounds_of_an_append(log: EventLog) -> None:
    large = message(bytes(ROW_BYTES_MAX))
    with pytest.raises(AppendRefused):
        log.append([encode(OWNER, 1, large)], [large])


def test_contents_count_in_the_bound_of_a_read(log: EventLog) -> None:
    append(log, OWNER, *[message(bytes(1_000)) for _ in range(5)])
    assert len(log.read_rows(after=0, rows_max=9, bytes_max=3_000)) == 2
    assert len(log.read_rows(after=0, rows_max=9, bytes_max=1)) == 1


def test_a_withdrawn_event_is_erased_and_a_saved_one_is_kept(log: EventLog) -> None:
    append(log, OWNER, published("a"), published("b"), saved("c"))
    append(log, OWNER, withdrawn("a", versions=[1]))
    assert contents(log) == {2: b"event b", 3: b"payload of c"}
    page = log.query_public_events(OWNER, PublicEventsFilter(), PageBounds(0, 9))
    assert [event.event for event in page.events] == ["event b"]


def test_a_public_event_without_content_is_on_no_page(log: EventLog) -> None:
    append(log, OWNER, published("a"), published("b"))
    append(log, OWNER, removed([1]))
    page = log.query_public_events(OWNER, PublicEventsFilter(), PageBounds(0, 9))
    assert [event.event for event in page.events] == ["event b"]


def test_a_content_that_was_changed_is_not_handed_out(log: EventLog, log_url: str) -> None:
    append(log, OWNER, saved("a"))
    run_sql(log_url, "UPDATE contents SET content = substr(content, 2)")
    with pytest.raises(CorruptRow):
        log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 9))


def test_an_event_whose_content_was_changed_gets_other_tags_and_is_listed_anew(
    log: EventLog, log_url: str
) -> None:
    append(log, OWNER, saved("a", tags=["old"]), published("b"))
    run_sql(log_url, "UPDATE contents SET content = substr(content, 2)")
    append(log, OWNER, tagged("a", "new"), withdrawn("b", channel="another"))
    totals = {"old": 0, "new": 1}
    for tag, total in totals.items():
        where, bounds = SavedEventsFilter(encrypted_tags=[tag]), PageBounds(9, 9)
        assert log.query_saved_events(OWNER, where, bounds).total == total
    append(log, OWNER, withdrawn("b"))
    public = log.query_public_events(OWNER, PublicEventsFilter(), PageBounds(0, 9))
    assert public.total == 0
    with closing(open_store(log_url)) as store:
        assert wrong_read_models(store) == []
        rebuild_read_models(store)
        assert wrong_read_models(store) == []


@pytest.fixture
def sealed(log: EventLog) -> EventLog:
    """Rows 1 to 8: three messages, of which the first two are removed, and their seals."""
    writer = SealedWriter(log)
    parts: list[list[Event]] = [
        [message(b"one"), message(b"two")],
        [message(b"three"), removed([1], "a")],
        [removed([2], "b")],
    ]
    for part in parts:
        writer.commit({"shard-0": [(OWNER, event) for event in part]})
    return log


def test_what_was_erased_is_verified_as_erased(sealed: EventLog) -> None:
    *findings, summary = verify(sealed)
    assert (findings, isinstance(summary, Summary)) == ([], True)
    assert contents(sealed) == {4: b"three"}


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM contents WHERE position = 4", Fault.MISSING_CONTENT),
        ("UPDATE contents SET content = substr(content, 2)", Fault.WRONG_CONTENT),
        (
            "INSERT INTO contents SELECT 2, content FROM contents WHERE position = 4",
            Fault.WRONG_CONTENT,
        ),
        (
            "INSERT INTO contents SELECT 5, content FROM contents WHERE position = 4",
            Fault.WRONG_CONTENT,
        ),
    ],
    ids=["taken away", "changed", "put back", "of no fact"],
)
def test_nothing_else_is_accepted(
    sealed: EventLog, log_url: str, statement: str, fault: Fault
) -> None:
    remove_erased(log_url)
    run_sql(log_url, statement)
    assert fault in faults(sealed)


def test_a_content_that_is_there_although_it_was_erased_is_found(
    sealed: EventLog, log_url: str
) -> None:
    remove_erased(log_url)
    run_sql(log_url, "INSERT INTO contents SELECT 2, content FROM contents WHERE position = 4")
    assert set(faults(sealed)) == {Fault.WRONG_CONTENT}


def test_an_erased_content_that_can_still_be_read_is_found(log: EventLog, log_url: str) -> None:
    writer = SealedWriter(log)
    writer.commit({"shard-0": [(OWNER, message(b"one"))]})
    run_sql(log_url, "CREATE TABLE kept AS SELECT * FROM contents")
    writer.commit({"shard-0": [(OWNER, removed([1], "a"))]})
    is_sqlite = log_url.startswith("sqlite:")
    back = "DELETE FROM erased" if is_sqlite else "INSERT INTO contents SELECT * FROM kept"
    run_sql(log_url, back)
    assert contents(log) == {1: b"one"}
    (found, _) = verify(log)
    assert isinstance(found, Finding)
    assert found.fault is Fault.WRONG_CONTENT
    assert "still exists" in found.explanation


@pytest.mark.parametrize(("version", "found"), [(3, []), (2, [Fault.MISSING_CONTENT])])
def test_what_others_erase_while_a_log_is_verified_is_no_finding(
    sealed: EventLog,
    open_another: Callable[[], EventLog],
    log_url: str,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    found: list[Fault],
) -> None:
    """The removal stands behind the end that the check began with."""
    other, read = open_another(), type(sealed).read_contents

    def erased_before(log: EventLog, **part: int) -> dict[int, bytes]:
        if len(log.read_stream(OWNER)) == 5:
            append(other, OWNER, removed([version], "c"))
            run_sql(log_url, "DELETE FROM contents WHERE position = 4")
        return read(log, **part)

    monkeypatch.setattr(type(sealed), "read_contents", erased_before)
    assert faults(sealed) == found
    assert contents(sealed) == {}
