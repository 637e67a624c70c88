"""A shard changes hands: what goes with it, what does not, and what is refused where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import pytest
from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from actors.core.commands import (
    CloseSession,
    Listen,
    OpenSession,
    Page,
    QueryMessages,
    QueueEnvelopes,
    QueueMessage,
    RemoveMessages,
    SaveContract,
    StartLive,
)
from actors.core.leases import LEASE_MS_MAX
from actors.core.limits import HostLimits
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeDelivered, MessageAccepted, Refused, Registered
from actors.host.host_connection import HostServer
from actors.host.owned_partition import OwnedPartition, load
from eventstore.log.errors import AppendConflict, LogError
from eventstore.log.event_log import EventLog, QueueDepth
from eventstore.log.events import Event
from eventstore.log.verify import verify
from http_edge.settings.reference import every_setting
from tests.log.faulty_log import FailNext, FaultyLog, StoredButFailed
from tests.unit.actors.didcomm import KEY, ME, go_live
from tests.unit.actors.given import (
    SHARDS,
    HandClock,
    contract,
    delivery,
    host,
    pushed,
    registration,
    run,
    submission,
    unclaimed,
)
from tests.unit.actors.test_leases import WAITING, queue, take

MINE = shard_of(ME, SHARDS)
ALL = ["shard-0", "shard-1"]
WINDOW_MS = HostLimits().timestamp_window_ms
NOT_OWNER = Refused(Refusal.NOT_OWNER)
ENVELOPE = unclaimed(ME, QueueEnvelopes(KEY, [b"new"]))


class BusyLog(FaultyLog):
    """A log in which another writer is first before each append."""

    def __init__(self, log: EventLog, write: Callable[[], object]) -> None:
        super().__init__(log)
        self._write = write

    @override
    def append(
        self,
        rows: Sequence[StoredEvent],
        events: Sequence[Event],
        depths: Sequence[QueueDepth] = (),
    ) -> None:
        self._write()
        super().append(rows, events, depths)


def test_sessions_live_mode_and_leases_go_with_their_shard(log: EventLog) -> None:
    former, clock = host(log, name="former"), HandClock()
    (waiting,) = queue(former, b"1")
    take(former, delivery("phone"))
    run(former, unclaimed(ME, Listen("edge-1")))
    go_live(former, "edge-0", lease_ms=60_000, bytes_max=100)
    handover = former.moves.release([MINE])
    new = host(log, name="new", shards=[], clock=clock)
    new.moves.adopt([MINE], handover)
    assert take(new, delivery("laptop")) == [[]]
    ((edge, push),) = pushed(new, ENVELOPE)
    assert (edge, type(push.notice)) == ("edge-0", EnvelopeDelivered)
    assert set(new.registry.sessions.edges_of(ME)) == {"edge-0", "edge-1"}
    clock.now_ms += 60_000
    assert take(new, delivery("laptop"))[0][0] == waiting


def nothing(*_: object) -> None:
    """Takes no batch and no question."""


def test_sessions_that_come_with_a_shard_after_the_end_of_their_edge_end_with_the_first_push(
    log: EventLog,
) -> None:
    former = host(log, name="former")
    queue(former)
    go_live(former, "edge-0", lease_ms=60_000, bytes_max=100)
    new = host(log, name="new", shards=[])
    server = HostServer(nothing, nothing, new.registry.sessions.drop_edge)
    new.registry.sessions.drop_edge("edge-0")  # before it has any
    new.moves.adopt([MINE], former.moves.release([MINE]))
    for envelope in (b"1", b"2"):
        for edge, push in pushed(new, unclaimed(ME, QueueEnvelopes(KEY, [envelope]))):
            server.push(edge, [push])
    assert not set(new.registry.sessions.edges_of(ME))
    # What was leased to it waits for the end of that lease, and later messages for none.
    assert [len(messages) for messages in take(new, delivery("laptop"))] == [1]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_session_that_has_not_fetched_yet_takes_the_live_mode_of_the_next_owner(
    log: EventLog, *, is_replaced: bool
) -> None:
    former = host(log, name="former")
    (waiting,) = queue(former, b"1")
    if is_replaced:
        run(former, unclaimed(ME, StartLive("edge-1", "laptop")))
        assert take(former, delivery("laptop", live=True, after_version=1)) == [[waiting]]
    run(former, unclaimed(ME, StartLive("edge-0", "phone")))
    new = host(log, name="new", shards=[])
    new.moves.adopt([MINE], former.moves.release([MINE]))
    assert take(new, delivery("phone", live=True, after_version=1)) == [[waiting]]
    ((edge, push),) = pushed(new, ENVELOPE)
    assert (edge, type(push.notice)) == ("edge-0", EnvelopeDelivered)


def test_a_session_without_a_lease_goes_with_its_shard_however_old_it_is(log: EventLog) -> None:
    clock = HandClock()
    former = host(log, name="former", clock=clock)
    queue(former)
    run(former, unclaimed(ME, Listen("edge-1")))
    clock.now_ms += 3_600_000
    former.run_housekeeping()
    new = host(log, name="new", shards=[], clock=clock)
    new.moves.adopt([MINE], former.moves.release([MINE]))
    assert pushed(new, ENVELOPE) == [("edge-1", WAITING)]


def test_a_lease_goes_with_its_shard_from_host_to_host_without_any_session(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, name="former", clock=clock)
    (waiting,) = queue(owner, b"1")
    assert take(owner, delivery("phone", lease_ms=3_600_000)) == [[waiting]]
    for name in ("second", "third"):
        clock.now_ms += 60_000
        owner.run_housekeeping()
        handover = owner.moves.release([MINE])
        owner = host(log, name=name, shards=[], clock=clock)
        owner.moves.adopt([MINE], handover)
        assert take(owner, delivery("laptop")) == [[]]


def test_a_lease_from_a_host_whose_clock_is_ahead_ends_within_the_longest_lease(
    log: EventLog,
) -> None:
    ahead, clock = HandClock(), HandClock()
    ahead.now_ms += 3 * 86_400_000
    former = host(log, name="former", clock=ahead)
    (waiting,) = queue(former, b"1")
    take(former, delivery("phone"))
    new = host(log, name="new", shards=[], clock=clock)
    new.moves.adopt([MINE], former.moves.release([MINE]))
    assert take(new, delivery("laptop")) == [[]]
    clock.now_ms += LEASE_MS_MAX
    assert take(new, delivery("laptop"))[0][0] == waiting


def test_no_setting_allows_a_longer_lease_than_a_host_takes_over() -> None:
    for name in ("didcomm.lease_s", "didcomm.forward_delay_s_max"):
        assert every_setting()[name].kind["maximum"] * 1000 <= LEASE_MS_MAX
    longest_s = every_setting()["outbound.timeout_s"].kind["maximum"]
    assert 2 * longest_s * 1000 < LEASE_MS_MAX


def test_what_goes_with_a_shard_is_not_kept(log: EventLog) -> None:
    former = host(log, name="former")
    queue(former, b"1")
    take(former, delivery("phone"))
    run(former, unclaimed(ME, Listen("edge-0")))
    former.moves.release([MINE])
    assert former.snapshot_stats().leases == 0
    assert len(former.registry.sessions) == 0
    assert former.cache.dids() == []
    assert MINE not in former.ownership.holdings


def test_who_gets_a_shard_back_without_knowing_that_it_was_gone_reads_it_again(
    log: EventLog,
) -> None:
    first, second = host(log, name="first", shards=[]), host(log, name="second", shards=[])
    first.moves.adopt([MINE], None)
    queue(first, b"1")
    second.moves.adopt([MINE], None)
    taken = take(second, delivery("phone"))
    run(second, unclaimed(ME, RemoveMessages(taken[0], "delivered")))
    first.moves.adopt([MINE], None)
    assert take(first, delivery("phone")) == [[]]


def test_a_shard_that_comes_back_without_what_went_with_it_has_no_sessions_and_no_leases(
    log: EventLog,
) -> None:
    owner = host(log)
    waiting = queue(owner, b"1")
    take(owner, delivery("phone"))
    run(owner, unclaimed(ME, Listen("edge-1")))
    owner.moves.adopt([MINE], None)
    assert len(owner.registry.sessions) == 0
    assert take(owner, delivery("laptop")) == [waiting]


def test_the_sessions_of_other_shards_stay(log: EventLog) -> None:
    other = next(f"did:x:{n}" for n in range(9) if shard_of(f"did:x:{n}", SHARDS) != MINE)
    former = host(log, name="former")
    for did in (ME, other):
        run(former, submission(did, registration(did)), unclaimed(did, OpenSession("edge-0")))
    handover = former.moves.release([MINE])
    new = host(log, name="new", shards=[])
    new.moves.adopt([MINE], handover)
    assert list(former.registry.sessions.edges_of(other)) == ["edge-0"]
    assert list(new.registry.sessions.edges_of(other)) == []


def test_a_lease_that_has_just_ended_is_pushed_by_the_next_owner(log: EventLog) -> None:
    clock = HandClock()
    former = host(log, name="former", clock=clock)
    queue(former, b"1")
    run(former, unclaimed(ME, Listen("edge-0")))
    take(former, delivery("phone"))
    clock.now_ms += 60_000
    run(former, unclaimed(ME, CloseSession("edge-7")))  # a transaction ends what is over
    new = host(log, name="new", shards=[], clock=clock)
    new.moves.adopt([MINE], former.moves.release([MINE]))
    assert former.due_pushes() == []
    assert [(edge, push.did) for edge, push in new.due_pushes()] == [("edge-0", ME)]


def test_the_id_of_sessions_changes_when_they_are_lost_and_only_then(log: EventLog) -> None:
    first = host(log, name="first", shards=[])
    before = dict(first.moves.adopt(ALL, None))
    second = host(log, name="second", shards=[])
    assert second.moves.adopt([MINE], first.moves.release([MINE])) == {MINE: before[MINE]}
    assert first.moves.adopt([MINE], second.moves.release([MINE])) == {MINE: before[MINE]}
    assert dict(first.ownership.holdings) == before
    seen = {before[MINE]}
    for owner in (second, second, first):
        ids = owner.moves.adopt([MINE], None)
        assert ids[MINE] not in seen
        seen.add(ids[MINE])


def test_the_id_of_sessions_outlives_a_failed_append(log: EventLog) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty, shards=[])
    before = dict(owner.moves.adopt(ALL, None))
    faulty.plan(FailNext(1))
    run(owner, submission(ME, registration(ME)))
    run(owner, submission(ME, registration(ME)))
    assert dict(owner.ownership.holdings) == before


@pytest.mark.parametrize("fault", [FailNext(1), StoredButFailed(1)])
def test_who_could_not_claim_owns_nothing(log: EventLog, fault: FailNext | StoredButFailed) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty, shards=[])
    faulty.plan(fault)
    with pytest.raises(LogError):
        owner.moves.adopt(ALL, None)
    assert not owner.ownership.holdings
    assert run(owner, submission(ME, registration(ME))) == [NOT_OWNER]
    owner.moves.adopt(ALL, None)
    assert run(owner, submission(ME, registration(ME))) != [NOT_OWNER]


@pytest.mark.parametrize(("times", "is_owner"), [(1, True), (9, True), (10, False)])
def test_a_former_owner_that_seals_on_delays_the_next_one_by_a_few_appends(
    log: EventLog, times: int, is_owner: bool
) -> None:
    former = host(log, name="former")
    requests = [submission(ME, registration(ME)) for _ in range(times)]
    first = iter(requests)
    busy = BusyLog(log, lambda: run(former, *islice(first, 1)))
    new = host(busy, name="new", shards=[])
    if not is_owner:
        with pytest.raises(AppendConflict):
            new.moves.adopt(ALL, None)
        assert not new.ownership.holdings
        return
    new.moves.adopt(ALL, None)
    assert run(former, submission(ME, registration(ME))) == [NOT_OWNER]
    again = run(new, *requests, submission(ME, registration(ME)))
    assert again[:-1] == [Refused(Refusal.DUPLICATE_NONCE)] * times
    assert isinstance(again[-1], Registered)
    assert len(list(verify(log))) == 1  # a summary, and no finding


def test_a_claim_does_not_follow_another_owner_that_claims_in_between(log: EventLog) -> None:
    host(log, name="former")
    third = host(log, name="third", shards=[])
    claims = iter([ALL])
    busy = BusyLog(log, lambda: [third.moves.adopt(names, None) for names in islice(claims, 1)])
    new = host(busy, name="new", shards=[])
    with pytest.raises(AppendConflict):
        new.moves.adopt(ALL, None)
    assert not new.ownership.holdings
    assert run(third, submission(ME, registration(ME))) != [NOT_OWNER]


def test_who_follows_a_former_owner_knows_what_who_reads_its_partition_knows(
    log: EventLog,
) -> None:
    clock = HandClock()
    former = host(log, clock=clock, name="former")
    reading = partial(load, log, MINE, now_ms=clock.now_ms, window_ms=WINDOW_MS)
    following = reading()
    for _ in range(3):
        clock.now_ms += 1_000
        run(former, submission(ME, registration(ME)))
    assert following.follow(log, WINDOW_MS)
    assert not following.follow(log, WINDOW_MS)

    def known(partition: OwnedPartition) -> object:
        packed = partition.nonces.packed().items()
        nonces = {
            until: {keys[i : i + 16] for i in range(0, len(keys), 16)} for until, keys in packed
        }
        return partition.place, partition.epoch, partition.at_ms, nonces

    assert known(following) == known(reading())


def test_a_nonce_that_a_former_owner_claims_during_the_claim_of_the_next_is_used_once(
    log: EventLog,
) -> None:
    """The next owner has a narrower window, for which it notes until when the wider one matters."""
    clock, wide_ms, narrow_ms, late_ms = HandClock(), 300_000, 290_100, 10_000
    former = host(log, clock=clock, limits=HostLimits(timestamp_window_ms=wide_ms), name="former")
    sealed_ms = clock.now_ms + late_ms
    stamped_ms, ended_ms = sealed_ms + wide_ms, clock.now_ms + 2 * wide_ms
    lasting = registration(ME, ended_ms / 1_000 + 60)
    request = submission(ME, lasting, timestamp_ms=stamped_ms)
    late = iter([request])

    def seal_late() -> None:
        clock.now_ms = sealed_ms
        run(former, *islice(late, 1))

    narrow = HostLimits(timestamp_window_ms=narrow_ms)
    new = host(BusyLog(log, seal_late), clock=clock, limits=narrow, name="new", shards=[])
    new.moves.adopt(ALL, None)
    for now_ms in (ended_ms - 5_000, ended_ms + 1):
        clock.now_ms = now_ms
        new = host(log, clock=clock, limits=narrow, name="new")
    assert clock.now_ms - stamped_ms <= narrow_ms
    assert run(new, request) == [Refused(Refusal.DUPLICATE_NONCE)]


def test_what_is_refused_for_its_owner_has_used_up_no_nonce(log: EventLog) -> None:
    """Sent again as it is, it is accepted by the owner of both shards."""
    target = next(f"did:x:{n}" for n in range(9) if shard_of(f"did:x:{n}", SHARDS) != MINE)
    former = host(log, name="former")
    run(former, submission(target, registration(target)))
    run(former, submission(target, SaveContract(contract(ME, target))))
    request = submission(target, QueueMessage(ME, b"hi"), sender=ME)
    handover = former.moves.release([shard_of(target, SHARDS)])
    assert run(former, request, request) == [NOT_OWNER, NOT_OWNER]
    former.moves.adopt([shard_of(target, SHARDS)], handover)
    first, second = run(former, request, request)
    assert isinstance(first, MessageAccepted)
    assert second == Refused(Refusal.DUPLICATE_NONCE)


def test_nonces_are_known_to_the_next_owner(log: EventLog) -> None:
    former = host(log, name="former")
    request = submission(ME, registration(ME))
    run(former, request)
    new = host(log, name="new", shards=[])
    new.moves.adopt(ALL, former.moves.release(ALL))
    assert run(new, request) == [Refused(Refusal.DUPLICATE_NONCE)]


def test_a_fenced_owner_forgets_its_sessions(log: EventLog) -> None:
    stale = host(log, name="stale", shards=[])
    stale.moves.adopt(ALL, None)
    queue(stale, b"1")
    run(stale, unclaimed(ME, Listen("edge-0")))
    take(stale, delivery("phone"))
    host(log, name="new", shards=[]).moves.adopt(ALL, None)
    assert run(stale, submission(ME, QueryMessages(Page(0, 1)))) == [NOT_OWNER]
    assert stale.snapshot_stats().leases == 0
    assert len(stale.registry.sessions) == 0
    assert not stale.ownership.fenced  # the placer decides who owns it


def test_releasing_what_is_not_owned_hands_nothing_over(log: EventLog) -> None:
    unknown = host(log, shards=[])
    (before,) = unknown.moves.adopt([MINE], unknown.moves.release([MINE])).values()
    (after,) = unknown.moves.adopt([MINE], unknown.moves.release([])).values()
    assert before != after
