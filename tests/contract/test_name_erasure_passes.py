"""A pass that takes out names, beside who comes back and over rows that someone changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typing_extensions import override

from actors.core.account_commands import ClaimKey, FindKeyOwner, ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    Connect,
    DedicateIdentity,
    DedicationReason,
    EndAccount,
    GrantMediation,
    NewSavedEvent,
    PurgeQueue,
    SaveContract,
    SaveEvents,
    UseInvitation,
)
from actors.core.limits import IdentityLimits
from actors.core.replies import KeyClaim, KeyOwner
from eventstore.log.codec import encode
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    ContractExpired,
    EventSaved,
    IdentityErased,
    MessageQueued,
    topics_of,
)
from eventstore.log.faults import Fault
from eventstore.log.name_check import NameCheck, missing_names
from eventstore.log.name_erasure import NameErasure, without_names_of
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_log
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle, settled
from tests.contract.test_name_erasure_contract import (
    message_ids,
    naming,
    register,
    send,
    states,
    take_out_names,
)
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, OTHER, OWNER, append, message
from tests.log.stored import faults
from tests.unit.actors.didcomm import KEY
from tests.unit.actors.given import (
    NOW_S,
    connection,
    contract,
    registration,
    run,
    submission,
    unclaimed,
)


def test_who_comes_back_as_a_pass_begins_loses_the_names_of_its_former_life_alone(
    log: EventLog,
) -> None:
    class Returning(FaultyLog):
        def read_log(self, **which: Any) -> Any:
            found = super().read_log(**which)
            if which.get("topics"):
                settle(mediator, GONE)
            return found

    mediator = Mediator(log)
    settle(mediator, GONE)
    erase(mediator, GONE)
    end = log.position()
    work = NameErasure(Returning(log))
    while work.step():
        pass
    named = [position for position, state in states(log).items() if GONE.encode() in state]
    assert work.changed > 0
    assert named
    assert min(named) > end


def test_a_pass_leaves_the_rows_of_who_comes_back_once_it_is_known_who_is_erased(
    log: EventLog,
) -> None:
    came_back: list[LogRow] = []

    class Returning(FaultyLog):
        def stream_rows(self, stream: UUID, **which: Any) -> Any:
            found = super().stream_rows(stream, **which)
            if not came_back:
                settle(mediator, GONE)
                came_back.extend(rows(end))
            return found

    def rows(after: int) -> Sequence[LogRow]:
        return log.read_rows(after=after, rows_max=10**6, bytes_max=2**30)

    mediator = Mediator(log)
    settle(mediator, GONE)
    erase(mediator, GONE)
    end = log.position()
    work = NameErasure(Returning(log))
    while work.step():
        pass
    assert work.changed > 0
    assert rows(end) == came_back


@pytest.mark.parametrize(
    "change",
    ["state = 'text'", "originator_id = upper(originator_id)", "topic = CAST(topic AS BLOB)"],
)
def test_names_leave_a_sqlite_log_that_has_a_changed_row_too(tmp_path: Path, change: str) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        mediator = Mediator(log)
        settle(mediator, STAYS)
        changed = log.position()
        settle(mediator, GONE)
        erase(mediator, GONE)
        run_sql(url, f"UPDATE stored_events SET {change} WHERE rowid = {changed}")
        assert take_out_names(log) > 0
    named = f"SELECT topic FROM stored_events WHERE instr(state, CAST('{GONE}' AS BLOB))"
    assert run_sql(url, named) == []


def test_a_contract_of_who_has_come_back_keeps_the_name_of_who_was_erased(log: EventLog) -> None:
    mediator = Mediator(log)
    settle(mediator, GONE)
    settle(mediator, STAYS)
    erase(mediator, STAYS)
    settle(mediator, STAYS)
    send(mediator, STAYS, GONE, b"from who goes, again")
    erase(mediator, GONE)
    take_out_names(log)
    assert naming(log, GONE.encode()) == ["contract-stored.1", "message-queued.2"]


def test_a_contract_from_before_its_owners_erasure_keeps_no_name_though_the_owner_has_come_back(
    log: EventLog,
) -> None:
    mediator = settled(log)
    send(mediator, STAYS, GONE, b"from who goes")
    erase(mediator, STAYS)
    settle(mediator, STAYS)
    erase(mediator, GONE)
    take_out_names(log)
    assert naming(log, GONE.encode()) == []


def test_a_key_that_another_holds_now_keeps_no_name_of_an_erased_former_owner(
    log: EventLog,
) -> None:
    mediator, name = settled(log), f"key:{KEY}"
    (claim,) = run(mediator.host, unclaimed(name, ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    run(
        mediator.host,
        unclaimed(name, ReleaseKey(GONE, claim.number)),
        unclaimed(name, ClaimKey(STAYS, holds_key=True)),
    )
    erase(mediator, GONE)
    take_out_names(log)
    rows = log.read_stream(identity_stream(name))
    assert [GONE.encode() in row.state for row in rows] == [False, False, False]
    assert STAYS.encode() in rows[-1].state
    assert run(mediator.host, unclaimed(name, FindKeyOwner())) == [KeyOwner(STAYS, 3)]


@pytest.mark.parametrize("back", ["registered", "connected"])
def test_who_has_come_back_keeps_its_names_though_its_queue_is_of_an_earlier_release(
    tmp_path: Path, back: str
) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        mediator = settled(log)
        erase(mediator, GONE)
        take_out_names(log)
        if back == "registered":
            run(mediator.host, submission(GONE, registration(GONE, NOW_S + DAY_S)))
        else:
            run(mediator.host, unclaimed(GONE, Connect(connection())))
        run_sql(url, "UPDATE queue_depths SET did = x''")
        assert take_out_names(log) == 0


def test_who_is_registered_keeps_its_names_though_its_queue_is_of_an_earlier_release(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        settled(log)
        run_sql(url, "UPDATE queue_depths SET did = x''")
        assert take_out_names(log) == 0


def test_an_erased_keylist_keeps_no_name_of_who_was_erased_though_its_owner_has_come_back(
    log: EventLog,
) -> None:
    mediator = settled(log)
    register(mediator, STAYS, GONE)
    erase(mediator, STAYS)
    settle(mediator, STAYS)
    erase(mediator, GONE)
    take_out_names(log)
    assert "keylist-updated.1" not in naming(log, GONE.encode())


def test_the_keylist_of_an_account_that_has_ended_keeps_no_name_though_its_agent_has_come_back(
    log: EventLog,
) -> None:
    mediator = Mediator(log, limits=IdentityLimits(idle_agents_age_s_max=DAY_S))
    settle(mediator, GONE)
    run(mediator.host, unclaimed(STAYS, GrantMediation(connection(), [])))
    register(mediator, STAYS, GONE)
    assert "keylist-updated.1" in naming(log, GONE.encode())
    mediator.pass_s(2 * DAY_S)
    while mediator.expiry.step():
        pass
    run(mediator.host, unclaimed(STAYS, Connect(connection())))
    erase(mediator, GONE)
    take_out_names(log)
    assert "keylist-updated.1" not in naming(log, GONE.encode())


def test_a_saved_event_of_another_keeps_the_name_until_that_one_is_erased_too(
    log: EventLog,
) -> None:
    mediator = settled(log)
    event = NewSavedEvent(GONE, STAYS, None, NOW_S, "kept for ever", [])
    run(mediator.host, submission(STAYS, SaveEvents([event])))
    erase(mediator, GONE)
    take_out_names(log)
    assert naming(log, GONE.encode()) == [TOPIC_BY_TYPE[EventSaved]]
    erase(mediator, STAYS)
    take_out_names(log)
    assert naming(log, GONE.encode()) == []


def test_the_end_of_an_account_is_no_erasure(log: EventLog) -> None:
    mediator = settled(log)
    stated = [word.encode() for word in (GONE, f"token of {GONE}")]
    run(mediator.host, unclaimed(GONE, EndAccount(GONE, NOW_S)))
    before = [naming(log, word) for word in stated]
    assert all(before)
    assert take_out_names(log) == 0
    assert [naming(log, word) for word in stated] == before
    erase(mediator, GONE)
    take_out_names(log)
    assert not any(naming(log, word) for word in stated)


def test_a_pass_reads_nothing_more_for_rows_that_lost_their_names_before(log: EventLog) -> None:
    queries: list[UUID] = []

    class Counting(FaultyLog):
        def read_records(self, wanted: Mapping[UUID, Sequence[int]]) -> Any:
            queries.extend(wanted)
            return super().read_records(wanted)

        def read_contents(self, **which: Any) -> Any:
            queries.append(UUID(int=0))
            return super().read_contents(**which)

        def stream_rows(self, stream: UUID, **which: Any) -> Any:
            queries.append(stream)
            return super().stream_rows(stream, **which)

    mediator = Mediator(log)
    settle(mediator, GONE)
    settle(mediator, STAYS)
    for number in range(3):
        send(mediator, STAYS, GONE, b"%d" % number)
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    mediator.pass_s(DAY_S + 400)
    while mediator.expiry.step():
        pass
    erase(mediator, GONE)
    for is_first in (True, False):
        work = NameErasure(Counting(log))
        queries.clear()
        while work.step():
            pass
        assert (bool(queries), work.changed > 0) == (is_first, is_first)


def test_a_pass_looks_once_for_what_ended_the_contracts_of_one_identity(log: EventLog) -> None:
    looked: list[UUID] = []

    class Counting(FaultyLog):
        def stream_rows(self, stream: UUID, *, topics: Collection[str], **which: Any) -> Any:
            if topics_of(ContractExpired) <= {*topics}:
                looked.append(stream)
            return super().stream_rows(stream, topics=topics, **which)

    mediator = Mediator(log)
    settle(mediator, GONE)
    settle(mediator, STAYS)
    for number in range(50):
        until_s = NOW_S + DAY_S * (1 + number % 2 * 9) + number
        stored = SaveContract(contract(STAYS, GONE, until_s))
        run(mediator.host, submission(STAYS, stored))
    mediator.pass_s(DAY_S + 400)
    while mediator.expiry.step():
        pass
    erase(mediator, GONE)
    assert len(naming(log, GONE.encode())) > 50
    work = NameErasure(Counting(log))
    while work.step():
        pass
    assert naming(log, GONE.encode()) == ["contract-stored.1"] * 25
    assert looked == [identity_stream(STAYS)]


def test_a_later_pass_knows_what_an_earlier_one_made_nameless(log: EventLog) -> None:
    mediator = Mediator(log)
    settle(mediator, GONE)
    (claim,) = run(mediator.host, unclaimed(f"key:{KEY}", ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    run(mediator.host, unclaimed("invitation:used", UseInvitation(GONE)))
    erase(mediator, GONE)
    nameless = []
    for is_released in (False, True):
        if is_released:
            run(mediator.host, unclaimed(f"key:{KEY}", ReleaseKey(GONE, claim.number)))
        work = NameErasure(log)
        while work.step():
            pass
        nameless.append(work.nameless)
        assert naming(log, KEY.encode()) == []
    names = (GONE, f"key:{KEY}", "invitation:used")
    assert nameless == [{identity_stream(name).bytes for name in names}] * 2


def test_the_event_that_gave_who_was_erased_a_partition_of_its_own_keeps_the_name(
    log: EventLog,
) -> None:
    mediator = Mediator(log)
    settle(mediator, GONE)
    run(mediator.host, unclaimed(GONE, DedicateIdentity(DedicationReason.OPERATOR)))
    erase(Mediator(log), GONE)
    assert take_out_names(log) > 0
    assert naming(log, GONE.encode()) == ["identity-dedicated.1"]


def test_a_check_of_names_knows_of_an_erasure_that_ended_since_the_check_began(
    log: EventLog,
) -> None:
    row = encode(OWNER, 1, message())
    check = NameCheck()
    nameless = without_names_of({OTHER.bytes}.__contains__, MessageQueued, row.state)
    assert nameless is not None
    check.take(LogRow(1, OWNER.bytes, 1, row.topic, nameless))
    assert [one.fault for one in missing_names(check, log)] == [Fault.MISSING_NAME]
    append(log, OTHER, IdentityErased(at_ms=AT_MS, command=COMMAND))
    assert [*missing_names(check, log)] == []


class LookUps(FaultyLog):
    """A log that counts how often contents of rows are looked up."""

    count = 0

    @override
    def read_records(self, wanted: Mapping[UUID, Sequence[int]]) -> Any:
        self.count += 1
        return super().read_records(wanted)

    @override
    def read_contents(self, **which: Any) -> Any:
        self.count += 1
        return super().read_contents(**which)


@pytest.mark.parametrize("payload_bytes", [9, 50_000])
def test_a_pass_looks_up_the_contents_of_many_rows_at_once(
    log: EventLog, payload_bytes: int
) -> None:
    """Some still have theirs: these keep the name."""
    mediator = settled(log)
    for number in range(60):
        send(mediator, STAYS, GONE, b"%d" % number * payload_bytes)
        if number == 49:
            run(mediator.host, unclaimed(STAYS, PurgeQueue()))
    erase(mediator, GONE)
    counting = LookUps(log)
    assert take_out_names(counting) > 50
    assert naming(log, GONE.encode()).count("message-queued.2") == 10
    assert counting.count < 9
    assert faults(log) == []
