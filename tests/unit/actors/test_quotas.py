"""Shares of a queue and quotas in bytes: what one sender and one identity can take of the disk."""

from __future__ import annotations

import pytest

from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    Command,
    DeletePublicEvents,
    NewSavedEvent,
    PublishPublicEvent,
    QueueMessage,
    RequestContract,
    SaveContract,
    SaveEvents,
    StoreContract,
    TagUpdate,
    UpdateEventTags,
)
from actors.core.cost import parts
from actors.core.decide import decide
from actors.core.decision import Accepted, Decision
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.stored_bytes import updated_tags_bytes
from tests.unit.actors.given import NOW_S, context, contract, registration

FULL = Refusal.RECIPIENT_QUEUE_FULL
ME, FRIEND, OTHER = "did:x:me", "did:x:friend", "did:x:other"
EVENT = NewSavedEvent(ME, FRIEND, None, 1, "p", ["t"])
PUBLISH = PublishPublicEvent("channel", "event", ["t"], 1, "signature", signature_valid=True)


def do(state: Identity, command: Command, **at: object) -> Decision:
    """Decide, and evolve with what was decided; saved events are all that a command names."""
    if isinstance(command, UpdateEventTags):
        at["saved"] = {update.event_id for update in command.updates}
    decision = decide(state, command, context(**at))  # type: ignore[arg-type] # test shorthand
    if isinstance(decision, Accepted):
        for event in decision.events:
            evolve(state, event)
    return decision


@pytest.fixture
def state() -> Identity:
    """Registered, with a contract with a friend."""
    state = Identity()
    do(state, registration(ME))
    do(state, SaveContract(contract(FRIEND, ME, NOW_S + 30)), fresh_id="contract")
    return state


TWO_SENDERS = (FRIEND, OTHER)


def fill(state: Identity, sender: str, payload: bytes, limits: IdentityLimits) -> int:
    """Queue messages of one sender until one is refused; how many were not."""
    for index in range(100):
        command = QueueMessage(sender, payload)
        if do(state, command, limits=limits, fresh_id=f"{sender} {index}") is FULL:
            return index
    raise AssertionError("a queue without an end")


@pytest.mark.parametrize(
    "limits",
    [IdentityLimits(queue_messages_max=10), IdentityLimits(queue_bytes_max=40)],
    ids=["messages", "bytes"],
)
def test_no_sender_fills_a_queue_alone(state: Identity, limits: IdentityLimits) -> None:
    do(state, SaveContract(contract(OTHER, ME)), fresh_id="other")
    assert [fill(state, sender, b"1234", limits) for sender in TWO_SENDERS] == [5, 5]
    do(state, AcknowledgeMessages([f"{OTHER} 0"]))
    # What was made free is for another sender than the one that has its share.
    assert do(state, QueueMessage(FRIEND, b"1234"), limits=limits) is FULL
    assert isinstance(do(state, QueueMessage(OTHER, b"1234"), limits=limits), Accepted)


def test_a_message_alone_is_within_every_share(state: Identity) -> None:
    limits = IdentityLimits(queue_messages_max=1, queue_bytes_max=40)
    assert isinstance(do(state, QueueMessage(FRIEND, b"x" * 40), limits=limits), Accepted)


def test_no_stranger_takes_all_places_for_contract_requests(state: Identity) -> None:
    limits = IdentityLimits(contract_requests_max=4)
    for fresh_id in ("a", "b"):
        do(state, RequestContract(FRIEND, "sealed", "key"), limits=limits, fresh_id=fresh_id)
    assert do(state, RequestContract(FRIEND, "sealed", "key"), limits=limits) is FULL
    assert isinstance(do(state, RequestContract(OTHER, "sealed", "key"), limits=limits), Accepted)
    do(state, AcknowledgeContractRequests(["a", "a", "unknown"]))
    assert isinstance(do(state, RequestContract(FRIEND, "sealed", "key"), limits=limits), Accepted)


def test_no_stranger_takes_all_bytes_for_contract_requests(state: Identity) -> None:
    limits = IdentityLimits(contract_requests_bytes_max=4_000)
    long, short = RequestContract(FRIEND, "x" * 1_400, "key"), RequestContract(FRIEND, "x", "key")
    assert isinstance(do(state, long, limits=limits, fresh_id="long"), Accepted)
    assert do(state, long, limits=limits) is FULL
    assert isinstance(do(state, short, limits=limits, fresh_id="short"), Accepted)
    of_other = RequestContract(OTHER, "x" * 1_400, "key")
    assert isinstance(do(state, of_other, limits=limits, fresh_id="other"), Accepted)
    do(state, AcknowledgeContractRequests(["long"]))
    assert isinstance(do(state, long, limits=limits), Accepted)


def test_a_contract_request_alone_is_within_every_share(state: Identity) -> None:
    limits = IdentityLimits(contract_requests_max=1, contract_requests_bytes_max=2_000)
    alone = RequestContract(FRIEND, "x" * 1_500, "key")
    assert isinstance(do(state, alone, limits=limits), Accepted)


def test_strangers_together_take_no_more_places_than_there_are(state: Identity) -> None:
    limits = IdentityLimits(contract_requests_max=2)
    for stranger in ("a", "b"):
        request = RequestContract(stranger, "sealed", "key")
        assert isinstance(do(state, request, limits=limits, fresh_id=stranger), Accepted)
    assert do(state, RequestContract("c", "sealed", "key"), limits=limits) is FULL


