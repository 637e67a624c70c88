"""Leases beyond what a host has room for end early, and no message is lost or kept back."""

from __future__ import annotations

import pytest

from actors.core import leases as leases_of_host
from actors.core.commands import Listen, RemoveMessages
from actors.core.leases import Lease, Leases
from actors.core.replies import EnvelopesWaiting, Push, QueueState
from eventstore.log.event_log import EventLog
from tests.unit.actors.didcomm import ME
from tests.unit.actors.given import HandClock, delivery, host, run, unclaimed
from tests.unit.actors.test_leases import handed, queue, take

OTHERS = [f"did:x:{number}" for number in range(9)]
HELD_MS = 60_000


def test_a_full_table_takes_from_the_identities_with_the_most_and_leaves_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases_of_host, "PLACES_MAX", 50)
    leases = Leases()
    leases.grant(ME, ["a", "b"], Lease("phone", 10))
    for other in OTHERS[:2]:
        leases.grant(other, map(str, range(1, 15)), Lease("tablet", 30))
        leases.grant(other, ["0"], Lease("laptop", 20))
    assert len(leases) == 2 + 2 * 15
    leases.grant(OTHERS[2], map(str, range(30)), Lease("laptop", 40))
    assert set(leases.of(ME)) == {"a", "b"}
    assert len(leases) == 2
    assert [[*leases.of(other)] for other in OTHERS[:3]] == [[""]] * 3
    assert [leases.expire(at_ms) for at_ms in (10, 20, 30, 40)] == [
        {ME},
        {*OTHERS[:2]},
        set(),
        {OTHERS[2]},
    ]


def test_however_many_identities_have_leases_those_of_the_last_ones_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases_of_host, "PLACES_MAX", 20)
    leases = Leases()
    for ends_ms, other in enumerate(OTHERS):
        leases.grant(other, ["a"], Lease("phone", ends_ms))
        assert len(leases) <= 5
        assert leases.of(other)
    assert not leases.of(OTHERS[0])


def test_a_lease_that_ended_early_lets_others_have_its_message_and_its_session_remove_it(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_of_host, "PLACES_MAX", 16)
    owner = host(log, clock=clock)
    ids, other = queue(owner, *[b"%d" % n for n in range(10)]), queue(owner, b"x", did=OTHERS[0])
    run(owner, unclaimed(ME, Listen("edge-0")))
    assert take(owner, delivery("phone", lease_ms=HELD_MS)) == [ids]
    (reply,) = run(owner, unclaimed(OTHERS[0], delivery("laptop")))
    assert handed(reply) == other
    assert owner.due_pushes() == [], "a live session would take them at once, and again"
    assert take(owner, delivery("tablet", limit=2)) == [ids[:2]]
    (state,) = run(owner, unclaimed(ME, RemoveMessages(ids, "acknowledged")))
    assert isinstance(state, QueueState)
    assert state.messages == state.available == 0


@pytest.mark.parametrize("removed", [0, 1, 5])
def test_a_live_session_is_notified_of_what_ended_early_when_it_would_have_ended(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """Whatever it acknowledges until then, in the order in which it got them."""
    monkeypatch.setattr(leases_of_host, "PLACES_MAX", 12)
    owner = host(log, clock=clock)
    ids = queue(owner, *[b"%d" % n for n in range(6)])
    queue(owner, b"x", did=OTHERS[0])
    run(owner, unclaimed(ME, Listen("edge-0")))
    take(owner, delivery("phone", lease_ms=HELD_MS))
    run(owner, unclaimed(OTHERS[0], delivery("laptop", lease_ms=1)))
    run(owner, unclaimed(ME, RemoveMessages(ids[:removed], "acknowledged")))
    clock.now_ms += HELD_MS - 1
    assert owner.due_pushes() == []
    clock.now_ms += 1
    assert owner.due_pushes() == [("edge-0", Push(ME, EnvelopesWaiting()))]
    assert take(owner, delivery("phone")) == [ids[removed:]]
