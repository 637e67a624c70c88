"""What operators see of queues, and how they empty one: on this machine, with the keys alone."""

from __future__ import annotations

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import Mediator

EVERY_REQUEST = [
    ("GET", "/health"),
    ("GET", "/readyz"),
    ("GET", "/status"),
    ("GET", "/queues"),
    ("POST", "/queues/purge?did=did:x:y"),
    ("POST", "/memory"),
    ("GET", "/shards"),
    ("POST", "/shards/move?shard=shard-0&to=host-1"),
    ("POST", "/shards/drain?node=here"),
    ("POST", "/shards/undrain?node=here"),
    ("POST", "/identities/dedicate?did=did:x:y"),
    ("POST", "/identities/release?did=did:x:y"),
    ("POST", "/identities/erase?did=did:x:y"),
]
OF_PROXIES = {
    "Forwarded": "for=127.0.0.1",
    "X-Forwarded-For": "127.0.0.1",
    "X-Forwarded-Host": "mediator.example",
    "X-Real-IP": "127.0.0.1",
}


async def _befriended(mediator: Mediator) -> tuple[Identity, Identity]:
    alice, bob = Identity("alice"), Identity("bob")
    await mediator.register(alice, bob)
    await mediator.befriend(bob, alice)
    return alice, bob


async def test_the_queue_that_waits_longest_is_shown_first(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.befriend(alice, bob)
    await mediator.delivered(alice, bob, "first")
    mediator.clock.advance(60)
    await mediator.delivered(bob, alice, "second")
    answer = await mediator.operate("/queues")
    assert [(queue["did"], queue["oldest_age_s"]) for queue in answer.json["queues"]] == [
        (bob.did, 60.0),
        (alice.did, 0.0),
    ]
    answer = await mediator.operate("/queues?limit=1")
    assert [queue["did"] for queue in answer.json["queues"]] == [bob.did]


async def test_one_queue_is_shown_by_its_identity(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.delivered(alice, bob, "hello")
    answer = await mediator.operate(f"/queues?did={bob.did}")
    assert answer.json == {
        "queues": [
            {"did": bob.did, "messages": 1, "bytes": 5, "oldest_age_s": 0.0, "outbound": False}
        ],
        "known": True,
        "agent": None,
    }


async def test_an_empty_queue_is_not_an_unknown_identity(mediator: Mediator) -> None:
    alice = Identity("alice")
    await mediator.register(alice)
    empty = await mediator.operate(f"/queues?did={alice.did}")
    assert empty.json == {"queues": [], "known": True, "agent": None}
    unknown = await mediator.operate("/queues?did=did:example:unknown")
    assert unknown.json == {"queues": [], "known": False, "agent": None}
    path = "/queues/purge?did=did:example:unknown"
    for _ in range(2):
        purged = await mediator.operate(path, "POST")
        assert purged.json == {"did": "did:example:unknown", "known": False, "purged": 0}


async def test_a_purged_queue_is_empty_for_good_and_others_are_not(mediator: Mediator) -> None:
    alice, bob = await _befriended(mediator)
    await mediator.befriend(alice, bob)
    await mediator.delivered(alice, bob, "for Bob")
    await mediator.delivered(bob, alice, "for Alice")
    answer = await mediator.operate(f"/queues/purge?did={bob.did}", "POST")
    assert answer.json == {"did": bob.did, "known": True, "purged": 1}
    await mediator.restart()
    assert await mediator.waiting(bob) == []
    assert await mediator.waiting(alice) == ["for Alice"]


@pytest.mark.parametrize(("method", "path"), EVERY_REQUEST)
async def test_nothing_is_answered_without_the_token(
    mediator: Mediator, method: str, path: str
) -> None:
    others = ("", "x", mediator.token[:-1], mediator.token + "0", "\u00e9")
    answers = [await mediator.operate(path, method, token=token) for token in others]
    answers.append(await mediator.operate(path, method, headers={"Authorization": mediator.token}))
    assert {answer.refusal for answer in answers} == {(401, "UNAUTHORIZED")}


@pytest.mark.parametrize(("method", "path"), EVERY_REQUEST)
async def test_what_a_proxy_forwards_is_not_answered_to_whom_has_the_token(
    mediator: Mediator, method: str, path: str
) -> None:
    for name, value in OF_PROXIES.items():
        answer = await mediator.operate(path, method, headers={name: value})
        assert answer.refusal == (404, "NOT_FOUND"), name


@pytest.mark.parametrize(("method", "path"), EVERY_REQUEST)
async def test_clients_find_nothing_of_operators_where_they_are_answered(
    mediator: Mediator, method: str, path: str
) -> None:
    headers = {"Authorization": f"Bearer {mediator.token}"}
    answer = await mediator.request(method, path, headers=headers)
    if path in {"/health", "/readyz"}:
        mediator.hosts.cut("host-0")
        mediator.clock.advance(2)
        said = (await mediator.request(method, path, headers=headers)).json
        assert said == {"status": "error", "detail": "part of this mediator does not work"}
    else:
        assert answer.refusal == (404, "NOT_FOUND")


async def test_no_page_of_another_origin_reads_what_operators_are_answered(
    mediator: Mediator,
) -> None:
    origin = {"Origin": "https://evil.example"}
    for path in ("/status", "/nowhere"):
        answer = await mediator.operate(path, headers=origin)
        assert not any(name.startswith("Access-Control-") for name in answer.headers)
    preflight = await mediator.operate("/status", "OPTIONS", headers=origin)
    assert preflight.status == 405
    assert not any(name.startswith("Access-Control-") for name in preflight.headers)


async def test_what_is_no_number_or_no_did_is_refused(mediator: Mediator) -> None:
    assert (await mediator.operate("/queues?limit=x")).status == 400
    assert (await mediator.operate("/queues?limit=-1")).json == {"queues": []}
    for path in ("/queues/purge", "/queues/purge?did=key:abc"):
        assert (await mediator.operate(path, "POST")).status == 400


async def test_queues_that_cannot_be_read_are_unavailable(mediator: Mediator) -> None:
    mediator.hosts.cut("host-0")
    assert (await mediator.operate("/queues")).status == 503
    answer = await mediator.operate("/queues/purge?did=did:x:y", "POST")
    assert answer.status == 503


async def test_a_mediator_alone_shows_its_shards_and_moves_none(mediator: Mediator) -> None:
    answer = await mediator.operate("/shards")
    assert answer.json["shards"][0] == {
        "shard": "shard-0",
        "host": "host-0",
        "node": "",
        "to": None,
    }
    assert sum(host["shards"] for host in answer.json["hosts"]) == len(answer.json["shards"])
    for order in ("move?shard=shard-0&to=host-1", "drain?node=here", "undrain?node=here"):
        answer = await mediator.operate(f"/shards/{order}", "POST")
        assert answer.json == {"placed": "NO_CLUSTER"}
    for order in ("dedicate", "release"):
        path = f"/identities/{order}?did="
        answer = await mediator.operate(path + "did:x:y", "POST")
        assert answer.json == {"placed": "NO_CLUSTER"}
        answer = await mediator.operate(path + "key:x", "POST")
        assert answer.json == {"placed": "NO_SUCH_IDENTITY"}
