"""The name of an erased account in the rows of a DID that spoke for it by rotation."""

from __future__ import annotations

import pytest

from actors.core.commands import (
    AcknowledgeMessages,
    Connect,
    EndAccount,
    FindAccount,
    NameSpeaker,
    QueueMessage,
    RotateAccount,
    UnnameSpeaker,
)
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, Refused
from actors.host.stored_states import wrong_snapshots
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream
from tests.contract.conftest import OpenLog
from tests.contract.test_erasure_contract import GONE, STAYS, erase, mediator, settle, wrong
from tests.contract.test_name_erasure_contract import message_ids, tables_naming, take_out_names
from tests.contract.test_retention_contract import FRIEND, Mediator
from tests.log.stored import faults
from tests.unit.actors.given import connection, registration, run, submission, unclaimed

__all__ = ["mediator"]

SPOKE = "did:x:spoke"


def speaker_rows(log: EventLog, name: str) -> list[bool]:
    """Whether each row that names the account of ``SPOKE`` has this name."""
    rows = log.read_stream(identity_stream(SPOKE))
    return [name.encode() in row.state for row in rows if row.topic == "speaker-named.1"]


def speak_until_the_end(mediator: Mediator, did: str) -> None:
    """Rotate the account of ``STAYS`` to a DID, end it, and let the DID go."""
    run(mediator.host, unclaimed(did, NameSpeaker(STAYS)))
    rotated = RotateAccount(STAYS, did, 1, connection())
    for command in (Connect(connection()), rotated, EndAccount(did, 2)):
        run(mediator.host, unclaimed(STAYS, command))
    run(mediator.host, unclaimed(did, UnnameSpeaker(STAYS)))


@pytest.mark.parametrize("is_let_go", [True, False])
def test_an_erased_account_leaves_the_rows_of_a_did_that_spoke_for_it(
    mediator: Mediator, log: EventLog, log_url: str, *, is_let_go: bool
) -> None:
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(GONE)))
    erase(mediator, GONE)
    if is_let_go:
        run(mediator.host, unclaimed(SPOKE, UnnameSpeaker(GONE)))
    take_out_names(log)
    assert not any(speaker_rows(log, GONE))
    assert all(speaker_rows(log, SPOKE)), "it was not erased"
    assert faults(log) == []
    assert wrong(log_url) == []


def test_no_snapshot_names_an_erased_account_that_did_not_let_go_who_spoke_for_it(
    mediator: Mediator, log: EventLog
) -> None:
    cached = Mediator(log, snapshot_after_events=4)
    cached.settle(SPOKE)
    run(cached.host, unclaimed(SPOKE, NameSpeaker(GONE)))
    erase(cached, GONE)
    take_out_names(log)
    for number in range(4):
        run(cached.host, submission(SPOKE, QueueMessage(FRIEND, b"%d" % number), sender=FRIEND))
        waiting = [*message_ids(cached, SPOKE)]
        run(cached.host, submission(SPOKE, AcknowledgeMessages(waiting)))
    log.save_snapshots(cached.host.run_housekeeping())
    snapshot = log.load_snapshot(identity_stream(SPOKE))
    assert snapshot is not None
    assert snapshot.state
    assert GONE.encode() not in snapshot.state
    assert list(wrong_snapshots(log)) == []


def test_no_snapshot_of_an_account_that_has_ended_names_the_erased_did_that_spoke_for_it(
    log: EventLog, log_url: str
) -> None:
    cached = Mediator(log, snapshot_after_events=2)
    cached.settle(STAYS)
    settle(cached, GONE)
    speak_until_the_end(cached, GONE)
    erase(cached, GONE)
    log.save_snapshots(cached.host.run_housekeeping())
    assert take_out_names(log)
    run(cached.host, submission(STAYS, AcknowledgeMessages([*message_ids(cached, STAYS)])))
    log.save_snapshots(cached.host.run_housekeeping())
    snapshot = log.load_snapshot(identity_stream(STAYS))
    assert snapshot is not None
    assert snapshot.state
    assert "snapshots" not in tables_naming(log_url, GONE)
    assert list(wrong_snapshots(log)) == []


def test_an_erased_did_that_spoke_again_for_an_account_that_is_erased_too_loses_its_names(
    mediator: Mediator, log: EventLog
) -> None:
    settle(mediator, SPOKE)
    erase(mediator, SPOKE)
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(GONE)))
    erase(mediator, GONE)
    for _ in range(2):
        take_out_names(log)
    assert speaker_rows(log, SPOKE) == speaker_rows(log, GONE) == [False]
    assert faults(log) == []


def test_a_did_that_spoke_for_another_account_loses_all_names_when_it_is_erased_too(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(STAYS)))
    run(mediator.host, unclaimed(SPOKE, UnnameSpeaker(STAYS)))
    erase(mediator, SPOKE)
    take_out_names(log)
    assert speaker_rows(log, STAYS) == speaker_rows(log, SPOKE) == [False, False]
    assert faults(log) == []
    assert wrong(log_url) == []


def test_an_erased_did_that_speaks_for_an_account_again_keeps_naming_it(
    mediator: Mediator, log: EventLog, open_another: OpenLog
) -> None:
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(GONE)))
    run(mediator.host, unclaimed(SPOKE, UnnameSpeaker(GONE)))
    erase(mediator, SPOKE)
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(STAYS)))
    take_out_names(log)
    assert speaker_rows(log, STAYS) == [False, False, True]
    log.save_snapshots([])
    again = Mediator(open_another(), name="again")
    (found,) = run(again.host, unclaimed(SPOKE, FindAccount([])))
    assert isinstance(found, AccountFound)
    assert found.account_did == STAYS
    assert faults(log) == []


def test_an_erased_did_that_speaks_for_an_account_again_is_not_shut_out_of_it(
    mediator: Mediator, log: EventLog, open_another: OpenLog
) -> None:
    account = connection(SPOKE)
    settle(mediator, SPOKE)
    erase(mediator, SPOKE)
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(STAYS)))
    run(mediator.host, unclaimed(STAYS, RotateAccount(STAYS, SPOKE, 1, account)))
    take_out_names(log)
    again = Mediator(open_another(), name="again")
    (found,) = run(again.host, unclaimed(STAYS, FindAccount([])))
    assert isinstance(found, AccountFound)
    assert found.speaker_did == SPOKE


def test_an_erased_did_that_spoke_again_and_was_let_go_loses_its_names(
    mediator: Mediator, log: EventLog
) -> None:
    settle(mediator, SPOKE)
    erase(mediator, SPOKE)
    run(mediator.host, unclaimed(SPOKE, NameSpeaker(STAYS)))
    run(mediator.host, unclaimed(SPOKE, UnnameSpeaker(STAYS)))
    take_out_names(log)
    assert speaker_rows(log, SPOKE) == speaker_rows(log, STAYS) == [False, False]


def test_who_spoke_for_an_account_that_has_ended_loses_its_names_and_gives_nothing_back(
    mediator: Mediator, log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    settle(mediator, STAYS)
    settle(mediator, SPOKE)
    speak_until_the_end(mediator, SPOKE)
    erase(mediator, SPOKE)
    take_out_names(log)
    rows = log.read_stream(identity_stream(STAYS))
    assert [row.topic for row in rows if SPOKE.encode() in row.state] == []
    assert faults(log) == []
    assert wrong(log_url) == []
    again = Mediator(open_another(), name="again")
    (renewed,) = run(again.host, submission(STAYS, registration(STAYS)))
    assert renewed == Refused(Refusal.UNAUTHORIZED_COMMAND), "another spoke for it"
    erase(again, STAYS)
    assert faults(log) == []
