"""An owner erases its identity by a signed command, an operator any: nothing of it is served."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import EraseIdentity, ExpireRecords, GrantMediation, NameSpeaker
from actors.core.erasure import OPERATOR
from actors.core.refusals import Refusal
from actors.core.replies import Done, Erased, Expired
from http_edge.clients.decentrl import CommandRefused, EventToSave, MediatorClient, Sources
from http_edge.clients.decentrl import Identity as ClientIdentity
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.keylists import KeyChanges, Keylists
from tests.edge.identities import Identity
from tests.edge.mediator import DAY_S, Mediator
from tests.unit.actors.didcomm import ME, NEW_DID
from tests.unit.actors.given import connection

SAVE = {
    "type": "SAVE_EVENTS",
    "events": [
        {
            "sender_did": "did:example:a",
            "recipient_did": "did:example:b",
            "timestamp": number,
            "payload": f"event {number}",
            "encrypted_tags": ["tag"],
        }
        for number in range(600)
    ],
}
KEY, COMMAND, SAID = "the key", bytes(16), connection()
UNAUTHORIZED = (401, "UNAUTHORIZED_COMMAND")


async def _settled(mediator: Mediator) -> tuple[Identity, Identity]:
    """Alice and Bob, with messages for each other and a history."""
    alice, bob = Identity("alice"), Identity("bob")
    await mediator.register(alice, bob)
    await mediator.befriend(alice, bob)
    await mediator.befriend(bob, alice)
    for one, other in ((alice, bob), (bob, alice)):
        await mediator.delivered(one, other, f"from {one.did}")
        assert (await mediator.send(one, SAVE)).json["type"] == "SUCCESS"
        await mediator.publish(one, "news")
    return alice, bob


async def _public(mediator: Mediator, of: Identity) -> Any:
    answer = await mediator.request("GET", f"/public/{of.did}")
    return answer.payload["pagination"]["total"]


async def _assert_erased(mediator: Mediator, gone: Identity, other: Identity) -> None:
    for command in ("QUERY_EVENTS", "QUERY_PENDING_EVENTS", "QUERY_COMMUNICATION_CONTRACTS"):
        assert (await mediator.send(gone, {"type": command})).refusal == UNAUTHORIZED
    assert await _public(mediator, gone) == 0
    assert (await mediator.write(other, gone, "late")).refusal == (404, "RECIPIENT_NOT_REGISTERED")
    assert await mediator.waiting(other) == [f"from {gone.did}"]
    history = (await mediator.send(other, {"type": "QUERY_EVENTS"})).json
    assert history["payload"]["pagination"]["total"] == 600
    assert await _public(mediator, other) == 1


async def test_an_owner_erases_its_identity_and_nothing_of_others(mediator: Mediator) -> None:
    alice, bob = await _settled(mediator)
    erase = {"type": "ERASE_IDENTITY", "did": alice.did}
    refused = await mediator.send(bob, erase)
    assert refused.refusal == (400, "INVALID_COMMAND")
    answer = await mediator.send(alice, erase)
    assert answer.json["type"] == "SUCCESS"
    await _assert_erased(mediator, alice, bob)
    assert (await mediator.send(alice, erase)).refusal == UNAUTHORIZED
    await mediator.restart()
    await _assert_erased(mediator, alice, bob)
    await mediator.register(alice)
    assert await mediator.waiting(alice) == []


async def test_who_is_not_registered_renews_before_it_erases_its_identity(
    mediator: Mediator,
) -> None:
    alice, _ = await _settled(mediator)
    stranger = Identity("stranger")
    mediator.clock.advance(2 * DAY_S)
    for identity in (alice, stranger):
        answer = await mediator.do(identity, "ERASE_IDENTITY", did=identity.did)
        assert answer.refusal == UNAUTHORIZED
    await mediator.register(alice)
    assert await mediator.waiting(alice) != []
    answer = await mediator.do(alice, "ERASE_IDENTITY", did=alice.did)
    assert answer.json["code"] == "ERASED"


async def test_an_owner_whose_identity_is_being_erased_learns_that_it_is(
    mediator: Mediator,
) -> None:
    alice, bob = await _settled(mediator)
    identities = Identities(mediator.edges[0]._gateway)
    begun = await identities.ask(alice.did, EraseIdentity(OPERATOR, 1), COMMAND, Erased)
    assert isinstance(begun, Erased)
    assert not begun.is_over
    answer = await mediator.do(alice, "ERASE_IDENTITY", did=alice.did)
    assert answer.json == {"type": "SUCCESS", "code": "ERASED"}
    await _assert_erased(mediator, alice, bob)


async def test_a_client_erases_its_identity_and_registers_again(mediator: Mediator) -> None:
    now_s, sources = mediator.clock.now_s, Sources(now_ms=mediator.clock)
    async with MediatorClient(mediator.url(""), sources=sources) as client:
        alice = client.as_(ClientIdentity.create("alice", (await client.document()).did))
        await alice.register(expires_at_s=now_s + 60)
        did = alice.identity.did
        await alice.save_events(
            [
                EventToSave(
                    sender_did=did, recipient_did=did, timestamp_s=1, payload="x", encrypted_tags=[]
                )
            ]
        )
        assert (await alice.query_events()).pagination.total == 1
        await alice.erase_identity()
        for ask in (alice.query_events, alice.erase_identity):
            with pytest.raises(CommandRefused) as refused:
                await ask()
            assert (refused.value.http_status, refused.value.code) == UNAUTHORIZED
        await alice.register(expires_at_s=now_s + 60)
        assert (await alice.query_events()).pagination.total == 0


async def test_an_operator_erases_an_identity_in_steps(mediator: Mediator) -> None:
    alice, bob = await _settled(mediator)
    path = f"/identities/erase?did={alice.did}"
    answer = await mediator.operate(path, "POST")
    assert answer.json["is_over"]
    assert answer.json["records"] > 600
    await _assert_erased(mediator, alice, bob)
    again = await mediator.operate(path, "POST")
    assert again.json == {"did": alice.did, "known": True, "is_over": True, "records": 0}
    unknown = await mediator.operate("/identities/erase?did=did:example:unknown", "POST")
    assert not unknown.json["known"]
    assert (await mediator.operate("/identities/erase?did=x", "POST")).status == 400


async def test_an_operator_erases_who_was_never_here_only_if_it_says_so(
    mediator: Mediator,
) -> None:
    alice, stranger = Identity("alice"), Identity("stranger")
    await mediator.register(alice)
    await mediator.befriend(alice, stranger)
    await mediator.delivered(stranger, alice, "from far away")
    path = f"/identities/erase?did={stranger.did}"
    for query in (path, f"{path}&begun=true", f"{path}&begun=true&foreign=true"):
        before = mediator.log_position()
        assert (await mediator.operate(query, "POST")).json["is_over"]
        assert mediator.log_position() == before
    erase = {"type": "ERASE_IDENTITY", "did": stranger.did}
    assert (await mediator.send(stranger, erase)).refusal == UNAUTHORIZED
    erased = {"did": stranger.did, "known": True, "is_over": True, "records": 0}
    for _ in range(2):
        answer = await mediator.operate(f"{path}&foreign=true", "POST")
        assert answer.json == erased
    assert mediator.facts().count("identity-erased.1") == 1
    for text in ("", "alice", "did:x:%00", "did:x:%ff%0A"):
        bad = await mediator.operate(f"/identities/erase?did={text}&foreign=true", "POST")
        assert bad.status == 400
    await mediator.delivered(stranger, alice, "again")
    assert await mediator.waiting(alice) == ["from far away", "again"]
    await mediator.register(stranger)
    assert await mediator.waiting(stranger) == []


async def test_a_key_of_an_agent_is_not_erased_as_who_was_never_here(mediator: Mediator) -> None:
    identities = Identities(mediator.edges[0]._gateway)
    keylists = Keylists(identities, keys_max=9, command_s_max=100)
    wallet = "did:web:wallet.example"
    assert await keylists.enrol(ME, COMMAND, SAID, [wallet]) is None
    path = f"/identities/erase?did={wallet}&foreign=true"
    answer = (await mediator.operate(path, "POST")).json
    assert (answer["known"], answer["account"]) == (False, ME)
    assert "identity-erased.1" not in mediator.facts()


@pytest.mark.parametrize("by", ["its owner", "an operator"])
async def test_the_sockets_of_who_is_erased_end(by: str, mediator: Mediator) -> None:
    (alice, bob), carol = await _settled(mediator), Identity("carol")
    await mediator.register(carol)
    await mediator.befriend(bob, carol)
    async with (
        mediator.socket(alice) as first,
        mediator.socket(alice) as second,
        mediator.socket(bob) as other,
    ):
        if by == "its owner":
            erase = {"type": "ERASE_IDENTITY", "did": alice.did}
            assert (await mediator.send(alice, erase)).json["type"] == "SUCCESS"
        else:
            await mediator.operate(f"/identities/erase?did={alice.did}", "POST")
        for socket in (first, second):
            assert (await socket.hear())["code"] == "NOT_REGISTERED"
            assert await socket.closing() == 4007
        await mediator.delivered(carol, bob, "hi")
        assert (await other.hear())["type"] == "PENDING_EVENTS"


async def test_an_operator_erases_who_spoke_for_an_account_that_is_erased(
    mediator: Mediator,
) -> None:
    """Also where the end of that one's erasure was cut short before it was let go."""
    identities = Identities(mediator.edges[0]._gateway)
    await identities.ask(NEW_DID, NameSpeaker(ME), COMMAND, Done, by_mediator=True)
    answer = await mediator.operate(f"/identities/erase?did={NEW_DID}", "POST")
    assert (answer.json["known"], answer.json["is_over"]) == (True, True)
    await identities.ask(NEW_DID, NameSpeaker(ME), COMMAND, Done, by_mediator=True)
    await identities.ask(ME, GrantMediation(SAID), COMMAND, Done)
    answer = await mediator.operate(f"/identities/erase?did={NEW_DID}", "POST")
    assert answer.json["speaks_for"]


