"""What the log says about an append decides what is answered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from eventsourcing.persistence import StoredEvent

from actors.core.commands import Page, QueryMessages, QueueMessage, SaveContract
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import NOT_OWNER, MessageAccepted, MessagesPage, Refused, Registered, Reply
from eventstore.log.errors import LogError, LogUnavailable
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream, partition_stream
from tests.log.faulty_log import (
    ConflictNext,
    FailNext,
    FaultyLog,
    Plan,
    StoredButFailed,
    StoreNext,
)
from tests.log.raw_sql import run_sql
from tests.unit.actors.given import (
    NOW_S,
    SHARDS,
    contract,
    host,
    pushed,
    registration,
    run,
    submission,
    unclaimed,
)

ME, FRIEND, OTHER = "did:x:me", "did:x:friend", "did:x:other"
ELSEWHERE = next(d for d in (FRIEND, OTHER) if shard_of(d, SHARDS) != shard_of(ME, SHARDS))
ALL = Page(0, 100)
UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
MESSAGE = QueueMessage(FRIEND, b"hi")
FAULTS: list[Plan] = [FailNext(), StoredButFailed(), ConflictNext()]


@pytest.fixture
def faulty(log: EventLog) -> FaultyLog:
    return FaultyLog(log)


def prepared(log: EventLog) -> list[Reply]:
    """Me and my friend, who may write to me."""
    return run(
        host(log),
        submission(ME, registration(ME)),
        submission(FRIEND, registration(FRIEND)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_no_command_is_answered_done_when_the_log_did_not_say_so(
    faulty: FaultyLog, fault: Plan
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    faulty.plan(fault)
    replies, pushes = owner.execute(
        [
            ("edge-0", submission(ME, MESSAGE, sender=FRIEND)),
            ("edge-1", submission(OTHER, registration(OTHER))),
            ("edge-0", submission(ME, QueryMessages(ALL))),
        ]
    )
    assert replies == [UNAVAILABLE] * 3
    assert pushes == []
    assert owner.snapshot_stats().append_failures == 1


def test_an_owner_is_shown_as_one_after_an_outage_though_no_command_has_come(
    faulty: FaultyLog,
) -> None:
    owner = host(faulty)
    owned = owner.snapshot_stats().partitions
    faulty.plan(FailNext())
    assert run(owner, submission(ME, registration(ME))) == [UNAVAILABLE]
    assert owner.snapshot_stats().partitions == owned


def test_the_log_line_of_a_failed_append_names_the_requests_in_it(
    faulty: FaultyLog, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    faulty.plan(FAULTS[0])
    request = [
        msgspec.structs.replace(submission(ME, MESSAGE, sender=FRIEND), request_id=request_id)
        for request_id in ("one", "two", "", "one")
    ]
    owner.execute([("edge-0", one) for one in request])
    (entry,) = [record for record in caplog.records if "outcome unknown" in record.message]
    assert vars(entry)["request_ids"] == ["one", "two"]


def test_an_outage_is_one_line_at_its_beginning_and_one_at_its_end_with_the_number_of_failures(
    faulty: FaultyLog, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    with caplog.at_level(logging.INFO):
        for failures in (3, 1):
            faulty.plan(FailNext(failures))
            for _ in range(failures):
                assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
            for _ in range(2):
                (accepted,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
                assert isinstance(accepted, MessageAccepted)
            began, ended = caplog.records
            assert (began.levelname, ended.levelname) == ("ERROR", "WARNING")
            assert (ended.message, vars(ended)["failures"]) == (
                "the log works again",
                failures,
            )
            caplog.clear()


def test_a_conflict_that_is_no_other_owners_is_an_outage_with_its_reason(
    log: EventLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(log)
    owner, url = host(log, name="host-1"), f"sqlite:{tmp_path}/log.db"
    for position in range(log.position() + 1, log.position() + 9):
        run_sql(url, f"INSERT INTO contents VALUES ({position}, x'00')")
    for _ in range(2):
        assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
        assert owner.outage.is_on
    run_sql(url, "DELETE FROM contents WHERE content = x'00'")
    (accepted,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert isinstance(accepted, MessageAccepted)
    why = "AppendConflict: UNIQUE constraint failed: contents.position"
    began = f"append conflicts, and with no other owner: {why}"
    assert caplog.messages == [began, "the log works again"]


def test_a_conflict_of_a_claim_that_is_no_other_owners_is_an_outage_with_its_reason(
    faulty: FaultyLog, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    owner.forget_everything()
    faulty.plan(ConflictNext(2))
    for _ in range(2):
        assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
        assert owner.outage.is_on
    (accepted,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert isinstance(accepted, MessageAccepted)
    began = "cannot serve an identity: AppendConflict: planned: another writer was first"
    assert caplog.messages == [began, "the log works again"]


def test_a_claim_that_another_owner_was_faster_with_is_no_outage(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken = _Overtaken(log)
    prepared(overtaken)
    owner = host(overtaken, name="host-1")
    owner.forget_everything()
    overtaken.is_racing = True
    assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [NOT_OWNER]
    assert not owner.outage.is_on
    assert caplog.messages == ["partition shard-0 has another owner: this host gave it up"]


class _Overtaken(FaultyLog):
    """Another host claims all shards before the next append."""

    is_racing = False

    def append(self, *args: Any, **more: Any) -> None:
        if self.is_racing:
            self.is_racing = False
            host(self._log, name="host-2")
        super().append(*args, **more)


def test_a_conflict_that_cannot_be_resolved_is_an_outage_with_its_reason(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = _Unreachable(log)
    prepared(unreachable)
    owner = host(unreachable, name="host-1")
    run(owner, submission(ME, MESSAGE, sender=FRIEND))
    host(log, name="host-2")
    unreachable.ends_at_append = True
    assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
    assert owner.outage.is_on
    assert caplog.messages == ["cannot read the log: LogUnavailable: planned"]


def test_after_a_conflict_that_could_not_be_resolved_the_log_alone_says_what_is(
    log: EventLog,
) -> None:
    unreachable = _Unreachable(log)
    prepared(unreachable)
    owner = host(unreachable, name="host-1")
    unreachable.plan(ConflictNext())
    unreachable.ends_at_append = True
    assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
    unreachable.ends_at_append = unreachable.is_over = False
    assert run(owner, submission(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]


def test_an_outage_ends_with_the_first_command_that_shows_it_whichever_it_is(
    faulty: FaultyLog,
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    storing = submission(ME, SaveContract(contract(OTHER, ME)))
    mine, others = (unclaimed(did, QueryMessages(ALL)) for did in (ME, ELSEWHERE))
    faulty.plan(FailNext(2))
    for command in (storing, mine):
        assert run(owner, command) == [UNAVAILABLE]
        # Another shard can be read all the time.
        assert run(owner, others) != [UNAVAILABLE]
        assert owner.outage.is_on
    run(owner, mine)
    assert not owner.outage.is_on


def test_an_outage_ends_with_a_claim_although_the_command_that_needed_it_is_refused(
    faulty: FaultyLog,
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    once = submission(ME, MESSAGE, sender=FRIEND, nonce="once")
    run(owner, once)
    faulty.plan(FailNext())
    run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert owner.outage.is_on
    assert run(owner, once) == [Refused(Refusal.DUPLICATE_NONCE)]
    assert not owner.outage.is_on


def test_an_outage_ends_with_a_query_though_the_log_was_away_after_the_last_claim(
    log: EventLog,
) -> None:
    unreachable = _Unreachable(log)
    prepared(unreachable)
    owner = host(unreachable, name="host-1")
    unreachable.plan(FailNext())
    assert run(owner, submission(ME, MESSAGE, sender=FRIEND)) == [UNAVAILABLE]
    unreachable.ends_at_append = True
    assert run(owner, unclaimed(ME, QueryMessages(ALL))) == [UNAVAILABLE]
    unreachable.ends_at_append = unreachable.is_over = False
    assert run(owner, unclaimed(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]
    assert not owner.outage.is_on


def test_an_outage_goes_on_if_one_shard_is_claimed_before_another_cannot_be(
    faulty: FaultyLog,
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    storing = [submission(did, SaveContract(contract(OTHER, did))) for did in (ME, ELSEWHERE)]
    reading = [unclaimed(did, QueryMessages(ALL)) for did in (ME, ELSEWHERE)]
    faulty.plan(FailNext(), StoreNext(), FailNext())
    assert run(owner, *storing) == [UNAVAILABLE] * 2
    assert run(owner, *reading)[1:] == [UNAVAILABLE]
    assert owner.outage.is_on
    run(owner, *reading)
    assert not owner.outage.is_on


def test_an_outage_ends_with_shards_that_a_host_adopts(faulty: FaultyLog) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    faulty.plan(FailNext())
    run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert owner.outage.is_on
    owner.moves.adopt(["shard-0"], None)
    assert not owner.outage.is_on


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_after_a_failure_the_log_alone_says_what_is(faulty: FaultyLog, fault: Plan) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    faulty.plan(fault)
    run(owner, submission(ME, MESSAGE, sender=FRIEND))
    stored = isinstance(fault, StoredButFailed)
    (page,) = run(owner, submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert page.total == len(page.messages) == int(stored)
    (accepted,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert isinstance(accepted, MessageAccepted)
    (page,) = run(owner, submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert page.total == 1 + stored


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_nonce_is_used_up_exactly_if_the_log_has_it(faulty: FaultyLog, fault: Plan) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    message = submission(ME, MESSAGE, sender=FRIEND, nonce="n")
    without_effect = submission(OTHER, QueryMessages(ALL))
    faulty.plan(fault)
    assert run(owner, message, without_effect) == [UNAVAILABLE] * 2
    reply, refused = run(owner, message, without_effect)
    assert refused == Refused(Refusal.UNAUTHORIZED_COMMAND)
    if isinstance(fault, StoredButFailed):
        assert reply == Refused(Refusal.DUPLICATE_NONCE)
    else:
        assert isinstance(reply, MessageAccepted)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("after", range(4))
def test_streams_have_no_gap_and_no_fork_after_any_failure(
    faulty: FaultyLog, fault: Plan, after: int
) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    for number in range(6):
        if number == after:
            faulty.plan(fault)
        run(owner, submission(ME, MESSAGE, sender=FRIEND))
    for stream in (identity_stream(ME), partition_stream("shard-0"), partition_stream("shard-1")):
        versions = [row.originator_version for row in faulty.read_stream(stream)]
        assert versions == list(range(1, len(versions) + 1))
    (page,) = run(host(faulty, name="host-2"), submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert page.total == (6 if isinstance(fault, StoredButFailed) else 5)


def test_a_conflict_with_ourselves_is_success(log: EventLog) -> None:
    """PostgreSQL appends are retried inside the library: the second try meets the first."""
    stuttering = _Stuttering(log)
    prepared(log)
    owner = host(stuttering, name="host-1")
    stuttering.stutters = True
    (accepted,) = run(owner, submission(ME, MESSAGE, sender=FRIEND))
    assert isinstance(accepted, MessageAccepted)
    stuttering.stutters = False
    (page,) = run(owner, submission(ME, QueryMessages(ALL)))
    assert isinstance(page, MessagesPage)
    assert [message.message_id for message in page.messages] == [accepted.message_id]


class _Stuttering(FaultyLog):
    """Stores a batch, and then tries once more to store it."""

    stutters = False

    def append(self, *args: object, **more: object) -> None:
        super().append(*args, **more)  # type: ignore[arg-type] # passed on as they came
        if self.stutters:
            super().append(*args, **more)  # type: ignore[arg-type] # passed on as they came


def test_a_claim_that_fails_is_tried_again_by_the_next_command(faulty: FaultyLog) -> None:
    prepared(faulty)
    faulty.plan(FailNext())
    with pytest.raises(LogError):
        host(faulty, name="host-1")
    owner = host(faulty, name="host-1", shards=[])
    faulty.plan(StoredButFailed(), ConflictNext())
    for _ in range(2):
        with pytest.raises(LogError):
            owner.ownership.assign(["shard-0", "shard-1"])
    assert dict(owner.ownership.holdings) == {"shard-0": "", "shard-1": ""}
    assert run(owner, submission(ME, QueryMessages(ALL))) == [MessagesPage([], 0)]
    assert owner.ownership.holdings[shard_of(ME, SHARDS)]


def test_a_failed_first_command_leaves_no_identity_behind(faulty: FaultyLog) -> None:
    owner = host(faulty)
    faulty.plan(FailNext())
    assert run(owner, submission(ME, registration(ME))) == [UNAVAILABLE]
    (reply,) = run(owner, submission(ME, QueryMessages(ALL)))
    assert reply == Refused(Refusal.UNAUTHORIZED_COMMAND)
    assert run(owner, submission(ME, registration(ME))) == [Registered(NOW_S + 60)]


def test_an_outage_costs_a_transaction_no_more_questions_than_a_command(log: EventLog) -> None:
    unreachable = _Unreachable(log)
    owner = host(unreachable)
    unreachable.is_over = True
    commands = [submission(f"did:x:{number}", QueryMessages(ALL)) for number in range(8)]
    assert run(owner, *commands) == [UNAVAILABLE] * 8
    # Identities are read ahead together, then the first one, and then who owns the partition.
    assert unreachable.questions == ["read_streams", "read_stream", "read_stream"]


def test_an_outage_in_which_nothing_was_to_be_stored_ends_when_the_log_is_read(
    log: EventLog,
) -> None:
    unreachable = _Unreachable(log)
    prepared(unreachable)
    owner = host(unreachable, name="host-1")
    unreachable.is_over = True
    assert run(owner, unclaimed(ME, QueryMessages(ALL))) == [UNAVAILABLE]
    assert owner.outage.is_on
    unreachable.is_over = False
    run(owner, unclaimed(ME, QueryMessages(ALL)))
    assert not owner.outage.is_on


class _Unreachable(FaultyLog):
    is_over = ends_at_append = False

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.questions: list[str] = []

    def append(self, *args: Any, **more: Any) -> None:
        self.is_over |= self.ends_at_append
        super().append(*args, **more)

    def read_stream(self, *args: Any, **more: Any) -> Sequence[StoredEvent]:
        self._ask("read_stream")
        return super().read_stream(*args, **more)

    def read_streams(self, *args: Any, **more: Any) -> dict[UUID, list[StoredEvent]]:
        self._ask("read_streams")
        return super().read_streams(*args, **more)

    def _ask(self, what: str) -> None:
        if self.is_over:
            self.questions.append(what)
            raise LogUnavailable("planned")


def test_a_failure_pushes_nothing_and_the_sessions_stay(faulty: FaultyLog) -> None:
    prepared(faulty)
    owner = host(faulty, name="host-1")
    owner.registry.sessions.open(ME, "edge-0")
    faulty.plan(FailNext())
    assert pushed(owner, submission(ME, MESSAGE, sender=FRIEND)) == []
    assert len(pushed(owner, submission(ME, MESSAGE, sender=FRIEND))) == 1


def test_what_has_no_effect_may_be_sent_again_if_it_was_not_proven_who_owns_its_partition(
    log: EventLog,
) -> None:
    class Away(FaultyLog):
        away: UUID | None = None

        def read_stream(self, stream: UUID, **bounds: Any) -> Sequence[StoredEvent]:
            if stream == self.away:
                raise LogUnavailable("planned")
            return super().read_stream(stream, **bounds)

    faulty, query = Away(log), submission(ME, QueryMessages(ALL))
    owner = host(faulty)
    faulty.away = partition_stream(shard_of(ME, SHARDS))
    assert run(owner, query) == [UNAVAILABLE]
    faulty.away = None
    assert run(owner, query) == [Refused(Refusal.UNAUTHORIZED_COMMAND)]
    assert run(owner, query) == [Refused(Refusal.DUPLICATE_NONCE)]
