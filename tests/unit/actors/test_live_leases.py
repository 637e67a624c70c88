"""Live mode and leases of one identity: what is free again, and what ends in between."""

from __future__ import annotations

import pytest

from actors.core import sessions
from actors.core.commands import (
    Command,
    EndAccount,
    EndLive,
    Listen,
    QueryQueue,
    QueueEnvelopes,
    ReleaseLeases,
    RemoveMessages,
    StartLive,
)
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, EnvelopeDelivered, EnvelopeQueued, QueueState, Refused
from eventstore.log.event_log import EventLog
from tests.unit.actors.didcomm import KEY, ME, go_live
from tests.unit.actors.given import NOW_MS, HandClock, delivery, host, run, unclaimed
from tests.unit.actors.test_leases import HELD_MS, WAITING, available, queue, take


@pytest.mark.parametrize("delay_ms", [0, HELD_MS])
def test_what_was_out_as_live_mode_began_is_offered_to_it_once_it_is_free(
    delay_ms: int, log: EventLog, clock: HandClock
) -> None:
    """It had asked, and nothing was free: another answer had been lost, or it was not due yet."""
    owner = host(log, clock=clock)
    one, two = queue(owner, b"1", b"2")
    if delay_ms:
        run(owner, unclaimed(ME, RemoveMessages([one, two], "acknowledged")))
        later = QueueEnvelopes(KEY, [b"1", b"2"], delay_ms=delay_ms)
        (queued,) = run(owner, unclaimed(ME, later))
        assert isinstance(queued, EnvelopeQueued)
    else:
        assert take(owner, delivery("lost", limit=1, lease_ms=HELD_MS)) == [[one]]
        assert take(owner, delivery("lost", limit=1, lease_ms=HELD_MS)) == [[two]]
    (begun,) = run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert isinstance(begun, QueueState)
    assert begun.available == 0
    live = delivery("phone", live=True, after_version=begun.version)
    assert take(owner, live) == [[]]
    clock.now_ms += HELD_MS
    before = delivery("phone", live=True, after_version=1, lease_ms=0)
    assert [len(ids) for ids in take(owner, before)] == [2], "each is offered once"
    assert owner.due_pushes() == [("edge-0", WAITING)]
    (offered,) = run(owner, unclaimed(ME, live))
    assert isinstance(offered, Delivery)
    assert [message.payload for message in offered.messages] == [b"1", b"2"]
    run(owner, unclaimed(ME, ReleaseLeases("phone")))


@pytest.mark.parametrize("session", ["request", "phone"])
def test_what_a_request_fetched_beside_the_live_mode_goes_to_it_once_it_is_free(
    session: str, log: EventLog, clock: HandClock
) -> None:
    """The answer was lost, and while it was out a second request found nothing."""
    owner = host(log, clock=clock)
    one, two, three = queue(owner, b"1", b"2", b"3")
    (begun,) = run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert isinstance(begun, QueueState)
    live = delivery("phone", live=True, after_version=begun.version)
    assert take(owner, live) == [[]]
    fetch = delivery(session, limit=2, lease_ms=HELD_MS)
    assert take(owner, fetch) == [[one, two]]
    run(owner, unclaimed(ME, RemoveMessages([two], "acknowledged")))
    assert take(owner, live) == [[]]
    clock.now_ms += HELD_MS
    assert owner.due_pushes() == [("edge-0", WAITING)]
    assert take(owner, live) == [[one]], "and not what was never fetched"
    assert available(owner) == 1
    run(owner, unclaimed(ME, RemoveMessages([one, three], "acknowledged")))
    assert owner.registry.sessions.live_of(ME).leased == set()


@pytest.mark.parametrize("is_moved", [True, False])
def test_what_is_fetched_beside_the_live_mode_goes_to_it_although_it_is_too_much_to_remember(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch, *, is_moved: bool
) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED_MAX", 2)
    owner = host(log, clock=clock)
    ids = queue(owner, b"1", b"2", b"3", b"4")
    (begun,) = run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert isinstance(begun, QueueState)
    live = delivery("phone", live=True, after_version=begun.version)
    assert take(owner, live) == [[]]
    assert take(owner, delivery("request", limit=3, lease_ms=HELD_MS)) == [ids[:3]]
    assert owner.registry.sessions.live_of(ME).leased == set()
    if is_moved:
        taken = owner.registry.sessions.take(ME)
        assert taken is not None
        owner.registry.sessions.put(ME, taken)
    clock.now_ms += HELD_MS
    assert owner.due_pushes() == [("edge-0", WAITING)]
    run(owner, unclaimed(ME, RemoveMessages(ids[:1], "acknowledged")))
    assert take(owner, live) == [ids[1:]]
    (five,) = queue(owner, b"5")
    assert available(owner) == 0, "it was pushed"
    run(owner, unclaimed(ME, ReleaseLeases("phone")))
    assert take(owner, delivery("tablet")) == [[*ids[1:], five]]


def test_what_waited_for_anyone_as_live_mode_began_is_left_to_be_fetched(log: EventLog) -> None:
    owner = host(log)
    queue(owner, b"1")
    (begun,) = run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert isinstance(begun, QueueState)
    assert take(owner, delivery("phone", live=True, after_version=begun.version)) == [[]]
    assert available(owner) == 1


