"""The flows of an identity at its mediator."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.core.submissions import Read
from eventstore.log.event_log import PublicEventsFilter
from http_edge.clients.decentrl import (
    Account,
    CommandRefused,
    Contract,
    EventToSave,
    Identity,
    MediatorClient,
    NotAuthentic,
    PendingContractRequest,
    PendingEvent,
    SavedEvent,
    UnusableIdentity,
    events,
)
from http_edge.clients.decentrl.contracts import resolve, root_secret, sealed_request, verified
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.key_agreement import new_key_pair
from http_edge.crypto.signatures import public_key, sign_object
from http_edge.decentrl.public_events import read as read_query
from http_edge.didcomm.envelopes.keys import did_key, did_key_reference
from http_edge.dids.contract_profile import accept_request
from http_edge.settings.settings import Limits
from tests.unit.client.conftest import NOW_MS
from tests.unit.client.scripted_mediator import Json, ScriptedMediator, error, page, success

LATER_S = NOW_MS // 1000 + 3600


async def request_from(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> PendingContractRequest:
    """Alice asks; the request is what the mediator forwarded to Bob."""
    await alice.request_contract(bob.identity.did, expires_at_s=LATER_S)
    payload = mediator.received[-1]["payload"]
    return PendingContractRequest(
        "r1",
        alice.identity.did,
        payload["encrypted_contract_request"],
        payload["requestor_ephemeral_public_key"],
    )


async def contract_between(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> tuple[Contract, PendingContractRequest]:
    """Alice asks, Bob answers; the request is what the mediator forwarded."""
    waiting = await request_from(alice, bob, mediator)
    return await bob.answer_contract(waiting), waiting


async def test_registration_returns_the_contract_that_both_signed(
    alice: Account, mediator: ScriptedMediator
) -> None:
    contract = await alice.register(expires_at_s=LATER_S)
    assert contract.other(alice.identity.did) == mediator.did
    assert contract.expires_at_s == LATER_S
    assert verified(contract.signed, mediator.document) == contract
    assert (await alice.register(expires_at_s=LATER_S + 1)).expires_at_s == LATER_S + 1


@pytest.mark.parametrize(
    "tamper",
    [
        {"expires_at": LATER_S + 1},
        {"recipient_ephemeral_public_key": "AAAA"},
        {"requestor_did": "did:web:eve.test"},
    ],
)
async def test_a_registration_that_was_changed_is_not_believed(
    tamper: Json, alice: Account, mediator: ScriptedMediator
) -> None:
    signed = dict((await alice.register(expires_at_s=LATER_S)).signed)
    terms: Any = signed["communication_contract"]
    forged = {**signed, "communication_contract": {**terms, **tamper}}
    mediator.answer(
        "REQUEST_COMMUNICATION_CONTRACT", success(payload={"signed_communication_contract": forged})
    )
    with pytest.raises(NotAuthentic):
        await alice.register(expires_at_s=LATER_S)


async def test_an_older_registration_is_no_answer_to_a_new_one(
    alice: Account, mediator: ScriptedMediator
) -> None:
    old = await alice.register(expires_at_s=LATER_S)
    mediator.answer(
        "REQUEST_COMMUNICATION_CONTRACT",
        success(payload={"signed_communication_contract": old.signed}),
    )
    with pytest.raises(NotAuthentic, match="another contract"):
        await alice.register(expires_at_s=LATER_S + 1)


async def test_both_parties_of_a_contract_derive_the_same_secret(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    secret = root_secret(alice.identity, contract)
    assert secret == root_secret(bob.identity, contract)
    again, _ = await contract_between(alice, bob, mediator)
    assert root_secret(alice.identity, again) != secret


async def test_answering_saves_responds_and_only_then_acknowledges(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    assert mediator.types[1:] == [
        "QUERY_COMMUNICATION_CONTRACTS",
        "SAVE_COMMUNICATION_CONTRACT",
        "COMMUNICATION_CONTRACT_RESPONSE",
        "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
    ]
    save, response, acknowledge = mediator.received[2:]
    assert save["payload"]["signed_communication_contract"] == contract.signed
    assert response["payload"]["signed_communication_contract"] == contract.signed
    assert response["header"]["recipient_did"] == alice.identity.did
    assert acknowledge["payload"]["communication_contract_ids"] == ["r1"]


async def test_a_refused_response_leaves_the_request_waiting(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    mediator.answer("COMMUNICATION_CONTRACT_RESPONSE", error("RECIPIENT_NOT_REGISTERED", 404))
    with pytest.raises(CommandRefused, match="RECIPIENT_NOT_REGISTERED"):
        await contract_between(alice, bob, mediator)
    assert "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS" not in mediator.types


async def test_both_parties_have_the_same_contract_after_a_second_answer(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    waiting = await request_from(alice, bob, mediator)
    mediator.answer("COMMUNICATION_CONTRACT_RESPONSE", error("RECIPIENT_NOT_REGISTERED", 404))
    with pytest.raises(CommandRefused):
        await bob.answer_contract(waiting)
    saved = [
        {"id": str(number), **command["payload"]}
        for number, command in enumerate(mediator.received)
        if command["payload"]["type"] == "SAVE_COMMUNICATION_CONTRACT"
    ]
    mediator.answer("QUERY_COMMUNICATION_CONTRACTS", page("communication_contracts", saved))
    mediator.answer("COMMUNICATION_CONTRACT_RESPONSE", success())
    contract = await bob.answer_contract(waiting)
    changes = ("SAVE_COMMUNICATION_CONTRACT", "COMMUNICATION_CONTRACT_RESPONSE")
    assert [
        command["payload"]["signed_communication_contract"]
        for command in mediator.received
        if command["payload"]["type"] in changes
    ] == [contract.signed] * 3
    assert root_secret(alice.identity, contract) == root_secret(bob.identity, contract)
    signed_by_both = canonical(contract.signed["communication_contract"])
    assert contract.id == hashlib.sha256(signed_by_both).hexdigest()
    another = await request_from(alice, bob, mediator)
    assert (await bob.answer_contract(another)).id != contract.id


async def test_a_request_in_another_name_is_not_answered(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    _, waiting = await contract_between(alice, bob, mediator)
    fields = (waiting.encrypted_contract_request, waiting.requestor_ephemeral_public_key)
    in_bobs_name = PendingContractRequest("r2", bob.identity.did, *fields)
    with pytest.raises(NotAuthentic, match="other parties"):
        bob.read_contract_request(in_bobs_name)
    with pytest.raises(NotAuthentic):
        alice.read_contract_request(waiting)  # it was encrypted for Bob


async def test_a_request_that_its_requestor_has_not_signed_is_not_answered(
    alice: Account, bob: Account
) -> None:
    ephemeral = new_key_pair()
    recipient = resolve(bob.identity.did)
    assert recipient is not None
    forger = replace(alice.identity, signing_seed=b"f" * 32)
    sealed = sealed_request(forger, ephemeral, recipient, LATER_S)
    waiting = PendingContractRequest("r1", alice.identity.did, sealed, b64encode(ephemeral.public))
    with pytest.raises(NotAuthentic, match="not signed by its requestor"):
        bob.read_contract_request(waiting)


async def test_an_expired_request_is_not_answered(alice: Account, bob: Account) -> None:
    ephemeral = new_key_pair()
    recipient = resolve(bob.identity.did)
    assert recipient is not None
    sealed = sealed_request(alice.identity, ephemeral, recipient, NOW_MS // 1000)
    waiting = PendingContractRequest("r1", alice.identity.did, sealed, b64encode(ephemeral.public))
    with pytest.raises(NotAuthentic, match="expires_at: has passed"):
        bob.read_contract_request(waiting)


async def test_listed_contracts_are_verified_and_unexpired(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    item = {"id": "1", "signed_communication_contract": contract.signed}
    mediator.answer("QUERY_COMMUNICATION_CONTRACTS", page("communication_contracts", [item]))
    assert [c async for c in alice.contracts(did=bob.identity.did)] == [contract]
    assert mediator.received[-1]["payload"]["filter"] == {
        "did": bob.identity.did,
        "expires_at_after": NOW_MS / 1000,
    }
    terms: Any = contract.signed["communication_contract"]
    forged = {**contract.signed, "communication_contract": {**terms, "expires_at": LATER_S + 1}}
    item["signed_communication_contract"] = forged
    with pytest.raises(NotAuthentic):
        [c async for c in alice.contracts()]


async def test_nothing_is_encrypted_under_a_contract_whose_key_of_the_other_party_is_of_low_order(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    request = bob.read_contract_request(await request_from(alice, bob, mediator))
    contract = verified(accept_request(request, bob.identity.signing_seed, bytes(32)))
    with pytest.raises(NotAuthentic, match="no usable key"):
        alice.encrypt({"type": "t"}, contract)


@pytest.mark.parametrize("member", [[0.5] * 3_900, [[]] * 5_000])
async def test_contracts_are_listed_whatever_members_others_have_put_into_them(
    alice: Account, bob: Account, mediator: ScriptedMediator, member: list[object]
) -> None:
    """Each has less than 16 KiB, as the mediator takes it, and on one page there are five."""
    _, waiting = await contract_between(alice, bob, mediator)
    request = bob.read_contract_request(waiting)
    request.contract["recipient_encryption_public_key"] = member
    signed = accept_request(request, bob.identity.signing_seed, new_key_pair().public)
    items = [{"id": str(i), "signed_communication_contract": signed} for i in range(5)]
    mediator.answer("QUERY_COMMUNICATION_CONTRACTS", page("communication_contracts", items))
    assert [contract.signed async for contract in alice.contracts()] == [signed] * 5


async def test_only_the_other_party_reads_an_event_and_knows_its_author(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    event: Json = {"type": "chat.message", "data": {"text": "Grüße 😀", "n": 1.5}}
    payload = alice.encrypt(event, contract, tags=["chat"])
    envelope = bob.decrypt(PendingEvent("e1", alice.identity.did, payload), contract)
    assert (envelope.event, envelope.tags, envelope.sender_did) == (
        event,
        ["chat"],
        alice.identity.did,
    )
    with pytest.raises(NotAuthentic, match="sent an event of"):
        bob.decrypt(PendingEvent("e1", bob.identity.did, payload), contract)
    another, _ = await contract_between(alice, bob, mediator)
    with pytest.raises(NotAuthentic, match="root secret"):
        bob.decrypt(PendingEvent("e1", alice.identity.did, payload), another)


async def test_a_party_cannot_put_words_in_the_others_mouth(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    signed = events.sign_event(alice.identity, {"type": "t", "data": 1}, [], 1)
    forged = {**signed.signed_members(), "event": {"type": "t", "data": 2}}
    forged["signature"] = signed.signature
    payload = events.seal_for_transit(canonical(forged), root_secret(bob.identity, contract))
    with pytest.raises(NotAuthentic, match="not signed by"):
        bob.decrypt(PendingEvent("e1", alice.identity.did, payload), contract)


async def test_without_its_ephemeral_key_a_contract_is_of_no_use(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    alice.identity.contract_keys.clear()
    with pytest.raises(UnusableIdentity):
        alice.encrypt({"type": "t"}, contract)


async def test_the_key_of_a_contract_is_saved_before_anything_is_sent(
    client: MediatorClient, mediator: ScriptedMediator, tmp_path: Path
) -> None:
    """Whatever the mediator has received, a file at that moment had the key for it."""
    saved: list[tuple[int, Identity]] = []

    def save(identity: Identity) -> None:
        identity.save(tmp_path / identity.did[-9:])
        saved.append((len(mediator.received), Identity.load(tmp_path / identity.did[-9:])))

    alice, bob = (
        client.as_(Identity.create(alias, mediator.did), save=save) for alias in ("alice", "bob")
    )
    contract, _ = await contract_between(alice, bob, mediator)
    (before_asking, asking), (before_answering, answering) = saved
    types = [*mediator.types[before_asking:before_answering]]
    assert types == ["REQUEST_COMMUNICATION_CONTRACT", "QUERY_COMMUNICATION_CONTRACTS"]
    assert mediator.types[before_answering] == "SAVE_COMMUNICATION_CONTRACT"
    assert root_secret(asking, contract) == root_secret(answering, contract)


async def test_what_cannot_be_saved_is_not_sent(
    client: MediatorClient, alice: Account, mediator: ScriptedMediator
) -> None:
    def full(identity: Identity) -> None:
        raise OSError(28, "No space left on device")

    bob = client.as_(Identity.create("bob", mediator.did), save=full)
    with pytest.raises(OSError, match="No space"):
        await bob.request_contract(alice.identity.did, expires_at_s=LATER_S)
    assert mediator.received == []


async def test_taking_events_acknowledges_them(alice: Account, mediator: ScriptedMediator) -> None:
    item = {"id": "1", "sender_did": "did:b", "payload": "p"}
    mediator.script.extend([page("pending_events", [item]), success(), page("pending_events", [])])
    assert [event.id async for event in alice.take_pending_events()] == ["1"]
    assert mediator.types == [
        "QUERY_PENDING_EVENTS",
        "ACKNOWLEDGE_PENDING_EVENTS",
        "QUERY_PENDING_EVENTS",
    ]
    assert mediator.received[1]["payload"]["event_ids"] == ["1"]


async def test_the_mediator_sees_neither_events_nor_tags_of_the_history(
    alice: Account, bob: Account, mediator: ScriptedMediator
) -> None:
    contract, _ = await contract_between(alice, bob, mediator)
    payload = bob.encrypt({"type": "chat", "data": "secret"}, contract)
    envelope = alice.decrypt(PendingEvent("e1", bob.identity.did, payload), contract)
    await alice.save(envelope, contract, tags=["friends"])
    (saved,) = mediator.received[-1]["payload"]["events"]
    assert (saved["sender_did"], saved["recipient_did"]) == (bob.identity.did, alice.identity.did)
    assert saved["encrypted_tags"] == [alice.identity.encrypt_tag("friends")]
    assert "secret" not in str(saved)
    assert "friends" not in str(saved)
    record = SavedEvent("s1", saved["payload"], ("t",), saved["timestamp"])
    assert alice.open_saved(record) == envelope
    with pytest.raises(NotAuthentic):
        bob.open_saved(record)


async def test_saving_is_not_repeated_unless_the_caller_says_so(
    alice: Account, mediator: ScriptedMediator
) -> None:
    event = EventToSave(
        sender_did="a", recipient_did="b", timestamp_s=1, payload="p", encrypted_tags=[]
    )
    mediator.script.extend([error("TEMPORARILY_UNAVAILABLE", 503)])
    await alice.save_events([event], repeat=True)
    assert mediator.types == ["SAVE_EVENTS", "SAVE_EVENTS"]


async def test_history_is_asked_for_by_encrypted_tag(
    alice: Account, mediator: ScriptedMediator
) -> None:
    item = {"id": "1", "payload": "p", "encrypted_tags": [], "timestamp": 1}
    mediator.answer("QUERY_EVENTS", page("events", [item]))
    assert [saved.id async for saved in alice.saved_events(tags=["chat"])] == ["1"]
    wanted = alice.identity.encrypt_tag("chat")
    assert mediator.received[0]["payload"]["filter"] == {"encrypted_tags": [wanted]}
    await alice.tag("1", ["chat"])
    assert mediator.received[1]["payload"]["events"] == [
        {"event_id": "1", "encrypted_tags": [wanted]}
    ]


async def test_a_published_event_is_read_back_verified(
    alice: Account, client: MediatorClient, mediator: ScriptedMediator
) -> None:
    mediator.answer("PUBLISH_PUBLIC_EVENT", success(publicEventId="p1"))
    assert await alice.publish("news", '{"a":1}', tags=["x", "y"]) == "p1"
    payload = dict(mediator.received[0]["payload"], id="p1")
    assert payload.pop("type") == "PUBLISH_PUBLIC_EVENT"
    pagination = {"page": 0, "page_size": 100, "total": 1}
    mediator.public = {"events": [payload], "pagination": pagination}
    (event,) = [event async for event in client.public_events(alice.identity.did)]
    assert (event.id, event.event, event.tags) == ("p1", '{"a":1}', ("x", "y"))
    assert mediator.received[0]["header"]["channel"] == "ONE_WAY_PUBLIC"
    for name, value in (("event", "{}"), ("tags", ["x"]), ("channel_id", "old"), ("timestamp", 1)):
        mediator.public = {"events": [{**payload, name: value}], "pagination": pagination}
        with pytest.raises(NotAuthentic):
            await client.read_public(alice.identity.did)


async def test_a_public_read_carries_its_filters(
    alice: Account, client: MediatorClient, mediator: ScriptedMediator
) -> None:
    mediator.public = {"events": [], "pagination": {"page": 0, "page_size": 5, "total": 0}}
    await client.read_public(
        alice.identity.did, channel_id="a,b & c", tags=["x", "y"], after_s=0, page_size=5
    )
    (request,) = mediator.queries
    assert request.match_info["did"] == alice.identity.did
    assert list(request.query.items()) == [
        ("channel_id", "a,b & c"),
        ("tags", "x"),
        ("tags", "y"),
        ("after_timestamp", "0"),
        ("page", "0"),
        ("page_size", "5"),
    ]


async def test_one_tag_of_a_public_read_is_no_list_between_commas(
    client: MediatorClient, mediator: ScriptedMediator
) -> None:
    mediator.public = {"events": [], "pagination": {"page": 0, "page_size": 5, "total": 0}}
    for tag in ("a,b", "", "a"):
        await client.read_public("did:web:publisher.test", tags=[tag])
        limits = Limits(tags_per_query_max=1 if tag == "a" else 2)
        query = read_query("did:web:publisher.test", mediator.queries[-1].query, limits)
        assert isinstance(query, Read)
        assert isinstance(query.where, PublicEventsFilter)
        assert set(query.where.tags) == {tag}


async def test_a_did_key_publishes_and_writes_like_any_other_identity(
    client: MediatorClient, mediator: ScriptedMediator
) -> None:
    seed = b"k" * 32
    did = did_key(public_key(seed))
    signed = {"channel_id": "news", "event": "1", "tags": [], "timestamp": 1}
    item = {"id": "p1", **signed, "event_signature": sign_object(signed, seed)}
    pagination = {"page": 0, "page_size": 100, "total": 1}
    mediator.public = {"events": [item], "pagination": pagination}
    assert [event.id for event in (await client.read_public(did)).items] == ["p1"]
    mediator.public = {"events": [{**item, "event": "2"}], "pagination": pagination}
    with pytest.raises(NotAuthentic):
        await client.read_public(did)
    envelope = {
        "event": {"type": "t"},
        "tags": [],
        "sender_did": did,
        "sender_signing_key_id": did_key_reference(public_key(seed)),
        "timestamp": 1,
    }
    sent = {**envelope, "signature": sign_object(envelope, seed)}
    assert events.decode(canonical(sent)).sender_did == did
    with pytest.raises(NotAuthentic):
        events.decode(canonical({**sent, "timestamp": 2}))
