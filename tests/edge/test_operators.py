"""What operators see of queues, and how they empty one: on this machine, with the keys alone."""

from __future__ import annotations

from http_edge.crypto.mediator_keys import operator_token
from tests.edge.identities import Person
from tests.edge.mediator import KEYS, Mediator

AS_OPERATOR = {"Authorization": f"Bearer {operator_token(KEYS)}"}


async def _befriended(mediator: Mediator) -> tuple[Person, Person]:
    alice, bob = Person("alice"), Person("bob")
    await mediator.register(alice, bob)
    await mediator.befriend(bob, alice)
    return alice, bob


async def test_the_queue_that_waits_longest_is_shown_first(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.befriend(alice, bob)
    await mediator.delivered(alice, bob, "first")
    mediator.clock.advance(60)
    await mediator.delivered(bob, alice, "second")
    answer = await mediator.get("/queues", headers=AS_OPERATOR)
    assert [(queue["did"], queue["oldest_age_s"]) for queue in answer.json["queues"]] == [
        (bob.did, 60.0),
        (alice.did, 0.0),
    ]
    answer = await mediator.get("/queues?limit=1", headers=AS_OPERATOR)
    assert [queue["did"] for queue in answer.json["queues"]] == [bob.did]


async def test_one_queue_is_shown_by_its_identity(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.delivered(alice, bob, "hello")
    answer = await mediator.get(f"/queues?did={bob.did}", headers=AS_OPERATOR)
    assert answer.json == {
        "queues": [
            {"did": bob.did, "messages": 1, "bytes": 5, "oldest_age_s": 0.0, "outbound": False}
        ],
        "known": True,
        "agent": None,
    }


async def test_an_empty_queue_is_not_an_unknown_identity(mediator: Mediator) -> None:
    alice = Person("alice")
    await mediator.register(alice)
    empty = await mediator.get(f"/queues?did={alice.did}", headers=AS_OPERATOR)
    assert empty.json == {"queues": [], "known": True, "agent": None}
    unknown = await mediator.get("/queues?did=did:example:unknown", headers=AS_OPERATOR)
    assert unknown.json == {"queues": [], "known": False, "agent": None}
    path = "/queues/purge?did=did:example:unknown"
    for _ in range(2):
        purged = await mediator.request("POST", path, headers=AS_OPERATOR)
        assert purged.json == {"did": "did:example:unknown", "known": False, "purged": 0}


async def test_a_purged_queue_is_empty_for_good_and_others_are_not(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.befriend(alice, bob)
    await mediator.delivered(alice, bob, "for Bob")
    await mediator.delivered(bob, alice, "for Alice")
    answer = await mediator.request("POST", f"/queues/purge?did={bob.did}", headers=AS_OPERATOR)
    assert answer.json == {"did": bob.did, "known": True, "purged": 1}
    await mediator.restart()
    assert await mediator.waiting(bob) == []
    assert await mediator.waiting(alice) == ["for Alice"]


async def test_a_queue_is_seen_and_emptied_with_the_keys_alone(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.delivered(alice, bob, "hello")
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer \u00e9"}):
        for method, path in (("GET", "/queues"), ("POST", f"/queues/purge?did={bob.did}")):
            answer = await mediator.request(method, path, headers=headers)
            assert answer.refusal == (401, "UNAUTHORIZED")
    assert await mediator.waiting(bob) == ["hello"]


async def test_queues_are_for_this_machine_alone(mediator: Mediator) -> None:
    headers = {**AS_OPERATOR, "X-Forwarded-For": "203.0.113.9"}
    assert (await mediator.get("/queues", headers=headers)).status == 404
    answer = await mediator.request("POST", "/queues/purge?did=did:x:y", headers=headers)
    assert answer.status == 404


async def test_what_is_no_number_or_no_did_is_refused(mediator: Mediator) -> None:
    assert (await mediator.get("/queues?limit=x", headers=AS_OPERATOR)).status == 400
    assert (await mediator.get("/queues?limit=-1", headers=AS_OPERATOR)).json == {"queues": []}
    for path in ("/queues/purge", "/queues/purge?did=key:abc"):
        assert (await mediator.request("POST", path, headers=AS_OPERATOR)).status == 400


async def test_queues_that_cannot_be_read_are_unavailable(mediator: Mediator) -> None:
    mediator.hosts.cut("host-0")
    assert (await mediator.get("/queues", headers=AS_OPERATOR)).status == 503
    answer = await mediator.request("POST", "/queues/purge?did=did:x:y", headers=AS_OPERATOR)
    assert answer.status == 503


async def test_a_mediator_alone_shows_its_shards_and_moves_none(mediator: Mediator) -> None:
    answer = await mediator.get("/shards", headers=AS_OPERATOR)
    assert answer.json["shards"][0] == {
        "shard": "shard-0",
        "host": "host-0",
        "node": "",
        "to": None,
    }
    assert sum(host["shards"] for host in answer.json["hosts"]) == len(answer.json["shards"])
    for order in ("move?shard=shard-0&to=host-1", "drain?node=here", "undrain?node=here"):
        answer = await mediator.request("POST", f"/shards/{order}", headers=AS_OPERATOR)
        assert answer.json == {"placed": "NO_CLUSTER"}
    for order in ("dedicate", "release"):
        path = f"/identities/{order}?did="
        answer = await mediator.request("POST", path + "did:x:y", headers=AS_OPERATOR)
        assert answer.json == {"placed": "NO_CLUSTER"}
        answer = await mediator.request("POST", path + "key:x", headers=AS_OPERATOR)
        assert answer.json == {"placed": "NO_SUCH_IDENTITY"}


async def test_shards_are_seen_and_moved_with_the_keys_alone(mediator: Mediator) -> None:
    wrong = {"Authorization": "Bearer 0"}
    assert (await mediator.get("/shards", headers=wrong)).status == 401
    assert (await mediator.get("/shards")).status == 401
    for order in ("move?shard=shard-0&to=host-1", "drain?node=here", "undrain?node=here"):
        assert (await mediator.request("POST", f"/shards/{order}", headers=wrong)).status == 401
    for order in ("dedicate?did=did:x:y", "release?did=did:x:y"):
        assert (await mediator.request("POST", f"/identities/{order}", headers=wrong)).status == 401
