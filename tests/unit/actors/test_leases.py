"""Leases: what is handed out is leased to one session until its time is over, and never lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from actors.core.commands import (
    CloseSession,
    Connect,
    DeliverMessages,
    EndLive,
    GrantMediation,
    Listen,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    ReleaseLeases,
    RemoveMessages,
    SaveContract,
    SetQueuePolicy,
    StartLive,
    UpdateKeylist,
)
from actors.core.leases import Lease, Leases
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import (
    DeliveredMessage,
    Delivery,
    Done,
    EnvelopeDelivered,
    EnvelopeQueued,
    EnvelopesWaiting,
    MessageArrived,
    Push,
    QueueState,
    Refused,
    Reply,
)
from actors.host.host import Host
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog, StoredRecord
from eventstore.log.streams import identity_stream
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, Plan, StoredButFailed
from tests.unit.actors.didcomm import KEY, ME, claimed, go_live
from tests.unit.actors.given import (
    NOW_MS,
    HandClock,
    connection,
    contract,
    delivery,
    host,
    pushed,
    registration,
    run,
    submission,
    unclaimed,
)

UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
NOT_OWNER = Refused(Refusal.NOT_OWNER)
FAULTS: list[Plan] = [FailNext(), StoredButFailed(), ConflictNext()]
FRIEND = "did:x:friend"
HELD_MS = 60_000
WAITING = Push(ME, EnvelopesWaiting())


def queue(owner: Host, *payloads: bytes, did: str = ME) -> list[str]:
    """Queue envelopes for an agent that connects first, if it has not; their ids."""
    replies = run(
        owner,
        unclaimed(did, Connect(connection())),
        unclaimed(did, GrantMediation()),
        unclaimed(did, UpdateKeylist(claimed(KEY), [])),
        *[unclaimed(did, QueueEnvelopes(KEY, [payload])) for payload in payloads],
    )
    return [reply.message_id for reply in replies if isinstance(reply, EnvelopeQueued)]


def handed(reply: Reply) -> list[str]:
    assert isinstance(reply, Delivery)
    return [message.message_id for message in reply.messages]


def take(owner: Host, *request: DeliverMessages) -> list[list[str]]:
    """What each of these is handed out, all asked in one transaction."""
    return [handed(reply) for reply in run(owner, *[unclaimed(ME, one) for one in request])]


def available(owner: Host) -> int:
    (state,) = run(owner, unclaimed(ME, QueryQueue()))
    assert isinstance(state, QueueState)
    return state.available


def test_a_delivery_is_filled_from_the_log_with_key_and_time(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    ids = queue(owner, b"\x00one", b"")
    clock.now_ms += 5
    (reply,) = run(owner, unclaimed(ME, delivery()))
    assert isinstance(reply, Delivery)
    assert reply.messages == [
        DeliveredMessage(ids[0], KEY, b"\x00one", NOW_MS),
        DeliveredMessage(ids[1], KEY, b"", NOW_MS),
    ]
    assert (reply.state.messages, reply.state.available) == (2, 0)
    assert reply.state.last_delivered_ms == NOW_MS + 5
    assert run(owner, unclaimed(ME, QueryQueue())) == [reply.state]


def test_two_deliveries_in_one_transaction_never_hand_out_the_same(log: EventLog) -> None:
    owner = host(log)
    ids = queue(owner, b"1", b"2", b"3")
    assert take(owner, delivery("phone", limit=2), delivery("laptop"), delivery("phone")) == [
        ids[:2],
        ids[2:],
        [],
    ]


def test_a_message_that_was_queued_in_the_same_transaction_is_handed_out(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    queued, delivered = run(
        owner, unclaimed(ME, QueueEnvelopes(KEY, [b"now"])), unclaimed(ME, delivery())
    )
    assert isinstance(queued, EnvelopeQueued)
    assert handed(delivered) == [queued.message_id]


def test_leases_end_after_their_time_and_listening_edges_are_notified(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    ids = queue(owner, b"1", b"2")
    run(owner, unclaimed(ME, Listen("edge-0")), unclaimed(ME, Listen("edge-1")))
    assert take(owner, delivery(lease_ms=HELD_MS)) == [ids]
    clock.now_ms += HELD_MS - 1
    assert take(owner, delivery("laptop")) == [[]]
    assert owner.due_pushes() == []
    clock.now_ms += 1
    assert sorted(owner.due_pushes()) == [("edge-0", WAITING), ("edge-1", WAITING)]
    assert owner.due_pushes() == []
    assert take(owner, delivery("laptop")) == [ids]


def test_a_lease_is_over_in_time_even_when_a_command_is_first_to_notice(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    ids = queue(owner, b"1")
    run(owner, unclaimed(ME, Listen("edge-0")))
    assert take(owner, delivery(lease_ms=HELD_MS)) == [ids]
    clock.now_ms += HELD_MS
    assert available(owner) == 1
    assert owner.due_pushes() == [("edge-0", WAITING)]


def test_a_clock_that_is_set_back_makes_no_lease_longer(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock)
    ids = queue(owner, b"1", b"2")
    assert take(owner, delivery(limit=1, lease_ms=HELD_MS)) == [ids[:1]]
    clock.now_ms += HELD_MS // 2
    assert owner.due_pushes() == []
    clock.now_ms -= 3_600_000
    assert take(owner, delivery("laptop", lease_ms=HELD_MS)) == [ids[1:]]
    for again in ids:
        clock.now_ms += HELD_MS // 2 - 1
        assert take(owner, delivery("tablet")) == [[]]
        clock.now_ms += 1
        assert take(owner, delivery("tablet")) == [[again]]


def test_what_is_removed_in_time_does_not_come_back(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock)
    one, two = queue(owner, b"1", b"2")
    take(owner, delivery(lease_ms=HELD_MS))
    run(owner, unclaimed(ME, RemoveMessages([one], "acknowledged")))
    clock.now_ms += HELD_MS
    assert take(owner, delivery()) == [[two]]


def test_released_leases_come_back_at_once_and_only_those_of_the_session(log: EventLog) -> None:
    owner = host(log)
    one, two = queue(owner, b"1", b"2")
    take(owner, delivery("phone", limit=1), delivery("laptop"))
    run(owner, unclaimed(ME, Listen("edge-1")))
    assert pushed(owner, unclaimed(ME, ReleaseLeases("phone"))) == [("edge-1", WAITING)]
    assert take(owner, delivery("laptop")) == [[one]]
    run(owner, unclaimed(ME, ReleaseLeases("laptop")))
    assert take(owner, delivery("phone")) == [[one, two]]


def test_a_release_by_one_agent_is_none_by_another(log: EventLog) -> None:
    owner = host(log)
    queue(owner, b"1")
    queue(owner, b"2", did="did:key:z6MkOther")
    take(owner, delivery("phone"))
    run(owner, unclaimed("did:key:z6MkOther", ReleaseLeases("phone")))
    assert available(owner) == 0


def test_a_takeover_of_the_live_mode_gives_back_what_was_in_flight(log: EventLog) -> None:
    owner = host(log)
    ids = queue(owner, b"1", b"2")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert take(owner, delivery("phone", live=True)) == [ids]
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert available(owner) == 0
    (state,) = run(owner, unclaimed(ME, StartLive("edge-1", "laptop")))
    assert isinstance(state, QueueState)
    assert state.live
    delivered, refused = run(
        owner,
        unclaimed(ME, delivery("laptop", live=True)),
        unclaimed(ME, delivery("phone", live=True)),
    )
    assert refused == Refused(Refusal.LIVE_ELSEWHERE)
    assert handed(delivered) == ids
    assert sorted(owner.due_pushes()) == [("edge-0", WAITING), ("edge-1", WAITING)]


def test_the_end_of_the_live_mode_leaves_what_is_in_flight(log: EventLog) -> None:
    owner = host(log)
    ids = queue(owner, b"1")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    take(owner, delivery("phone", live=True))
    run(owner, unclaimed(ME, EndLive("laptop")))
    assert run(owner, unclaimed(ME, delivery("phone", live=True, message_ids=ids))) != [
        Refused(Refusal.LIVE_ELSEWHERE)
    ]
    run(owner, unclaimed(ME, EndLive("phone")))
    assert run(owner, unclaimed(ME, delivery("phone", live=True))) == [
        Refused(Refusal.LIVE_ELSEWHERE)
    ]
    assert available(owner) == 0


def test_a_released_session_is_live_no_more(log: EventLog) -> None:
    owner = host(log)
    queue(owner, b"1")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    run(owner, unclaimed(ME, ReleaseLeases("phone")))
    assert run(owner, unclaimed(ME, delivery("phone", live=True))) == [
        Refused(Refusal.LIVE_ELSEWHERE)
    ]


def test_a_stranger_starts_no_live_mode_and_listens_to_nothing(log: EventLog) -> None:
    owner = host(log)
    refused = Refused(Refusal.NOT_CONNECTED)
    assert run(owner, unclaimed(ME, StartLive("edge-0", "phone"))) == [refused]
    assert run(owner, unclaimed(ME, Listen("edge-0"))) == [refused]
    assert not owner.registry.sessions


def test_a_host_that_starts_anew_offers_everything_again_with_id_and_place(log: EventLog) -> None:
    owner = host(log)
    ids = queue(owner, b"1", b"2", b"3")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    (before,) = run(owner, unclaimed(ME, delivery("phone", live=True)))
    run(owner, unclaimed(ME, RemoveMessages([ids[1]], "acknowledged")))
    another = host(log, name="host-1")
    assert run(another, unclaimed(ME, delivery("phone", live=True))) == [
        Refused(Refusal.LIVE_ELSEWHERE)
    ]
    (after,) = run(another, unclaimed(ME, delivery("laptop")))
    assert isinstance(before, Delivery)
    assert isinstance(after, Delivery)
    assert after.messages == [before.messages[0], before.messages[2]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_failed_append_hands_out_nothing_and_leaves_no_lease(log: EventLog, fault: Plan) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    ids = queue(owner, b"1", b"2")
    faulty.plan(fault)
    assert run(owner, unclaimed(ME, delivery("phone"))) == [UNAVAILABLE]
    assert available(owner) == 2
    assert take(owner, delivery("laptop")) == [ids]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_failed_append_ends_no_lease_and_moves_no_session(log: EventLog, fault: Plan) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    queue(owner, b"1")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    take(owner, delivery("phone", live=True))
    for command in (ReleaseLeases("phone"), StartLive("edge-0", "laptop"), EndLive("phone")):
        faulty.plan(fault)
        # With a nonce, which has to be stored.
        failed, _ = run(owner, unclaimed(ME, command), submission(ME, QueryQueue()))
        # The second claims anew: what it finds in the way may be another owner.
        assert failed in [UNAVAILABLE, NOT_OWNER]
    assert owner.registry.sessions.live_of(ME).session == "phone"
    assert available(owner) == 0


def test_a_delivery_that_cannot_be_read_is_not_leased(log: EventLog) -> None:
    unreadable = _Unreadable(log)
    owner = host(unreadable)
    ids = queue(owner, b"1")
    run(owner, unclaimed(ME, Listen("edge-0")))
    unreadable.is_unreadable = True
    assert run(owner, unclaimed(ME, delivery())) == [UNAVAILABLE]
    unreadable.is_unreadable = False
    assert owner.due_pushes() == [("edge-0", WAITING)]
    assert take(owner, delivery("laptop")) == [ids]


class _Unreadable(FaultyLog):
    """Stores everything and gives nothing back."""

    is_unreadable = False

    def read_records(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        if self.is_unreadable:
            raise LogUnavailable("planned")
        return super().read_records(wanted)


def test_deliveries_that_are_too_large_together_are_not_leased(log: EventLog) -> None:
    owner = host(log, limits=HostLimits(pages_bytes_max=100))
    ids = queue(owner, b"1" * 80, b"2" * 80)
    one, two = run(owner, *[unclaimed(ME, delivery(limit=1)) for _ in range(2)])
    assert handed(one) == ids[:1]
    assert two == UNAVAILABLE
    assert available(owner) == 1


def test_a_delivery_that_is_too_large_alone_is_handed_out(log: EventLog) -> None:
    owner = host(log, limits=HostLimits(pages_bytes_max=100))
    ids = queue(owner, b"1" * 180)
    assert take(owner, delivery(limit=1)) == [ids]


def test_what_has_no_page_is_answered_beside_pages_that_are_too_large_together(
    log: EventLog,
) -> None:
    owner = host(log, limits=HostLimits(pages_bytes_max=100))
    queue(owner, b"1" * 80, b"2" * 80)
    pages = [unclaimed(ME, delivery(limit=1)) for _ in range(2)]
    *_, queued = run(owner, *pages, unclaimed(ME, QueueEnvelopes(KEY, [b"3"])))
    assert isinstance(queued, EnvelopeQueued)


def test_a_host_that_trusts_nothing_any_more_holds_no_lease(log: EventLog) -> None:
    owner = host(log)
    ids = queue(owner, b"1")
    take(owner, delivery("phone"))
    run(owner, unclaimed(ME, Listen("edge-0")))
    owner.forget_everything()
    assert owner.due_pushes() == [("edge-0", WAITING)]
    assert take(owner, delivery("laptop")) == [ids]


def test_an_envelope_is_pushed_to_every_edge_that_listens_and_to_no_other(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    envelopes = [unclaimed(ME, QueueEnvelopes(KEY, [payload])) for payload in (b"1", b"2", b"3")]
    assert pushed(owner, envelopes[0]) == []
    run(owner, *[unclaimed(ME, Listen(edge)) for edge in ("edge-0", "edge-1", "edge-0")])
    assert sorted(pushed(owner, envelopes[1])) == [("edge-0", WAITING), ("edge-1", WAITING)]
    run(owner, unclaimed(ME, CloseSession("edge-0")))
    assert pushed(owner, envelopes[2]) == [("edge-1", WAITING)]


def test_a_retry_of_a_forward_is_queued_once_also_on_the_next_host(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    envelope = unclaimed(ME, QueueEnvelopes(KEY, [b"x"]))
    (first,) = run(owner, envelope)
    assert isinstance(first, EnvelopeQueued)
    again = EnvelopeQueued(first.message_id, outbound=False, is_repeat=True)
    assert run(owner, envelope) == run(host(log, name="host-1"), envelope) == [again]
    assert pushed(owner, envelope) == []
    assert take(host(log, name="host-2"), delivery()) == [[first.message_id]]


def test_a_live_session_is_notified_of_room(log: EventLog) -> None:
    limits = HostLimits(identity=IdentityLimits(live_in_flight_max=1))
    owner = host(log, limits=limits)
    one, two = queue(owner, b"1", b"2")
    run(owner, unclaimed(ME, StartLive("edge-0", "phone")))
    assert take(owner, delivery("phone", live=True)) == [[one]]
    assert take(owner, delivery("phone", live=True)) == [[]]
    acknowledged = unclaimed(ME, RemoveMessages([one], "acknowledged"))
    assert pushed(owner, acknowledged) == [("edge-0", WAITING)]
    assert take(owner, delivery("phone", live=True)) == [[two]]


def test_who_wants_nothing_queued_gets_what_comes_while_an_edge_listens(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    envelope = unclaimed(ME, QueueEnvelopes(KEY, [b"x"]))
    run(owner, unclaimed(ME, SetQueuePolicy(will_queue=False)))
    assert run(owner, envelope, envelope) == [Refused(Refusal.NOT_QUEUING)] * 2
    answered = [row.topic for row in log.read_stream(identity_stream(ME))]
    assert answered.count("queue-refused.1") == 1
    run(owner, unclaimed(ME, Listen("edge-0")))
    (queued,) = run(owner, envelope)
    assert isinstance(queued, EnvelopeQueued)


def test_what_waited_too_long_is_removed_by_the_next_command_and_recorded(
    log: EventLog, clock: HandClock
) -> None:
    limits = HostLimits(identity=IdentityLimits(queue_age_s_max=60))
    owner = host(log, clock=clock, limits=limits)
    queue(owner, b"1", b"2")
    take(owner, delivery(lease_ms=10**9))
    clock.now_ms += 60_001
    assert run(owner, unclaimed(ME, QueueEnvelopes("unknown", [b""]))) == [
        Refused(Refusal.KEY_UNKNOWN)
    ]
    *_, last = log.read_stream(identity_stream(ME))
    assert last.topic == "messages-removed.2"
    assert log.figures().queue_messages == 0
    (state,) = run(host(log, name="host-1"), unclaimed(ME, QueryQueue()))
    assert isinstance(state, QueueState)
    assert (state.messages, state.last_removed_ms) == (0, NOW_MS + 60_001)


def test_decentrl_messages_are_pushed_as_before(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    run(
        owner,
        unclaimed(ME, registration(ME)),
        unclaimed(ME, SaveContract(contract(FRIEND, ME))),
        unclaimed(ME, Listen("edge-0")),
    )
    ((_, push),) = pushed(owner, unclaimed(ME, QueueMessage(FRIEND, b"hi")))
    assert isinstance(push.notice, MessageArrived)
    assert run(owner, unclaimed(ME, ReleaseLeases("phone"))) == [Done()]


# The table alone ----------------------------------------------------------------------------


def test_a_lease_changes_hands_and_ends_once() -> None:
    leases = Leases()
    leases.grant(ME, ["a", "b"], Lease("phone", 10))
    leases.grant(ME, ["b"], Lease("laptop", 30))
    assert leases.of(ME) == {"a": Lease("phone", 10), "b": Lease("laptop", 30)}
    assert leases.expire(9) == set()
    assert leases.expire(10) == {ME}
    assert leases.of(ME) == {"b": Lease("laptop", 30)}
    assert not leases.release(ME, "phone")
    assert leases.release(ME, "laptop")
    assert leases.expire(99) == set()
    assert len(leases) == 0


def test_ending_what_no_session_holds_changes_nothing() -> None:
    leases = Leases()
    leases.end(ME, ["a"])
    leases.grant(ME, ["a"], Lease("phone", 10))
    leases.end(ME, ["x"])
    leases.end(FRIEND, ["a"])
    assert len(leases) == 1
    assert leases.of(FRIEND) == {}


def test_what_is_pushed_goes_to_the_edge_of_the_live_session_alone(log: EventLog) -> None:
    owner = host(log)
    queue(owner)
    run(owner, unclaimed(ME, Listen("edge-0")))
    go_live(owner, "edge-1", lease_ms=HELD_MS, bytes_max=1_000)
    (reply,), pushes = owner.execute([("edge-2", unclaimed(ME, QueueEnvelopes(KEY, [b"1"])))])
    assert isinstance(reply, EnvelopeQueued)
    message = DeliveredMessage(reply.message_id, KEY, b"1", NOW_MS)
    assert pushes == [("edge-1", Push(ME, EnvelopeDelivered("phone", message)))]
    assert available(owner) == 0
    run(owner, unclaimed(ME, ReleaseLeases("phone")))
    assert take(owner, delivery()) == [[reply.message_id]]


@pytest.mark.parametrize("fault", FAULTS, ids=type)
def test_what_was_to_be_pushed_is_offered_when_the_outcome_is_unknown(
    log: EventLog, fault: Plan
) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    queue(owner)
    go_live(owner, "edge-0", lease_ms=HELD_MS, bytes_max=1_000)
    faulty.plan(fault)
    answer = owner.execute([("edge-0", unclaimed(ME, QueueEnvelopes(KEY, [b"1"])))])
    assert answer == ([UNAVAILABLE], [])
    assert owner.snapshot_stats().leases == 0
