"""An event is in the log soon after the time that it carries, or never, however slow the log is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from actors.core.commands import Page, QueryMessages, QueueMessage, SaveContract
from actors.core.limits import DECISION_S_MAX, HostLimits
from actors.core.refusals import Refusal
from actors.core.replies import MessageAccepted, MessagesPage, Refused, Reply
from actors.host.host import Host
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.events import BatchSealed
from eventstore.log.streams import identity_stream, partition_stream
from tests.log.faulty_log import FaultyLog
from tests.unit.actors.didcomm import ME as AGENT
from tests.unit.actors.given import (
    HandClock,
    contract,
    delivery,
    registration,
    run,
    submission,
    unclaimed,
)
from tests.unit.actors.test_leases import queue, take

ME, FRIEND, OTHER = "did:x:me", "did:x:friend", "did:x:other"
LATE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
SHARDS = ("shard-0", "shard-1")


class SlowLog(FaultyLog):
    """A log that takes some seconds, by the hand clock, to read a stream."""

    def __init__(self, log: EventLog, clock: HandClock) -> None:
        super().__init__(log)
        self._clock = clock
        self.slow: dict[UUID, float] = {}

    @override
    def read_stream(self, stream: UUID, **bounds: Any) -> Sequence[StoredEvent]:
        self._clock.now_ms += round(self.slow.get(stream, 0) * 1_000)
        return super().read_stream(stream, **bounds)

    @override
    def load_snapshots(self, streams: Sequence[UUID]) -> dict[UUID, Snapshot]:
        if len(streams) > 1:  # the rows of a single one are read by ``read_stream``
            self._clock.now_ms += round(sum(self.slow.get(one, 0) for one in streams) * 1_000)
        return super().load_snapshots(streams)


@pytest.fixture
def slow(log: EventLog, clock: HandClock) -> SlowLog:
    """A log in which a friend may write to me and to another one."""
    slow = SlowLog(log, clock)
    owner = host(slow, clock)
    for did in (ME, OTHER):
        run(owner, submission(did, registration(did)))
        run(owner, submission(did, SaveContract(contract(FRIEND, did))))
    return slow


def host(log: EventLog, clock: HandClock) -> Host:
    """A host of all identities, none of which is in its memory yet."""
    ids = itertools.count(1)
    made = Host(
        "host-0", log, HostLimits(),
        clock=clock,
        new_id=lambda: f"id-{next(ids)}",
        secret=b"secret",
        uptime_s=lambda: clock.now_ms / 1_000,
    )  # fmt: skip
    made.ownership.assign(SHARDS)
    return made


def write(owner: Host, clock: HandClock, *dids: str) -> list[Reply]:
    sent = [
        submission(did, QueueMessage(FRIEND, b"hello"), sender=FRIEND, timestamp_ms=clock.now_ms)
        for did in dids
    ]
    return run(owner, *sent)


def waiting(owner: Host, clock: HandClock, did: str) -> int:
    query = submission(did, QueryMessages(Page(0, 100)), timestamp_ms=clock.now_ms)
    (reply,) = run(owner, query)
    assert isinstance(reply, MessagesPage)
    return len(reply.messages)


def test_what_was_decided_for_too_long_is_not_appended_and_succeeds_once_its_state_is_read(
    slow: SlowLog, clock: HandClock
) -> None:
    owner = host(slow, clock)
    slow.slow = {identity_stream(ME): DECISION_S_MAX + 1}
    appended = len(slow.appends)
    assert write(owner, clock, ME) == [LATE]
    assert len(slow.appends) == appended
    # The log is as slow as before: what was read of it has stayed in memory.
    assert isinstance(write(owner, clock, ME)[0], MessageAccepted)
    assert waiting(owner, clock, ME) == 1


def test_a_slow_read_has_nothing_appended_that_was_decided_before_it_either(
    slow: SlowLog, clock: HandClock
) -> None:
    owner = host(slow, clock)
    assert isinstance(write(owner, clock, OTHER)[0], MessageAccepted)
    slow.slow = {identity_stream(ME): DECISION_S_MAX + 1}
    appended = len(slow.appends)
    assert write(owner, clock, OTHER, ME) == [LATE, LATE]
    assert len(slow.appends) == appended
    assert [waiting(owner, clock, did) for did in (OTHER, ME)] == [1, 0]
    assert all(isinstance(reply, MessageAccepted) for reply in write(owner, clock, OTHER, ME))
    slow.slow = {}
    assert [waiting(host(slow, clock), clock, did) for did in (OTHER, ME)] == [2, 1]


def test_the_same_commands_succeed_after_one_that_took_too_long(
    slow: SlowLog, clock: HandClock
) -> None:
    owner = host(slow, clock)
    assert isinstance(write(owner, clock, OTHER)[0], MessageAccepted)
    slow.slow = {identity_stream(ME): DECISION_S_MAX + 1}
    hello = QueueMessage(FRIEND, b"hello")
    sent = [submission(did, hello, sender=FRIEND, timestamp_ms=clock.now_ms) for did in (OTHER, ME)]
    assert run(owner, *sent) == [LATE, LATE]
    assert all(isinstance(reply, MessageAccepted) for reply in run(owner, *sent))


def test_what_was_decided_for_too_long_leases_nothing(slow: SlowLog, clock: HandClock) -> None:
    owner = host(slow, clock)
    waits = queue(owner, b"sealed")
    slow.slow = {identity_stream(ME): DECISION_S_MAX + 1}
    late = submission(ME, QueryMessages(Page(0, 100)), timestamp_ms=clock.now_ms)
    assert run(owner, unclaimed(AGENT, delivery("phone")), late) == [LATE, LATE]
    assert take(owner, delivery("laptop")) == [waits]


def test_a_slow_log_delays_commands_to_identities_that_are_not_in_memory_and_refuses_none(
    slow: SlowLog, clock: HandClock
) -> None:
    owner, dids = host(slow, clock), [f"did:x:cold-{n}" for n in range(100)]
    for did in dids:
        run(owner, submission(did, registration(did)))
        run(owner, submission(did, SaveContract(contract(FRIEND, did))))
    owner = host(slow, clock)
    slow.slow = {identity_stream(did): 0.1 for did in dids}
    hello, left, transactions = QueueMessage(FRIEND, b"hello"), dids, 0
    while left:
        at_ms = clock.now_ms
        sent = [submission(did, hello, sender=FRIEND, timestamp_ms=at_ms) for did in left]
        replies = run(owner, *sent)
        assert all(isinstance(reply, MessageAccepted) for reply in replies)
        left, transactions = left[len(replies) :], transactions + 1
    assert transactions > 1


def test_what_is_decided_in_time_is_appended(slow: SlowLog, clock: HandClock) -> None:
    owner = host(slow, clock)
    slow.slow = {identity_stream(ME): DECISION_S_MAX}
    assert isinstance(write(owner, clock, ME)[0], MessageAccepted)


def test_a_claim_carries_the_time_at_which_its_partition_was_read(
    slow: SlowLog, clock: HandClock
) -> None:
    slow.slow = {partition_stream(name): 60.0 for name in SHARDS}
    host(slow, clock)
    rows, is_stored = slow.appends[-1]
    assert is_stored
    claims = [decode(row.topic, row.state) for row in rows]
    assert [one.at_ms for one in claims if isinstance(one, BatchSealed)] == [clock.now_ms] * 2
