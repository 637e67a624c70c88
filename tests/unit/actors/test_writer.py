"""Group commit: what waits goes together, every batch is answered, and nothing ends the thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any

import msgspec
import pytest

from actors.core.commands import (
    Connect,
    Listen,
    OpenSession,
    Page,
    QueryMessages,
    QueueEnvelopes,
    QueueMessage,
    SaveContract,
)
from actors.core.cost import COSTLY
from actors.core.limits import HostLimits
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Done, EnvelopesWaiting, Push, Refused, Registered
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.state_cache import LOADS_PER_CACHE
from actors.host.writer import UNANSWERED_BYTES_MAX, Writer
from eventstore.log.event_log import DueSnapshot, EventLog
from eventstore.log.streams import identity_stream
from tests.log.faulty_log import FaultyLog
from tests.unit.actors.given import (
    EDGE,
    NOW_S,
    HandClock,
    connection,
    contract,
    delivery,
    host,
    registration,
    submission,
    unclaimed,
)

ME, FRIEND = "did:x:me", "did:x:friend"
WAIT_S = 10
LONGER_THAN_A_TEST_S = 600.0


class Running:
    """A writer that runs, and its answers."""

    def __init__(
        self,
        owner: Host,
        log: EventLog,
        work_max: float = 100,
        commit_delay_s_max: float = 0.0,
        costly_max: float = 300,
        unanswered_bytes_max: int = UNANSWERED_BYTES_MAX,
    ) -> None:
        self.pushed_out: list[tuple[str, list[Push]]] = []
        self.writer = Writer(
            owner,
            log,
            incarnation="first",
            push_out=lambda edge, pushes: self.pushed_out.append((edge, pushes)),
            limits=HostLimits(
                transaction_work_max=work_max,
                costly_work_max=costly_max,
                commit_delay_s_max=commit_delay_s_max,
            ),
            unanswered_bytes_max=unanswered_bytes_max,
        )

    def submit(self, *items: Submission, edge: str = "edge-0") -> Future[bytes]:
        answered: Future[bytes] = Future()
        self.writer.submit(edge, msgspec.msgpack.encode(list(items)), answered.set_result)
        return answered

    def ask(self, *items: Submission, edge: str = "edge-0") -> BatchResult:
        return result(self.submit(*items, edge=edge))


def result(answered: Future[bytes]) -> BatchResult:
    return msgspec.msgpack.decode(answered.result(WAIT_S), type=BatchResult)


@pytest.fixture
def owner(log: EventLog) -> Host:
    return host(log)


def test_batches_that_wait_go_into_one_transaction(log: EventLog, owner: Host) -> None:
    running = Running(owner, log)
    before = log.position()
    answers = [
        running.submit(submission(did, registration(did)), edge=f"edge-{number}")
        for number, did in enumerate((ME, FRIEND, ME))
    ]
    running.writer.start()
    results = [result(answered) for answered in answers]
    running.writer.stop()
    assert [r.replies for r in results] == [[Registered(NOW_S + 60)]] * 3
    assert owner.snapshot_stats().commits == 1
    assert log.position() > before


def test_a_transaction_takes_no_more_work_than_its_bound(log: EventLog, owner: Host) -> None:
    running = Running(owner, log, work_max=2)
    answers = [running.submit(submission(ME, registration(ME))) for _ in range(5)]
    running.writer.start()
    assert len([result(answered) for answered in answers]) == 5
    running.writer.stop()
    assert owner.snapshot_stats().commits == 3


def test_what_a_transaction_may_not_load_runs_in_the_next_ones(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = host(log)
    dids = [f"did:x:{number}" for number in range(6)]
    for did in dids:
        first.execute([(EDGE, submission(did, registration(did)))])
    owner = host(log, limits=HostLimits(active_bytes_max=LOADS_PER_CACHE))
    in_memory: list[int] = []
    execute = owner.execute

    def noted(items: Sequence[tuple[str, Submission]]) -> Any:
        in_memory.append(len(owner.cache))
        return execute(items)

    monkeypatch.setattr(owner, "execute", noted)
    running = Running(owner, log)
    running.writer.start()
    (*_, late), (last,) = (
        running.ask(*[submission(did, registration(did, NOW_S + 90)) for did in some]).replies
        for some in (dids[:5], dids[5:])
    )
    running.writer.stop()
    assert (late, last) == (Registered(NOW_S + 90), Registered(NOW_S + 90))
    stats = owner.snapshot_stats()
    assert (stats.commits, stats.commands, stats.activations) == (6, 6, 6)
    assert in_memory == [0] * 6, "what one has loaded leaves before the next one"


def test_one_client_alone_never_waits_for_others(log: EventLog, owner: Host) -> None:
    running = Running(owner, log, commit_delay_s_max=LONGER_THAN_A_TEST_S)
    running.writer.start()
    for number in range(3):
        running.ask(submission(ME, registration(ME)))
        assert owner.snapshot_stats().commits == number + 1
    running.writer.stop()


def test_each_edge_gets_its_own_pushes_and_the_rest_is_sent_out(log: EventLog, owner: Host) -> None:
    running = Running(owner, log)
    running.writer.start()
    running.ask(
        submission(ME, registration(ME)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
        unclaimed(ME, OpenSession("edge-0")),
        unclaimed(ME, OpenSession("edge-1")),
    )
    answer = running.ask(submission(ME, QueueMessage(FRIEND, b"hi"), sender=FRIEND))
    running.writer.stop()
    assert [push.did for push in answer.pushes] == [ME]
    assert [(edge, [push.did for push in pushes]) for edge, pushes in running.pushed_out] == [
        ("edge-1", [ME])
    ]


def test_the_end_of_a_lease_is_pushed_without_a_command(log: EventLog) -> None:
    clock = HandClock()
    owner = host(log, clock=clock)
    running = Running(owner, log)
    running.writer.start()
    running.ask(
        unclaimed(ME, Connect(connection())),
        unclaimed(ME, QueueEnvelopes("", [b"sealed"])),
        unclaimed(ME, Listen("edge-1")),
        unclaimed(ME, delivery(lease_ms=1_000)),
    )
    clock.now_ms += 1_000
    running.writer.call(lambda: None)
    running.writer.stop()
    assert running.pushed_out[-1] == ("edge-1", [Push(ME, EnvelopesWaiting())])


def test_a_defect_is_answered_unknown_and_the_thread_goes_on(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    broken = _Broken(log)
    owner = host(broken)
    running = Running(owner, broken)
    running.writer.start()
    assert running.ask(submission(ME, registration(ME))).replies == [Registered(NOW_S + 60)]
    broken.is_broken = True
    replies = running.ask(submission(ME, registration(ME, NOW_S + 90))).replies
    assert replies == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)]
    broken.is_broken = False
    (reply,) = running.ask(submission(ME, registration(ME, NOW_S + 70))).replies
    running.writer.stop()
    assert reply == Registered(NOW_S + 70)
    stored = log.read_stream(identity_stream(ME))
    assert [row.originator_version for row in stored] == [1, 2]
    assert any(record.exc_info for record in caplog.records)


class _Broken(FaultyLog):
    """Fails in a way that no log should."""

    is_broken = False

    def append(self, *args: object, **more: object) -> None:
        if self.is_broken:
            raise ZeroDivisionError
        super().append(*args, **more)  # type: ignore[arg-type] # passed on as they came


def test_a_defect_in_a_save_is_logged_and_later_snapshots_are_saved(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    owner = host(log, limits=HostLimits(snapshot_after_events=1))
    running = Running(owner, _BrokenAtFirstSave(log))
    running.writer.start()
    for did in (ME, FRIEND):
        running.ask(submission(did, registration(did)))
    running.writer.stop()
    saved = log.load_snapshots([identity_stream(did) for did in (ME, FRIEND)])
    assert list(saved) == [identity_stream(FRIEND)]
    assert [record.message for record in caplog.records if record.exc_info] == [
        "could not save snapshots"
    ]


class _BrokenAtFirstSave(FaultyLog):
    """Fails to save snapshots once, in a way that no log should."""

    has_failed = False

    def save_snapshots(self, due: Sequence[DueSnapshot]) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        super().save_snapshots(due)


def test_stopping_answers_what_was_taken(log: EventLog, owner: Host) -> None:
    running = Running(owner, log)
    answers = [running.submit(submission(ME, QueryMessages(Page(0, 1)))) for _ in range(3)]
    running.writer.start()
    running.writer.stop()
    assert all(answered.done() for answered in answers)


def test_while_an_append_hangs_each_edge_has_a_bound_and_what_is_beyond_it_is_refused_at_once(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log, unanswered_bytes_max=10_000)

    def one() -> Submission:
        return submission(ME, registration(ME))

    answers = [running.submit(one()) for _ in range(50)]  # no transaction begins yet
    waiting = [answered for answered in answers if not answered.done()]
    assert 1 < len(waiting) < 10
    beyond = [result(answered).replies for answered in answers if answered.done()]
    assert beyond == [[Refused(Refusal.TEMPORARILY_UNAVAILABLE)]] * (50 - len(waiting))
    waiting.append(running.submit(one(), edge="edge-1"))
    assert not waiting[-1].done()
    running.writer.start()
    done = [[Registered(NOW_S + 60)]]
    assert [result(answered).replies for answered in waiting] == done * len(waiting)
    assert [running.ask(one()).replies for _ in range(50)] == done * 50
    running.writer.stop()


def test_a_batch_of_any_size_is_taken_if_its_edge_waits_for_no_other(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log, unanswered_bytes_max=1)
    running.writer.start()
    assert [running.ask(submission(ME, registration(ME))).replies for _ in range(3)] == [
        [Registered(NOW_S + 60)]
    ] * 3
    running.writer.stop()


def test_work_on_the_host_runs_on_its_own_thread_between_batches(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log)
    ran_on: Future[str] = Future()
    running.writer.call(lambda: ran_on.set_result(threading.current_thread().name))
    running.writer.start()
    assert ran_on.result(WAIT_S) == "writer"
    running.writer.stop()


def costing(cost: float, source: bytes = b"", payload: bytes = b"hi") -> Submission:
    """A message to me that is said to be so much work."""
    item = submission(ME, QueueMessage(FRIEND, payload), sender=FRIEND)
    return msgspec.structs.replace(item, cost=cost, source=source)


def transactions_of(running: Running, owner: Host) -> list[list[float]]:
    """What each transaction of this writer costs, from now on."""
    taken: list[list[float]] = []
    execute = owner.execute

    def watched(items: Sequence[tuple[str, Submission]]) -> Any:
        taken.append([item.cost for _, item in items])
        return execute(items)

    owner.execute = watched  # type: ignore[method-assign]
    return taken


def test_what_is_cheap_is_never_in_a_transaction_with_what_is_costly(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log)
    taken = transactions_of(running, owner)
    answers = [running.submit(costing(cost, cost.hex().encode())) for cost in (500.0, 1.0, 300.0)]
    answers.append(running.submit(costing(2.0)))
    running.writer.start()
    for answered in answers:
        result(answered)
    running.writer.stop()
    assert taken == [[1.0, 2.0], [500.0], [300.0]]


def test_costly_commands_of_one_transaction_have_a_bound(log: EventLog, owner: Host) -> None:
    running = Running(owner, log, costly_max=60)
    taken = transactions_of(running, owner)
    answers = [running.submit(costing(cost)) for cost in (30.0, 30.0, 30.0, 31.0, 90.0)]
    running.writer.start()
    for answered in answers:
        result(answered)
    running.writer.stop()
    assert taken == [[30.0, 30.0], [30.0], [31.0], [90.0]]


def test_what_is_costly_takes_half_of_the_time_at_most(
    log: EventLog, owner: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A costly transaction takes 1 s here and a cheap one 0.25 s, so four come between two."""
    now_s = 0.0
    monkeypatch.setattr("actors.host.writer.perf_counter", lambda: now_s)
    running = Running(owner, log, work_max=1, costly_max=30)
    taken = transactions_of(running, owner)
    execute = owner.execute

    def timed(items: Sequence[tuple[str, Submission]]) -> Any:
        nonlocal now_s
        now_s += 1 if items[0][1].cost > COSTLY else 0.25
        return execute(items)

    owner.execute = timed  # type: ignore[method-assign]
    answers = [running.submit(costing(cost)) for cost in [1.0] * 10 + [30.0] * 3]
    running.writer.start()
    for answered in answers:
        result(answered)
    running.writer.stop()
    between = [[1.0]] * 4
    assert taken == [[1.0], [30.0], *between, [30.0], *between, [30.0], [1.0]]


def test_a_sender_that_comes_late_does_not_wait_for_all_that_another_has_sent(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log, work_max=10)
    taken = transactions_of(running, owner)
    flood = [running.submit(*[costing(1.0, b"flood") for _ in range(10)]) for _ in range(5)]
    late = running.submit(costing(1.5, b"late"))
    running.writer.start()
    assert not isinstance(result(late).replies[0], Done)
    for answered in flood:
        assert len(result(answered).replies) == 10
    running.writer.stop()
    assert 1.5 in chain(*taken[:3])


def test_a_batch_is_answered_in_its_own_order_when_it_is_run_in_several_transactions(
    log: EventLog, owner: Host
) -> None:
    running = Running(owner, log, work_max=2)
    running.writer.start()
    unknown = submission("did:x:unknown", QueryMessages(Page(0, 10)))
    items = [unclaimed(ME, OpenSession("edge-0")), costing(50.0), unknown, costing(1.0)]
    replies = running.ask(submission(ME, registration(ME)), *items).replies
    running.writer.stop()
    assert [type(reply) for reply in replies] == [Registered, Registered, *[Refused] * 3]
    assert replies[3] == Refused(Refusal.UNAUTHORIZED_COMMAND)
