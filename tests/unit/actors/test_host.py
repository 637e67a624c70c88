"""The host's one loop: nonce, decision, one append, and only then the replies and pushes."""

from __future__ import annotations

import pytest
from msgspec import structs

from actors.core.commands import (
    AcknowledgeMessages,
    CheckRegistered,
    CloseSession,
    OpenSession,
    Page,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QueueMessage,
    RequestContract,
    SaveContract,
)
from actors.core.limits import HostLimits
from actors.core.nonces import Proof
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    ContractsUpdated,
    Done,
    MessageAccepted,
    MessageArrived,
    MessagesPage,
    OwnedContract,
    Push,
    Refused,
    Registered,
    WaitingContractRequest,
    WaitingMessage,
)
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.codec import decode, encode
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed
from eventstore.log.streams import identity_stream, partition_stream
from tests.log.samples import removed
from tests.unit.actors.given import (
    EDGE,
    NOW_MS,
    NOW_S,
    SHARDS,
    HandClock,
    contract,
    host,
    pushed,
    registration,
    run,
    submission,
    unclaimed,
)

ME, FRIEND = "did:x:me", "did:x:friend"
ALL = Page(0, 100)
MINE = shard_of(ME, SHARDS)
DUPLICATE = Refused(Refusal.DUPLICATE_NONCE)


def test_commands_of_one_batch_see_one_another(log: EventLog) -> None:
    mine = contract(FRIEND, ME)
    replies = run(
        host(log),
        submission(ME, registration(ME)),
        submission(ME, SaveContract(mine)),
        submission(ME, QueueMessage(FRIEND, b"hi"), sender=FRIEND),
        submission(ME, QueryMessages(ALL)),
        submission(ME, AcknowledgeMessages(["host-0-3"])),
        submission(ME, QueryContracts(ALL)),
    )
    message_id = "host-0-3"
    assert replies == [
        Registered(NOW_S + 60),
        Done(),
        MessageAccepted(message_id),
        MessagesPage([WaitingMessage(message_id, FRIEND, b"hi")], 1),
        Done(),
        ContractsPage([OwnedContract("host-0-2", mine.signed)], 1),
    ]


def test_two_first_commands_of_one_identity_in_one_batch_both_succeed(log: EventLog) -> None:
    """An identity that is not in the log yet must be one and the same for the whole batch."""
    replies = run(
        host(log),
        submission(ME, registration(ME, NOW_S + 60)),
        submission(ME, registration(ME, NOW_S + 70)),
        submission(ME, CheckRegistered(), sender=FRIEND),
        submission(FRIEND, registration(FRIEND)),
    )
    assert replies == [
        Registered(NOW_S + 60),
        Registered(NOW_S + 70),
        Registered(NOW_S + 70),
        Registered(NOW_S + 60),
    ]
    assert len(log.read_stream(identity_stream(ME))) == 2


def test_a_page_is_filled_from_the_log_in_order(log: EventLog) -> None:
    owner = host(log)
    run(owner, submission(ME, registration(ME)))
    for text in ("a", "b", "c"):
        run(owner, submission(ME, RequestContract(FRIEND, text, "key"), sender=FRIEND))
    (page,) = run(owner, submission(ME, QueryContractRequests(Page(1, 2))))
    assert page == ContractRequestsPage([WaitingContractRequest("host-0-4", FRIEND, "c", "key")], 3)


def test_one_batch_is_one_transaction_with_one_seal_for_each_partition(log: EventLog) -> None:
    owner = host(log)
    before = log.position()
    dids = [f"did:x:{number}" for number in range(8)]
    run(owner, *[submission(did, registration(did)) for did in dids])
    rows = log.read_log(after=before)
    assert sum(row.topic == "identity-registered.1" for row in rows) == 8
    seals = [decode(row.topic, row.state) for row in rows if row.topic == "batch-sealed.1"]
    assert len(seals) == 2
    assert sum(seal.rows for seal in seals if isinstance(seal, BatchSealed)) == 8


