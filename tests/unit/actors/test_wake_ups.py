"""Sessions are notified of messages that became available, even if no command says so."""

from __future__ import annotations

import pytest

from actors.core.commands import (
    Command,
    ExpireRecords,
    Listen,
    QueryQueue,
    QueueEnvelopes,
    RemoveMessages,
    StartLive,
)
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.replies import EnvelopeQueued
from eventstore.log.event_log import EventLog
from tests.log.faulty_log import FaultyLog, StoredButFailed
from tests.unit.actors.didcomm import KEY, ME
from tests.unit.actors.given import NOW_S, HandClock, delivery, host, pushed, run, unclaimed
from tests.unit.actors.test_leases import UNAVAILABLE, WAITING, available, queue, take

ONE_AT_A_TIME = HostLimits(identity=IdentityLimits(live_in_flight_max=1))


def test_a_message_that_was_stored_though_its_append_failed_wakes_those_who_listen(
    log: EventLog,
) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    queue(owner)
    run(owner, unclaimed(ME, Listen("edge-0")))
    envelope = unclaimed(ME, QueueEnvelopes(KEY, [b"1"]))
    faulty.plan(StoredButFailed())
    assert owner.execute([("edge-1", envelope)]) == ([UNAVAILABLE], [])
    assert owner.due_pushes() == [("edge-0", WAITING)]
    (again,), pushes = owner.execute([("edge-1", envelope)])
    assert isinstance(again, EnvelopeQueued)
    assert again.is_repeat
    assert (pushes, owner.due_pushes()) == ([], []), "they were notified already"
    assert available(owner) == 1


def test_room_by_an_acknowledgement_that_was_stored_though_its_append_failed_is_announced(
    log: EventLog,
) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty, limits=ONE_AT_A_TIME)
    one, two = queue(owner, b"1", b"2")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    live = delivery("phone", live=True)
    assert take(owner, live, live) == [[one], []]
    acknowledged = unclaimed(ME, RemoveMessages([one], "acknowledged"))
    faulty.plan(StoredButFailed())
    assert owner.execute([("edge-0", acknowledged)]) == ([UNAVAILABLE], [])
    assert owner.due_pushes() == [("edge-0", WAITING)]
    assert take(owner, live) == [[two]]


@pytest.mark.parametrize("command", [ExpireRecords(64), QueryQueue()])
def test_a_live_session_is_notified_of_the_room_that_an_expired_message_leaves(
    log: EventLog, clock: HandClock, command: Command
) -> None:
    """A sender may let all that the session holds expire before it can be acknowledged."""
    owner = host(log, clock=clock, limits=ONE_AT_A_TIME)
    (waiting,) = queue(owner, b"1")
    run(owner, unclaimed(ME, RemoveMessages([waiting], "acknowledged")))
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    live = delivery("phone", live=True, lease_ms=3_600_000)
    (short,) = run(owner, unclaimed(ME, QueueEnvelopes(KEY, [b"2"], expires_at_s=NOW_S + 5)))
    (after,) = run(owner, unclaimed(ME, QueueEnvelopes(KEY, [b"3"])))
    assert isinstance(short, EnvelopeQueued)
    assert isinstance(after, EnvelopeQueued)
    assert take(owner, live, live) == [[short.message_id], []]
    clock.now_ms += 5_000
    run(owner, unclaimed(ME, command))
    assert owner.due_pushes() == [("edge-0", WAITING)]
    assert take(owner, live) == [[after.message_id]]


def test_a_request_that_waits_is_notified_once_another_session_leaves_room(log: EventLog) -> None:
    """All sessions together hold as many messages as they may; none of them is live."""
    owner = host(log, limits=HostLimits(identity=IdentityLimits(leased_max=1)))
    one, two = queue(owner, b"1", b"2")
    run(owner, unclaimed(ME, Listen("edge-0")))
    assert take(owner, delivery("phone"), delivery("laptop")) == [[one], []]
    acknowledged = unclaimed(ME, RemoveMessages([one], "acknowledged"))
    assert pushed(owner, acknowledged) == [("edge-0", WAITING)]
    assert take(owner, delivery("laptop")) == [[two]]


def test_an_acknowledgement_that_makes_no_room_notifies_no_session(log: EventLog) -> None:
    owner = host(log)
    (one,) = queue(owner, b"1")
    run(owner, unclaimed(ME, Listen("edge-0")))
    assert take(owner, delivery("phone")) == [[one]]
    assert pushed(owner, unclaimed(ME, RemoveMessages([one], "acknowledged"))) == []
    assert owner.due_pushes() == []
