"""Who was never here, but is named by rows of others, is erased, too; others lose nothing.

Everyone here has a contract with a friend who never registered, and things from that friend.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from actors.core.account_commands import ReleaseKey
from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    CountRefusals,
    NameSpeaker,
    QueryContractRequests,
    QueryContracts,
    QueueMessage,
    UpdateKeylist,
)
from actors.core.erasure import CONTINUED, FOREIGN, OPERATOR, OWNER
from actors.core.limits import RetentionPace
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    Erased,
    MessageAccepted,
    Refused,
    Registered,
)
from eventstore.log.erasure_receipt import check_receipt, erasure_of
from eventstore.log.event_declaration import RefusedCommands
from eventstore.log.event_log import EventLog
from eventstore.log.events import (
    IdentityErased,
    IdentityErasureBegun,
    SpeakerNamed,
)
from eventstore.log.public_key import PublicKey
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import rebuild_read_models
from http_edge.crypto.signatures import public_key
from tests.contract.conftest import OpenLog
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle, settled, step, wrong
from tests.contract.test_name_erasure_contract import message_ids, naming, register, take_out_names
from tests.contract.test_retention_contract import DAY_S, FRIEND, Mediator, is_sound
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, Plan, StoredButFailed
from tests.unit.actors.given import EDGE, MEDIATOR, NOW_S, registration, run, submission, unclaimed
from tests.unit.actors.test_queueing import ALL

SAVED = ["event-saved.2"] * 5
"""Everyone's own history names the friend for as long as it is kept."""


@pytest.fixture
def mediator(log: EventLog) -> Mediator:
    made = Mediator(log)
    settle(made, STAYS)
    return made


def erase_foreign(mediator: Mediator, did: str = FRIEND) -> None:
    begun, over = step(mediator, did, FOREIGN), step(mediator, did, CONTINUED)
    assert begun == Erased(0, is_over=False)
    assert over == Erased(0, is_over=True)


def use_up(mediator: Mediator) -> None:
    """Nothing waits any more, and no contract is in force."""
    (page,) = run(mediator.host, submission(STAYS, QueryContractRequests(ALL.page)))
    assert isinstance(page, ContractRequestsPage)
    requests = [one.request_id for one in page.requests]
    run(
        mediator.host,
        submission(STAYS, AcknowledgeContractRequests(requests)),
        submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])),
    )
    mediator.pass_s(DAY_S + 400)
    while mediator.expiry.step():
        pass


