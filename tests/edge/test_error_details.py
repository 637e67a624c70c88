"""The typical mistakes of a wallet's author: the detail of each refusal says which one it is.

A detail is an extension of DCTRL-0004 11.1: ``<member>: <rule that it breaks>``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import base58
import pytest
import rfc8785

from tests.edge.identities import (
    Identity,
    Json,
    contract_request,
    contract_terms,
    public_event,
    sealed,
    signed_contract,
)
from tests.edge.mediator import KEYS, MEDIATOR_DID, HandClock, Mediator

ALICE, BOB = Identity("alice"), Identity("bob")
NOW_S: Final = HandClock().now_s
QUERY: Final = {"type": "QUERY_PENDING_EVENTS"}
TERMS: Final = contract_terms(ALICE, MEDIATOR_DID, NOW_S + 60)
SEALED: Final = "payload.encrypted_contract_request"


def as_hex(text: str) -> str:
    """The bytes of a base64 text in hexadecimal."""
    return base64.b64decode(text).hex()


def registration(terms: Json, signer: Identity = ALICE, **members: Any) -> Json:
    request = {"communication_contract": terms, "requestor_signature": signer.sign(terms)}
    return contract_request(ALICE, KEYS.pre_public, {**request, **members})


def without(name: str) -> Json:
    return {member: value for member, value in TERMS.items() if member != name}


CAMEL_CASE: Final = {"requestorDid": ALICE.did, "recipientDid": MEDIATOR_DID, "expiresAt": 1}
OTHER_SECRET: Final = (
    "does not decrypt with the X25519 secret of the requestor's ephemeral key and the recipient's "
    "pre-key"
)
NO_KEY: Final = (
    "communication_contract.requestor_signing_key_id: is not a signing key in the requestor's "
    "document"
)
OTHER_TERMS: Final = (
    "requestor_signature: does not verify over communication_contract without what the recipient "
    "adds"
)
REGISTRATIONS: Final[list[tuple[Json, str]]] = [
    (registration(TERMS) | {"encrypted_contract_request": "?"}, "is not base64"),
    (contract_request(ALICE, BOB.pre_public, {}), OTHER_SECRET),
    (registration(without("expires_at")), "communication_contract.expires_at: is missing"),
    (
        registration(TERMS | {"expires_at": "2027-01-01"}),
        "communication_contract.expires_at: expected `int | float`, got `str`",
    ),
    (
        registration(TERMS | {"expires_at": True}),
        "communication_contract.expires_at: expected `int | float`, got `bool`",
    ),
    (registration(CAMEL_CASE), "communication_contract.requestor_did: is missing"),
    (
        registration(TERMS | {"recipient_did": BOB.did}),
        "communication_contract.recipient_did: is not this mediator",
    ),
    (
        registration(TERMS | {"recipient_signing_key_id": f"{MEDIATOR_DID}#prekey"}),
        "communication_contract.recipient_signing_key_id: is not this mediator's signing key",
    ),
    (
        registration(TERMS | {"requestor_signing_key_id": f"{ALICE.did}#prekey"}),
        NO_KEY,
    ),
    (
        registration(TERMS, requestor_signature=as_hex(ALICE.sign(TERMS))),
        "requestor_signature: is not base64 of 64 bytes",
    ),
    (registration(TERMS, signer=BOB), OTHER_TERMS),
    (contract_request(ALICE, KEYS.pre_public, TERMS), "requestor_signature: is missing"),
]


@pytest.mark.parametrize(("payload", "rule"), REGISTRATIONS, ids=[r for _, r in REGISTRATIONS])
async def test_a_registration_that_is_refused_names_the_member_and_the_rule(
    mediator: Mediator, payload: Json, rule: str
) -> None:
    answer = await mediator.send(ALICE, payload)
    assert answer.json["detail"] == f"{SEALED}: {rule}"


async def test_an_unknown_channel_is_refused_with_the_names_of_all_channels(
    mediator: Mediator,
) -> None:
    answer = await mediator.send(ALICE, "hi", channel="TWO_WAY")
    assert answer.json["detail"] == (
        "header.channel: is not one of DIRECT_AUTHENTICATED, ONE_WAY_PUBLIC, TWO_WAY_PRIVATE"
    )


async def test_an_ephemeral_key_in_another_encoding_is_named_itself(mediator: Mediator) -> None:
    in_hex = {"requestor_ephemeral_public_key": ALICE.ephemeral_public.hex()}
    answer = await mediator.send(ALICE, registration(TERMS) | in_hex)
    assert answer.json["detail"] == (
        "payload.requestor_ephemeral_public_key: is not base64 of 32 bytes"
    )


async def test_a_request_that_decrypts_to_something_else_is_not_blamed_on_its_keys(
    mediator: Mediator,
) -> None:
    twice = rfc8785.dumps(TERMS)[:-1] + b',"expires_at":1}'
    for plaintext, rule in (
        (b"no json", "is not JSON in UTF-8"),
        (b"[]", "is not an object"),
        (twice, "duplicate key"),
    ):
        payload = registration(TERMS) | {
            "encrypted_contract_request": sealed(
                ALICE.ephemeral_private, KEYS.pre_public, plaintext
            )
        }
        answer = await mediator.send(ALICE, payload)
        assert answer.json["detail"] == f"{SEALED}: plaintext: {rule}"


CONTRACT: Final = signed_contract(ALICE, BOB, NOW_S + 60)
SIGNED: Final = "payload.signed_communication_contract"
CONTRACTS: Final[list[tuple[Json, str]]] = [
    ({"communicationContract": {}}, "communication_contract: is missing"),
    (
        {name: value for name, value in CONTRACT.items() if name != "recipient_signature"},
        "recipient_signature: is missing",
    ),
    (
        CONTRACT | {"recipient_signature": BOB.sign(TERMS)},
        "recipient_signature: does not verify over the whole communication_contract",
    ),
    (
        CONTRACT | {"requestor_signature": ALICE.sign(CONTRACT["communication_contract"])},
        OTHER_TERMS,
    ),
]


@pytest.mark.parametrize(("contract", "rule"), CONTRACTS, ids=[r for _, r in CONTRACTS])
async def test_a_contract_that_is_refused_names_the_member_and_the_rule(
    mediator: Mediator, contract: Json, rule: str
) -> None:
    await mediator.register(ALICE, BOB)
    for kind in ("SAVE_COMMUNICATION_CONTRACT", "COMMUNICATION_CONTRACT_RESPONSE"):
        answer = await mediator.do(ALICE, kind, signed_communication_contract=contract)
        assert answer.json["detail"] == f"{SIGNED}: {rule}"


def changed_did(part: int, text: str) -> str:
    parts = ALICE.did.split(":")
    parts[part] = text
    return ":".join(parts)


def multibase(prefix: bytes, key: bytes) -> str:
    return f"z{base58.b58encode(prefix + key).decode()}"


SIGNING_KEY: Final = bytes(ALICE.signing.verify_key)
NO_SIGNING_KEY: Final = "has no Ed25519 key in multibase (z6Mk) as its signing key"
DIDS: Final = [
    ("alice", "is not of a known DID method"),
    ("did:web:alice.example", "is a did:web, which this mediator does not resolve"),
    (ALICE.did + ":x", "is not did:decentrl:ALIAS:SIGNING:PRE:MEDIATOR"),
    (changed_did(2, ""), "has no alias of 1 to 256 bytes of UTF-8, in base64"),
    (changed_did(3, SIGNING_KEY.hex()), NO_SIGNING_KEY),
    (changed_did(3, multibase(b"", SIGNING_KEY)), NO_SIGNING_KEY),
    (changed_did(3, multibase(b"\xec\x01", SIGNING_KEY)), NO_SIGNING_KEY),
    (
        changed_did(4, multibase(b"\xed\x01", SIGNING_KEY)),
        "has no X25519 key in multibase (z6LS) as its pre-key",
    ),
    (changed_did(5, "bWVkaWF0b3I"), "does not end with the DID of a mediator, in base64"),
    (changed_did(2, "YWFh" * 250), "has more than 1024 characters"),
]


@pytest.mark.parametrize(("did", "rule"), DIDS, ids=[str(n) for n, _ in enumerate(DIDS)])
async def test_a_did_that_does_not_resolve_is_said_to_break_which_rule(
    mediator: Mediator, did: str, rule: str
) -> None:
    answer = await mediator.send(ALICE, QUERY, sender_did=did)
    assert answer.refusal == (404, "SENDER_NOT_FOUND")
    assert answer.json["detail"] == f"header.sender_did: {rule}"
    answer = await mediator.send(ALICE, "hi", to=did, channel="TWO_WAY_PRIVATE")
    assert answer.refusal == (404, "RECIPIENT_NOT_FOUND")
    assert answer.json["detail"] == f"header.recipient_did: {rule}"
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE, did=did))
        refused = {"code": "DID_NOT_FOUND", "detail": f"message.did: {rule}"}
        assert await socket.hear() == {"type": "AUTH_FAILED", **refused}


async def test_a_timestamp_in_seconds_is_reminded_of_milliseconds(mediator: Mediator) -> None:
    answer = await mediator.send(ALICE, QUERY, timestamp=NOW_S)
    assert answer.json["detail"] == (
        "header.timestamp: is more than 300000 ms from the mediator's clock, in Unix milliseconds"
    )


async def test_a_signature_in_another_encoding_is_not_called_forged(mediator: Mediator) -> None:
    command = mediator.command(ALICE, QUERY)
    in_hex = {**command, "signature": as_hex(command["signature"])}
    assert (await mediator.post(in_hex)).json["detail"] == "signature: is not base64 of 64 bytes"


async def test_a_public_event_signed_otherwise_is_reminded_of_what_is_signed(
    mediator: Mediator,
) -> None:
    event = public_event(ALICE, "hi") | {"channel_id": "other"}
    await mediator.register(ALICE)
    answer = await mediator.send(ALICE, event, channel="ONE_WAY_PUBLIC")
    assert answer.json["detail"] == (
        "payload.event_signature: does not verify over channel_id, event, tags and timestamp"
    )


async def test_an_event_to_withdraw_is_named_by_the_documented_member(mediator: Mediator) -> None:
    withdraw = {"type": "DELETE_PUBLIC_EVENT"}
    answer = await mediator.send(ALICE, withdraw, channel="ONE_WAY_PUBLIC")
    assert answer.json["detail"] == "payload.public_event_id: is missing"


@pytest.mark.parametrize(
    ("method", "path", "detail"),
    [
        ("POST", "//", "path: is unknown; a slash at its end counts"),
        ("GET", "/health/", "path: is unknown; a slash at its end counts"),
        ("PUT", "/", "method: is not one of Allow"),
        ("GET", "/ws", "request: is not a WebSocket upgrade"),
    ],
)
async def test_a_request_that_reaches_no_endpoint_names_its_part_that_is_wrong(
    mediator: Mediator, method: str, path: str, detail: str
) -> None:
    assert (await mediator.request(method, path)).json["detail"] == detail


def _with(**members: Any) -> Callable[[Json], Json]:
    return lambda message: message | members


MESSAGES: Final[list[tuple[Callable[[Json], Json | str | bytes], str]]] = [
    (lambda _: b"{}", "message: is not a text frame"),
    (lambda _: "hello", "message: is not JSON in UTF-8"),
    (lambda _: '{"did":"a","did":"b"}', "message: duplicate key"),
    (lambda _: "[]", "message: expected `object`, got `array`"),
    (lambda _: {"type": "AUTHENTICATE"}, "message.did: is missing"),
    (_with(type="authenticate"), "message.type: is not AUTHENTICATE"),
    (_with(timestamp="1"), "message.timestamp: expected `int | float`, got `str`"),
    (_with(nonce="1"), "message.nonce: is not a UUID"),
    (_with(did="x" * 2049), "message.did: has more than 2048 bytes"),
    (lambda _: " " * 20_000, "message: has more than 16384 characters"),
    (
        _with(timestamp=NOW_S),
        "message.timestamp: is too far from the mediator's clock, in Unix milliseconds",
    ),
    (
        _with(signing_key_id="#signing"),
        "message.signing_key_id: is not a signing key in the DID's document",
    ),
    (
        lambda message: message | {"signature": ALICE.sign(message)},
        "message.signature: does not verify over did, signing_key_id, timestamp and nonce",
    ),
    (
        lambda message: message,
        "message.did: is not registered here",
    ),
]


@pytest.mark.parametrize(("mistake", "detail"), MESSAGES, ids=[d for _, d in MESSAGES])
async def test_a_socket_that_is_refused_is_given_the_member_and_the_rule(
    mediator: Mediator, mistake: Callable[[Json], Json | str | bytes], detail: str
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(mistake(mediator.authenticate(ALICE)))
        assert (await socket.hear())["detail"] == detail
