"""DCTRL-0004 8.1 and section 2: registering with the mediator, its end and its renewal."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import rfc8785
from nacl.signing import SigningKey

from tests.edge.identities import (
    Identity,
    Json,
    b64,
    contract_request,
    contract_terms,
    public_event,
    signed_contract,
)
from tests.edge.mediator import (
    DAY_S,
    KEYS,
    MEDIATOR_DID,
    SUCCESS,
    HandClock,
    Mediator,
    Socket,
)

INVALID = (400, "INVALID_COMMAND")
UNAUTHORIZED = (401, "UNAUTHORIZED_COMMAND")

# Nonce and effect fall on the same host and on two; see test_layouts.py for the other layouts.
pytestmark = pytest.mark.parametrize("layout", ["two hosts"])


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_trap_37_registration_returns_the_contract_that_both_have_signed(
    mediator: Mediator, alice: Identity
) -> None:
    expires_at = mediator.clock.now_s + 60
    terms = contract_terms(alice, MEDIATOR_DID, expires_at, purpose="kept as it is")
    request = {"communication_contract": terms, "requestor_signature": alice.sign(terms)}
    answer = await mediator.send(alice, contract_request(alice, KEYS.pre_public, request))
    assert answer.status == 200
    signed = answer.payload["signed_communication_contract"]
    assert answer.json == {
        "type": "SUCCESS",
        "code": "MEDIATOR_REGISTRATION_SUCCESS",
        "payload": {"signed_communication_contract": signed},
    }
    contract = signed["communication_contract"]
    assert contract == {
        **terms,
        "recipient_signing_key_id": f"{MEDIATOR_DID}#signing",
        "recipient_ephemeral_public_key": contract["recipient_ephemeral_public_key"],
    }
    assert signed["requestor_signature"] == request["requestor_signature"]
    assert len(unpadded(contract["recipient_ephemeral_public_key"])) == 32
    SigningKey(KEYS.signing_seed).verify_key.verify(
        rfc8785.dumps(contract), unpadded(signed["recipient_signature"])
    )


def _sealed_with(identity: Identity, request: Any, **replaced: str) -> Json:
    return {**contract_request(identity, KEYS.pre_public, request), **replaced}


def _request(identity: Identity, terms: Json, *, signer: Identity | None = None) -> Json:
    return {
        "communication_contract": terms,
        "requestor_signature": (signer or identity).sign(terms),
    }


MALLORY = Identity("mallory")
ALICE = Identity("alice")
NOW_S = HandClock().now_s
TERMS = contract_terms(ALICE, MEDIATOR_DID, NOW_S + 60)


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        pytest.param(
            _sealed_with(ALICE, {}, encrypted_contract_request=b64(bytes(60))), INVALID, id="forged"
        ),
        pytest.param(
            _sealed_with(ALICE, _request(ALICE, {**TERMS, "requestor_did": MALLORY.did})),
            INVALID,
            id="another requestor",
        ),
        pytest.param(
            _sealed_with(ALICE, _request(ALICE, {**TERMS, "files": [], "heads": {}})),
            INVALID,
            id="a statement of the mediator",
        ),
        pytest.param(
            _sealed_with(ALICE, _request(ALICE, TERMS, signer=MALLORY)),
            (401, "INVALID_SIGNATURES"),
            id="signed by another",
        ),
    ],
)
async def test_trap_36_a_registration_that_is_not_the_senders_own_is_refused(
    mediator: Mediator, payload: Json, refusal: tuple[int, str]
) -> None:
    assert (await mediator.send(ALICE, payload)).refusal == refusal
    assert mediator.facts() == []
    answer = await mediator.do(ALICE, "QUERY_PENDING_EVENTS")
    assert answer.refusal == UNAUTHORIZED


async def test_an_expiry_may_be_fractional(mediator: Mediator, clock: HandClock) -> None:
    await mediator.register(ALICE, lifetime_s=0.5)
    assert (await mediator.do(ALICE, "QUERY_PENDING_EVENTS")).status == 200
    clock.advance(0.5)
    assert (await mediator.do(ALICE, "QUERY_PENDING_EVENTS")).refusal == UNAUTHORIZED


OWN_COMMANDS: list[Json] = [
    {"type": "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS"},
    {
        "type": "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
        "communication_contract_ids": [],
    },
    {
        "type": "SAVE_COMMUNICATION_CONTRACT",
        "signed_communication_contract": signed_contract(ALICE, MALLORY, NOW_S + 2 * DAY_S),
    },
    {"type": "QUERY_COMMUNICATION_CONTRACTS"},
    {"type": "QUERY_PENDING_EVENTS"},
    {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": []},
    {"type": "SAVE_EVENTS", "events": []},
    {"type": "QUERY_EVENTS"},
    {"type": "UPDATE_EVENT_TAGS", "events": []},
]


@pytest.mark.parametrize("payload", OWN_COMMANDS, ids=[p["type"] for p in OWN_COMMANDS])
async def test_trap_30_every_command_of_ones_own_needs_a_registration_at_that_moment(
    mediator: Mediator, clock: HandClock, payload: Json
) -> None:
    assert (await mediator.send(ALICE, payload)).refusal == UNAUTHORIZED
    await mediator.register(ALICE, lifetime_s=60)
    clock.advance(59.999)
    assert (await mediator.send(ALICE, payload)).json["type"] == "SUCCESS"
    clock.advance(0.001)
    assert (await mediator.send(ALICE, payload)).refusal == UNAUTHORIZED
    await mediator.register(ALICE)
    assert (await mediator.send(ALICE, payload)).json["type"] == "SUCCESS"


async def test_trap_30_public_commands_need_a_registration_too(
    mediator: Mediator, clock: HandClock, alice: Identity
) -> None:
    delete = {"type": "DELETE_PUBLIC_EVENT", "public_event_id": "any"}
    await mediator.register(alice, lifetime_s=60)
    clock.advance(60)
    assert (await mediator.publish(alice, "late")).refusal == UNAUTHORIZED
    answer = await mediator.send(alice, delete, channel="ONE_WAY_PUBLIC")
    assert answer.refusal == UNAUTHORIZED


async def test_trap_30_what_was_stored_is_there_again_after_a_new_registration(
    mediator: Mediator, clock: HandClock, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice, lifetime_s=60)
    await mediator.befriend(alice, bob)
    await mediator.delivered(bob, alice, "kept")
    clock.advance(60)
    assert (await mediator.write(bob, alice, "late")).refusal == (404, "RECIPIENT_NOT_REGISTERED")
    await mediator.restart()
    await mediator.register(alice)
    assert await mediator.waiting(alice) == ["kept"]
    await mediator.delivered(bob, alice, "again")
    assert await mediator.waiting(alice) == ["kept", "again"]


async def test_trap_30_contract_commands_of_one_whose_registration_ended_are_accepted(
    mediator: Mediator, clock: HandClock, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    await mediator.register(alice, lifetime_s=60)
    clock.advance(60)
    forwarded = contract_request(alice, bob.pre_public, {})
    assert (await mediator.send(alice, forwarded, to=bob)).json["code"] == "REQUESTED"
    response = {
        "type": "COMMUNICATION_CONTRACT_RESPONSE",
        "signed_communication_contract": signed_contract(alice, bob, clock.now_s + 60),
    }
    assert (await mediator.send(alice, response, to=bob)).json == SUCCESS


async def test_a_renewal_with_a_later_end_counts_and_one_with_an_earlier_end_takes_nothing(
    mediator: Mediator, clock: HandClock, alice: Identity
) -> None:
    await mediator.register(alice, lifetime_s=100)
    await mediator.register(alice, lifetime_s=50)
    clock.advance(99)
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200
    await mediator.register(alice, lifetime_s=100)
    clock.advance(99)
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200


async def test_trap_48_the_contract_with_the_mediator_is_no_contact(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    assert await mediator.records(alice, "QUERY_COMMUNICATION_CONTRACTS") == []


async def test_trap_40_registration_pushes_no_notice(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)
    async with mediator.socket(alice) as socket:
        await mediator.register(alice)
        await _fence(mediator, alice, socket)


async def _fence(mediator: Mediator, identity: Identity, socket: Socket) -> None:
    await mediator.befriend(identity, MALLORY)
    assert await socket.hear() == {"type": "CONTRACTS_UPDATED"}


@pytest.mark.parametrize("settings", [{"protocol": {"contract_lifetime_s_max": 3_600}}])
async def test_a_term_longer_than_allowed_is_refused(mediator: Mediator, alice: Identity) -> None:
    answer = await mediator.send(alice, mediator.registration(alice, 3_601))
    assert answer.refusal == INVALID
    assert (await mediator.send(alice, mediator.registration(alice, 3_600))).status == 200


@pytest.mark.parametrize("settings", [{"protocol": {"require_mediator_in_did": True}}])
async def test_only_dids_that_name_the_mediator_register_where_that_is_required(
    mediator: Mediator, alice: Identity
) -> None:
    elsewhere = Identity("elsewhere", mediator_did="did:web:other.example")
    answer = await mediator.send(elsewhere, mediator.registration(elsewhere))
    assert answer.refusal == UNAUTHORIZED
    assert (await mediator.send(alice, mediator.registration(alice))).status == 200


async def test_a_did_that_names_another_mediator_may_register(mediator: Mediator) -> None:
    elsewhere = Identity("elsewhere", mediator_did="did:web:other.example")
    await mediator.register(elsewhere)
    assert await mediator.waiting(elsewhere) == []


async def test_a_registration_survives_a_restart(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)
    await mediator.restart()
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200


async def test_trap_85_a_changed_key_is_another_identity(mediator: Mediator) -> None:
    old, new = Identity("carol"), Identity("carol, with another key")
    await mediator.register(old)
    assert (await mediator.do(new, "QUERY_EVENTS")).refusal == UNAUTHORIZED
    assert (await mediator.send(new, public_event(new, "x"), channel="ONE_WAY_PUBLIC")).refusal == (
        UNAUTHORIZED
    )
