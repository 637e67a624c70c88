"""Sessions are notified of messages that became available, even if no command says so."""

from __future__ import annotations

from actors.core.commands import Listen, QueueEnvelopes, RemoveMessages, StartLive
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.replies import EnvelopeQueued
from eventstore.log.event_log import EventLog
from tests.log.faulty_log import FaultyLog, StoredButFailed
from tests.unit.actors.didcomm import KEY, ME
from tests.unit.actors.given import delivery, host, run, unclaimed
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
