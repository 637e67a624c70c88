"""Memory: who stays, who leaves, and that leaving loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from eventsourcing.persistence import StoredEvent
from msgspec import structs

from actors.core.commands import (
    AcknowledgeMessages,
    EraseIdentity,
    Page,
    QueryMessages,
    QueueMessage,
    SaveContract,
)
from actors.core.erasure import OPERATOR
from actors.core.evolve import evolve, from_snapshot, to_snapshot
from actors.core.identity import FOLD, Identity
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim, Proof
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import Done, MessageAccepted, MessagesBeside, MessagesPage, Refused
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.state_cache import LOADS_PER_CACHE, StateCache
from eventstore.log.codec import decode
from eventstore.log.content import Content
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.events import ContractExpired, ContractStored, MessageQueued
from eventstore.log.streams import identity_stream
from eventstore.stores.recorder_log import RecorderLog
from tests.log.raw_sql import run_sql
from tests.log.samples import save
from tests.unit.actors.given import (
    EDGE,
    NOW_MS,
    SHARDS,
    HandClock,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

FRIEND = "did:x:friend"
ALL = Page(0, 1_000)
IDENTITIES = [f"did:x:{number}" for number in range(6)]


def populate(owner: Host, identities: list[str], messages: int = 0) -> None:
    for did in identities:
        run(
            owner,
            submission(did, registration(did)),
            submission(did, SaveContract(contract(FRIEND, did))),
            *[
                submission(did, QueueMessage(FRIEND, f"{n}".encode()), sender=FRIEND)
                for n in range(messages)
            ],
        )


def acknowledge_all_but_last(owner: Host, did: str) -> None:
    (page,) = run(owner, submission(did, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    ids = [message.message_id for message in page.messages]
    run(owner, submission(did, AcknowledgeMessages(ids[:-1])))


def payloads(owner: Host, did: str) -> list[bytes]:
    (page,) = run(owner, submission(did, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    return [message.payload for message in page.messages]


@pytest.mark.parametrize(
    "limits",
    [
        HostLimits(active_identities_max=2),
        HostLimits(active_bytes_max=4_500),
        HostLimits(identity_idle_s=1),
    ],
    ids=["number", "bytes", "idle"],
)
def test_an_identity_over_a_bound_leaves_memory_and_comes_back_whole(
    log: EventLog, clock: HandClock, limits: HostLimits
) -> None:
    owner = host(log, clock=clock, limits=limits)
    populate(owner, IDENTITIES, messages=3)
    clock.now_ms += 1_001
    owner.run_housekeeping()
    stats = owner.snapshot_stats()
    assert stats.cached_identities <= limits.active_identities_max
    assert stats.cached_bytes <= limits.active_bytes_max
    assert stats.cached_identities < len(IDENTITIES)
    for did in IDENTITIES:
        assert payloads(owner, did) == [b"0", b"1", b"2"]


def test_the_identities_of_a_batch_are_loaded_by_two_questions(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(host(log), IDENTITIES, messages=2)
    owner = host(log)
    run(owner, *[submission(f"did:x:{n}", QueryMessages(ALL)) for n in range(100, 120)])
    assert len(owner.cache) == 0
    for one_by_one in ("load_snapshot", "read_stream"):
        monkeypatch.setattr(RecorderLog, one_by_one, None)
    pages = run(owner, *[submission(did, QueryMessages(ALL)) for did in IDENTITIES])
    for page in pages:
        assert isinstance(page, MessagesPage)
        assert [message.payload for message in page.messages] == [b"0", b"1"]
    assert owner.snapshot_stats().activations == 20 + len(IDENTITIES)


def test_a_transaction_loads_a_part_of_the_cache_and_the_next_one_the_rest(log: EventLog) -> None:
    """Whether identities are read together or one by one, and however many it names."""
    first = host(log)
    populate(first, IDENTITIES, messages=60)
    for did in IDENTITIES[3:]:
        run(first, *[submission(did, QueueMessage(FRIEND, b"x"), sender=FRIEND) for _ in range(60)])
    most = max(cached.weight_bytes for cached in first.cache._cached.values())
    part = 50_000
    owner = host(log, limits=HostLimits(active_bytes_max=LOADS_PER_CACHE * part))
    run(owner, *[submission(f"did:x:{n}", QueryMessages(ALL)) for n in range(100, 120)])
    left = [(EDGE, submission(did, QueryMessages(ALL))) for did in IDENTITIES]
    counts: list[int] = []
    transactions = 0
    while left:
        owner.run_housekeeping()
        before = owner.cache.bytes
        replies, _ = owner.execute(left)
        assert owner.cache.bytes - before < part + most
        counts += [len(page.messages) for page in replies if isinstance(page, MessagesPage)]
        left = left[len(replies) :]
        transactions += 1
    assert transactions == 3
    assert counts == [60, 60, 60, 120, 120, 120]


def test_senders_that_are_looked_for_in_a_crowded_shard_are_loaded_within_the_same_bound(
    log: EventLog,
) -> None:
    """Commands with invalid signatures name them, and prove nothing."""
    dids = [did for did in (f"did:x:{n}" for n in range(40)) if shard_of(did, SHARDS) == "shard-0"]
    populate(host(log), dids, messages=60)
    part = 10_000
    limits = HostLimits(nonces_per_shard_max=20, active_bytes_max=LOADS_PER_CACHE * part)
    owner = host(log, limits=limits)
    run(owner, *[submission(dids[0], QueryMessages(ALL)) for _ in range(10)])
    owner.cache.drop_partition("shard-0")
    owner.run_housekeeping()
    claims = [
        NonceClaim("shard-0", did.encode(), NOW_MS, Proof.HOLDS, sender_did=did) for did in dids
    ]
    junk = [
        Submission("shard-0", did, claim.key, claim, Refusal.INVALID_SIGNATURE)
        for did, claim in zip(dids, claims, strict=True)
    ]
    replies, _ = owner.execute([(EDGE, one) for one in junk])
    assert 0 < len(replies) < len(junk)
    assert part <= owner.cache.bytes < 4 * part


def test_an_identity_with_many_events_or_a_fault_is_loaded_by_itself(
    log: EventLog, tmp_path: Path
) -> None:
    many, damaged, *others = IDENTITIES
    first = host(log)
    populate(first, IDENTITIES, messages=2)
    run(first, *[submission(many, QueueMessage(FRIEND, b"x"), sender=FRIEND) for _ in range(120)])
    gone = f"DELETE FROM stored_events WHERE originator_id = '{identity_stream(damaged).hex}'"
    run_sql(f"sqlite:{tmp_path}/log.db", f"{gone} AND originator_version = 2")
    owner = host(log)
    run(owner, *[submission(f"did:x:{n}", QueryMessages(ALL)) for n in range(100, 120)])
    whole, refused, *pages = run(owner, *[submission(d, QueryMessages(ALL)) for d in IDENTITIES])
    assert isinstance(whole, MessagesPage)
    assert len(whole.messages) == 122
    assert refused == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    assert [isinstance(page, MessagesPage) for page in pages] == [True] * len(others)


def test_no_identity_of_a_shard_that_is_not_owned_yet_is_loaded_ahead(log: EventLog) -> None:
    populate(host(log), IDENTITIES)
    cache = StateCache(log, HostLimits())
    batch = [submission(did, QueryMessages(ALL)) for did in IDENTITIES]
    wanted = [(one.target_did, one.partition) for one in batch]
    cache.read_ahead(wanted, ())
    cache.get(*wanted[0], NOW_MS)
    assert len(cache) == 1
    cache.read_ahead(wanted, {one.partition for one in batch})
    cache.get(*wanted[1], NOW_MS)
    assert len(cache) == len(batch)


def test_who_sends_in_a_shard_that_is_crowded_is_looked_for_together(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a sender is known has a say there: strangers must not cost a question each."""
    owner = host(log, limits=HostLimits(nonces_per_shard_max=400))
    one = shard_of(IDENTITIES[0], SHARDS)
    run(owner, *[submission(IDENTITIES[0], None) for _ in range(200)])
    for one_by_one in ("load_snapshot", "read_stream"):
        monkeypatch.setattr(RecorderLog, one_by_one, None)
    claims = [submission(f"did:x:{number}", None) for number in range(40)]
    crowd = [
        structs.replace(each, claim=structs.replace(each.claim, sender_did=each.target_did))
        for each in claims
        if each.claim is not None and each.partition == one
    ]
    assert len(crowd) > 10
    assert run(owner, *crowd) == [Done()] * len(crowd)


