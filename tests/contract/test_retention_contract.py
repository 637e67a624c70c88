"""What is over leaves by itself, in steps, with its reason and its content, on both stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Final

import msgspec
import pytest

from actors.core.commands import (
    ClaimedKey,
    ExpireRecords,
    GrantMediation,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    RequestContract,
    SaveContract,
    SetQueuePolicy,
    UpdateKeylist,
)
from actors.core.limits import HostLimits, IdentityLimits, RetentionPace
from actors.core.replies import BatchResult, ContractRequestsPage, ContractsPage
from actors.host.expiry import Expiry
from actors.host.host import Host
from actors.host.writer import SUBMISSIONS_DECODER
from eventstore.log.codec import decode, encode
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import Due, DueIdentity, DuePlace, EventLog, QueueDepth
from eventstore.log.events import (
    ContractExpired,
    ContractRequestsExpired,
    Event,
    MessagesRemoved,
)
from eventstore.log.faults import Finding
from eventstore.log.streams import identity_stream
from eventstore.log.verify import verify
from tests.contract.conftest import OpenLog
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, Plan, StoredButFailed
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, append, message
from tests.unit.actors.didcomm import KEY, claimed
from tests.unit.actors.given import (
    NOW_S,
    SHARDS,
    HandClock,
    connection,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)
from tests.unit.actors.test_queueing import ALL

FRIEND: Final = "did:x:friend"
PEOPLE: Final = tuple(f"did:x:{number}" for number in range(5))
LIMITS: Final = IdentityLimits(
    queue_age_s_max=100,
    contract_requests_age_s_max=200,
    expired_contracts_age_s_max=300,
    unregistered_age_s_max=0,
)
DAY_S: Final = 86_400


class Mediator:
    """A host, and the search for what is due in its log."""

    def __init__(  # noqa: PLR0913 - each is one choice of a test
        self,
        log: EventLog,
        *,
        limits: IdentityLimits = LIMITS,
        pace: RetentionPace | None = None,
        shards: Sequence[str] = ("shard-0", "shard-1"),
        name: str = "host-0",
        snapshot_after_events: int = 200,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock, self.log, self.ahead_ms = HandClock(), log, 0
        bounds = HostLimits(
            snapshot_after_events=snapshot_after_events,
            identity=limits,
            retention=pace or RetentionPace(),
        )
        self.host: Host = host(
            log,
            clock=self.clock,
            limits=bounds,
            shards=shards,
            name=name,
            ahead_ms=lambda: self.ahead_ms,
        )
        self.transactions: list[int] = []
        self.keys_over: dict[str, list[ClaimedKey]] = {}
        """What agents that ended by themselves had registered."""
        self.expiry = Expiry(
            log,
            bounds,
            shards=SHARDS,
            holdings=lambda: self.host.ownership.holdings,
            submit=self._submit,
            clock=self.clock,
            new_id=lambda: f"{name} expiry {len(self.transactions)}",
            ahead_ms=lambda: self.ahead_ms,
            on_look=on_look,
            hand_over_keys=lambda did, keys: self.keys_over.update({did: list(keys)}),
            under_way=self.host.measures.rounds,
        )

    def _submit(self, edge: str, batch: bytes, answer: Callable[[bytes], None]) -> None:
        submissions = SUBMISSIONS_DECODER.decode(batch)
        self.transactions.append(len(submissions))
        replies, pushes = self.host.execute([(edge, one) for one in submissions])
        answer(msgspec.msgpack.encode(BatchResult("", replies, [push for _, push in pushes])))

    def settle(self, *dids: str, until_s: float = NOW_S + DAY_S) -> None:
        """Each of these is registered, and has a message and a contract request of a friend."""
        for did in dids:
            contracts = SaveContract(contract(did, FRIEND, until_s))
            run(
                self.host,
                submission(did, registration(did, until_s)),
                submission(did, contracts),
                submission(did, QueueMessage(FRIEND, b"secret of " + did.encode()), sender=FRIEND),
                submission(did, RequestContract(FRIEND, "again?", "key"), sender=FRIEND),
            )

    def pass_s(self, seconds: float) -> None:
        self.clock.now_ms += round(seconds * 1000)

    def contents(self) -> int:
        return len(self.log.read_contents(after=0, until=10**9))

    def events(self, did: str) -> list[Event]:
        return [decode(row.topic, row.state) for row in self.log.read_stream(identity_stream(did))]


def is_sound(log: EventLog) -> bool:
    return not [found for found in verify(log) if isinstance(found, Finding)]


def test_what_no_one_fetches_leaves_with_its_reason_and_its_content(log: EventLog) -> None:
    mediator = Mediator(log)
    mediator.settle(*PEOPLE)
    mediator.pass_s(100)
    assert not mediator.expiry.step()
    assert mediator.transactions == []
    assert mediator.contents() == 10
    mediator.pass_s(0.001)
    assert mediator.expiry.step()
    assert mediator.contents() == 5
    assert log.figures().queue_messages == 0
    mediator.pass_s(100)
    assert mediator.expiry.step()
    assert mediator.contents() == 0
    for did in PEOPLE:
        *_, removed, expired = mediator.events(did)
        assert isinstance(removed, MessagesRemoved)
        assert isinstance(expired, ContractRequestsExpired)
        assert (removed.reason, expired.reason) == ("expired", "expired")
    assert not mediator.expiry.step()
    assert is_sound(log)


def test_a_step_takes_so_many_identities_and_so_many_records_of_each(log: EventLog) -> None:
    mediator = Mediator(log, pace=RetentionPace(identities_per_step_max=2, records_per_step_max=2))
    mediator.settle(*PEOPLE)
    one = PEOPLE[0]
    run(
        mediator.host,
        *[submission(one, QueueMessage(FRIEND, b"more"), sender=FRIEND) for _ in range(4)],
    )
    mediator.pass_s(250)
    left = [mediator.contents()]
    while mediator.expiry.step():
        left.append(mediator.contents())
    assert max(mediator.transactions) == 2
    assert max(before - after for before, after in pairwise(left)) <= 4
    assert all(
        len(event.message_ids) <= 2
        for did in PEOPLE
        for event in mediator.events(did)
        if isinstance(event, MessagesRemoved)
    )
    assert mediator.contents() == 0


def test_a_sender_and_an_owner_may_name_an_earlier_time(log: EventLog) -> None:
    mediator = Mediator(log)
    one, two = PEOPLE[:2]
    for did in (one, two):
        run(
            mediator.host,
            unclaimed(did, GrantMediation(connection(), [])),
            unclaimed(did, UpdateKeylist(claimed(KEY), [])),
        )
    run(
        mediator.host,
        unclaimed(one, QueueEnvelopes(KEY, [b"short-lived"], expires_at_s=NOW_S + 30)),
    )
    run(
        mediator.host,
        unclaimed(two, SetQueuePolicy(age_s_max=40)),
        unclaimed(two, QueueEnvelopes(KEY, [b"by the owner's rule"])),
    )
    for seconds, messages, visits in ((29.9, 2, 0), (0.1, 1, 1), (10.0, 1, 1), (0.001, 0, 2)):
        mediator.pass_s(seconds)
        mediator.expiry.step()
        assert (log.figures().queue_messages, len(mediator.transactions)) == (messages, visits)


def test_nothing_leaves_by_a_clock_that_has_just_gone_ahead(log: EventLog) -> None:
    ages = {"unregistered_age_s_max": 400, "public_events_age_s_max": 50}
    limits = msgspec.structs.replace(LIMITS, idle_agents_age_s_max=3_600, **ages)
    mediator = Mediator(log, limits=limits)
    one, two, *_, agent = PEOPLE
    mediator.settle(one)
    mediator.settle(two, until_s=NOW_S + 60)
    public = PublishPublicEvent("channel", "event", [], 1, "signature", signature_valid=True)
    run(
        mediator.host,
        submission(one, public),
        unclaimed(agent, GrantMediation(connection(), [])),
        unclaimed(agent, UpdateKeylist(claimed(KEY), [])),
        unclaimed(agent, QueueEnvelopes(KEY, [b"short-lived"], expires_at_s=NOW_S + 30)),
    )
    rows, ahead_s = log.position(), 3 * 365 * DAY_S
    mediator.pass_s(ahead_s)
    mediator.ahead_ms = ahead_s * 1000
    assert not mediator.expiry.step()
    assert mediator.transactions == []
    run(mediator.host, *[unclaimed(did, ExpireRecords(100)) for did in (one, two, agent)])
    run(mediator.host, unclaimed(agent, QueryQueue()))
    assert log.position() == rows
    mediator.ahead_ms = 0
    while mediator.expiry.step():
        pass
    gone = {getattr(event, "reason", "") for did in PEOPLE for event in mediator.events(did)}
    assert gone == {"", "expired", "unregistered", "idle"}
    assert log.figures().queue_messages == 0
    assert is_sound(log)


def test_a_contract_in_force_stays_when_another_record_leaves(log: EventLog) -> None:
    mediator = Mediator(log)
    did = PEOPLE[0]
    mediator.settle(did)
    run(mediator.host, submission(did, SaveContract(contract(did, "did:x:other", NOW_S + 110))))
    run(mediator.host, submission(did, SaveContract(contract(did, "did:x:over", NOW_S + 1))))
    for seconds in (101, 100):
        mediator.pass_s(seconds)
        assert mediator.expiry.step()
    assert ContractExpired not in map(type, mediator.events(did))


def test_what_has_no_age_is_not_even_looked_at(log: EventLog) -> None:
    ages = [name for name in IdentityLimits.__struct_fields__ if name.endswith("age_s_max")]
    mediator = Mediator(log, limits=IdentityLimits(**dict.fromkeys(ages, 0)))
    did = PEOPLE[0]
    mediator.settle(did, until_s=NOW_S + 10)
    public = PublishPublicEvent("channel", "event", [], 1, "signature", signature_valid=True)
    run(
        mediator.host,
        submission(did, public),
        unclaimed(PEOPLE[1], GrantMediation(connection(), [])),
    )
    mediator.pass_s(1_000 * DAY_S)
    assert not mediator.expiry.step()
    assert mediator.transactions == []


def test_a_contract_leaves_some_time_after_it_has_expired(log: EventLog) -> None:
    mediator = Mediator(log)
    did = PEOPLE[0]
    run(
        mediator.host,
        submission(did, registration(did, NOW_S + DAY_S)),
        submission(did, SaveContract(contract(did, FRIEND, NOW_S + 10.5))),
        submission(did, SaveContract(contract(did, "did:x:other", NOW_S + DAY_S))),
    )
    mediator.pass_s(310)
    assert not mediator.expiry.step()
    mediator.pass_s(0.5)
    assert mediator.expiry.step()
    *_, expired = mediator.events(did)
    assert isinstance(expired, ContractExpired)
    (page,) = run(
        mediator.host,
        submission(did, QueryContracts(ALL.page), timestamp_ms=mediator.clock.now_ms),
    )
    assert isinstance(page, ContractsPage)
    assert page.total == 1
    assert not mediator.expiry.step()


def test_who_is_not_registered_any_more_loses_what_waits_and_may_come_back_before(
    log: EventLog,
) -> None:
    limits = IdentityLimits(unregistered_age_s_max=500)
    mediator = Mediator(log, limits=limits)
    back, gone = PEOPLE[:2]
    mediator.settle(back, gone, until_s=NOW_S + 10)
    mediator.pass_s(400)
    run(
        mediator.host,
        submission(back, registration(back, NOW_S + DAY_S), timestamp_ms=mediator.clock.now_ms),
    )
    mediator.pass_s(110)
    assert mediator.expiry.step()
    assert mediator.contents() == 2
    reasons = {getattr(event, "reason", "") for event in mediator.events(gone)}
    assert reasons == {"", "unregistered"}
    assert [type(event) for event in mediator.events(gone)[-3:]] == [
        MessagesRemoved,
        ContractRequestsExpired,
        ContractExpired,
    ]
    (page,) = run(
        mediator.host,
        submission(back, QueryContractRequests(ALL.page), timestamp_ms=mediator.clock.now_ms),
    )
    assert isinstance(page, ContractRequestsPage)
    assert page.total == 1
    assert not mediator.expiry.step()


def test_what_others_own_keeps_nothing_from_being_reached(
    log: EventLog, open_another: OpenLog
) -> None:
    pace = RetentionPace(identities_per_step_max=1)
    both = Mediator(log, pace=pace)
    both.settle(*PEOPLE)
    halves = [
        Mediator(open_another(), pace=pace, shards=[shard], name=shard)
        for shard in ("shard-1", "shard-0")  # the first one owns what is due last
    ]
    for half in halves:
        half.pass_s(150)
        while half.expiry.step():
            pass
    assert log.figures().queue_messages == 0
    assert is_sound(log)


@pytest.mark.parametrize("fault", [FailNext(), StoredButFailed(), ConflictNext()])
def test_a_step_that_fails_is_made_good_by_the_next(log: EventLog, fault: Plan) -> None:
    faulty = FaultyLog(log)
    mediator = Mediator(faulty)
    mediator.settle(PEOPLE[0])
    mediator.pass_s(250)
    faulty.plan(fault)
    for _ in range(3):
        mediator.expiry.step()
    assert mediator.contents() == 0
    removals = [e for e in mediator.events(PEOPLE[0]) if isinstance(e, MessagesRemoved)]
    assert len(removals) == 1
    assert is_sound(log)


@pytest.mark.parametrize("fault", [LogUnavailable("away"), TimeoutError(), ZeroDivisionError()])
def test_a_search_that_fails_in_any_way_is_not_the_last(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    mediator = Mediator(log, pace=RetentionPace(look_s=0.001))
    looks: SimpleQueue[None] = SimpleQueue()

    def fail() -> bool:
        looks.put(None)
        raise fault

    monkeypatch.setattr(mediator.expiry, "step", fail)
    mediator.expiry.start()
    for _ in range(2):
        looks.get(timeout=10)
    mediator.expiry.stop()


def test_what_is_due_leaves_although_what_is_called_beside_the_search_fails(log: EventLog) -> None:
    looks: SimpleQueue[None] = SimpleQueue()

    def fail() -> None:
        looks.put(None)
        raise ZeroDivisionError

    mediator = Mediator(log, pace=RetentionPace(look_s=0.001), on_look=fail)
    mediator.settle(*PEOPLE)
    mediator.pass_s(250)
    mediator.expiry.start()
    for _ in range(2):
        looks.get(timeout=10)
    mediator.expiry.stop()
    assert mediator.contents() == 0


def test_a_search_goes_by_time_and_from_a_place_on(log: EventLog) -> None:
    depths = [
        QueueDepth(OTHER, 1, 10, 5, "did:x:other", requests_since_ms=7),
        QueueDepth(OWNER, 1, 10, 5, "did:x:owner", expires_at_ms=2**45),
        QueueDepth(identity_stream("did:x:none"), 0, 0, None, "did:x:none"),
    ]
    log.append([encode(OWNER, 1, message())], [message()], depths)
    first, second = log.due_identities(Due.MESSAGES, until_ms=5, after=None, limit=9)
    assert {first.did, second.did} == {"did:x:other", "did:x:owner"}
    assert log.due_identities(Due.MESSAGES, until_ms=5, after=None, limit=1) == [first]
    assert log.due_identities(Due.MESSAGES, until_ms=5, after=first.place, limit=9) == [second]
    assert log.due_identities(Due.MESSAGES, until_ms=5, after=second.place, limit=9) == []
    assert log.due_identities(Due.MESSAGES, until_ms=4, after=None, limit=9) == []
    (waiting,) = log.due_identities(Due.REQUESTS, until_ms=7, after=None, limit=9)
    assert waiting == DueIdentity("did:x:other", DuePlace(7, OTHER.bytes))
    (expiring,) = log.due_identities(Due.EXPIRING, until_ms=2**45, after=None, limit=9)
    assert expiring.did == "did:x:owner"


def test_the_sums_follow_every_change_of_a_queue(log: EventLog, log_url: str) -> None:
    append(log, OWNER, message())
    log.append(
        [encode(OWNER, 2, message())],
        [message()],
        [QueueDepth(OWNER, 1, 10, 5, "did:x:a"), QueueDepth(OTHER, 2, 20, 4, "did:x:b")],
    )
    run_sql(log_url, "UPDATE queue_depths SET messages = messages + 5, bytes = bytes * 2")
    figures = log.figures()
    assert (figures.identities, figures.queue_messages, figures.queue_bytes) == (2, 13, 60)
    run_sql(log_url, "DELETE FROM queue_depths WHERE messages = 6")
    figures = log.figures()
    assert (figures.identities, figures.queue_messages, figures.queue_bytes) == (1, 7, 40)
    assert figures.queue_oldest_at_ms == 4
