"""Rows leave a log in steps, each whole or not at all, on both stores."""

from __future__ import annotations

import pytest

from eventstore.log.errors import RowsStay
from eventstore.log.event_log import Departure, EventLog, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.seam import SEAM
from tests.log.samples import OTHER, OWNER, SealedWriter, dedicated, message, save

STATE = Snapshot(3, 7, b"state")


def positions(log: EventLog) -> list[int]:
    return [row.position for row in log.read_rows(after=0, rows_max=100, bytes_max=10**6)]


def fill(log: EventLog) -> list[int]:
    events = [(OWNER, dedicated("did:example:owner", "load"))] * 3
    SealedWriter(log).commit({"shard-0": events, "shard-1": [(OTHER, message())]})
    return positions(log)


def test_a_step_removes_its_rows_and_stores_its_states_and_its_seam(log: EventLog) -> None:
    first, second, *rest = fill(log)
    log.let_leave(Departure(None, "one", [second], [(OWNER, STATE)]))
    assert positions(log) == [first, *rest]
    assert log.settings()[SEAM] == "one"
    assert log.load_archived_state(OWNER) == STATE
    assert log.load_archived_state(OTHER) is None
    log.let_leave(Departure("one", "two", [first], [(OTHER, STATE), (OWNER, STATE)]))
    assert positions(log) == rest
    assert log.settings()[SEAM] == "two"
    assert dict(log.archived_states()) == {OWNER: STATE, OTHER: STATE}


@pytest.mark.parametrize("before", [None, "other"])
def test_a_step_behind_another_seam_does_nothing(log: EventLog, before: str | None) -> None:
    first, second, *rest = fill(log)
    log.let_leave(Departure(None, "one", [first]))
    with pytest.raises(RowsStay):
        log.let_leave(Departure(before, "two", [second], [(OWNER, STATE)]))
    assert positions(log) == [second, *rest]
    assert log.settings()[SEAM] == "one"
    assert log.load_archived_state(OWNER) is None


def test_a_row_with_its_content_and_one_that_is_not_there_stay_with_all_of_their_step(
    log: EventLog,
) -> None:
    before = fill(log)
    for wrong in (before[4], 10**6):
        with pytest.raises(RowsStay):
            log.let_leave(Departure(None, "one", [before[0], wrong], [(OWNER, STATE)]))
    assert positions(log) == before
    assert SEAM not in log.settings()
    assert log.load_archived_state(OWNER) is None


def test_a_state_that_is_stored_for_rows_leaves_no_snapshot_from_before_it(log: EventLog) -> None:
    first, *_ = fill(log)
    before, later = Snapshot(2, 7, b"before"), Snapshot(3, 7, b"later")
    save(log, (OWNER, before), (OTHER, later))
    log.let_leave(Departure(None, "one", [first], [(OWNER, STATE), (OTHER, STATE)]))
    assert log.load_snapshots([OWNER, OTHER]) == {OTHER: later}


def test_rows_of_a_stream_are_found_by_their_topics(log: EventLog) -> None:
    before = fill(log)
    found = log.stream_rows(OWNER, until=2, topics=["identity-dedicated.1", SEAL_TOPIC])
    assert [(row.position, row.version, row.content) for row in found] == [
        (before[0], 1, None),
        (before[1], 2, None),
    ]
    assert log.stream_rows(OWNER, until=9, topics=["message-queued.2"]) == []
