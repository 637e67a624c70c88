"""Every row of DCTRL-0004 11.2 over HTTP: each code with its status, in every layout."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from http_edge.decentrl.answers import ERRORS
from tests.edge.identities import Identity, Json, signed_contract
from tests.edge.mediator import Answer, Mediator

TABLE: Final = {
    "INVALID_COMMAND": 400,
    "INVALID_SIGNATURE": 401,
    "INVALID_SIGNATURES": 401,
    "UNAUTHORIZED_COMMAND": 401,
    "TIMESTAMP_OUT_OF_RANGE": 401,
    "DUPLICATE_NONCE": 401,
    "SENDER_NOT_FOUND": 404,
    "SENDER_SIGNING_KEY_NOT_FOUND": 404,
    "RECIPIENT_NOT_FOUND": 404,
    "RECIPIENT_NOT_REGISTERED": 404,
    "COMMUNICATION_CONTRACT_NOT_FOUND": 404,
}
"""The rows as the specification prints them."""

DIRECT: Final = "DIRECT_AUTHENTICATED"
PUBLIC: Final = "ONE_WAY_PUBLIC"
ALICE, BOB, CAROL, STRANGER = (Identity(name) for name in ("alice", "bob", "carol", "stranger"))


async def unknown_type(mediator: Mediator) -> Answer:
    return await mediator.do(ALICE, "MAKE_COFFEE")


async def changed_payload(mediator: Mediator) -> Answer:
    command = mediator.command(ALICE, {"type": "QUERY_PENDING_EVENTS"})
    return await mediator.post({**command, "payload": {"type": "QUERY_EVENTS"}})


async def contract_signed_by_another(mediator: Mediator) -> Answer:
    contract = signed_contract(ALICE, BOB, mediator.clock.now_s + 60)
    contract["recipient_signature"] = CAROL.sign(contract["communication_contract"])
    return await mediator.do(
        ALICE, "SAVE_COMMUNICATION_CONTRACT", signed_communication_contract=contract
    )


async def not_registered(mediator: Mediator) -> Answer:
    return await mediator.do(STRANGER, "QUERY_PENDING_EVENTS")


async def not_the_mediator(mediator: Mediator) -> Answer:
    return await mediator.send(ALICE, {"type": "QUERY_PENDING_EVENTS"}, to=BOB)


async def stamped_too_early(mediator: Mediator) -> Answer:
    at_ms = mediator.clock.now_ms - 300_001
    return await mediator.send(ALICE, {"type": "QUERY_PENDING_EVENTS"}, timestamp=at_ms)


async def sent_twice(mediator: Mediator) -> Answer:
    command = mediator.command(ALICE, {"type": "QUERY_PENDING_EVENTS"})
    assert (await mediator.post(command)).status == 200
    return await mediator.post(command)


async def from_an_unknown_did(mediator: Mediator) -> Answer:
    return await mediator.send(ALICE, {"type": "QUERY_PENDING_EVENTS"}, sender_did="did:decentrl:a")


async def from_another_key(mediator: Mediator) -> Answer:
    key_id = f"{ALICE.did}#other"
    return await mediator.send(
        ALICE, {"type": "QUERY_PENDING_EVENTS"}, sender_signing_key_id=key_id
    )


async def to_an_unknown_did(mediator: Mediator) -> Answer:
    return await mediator.send(ALICE, "hi", to="did:decentrl:a", channel="TWO_WAY_PRIVATE")


async def to_a_stranger(mediator: Mediator) -> Answer:
    return await mediator.write(ALICE, STRANGER, "hi")


async def to_one_without_contract(mediator: Mediator) -> Answer:
    return await mediator.write(ALICE, CAROL, "hi")


SCENES: Final[list[tuple[str, Callable[[Mediator], Awaitable[Answer]]]]] = [
    ("INVALID_COMMAND", unknown_type),
    ("INVALID_SIGNATURE", changed_payload),
    ("INVALID_SIGNATURES", contract_signed_by_another),
    ("UNAUTHORIZED_COMMAND", not_registered),
    ("UNAUTHORIZED_COMMAND", not_the_mediator),
    ("TIMESTAMP_OUT_OF_RANGE", stamped_too_early),
    ("DUPLICATE_NONCE", sent_twice),
    ("SENDER_NOT_FOUND", from_an_unknown_did),
    ("SENDER_SIGNING_KEY_NOT_FOUND", from_another_key),
    ("RECIPIENT_NOT_FOUND", to_an_unknown_did),
    ("RECIPIENT_NOT_REGISTERED", to_a_stranger),
    ("COMMUNICATION_CONTRACT_NOT_FOUND", to_one_without_contract),
]


@pytest.mark.parametrize("layout", ["two hosts"])
@pytest.mark.parametrize(("code", "scene"), SCENES, ids=[scene.__name__ for _, scene in SCENES])
async def test_a_refusal_has_its_code_and_its_status_and_changes_nothing(
    mediator: Mediator, code: str, scene: Callable[[Mediator], Awaitable[Answer]]
) -> None:
    await mediator.register(ALICE, CAROL)
    before = mediator.facts()
    answer = await scene(mediator)
    assert answer.refusal == (TABLE[code], code)
    member, _, rule = answer.json["detail"].partition(": ")
    assert re.fullmatch(r"(header|payload|signature)[a-z_.\[\]0-9]*", member)
    assert rule
    assert mediator.facts() == before


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (DIRECT, {"type": "QUERY_PENDING_EVENTS", "pagination": {"page_size": 0}}),
        (DIRECT, {"type": "QUERY_EVENTS", "filter": {"encrypted_tags": list(map(str, range(17)))}}),
        (PUBLIC, {"type": "DELETE_PUBLIC_EVENT"}),
    ],
)
async def test_an_invalid_payload_is_reported_before_a_wrong_recipient(
    mediator: Mediator, channel: str, payload: Json
) -> None:
    await mediator.register(ALICE)
    limits = mediator.settings.limits
    assert limits.tags_per_query_max < 17 <= limits.tags_per_event_max
    answer = await mediator.send(ALICE, payload, to=BOB, channel=channel)
    assert answer.refusal == (400, "INVALID_COMMAND")


def test_every_row_of_the_table_has_a_scene() -> None:
    assert {code for code, _ in SCENES} == set(TABLE)


def test_the_mediator_gives_each_code_of_the_table_the_status_of_the_table() -> None:
    assert {
        refusal.value: status for refusal, (status, _) in ERRORS.items() if refusal.value in TABLE
    } == TABLE
