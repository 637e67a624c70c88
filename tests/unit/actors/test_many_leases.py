"""Leases beyond what a host has room for end early, and no message is lost or kept back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.core import leases as leases_of_host
from actors.core.commands import Listen, QueueEnvelopes, RemoveMessages
from actors.core.leases import HELD_BACK, Lease, Leases
from actors.core.replies import EnvelopesWaiting, Push, QueueState
from actors.host.host import Host
from eventstore.log.event_log import EventLog
from tests.unit.actors.didcomm import KEY, ME
from tests.unit.actors.given import HandClock, delivery, host, run, unclaimed
from tests.unit.actors.test_leases import handed, queue, take

OTHERS = [f"did:x:{number}" for number in range(9)]
ALL = ["shard-0", "shard-1"]
HELD_MS = 60_000


def test_a_full_table_takes_from_the_identities_with_the_most_and_leaves_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 50)
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
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 20)
    leases = Leases()
    for ends_ms, other in enumerate(OTHERS):
        leases.grant(other, ["a"], Lease("phone", ends_ms))
        assert len(leases) <= 5
        assert leases.of(other)
    assert not leases.of(OTHERS[0])


def test_a_lease_that_ended_early_lets_others_have_its_message_and_its_session_remove_it(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 16)
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
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 12)
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


# Messages that their senders delay ----------------------------------------------------------


def delay(owner: Host, *dids: str) -> None:
    """Queue a delayed envelope for each of these agents, which listen at once."""
    for number, did in enumerate(dids):
        queue(owner, did=did)
        run(
            owner,
            unclaimed(did, Listen("edge-0")),
            unclaimed(did, QueueEnvelopes(KEY, [b"%d" % number], delay_ms=HELD_MS)),
        )


def fill(owner: Host) -> None:
    """Let so many other agents fetch and not acknowledge that there are too few slots."""
    for number in range(leases_of_host.SLOTS_MAX // 4):
        did = f"did:x:fills-{number}"
        queue(owner, b"1", did=did)
        run(owner, unclaimed(did, delivery("laptop", lease_ms=10 * HELD_MS)))


@pytest.mark.parametrize("dids", [[ME] * 5, [ME, *OTHERS]], ids=["of one", "of many"])
def test_leases_that_end_early_leave_delayed_messages_their_delay_and_its_notice(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch, dids: list[str]
) -> None:
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 80)
    owner = host(log, clock=clock)
    delay(owner, *dids)
    fill(owner)
    clock.now_ms += HELD_MS - 1
    assert owner.due_pushes() == []
    assert take(owner, delivery("phone")) == [[]]
    clock.now_ms += 1
    pushes = owner.due_pushes()
    assert {push for _, push in pushes} == {Push(did, EnvelopesWaiting()) for did in dids}
    assert len(take(owner, delivery("phone"))[0]) == dids.count(ME)


def test_a_delayed_message_beyond_half_of_the_slots_is_offered_at_once(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 16)
    owner = host(log, clock=clock)
    delay(owner, *OTHERS[:2])
    assert owner.due_pushes() == []
    delay(owner, ME)
    assert owner.due_pushes() == [("edge-0", Push(ME, EnvelopesWaiting()))]
    assert len(take(owner, delivery("phone", lease_ms=1))[0]) == 1
    clock.now_ms += HELD_MS
    assert len(owner.due_pushes()) == 3


def test_delays_that_come_with_a_shard_and_find_no_room_end_and_are_notified_of(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = host(log, name="former", clock=clock)
    new = host(log, name="new", shards=[], clock=clock)
    delay(former, *OTHERS, ME)
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 40)
    new.moves.adopt(ALL, former.moves.release(ALL))
    assert new.snapshot_stats().leases == 5
    assert len(new.due_pushes()) == 5
    clock.now_ms += HELD_MS
    assert len(new.due_pushes()) == 5


def test_what_delays_take_is_free_again_however_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_of_host, "SLOTS_MAX", 16)
    leases, delayed = Leases(), Lease(HELD_BACK, 10)
    ends: list[Callable[[], object]] = [
        lambda: leases.end(ME, ["a", "a", "b"]),
        lambda: leases.take(ME),
        lambda: leases.expire(10),
        lambda: leases.release(ME, HELD_BACK),
        lambda: leases.grant(ME, ["a", "b"], Lease("phone", 10)),
    ]
    for end in ends:
        assert [leases.grant(ME, [i], delayed) for i in "aabc"] == [True, True, True, False]
        end()