def test_a_large_page_is_left_to_be_read_beside_the_commands(log: EventLog) -> None:
    owner, me = host(log), IDENTITIES[0]
    populate(owner, [me])
    for _ in range(2):
        run(owner, submission(me, QueueMessage(FRIEND, bytes(600_000)), sender=FRIEND))
    topics = [row.topic for row in log.read_stream(identity_stream(me))]
    queued = [at for at, topic in enumerate(topics, 1) if topic.startswith("message-queued")]
    assert run(owner, submission(me, QueryMessages(ALL))) == [MessagesBeside(queued, 2)]
    (page,) = run(owner, submission(me, QueryMessages(Page(0, 1))))
    assert isinstance(page, MessagesPage)


def test_the_longest_unused_leaves_first(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock, limits=HostLimits(active_identities_max=3))
    populate(owner, IDENTITIES[:4])
    run(owner, submission(IDENTITIES[0], QueryMessages(ALL)))
    owner.run_housekeeping()
    before = owner.snapshot_stats().activations
    run(owner, *[submission(did, QueryMessages(ALL)) for did in (IDENTITIES[0], *IDENTITIES[2:4])])
    assert owner.snapshot_stats().activations == before
    run(owner, submission(IDENTITIES[1], QueryMessages(ALL)))
    assert owner.snapshot_stats().activations == before + 1