def test_an_answer_that_stores_nothing_leaves_no_row_and_counts_for_the_owner_alone(
    log: EventLog,
) -> None:
    owner = host(log)
    run(owner, submission(ME, registration(ME)))
    before = log.position()
    assert run(owner, unclaimed(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]
    assert log.position() == before
    host(log, name="host-1")
    after = log.position()
    assert run(owner, unclaimed(ME, QueryMessages(ALL))) == [Refused(Refusal.NOT_OWNER)]
    assert log.position() == after


def test_a_query_uses_up_its_nonce_in_the_log(log: EventLog) -> None:
    owner = host(log)
    run(owner, submission(ME, registration(ME)))
    query = submission(ME, QueryMessages(ALL), nonce="n")
    assert run(owner, query) == [MessagesPage([], 0)]
    assert run(owner, query) == [DUPLICATE]
    assert run(host(log, name="host-1"), query) == [DUPLICATE]


def test_a_refused_command_of_one_who_is_registered_uses_up_its_nonce_in_the_log(
    log: EventLog,
) -> None:
    owner = host(log)
    run(owner, submission(ME, registration(ME)))
    refused = submission(ME, SaveContract(Refusal.INVALID_SIGNATURES), nonce="n")
    assert run(owner, refused) == [Refused(Refusal.INVALID_SIGNATURES)]
    assert run(host(log, name="host-1"), refused) == [DUPLICATE]


def test_what_an_identity_refuses_to_another_leaves_no_row(log: EventLog) -> None:
    owner = host(log)
    run(owner, submission(ME, registration(ME)))
    before = log.position()
    message = submission(ME, QueueMessage(FRIEND, b"hi"), sender=FRIEND)
    assert run(owner, message) == [Refused(Refusal.COMMUNICATION_CONTRACT_NOT_FOUND)]
    assert run(owner, message) == [DUPLICATE]
    assert log.position() == before


def test_what_is_refused_without_state_or_proof_leaves_no_row(log: EventLog) -> None:
    owner = host(log)
    before = log.position()
    unknown = submission(ME, QueryMessages(ALL))
    forged = submission(ME, None, refusal=Refusal.INVALID_SIGNATURE)
    early = submission(ME, None, proof=Proof.NOT_YET)
    assert run(owner, unknown, forged, early) == [
        Refused(Refusal.UNAUTHORIZED_COMMAND),
        Refused(Refusal.INVALID_SIGNATURE),
        Done(),
    ]
    assert run(owner, unknown, forged, early) == [DUPLICATE] * 3
    assert log.position() == before


def test_who_claimed_before_the_proof_goes_on_with_the_same_nonce_once(log: EventLog) -> None:
    owner = host(log)
    early = submission(ME, None, nonce="n", proof=Proof.NOT_YET)
    proven = submission(ME, registration(ME), nonce="n", proof=Proof.HOLDS_NOW)
    assert run(owner, early) == [Done()]
    assert run(owner, proven) == [Registered(NOW_S + 60)]
    assert run(owner, proven) == [DUPLICATE]
    assert run(host(log, name="host-1"), early) == [DUPLICATE]


def test_junk_neither_fills_the_store_of_nonces_nor_pushes_out_what_is_proven(
    log: EventLog,
) -> None:
    owner = host(log, limits=HostLimits(nonces_per_shard_max=2, unproven_nonces_max=4))
    proven = submission(ME, registration(ME))
    assert run(owner, proven) == [Registered(NOW_S + 60)]
    before = log.position()
    junk = [submission(ME, None, refusal=Refusal.INVALID_SIGNATURE) for _ in range(100)]
    assert run(owner, *junk) == [Refused(Refusal.INVALID_SIGNATURE)] * 100
    assert log.position() == before
    assert run(owner, proven, junk[-1]) == [DUPLICATE] * 2
    assert run(owner, submission(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]


def test_of_two_commands_with_one_nonce_in_one_batch_the_first_passes(log: EventLog) -> None:
    first = submission(ME, registration(ME), nonce="n")
    assert run(host(log), first, first) == [Registered(NOW_S + 60), DUPLICATE]


def test_the_nonce_is_claimed_before_the_validation_of_the_edge_counts(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    forged = submission(ME, None, nonce="n", refusal=Refusal.INVALID_SIGNATURE)
    assert run(owner, forged) == [Refused(Refusal.INVALID_SIGNATURE)]
    clock.now_ms += HostLimits().timestamp_window_ms
    assert run(owner, submission(ME, registration(ME), nonce="n")) == [DUPLICATE]


def test_a_claim_alone_is_done(log: EventLog) -> None:
    assert run(host(log), submission(ME, None)) == [Done()]


def test_a_full_store_of_nonces_refuses_until_they_expire(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock, limits=HostLimits(nonces_per_shard_max=2))
    replies = run(owner, *[submission(ME, None) for _ in range(3)])
    assert replies == [Done(), Done(), Refused(Refusal.RATE_LIMITED)]
    clock.now_ms += 2 * HostLimits().timestamp_window_ms
    assert run(owner, submission(ME, None, timestamp_ms=clock.now_ms)) == [Done()]


def test_all_strangers_count_as_one_sender_in_a_crowded_shard(log: EventLog) -> None:
    owner = host(log, limits=HostLimits(nonces_per_shard_max=20))
    claims = [
        structs.replace(claim, sender_did=f"did:x:{number}")
        for number in range(13)
        if (claim := submission(ME, None).claim) is not None
    ]
    replies = run(owner, *[structs.replace(submission(ME, None), claim=one) for one in claims])
    assert replies == [Done()] * (10 + 2) + [Refused(Refusal.RATE_LIMITED)]


def test_a_partition_that_is_not_owned_is_not_served(log: EventLog) -> None:
    owner = host(log, shards=[])
    assert run(owner, submission(ME, registration(ME))) == [Refused(Refusal.NOT_OWNER)]
    assert log.position() == 0


def test_a_command_is_not_served_without_the_partition_that_knows_its_nonces(
    log: EventLog,
) -> None:
    sender = next(f"did:x:{n}" for n in range(9) if shard_of(f"did:x:{n}", SHARDS) != MINE)
    owner = host(log, shards=[MINE])
    before = log.position()
    for command in (SaveContract(contract(sender, ME)), QueryMessages(ALL)):
        assert run(owner, submission(ME, command, sender=sender)) == [Refused(Refusal.NOT_OWNER)]
    assert log.position() == before


def test_pushes_go_to_the_edges_that_hold_sockets_of_the_target(log: EventLog) -> None:
    owner = host(log)
    message = QueueMessage(FRIEND, b"hi")
    run(
        owner,
        submission(ME, registration(ME)),
        submission(FRIEND, registration(FRIEND)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
    )
    assert pushed(owner, submission(ME, message, sender=FRIEND)) == []
    run(owner, *[unclaimed(ME, OpenSession(edge)) for edge in (EDGE, "edge-1", EDGE)])
    run(owner, unclaimed(FRIEND, OpenSession("edge-2")))
    pushes = pushed(owner, submission(ME, message, sender=FRIEND))
    assert sorted(edge for edge, _ in pushes) == [EDGE, "edge-1"]
    (arrived,) = {push.did for _, push in pushes}
    assert arrived == ME
    assert all(isinstance(push.notice, MessageArrived) for _, push in pushes)
    run(owner, unclaimed(ME, CloseSession(EDGE)))
    again = pushed(owner, submission(ME, SaveContract(contract(FRIEND, ME))))
    assert again == [("edge-1", Push(ME, ContractsUpdated()))]


def test_who_is_not_registered_opens_no_session(log: EventLog) -> None:
    owner = host(log)
    assert run(owner, unclaimed(ME, OpenSession(EDGE))) == [Refused(Refusal.UNAUTHORIZED_COMMAND)]
    assert not owner.registry.sessions


@pytest.mark.parametrize("damage", ["topic", "version"])
def test_an_identity_whose_stream_is_damaged_takes_no_other_with_it(
    log: EventLog, damage: str
) -> None:
    owner = host(log)
    (claim,) = log.read_stream(partition_stream("shard-0"))
    stream = identity_stream(ME)
    if damage == "topic":
        version, event = 1, decode(claim.topic, claim.state)
    else:
        version, event = 2, removed([], "message")
    log.append([encode(stream, version, event)], [event])
    assert run(
        owner,
        submission(ME, registration(ME)),
        submission(FRIEND, registration(FRIEND)),
    ) == [Refused(Refusal.TEMPORARILY_UNAVAILABLE), Registered(NOW_S + 60)]


def test_figures_say_what_was_done_and_what_is_held(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock)
    run(owner, submission(ME, registration(ME)), submission(FRIEND, registration(FRIEND)))
    stats = owner.snapshot_stats()
    assert (stats.commits, stats.commands, stats.append_failures) == (1, 2, 0)
    assert stats.partitions == ["shard-0", "shard-1"]
    assert (stats.cached_identities, stats.nonces) == (2, 2)
    assert stats.cached_bytes > 0


def test_what_was_in_time_for_the_edge_but_is_late_here_is_refused(log: EventLog) -> None:
    # Its nonce may be forgotten already: a replay could pass.
    window_ms = HostLimits().timestamp_window_ms
    clock = HandClock()
    owner = host(log, clock=clock)
    run(owner, submission(ME, registration(ME)))
    sent = submission(ME, QueryMessages(ALL), sender=ME)
    assert run(owner, sent) == [MessagesPage([], 0)]
    clock.now_ms += window_ms
    assert run(owner, sent) == [DUPLICATE]
    clock.now_ms += 1
    assert run(owner, sent) == [Refused(Refusal.TIMESTAMP_OUT_OF_RANGE)]


def _answered(owner: Host) -> Submission:
    """A command that has used its nonce."""
    run(owner, submission(ME, registration(ME, NOW_S + 10_000)))
    sent = submission(ME, QueryMessages(ALL))
    assert run(owner, sent) == [MessagesPage([], 0)]
    return sent


def test_a_clock_that_jumps_an_hour_ahead_and_back_lets_no_nonce_in_again(log: EventLog) -> None:
    clock = HandClock()
    owner = host(log, clock=clock)
    sent = _answered(owner)
    clock.now_ms += 3_600_000
    owner.run_housekeeping()
    clock.now_ms -= 3_600_000
    assert run(owner, sent) == [Refused(Refusal.TIMESTAMP_OUT_OF_RANGE)]
    # Others are not kept out for an hour.
    clock.now_ms += 60_000
    later = submission(ME, QueryMessages(ALL), timestamp_ms=clock.now_ms)
    assert run(owner, later) == [MessagesPage([], 0)]


def test_a_host_that_starts_a_day_ahead_refuses_nothing_once_the_clock_is_right(
    log: EventLog,
) -> None:
    clock = HandClock()
    first = host(log, clock=clock)
    sent = _answered(first)
    clock.now_ms += 86_400_000
    host(log, clock=clock)
    clock.now_ms -= 86_400_000
    again = host(log, clock=clock)
    assert run(again, sent) == [Refused(Refusal.DUPLICATE_NONCE)]
    assert run(again, submission(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]


@pytest.mark.parametrize("narrowed_ms", [0, -730 * 86_400_000])
@pytest.mark.parametrize("starts_ahead", [1, 2])
def test_starts_by_a_wrong_clock_after_the_window_became_narrower_let_no_nonce_in_again(
    log: EventLog, narrowed_ms: int, starts_ahead: int
) -> None:
    clock, minute_ms = HandClock(), 60_000
    wide, narrow = (HostLimits(timestamp_window_ms=n * minute_ms) for n in (60, 5))
    first = host(log, clock=clock, limits=wide)
    run(first, submission(ME, registration(ME, NOW_S + 100_000)))
    stamped_ms = NOW_MS + 60 * minute_ms
    sent = submission(ME, QueryMessages(ALL), timestamp_ms=stamped_ms)
    assert run(first, sent) == [MessagesPage([], 0)]
    clock.now_ms += narrowed_ms
    owner = host(log, clock=clock, limits=narrow)
    for minutes in (10, 20, 30):
        clock.now_ms = NOW_MS + minutes * minute_ms
        run(owner, submission(ME, QueryMessages(ALL), timestamp_ms=clock.now_ms))
    for _ in range(starts_ahead):
        clock.now_ms = NOW_MS + 300 * minute_ms
        owner = host(log, clock=clock, limits=narrow)
        run(owner, submission(ME, QueryMessages(ALL), timestamp_ms=clock.now_ms))
    clock.now_ms = NOW_MS + 58 * minute_ms
    assert run(owner, sent) == [Refused(Refusal.TIMESTAMP_OUT_OF_RANGE)]
    # Once the clock is right at a start, all is known again.
    again = host(log, clock=clock, limits=narrow)
    assert run(again, sent) == [Refused(Refusal.DUPLICATE_NONCE)]
    later = submission(ME, QueryMessages(ALL), timestamp_ms=clock.now_ms)
    assert run(again, later) == [MessagesPage([], 0)]


def test_a_host_measures_and_forgets_on_after_its_clock_was_set_back(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    owner.run_housekeeping()
    clock.now_ms -= 3_600_000
    owner.run_housekeeping()
    run(owner, submission(ME, registration(ME), timestamp_ms=clock.now_ms))
    clock.now_ms += 5_000
    owner.run_housekeeping()
    assert owner.stats.commands_per_s == 0.2
    assert owner.snapshot_stats().nonces == 1
    clock.now_ms += HostLimits().timestamp_window_ms + 60_000
    owner.run_housekeeping()
    assert owner.snapshot_stats().nonces == 0


def test_an_owner_whose_clock_is_behind_takes_no_nonce_that_the_last_one_forgot(
    log: EventLog,
) -> None:
    ahead, right = HandClock(), HandClock()
    window_ms = HostLimits().timestamp_window_ms
    first = host(log, clock=ahead)
    sent = _answered(first)
    right.now_ms += window_ms
    ahead.now_ms += window_ms + 60_000
    first.run_housekeeping()
    for name in ("shard-0", "shard-1"):
        partition = first.ownership.owned.get(name)
        assert partition is not None
        partition._seals_to_read = 1_000_000  # so that a snapshot is due
    run(first, submission(ME, QueryMessages(ALL), timestamp_ms=ahead.now_ms))
    snapshots = first.run_housekeeping()
    assert snapshots
    log.save_snapshots(snapshots)
    second = host(log, clock=right, name="host-1")
    assert isinstance(run(second, sent)[0], Refused)
