"""Two owners of one shard: whatever placed them so, the log lets only the newer one write."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core.commands import (
    CheckRegistered,
    Command,
    Page,
    QueryContracts,
    QueryMessages,
    QueueMessage,
    SaveContract,
)
from actors.core.nonces import Proof
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import ContractsPage, Done, MessageAccepted, MessagesPage, Refused
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed
from eventstore.log.streams import partition_stream
from tests.log.faulty_log import FailNext, FaultyLog, StoredButFailed
from tests.log.raw_sql import run_sql
from tests.unit.actors.given import (
    SHARDS,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

ME, FRIEND = "did:x:me", "did:x:friend"
ALL = Page(0, 100)
UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
NOT_OWNER = Refused(Refusal.NOT_OWNER)
MESSAGE = QueueMessage(FRIEND, b"hi")


def seals(log: EventLog, partition: str) -> list[BatchSealed]:
    rows = log.read_stream(partition_stream(partition))
    decoded = [decode(row.topic, row.state) for row in rows]
    return [seal for seal in decoded if isinstance(seal, BatchSealed)]


def test_the_stale_owner_learns_it_from_the_log_and_stops(log: EventLog) -> None:
    stale = host(log, name="stale")
    run(
        stale,
        submission(ME, registration(ME)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
    )
    new = host(log, name="new")
    (accepted,) = run(new, submission(ME, MESSAGE, sender=FRIEND))
    assert isinstance(accepted, MessageAccepted)
    for command in (MESSAGE, QueryMessages(ALL), MESSAGE):
        sender = FRIEND if command is MESSAGE else ME
        assert run(stale, submission(ME, command, sender=sender)) == [NOT_OWNER]
    assert stale.snapshot_stats().partitions_lost >= 1
    (page,) = run(new, submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert [message.message_id for message in page.messages] == [accepted.message_id]


def test_what_the_stale_owner_lost_it_gives_up_and_the_rest_it_keeps(log: EventLog) -> None:
    stale = host(log, name="stale")
    host(log, name="new", shards=["shard-0"])
    identities = [f"did:x:{number}" for number in range(8)]
    replies = [run(stale, submission(did, registration(did)))[0] for did in identities]
    again = [run(stale, submission(did, registration(did)))[0] for did in identities]
    assert [reply == NOT_OWNER for reply in replies] == [reply == NOT_OWNER for reply in again]
    assert {type(reply) for reply in again} > {Refused}
    stats = stale.snapshot_stats()
    assert stats.partitions == ["shard-1"]
    assert (stats.partitions_lost, len(stale.ownership.fenced)) == (1, 1)
    assert set(stale.ownership.holdings) == {"shard-1"}
    before = log.position()
    stale.ownership.assign(["shard-0", "shard-1"])  # it claims what it does not own
    assert (len(stale.ownership.fenced), log.position() - before) == (0, 1)


def test_a_batch_over_a_lost_and_a_kept_partition_stores_nothing(log: EventLog) -> None:
    stale = host(log, name="stale")
    host(log, name="new", shards=["shard-0"])
    before = log.position()
    identities = [f"did:x:{number}" for number in range(8)]
    replies = run(stale, *[submission(did, registration(did)) for did in identities])
    assert replies == [NOT_OWNER] * 8
    assert log.position() == before


def _one_of_each_shard() -> list[str]:
    dids = [f"did:x:{number}" for number in range(8)]
    return [next(d for d in dids if shard_of(d, SHARDS) == f"shard-{n}") for n in range(2)]


def test_who_is_refused_by_a_stale_owner_of_another_shard_may_send_the_same_again(
    log: EventLog,
) -> None:
    stale = host(log, name="stale")
    host(log, name="new", shards=["shard-0"])
    lost, kept = _one_of_each_shard()
    query = submission(kept, QueryMessages(ALL))  # refused for want of a registration
    refused = submission(kept, None, refusal=Refusal.INVALID_SIGNATURE)
    checked = submission(lost, CheckRegistered(), sender=kept, proof=Proof.NOT_YET)
    beside = submission(lost, QueryMessages(ALL))
    assert run(stale, query, refused, checked, beside) == [NOT_OWNER] * 4
    assert run(stale, query, refused) == [
        Refused(Refusal.UNAUTHORIZED_COMMAND),
        Refused(Refusal.INVALID_SIGNATURE),
    ]
    nonce_alone = msgspec.structs.replace(checked, command=None)
    assert run(stale, nonce_alone) == [Done()]
    duplicate = [Refused(Refusal.DUPLICATE_NONCE)]
    assert [run(stale, one) for one in (query, refused, nonce_alone)] == [duplicate] * 3


def test_what_a_stale_owner_refuses_keeps_the_nonce_that_its_request_has_claimed_before(
    log: EventLog,
) -> None:
    stale = host(log, name="stale")
    host(log, name="new", shards=["shard-0"])
    lost, kept = _one_of_each_shard()
    early = submission(kept, None, nonce="n", proof=Proof.NOT_YET)
    assert run(stale, early) == [Done()]
    proven = submission(kept, QueryMessages(ALL), nonce="n", proof=Proof.HOLDS_NOW)
    beside = submission(lost, QueryMessages(ALL))
    assert run(stale, proven, beside) == [NOT_OWNER] * 2
    assert run(stale, early) == [Refused(Refusal.DUPLICATE_NONCE)]


def test_each_owner_writes_under_an_epoch_of_its_own_and_the_chain_never_breaks(
    log: EventLog,
) -> None:
    for number in range(4):
        owner = host(log, name=f"host-{number}")
        run(owner, submission(ME, None), submission(FRIEND, None))
    for partition in ("shard-0", "shard-1"):
        chain = seals(log, partition)
        epochs = [seal.epoch for seal in chain]
        assert epochs == sorted(epochs)
        assert set(epochs) == {1, 2, 3, 4}
        for older, newer in pairwise(chain):
            assert newer.previous == older.digest


def test_two_owners_that_take_turns_lose_and_fork_nothing(log: EventLog) -> None:
    """Each claims the shard back when it has lost it; every accepted message is there once."""
    first = host(log, name="first")
    run(
        first,
        submission(ME, registration(ME)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
    )
    owners = [first, host(log, name="second")]  # which has taken the shards from the first
    accepted: list[str] = []
    for turn in range(10):
        owner = owners[turn % 2]
        assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [NOT_OWNER]
        owner.ownership.assign(["shard-0", "shard-1"])
        (reply,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
        assert isinstance(reply, MessageAccepted)
        accepted.append(reply.message_id)
    (page,) = run(host(log, name="third"), submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert [message.message_id for message in page.messages] == accepted


def test_an_owner_whose_append_failed_before_it_was_replaced_does_not_come_back(
    log: EventLog,
) -> None:
    faulty = FaultyLog(log)
    stale = host(faulty, name="stale")
    (done,) = run(stale, submission(ME, registration(ME)))
    assert done != UNAVAILABLE
    faulty.plan(FailNext(1))
    assert run(stale, submission(ME, registration(ME))) == [UNAVAILABLE]
    new = host(log, name="new")
    for _ in range(2):
        assert run(stale, submission(ME, registration(ME))) == [NOT_OWNER]
    (renewed,) = run(new, submission(ME, registration(ME)))
    assert renewed != UNAVAILABLE
    assert stale.snapshot_stats().partitions_lost >= 1


def test_an_owner_that_was_replaced_after_a_failed_append_comes_back_once_it_is_assigned(
    log: EventLog,
) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    faulty.plan(FailNext(1))
    assert run(owner, submission(ME, registration(ME))) == [UNAVAILABLE]
    host(log, name="new")
    owner.ownership.assign(["shard-0", "shard-1"])
    (done,) = run(owner, submission(ME, registration(ME)))
    assert not isinstance(done, Refused)


def test_an_owner_is_not_fenced_off_by_its_own_claims_of_unknown_outcome(log: EventLog) -> None:
    faulty = FaultyLog(log)
    owner = host(faulty)
    run(owner, submission(ME, registration(ME)))
    # The append fails; the claim that follows is stored and fails, and so does the next one.
    faulty.plan(FailNext(1), StoredButFailed(1), FailNext(1), StoredButFailed(1))
    for _ in range(4):
        assert run(owner, submission(ME, registration(ME))) == [UNAVAILABLE]
    (done,) = run(owner, submission(ME, registration(ME)))
    assert done != UNAVAILABLE
    assert owner.snapshot_stats().partitions_lost == 0


@pytest.mark.parametrize("command", [SaveContract(contract("did:x:new", ME)), QueryMessages(ALL)])
def test_an_owner_whose_commits_were_lost_does_nothing_behind_the_claim_of_the_next_one(
    log: EventLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    former = host(log, name="former")
    run(former, submission(ME, registration(ME)))
    kept = log.position()
    assert run(former, submission(ME, SaveContract(contract(FRIEND, ME)))) == [Done()]
    run_sql(f"sqlite:{tmp_path}/log.db", f"DELETE FROM stored_events WHERE rowid > {kept}")
    next_one = host(log, name="next")  # claims at the version of the lost seal
    assert run(former, unclaimed(ME, command)) == [NOT_OWNER]
    (said,) = [record for record in caplog.records if "has lost" in record.getMessage()]
    assert said.__dict__["seals_lost"] == 1
    assert former.snapshot_stats().partitions_lost == 1
    assert run(next_one, submission(ME, SaveContract(contract(FRIEND, ME)))) == [Done()]
    chain = seals(log, shard_of(ME, SHARDS))
    assert all(after.previous == before.digest for before, after in pairwise(chain))
    (page,) = run(host(log, name="third"), submission(ME, QueryContracts(Page(0, 9))))
    assert isinstance(page, ContractsPage)
    assert page.total == 1


def test_what_was_stored_before_the_claim_of_the_next_owner_is_not_sent_to_it_again(
    log: EventLog,
) -> None:
    overtaken = _Overtaken(log)
    former = host(overtaken, name="former")
    run(former, submission(ME, registration(ME)))
    overtaken.is_overtaken = True
    store = submission(ME, SaveContract(contract(FRIEND, ME)))
    assert run(former, store) == [UNAVAILABLE]
    assert former.snapshot_stats().partitions_lost == 1
    (page,) = run(host(log, name="third"), submission(ME, QueryContracts(Page(0, 9))))
    assert isinstance(page, ContractsPage)
    assert page.total == 1


class _Overtaken(FaultyLog):
    """Stores a batch without an answer, and tries again when the next owner has claimed all."""

    is_overtaken = False

    def append(self, *args: Any, **more: Any) -> None:
        super().append(*args, **more)
        if self.is_overtaken:
            self.is_overtaken = False
            host(self._log, name="next")
            super().append(*args, **more)


def test_seals_that_left_for_the_archive_are_not_reported_as_lost(
    log: EventLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    former = host(log, name="former")
    run(former, submission(ME, registration(ME)))
    next_one = host(log, name="next")
    for number in range(5):
        run(next_one, submission(ME, SaveContract(contract(f"did:x:{number}", ME))))
    stream = partition_stream(shard_of(ME, SHARDS))
    newest = log.read_stream(stream)[-1].originator_version
    left = f"originator_id = '{stream.hex}' AND originator_version BETWEEN 2 AND {newest - 1}"
    run_sql(f"sqlite:{tmp_path}/log.db", f"DELETE FROM stored_events WHERE {left}")
    assert run(former, unclaimed(ME, QueryMessages(ALL))) == [NOT_OWNER]
    assert [record for record in caplog.records if "has lost" in record.getMessage()] == []