def test_commands_for_unknown_dids_cost_no_memory(log: EventLog) -> None:
    owner = host(log)
    for number in range(50):
        message = QueueMessage(FRIEND, b"x")
        run(owner, submission(f"did:x:unknown {number}", message, sender=FRIEND))
        owner.run_housekeeping()
    stats = owner.snapshot_stats()
    assert (stats.cached_identities, stats.cached_bytes) == (0, 0)
    assert len(owner.cache._newcomers) == 0


def test_what_an_identity_weighs_is_taken_off_when_it_leaves(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock, limits=HostLimits(identity_idle_s=1))
    populate(owner, IDENTITIES, messages=5)
    assert owner.snapshot_stats().cached_bytes > 0
    clock.now_ms += 2_000
    owner.run_housekeeping()
    assert owner.snapshot_stats().cached_bytes == 0


def test_an_identity_with_names_as_long_as_they_may_be_weighs_what_they_take(log: EventLog) -> None:
    """Also once it is loaded again."""
    friends = [f"did:x:{number}".ljust(2_048, "x") for number in range(200)]
    did, taken = IDENTITIES[0], sum(map(len, friends))
    owner = host(log)
    run(owner, submission(did, registration(did)))
    run(owner, *[submission(did, SaveContract(contract(one, did))) for one in friends])
    assert taken < owner.snapshot_stats().cached_bytes < 2 * taken
    owner = host(log, limits=HostLimits(active_bytes_max=taken))
    run(owner, submission(did, QueryMessages(ALL)))
    assert taken < owner.snapshot_stats().cached_bytes < 2 * taken
    owner.run_housekeeping()
    assert owner.snapshot_stats().cached_identities == 0


