"""An owner erases its identity by a signed command, an operator any: nothing of it is served."""

from __future__ import annotations

from typing import Any

from tests.edge.identities import Identity
from tests.edge.mediator import Mediator

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
