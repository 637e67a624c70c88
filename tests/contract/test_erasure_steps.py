"""The last step of an erasure helps the next one in the same log, if it was stored."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from actors.core.commands import EraseIdentity, PurgeQueue
from actors.core.erasure import CONTINUED, OPERATOR
from actors.core.replies import Erased
from eventstore.log.event_log import EventLog, Listed, PublicEventsFilter
from eventstore.log.streams import identity_stream
from eventstore.read_models.saved_events_erasure import LastSteps
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import RecorderLog
from tests.contract.test_erasure_contract import (
    GONE,
    LISTED_AT_ONCE,
    assert_gone,
    erase,
    listed,
    mediator,
    settled,
    step,
    wrong,
)
from tests.contract.test_retention_contract import Mediator
from tests.log.raw_sql import run_sql
from tests.log.samples import FIRST_PAGE
from tests.log.stored import copy_log, tables_of
from tests.unit.actors.given import MEDIATOR, run, unclaimed

__all__ = ["mediator"]


def last_steps(log: EventLog) -> LastSteps:
    assert isinstance(log, RecorderLog)
    steps: LastSteps = vars(log._store.recorder)["_steps"]
    return steps


def shown(mediator: Mediator) -> int:
    """How many public events anyone reads."""
    where = PublicEventsFilter()
    return mediator.log.query_public_events(identity_stream(GONE), where, FIRST_PAGE).total


def test_public_events_leave_before_all_that_no_stranger_reads(
    mediator: Mediator, log_url: str
) -> None:
    step(mediator, GONE)
    waiting = mediator.log.waiting_queues(did=GONE, limit=1)
    assert shown(mediator) == 1
    step(mediator, GONE)
    assert shown(mediator) == 0
    assert mediator.log.waiting_queues(did=GONE, limit=1) == waiting != []
    assert wrong(log_url) == []


def test_an_erasure_that_an_earlier_build_began_with_messages_comes_to_its_end(
    mediator: Mediator, log_url: str
) -> None:
    step(mediator, GONE)
    run(mediator.host, unclaimed(GONE, PurgeQueue()))
    assert shown(mediator) == 1
    assert erase(mediator, GONE)[-1].is_over
    assert_gone(mediator.log, GONE)
    assert wrong(log_url) == []


@pytest.mark.thorough
def test_an_erasure_is_as_due_in_a_restored_log_as_in_its_own_after_every_step(
    mediator: Mediator, log_url: str, tmp_path: Path
) -> None:
    mediator.log.setting("mediator_did", MEDIATOR)
    by, is_over = OPERATOR, False
    while not is_over:
        answer = step(mediator, GONE, by)
        assert isinstance(answer, Erased)
        by, is_over = CONTINUED, answer.is_over
        url = f"sqlite:{tmp_path / f'{mediator.log.position()}.db'}"
        copy_log(log_url, url)
        assert tables_of(url)["queue_depths"] == tables_of(log_url)["queue_depths"]


def test_a_step_that_was_not_stored_says_nothing_to_the_next_one(
    mediator: Mediator, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came further than the one that was stored, and had another command key."""
    stream, reached = identity_stream(GONE), last_steps(mediator.log)
    for _ in range(5):
        step(mediator, GONE)
    left = listed(log_url, GONE)
    undone = msgspec.structs.replace(reached[stream].event, command=bytes(16))
    monkeypatch.setitem(reached, stream, reached[stream]._replace(event=undone, key=None))
    step(mediator, GONE)
    assert listed(log_url, GONE) == left - LISTED_AT_ONCE
    assert wrong(log_url) == []


def test_a_step_in_one_log_says_nothing_to_the_next_one_in_another(
    mediator: Mediator, log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other log has the same step, and has lost its lists."""
    url = f"sqlite:{tmp_path / 'other.db'}"
    with closing(open_log(url)) as log:
        other = settled(log)
        for _ in range(4):
            step(mediator, GONE)
            step(other, GONE)
        run_sql(url, "DELETE FROM postings")
        monkeypatch.setattr(log, "how_listed", lambda _: Listed.APART)
        same = unclaimed(GONE, EraseIdentity(CONTINUED, 2))
        for each in (mediator, other):
            run(each.host, same)
        assert mediator.events(GONE)[-1] == other.events(GONE)[-1]
    left = listed(log_url, GONE)
    step(mediator, GONE)
    assert listed(log_url, GONE) == left - LISTED_AT_ONCE
    assert wrong(log_url) == []
