"""The lease of a message ends in its time, or with the message, whyever that leaves the queue."""

from __future__ import annotations

import random
from collections.abc import Sized

import pytest

from actors.core.commands import (
    Command,
    Connect,
    DeliverMessages,
    EraseIdentity,
    ExpireRecords,
    GrantMediation,
    Listen,
    PurgeQueue,
    QueryQueue,
    QueueEnvelopes,
    UpdateKeylist,
)
from actors.core.leases import Lease, Leases
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.replies import Delivery, EnvelopesWaiting, Push
from eventstore.log.event_log import EventLog
from tests.unit.actors.didcomm import KEY, ME, claimed
from tests.unit.actors.given import HandClock, connection, host, run, unclaimed

AGE_S = 60


@pytest.mark.parametrize(
    ("command", "passed_s"),
    [
        (PurgeQueue(), 0),
        (EraseIdentity("operator", 100), 0),
        (ExpireRecords(100), AGE_S + 1),
        (QueryQueue(), AGE_S + 1),
    ],
)
def test_a_message_that_leaves_unacknowledged_takes_its_lease_with_it(
    log: EventLog, clock: HandClock, command: Command, passed_s: int
) -> None:
    limits = HostLimits(identity=IdentityLimits(queue_age_s_max=AGE_S))
    owner = host(log, clock=clock, limits=limits)
    run(
        owner,
        unclaimed(ME, Connect(connection())),
        unclaimed(ME, GrantMediation()),
        unclaimed(ME, UpdateKeylist(claimed(KEY), [])),
        unclaimed(ME, QueueEnvelopes(KEY, [b"1"])),
        unclaimed(ME, DeliverMessages("phone", "live", 10, 1_000, lease_ms=10**9)),
    )
    assert owner.snapshot_stats().leases == 1
    clock.now_ms += 1_000 * passed_s
    run(owner, *[unclaimed(ME, command)] * 2)  # an erasure begins, and then removes
    assert log.figures().queue_messages == 0
    assert owner.snapshot_stats().leases == 0


def test_every_lease_of_an_identity_ends_in_its_time_and_leaves_nothing() -> None:
    leases = Leases()
    for message_id, until_ms in (("a", 10), ("b", 20), ("c", 20)):
        leases.grant(ME, [message_id], Lease("phone", until_ms))
    assert [leases.expire(now_ms) for now_ms in (9, 10, 19, 20)] == [set(), {ME}] * 2
    leases.grant(ME, ["a"], Lease("phone", 30))
    leases.set_back(10)
    leases.grant(ME, ["b"], Lease("phone", 30))
    assert [leases.expire(now_ms) for now_ms in (19, 20, 29, 30)] == [set(), {ME}] * 2
    assert vars(leases) == vars(Leases())


@pytest.mark.parametrize("later_ms", [1, -1], ids=["ever later", "ever earlier"])
@pytest.mark.parametrize("is_another_held", [False, True])
def test_leases_that_come_and_go_take_no_memory_until_they_would_have_ended(
    later_ms: int, *, is_another_held: bool
) -> None:
    leases = Leases()
    if is_another_held:
        leases.grant(ME, ["held"], Lease("phone", 10**9))
    for number in range(10_000):
        leases.grant(ME, ["a"], Lease("phone", 10**6 + later_ms * number))
        leases.end(ME, ["a"])
    assert sum(len(held) for held in vars(leases).values() if isinstance(held, Sized)) < 100


def test_every_lease_ends_in_its_time_whatever_others_do() -> None:
    choose, leases = random.Random(5), Leases()  # noqa: S311 - chosen, not secret
    held: dict[str, dict[str, int]] = {did: {} for did in "xyz"}
    for now_ms in range(3_000):
        did, message_id = choose.choice("xyz"), choose.choice("abcdefgh")
        match choose.randrange(8):
            case 0:
                leases.end(did, [message_id])
                held[did].pop(message_id, None)
            case 1 if now_ms % 10 == 0:
                leases.put(did, dict(leases.take(did)), now_ms)
            case 2 if now_ms % 10 == 0:
                leases.set_back(5)
                held = {d: {i: end - 5 for i, end in of.items()} for d, of in held.items()}
            case 3 | 4:
                held[did][message_id] = until_ms = now_ms + choose.randrange(1, 60)
                leases.grant(did, [message_id], Lease("phone", until_ms))
            case _:
                pass
        over = {d for d, of in held.items() if any(end <= now_ms for end in of.values())}
        assert leases.expire(now_ms) == over
        held = {d: {i: end for i, end in of.items() if end > now_ms} for d, of in held.items()}
        assert {d: {i: one.until_ms for i, one in leases.of(d).items()} for d in held} == held


def test_a_host_that_trusts_nothing_any_more_hands_no_delayed_message_out_early(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    fetch = unclaimed(ME, DeliverMessages("phone", "live", 10, 1_000, lease_ms=1_000))
    run(
        owner,
        unclaimed(ME, Connect(connection())),
        unclaimed(ME, GrantMediation()),
        unclaimed(ME, UpdateKeylist(claimed(KEY), [])),
        unclaimed(ME, Listen("edge-0")),
        unclaimed(ME, QueueEnvelopes(KEY, [b"1"], delay_ms=60_000)),
    )
    owner.forget_everything()
    (early,) = run(owner, fetch)
    assert owner.due_pushes() == []
    clock.now_ms += 60_000
    assert owner.due_pushes() == [("edge-0", Push(ME, EnvelopesWaiting()))]
    (later,) = run(owner, fetch)
    assert isinstance(early, Delivery)
    assert isinstance(later, Delivery)
    assert (len(early.messages), len(later.messages)) == (0, 1)
