"""``decide``: every command against every state that matters, without log or clock."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    CheckRegistered,
    CloseSession,
    Command,
    CountRefusals,
    DedicateIdentity,
    DeletePublicEvents,
    EraseIdentity,
    NewSavedEvent,
    OpenSession,
    Page,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QuerySavedEvents,
    QueueMessage,
    Register,
    ReleaseIdentity,
    RequestContract,
    SaveContract,
    SaveEvents,
    StoreContract,
    TagUpdate,
    UpdateEventTags,
)
from actors.core.decide import RULES, decide
from actors.core.decision import Accepted, ContractRefs, Decision, MessageRefs, RequestRefs
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractsUpdated,
    Done,
    MessageAccepted,
    MessageArrived,
    PublicEventAccepted,
    ReadAllowed,
    Registered,
    WaitingMessage,
)
from actors.core.stored_bytes import stored_bytes
from eventstore.log.event_log import SavedEventsFilter
from eventstore.log.events import (
    AccountRotated,
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractStored,
    EventSaved,
    EventTagsUpdated,
    IdentityRegistered,
    MessageQueued,
    MessagesRemoved,
    PublicEventPublished,
    PublicEventsDeleted,
)
from tests.unit.actors.didcomm import BY_AGENTS, ON_ACCOUNTS, ON_KEYS, ON_QUEUES
from tests.unit.actors.given import (
    MEDIATOR,
    NOW_MS,
    NOW_S,
    content,
    context,
    contract,
    registration,
)

ME, FRIEND, OTHER = "did:x:me", "did:x:friend", "did:x:other"
ALL = Page(0, 100)
EVENT = NewSavedEvent(ME, FRIEND, None, 1, "p", ["t"])
PUBLISH = PublishPublicEvent("channel", "event", ["t"], 1, "signature", signature_valid=True)

OWN: list[Command] = [
    SaveContract(contract(FRIEND, ME)),
    QueryContractRequests(ALL),
    AcknowledgeContractRequests(["x"]),
    QueryContracts(ALL),
    QueryMessages(ALL),
    AcknowledgeMessages(["x"]),
    SaveEvents([EVENT]),
    QuerySavedEvents(ALL, SavedEventsFilter()),
    UpdateEventTags([TagUpdate("x", [])]),
    PUBLISH,
    DeletePublicEvents(["x"]),
    OpenSession("edge-0"),
]
FROM_OTHERS: list[Command] = [
    RequestContract(FRIEND, "sealed", "key"),
    StoreContract(contract(FRIEND, ME)),
    QueueMessage(FRIEND, b"sealed"),
    CheckRegistered(),
]


DIDCOMM = {type(command) for command in (*BY_AGENTS, *ON_ACCOUNTS, *ON_KEYS, *ON_QUEUES)}
"""Their tests are in ``test_agents`` and ``test_envelopes``."""


def do(state: Identity, command: Command, **at: object) -> Decision:
    """Decide, and evolve with what was decided."""
    decision = decide(state, command, context(**at))  # type: ignore[arg-type] # test shorthand
    if isinstance(decision, Accepted):
        for event in decision.events:
            evolve(state, event)
    return decision


@pytest.fixture
def state() -> Identity:
    """Registered until 60 s from now, with a contract with a friend until 30 s from now."""
    state = Identity()
    do(state, registration(ME))
    do(state, SaveContract(contract(FRIEND, ME, NOW_S + 30)), fresh_id="contract")
    return state


def test_these_tests_know_every_command() -> None:
    known = {type(command) for command in [*OWN, *FROM_OTHERS]}
    known |= {Register, CloseSession, CountRefusals}
    known |= {EraseIdentity}  # its tests are in ``tests/contract/test_erasure_contract.py``
    known |= {DedicateIdentity, ReleaseIdentity}  # their tests are in ``test_dedication``
    assert known | DIDCOMM == set(get_args(Command))


@pytest.mark.parametrize("command", OWN, ids=lambda command: type(command).__name__)
def test_what_one_does_oneself_needs_a_registration(command: Command, state: Identity) -> None:
    assert do(Identity(), command) is Refusal.UNAUTHORIZED_COMMAND
    assert do(state, command, now_ms=NOW_MS + 60_000) is Refusal.UNAUTHORIZED_COMMAND
    accepted = decide(state, command, context(NOW_MS + 59_999))
    assert isinstance(accepted, Accepted)


@pytest.mark.parametrize("command", FROM_OTHERS, ids=lambda command: type(command).__name__)
def test_what_others_do_needs_the_recipients_registration(
    command: Command, state: Identity
) -> None:
    assert do(Identity(), command) is Refusal.RECIPIENT_NOT_REGISTERED
    assert do(state, command, now_ms=NOW_MS + 60_000) is Refusal.RECIPIENT_NOT_REGISTERED
    assert isinstance(decide(state, command, context()), Accepted)


@pytest.mark.parametrize(
    "command", [*OWN, *FROM_OTHERS], ids=lambda command: type(command).__name__
)
def test_what_was_given_up_in_didcomm_is_read_and_emptied_but_takes_nothing(
    command: Command, state: Identity
) -> None:
    do(state, RequestContract(FRIEND, "sealed", "key"), fresh_id="x")
    rotation: Any = {"speaker_did": OTHER, "prior_did": ME, "issued_at_s": NOW_S}
    evolve(state, AccountRotated(at_ms=NOW_MS, command=b"c" * 16, **rotation))
    takes = RULES[type(command)].adds or command in FROM_OTHERS
    refusal = Refusal.UNAUTHORIZED_COMMAND if command in OWN else Refusal.RECIPIENT_NOT_REGISTERED
    decision = do(state, command)
    assert decision is refusal if takes else isinstance(decision, Accepted)


def test_a_registration_records_its_contract_and_end() -> None:
    command = registration(ME, NOW_S + 0.5)
    assert do(Identity(), command) == Accepted(
        Registered(NOW_S + 0.5),
        [
            IdentityRegistered(
                at_ms=NOW_MS,
                command=b"c" * 16,
                did=ME,
                expires_at_s=NOW_S + 0.5,
                contract=command.contract.signed,
            )
        ],
    )


@pytest.mark.parametrize("expires_at_s", [NOW_S, NOW_S - 1, 0])
def test_a_registration_that_has_ended_is_an_invalid_command(expires_at_s: int) -> None:
    assert do(Identity(), registration(ME, expires_at_s)) is Refusal.INVALID_COMMAND


def test_of_several_registrations_the_latest_end_counts(state: Identity) -> None:
    do(state, registration(ME, NOW_S + 10))
    assert do(state, CheckRegistered()) == Accepted(Registered(NOW_S + 60))
    do(state, registration(ME, NOW_S + 90))
    assert do(state, CheckRegistered()) == Accepted(Registered(NOW_S + 90))
    assert do(state, OpenSession("edge-0")) == Accepted(Registered(NOW_S + 90))


def test_a_registration_that_is_over_counts_only_for_its_renewal(state: Identity) -> None:
    over = {"now_ms": (NOW_S + 60) * 1000}
    assert do(state, CheckRegistered(), **over) is Refusal.RECIPIENT_NOT_REGISTERED
    assert do(state, CheckRegistered(or_was=True), **over) == Accepted(Registered(NOW_S + 60))
    assert do(Identity(), CheckRegistered(or_was=True)) is Refusal.RECIPIENT_NOT_REGISTERED


def test_a_request_is_recorded_and_updates_its_recipient(state: Identity) -> None:
    assert do(state, RequestContract(OTHER, "sealed", "key")) == Accepted(
        Done(),
        [
            ContractRequested(
                at_ms=NOW_MS,
                command=b"c" * 16,
                request_id="fresh",
                sender_did=OTHER,
                encrypted_contract_request=content(b"sealed"),
                requestor_ephemeral_public_key="key",
            )
        ],
        ContractsUpdated(),
    )


def test_requests_wait_in_order_until_they_are_acknowledged(state: Identity) -> None:
    for fresh_id in ("a", "b", "c"):
        do(state, RequestContract(OTHER, fresh_id, "key"), fresh_id=fresh_id)
    one = state.request_bytes // 3
    assert do(state, QueryContractRequests(Page(0, 2))) == Accepted(RequestRefs([3, 4], 3, 2 * one))
    assert do(state, QueryContractRequests(Page(1, 2))) == Accepted(RequestRefs([5], 3, one))
    accepted = do(state, AcknowledgeContractRequests(["b", "x", "b"]))
    assert accepted == Accepted(
        Done(),
        [
            ContractRequestsAcknowledged(
                at_ms=NOW_MS, command=b"c" * 16, request_ids=["b"], versions=[4]
            )
        ],
    )
    assert do(state, QueryContractRequests(ALL)) == Accepted(RequestRefs([3, 5], 2, 2 * one))
    assert do(state, AcknowledgeContractRequests(["b"])) == Accepted(Done())


@pytest.mark.parametrize("command", [SaveContract, StoreContract])
def test_a_contract_is_recorded_once_and_updates_its_owner_each_time(
    command: type[SaveContract | StoreContract], state: Identity
) -> None:
    mine = contract(OTHER, ME)
    stored = ContractStored(
        at_ms=NOW_MS,
        command=b"c" * 16,
        contract_id="fresh",
        requestor_did=OTHER,
        recipient_did=ME,
        expires_at_s=NOW_S + 60,
        digest=mine.digest,
        contract=mine.signed,
    )
    assert do(state, command(mine)) == Accepted(Done(), [stored], ContractsUpdated())
    assert do(state, command(mine)) == Accepted(Done(), [], ContractsUpdated())
    found = ContractRefs([3], 1, stored_bytes(stored))
    assert do(state, QueryContracts(ALL, did=OTHER)) == Accepted(found, looked_at=2)


@pytest.mark.parametrize("command", [SaveContract, StoreContract])
@pytest.mark.parametrize("refusal", [Refusal.INVALID_COMMAND, Refusal.INVALID_SIGNATURES])
def test_the_validation_of_the_edge_counts_after_authorization(
    command: type[SaveContract | StoreContract], refusal: Refusal, state: Identity
) -> None:
    assert do(state, command(refusal)) is refusal
    assert do(Identity(), command(refusal)) in {
        Refusal.UNAUTHORIZED_COMMAND,
        Refusal.RECIPIENT_NOT_REGISTERED,
    }


@pytest.mark.parametrize("command", [SaveContract, StoreContract])
def test_a_contract_that_has_ended_meanwhile_is_an_invalid_command(
    command: type[SaveContract | StoreContract], state: Identity
) -> None:
    assert do(state, command(contract(OTHER, ME, NOW_S))) is Refusal.INVALID_COMMAND


def test_contracts_are_found_by_party_and_by_bounds_that_exclude(state: Identity) -> None:
    do(state, SaveContract(contract(ME, OTHER, NOW_S + 50)), fresh_id="second")

    def found(**where: object) -> list[int]:
        decision = do(state, QueryContracts(ALL, **where))  # type: ignore[arg-type] # test shorthand
        assert isinstance(decision, Accepted)
        assert isinstance(decision.reply, ContractRefs)
        assert decision.reply.total == len(decision.reply.versions)
        return decision.reply.versions

    assert found() == [2, 3]
    assert found(did=ME) == [2, 3]
    assert found(did=FRIEND) == [2]
    assert found(did="did:x:unknown") == []
    assert found(expires_before_s=NOW_S + 50) == [2]
    assert found(expires_after_s=NOW_S + 30) == [3]
    assert found(expires_after_s=NOW_S + 30, expires_before_s=NOW_S + 50) == []
    assert found(expires_before_s=0) == []
    (_, last) = state.contracts.values()
    found_last = ContractRefs([3], 2, last.stored_bytes)
    assert do(state, QueryContracts(Page(1, 1))) == Accepted(found_last)


def test_a_page_of_too_many_bytes_is_refused_unless_it_is_one_record(state: Identity) -> None:
    do(state, SaveContract(contract(ME, OTHER, NOW_S + 50)), fresh_id="second")
    for fresh_id in ("a", "b"):
        do(state, RequestContract(OTHER, "x" * 100, "key"), fresh_id=fresh_id)
    for query in (QueryContracts, QueryContractRequests):
        assert do(state, query(Page(0, 2, 100))) is Refusal.INVALID_COMMAND
        assert isinstance(do(state, query(Page(0, 1, 100))), Accepted)
        assert isinstance(do(state, query(Page(0, 2, 10_000))), Accepted)


def test_a_message_is_recorded_and_arrives(state: Identity) -> None:
    assert do(state, QueueMessage(FRIEND, b"sealed")) == Accepted(
        MessageAccepted("fresh"),
        [
            MessageQueued(
                at_ms=NOW_MS,
                command=b"c" * 16,
                message_id="fresh",
                protocol="decentrl",
                sender_did=FRIEND,
                recipient_key="",
                payload=content(b"sealed"),
            )
        ],
        MessageArrived(WaitingMessage("fresh", FRIEND, b"sealed")),
    )


def test_a_message_needs_a_contract_that_has_not_ended(state: Identity) -> None:
    not_found = Refusal.COMMUNICATION_CONTRACT_NOT_FOUND
    assert do(state, QueueMessage(OTHER, b"x")) is not_found
    assert do(state, QueueMessage(FRIEND, b"x"), now_ms=NOW_MS + 30_000) is not_found
    assert isinstance(do(state, QueueMessage(FRIEND, b"x"), now_ms=NOW_MS + 29_999), Accepted)


def test_no_identity_writes_to_itself_or_as_the_mediator(state: Identity) -> None:
    not_found = Refusal.COMMUNICATION_CONTRACT_NOT_FOUND
    assert do(state, QueueMessage(ME, b"x")) is not_found
    assert do(state, QueueMessage(MEDIATOR, b"x")) is not_found


def test_messages_wait_in_order_until_they_are_acknowledged(state: Identity) -> None:
    do(state, SaveContract(contract(OTHER, ME)), fresh_id="other")
    for fresh_id, sender in (("a", FRIEND), ("b", OTHER), ("c", FRIEND)):
        do(state, QueueMessage(sender, b"x"), fresh_id=fresh_id)
    assert do(state, QueryMessages(Page(0, 2))) == Accepted(MessageRefs([4, 5], 3, 2))
    assert do(state, QueryMessages(Page(2, 2))) == Accepted(MessageRefs([], 3, 0))
    assert do(state, QueryMessages(Page(1, 1), FRIEND)) == Accepted(MessageRefs([6], 2, 1))
    removed = do(state, AcknowledgeMessages(["c", "x", "a", "c"]))
    assert removed == Accepted(
        Done(),
        [
            MessagesRemoved(
                at_ms=NOW_MS,
                command=b"c" * 16,
                message_ids=["c", "a"],
                reason="acknowledged",
                versions=[6, 4],
            )
        ],
    )
    assert do(state, QueryMessages(ALL)) == Accepted(MessageRefs([5], 1, 1))
    assert do(state, AcknowledgeMessages(["a", "c"])) == Accepted(Done())
    assert do(state, AcknowledgeMessages([])) == Accepted(Done())


def test_events_are_saved_with_ids_of_their_own_and_ones_own_are_processed(
    state: Identity,
) -> None:
    theirs = NewSavedEvent(FRIEND, ME, "contract", 1.5, "q", [])
    decision = do(state, SaveEvents([EVENT, theirs]))
    assert isinstance(decision, Accepted)
    one, two = decision.events
    assert isinstance(one, EventSaved)
    assert isinstance(two, EventSaved)
    assert one.event_id != two.event_id
    assert (one.processed, two.processed) == (True, False)
    assert (two.contract_id, two.timestamp_s, two.encrypted_tags) == ("contract", 1.5, [])
    assert do(state, SaveEvents([])) == Accepted(Done(), [])


def test_the_last_update_of_tags_counts(state: Identity) -> None:
    updates = [TagUpdate("a", ["1"]), TagUpdate("b", []), TagUpdate("a", ["2"])]
    decision = do(state, UpdateEventTags(updates), saved={"a", "b"})
    assert isinstance(decision, Accepted)
    updated = [event for event in decision.events if isinstance(event, EventTagsUpdated)]
    assert len(updated) == len(decision.events)
    assert [(e.event_id, e.encrypted_tags) for e in updated] == [("a", ["2"]), ("b", [])]


def test_of_events_that_the_owner_does_not_have_nothing_is_kept(state: Identity) -> None:
    decision = do(state, UpdateEventTags([TagUpdate("a", ["1"])] * 2), saved={"b"})
    assert decision == Accepted(Done(), [])


def test_saved_events_are_read_with_leave(state: Identity) -> None:
    assert do(state, QuerySavedEvents(ALL, SavedEventsFilter())) == Accepted(ReadAllowed())


def test_a_public_event_is_published_if_its_own_signature_holds(state: Identity) -> None:
    published = PublicEventPublished(
        at_ms=NOW_MS,
        command=b"c" * 16,
        event_id="fresh",
        channel_id="channel",
        event=content(b"event"),
        tags=["t"],
        timestamp_s=1,
        event_signature="signature",
    )
    assert do(state, PUBLISH) == Accepted(PublicEventAccepted("fresh"), [published])
    forged = PublishPublicEvent("channel", "event", [], 1, "signature", signature_valid=False)
    assert do(state, forged) is Refusal.INVALID_SIGNATURE
    assert do(Identity(), forged) is Refusal.UNAUTHORIZED_COMMAND


@pytest.mark.parametrize(
    ("command", "withdrawn"),
    [
        (DeletePublicEvents(["a", "x", "a"]), ["a"]),
        (DeletePublicEvents(["a"], "channel"), ["a"]),
        (DeletePublicEvents(["a"], "another"), []),
        (DeletePublicEvents([]), []),
    ],
)
def test_only_ones_own_public_events_are_withdrawn(
    command: DeletePublicEvents, withdrawn: list[str], state: Identity
) -> None:
    do(state, PUBLISH, fresh_id="a")
    decision = do(state, command)
    assert isinstance(decision, Accepted)
    events = [e.event_ids for e in decision.events if isinstance(e, PublicEventsDeleted)]
    assert events == ([withdrawn] if withdrawn else [])
    assert list(state.public_events) == ([] if withdrawn else ["a"])


LIMITS = IdentityLimits(
    queue_messages_max=1,
    queue_bytes_max=4,
    contract_requests_max=1,
    contracts_max=1,
    saved_events_max=1,
    public_events_max=1,
)


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        (QueueMessage(FRIEND, b""), QueueMessage(FRIEND, b""), Refusal.RECIPIENT_QUEUE_FULL),
        (None, QueueMessage(FRIEND, b"12345"), Refusal.RECIPIENT_QUEUE_FULL),
        (
            RequestContract(OTHER, "", ""),
            RequestContract(OTHER, "", ""),
            Refusal.RECIPIENT_QUEUE_FULL,
        ),
        (None, SaveContract(contract(OTHER, ME)), Refusal.QUOTA_EXCEEDED),
        (None, StoreContract(contract(OTHER, ME)), Refusal.RECIPIENT_QUEUE_FULL),
        (SaveEvents([EVENT]), SaveEvents([EVENT]), Refusal.QUOTA_EXCEEDED),
        (None, SaveEvents([EVENT, EVENT]), Refusal.QUOTA_EXCEEDED),
        (PUBLISH, PUBLISH, Refusal.QUOTA_EXCEEDED),
    ],
)
def test_a_cap_refuses_and_drops_nothing(
    first: Command | None, second: Command, refusal: Refusal, state: Identity
) -> None:
    if first is not None:
        assert isinstance(do(state, first, limits=LIMITS), Accepted)
    version = state.version
    assert do(state, second, limits=LIMITS) is refusal
    assert state.version == version


def test_what_is_at_its_cap_has_room_again_when_something_left(state: Identity) -> None:
    assert isinstance(do(state, QueueMessage(FRIEND, b"1234"), limits=LIMITS), Accepted)
    do(state, AcknowledgeMessages(["fresh"]))
    assert isinstance(do(state, QueueMessage(FRIEND, b"1234"), limits=LIMITS), Accepted)


def test_a_session_may_always_be_closed() -> None:
    assert do(Identity(), CloseSession("edge-0")) == Accepted(Done())


def test_a_decision_changes_nothing(state: Identity) -> None:
    do(state, QueueMessage(FRIEND, b"x"), fresh_id="a")
    before = repr(state)
    for command in [*OWN, *FROM_OTHERS, registration(ME), CloseSession("e")]:
        decide(state, command, context())
    assert repr(state) == before


def test_every_command_has_its_row_in_the_table() -> None:
    assert set(RULES) == set(get_args(Command))