@pytest.mark.parametrize("by", ["its owner", "an operator"])
async def test_a_key_of_the_keylist_is_free_for_the_next_one(by: str, mediator: Mediator) -> None:
    alice, bob = await _settled(mediator)
    identities = Identities(mediator.edges[0]._gateway)
    keylists = Keylists(identities, keys_max=9, command_s_max=100)
    wanted = KeyChanges([KEY], [])
    for did, failed in ((alice.did, []), (bob.did, [KEY])):
        assert await keylists.enrol(did, COMMAND, SAID, []) is None
        changed = await keylists.change(did, COMMAND, wanted)
        assert not isinstance(changed, Refusal)
        assert list(changed.failed) == failed
    if by == "its owner":
        erase = {"type": "ERASE_IDENTITY", "did": alice.did}
        assert (await mediator.send(alice, erase)).json["type"] == "SUCCESS"
    else:
        answer = await mediator.operate(f"/identities/erase?did={alice.did}", "POST")
        assert answer.json["is_over"]
    free = await keylists.change(bob.did, COMMAND, wanted)
    assert not isinstance(free, Refusal)
    assert free.failed == {}


@pytest.mark.parametrize("by", ["its owner", "an operator"])
async def test_who_comes_back_while_a_request_to_erase_it_is_under_way_stays(
    by: str, mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = await _settled(mediator)
    identities = Identities(mediator.edges[0]._gateway)
    assert (
        await Keylists(identities, keys_max=9, command_s_max=100).enrol(
            alice.did, COMMAND, SAID, [KEY]
        )
        is None
    )

    async def come_back(*_: object) -> None:
        """After the first step: the search for due records does the rest, and Alice registers."""
        left: Expired | Refusal = Expired(1, 0, 0)
        while isinstance(left, Expired) and left.records:
            more = ExpireRecords(1_000)
            left = await identities.ask(alice.did, more, COMMAND, Expired, by_mediator=True)
        await mediator.register(alice)

    monkeypatch.setattr(Keylists, "release", come_back)
    path = f"/identities/erase?did={alice.did}"
    if by == "its owner":
        answer = await mediator.send(alice, {"type": "ERASE_IDENTITY", "did": alice.did})
        assert answer.json["type"] == "SUCCESS"
    else:
        assert (await mediator.operate(path, "POST")).json["is_over"]
        # A request that continues the erasure, sent after its end.
        assert (await mediator.operate(f"{path}&begun=true", "POST")).json["is_over"]
    assert await mediator.waiting(alice) == []
