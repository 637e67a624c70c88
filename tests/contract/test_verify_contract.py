"""The check of a log works on each store."""

from __future__ import annotations

import pytest

from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict
from eventstore.log.event_log import EventLog
from eventstore.log.verify import Fault, Finding, Summary, verify
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, SealedWriter, message, saved


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