def test_a_live_mode_is_off_until_its_session_fetches(log: EventLog) -> None:
    """An edge that gave up the question for it sends no fetch, and its agent knows of none."""
    owner = host(log)
    queue(owner)
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    (first,), pushes = owner.execute([("edge-1", unclaimed(ME, QueueEnvelopes(KEY, [b"1"])))])
    assert isinstance(first, EnvelopeQueued)
    assert pushes == [("edge-0", WAITING)]
    another = unclaimed(ME, delivery("laptop", live=True))
    assert run(owner, another) == [Refused(Refusal.LIVE_ELSEWHERE)]
    (standing,) = run(owner, unclaimed(ME, QueryQueue()))
    assert isinstance(standing, QueueState)
    assert (standing.live, standing.available) == (False, 1)
    assert take(owner, delivery("phone", live=True)) == [[first.message_id]]
    (standing,) = run(owner, unclaimed(ME, QueryQueue()))
    assert isinstance(standing, QueueState)
    assert standing.live
    _, pushes = owner.execute([("edge-1", unclaimed(ME, QueueEnvelopes(KEY, [b"2"])))])
    assert [type(push.notice) for _, push in pushes] == [EnvelopeDelivered]


@pytest.mark.parametrize("end", [EndLive("phone"), ReleaseLeases("phone")], ids=type)
def test_what_is_queued_as_live_mode_ends_is_offered_and_not_pushed(
    end: Command, log: EventLog
) -> None:
    owner = host(log)
    queue(owner)
    run(owner, unclaimed(ME, Listen("edge-0")))
    go_live(owner, "edge-1", lease_ms=HELD_MS, bytes_max=1_000)
    late = unclaimed(ME, QueueEnvelopes("", [b"1"]))
    (_, reply), pushes = owner.execute([("edge-1", unclaimed(ME, end)), ("edge-2", late)])
    assert {*pushes, *owner.due_pushes()} == {("edge-0", WAITING), ("edge-1", WAITING)}
    assert isinstance(reply, EnvelopeQueued)
    assert available(owner) == 1
    assert take(owner, delivery("laptop")) == [[reply.message_id]]


def test_what_is_queued_as_the_account_ends_is_refused_and_not_pushed(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    run(owner, unclaimed(ME, Listen("edge-0")))
    go_live(owner, "edge-1", lease_ms=HELD_MS, bytes_max=1_000)
    late = unclaimed(ME, QueueEnvelopes("", [b"1"]))
    end = unclaimed(ME, EndAccount(ME, NOW_MS // 1_000))
    (_, reply), pushes = owner.execute([("edge-1", end), ("edge-2", late)])
    assert (reply, owner.due_pushes()) == (Refused(Refusal.NOT_CONNECTED), [])
    assert {*pushes} == {("edge-0", WAITING), ("edge-1", WAITING)}, "who waits learns of the end"


def test_a_start_that_no_fetch_follows_takes_nothing_from_the_session_that_is_live(
    log: EventLog,
) -> None:
    """It may be late: its edge has given it up, and its agent has gone live by another socket."""
    owner = host(log)
    queue(owner)
    go_live(owner, "edge-1", lease_ms=HELD_MS, bytes_max=1_000)
    (one,) = queue(owner, b"1")
    run(owner, unclaimed(ME, StartLive("edge-0", "laptop")))
    assert (owner.due_pushes(), available(owner)) == ([], 0)
    (two,) = queue(owner, b"2")
    assert available(owner) == 0, "it was pushed, too"
    first = delivery("laptop", live=True, after_version=1)
    assert take(owner, first) == [[one, two]]
    assert {*owner.due_pushes()} == {("edge-0", WAITING), ("edge-1", WAITING)}
    assert run(owner, unclaimed(ME, delivery(live=True))) == [Refused(Refusal.LIVE_ELSEWHERE)]


def test_what_is_queued_as_another_session_takes_the_live_mode_is_handed_out_once(
    log: EventLog,
) -> None:
    owner = host(log)
    queue(owner)
    go_live(owner, "edge-1", lease_ms=HELD_MS, bytes_max=1_000)
    run(owner, unclaimed(ME, StartLive("edge-0", "laptop")))
    late = unclaimed(ME, QueueEnvelopes(KEY, [b"1"]))
    first = unclaimed(ME, delivery("laptop", live=True))
    (queued, taken), pushes = owner.execute([("edge-2", late), ("edge-0", first)])
    assert isinstance(queued, EnvelopeQueued)
    assert isinstance(taken, Delivery)
    assert [message.message_id for message in taken.messages] == [queued.message_id]
    assert pushes == []
    assert available(owner) == 0


@pytest.mark.parametrize("is_again", [True, False])
def test_what_was_out_as_a_start_was_given_up_goes_to_the_session_that_asks_again(
    log: EventLog, clock: HandClock, *, is_again: bool
) -> None:
    owner = host(log, clock=clock)
    queue(owner)
    if is_again:
        run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    ids = queue(owner, b"1")
    assert take(owner, delivery("lost", lease_ms=HELD_MS)) == [ids]
    (begun,) = run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert isinstance(begun, QueueState)
    live = delivery("phone", live=True, after_version=begun.version)
    assert take(owner, live) == [[]]
    clock.now_ms += HELD_MS
    assert take(owner, live) == [ids]
