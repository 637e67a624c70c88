"""The check of a log works on each store."""

from __future__ import annotations

import tracemalloc

import pytest

from eventstore.log import content_check
from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault, Finding
from eventstore.log.verify import Summary, verify
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, SealedWriter, append, message, saved


@pytest.fixture
def sealed(log: EventLog) -> EventLog:
    writer = SealedWriter(log)
    for number in range(20):
        writer.commit(
            {
                "shard-0": [(OWNER, message(str(number).encode())), (OWNER, saved(str(number)))],
                "shard-1": [(OTHER, message())] if number % 2 else [],
            }
        )
        with pytest.raises(AppendConflict):
            log.append([encode(OWNER, 1, message())], [message()])
    return log


def test_a_log_with_failed_appends_in_between_verifies(sealed: EventLog) -> None:
    (summary,) = verify(sealed)
    assert isinstance(summary, Summary)
    assert (summary.rows, summary.seals, summary.streams) == (90, 40, 4)
    assert {name: head.version for name, head in summary.heads.items()} == {
        "shard-0": 20,
        "shard-1": 20,
    }


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        pytest.param(
            """
            UPDATE stored_events SET topic = 'event-saved.3'
            WHERE topic = 'event-saved.2' AND originator_version = 10
            """,
            Fault.UNKNOWN_TOPIC,
            id="topic",
        ),
        pytest.param(
            """
            DELETE FROM stored_events
            WHERE topic = 'event-saved.2' AND originator_version = 40
            """,
            Fault.MISSING_ROWS,
            id="deleted",
        ),
        pytest.param(
            """
            UPDATE stored_events SET originator_version = 99
            WHERE topic = 'event-saved.2' AND originator_version = 40
            """,
            Fault.VERSION_BREAK,
            id="version",
        ),
        pytest.param(
            """
            UPDATE stored_events SET state = (
                SELECT state FROM stored_events
                WHERE topic = 'message-queued.2' AND originator_version = 3 LIMIT 1
            )
            WHERE topic = 'message-queued.2' AND originator_version = 5
            """,
            Fault.BROKEN_SEAL,
            id="state",
        ),
    ],
)
def test_a_change_in_the_database_is_named(
    sealed: EventLog, log_url: str, statement: str, fault: Fault
) -> None:
    run_sql(log_url, statement)
    *findings, _ = verify(sealed)
    assert fault in {finding.fault for finding in findings if isinstance(finding, Finding)}


@pytest.mark.parametrize("position", [0, -7, -(2**63)])
def test_a_row_before_the_first_position_is_named_as_is_a_content(
    sealed: EventLog, log_url: str, position: int
) -> None:
    """Readers of its stream get it, and readers of the log by position never do."""
    row = "rowid" if log_url.startswith("sqlite") else "notification_id"
    run_sql(
        log_url,
        f"INSERT INTO stored_events (originator_id, originator_version, topic, state, {row})"
        f" SELECT originator_id, originator_version + 1, topic, state, {position}"
        " FROM stored_events WHERE topic = 'event-saved.2' AND originator_version = 40",
    )
    run_sql(log_url, "INSERT INTO contents SELECT -3, content FROM contents WHERE position = 1")
    assert len(sealed.read_stream(OWNER)) == 41
    found = [one for one in verify(sealed) if isinstance(one, Finding)]
    assert [(one.fault, one.last_position, one.stream, one.version) for one in found[:1]] == [
        (Fault.WRONG_POSITION, position, OWNER, 41)
    ]
    assert [(one.fault, one.last_position) for one in found[1:]] == [(Fault.WRONG_CONTENT, -3)]


