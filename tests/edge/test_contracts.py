"""DCTRL-0004 8.1 (forwarded) to 8.6: contract requests and contracts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.identities import Identity, Json, contract_request, signed_contract
from tests.edge.mediator import (
    MEDIATOR_DID,
    SUCCESS,
    Answer,
    HandClock,
    Mediator,
)

INVALID = (400, "INVALID_COMMAND")
INVALID_SIGNATURES = (401, "INVALID_SIGNATURES")
UNAUTHORIZED = (401, "UNAUTHORIZED_COMMAND")
NOT_REGISTERED = (404, "RECIPIENT_NOT_REGISTERED")
QUERY_REQUESTS = "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS"
ACKNOWLEDGE_REQUESTS = "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS"
QUERY_CONTRACTS = "QUERY_COMMUNICATION_CONTRACTS"

# Nonce and effect fall on the same host and on two; see test_layouts.py for the other layouts.
pytestmark = pytest.mark.parametrize("layout", ["two hosts"])


async def forward(
    mediator: Mediator, sender: Identity, recipient: Identity, text: str = "x"
) -> Answer:
    payload = contract_request(sender, recipient.pre_public, {"text": text})
    return await mediator.send(sender, payload, to=recipient)


async def save(mediator: Mediator, owner: Identity, contract: Any) -> Answer:
    return await mediator.do(
        owner, "SAVE_COMMUNICATION_CONTRACT", signed_communication_contract=contract
    )


async def respond(
    mediator: Mediator, sender: Identity, contract: Any, to: Identity | str = MEDIATOR_DID
) -> Answer:
    payload = {
        "type": "COMMUNICATION_CONTRACT_RESPONSE",
        "signed_communication_contract": contract,
    }
    return await mediator.send(sender, payload, to=to)


async def contracts(mediator: Mediator, owner: Identity, **where: Any) -> list[Json]:
    records = await mediator.records(owner, QUERY_CONTRACTS, filter=where)
    return [record["signed_communication_contract"] for record in records]


# ---- requests


async def test_trap_37_a_forwarded_request_is_answered_requested_and_found_by_its_recipient(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    payload = contract_request(alice, bob.pre_public, {"text": "hi"})
    answer = await mediator.send(alice, payload, to=bob)
    assert (answer.status, answer.json) == (200, {"type": "SUCCESS", "code": "REQUESTED"})
    found = await mediator.do(bob, QUERY_REQUESTS)
    (request,) = found.payload["pending_communication_contract_requests"]
    assert found.json == {
        "type": "SUCCESS",
        "payload": {
            "pending_communication_contract_requests": [
                {
                    "id": request["id"],
                    "sender_did": alice.did,
                    "encrypted_contract_request": payload["encrypted_contract_request"],
                    "requestor_ephemeral_public_key": payload["requestor_ephemeral_public_key"],
                }
            ],
            "pagination": {"page": 0, "page_size": 10, "total": 1},
        },
    }
    assert isinstance(request["id"], str)


async def test_trap_39_a_request_to_one_who_is_not_registered_is_refused(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    assert (await forward(mediator, alice, bob)).refusal == NOT_REGISTERED
    await mediator.register(bob, lifetime_s=60)
    assert (await forward(mediator, alice, bob)).status == 200
    clock.advance(60)
    assert (await forward(mediator, alice, bob)).refusal == NOT_REGISTERED


async def test_trap_31_the_sender_of_a_contract_command_lives_on_any_mediator(
    mediator: Mediator, bob: Identity
) -> None:
    await mediator.register(bob)
    elsewhere = Identity("elsewhere", mediator_did="did:web:other.example")
    assert (await forward(mediator, elsewhere, bob)).json["code"] == "REQUESTED"
    contract = signed_contract(bob, elsewhere, mediator.clock.now_s + 60)
    assert (await respond(mediator, elsewhere, contract, to=bob)).json == SUCCESS
    assert await contracts(mediator, bob) == [contract]


async def test_trap_34_a_request_for_another_identity_is_forwarded_unopened(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    nonsense = {
        "type": "REQUEST_COMMUNICATION_CONTRACT",
        "encrypted_contract_request": "no base64, and not ours to know",
        "requestor_ephemeral_public_key": "",
    }
    assert (await mediator.send(alice, nonsense, to=bob)).json["code"] == "REQUESTED"
    (request,) = await mediator.records(bob, QUERY_REQUESTS)
    assert request["encrypted_contract_request"] == nonsense["encrypted_contract_request"]
    assert request["requestor_ephemeral_public_key"] == ""


async def test_trap_38_several_requests_of_one_sender_are_several_records_in_order(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    texts = ["first", "second", "first"]
    for text in texts:
        await forward(mediator, alice, bob, text)
    waiting = await mediator.records(bob, QUERY_REQUESTS)
    assert [request["encrypted_contract_request"] for request in waiting] == [
        contract_request(alice, bob.pre_public, {"text": text})["encrypted_contract_request"]
        for text in texts
    ]
    assert len({request["id"] for request in waiting}) == 3


async def test_trap_56_ids_of_others_are_ignored_and_not_distinguished(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(bob, carol)
    await forward(mediator, alice, bob)
    (request,) = await mediator.records(bob, QUERY_REQUESTS)
    before = mediator.facts()
    answers = [
        await mediator.do(carol, ACKNOWLEDGE_REQUESTS, communication_contract_ids=[some_id])
        for some_id in (request["id"], "unknown")
    ]
    assert [answer.body for answer in answers] == [answers[0].body] * 2
    assert answers[0].json == SUCCESS
    assert mediator.facts() == before
    assert len(await mediator.records(bob, QUERY_REQUESTS)) == 1


# ---- responses


async def test_a_response_is_stored_for_the_other_participant(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice, bob)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60, note="unknown, kept")
    answer = await respond(mediator, bob, contract, to=alice)
    assert (answer.status, answer.json) == (200, SUCCESS)
    assert await contracts(mediator, alice) == [contract]
    assert await contracts(mediator, bob) == []


async def test_trap_32_who_counts_is_the_other_participant_and_not_the_header(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(alice, carol)
    first, second = (
        signed_contract(alice, bob, mediator.clock.now_s + lifetime_s) for lifetime_s in (60, 61)
    )
    assert (await respond(mediator, bob, first, to=MEDIATOR_DID)).json == SUCCESS
    assert (await respond(mediator, bob, second, to=carol)).json == SUCCESS
    assert await contracts(mediator, alice) == [first, second]
    assert await contracts(mediator, carol) == []
    for recipient in (MEDIATOR_DID, alice):
        stranger = signed_contract(bob, Identity("stranger"), mediator.clock.now_s + 60)
        answer = await respond(mediator, bob, stranger, to=recipient)
        assert answer.refusal == NOT_REGISTERED


async def test_trap_32_the_recipient_of_the_header_must_be_registered_first(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60)
    stranger = Identity("stranger")
    assert (await respond(mediator, bob, contract, to=stranger)).refusal == NOT_REGISTERED
    not_mine = signed_contract(alice, Identity("carol"), mediator.clock.now_s + 60)
    assert (await respond(mediator, bob, not_mine, to=stranger)).refusal == NOT_REGISTERED
    assert await contracts(mediator, alice) == []


async def test_trap_58_a_response_of_one_who_is_no_participant_is_an_invalid_command(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(alice, bob)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60)
    of_strangers = signed_contract(Identity("x"), Identity("y"), mediator.clock.now_s + 60)
    for recipient in (MEDIATOR_DID, alice, bob):
        for others in (contract, of_strangers):
            assert (await respond(mediator, carol, others, to=recipient)).refusal == INVALID


# ---- what a contract must be, for a response and for saving alike


ALICE, BOB, CAROL = Identity("alice"), Identity("bob"), Identity("carol")
NOW_S = HandClock().now_s
GOOD = signed_contract(ALICE, BOB, NOW_S + 60)

BAD_CONTRACTS = {
    "signature of another": (
        {**GOOD, "recipient_signature": CAROL.sign(GOOD["communication_contract"])},
        INVALID_SIGNATURES,
    ),
    "expired": (signed_contract(ALICE, BOB, NOW_S), INVALID),
    "larger than its bound, and with the signature of another": (
        {
            **signed_contract(ALICE, BOB, NOW_S + 60, terms="x" * 16_384),
            "recipient_signature": CAROL.sign(GOOD),
        },
        INVALID,
    ),
    "with oneself": (signed_contract(BOB, BOB, NOW_S + 60), INVALID),
}
"""One of each refusal; ``tests/unit/wire/test_contract_profile.py`` has every fault."""


@pytest.mark.parametrize("fault", BAD_CONTRACTS)
async def test_trap_59_a_contract_that_does_not_hold_is_not_saved(
    mediator: Mediator, fault: str
) -> None:
    contract, refusal = BAD_CONTRACTS[fault]
    assert (await save(mediator, BOB, contract)).refusal == UNAUTHORIZED  # this comes first
    await mediator.register(BOB)
    assert (await save(mediator, BOB, contract)).refusal == refusal
    assert await contracts(mediator, BOB) == []


@pytest.mark.parametrize("fault", BAD_CONTRACTS)
async def test_a_response_with_a_contract_that_does_not_hold_stores_nothing(
    mediator: Mediator, fault: str
) -> None:
    contract, refusal = BAD_CONTRACTS[fault]
    await mediator.register(ALICE)
    assert (await respond(mediator, BOB, contract, to=ALICE)).refusal == refusal
    assert await contracts(mediator, ALICE) == []


# ---- saving


async def test_a_saved_contract_is_returned_as_it_was_saved(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60.5, note={"é": [1, None, "😀"]})
    answer = await save(mediator, bob, contract)
    assert (answer.status, answer.json) == (200, SUCCESS)
    found = await mediator.do(bob, QUERY_CONTRACTS)
    (record,) = found.payload["communication_contracts"]
    assert found.json == {
        "type": "SUCCESS",
        "payload": {
            "communication_contracts": [
                {"id": record["id"], "signed_communication_contract": contract}
            ],
            "pagination": {"page": 0, "page_size": 10, "total": 1},
        },
    }


async def test_trap_35_the_contract_is_stored_in_the_clear_and_returned_whole(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    contract = await mediator.befriend(bob, alice, note="seen by the mediator")
    await mediator.restart()
    assert await contracts(mediator, bob) == [contract]


async def test_trap_59_only_a_participant_saves_a_contract(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(alice, bob, carol)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60)
    assert (await save(mediator, carol, contract)).refusal == INVALID
    for participant in (alice, bob):
        assert (await save(mediator, participant, contract)).json == SUCCESS
        assert await contracts(mediator, participant) == [contract]


async def test_trap_59_one_signed_contract_is_one_record_whatever_stands_beside_it(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    contract = signed_contract(alice, bob, mediator.clock.now_s + 60)
    url_safe = str.maketrans("+/", "-_")
    spelled = {
        name: text.rstrip("=").translate(url_safe) if name.endswith("_signature") else text
        for name, text in contract.items()
    }
    for same in (contract, {**contract, "junk": 1}, {**contract, "junk": 2}, spelled):
        answer = await respond(mediator, bob, same, to=alice)
        assert answer.json == SUCCESS or same is spelled
    assert await contracts(mediator, alice) == [contract]


async def test_trap_70_expired_contracts_are_returned_too_and_did_matches_either_side(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity, clock: HandClock
) -> None:
    await mediator.register(bob)
    with_alice = await mediator.befriend(bob, alice, 60)
    with_carol = signed_contract(bob, carol, clock.now_s + 120)
    await save(mediator, bob, with_carol)
    clock.advance(90)
    assert await contracts(mediator, bob) == [with_alice, with_carol]
    assert await contracts(mediator, bob, did=alice.did) == [with_alice]
    assert await contracts(mediator, bob, did=carol.did) == [with_carol]
    assert await contracts(mediator, bob, did=bob.did) == [with_alice, with_carol]
    assert await contracts(mediator, bob, did="did:decentrl:unknown") == []


async def test_trap_66_contracts_are_found_before_or_after_their_expiry(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(bob)
    first, second = [await mediator.befriend(bob, alice, s) for s in (100, 200)]
    assert await contracts(mediator, bob, expires_at_before=clock.now_s + 200) == [first]
    assert await contracts(mediator, bob, expires_at_after=clock.now_s + 100) == [second]