def test_an_identity_whose_contracts_expired_weighs_their_names_no_more(log: EventLog) -> None:
    """Each is gone with an event of its own, so versions rise as the number of records falls."""
    did, cache = IDENTITIES[0], StateCache(log, HostLimits())
    cached = cache.get(did, "shard-0", NOW_MS)
    for number in range(60):
        friend = f"did:x:{number}".ljust(2_048, "x")
        stored = ContractStored(
            at_ms=NOW_MS,
            command=b"",
            contract_id=str(number),
            requestor_did=friend,
            recipient_did=did,
            expires_at_s=1,
            digest=b"%d" % number,
            contract=b"",
        )
        cached.advance([stored])
    cache.settle(cached)
    assert cache.bytes > 60 * 2_048
    for number in range(60):
        expired = ContractExpired(
            at_ms=NOW_MS,
            command=b"",
            contract_id=str(number),
            digest=b"%d" % number,
            reason="expired",
        )
        cached.advance([expired])
        cache.settle(cached)
    assert cache.bytes < 2_048


def test_an_identity_in_use_stays_in_memory_however_long(log: EventLog, clock: HandClock) -> None:
    owner = host(log, clock=clock, limits=HostLimits(identity_idle_s=1))
    populate(owner, IDENTITIES[:1])
    for _ in range(3):
        clock.now_ms += 900
        run(owner, submission(IDENTITIES[0], QueryMessages(ALL), timestamp_ms=clock.now_ms))
        owner.run_housekeeping()
        assert owner.snapshot_stats().cached_identities == 1


def test_an_idle_identity_leaves_as_soon_after_the_clock_was_set_back(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock, limits=HostLimits(identity_idle_s=1))
    populate(owner, IDENTITIES)
    clock.now_ms -= 3_600_000
    for after_ms, cached in ((1_000, len(IDENTITIES)), (1, 0)):
        owner.run_housekeeping()
        clock.now_ms += after_ms
        owner.run_housekeeping()
        assert owner.snapshot_stats().cached_identities == cached


def test_a_snapshot_is_due_after_enough_events_and_not_before(log: EventLog) -> None:
    owner = host(log, limits=HostLimits(snapshot_after_events=5))
    populate(owner, IDENTITIES[:1], messages=2)
    assert owner.run_housekeeping() == []
    acknowledge_all_but_last(owner, IDENTITIES[0])
    due = owner.run_housekeeping()
    assert [one.stream for one in due] == [identity_stream(IDENTITIES[0])]
    assert due[0].snapshot.fold == FOLD
    assert owner.run_housekeeping() == []


def test_an_erased_identity_gets_one_snapshot_in_place_of_those_from_before(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock, limits=HostLimits(identity_idle_s=1))
    populate(owner, IDENTITIES[:1])
    erasing = unclaimed(IDENTITIES[0], EraseIdentity(OPERATOR, 64))
    run(owner, erasing, erasing)  # it begins, and then removes
    (due,) = owner.run_housekeeping()
    assert due.stream == identity_stream(IDENTITIES[0])
    clock.now_ms += 2_000
    assert owner.run_housekeeping() == []
    assert owner.snapshot_stats().cached_identities == 0


