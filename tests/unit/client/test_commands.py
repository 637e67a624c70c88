"""Every command in the shape that DCTRL-0004 section 8 prints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from http_edge.clients.decentrl import (
    Account,
    Channel,
    EventToSave,
    Identity,
    MediatorClient,
    MediatorUnknown,
    Page,
    PendingContractRequest,
    PendingEvent,
    SavedEvent,
    StoredContract,
    UnexpectedAnswer,
    signed_command,
)
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.strict_json import parse
from tests.unit.client.conftest import NOW_MS
from tests.unit.client.scripted_mediator import Json, ScriptedMediator, page, success

Call = Callable[[Account], Awaitable[object]]

EVENT = EventToSave(
    sender_did="did:a", recipient_did="did:b", timestamp_s=1.5, payload="x", encrypted_tags=["t"]
)


def test_the_envelope_is_canonical_and_says_who_when_and_to_whom() -> None:
    alice = Identity.create("alice", "did:web:mediator.test")
    nonce = "0b6ff0e5-64d3-4f7f-9a8d-1d5a1e6f2f6c"
    body = signed_command(
        alice, Channel.TWO_WAY_PRIVATE, "did:b", "päylöad", now_ms=NOW_MS, nonce=nonce
    )
    command = parse(body)
    assert isinstance(command, dict)
    assert body == canonical(command)
    assert command["header"] == {
        "channel": "TWO_WAY_PRIVATE",
        "sender_did": alice.did,
        "sender_signing_key_id": f"{alice.did}#signing",
        "recipient_did": "did:b",
        "timestamp": NOW_MS,
        "nonce": nonce,
    }
    assert command["payload"] == "päylöad"


PAYLOADS: list[tuple[Call, Json]] = [
    (
        lambda a: a.request_communication_contract("did:b", "c", "k", at=a.mediator),
        {
            "type": "REQUEST_COMMUNICATION_CONTRACT",
            "encrypted_contract_request": "c",
            "requestor_ephemeral_public_key": "k",
        },
    ),
    (
        lambda a: a.communication_contract_response("did:b", {"c": 1}, at=a.mediator),
        {"type": "COMMUNICATION_CONTRACT_RESPONSE", "signed_communication_contract": {"c": 1}},
    ),
    (
        lambda a: a.acknowledge_pending_communication_contract_requests(["1", "2"]),
        {
            "type": "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
            "communication_contract_ids": ["1", "2"],
        },
    ),
    (
        lambda a: a.save_communication_contract({"c": 1}),
        {"type": "SAVE_COMMUNICATION_CONTRACT", "signed_communication_contract": {"c": 1}},
    ),
    (
        lambda a: a.acknowledge_pending_events(["1"]),
        {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": ["1"]},
    ),
    (
        lambda a: a.save_events([EVENT]),
        {
            "type": "SAVE_EVENTS",
            "events": [
                {
                    "sender_did": "did:a",
                    "recipient_did": "did:b",
                    "timestamp": 1.5,
                    "payload": "x",
                    "encrypted_tags": ["t"],
                }
            ],
        },
    ),
    (
        lambda a: a.update_event_tags({"1": ["t"], "2": []}),
        {
            "type": "UPDATE_EVENT_TAGS",
            "events": [
                {"event_id": "1", "encrypted_tags": ["t"]},
                {"event_id": "2", "encrypted_tags": []},
            ],
        },
    ),
    (
        lambda a: a.delete_public_events(["1"], channel_id="news"),
        {"type": "DELETE_PUBLIC_EVENT", "event_ids": ["1"], "channel_id": "news"},
    ),
    (
        lambda a: a.delete_public_events(["1"]),
        {"type": "DELETE_PUBLIC_EVENT", "event_ids": ["1"]},
    ),
]


@pytest.mark.parametrize(
    ("call", "payload"), PAYLOADS, ids=lambda value: "" if callable(value) else str(value)[:40]
)
async def test_a_command_has_the_printed_payload(
    call: Call, payload: Json, alice: Account, mediator: ScriptedMediator
) -> None:
    await call(alice)
    assert mediator.received[0]["payload"] == payload


QUERIES: list[tuple[str, str, Json, Call, Json, object]] = [
    (
        "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
        "pending_communication_contract_requests",
        {},
        lambda a: a.query_pending_communication_contract_requests(page=2, page_size=7),
        {
            "id": "1",
            "sender_did": "did:a",
            "encrypted_contract_request": "c",
            "requestor_ephemeral_public_key": "k",
        },
        PendingContractRequest("1", "did:a", "c", "k"),
    ),
    (
        "QUERY_COMMUNICATION_CONTRACTS",
        "communication_contracts",
        {"did": "did:b", "expires_at_before": 1730659200, "expires_at_after": 0},
        lambda a: a.query_communication_contracts(
            did="did:b", expires_before_s=1730659200, expires_after_s=0, page=2, page_size=7
        ),
        {"id": "1", "signed_communication_contract": {"c": 1}},
        StoredContract("1", {"c": 1}),
    ),
    (
        "QUERY_PENDING_EVENTS",
        "pending_events",
        {"sender_did": "did:b"},
        lambda a: a.query_pending_events(sender_did="did:b", page=2, page_size=7),
        {"id": "1", "payload": "p", "sender_did": "did:b"},
        PendingEvent("1", "did:b", "p"),
    ),
    (
        "QUERY_EVENTS",
        "events",
        {
            "after_timestamp": 0,
            "before_timestamp": 2.5,
            "participant_did": "did:b",
            "encrypted_tags": ["t"],
            "unprocessed_only": True,
        },
        lambda a: a.query_events(
            after_s=0,
            before_s=2.5,
            participant_did="did:b",
            encrypted_tags=["t"],
            unprocessed_only=True,
            page=2,
            page_size=7,
        ),
        {"id": "1", "payload": "p", "encrypted_tags": ["t"], "timestamp": 1699123456},
        SavedEvent("1", "p", ("t",), 1699123456),
    ),
]


@pytest.mark.parametrize("row", QUERIES, ids=lambda row: row[0])
async def test_a_query_sends_its_filter_and_reads_its_page(
    row: tuple[str, str, Json, Call, Json, object], alice: Account, mediator: ScriptedMediator
) -> None:
    kind, name, where, call, item, record = row
    mediator.answer(kind, page(name, [item], total=100))
    answered = await call(alice)
    assert mediator.received[0]["payload"] == {
        "type": kind,
        "filter": where,
        "pagination": {"page": 2, "page_size": 7},
    }
    assert isinstance(answered, Page)
    assert (answered.items, answered.has_more) == ((record,), True)


async def test_a_query_without_filters_sends_none(
    alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.answer("QUERY_EVENTS", page("events", []))
    answered = await alice.query_events()
    assert mediator.received[0]["payload"]["filter"] == {}
    assert not answered.has_more


@pytest.mark.parametrize(
    "answer",
    [
        success(),
        success(payload={}),
        success(payload={"pending_events": [{"id": 1}], "pagination": {}}),
        success(payload={"pending_events": []}),
    ],
)
async def test_an_answer_of_another_shape_is_refused(
    answer: Any, alice: Account, mediator: ScriptedMediator
) -> None:
    mediator.answer("QUERY_PENDING_EVENTS", answer)
    with pytest.raises(UnexpectedAnswer):
        await alice.query_pending_events()


async def test_commands_name_the_mediator_and_messages_their_recipient(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    mediator.answer("TWO_WAY_PRIVATE", success(pendingEventId="e1"))
    await alice.acknowledge_pending_events([])
    assert await alice.send(bob.identity.did, "hello") == "e1"
    channels = [
        (command["header"]["channel"], command["header"]["recipient_did"])
        for command in mediator.received
    ]
    assert channels == [
        ("DIRECT_AUTHENTICATED", mediator.did),
        ("TWO_WAY_PRIVATE", bob.identity.did),
    ]


async def test_a_message_goes_to_the_mediator_that_the_recipient_lives_at(
    mediator: ScriptedMediator,
) -> None:
    other = ScriptedMediator("did:web:other.test")
    other.answer("TWO_WAY_PRIVATE", success(pendingEventId="e1"))
    async with other.server:

        async def resolver(did: str) -> str | None:
            return {other.did: other.url}.get(did)

        async with MediatorClient(mediator.url, resolver=resolver) as client:
            alice = client.as_(Identity.create("alice", mediator.did))
            await alice.send(Identity.create("bob", other.did).did, "hello")
            with pytest.raises(MediatorUnknown):
                await alice.send(Identity.create("carol", "did:web:nowhere.test").did, "hello")
            with pytest.raises(MediatorUnknown):
                await alice.send("did:web:carol.test", "hello")
    assert (mediator.types, other.types) == ([], ["TWO_WAY_PRIVATE"])


async def test_another_mediator_at_the_resolved_address_is_refused(
    mediator: ScriptedMediator,
) -> None:
    impostor = ScriptedMediator("did:web:impostor.test")
    async with impostor.server:

        async def resolver(_did: str) -> str | None:
            return impostor.url

        async with MediatorClient(mediator.url, resolver=resolver) as client:
            alice = client.as_(Identity.create("alice", mediator.did))
            with pytest.raises(UnexpectedAnswer, match="impostor"):
                await alice.send(Identity.create("bob", "did:web:other.test").did, "hello")
    assert impostor.received == []
