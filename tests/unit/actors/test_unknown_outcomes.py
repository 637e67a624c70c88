"""Notices of what was stored although its append failed reach the sockets all the same."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from typing_extensions import override

from actors.core.commands import (
    Command,
    EraseIdentity,
    OpenSession,
    Page,
    QueryMessages,
    QueueMessage,
    SaveContract,
)
from actors.core.erasure import OPERATOR
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractsUpdated,
    EnvelopesWaiting,
    IdentityGone,
    MessageArrived,
    MessagesPage,
    Push,
    Refused,
)
from actors.host import unknown_outcomes
from actors.host.host import Host
from actors.host.unknown_outcomes import NOTICES_BYTES_MAX
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from tests.log.faulty_log import FailNext, FaultyLog, Plan, StoredButFailed
from tests.unit.actors.given import (
    EDGE,
    HandClock,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

ME, FRIEND = "did:x:me", "did:x:friend"
UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
QUERY = QueryMessages(Page(0, 100))
LATER_MS = 5_000
SHARDS = ["shard-0", "shard-1"]
COMMANDS: list[tuple[Command, type[object]]] = [
    (QueueMessage(FRIEND, b"hi"), MessageArrived),
    (SaveContract(contract(ME, FRIEND)), ContractsUpdated),
    (EraseIdentity(OPERATOR, 64), IdentityGone),
]


class _Log(FaultyLog):
    """A log that can be away for readers, too."""

    reads = 0
    is_away = False

    @override
    def read_stream(self, stream: UUID, **page: Any) -> Any:
        self.reads += 1
        if self.is_away:
            raise LogUnavailable("away")
        return super().read_stream(stream, **page)


@pytest.fixture
def faulty(log: EventLog) -> _Log:
    return _Log(log)


def listening(log: EventLog, clock: HandClock) -> Host:
    """A host at which I have a socket, and a friend who may write to me."""
    owner = host(log, clock=clock)
    run(
        owner,
        submission(ME, registration(ME)),
        submission(FRIEND, registration(FRIEND)),
        submission(ME, SaveContract(contract(FRIEND, ME))),
        unclaimed(ME, OpenSession(EDGE)),
    )
    return owner


def notices(owner: Host) -> list[object]:
    """What is pushed to me between two transactions, but for wake-ups."""
    pushes = owner.due_pushes()
    assert {(edge, push.did) for edge, push in pushes} <= {(EDGE, ME)}
    kinds = [type(push.notice) for _, push in pushes]
    return [kind for kind in kinds if kind is not EnvelopesWaiting]


def fails(owner: Host, log: FaultyLog, plan: Plan, command: Command) -> None:
    """Run a command whose append goes wrong."""
    log.plan(plan)
    one = unclaimed(ME, command)
    assert owner.execute([("edge-1", one)]) == ([UNAVAILABLE], [])


@pytest.mark.parametrize(("command", "notice"), COMMANDS)
def test_a_notice_of_what_was_stored_though_its_append_failed_is_pushed_once_the_log_has_it(
    faulty: _Log, clock: HandClock, command: Command, notice: type[object]
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, StoredButFailed(), command)
    clock.now_ms += LATER_MS
    assert notices(owner) == [notice]
    clock.now_ms += LATER_MS
    assert notices(owner) == []


@pytest.mark.parametrize(("command", "notice"), COMMANDS)
def test_nothing_is_pushed_of_what_was_not_stored(
    faulty: _Log, clock: HandClock, command: Command, notice: type[object]
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, FailNext(), command)
    for _ in range(2):
        clock.now_ms += LATER_MS
        assert notices(owner) == [], f"{notice} of what may still come"
        assert run(owner, submission(ME, QUERY)) == [MessagesPage([], 0)]


@pytest.mark.parametrize(("command", "notice"), COMMANDS)
def test_a_notice_of_what_was_stored_is_pushed_before_its_sessions_move_to_another_host(
    faulty: _Log, clock: HandClock, command: Command, notice: type[object]
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, StoredButFailed(), command)
    other = host(faulty, clock=clock, name="other", shards=[])
    other.moves.adopt(SHARDS, owner.moves.release(SHARDS))
    assert [notices(each) for each in (owner, other)] == [[notice], []]
    clock.now_ms += LATER_MS
    assert notices(owner) == []


def test_a_shard_moves_although_the_log_cannot_tell_what_was_stored(
    faulty: _Log, clock: HandClock
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, StoredButFailed(), QueueMessage(FRIEND, b"hi"))
    faulty.is_away = True
    handover = owner.moves.release(SHARDS)
    faulty.is_away = False
    other = host(faulty, clock=clock, name="other", shards=[])
    other.moves.adopt(SHARDS, handover)
    assert set(other.registry.sessions.edges_of(ME)) == {EDGE}


def test_what_a_shard_that_has_left_may_have_stored_is_looked_for_once_more_and_forgotten(
    faulty: _Log, clock: HandClock
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, FailNext(), QueueMessage(FRIEND, b"hi"))
    owner.moves.release(SHARDS)
    faulty.reads = 0
    for _ in range(3):
        clock.now_ms += LATER_MS
        assert notices(owner) == []
    assert faulty.reads == 1


def test_the_next_command_shows_at_once_whether_a_message_was_stored(
    faulty: _Log, clock: HandClock
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, StoredButFailed(), QueueMessage(FRIEND, b"hi"))
    assert notices(owner) == [], "the log is not read as long as it may be away"
    (page,) = run(owner, submission(ME, QUERY))
    assert isinstance(page, MessagesPage)
    pushes = [push for _, push in owner.due_pushes()]
    assert pushes == [Push(ME, MessageArrived(*page.messages))]


def test_a_log_that_is_away_is_read_again_only_after_a_while(
    faulty: _Log, clock: HandClock
) -> None:
    owner = listening(faulty, clock)
    fails(owner, faulty, StoredButFailed(), QueueMessage(FRIEND, b"hi"))
    run(owner, submission(ME, QUERY))
    faulty.is_away, faulty.reads = True, 0
    for looks in (1, 2):
        assert [notices(owner) for _ in range(3)] == [[], [], []]
        assert faulty.reads == looks
        clock.now_ms += LATER_MS
    faulty.is_away = False
    assert notices(owner) == [MessageArrived]
    fails(owner, faulty, StoredButFailed(), QueueMessage(FRIEND, b"hi again"))
    run(owner, submission(ME, QUERY))
    assert notices(owner) == [MessageArrived], "it is not away any more"


@pytest.mark.thorough
@pytest.mark.parametrize(("messages", "size_bytes"), [(4, 60_000), (400, 1)])
def test_notices_of_appends_that_failed_take_a_bounded_number_of_bytes(
    faulty: _Log,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    messages: int,
    size_bytes: int,
) -> None:
    bytes_max = NOTICES_BYTES_MAX // 8
    monkeypatch.setattr(unknown_outcomes, "NOTICES_BYTES_MAX", bytes_max)
    owner = listening(faulty, clock)
    tracemalloc.start()
    try:
        for _ in range(8):
            faulty.plan(FailNext())
            some = [QueueMessage(FRIEND, bytes(size_bytes)) for _ in range(messages)]
            run(owner, *(submission(ME, command, sender=FRIEND) for command in some))
            run(owner, submission(ME, QUERY), submission(FRIEND, QUERY))
        gc.collect()
        with_notices_bytes, _ = tracemalloc.get_traced_memory()
        assert notices(owner) == []
        gc.collect()
        without_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The first ones are kept, as far as there is room.
    assert bytes_max / 4 < with_notices_bytes - without_bytes <= bytes_max