def test_a_queue_that_is_only_filled_has_snapshots_close_behind_it(log: EventLog) -> None:
    """Row by row it would take longer to load than its filling cost a stranger."""
    owner = host(log, limits=HostLimits(snapshot_after_events=1))
    populate(owner, IDENTITIES[:1])
    saved: list[int] = []
    for number in range(200):
        run(owner, submission(IDENTITIES[0], QueueMessage(FRIEND, b"x"), sender=FRIEND))
        saved += [due.snapshot.version for due in owner.run_housekeeping()]
        assert number + 3 - saved[-1] <= max(1, number // 8)
    assert len(saved) < 60  # and not one for each message


@pytest.mark.parametrize("keep", [True, False])
def test_dropping_all_snapshots_changes_nothing(
    log: EventLog, clock: HandClock, keep: bool
) -> None:
    limits = HostLimits(snapshot_after_events=3, identity_idle_s=1)
    owner = host(log, clock=clock, limits=limits)
    populate(owner, IDENTITIES, messages=10)
    for did in IDENTITIES:
        acknowledge_all_but_last(owner, did)
    due = owner.run_housekeeping()
    assert {one.stream for one in due} == {identity_stream(did) for did in IDENTITIES}
    clock.now_ms += 2_000
    owner.run_housekeeping()
    assert owner.snapshot_stats().cached_identities == 0
    if keep:
        log.save_snapshots(due)
    for did in IDENTITIES:
        (reply,) = run(owner, submission(did, QueueMessage(FRIEND, b"more"), sender=FRIEND))
        assert isinstance(reply, MessageAccepted)
        assert payloads(owner, did) == [b"9", b"more"]


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(version=3, fold=FOLD + 1, state=b"\x90"),
        Snapshot(version=3, fold=FOLD, state=b"damaged"),
    ],
    ids=["another fold", "damaged"],
)
def test_a_snapshot_that_cannot_be_used_is_not_used(log: EventLog, snapshot: Snapshot) -> None:
    populate(host(log), IDENTITIES[:1], messages=3)
    save(log, (identity_stream(IDENTITIES[0]), snapshot))
    assert payloads(host(log, name="host-1"), IDENTITIES[0]) == [b"0", b"1", b"2"]


def test_a_snapshot_and_its_tail_are_the_state_of_the_whole_stream(log: EventLog) -> None:
    populate(host(log), IDENTITIES[:1], messages=5)
    limits = HostLimits()
    did = IDENTITIES[0]
    whole = StateCache(log, limits).get(did, "shard-0", NOW_MS).state
    for version in range(1, whole.version):
        part = _at(log, did, version)
        save(log, (identity_stream(did), part))
        assert StateCache(log, limits).get(did, "shard-0", NOW_MS).state == whole


def _at(log: EventLog, did: str, version: int) -> Snapshot:
    """A snapshot of the state after the first ``version`` events."""
    state = Identity()
    for row in log.read_stream(identity_stream(did), limit=version):
        evolve(state, decode(row.topic, row.state))
    return Snapshot(version=version, fold=FOLD, state=to_snapshot(state))


def test_a_stream_with_a_gap_is_not_served(log: EventLog) -> None:
    populate(host(log), IDENTITIES[:1])
    (first, *_) = log.read_stream(identity_stream(IDENTITIES[0]))
    second = StoredEvent(identity_stream("did:x:gap"), 2, first.topic, first.state)
    log.append([second], [decode(first.topic, first.state)])
    cache = StateCache(log, HostLimits())
    with pytest.raises(CorruptRow):
        cache.get("did:x:gap", "shard-0", NOW_MS)


def test_a_name_is_in_memory_once_whether_it_came_in_events_or_in_a_snapshot() -> None:
    """A queue holds thousands of messages of the same few senders."""
    kept = Identity()
    for number in range(4):
        sender = f"did:x:{'x' * 2_000}"
        for event in (
            MessageQueued(
                at_ms=1,
                command=b"c" * 16,
                message_id=str(number),
                protocol="decentrl",
                sender_did=sender,
                recipient_key="",
                payload=Content.of(b"x", bytes(16)),
            ),
            ContractStored(
                at_ms=1,
                command=b"c" * 16,
                contract_id=str(number),
                requestor_did=sender,
                recipient_did="did:x:me",
                expires_at_s=number + 1,
                digest=bytes([number]),
                contract=b"c",
            ),
        ):
            evolve(kept, event)
    loaded = from_snapshot(to_snapshot(kept))
    assert loaded is not None
    assert loaded == kept
    for state in (kept, loaded):
        names = [message.sender_did for message in state.messages.values()]
        names += [each.requestor_did for each in state.contracts.values()]
        names += [*state.by_sender, *(did for did in state.correspondents if did != "did:x:me")]
        assert len(names) == 10
        assert len(set(map(id, names))) == 1
