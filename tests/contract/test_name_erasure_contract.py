"""Names of who was erased leave the rows of a log; every seal holds, and nothing else may leave."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from typing_extensions import override

from actors.core.account_commands import ClaimedKey, ClaimKey, FindKeyOwner, ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    CheckKeys,
    Connect,
    EraseIdentity,
    PushDevice,
    QueryConnection,
    QueryMessages,
    QueryPushDevice,
    QueueMessage,
    SaveContract,
    SetPushDevice,
    TagUpdate,
    UpdateEventTags,
    UpdateKeylist,
    UseInvitation,
)
from actors.core.erasure import OPERATOR
from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD
from actors.core.replies import (
    Connected,
    Erased,
    KeyClaim,
    KeyOwner,
    KeysKnown,
    MessagesPage,
    PushDeviceFound,
)
from actors.host.stored_states import read_identity, wrong_snapshots
from eventstore.log import name_erasure, seal
from eventstore.log.codec import decode
from eventstore.log.event_log import ChangedRow, EventLog, PageBounds, SavedEventsFilter, Snapshot
from eventstore.log.events import (
    SEAL_TOPIC,
    IdentityRegistered,
    KeyReleased,
    MessageQueued,
)
from eventstore.log.faults import Fault, Finding
from eventstore.log.name_erasure import NameErasure
from eventstore.log.redaction import digest_of, erased_names, renamed_state
from eventstore.log.streams import identity_stream
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from tests.contract.conftest import OpenLog
from tests.contract.test_erasure_contract import (
    GONE,
    STAYS,
    STEPS,
    erase,
    settle,
    settled,
    step,
    wrong,
)
from tests.contract.test_retention_contract import DAY_S, Mediator, is_sound
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import remove_erased, run_sql
from tests.log.samples import earlier_seal, save
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
from tests.unit.actors.test_queueing import ALL


def take_out_names(log: EventLog) -> int:
    """Do a whole pass; how many rows lost a name."""
    work = NameErasure(log)
    while work.step():
        pass
    return work.changed


def states(log: EventLog) -> dict[int, bytes]:
    return {
        row.position: row.state for row in log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    }


def naming(log: EventLog, name: bytes) -> list[str]:
    """The topics of the rows that have a name in them."""
    rows = log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    return [row.topic for row in rows if name in row.state]


def send(mediator: Mediator, to: str, sender: str, payload: bytes) -> None:
    run(
        mediator.host,
        submission(to, SaveContract(contract(to, sender, NOW_S + DAY_S))),
        submission(to, QueueMessage(sender, payload), sender=sender),
    )


def message_ids(mediator: Mediator, did: str) -> dict[str, str]:
    """The messages that wait for an identity, with their senders."""
    (page,) = run(mediator.host, submission(did, QueryMessages(ALL.page)))
    assert isinstance(page, MessagesPage)
    return {one.message_id: one.sender_did for one in page.messages}


@pytest.fixture
def mediator(log: EventLog) -> Mediator:
    """A host with two identities, each of which has written to the other."""
    made = settled(log)
    send(made, STAYS, GONE, b"from who goes")
    send(made, GONE, STAYS, b"from who stays")
    return made


def test_nothing_leaves_as_long_as_no_one_is_erased(mediator: Mediator, log: EventLog) -> None:
    before = states(log)
    run(mediator.host, unclaimed(GONE, EraseIdentity(OPERATOR, 2)))
    assert take_out_names(log) == 0
    assert {position: states(log)[position] for position in before} == before


def test_who_was_erased_stands_in_no_row_that_nothing_refers_to(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    heads = next(found for found in verify(log) if isinstance(found, Summary)).heads
    erase(mediator, GONE)
    before = states(log)
    assert take_out_names(log) > 10
    own = log.read_stream(identity_stream(GONE))
    assert not [
        row.topic for row in own for name in (GONE, KEY, STAYS) if name.encode() in row.state
    ]
    # What waits for another, and a contract of another that is in force, are that other's.
    assert naming(log, GONE.encode()) == ["contract-stored.1", "message-queued.2"]
    assert naming(log, STAYS.encode())
    assert [found for found in verify(log, known_heads=heads) if isinstance(found, Finding)] == []
    assert wrong(log_url) == []
    after = states(log)
    changed = [position for position, state in before.items() if after[position] != state]
    assert take_out_names(log) == 0
    assert [position for position in changed if after[position] != states(log)[position]] == []


def test_a_name_leaves_with_the_last_that_refers_to_it(
    mediator: Mediator, log: EventLog, open_another: OpenLog
) -> None:
    longer = contract(STAYS, GONE, NOW_S + 2 * DAY_S)
    run(mediator.host, submission(STAYS, SaveContract(longer)))
    erase(mediator, GONE)
    take_out_names(log)
    waiting = message_ids(mediator, STAYS)
    assert GONE in waiting.values()
    again = Mediator(open_another(), name="again")
    assert message_ids(again, STAYS) == waiting
    run(again.host, submission(STAYS, AcknowledgeMessages([*waiting])))
    for left in (["contract-stored.1"], []):
        again.pass_s(DAY_S + 400)
        while again.expiry.step():
            pass
        take_out_names(log)
        assert naming(log, GONE.encode()) == left
    assert faults(log) == []


def test_what_a_host_folds_is_the_same_with_and_without_names(
    mediator: Mediator, log: EventLog, open_another: OpenLog
) -> None:
    erase(mediator, GONE)
    before = message_ids(mediator, STAYS)
    take_out_names(log)
    log.save_snapshots([])
    again = Mediator(open_another(), name="again")
    assert message_ids(again, STAYS) == before
    (back,) = run(again.host, unclaimed(GONE, EraseIdentity(OPERATOR, 2)))
    assert back == Erased(0, is_over=True)


def test_who_has_come_back_keeps_its_new_names(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    erase(mediator, GONE)
    take_out_names(log)
    run(mediator.host, submission(GONE, registration(GONE, NOW_S + DAY_S)))
    assert take_out_names(log) == 0
    newest = log.read_stream(identity_stream(GONE), newest_first=True, limit=1)[0]
    event = decode(newest.topic, newest.state)
    assert isinstance(event, IdentityRegistered)
    assert event.did == GONE
    assert is_sound(log)
    assert wrong(log_url) == []


def test_no_name_leaves_of_who_was_not_erased(mediator: Mediator, log: EventLog) -> None:
    rows = log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    for row in rows:
        if row.topic == SEAL_TOPIC:
            continue
        kind = type(decode(row.topic, row.state))
        after = renamed_state(kind, row.state, digest_of)
        assert after is not None
        if after == row.state:
            continue
        log.change_rows([ChangedRow(row.stream, row.position, row.state, after)])
        expected = set() if kind is KeyReleased else {Fault.MISSING_NAME}
        assert set(faults(log)) == expected, row.topic
        log.change_rows([ChangedRow(row.stream, row.position, after, row.state)])
    assert faults(log) == []


def test_no_name_can_be_put_in_place_of_another(mediator: Mediator, log: EventLog) -> None:
    erase(mediator, GONE)
    take_out_names(log)
    rows = log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    (row, *_) = [
        row
        for row in rows
        if row.topic == "message-queued.2" and erased_names(row.topic, row.state)
    ]
    for other in ("did:x:other", "erased:" + identity_stream(GONE).hex, ""):

        def rename(_name: str, to: str = other) -> str:
            return to

        forged = renamed_state(MessageQueued, row.state, rename)
        assert forged is not None
        log.change_rows([ChangedRow(row.stream, row.position, row.state, forged)])
        assert Fault.BROKEN_SEAL in faults(log)
        log.change_rows([ChangedRow(row.stream, row.position, forged, row.state)])
    assert faults(log) == []


def test_rows_that_an_earlier_release_sealed_keep_their_names(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(seal, "seal", earlier_seal)
        old = Mediator(log, name="old")
        settle(old, GONE)
    assert faults(log) == []
    mediator = Mediator(log, name="new")
    erase(mediator, GONE)
    before = states(log)
    assert take_out_names(log) == 0
    assert states(log) == before
    assert faults(log) == []


def test_names_of_keys_and_invitations_leave_with_their_owner(
    mediator: Mediator, log: EventLog
) -> None:
    taken = [f"key:{KEY}", "invitation:of-gone"]
    (claim,) = run(mediator.host, unclaimed(taken[0], ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    run(
        mediator.host,
        unclaimed(taken[1], UseInvitation(GONE)),
        unclaimed("invitation:of-stays", UseInvitation(STAYS)),
    )
    erase(mediator, GONE)
    run(mediator.host, unclaimed(taken[0], ReleaseKey(GONE, claim.number)))
    take_out_names(log)
    rows = log.read_stream(identity_stream(taken[0]))
    assert [row.topic for row in rows] == ["key-claimed.1", "key-released.1"]
    assert not [row for row in rows for name in (KEY, GONE) if name.encode() in row.state]
    assert naming(log, b"of-gone") == []
    assert naming(log, b"of-stays") == ["invitation-used.1"]
    assert faults(log) == []


def register(mediator: Mediator, owner: str, *names: str) -> list[ClaimedKey]:
    """Have an agent register names; its mediator cannot know whose they are."""
    keys = []
    for name in names:
        (claim,) = run(mediator.host, unclaimed(f"key:{name}", ClaimKey(owner)))
        assert isinstance(claim, KeyClaim)
        keys.append(ClaimedKey(name, claim.number))
    run(mediator.host, unclaimed(owner, UpdateKeylist(keys, [])))
    return keys


def test_a_key_called_by_the_name_of_who_was_erased_stays_its_owners(
    mediator: Mediator, log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    register(mediator, STAYS, GONE)
    erase(mediator, GONE)
    take_out_names(log)
    assert faults(log) == []
    (claimed_key,) = log.read_stream(identity_stream(f"key:{GONE}"))
    assert GONE.encode() in claimed_key.state
    log.save_snapshots([])
    again = Mediator(open_another(), name="again")
    assert run(again.host, unclaimed(f"key:{GONE}", FindKeyOwner())) == [KeyOwner(STAYS, 1)]
    (known,) = run(again.host, unclaimed(STAYS, CheckKeys([GONE])))
    assert isinstance(known, KeysKnown)
    assert known.keys == [GONE]
    assert is_sound(log)
    assert wrong(log_url) == []


def test_a_key_called_by_the_name_of_who_was_erased_loses_it_when_it_is_given_up(
    mediator: Mediator, log: EventLog
) -> None:
    (key,) = register(mediator, STAYS, GONE)
    erase(mediator, GONE)
    run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
    run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)))
    take_out_names(log)
    rows = log.read_stream(identity_stream(f"key:{GONE}"))
    assert not [row for row in rows if GONE.encode() in row.state]
    assert STAYS.encode() in rows[0].state
    assert "keylist-updated.1" not in naming(log, GONE.encode())
    assert faults(log) == []


def test_a_key_that_was_anothers_before_names_that_one_still(
    mediator: Mediator, log: EventLog
) -> None:
    register(mediator, STAYS, GONE)
    (claim,) = run(mediator.host, unclaimed(f"key:{GONE}", ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
    erase(mediator, GONE)
    take_out_names(log)
    rows = log.read_stream(identity_stream(f"key:{GONE}"))
    assert [STAYS.encode() in row.state for row in rows] == [True, False]
    assert not [row for row in rows if GONE.encode() in row.state]
    assert faults(log) == []


def test_a_label_a_tag_or_a_device_that_reads_like_the_name_of_who_was_erased_stays(
    mediator: Mediator, log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    stream, everything = identity_stream(STAYS), SavedEventsFilter()
    (event, *_) = log.query_saved_events(stream, everything, PageBounds(0, 9)).events
    device = PushDevice("fcm", GONE, "")
    run(
        mediator.host,
        unclaimed(STAYS, Connect(connection(label=GONE))),
        unclaimed(STAYS, SetPushDevice(device)),
        submission(STAYS, UpdateEventTags([TagUpdate(event.event_id, [GONE])])),
    )
    before = log.query_saved_events(stream, everything, PageBounds(0, 9))
    erase(mediator, GONE)
    take_out_names(log)
    log.save_snapshots([])
    again = Mediator(open_another(), name="again")
    (connected,) = run(again.host, unclaimed(STAYS, QueryConnection()))
    assert isinstance(connected, Connected)
    assert connected.connection.label == GONE
    assert run(again.host, unclaimed(STAYS, QueryPushDevice())) == [PushDeviceFound(device)]
    assert log.query_saved_events(stream, everything, PageBounds(0, 9)) == before
    assert faults(log) == []
    assert is_sound(log)
    assert wrong(log_url) == []


@pytest.mark.thorough
def test_no_file_of_a_sqlite_log_has_the_name_of_who_was_erased(tmp_path: Path) -> None:
    gone = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        mediator = Mediator(log)
        # The first rows stand in a page that SQLite makes another use of, and leaves as it is.
        for did in (STAYS, *(f"did:x:{number}" for number in range(50)), gone):
            settle(mediator, did)
        for number in range(300):
            send(mediator, gone, STAYS, b"x" * number)
        save_all(log)
        erase(mediator, gone)
        take_out_names(log)
    files = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    # What SQLite puts in place of a row may overwrite a part of it alone.
    parts = [gone[start : start + 12].encode() for start in range(8, len(gone) - 12, 6)]
    assert [name for name, data in files.items() if any(part in data for part in parts)] == []


def save_all(log: EventLog) -> None:
    """Save a snapshot of each identity, as if its host had just dropped it from memory."""
    rows = log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    for stream in {UUID(bytes=row.stream) for row in rows if row.topic != SEAL_TOPIC}:
        state, _ = read_identity(log, stream)
        save(log, (stream, Snapshot(state.version, FOLD, to_snapshot(state))))


def tables_naming(log_url: str, name: str) -> list[str]:
    """The tables that have a name in any column of any row."""
    tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if log_url.startswith("sqlite:")
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    rows = {
        table: run_sql(log_url, f"SELECT * FROM {table}") for (table,) in run_sql(log_url, tables)
    }
    return [table for table, found in rows.items() if name in repr(found)]


@pytest.mark.thorough
@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_no_table_names_who_was_erased_wherever_the_host_was_killed(
    mediator: Mediator, log: EventLog, log_url: str, open_another: OpenLog, steps: int
) -> None:
    (claim,) = run(mediator.host, unclaimed(f"key:{KEY}", ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    run(mediator.host, unclaimed("invitation:one", UseInvitation(GONE)))
    for _ in range(steps):
        step(mediator, GONE)
    save_all(log)
    # The next host completes everything, and is killed each time before it saves a snapshot.
    again = Mediator(open_another(), name="again")
    erase(again, GONE)
    run(again.host, unclaimed(f"key:{KEY}", ReleaseKey(GONE, claim.number)))
    run(again.host, submission(STAYS, AcknowledgeMessages([*message_ids(again, STAYS)])))
    again.pass_s(DAY_S + 400)
    while again.expiry.step():
        pass
    remove_erased(log_url)
    assert "snapshots" in tables_naming(log_url, GONE)
    take_out_names(log)
    assert tables_naming(log_url, GONE) == []
    assert list(wrong_snapshots(log)) == []
    assert wrong(log_url) == []
    assert faults(log) == []


class KilledError(Exception):
    """Where a pass ends."""


class KilledLog(FaultyLog):
    """A log whose process is killed at its next change of rows."""

    def __init__(self, log: EventLog, changes: int, *, is_done: bool) -> None:
        super().__init__(log)
        self._changes, self._is_done = changes, is_done

    @override
    def change_rows(self, rows: Sequence[ChangedRow]) -> None:
        self._changes -= 1
        if self._changes >= 0 or self._is_done:
            super().change_rows(rows)
        if self._changes < 0:
            raise KilledError


@pytest.mark.parametrize("is_done", [False, True])
def test_a_pass_that_is_killed_at_any_change_leaves_no_name_in_a_snapshot(
    mediator: Mediator,
    log: EventLog,
    log_url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_done: bool,
) -> None:
    monkeypatch.setattr(name_erasure, "_ROWS", 1)
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    save_all(log)
    erase(mediator, GONE)
    mediator.pass_s(DAY_S + 400)
    while mediator.expiry.step():
        pass
    killed = 0
    while True:
        try:
            take_out_names(KilledLog(log, int(not is_done), is_done=is_done))
        except KilledError:
            killed += 1
        else:
            break
        assert list(wrong_snapshots(log)) == []
    assert killed > 2
    assert tables_naming(log_url, GONE) == []


def test_no_late_save_brings_a_name_back(mediator: Mediator, log: EventLog) -> None:
    streams = [identity_stream(did) for did in (GONE, STAYS)]
    save_all(log)
    late = list(log.load_snapshots(streams).items())
    assert len(late) == len(streams)
    assert [GONE.encode() in snapshot.state for _, snapshot in late] == [True, True]
    erase(mediator, GONE)
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    take_out_names(log)
    save(log, *late)
    assert not [one for one in log.load_snapshots(streams).values() if GONE.encode() in one.state]
