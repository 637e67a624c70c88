"""The thread that removes what is due is killed before and after each of its commits."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from actors.core.commands import QueueMessage
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import ContractRequestsExpired, MessageQueued, MessagesRemoved
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import wrong_read_models
from tests.contract.test_retention_contract import FRIEND, PEOPLE, Mediator, is_sound
from tests.crash.killed_expiry import contents_in, exit_code
from tests.unit.actors.given import run, submission

ALL_DUE_S = 201


def _removed(log: EventLog, did: str) -> tuple[list[str], list[str]]:
    """The messages that were queued for an identity, and those that were removed."""
    events = [decode(row.topic, row.state) for row in log.read_stream(identity_stream(did))]
    queued = [event.message_id for event in events if isinstance(event, MessageQueued)]
    removals = [event for event in events if isinstance(event, MessagesRemoved)]
    assert {event.reason for event in removals} <= {"expired"}
    return queued, [each for event in removals for each in event.message_ids]


@pytest.mark.crash
def test_a_kill_at_any_commit_leaves_nothing_half_removed_and_the_next_look_goes_on(
    tmp_path: Path,
) -> None:
    dsn = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        mediator.settle(*PEOPLE)
        for did in PEOPLE[:2]:
            more = [submission(did, QueueMessage(FRIEND, b"more"), sender=FRIEND) for _ in range(3)]
            run(mediator.host, *more)
        left = [contents_in(log)]
        fatal, ended = 0, -signal.SIGKILL
        while ended == -signal.SIGKILL:
            fatal += 1
            code = exit_code(dsn, fatal, ALL_DUE_S)
            assert code is not None
            ended = code
            assert is_sound(log)
            left.append(contents_in(log))
            waiting = 0
            for did in PEOPLE:
                queued, removed = _removed(log, did)
                assert removed == queued[: len(removed)]
                waiting += len(queued) - len(removed)
            assert log.figures().queue_messages == waiting
        assert ended == 0
        assert left == sorted(left, reverse=True)
        assert len(set(left)) > 3
        assert left[-1] == 0
        for did in PEOPLE:
            queued, removed = _removed(log, did)
            assert removed == queued
            rows = log.read_stream(identity_stream(did))
            expired = [row for row in rows if row.topic.startswith("contract-requests-expired")]
            assert len([decode(row.topic, row.state) for row in expired]) == 1
            assert isinstance(decode(expired[0].topic, expired[0].state), ContractRequestsExpired)
    with closing(open_store(dsn)) as store:
        assert list(wrong_read_models(store)) == []
