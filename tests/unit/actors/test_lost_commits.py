"""Commits that a fail-over has lost: no snapshot brings them back to the log's next readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.core.commands import ClaimKey, Page, QueryContracts, QueueMessage, SaveContract
from actors.core.limits import HostLimits
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import ContractsPage, Done, MessageAccepted, Refused
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Finding
from eventstore.log.streams import identity_stream
from eventstore.log.verify import verify
from tests.log.raw_sql import run_sql
from tests.unit.actors.didcomm import KEY
from tests.unit.actors.given import (
    SHARDS,
    HandClock,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

ME, FRIEND, OTHER = "did:x:me", "did:x:friend", "did:x:other"
LIMITS = HostLimits(snapshot_after_events=2, identity_idle_s=1)
CONTRACTS = QueryContracts(Page(0, 9))


def lose(tmp_path: Path, *, after: int) -> None:
    """Lose all rows behind a position, as a fail-over to a standby that lags does."""
    run_sql(f"sqlite:{tmp_path}/log.db", f"DELETE FROM stored_events WHERE rowid > {after}")


@pytest.mark.parametrize("is_passivated", [False, True])
def test_no_snapshot_is_saved_of_a_commit_that_was_lost(
    log: EventLog, tmp_path: Path, clock: HandClock, is_passivated: bool
) -> None:
    owner = host(log, clock=clock, limits=LIMITS)
    run(owner, submission(ME, registration(ME)))
    kept = log.position()
    run(owner, submission(ME, SaveContract(contract(FRIEND, ME))))
    if is_passivated:
        owner = host(log, clock=clock, limits=LIMITS, name="host-1")
        run(owner, unclaimed(ME, CONTRACTS))
        clock.now_ms += 2_000
    due = owner.run_housekeeping()
    assert [(one.stream, one.snapshot.version) for one in due] == [(identity_stream(ME), 2)]
    lose(tmp_path, after=kept)
    log.save_snapshots(due)
    assert log.load_snapshot(identity_stream(ME)) is None
    next_one = host(log, clock=clock, limits=LIMITS, name="next")
    (page,) = run(next_one, unclaimed(ME, CONTRACTS))
    assert page == ContractsPage([], 0)
    assert run(next_one, unclaimed(ME, SaveContract(contract(OTHER, ME)))) == [Done()]
    assert [row.originator_version for row in log.read_stream(identity_stream(ME))] == [1, 2]
    assert not [found for found in verify(log) if isinstance(found, Finding)]


def test_no_snapshot_of_nonces_that_were_lost_hides_those_of_the_next_owner(
    log: EventLog, tmp_path: Path, clock: HandClock
) -> None:
    owner = host(log, clock=clock)
    run(owner, submission(ME, registration(ME)))
    run(owner, submission(ME, SaveContract(contract(FRIEND, ME))))
    kept = log.position()
    partition = owner.ownership.owned.get(shard_of(FRIEND, SHARDS))
    assert partition is not None
    for _ in range(3):
        partition._seals_to_read = 1_000_000  # so that a snapshot is due
        run(owner, submission(ME, QueueMessage(FRIEND, b"lost"), sender=FRIEND))
    due = [one for one in owner.run_housekeeping() if one.stream == partition.stream]
    assert len(due) == 3
    lose(tmp_path, after=kept)
    log.save_snapshots(due)
    sent = submission(ME, QueueMessage(FRIEND, b"once"), sender=FRIEND)
    (accepted,) = run(host(log, clock=clock, name="next"), sent)
    assert isinstance(accepted, MessageAccepted)
    again = run(host(log, clock=clock, name="third"), sent)
    assert again == [Refused(Refusal.DUPLICATE_NONCE)]


def test_a_former_owner_makes_no_snapshot_of_what_the_next_one_did_to_a_key(
    log: EventLog, clock: HandClock
) -> None:
    """Its seal may be there when those rows are lost."""
    target = f"key:{KEY}"
    for _ in range(2):
        run(host(log, clock=clock), unclaimed(target, ClaimKey(ME)))
    former = host(log, clock=clock, limits=LIMITS, name="former")
    (refused,) = run(former, unclaimed(target, ClaimKey(OTHER)))
    assert isinstance(refused, Refused)
    run(host(log, clock=clock, name="next"), unclaimed(target, ClaimKey(ME)))
    clock.now_ms += 2_000
    assert former.run_housekeeping() == []