MANY_TAGS = ["t" * 100] * 10
LONG = NewSavedEvent(ME, FRIEND, None, 1, "p" * 1_000, [])


@pytest.mark.parametrize(
    ("command", "limits", "refusal", "times"),
    [
        (SaveEvents([LONG]), {"saved_events_bytes_max": 4_000}, Refusal.QUOTA_EXCEEDED, 3),
        (SaveEvents([LONG] * 4), {"saved_events_bytes_max": 4_000}, Refusal.QUOTA_EXCEEDED, 0),
        (
            UpdateEventTags([TagUpdate("known", MANY_TAGS)]),
            {"saved_events_bytes_max": 8_000},
            Refusal.QUOTA_EXCEEDED,
            2,
        ),
        (PUBLISH, {"public_events_bytes_max": 1_100}, Refusal.QUOTA_EXCEEDED, 2),
        (SaveEvents([LONG]), {"identity_bytes_max": 4_000}, Refusal.QUOTA_EXCEEDED, 2),
        (PUBLISH, {"identity_bytes_max": 1_700}, Refusal.QUOTA_EXCEEDED, 2),
        (
            RequestContract(OTHER, "é" * 500, "key"),
            {"contract_requests_bytes_max": 4_000, "queue_sender_share_max": 1},
            Refusal.RECIPIENT_QUEUE_FULL,
            3,
        ),
    ],
)
def test_every_kind_has_a_quota_in_bytes(
    state: Identity,
    command: Command,
    limits: dict[str, int],
    refusal: Refusal,
    times: int,
) -> None:
    bounds = IdentityLimits(**limits)
    for index in range(times):
        assert isinstance(do(state, command, limits=bounds, fresh_id=f"{index}"), Accepted), index
    version = state.version
    assert do(state, command, limits=bounds) is refusal
    assert state.version == version


@pytest.mark.parametrize(
    ("command", "refusal"),
    [(SaveContract, Refusal.QUOTA_EXCEEDED), (StoreContract, Refusal.RECIPIENT_QUEUE_FULL)],
)
def test_contracts_have_a_quota_in_bytes(
    state: Identity, command: type[SaveContract | StoreContract], refusal: Refusal
) -> None:
    limits = IdentityLimits(contracts_bytes_max=600)
    assert do(state, command(contract(OTHER, ME)), limits=limits) is refusal


@pytest.mark.parametrize("limits", [{"contracts_max": 6}, {"contracts_bytes_max": 6 * 320}])
def test_no_partner_takes_all_the_room_for_contracts(
    state: Identity, limits: dict[str, int]
) -> None:
    """Of one request its recipient makes as many as it likes: its key is in none but its part."""
    bounds = IdentityLimits(**limits)
    stored = [
        do(state, StoreContract(contract(ME, FRIEND, NOW_S + n)), limits=bounds, fresh_id=f"{n}")
        for n in range(1, 5)
    ]
    assert [decision is FULL for decision in stored] == [False, False, True, True]
    other = do(state, StoreContract(contract(ME, OTHER)), limits=bounds, fresh_id="other")
    assert isinstance(other, Accepted)
    own = do(state, SaveContract(contract(ME, FRIEND, NOW_S + 9)), limits=bounds)
    assert isinstance(own, Accepted)  # the owner itself has all of it


def test_a_full_history_keeps_no_message_out(state: Identity) -> None:
    limits = IdentityLimits(identity_bytes_max=300)
    assert do(state, SaveEvents([EVENT]), limits=limits) is Refusal.QUOTA_EXCEEDED
    assert do(state, SaveContract(contract(OTHER, ME)), limits=limits) is Refusal.QUOTA_EXCEEDED
    for command in (QueueMessage(FRIEND, b"x"), RequestContract(OTHER, "sealed", "key")):
        assert isinstance(do(state, command, limits=limits), Accepted)
    assert isinstance(do(state, StoreContract(contract(OTHER, ME)), limits=limits), Accepted)


def test_what_leaves_does_not_count_any_more(state: Identity) -> None:
    stored = state.stored_bytes
    do(state, PUBLISH, fresh_id="public")
    do(state, RequestContract(OTHER, "sealed", "key"), fresh_id="request")
    do(state, QueueMessage(FRIEND, b"x"), fresh_id="message")
    assert state.stored_bytes > stored
    do(state, DeletePublicEvents(["public"]))
    do(state, AcknowledgeContractRequests(["request"]))
    do(state, AcknowledgeMessages(["message"]))
    assert state.stored_bytes == stored
    assert (state.by_sender, state.requests_by_sender) == ({}, {})


def test_a_command_in_parts_is_refused_by_its_first_part_or_not_at_all(state: Identity) -> None:
    updates = [TagUpdate(f"event {number}", ["t"]) for number in range(100)]
    one_bytes = updated_tags_bytes(["t"])
    first, *rest = parts(UpdateEventTags(updates))
    assert len(rest) > 1
    too_small = IdentityLimits(saved_events_bytes_max=100 * one_bytes - 1)
    assert do(state, first, limits=too_small) is Refusal.QUOTA_EXCEEDED
    enough = IdentityLimits(saved_events_bytes_max=100 * one_bytes)
    assert isinstance(do(state, first, limits=enough), Accepted)
    # Another command comes in between and takes the room.
    assert isinstance(do(state, SaveEvents([LONG]), limits=enough), Accepted)
    for part in rest:
        assert isinstance(do(state, part, limits=enough), Accepted)
    assert state.saved_bytes > 100 * one_bytes
    assert do(state, first, limits=enough) is Refusal.QUOTA_EXCEEDED