@pytest.mark.postgres
@pytest.mark.parametrize("log_url", ["postgres"], indirect=True)
def test_a_row_without_a_position_is_named(sealed: EventLog, log_url: str) -> None:
    """An administrator of PostgreSQL can let the column be empty; SQLite has no such row."""
    run_sql(log_url, "ALTER TABLE stored_events ALTER notification_id DROP NOT NULL")
    run_sql(
        log_url,
        "INSERT INTO stored_events (originator_id, originator_version, topic, state,"
        " notification_id) SELECT originator_id, originator_version + 1, topic, state, NULL"
        " FROM stored_events WHERE topic = 'event-saved.2' AND originator_version = 40",
    )
    assert len(sealed.read_stream(OWNER)) == 41
    found = [one for one in verify(sealed) if isinstance(one, Finding)]
    assert [(one.fault, one.last_position, one.stream, one.version) for one in found] == [
        (Fault.WRONG_POSITION, 0, OWNER, 41)
    ]


def test_contents_are_in_memory_a_bounded_number_of_bytes_at_a_time(
    log: EventLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, size_bytes, count = SealedWriter(log), 128 * 1024, 60
    for number in range(count):
        writer.commit({"shard-0": [(OWNER, message(bytes(size_bytes), str(number)))]})
    monkeypatch.setattr(content_check, "_PAGE_BYTES", 4 * size_bytes, raising=False)
    tracemalloc.start()
    try:
        (summary,) = verify(log)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(summary, Summary)
    assert peak_bytes < count * size_bytes / 3
    run_sql(log_url, f"DELETE FROM contents WHERE position IN (9, {2 * count - 1})")
    missing = [one.first_position for one in verify(log) if isinstance(one, Finding)]
    assert missing == [9, 2 * count - 1]


def test_contents_without_rows_are_found_wherever_they_are_and_hide_no_others(
    log: EventLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind the last row, too, as when the end of a log was cut off."""
    writer = SealedWriter(log)
    for text in (b"one", b"two", b"three"):
        writer.commit({"shard-0": [(OWNER, message(text))]})
    monkeypatch.setattr(content_check, "_PAGE_BYTES", 1)
    row = "rowid" if log_url.startswith("sqlite") else "notification_id"
    run_sql(log_url, f"DELETE FROM stored_events WHERE {row} IN (1, 2, 5, 6)")
    run_sql(log_url, "INSERT INTO contents SELECT 2, content FROM contents WHERE position = 1")
    found = [one for one in verify(log) if isinstance(one, Finding)]
    wrong = [one.first_position for one in found if one.fault is Fault.WRONG_CONTENT]
    assert (wrong, Fault.MISSING_CONTENT in {one.fault for one in found}) == ([1, 2, 5], False)


def test_a_row_that_is_not_understood_is_not_said_to_be_missing_beside_its_content(
    log: EventLog, log_url: str
) -> None:
    writer = SealedWriter(log)
    for text in (b"one", b"two"):
        writer.commit({"shard-0": [(OWNER, message(text))]})
    for version, topic in enumerate(("of-a-later-release.1", "größer.1"), 1):
        run_sql(
            log_url,
            f"UPDATE stored_events SET topic = '{topic}' WHERE topic LIKE 'message-%'"
            f" AND originator_version = {version}",
        )
    faults = {one.fault for one in verify(log) if isinstance(one, Finding)}
    assert {Fault.UNKNOWN_TOPIC, Fault.MALFORMED_ROW} <= faults
    assert Fault.WRONG_CONTENT not in faults


def test_contents_that_are_appended_during_a_check_are_no_finding(log: EventLog) -> None:
    writer = SealedWriter(log)

    def commit(*_: int) -> None:
        writer.commit({"shard-0": [(OWNER, message(b"text"))]})

    commit()
    (summary,) = verify(log, progress=commit)
    assert isinstance(summary, Summary)
    assert summary.position < log.position()


def test_contents_are_read_up_to_the_one_that_reaches_the_bound(log: EventLog) -> None:
    append(log, OWNER, message(b"one"), saved("x"), message(b"two"), message(b"three"))
    every = log.read_contents(after=0, until=9)
    assert len(every) == 4
    until_third = sum(map(len, list(every.values())[:3]))
    for bytes_max, count in ((1, 1), (until_third, 3), (until_third + 1, 4)):
        found = log.read_contents(after=0, until=9, bytes_max=bytes_max)
        assert list(found.items()) == list(every.items())[:count]