def test_who_was_never_here_stands_in_no_row_that_nothing_refers_to(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    use_up(mediator)
    before = naming(log, FRIEND.encode())
    assert {"contract-stored.1", "message-queued.2", "contract-requested.2"} < {*before}
    erase_foreign(mediator)
    assert take_out_names(log) == 4
    assert naming(log, FRIEND.encode()) == SAVED
    assert is_sound(log)
    assert wrong(log_url) == []


def test_what_others_have_of_who_was_never_here_stays_theirs(
    mediator: Mediator, log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    waiting, before = message_ids(mediator, STAYS), naming(log, FRIEND.encode())
    erase_foreign(mediator)
    assert take_out_names(log) == 1  # that row of its own which named it
    assert naming(log, FRIEND.encode()) == before
    again = Mediator(open_another(), name="again")
    assert message_ids(again, STAYS) == waiting
    (more,) = run(again.host, submission(STAYS, QueueMessage(FRIEND, b"more"), sender=FRIEND))
    assert isinstance(more, MessageAccepted)
    contracts, requests = run(
        again.host,
        submission(STAYS, QueryContracts(ALL.page)),
        submission(STAYS, QueryContractRequests(ALL.page)),
    )
    assert isinstance(contracts, ContractsPage)
    assert isinstance(requests, ContractRequestsPage)
    assert (len(contracts.contracts), requests.requests[0].sender_did) == (1, FRIEND)
    use_up(again)
    assert take_out_names(log) == 4
    assert naming(log, FRIEND.encode()) == SAVED
    assert is_sound(log)
    assert wrong(log_url) == []


def test_its_name_leaves_with_a_history_of_others_that_is_erased(
    mediator: Mediator, log: EventLog
) -> None:
    erase_foreign(mediator)
    erase(mediator, STAYS)
    take_out_names(log)
    assert naming(log, FRIEND.encode()) == []
    assert is_sound(log)


def test_who_was_refused_here_leaves_the_counts_of_refusals(
    mediator: Mediator, log: EventLog
) -> None:
    refused = RefusedCommands("decentrl", "", "UNAUTHORIZED_COMMAND", GONE, 1, 1, 2)
    counted = CountRefusals(EDGE, 1, 2, [refused])
    run(mediator.host, submission(f"edge:{EDGE}", counted, sender=EDGE))
    assert naming(log, GONE.encode()) == ["refusals-counted.1"]
    erase_foreign(mediator, GONE)
    assert take_out_names(log) == 2
    assert naming(log, GONE.encode()) == []
    assert is_sound(log)


def test_only_operators_erase_who_was_never_here_and_not_by_mistake(
    mediator: Mediator, log: EventLog
) -> None:
    before = log.position()
    assert step(mediator, FRIEND, OWNER) == Refused(Refusal.UNAUTHORIZED_COMMAND)
    assert step(mediator, FRIEND, OPERATOR) == Erased(0, is_over=True, is_known=False)
    assert step(mediator, FRIEND, CONTINUED) == Erased(0, is_over=True)
    assert log.position() == before
    run(mediator.host, unclaimed(FRIEND, NameSpeaker(STAYS)))
    assert step(mediator, FRIEND, FOREIGN) == Refused(Refusal.SPEAKS_FOR_ANOTHER)


def test_who_was_never_here_is_erased_once(mediator: Mediator, log: EventLog) -> None:
    erase_foreign(mediator)
    before = log.position()
    for by in (FOREIGN, OPERATOR, CONTINUED):
        assert step(mediator, FRIEND, by) == Erased(0, is_over=True)
    assert log.position() == before
    assert [type(event) for event in mediator.events(FRIEND)] == [
        SpeakerNamed,
        IdentityErasureBegun,
        IdentityErased,
    ]


def test_who_is_here_is_erased_by_the_same_command_as_ever(log: EventLog) -> None:
    mediator = settled(log)
    begun = step(mediator, GONE, FOREIGN)
    assert isinstance(begun, Erased)
    assert not begun.is_over
    erase(mediator, GONE)
    kinds = [type(event) for event in mediator.events(GONE)]
    assert SpeakerNamed not in kinds
    assert kinds.count(IdentityErasureBegun) == 1
    assert is_sound(log)


def test_a_receipt_says_that_nothing_but_the_name_was_here(
    mediator: Mediator, log: EventLog
) -> None:
    erase_foreign(mediator)
    log.setting("mediator_did", MEDIATOR)
    key = PublicKey(public_key(bytes(32)))
    receipt = erasure_of(log, identity_stream(FRIEND), key)
    assert (receipt.reason, receipt.contents, receipt.positions) == (OPERATOR, {}, [])
    take_out_names(log)
    assert erasure_of(log, identity_stream(FRIEND), key) == receipt
    assert check_receipt(log, receipt, key) == 0


@pytest.mark.parametrize("is_nameless", [True, False])
def test_who_was_never_here_comes_later_as_new(
    mediator: Mediator, log: EventLog, log_url: str, *, is_nameless: bool
) -> None:
    use_up(mediator)
    erase_foreign(mediator)
    if is_nameless:
        take_out_names(log)
    signed = registration(FRIEND, NOW_S + 9 * DAY_S)
    now = submission(FRIEND, signed, timestamp_ms=mediator.clock.now_ms)
    (back,) = run(mediator.host, now)
    assert isinstance(back, Registered)
    take_out_names(log)
    assert naming(log, FRIEND.encode()) == [*SAVED, "identity-registered.1"]
    assert is_sound(log)
    assert wrong(log_url) == []
    erase(mediator, FRIEND)
    take_out_names(log)
    assert naming(log, FRIEND.encode()) == SAVED
    assert is_sound(log)


def test_it_comes_to_its_end_by_itself_after_a_kill_and_a_rebuild(
    mediator: Mediator, log: EventLog, open_another: OpenLog, log_url: str
) -> None:
    step(mediator, FRIEND, FOREIGN)
    assert wrong(log_url) == []
    with closing(open_store(log_url)) as store:
        rebuild_read_models(store)
    after = Mediator(open_another(), pace=RetentionPace(records_per_step_max=2), name="after")
    while after.expiry.step():
        pass
    assert isinstance(after.events(FRIEND)[-1], IdentityErased)
    assert is_sound(log)
    assert wrong(log_url) == []


@pytest.mark.parametrize("plan", [FailNext(), StoredButFailed(), ConflictNext()])
def test_a_first_step_that_fails_is_done_again(log: EventLog, plan: Plan) -> None:
    faulty = FaultyLog(log)
    mediator = Mediator(faulty)
    settle(mediator, STAYS)
    faulty.plan(plan)
    assert isinstance(step(mediator, FRIEND, FOREIGN), Refused)
    while (again := step(mediator, FRIEND, FOREIGN)) != Erased(0, is_over=True):
        assert again == Erased(0, is_over=False)
    assert len(mediator.events(FRIEND)) == 3
    assert is_sound(log)


def test_a_key_that_is_called_by_its_name_stays_its_owners(
    mediator: Mediator, log: EventLog
) -> None:
    (key,) = register(mediator, STAYS, GONE)
    erase_foreign(mediator, GONE)
    take_out_names(log)
    assert naming(log, GONE.encode()) == ["key-claimed.1", "keylist-updated.1"]
    run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
    run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)))
    take_out_names(log)
    assert naming(log, GONE.encode()) == []
    assert is_sound(log)
