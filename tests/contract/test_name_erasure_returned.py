"""Who was erased and comes back before a pass keeps the names of its new life alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from actors.core.account_commands import ClaimKey, FindKeyOwner, ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    Connect,
    FindAccount,
    NameSpeaker,
    UnnameSpeaker,
    UpdateKeylist,
)
from actors.core.identity import Identity
from actors.core.replies import AccountFound, KeyClaim, KeyOwner
from actors.host.stored_states import read_identity, wrong_snapshots
from eventstore.log import name_erasure
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC, KeylistUpdated, topics_of
from eventstore.log.name_check import ERASURE
from eventstore.log.name_erasure import NameErasure, erased_identities
from eventstore.log.streams import identity_stream
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle, settled
from tests.contract.test_name_erasure_contract import (
    KilledError,
    KilledLog,
    message_ids,
    naming,
    register,
    send,
    states,
    take_out_names,
)
from tests.contract.test_retention_contract import Mediator, is_sound
from tests.unit.actors.didcomm import KEY
from tests.unit.actors.given import connection, run, submission, unclaimed

SPEAKER, OTHER = "did:key:z6MkSpeaker", "did:key:z6MkOther"


def erased_until(log: EventLog) -> int:
    """The position of the last row of the newest erasure."""
    return log.stream_rows(identity_stream(GONE), topics={ERASURE})[-1].position


def lived(log: EventLog) -> Mediator:
    """A host where one has written, connected and been erased."""
    mediator = settled(log)
    run(mediator.host, unclaimed(GONE, Connect(connection())))
    send(mediator, STAYS, GONE, b"from who goes")
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    erase(mediator, GONE)
    return mediator


def test_who_comes_back_before_a_pass_keeps_no_name_of_its_former_life(log: EventLog) -> None:
    mediator = lived(log)
    settle(mediator, GONE)
    send(mediator, STAYS, GONE, b"from who is back")
    until, before = erased_until(log), states(log)
    take_out_names(log)
    after = states(log)
    named = [position for position, state in after.items() if GONE.encode() in state]
    assert naming(log, GONE.encode())[0] == "contract-stored.1", "it is in force"
    assert [position for position in named if position <= until] == named[:1]
    assert {p: s for p, s in after.items() if p > until} == {
        p: s for p, s in before.items() if p > until
    }
    assert is_sound(log)
    assert [*wrong_snapshots(log)] == []
    state, _ = read_identity(log, identity_stream(GONE))
    assert state.registered_until_s > 0
    assert take_out_names(log) == 0


def test_erasures_are_found_wherever_a_query_ends(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator = lived(log)
    settle(mediator, GONE)
    erase(mediator, STAYS)
    found = erased_identities(log)
    assert set(found) == {identity_stream(did).bytes for did in (GONE, STAYS)}
    for rows in (*range(1, 5), *(one.position - 1 for one in found.values()), log.position() - 1):
        monkeypatch.setattr(name_erasure, "_SCANNED_ROWS", rows)
        assert erased_identities(log) == found


def test_who_is_erased_again_loses_the_names_of_both_lives(log: EventLog) -> None:
    mediator = lived(log)
    settle(mediator, GONE)
    take_out_names(log)
    erase(mediator, GONE)
    take_out_names(log)
    own = log.read_stream(identity_stream(GONE))
    assert [row.topic for row in own if GONE.encode() in row.state] == []
    assert is_sound(log)


def test_who_comes_back_has_the_keys_that_it_claims_then(log: EventLog) -> None:
    mediator, name = Mediator(log), f"key:{KEY}"
    settle(mediator, GONE)
    claim = ClaimKey(GONE, holds_key=True)
    (first,) = run(mediator.host, unclaimed(name, claim))
    erase(mediator, GONE)
    assert isinstance(first, KeyClaim)
    run(mediator.host, unclaimed(name, ReleaseKey(GONE, first.number)))
    settle(mediator, GONE)
    run(mediator.host, unclaimed(name, claim))
    take_out_names(log)
    rows = log.read_stream(identity_stream(name))
    assert [GONE.encode() in row.state for row in rows] == [False, False, True]
    assert [KEY.encode() in row.state for row in rows] == [False, False, True]
    assert run(Mediator(log).host, unclaimed(name, FindKeyOwner())) == [KeyOwner(GONE, 3)]
    assert is_sound(log)


def test_a_did_that_still_speaks_for_who_comes_back_is_not_let_go_by_a_pass(log: EventLog) -> None:
    mediator = Mediator(log)
    settle(mediator, GONE)
    run(mediator.host, unclaimed(SPEAKER, NameSpeaker(GONE)))
    erase(mediator, GONE)
    settle(mediator, GONE)
    take_out_names(log)
    later = Mediator(log)
    (found,) = run(later.host, unclaimed(SPEAKER, FindAccount()))
    assert isinstance(found, AccountFound)
    assert found.account_did == GONE
    run(later.host, unclaimed(SPEAKER, UnnameSpeaker(GONE)))
    take_out_names(log)
    assert "speaker-named.1" not in naming(log, GONE.encode())
    assert is_sound(log)


def others(log: EventLog) -> dict[UUID, Identity]:
    """What the rows of all streams but that of the erased identity add up to."""
    rows = log.read_rows(after=0, rows_max=10**6, bytes_max=2**30)
    streams = {UUID(bytes=row.stream) for row in rows if row.topic != SEAL_TOPIC}
    return {one: read_identity(log, one)[0] for one in streams - {identity_stream(GONE)}}


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("given_up", ["before", "after", "meanwhile", "never"])
def test_a_pass_changes_nothing_that_others_have(
    log: EventLog, given_up: str, *, is_back: bool
) -> None:
    """Before and after: the end of the erasure. Meanwhile: the pass."""
    mediator = settled(log)
    (key,) = register(mediator, STAYS, GONE)
    give_up = unclaimed(STAYS, UpdateKeylist([], [GONE]))
    release = unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim))
    if given_up == "before":
        run(mediator.host, give_up, release)
    erase(mediator, GONE)
    if given_up == "after":
        run(mediator.host, give_up, release)
    if is_back:
        settle(mediator, GONE)
    work = NameErasure(log)
    if given_up == "meanwhile":
        run(mediator.host, give_up, release)
    before = others(log)
    while work.step():
        pass
    assert others(log) == before
    assert is_sound(log)
    take_out_names(log)
    assert others(log) == before
    assert [*wrong_snapshots(log)] == []
    listing = log.stream_rows(identity_stream(STAYS), topics=topics_of(KeylistUpdated))
    named = [GONE.encode() in row.state for row in listing]
    assert named[1:] == ([True] if given_up == "never" else [False, False])


def take_out_killed_at_each_change(log: EventLog) -> None:
    """Kill each pass at its first change until one has nothing more to change."""
    before, killed = others(log), 0
    while True:
        try:
            take_out_names(KilledLog(log, 1, is_done=False))
        except KilledError:
            killed += 1
        else:
            break
        assert others(log) == before
    assert killed > 2


def test_a_pass_that_is_killed_at_any_change_changes_nothing_that_others_have(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_erasure, "_ROWS", 3)
    mediator = settled(log)
    settle(mediator, OTHER)
    for did in (STAYS, OTHER):
        (key,) = register(mediator, did, GONE)
        send(mediator, STAYS, GONE, b"between")
        give_up = unclaimed(did, UpdateKeylist([], [GONE]))
        run(mediator.host, give_up, unclaimed(f"key:{GONE}", ReleaseKey(did, key.claim)))
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    erase(mediator, GONE)
    take_out_killed_at_each_change(log)
    listing = log.stream_rows(identity_stream(OTHER), topics=topics_of(KeylistUpdated))
    assert [GONE.encode() in row.state for row in listing[1:]] == [False, False]
    assert take_out_names(log) == 0


def test_a_pass_that_is_killed_within_a_long_keylist_leaves_no_key_there_that_was_given_up(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_erasure, "_ROWS", 3)
    mediator = settled(log)
    for _ in range(3):
        (key,) = register(mediator, STAYS, GONE)
        give_up = unclaimed(STAYS, UpdateKeylist([], [GONE]))
        run(mediator.host, give_up, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)))
    run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
    erase(mediator, GONE)
    take_out_killed_at_each_change(log)
    assert "keylist-updated.1" not in naming(log, GONE.encode())
