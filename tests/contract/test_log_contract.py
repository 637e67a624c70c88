"""What every log promises (``eventstore.log.event_log.EventLog``), on each store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
from eventsourcing.persistence import Notification, StoredEvent

from eventstore.log import batch
from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict, AppendRefused, AppendUnknown, LogUnavailable
from eventstore.log.event_log import (
    DedicatedIdentity,
    EventLog,
    LogFigures,
    PageBounds,
    PublicEventsFilter,
    QueueDepth,
    SavedEventsFilter,
    Snapshot,
    WaitingQueue,
)
from eventstore.log.events import Event, IdentityDedicated, IdentityReleased
from eventstore.log.streams import identity_stream
from tests.contract.conftest import OpenLog
from tests.log.raw_sql import run_sql
from tests.log.samples import (
    OTHER,
    OWNER,
    append,
    dedicated,
    message,
    published,
    released,
    save,
    saved,
    tagged,
)


def _versions(rows: object) -> list[int]:
    assert isinstance(rows, list | tuple)
    return [row.originator_version for row in rows]


def _as_stored(row: Notification) -> StoredEvent:
    return StoredEvent(row.originator_id, row.originator_version, row.topic, row.state)


def test_rows_come_back_byte_for_byte_by_stream_and_by_position(log: EventLog) -> None:
    events = [message(b"\x00\xff" * 700), message(b""), saved("é\x00😀")]
    rows = [encode(OWNER, 1, events[0]), encode(OTHER, 1, events[1]), encode(OWNER, 2, events[2])]
    log.append(rows, events)
    assert list(log.read_stream(OWNER)) == [rows[0], rows[2]]
    assert list(log.read_stream(OTHER)) == [rows[1]]
    assert [_as_stored(row) for row in log.read_log()] == rows


def test_rows_of_one_append_get_consecutive_positions_in_the_order_given(log: EventLog) -> None:
    append(log, OWNER, message())
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 1, message())], [message()])
    streams = [uuid4() for _ in range(50)]
    log.append([encode(stream, 1, message()) for stream in streams], [message()] * 50)
    found = [row for row in log.read_log() if row.originator_id != OWNER]
    assert [row.originator_id for row in found] == streams
    first = found[0].id
    assert [row.id for row in found] == list(range(first, first + 50))
    assert log.position() == first + 49


def test_an_empty_log_is_at_position_0_and_holds_nothing(log: EventLog) -> None:
    assert log.position() == 0
    assert not log.read_log()
    assert not log.read_stream(OWNER)
    assert log.read_versions(OWNER, [1]) == {}


@pytest.mark.parametrize(
    ("after", "before", "limit", "newest_first", "expected"),
    [
        (0, None, None, False, [1, 2, 3, 4, 5]),
        (2, None, None, False, [3, 4, 5]),
        (0, 3, None, False, [1, 2]),
        (1, 5, None, False, [2, 3, 4]),
        (1, 5, 2, False, [2, 3]),
        (1, 5, 2, True, [4, 3]),
        (0, None, 1, True, [5]),
        (0, 1, None, False, []),
        (5, None, None, False, []),
    ],
)
def test_a_stream_is_read_between_exclusive_versions(
    log: EventLog,
    after: int,
    before: int | None,
    limit: int | None,
    newest_first: bool,
    expected: list[int],
) -> None:
    append(log, OTHER, message())
    append(log, OWNER, *[message()] * 5)
    found = log.read_stream(
        OWNER, after=after, before=before, limit=limit, newest_first=newest_first
    )
    assert _versions(found) == expected


def test_rows_are_found_by_version_and_missing_versions_are_left_out(log: EventLog) -> None:
    append(log, OTHER, *[message()] * 9)
    append(log, OWNER, *[message(str(n).encode()) for n in range(4)])
    stream = log.read_stream(OWNER)
    assert log.read_versions(OWNER, [4, 2, 2, 9]) == {2: stream[1], 4: stream[3]}
    assert log.read_versions(OWNER, []) == {}
    assert len(log.read_versions(OTHER, range(1, 5000))) == 9


def test_the_log_is_read_page_by_page_without_gap_or_repeat(log: EventLog) -> None:
    for _ in range(5):
        append(log, OWNER, message(), message())
    reached, versions = 0, []
    while page := log.read_log(after=reached, limit=3):
        assert len(page) <= 3
        versions += _versions(page)
        reached = page[-1].id
    assert versions == list(range(1, 11))
    assert reached == log.position()


def test_rows_of_a_topic_are_found_between_two_positions(log: EventLog) -> None:
    append(log, OWNER, message(), saved("event"))
    append(log, OWNER, message(), saved("another"), message(), saved("last"))
    rows = log.read_log()
    topics = {rows[1].topic}
    assert log.read_log(topics=topics) == rows[1::2]
    assert log.read_log(after=rows[1].id, until=rows[3].id, topics=topics) == [rows[3]]
    assert log.read_log(until=rows[1].id) == rows[:2]


def test_an_append_of_nothing_changes_nothing(log: EventLog) -> None:
    log.append([], [])
    assert log.position() == 0


def test_a_conflict_stores_nothing_of_the_batch(log: EventLog) -> None:
    append(log, OWNER, message())
    events: list[Event] = [saved("new"), published("new"), message()]
    rows = [encode(OTHER, 1, events[0]), encode(OTHER, 2, events[1]), encode(OWNER, 1, events[2])]
    position = log.position()
    with pytest.raises(AppendConflict):
        log.append(rows, events)
    assert log.position() == position
    assert not log.read_stream(OTHER)
    assert log.query_saved_events(OTHER, SavedEventsFilter(), PageBounds(0, 9)).total == 0
    assert log.query_public_events(OTHER, PublicEventsFilter(), PageBounds(0, 9)).total == 0
    log.append(rows[:2], events[:2])
    assert log.query_saved_events(OTHER, SavedEventsFilter(), PageBounds(0, 9)).total == 1


def test_a_conflict_within_one_batch_stores_nothing(log: EventLog) -> None:
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 1, message())] * 2, [message()] * 2)
    assert log.position() == 0


def test_two_thousand_large_rows_are_stored_whole_or_not_at_all(log: EventLog) -> None:
    events = [message(bytes(1200)) for _ in range(2000)]
    rows = [encode(OWNER, 1 + version, event) for version, event in enumerate(events)]
    append(log, OTHER, message())
    with pytest.raises(AppendConflict):
        log.append([*rows, encode(OTHER, 1, message())], [*events, message()])
    assert not log.read_stream(OWNER)
    log.append(rows, events)
    assert list(log.read_stream(OWNER)) == rows


_SAVED_AT = {"nan": float("nan"), "infinity": float("inf")}


@pytest.mark.parametrize("timestamp", ["nan", "infinity"])
@pytest.mark.parametrize("make", [saved, published])
def test_a_timestamp_without_order_is_refused_before_writing(
    log: EventLog, timestamp: str, make: Callable[[str, float], Event]
) -> None:
    event = make("id", _SAVED_AT[timestamp])
    with pytest.raises(AppendRefused):
        log.append([encode(OWNER, 1, message()), encode(OWNER, 2, event)], [message(), event])
    assert log.position() == 0


def test_rows_without_their_events_are_refused(log: EventLog) -> None:
    with pytest.raises(AppendRefused):
        log.append([encode(OWNER, 1, message())], [])
    assert log.position() == 0


def test_a_version_below_the_first_is_refused(log: EventLog) -> None:
    with pytest.raises(AppendRefused):
        log.append([encode(OWNER, 0, message())], [message()])
    assert log.position() == 0


def test_rows_and_batches_over_their_size_are_refused(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = message(bytes(1000))
    row = encode(OWNER, 1, event)
    size_bytes = len(row.state) + 1000
    monkeypatch.setattr(batch, "ROW_BYTES_MAX", size_bytes - 1)
    with pytest.raises(AppendRefused):
        log.append([row], [event])
    monkeypatch.setattr(batch, "ROW_BYTES_MAX", size_bytes)
    monkeypatch.setattr(batch, "BATCH_BYTES_MAX", 2 * size_bytes - 1)
    second = replace(row, originator_version=2)
    with pytest.raises(AppendRefused):
        log.append([row, second], [event] * 2)
    assert log.position() == 0
    monkeypatch.setattr(batch, "BATCH_BYTES_MAX", 2 * size_bytes)
    log.append([row, second], [event] * 2)
    assert list(log.read_stream(OWNER)) == [row, second]


def test_a_row_is_not_stored_without_its_read_model(log: EventLog, log_url: str) -> None:
    append(log, OWNER, saved("first"))
    run_sql(log_url, "ALTER TABLE postings RENAME TO postings_away")
    with pytest.raises(AppendUnknown):
        append(log, OWNER, message(), saved("second"))
    assert _versions(log.read_stream(OWNER)) == [1]
    with pytest.raises(LogUnavailable):
        log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 9))
    run_sql(log_url, "ALTER TABLE postings_away RENAME TO postings")
    append(log, OWNER, message(), saved("second"))
    page = log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 9))
    assert [event.event_id for event in page.events] == ["first", "second"]


def test_a_closed_log_answers_unknown_or_unavailable(log: EventLog) -> None:
    append(log, OWNER, message())
    log.close()
    with pytest.raises(AppendUnknown):
        log.append([encode(OWNER, 2, message())], [message()])
    for read in (
        lambda: log.read_stream(OWNER),
        lambda: log.read_versions(OWNER, [1]),
        log.read_log,
        log.position,
        log.figures,
        lambda: log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 1)),
        lambda: log.query_public_events(OWNER, PublicEventsFilter(), PageBounds(0, 1)),
        lambda: log.load_snapshot(OWNER),
        lambda: log.load_snapshots([OWNER]),
        lambda: log.read_streams({OWNER: 0}, limit=1),
        lambda: log.save_snapshots([]),
        lambda: log.setting("name", "default"),
        log.check_writable,
    ):
        with pytest.raises(LogUnavailable):
            read()
    log.close()


def test_what_was_appended_is_there_when_the_log_is_opened_again(
    log: EventLog, open_another: OpenLog
) -> None:
    append(log, OWNER, message(), saved("saved"), published("published"))
    save(log, (OWNER, Snapshot(3, 1, b"state")))
    rows = log.read_log()
    log.close()
    again = open_another()
    assert again.read_log() == rows
    assert again.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 1)).total == 1
    assert again.query_public_events(OWNER, PublicEventsFilter(), PageBounds(0, 1)).total == 1
    assert again.load_snapshot(OWNER) == Snapshot(3, 1, b"state")


def test_a_log_can_be_made_by_several_at_the_same_time(open_another: OpenLog) -> None:
    together = threading.Barrier(6)

    def open_and_append(number: int) -> None:
        together.wait()
        append(open_another(), identity_stream(str(number)), message())

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(open_and_append, range(6)))
    assert len(open_another().read_log()) == 6


def test_of_writers_that_race_for_a_version_exactly_one_wins(open_another: OpenLog) -> None:
    logs = [open_another() for _ in range(4)]
    together = threading.Barrier(len(logs))

    def race(number: int) -> list[int]:
        won = []
        for version in range(1, 16):
            event = message(str(number).encode())
            together.wait()
            try:
                logs[number].append([encode(OWNER, version, event)], [event])
            except AppendConflict:
                continue
            won.append(version)
        return won

    with ThreadPoolExecutor(len(logs)) as threads:
        won = list(threads.map(race, range(len(logs))))
    assert sorted(version for versions in won for version in versions) == list(range(1, 16))
    assert _versions(logs[0].read_stream(OWNER)) == list(range(1, 16))


def test_a_reader_by_position_misses_nothing_and_sees_whole_appends(
    open_another: OpenLog,
) -> None:
    writers, reader, rows_each = 3, open_another(), 3
    expected = writers * 20 * rows_each

    def write(number: int) -> None:
        mine = open_another()
        for version in range(1, 20 * rows_each, rows_each):
            events = [message()] * rows_each
            stream = identity_stream(str(number))
            mine.append([encode(stream, version + i, message()) for i in range(rows_each)], events)

    seen: list[Notification] = []
    with ThreadPoolExecutor(writers) as threads:
        writing = [threads.submit(write, number) for number in range(writers)]
        while len(seen) < expected:
            seen += reader.read_log(after=seen[-1].id if seen else 0)
            assert len(seen) % rows_each == 0
            if all(each.done() for each in writing):
                seen += reader.read_log(after=seen[-1].id if seen else 0)
                break
        for each in writing:
            each.result()
    assert len(seen) == expected
    for first in range(0, expected, rows_each):
        assert len({row.originator_id for row in seen[first : first + rows_each]}) == 1


def test_many_threads_read_while_one_writes(log: EventLog) -> None:
    append(log, OWNER, saved("0"))

    def read(_: int) -> None:
        before = log.position()
        stream = log.read_stream(OWNER)
        page = log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 100))
        assert before <= len(stream) <= page.total == len(page.events)

    with ThreadPoolExecutor(8) as threads:
        reads = [threads.submit(read, n) for n in range(60)]
        for number in range(1, 30):
            append(log, OWNER, saved(str(number)))
        for each in reads:
            each.result()


def test_a_snapshot_replaces_the_one_before(log: EventLog) -> None:
    assert log.load_snapshot(OWNER) is None
    log.save_snapshots([])
    save(log, (OWNER, Snapshot(5, 2, b"\x00five")), (OTHER, Snapshot(1, 2, b"")))
    save(log, (OWNER, Snapshot(5, 3, b"other fold")))
    assert log.load_snapshot(OWNER) == Snapshot(5, 3, b"other fold")
    assert log.load_snapshot(OTHER) == Snapshot(1, 2, b"")


def test_a_snapshot_that_a_former_owner_saves_late_replaces_no_later_one(log: EventLog) -> None:
    save(log, (OWNER, Snapshot(5, 2, b"nameless")))
    save(log, (OWNER, Snapshot(4, 2, b"name")), (OTHER, Snapshot(1, 2, b"other")))
    assert log.load_snapshot(OWNER) == Snapshot(5, 2, b"nameless")
    assert log.load_snapshot(OTHER) == Snapshot(1, 2, b"other")


def test_many_streams_are_read_at_once_as_each_by_itself(log: EventLog) -> None:
    third = identity_stream("third")
    for number in range(5):
        append(log, OWNER, message(b"%d" % number))
        append(log, OTHER, message(b"other"))
    save(log, (OWNER, Snapshot(2, 1, b"two")), (third, Snapshot(1, 1, b"")))
    found = log.load_snapshots([OWNER, OTHER, third])
    assert found == {OWNER: Snapshot(2, 1, b"two"), third: Snapshot(1, 1, b"")}
    rows = log.read_streams({OWNER: 2, OTHER: 0, third: 1}, limit=4)
    assert rows == {
        OWNER: list(log.read_stream(OWNER, after=2)),
        OTHER: list(log.read_stream(OTHER, limit=4)),
        third: [],
    }
    assert (log.load_snapshots([]), log.read_streams({}, limit=1)) == ({}, {})


def test_a_setting_keeps_its_first_value_for_every_process(open_another: OpenLog) -> None:
    logs = [open_another() for _ in range(4)]
    together = threading.Barrier(len(logs))

    def ask(number: int) -> str:
        together.wait()
        return logs[number].setting("shards", f"value\x00{number}")

    with ThreadPoolExecutor(len(logs)) as threads:
        answers = set(threads.map(ask, range(len(logs))))
    assert len(answers) == 1
    assert open_another().setting("shards", "too late") in answers
    assert logs[0].setting("other", "own") == "own"


def test_the_figures_are_the_sums_of_the_newest_depths(log: EventLog) -> None:
    assert log.figures() == LogFigures(
        log_position=0,
        identities=0,
        queue_messages=0,
        queue_bytes=0,
        queue_oldest_at_ms=None,
    )
    first = [QueueDepth(OWNER, 1, 10, 500), QueueDepth(OTHER, 2, 2**40, 400)]
    log.append([encode(OWNER, 1, message())], [message()], first)
    second = [QueueDepth(OWNER, 3, 30, 500), QueueDepth(OTHER, 0, 0, None)]
    log.append([encode(OWNER, 2, message())], [message()], second)
    assert log.figures() == LogFigures(
        log_position=log.position(),
        identities=2,
        queue_messages=3,
        queue_bytes=30,
        queue_oldest_at_ms=500,
    )


def test_queues_that_wait_longest_come_first_and_outbound_ones_can_be_found(log: EventLog) -> None:
    others = [identity_stream(f"did:key:{name}") for name in "abcd"]
    depths = [
        QueueDepth(others[0], 1, 10, 500, "did:key:a", outbound=True),
        QueueDepth(others[1], 2, 2**40, 400, "did:key:b", outbound=False),
        QueueDepth(others[2], 3, 30, 300, "did:key:c", outbound=True),
        QueueDepth(others[3], 0, 0, None, "did:key:d", outbound=True),
    ]
    log.append([encode(OWNER, 1, message())], [message()], depths)
    a = WaitingQueue("did:key:a", 1, 10, 500, outbound=True)
    b = WaitingQueue("did:key:b", 2, 2**40, 400, outbound=False)
    c = WaitingQueue("did:key:c", 3, 30, 300, outbound=True)
    assert log.waiting_queues(outbound_only=False, limit=10) == [c, b, a]
    assert log.waiting_queues(outbound_only=False, limit=2) == [c, b]
    assert log.waiting_queues(outbound_only=True, limit=10) == [c, a]
    assert log.waiting_queues(outbound_only=False, after=c, limit=1) == [b]
    assert log.waiting_queues(outbound_only=True, after=c, limit=10) == [a]
    assert log.waiting_queues(outbound_only=True, after=a, limit=10) == []


def test_queues_of_one_age_are_each_found_once_after_those_before_them(log: EventLog) -> None:
    dids = [f"did:key:{number}" for number in range(5)]
    depths = [QueueDepth(identity_stream(did), 1, 10, 500, did, outbound=True) for did in dids]
    log.append([encode(OWNER, 1, message())], [message()], depths)
    found: list[WaitingQueue] = []
    while some := log.waiting_queues(
        outbound_only=True, after=found[-1] if found else None, limit=2
    ):
        found += some
    assert [queue.did for queue in found] == sorted(dids, key=identity_stream)


def test_the_dedicated_identities_are_those_that_were_not_released_since(log: EventLog) -> None:
    assert log.dedicated() == []
    events: list[IdentityDedicated | IdentityReleased] = [
        dedicated("did:x:b", "operator"),
        dedicated("did:x:\x00", "load"),
        released("did:x:b"),
        dedicated("did:x:\x00", "operator"),
    ]
    for number, event in enumerate(events, 1):
        stream = identity_stream(event.did)
        log.append([encode(stream, number, event)], [event])
    assert log.dedicated() == [DedicatedIdentity("did:x:\x00", "operator")]


def test_a_conflict_leaves_the_figures_as_they_were(log: EventLog) -> None:
    log.append([encode(OWNER, 1, message())], [message()], [QueueDepth(OWNER, 1, 10, 500)])
    before = log.figures()
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 1, message())], [message()], [QueueDepth(OWNER, 2, 20, 500)])
    assert log.figures() == before


def test_the_health_check_writes(log: EventLog, log_url: str) -> None:
    log.check_writable()
    log.check_writable()
    assert [tuple(row) for row in run_sql(log_url, "SELECT beats FROM heartbeat")] == [(2,)]
    run_sql(log_url, "DROP TABLE heartbeat")
    with pytest.raises(LogUnavailable):
        log.check_writable()


def test_an_update_in_the_append_that_saves_is_seen(log: EventLog) -> None:
    append(log, OWNER, saved("id", tags=["old"]), tagged("id", "new"), tagged("id", "newest"))
    page = log.query_saved_events(OWNER, SavedEventsFilter(), PageBounds(0, 9))
    assert [event.encrypted_tags for event in page.events] == [["newest"]]
