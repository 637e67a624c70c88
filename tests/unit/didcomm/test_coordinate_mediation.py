"""Coordinate mediation over real identities: hosts and a log in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from actors.core.commands import (
    CheckKeys,
    ClaimKey,
    FindKeyOwner,
    GrantMediation,
    QueryKeylist,
    ReleaseKey,
    UpdateKeylist,
)
from actors.core.partitioning import host_name
from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.coordinate_mediation import FORM_1
from http_edge.didcomm.protocols.protocol import Family
from tests.unit.didcomm.mediations import ENDPOINT, SERVICE_KEY, SETTINGS, mediation_family
from tests.unit.didcomm.requests import (
    ALICE,
    BOB,
    NEW,
    OLD,
    Agents,
    agents_of,
    answer,
    message,
    outcome,
    raw_key,
    written,
)

STRANGER: Final = raw_key(1_003)
KEYS: Final = [raw_key(number) for number in range(40)]
A: Final = keys.did_key(KEYS[0])
B: Final = keys.did_key(KEYS[1])
A_DID, B_DID = keys.did_key(ALICE), keys.did_key(BOB)


class Mediation:
    """The family under test, with agents that are connected and mediated."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.family: Family = mediation_family(FORM_1, agents)

    async def request(self, key: bytes = ALICE, prefix: str = NEW) -> Json:
        asks = message("coordinate-mediation/1.0/mediate-request", prefix)
        return await answer(self.family, asks, key, self.agents)

    async def update(self, *updates: Any, key: bytes = ALICE) -> list[tuple[str, str, str]]:
        """What became of each update: key, action and result."""
        answered = await self.updated(updates=list(updates), key=key)
        assert answered["@type"] == NEW + "coordinate-mediation/1.0/keylist-update-response"
        assert answered["~thread"] == {"thid": "message-1"}
        results = cast("list[dict[str, str]]", answered["updated"])
        assert all(set(result) == {"recipient_key", "action", "result"} for result in results)
        return [(result["recipient_key"], result["action"], result["result"]) for result in results]

    async def updated(self, key: bytes = ALICE, **members: Any) -> Json:
        asks = message("coordinate-mediation/1.0/keylist-update", **members)
        return await answer(self.family, asks, key, self.agents)

    async def query(self, key: bytes = ALICE, **members: Any) -> Json:
        asks = message("coordinate-mediation/1.0/keylist-query", **members)
        return await answer(self.family, asks, key, self.agents)

    async def keylist(self, key: bytes = ALICE) -> list[str]:
        """All keys of an agent, page by page."""
        found: list[str] = []
        remaining = 1
        while remaining:
            part = await self.query(key, paginate={"limit": 3, "offset": len(found)})
            found += _keys(part)
            remaining = cast("dict[str, int]", part["pagination"])["remaining"]
        return found


@pytest.fixture
async def mediation(tmp_path: Path) -> AsyncIterator[Mediation]:
    async with agents_of(tmp_path, didcomm=SETTINGS) as agents:
        mediation = Mediation(agents)
        await agents.connect(ALICE, BOB)
        await mediation.request(ALICE)
        await mediation.request(BOB)
        agents.seen.clear()
        yield mediation


def add(key: Any) -> Json:
    return {"recipient_key": key, "action": "add"}


def remove(key: Any) -> Json:
    return {"recipient_key": key, "action": "remove"}


def results(answered: list[tuple[str, str, str]]) -> list[str]:
    return [result for _, _, result in answered]


def code(report: Json) -> object:
    assert report["@type"] == NEW + "notification/1.0/problem-report"
    return cast("Json", report["description"])["code"]


def _keys(part: Json) -> list[str]:
    return [item["recipient_key"] for item in cast("list[dict[str, str]]", part["keys"])]


# ---- mediate-request


@pytest.mark.parametrize("prefix", [NEW, OLD])
async def test_mediation_is_granted_again_and_again(mediation: Mediation, prefix: str) -> None:
    for _ in range(2):
        assert await mediation.request(prefix=prefix) == {
            "@type": prefix + "coordinate-mediation/1.0/mediate-grant",
            "@id": "reply-1",
            "~thread": {"thid": "message-1"},
            "endpoint": ENDPOINT,
            "routing_keys": [keys.did_key(SERVICE_KEY)],
        }


async def test_a_stranger_is_denied_at_once_or_never(mediation: Mediation) -> None:
    asks = message("coordinate-mediation/1.0/mediate-request")
    denied = await outcome(mediation.family, asks, STRANGER, mediation.agents)
    reply = written(denied.reply, asks)
    assert reply["@type"] == NEW + "coordinate-mediation/1.0/mediate-deny"
    assert not denied.may_wait


async def test_a_request_without_outcome_is_to_be_tried_again(mediation: Mediation) -> None:
    mediation.agents.hosts.cut(host_name(0))
    assert code(await mediation.request()) == "try-again"
    mediation.agents.hosts.mend(host_name(0))


# ---- keylist-update


async def test_keys_come_and_go(mediation: Mediation) -> None:
    assert await mediation.update(add(A), add(B)) == [(A, "add", "success"), (B, "add", "success")]
    assert await mediation.update(add(A), remove(B)) == [
        (A, "add", "no_change"),
        (B, "remove", "success"),
    ]
    assert await mediation.update(remove(B)) == [(B, "remove", "no_change")]
    assert await mediation.keylist() == [A]
    assert await mediation.agents.owner(KEYS[0]) == A_DID
    assert await mediation.agents.owner(KEYS[1]) is None


async def test_a_key_in_three_spellings_is_one_key_and_is_answered_as_it_was_spelled(
    mediation: Mediation,
) -> None:
    plain, reference = keys.base58(KEYS[0]), keys.did_key_reference(KEYS[0])
    assert await mediation.update(add(plain)) == [(plain, "add", "success")]
    assert await mediation.update(add(A)) == [(A, "add", "no_change")]
    assert await mediation.update(remove(reference)) == [(reference, "remove", "success")]
    assert await mediation.keylist() == []


async def test_a_key_of_another_stays_with_its_owner(mediation: Mediation) -> None:
    await mediation.update(add(A))
    assert await mediation.update(add(A), add(B), key=BOB) == [
        (A, "add", "client_error"),
        (B, "add", "success"),
    ]
    assert await mediation.keylist(BOB) == [B]
    assert await mediation.agents.owner(KEYS[0]) == A_DID


async def test_a_foreign_key_and_an_unknown_one_are_removed_alike(mediation: Mediation) -> None:
    await mediation.update(add(A))
    assert results(await mediation.update(remove(A), remove(B), key=BOB)) == ["no_change"] * 2
    assert await mediation.agents.owner(KEYS[0]) == A_DID
    assert await mediation.keylist() == [A]


async def test_a_removed_key_is_free_for_another(mediation: Mediation) -> None:
    await mediation.update(add(A))
    await mediation.update(remove(A))
    assert results(await mediation.update(add(A), key=BOB)) == ["success"]
    assert await mediation.agents.owner(KEYS[0]) == B_DID


@pytest.mark.parametrize(
    ("actions", "expected", "stays"),
    [
        ([add, add], ["success", "no_change"], True),
        ([add, remove], ["success", "success"], False),
        ([remove, add], ["no_change", "success"], True),
        ([remove, remove], ["no_change", "no_change"], False),
        ([add, remove, add], ["success", "success", "success"], True),
    ],
)
async def test_updates_of_one_key_count_one_after_the_other(
    mediation: Mediation, actions: list[Any], expected: list[str], stays: bool
) -> None:
    assert results(await mediation.update(*(action(A) for action in actions))) == expected
    assert await mediation.keylist() == ([A] if stays else [])
    assert await mediation.agents.owner(KEYS[0]) == (A_DID if stays else None)


async def test_two_spellings_in_one_update_are_one_key(mediation: Mediation) -> None:
    plain = keys.base58(KEYS[0])
    assert await mediation.update(add(A), add(plain), remove(A)) == [
        (A, "add", "success"),
        (plain, "add", "no_change"),
        (A, "remove", "success"),
    ]


async def test_the_key_of_the_mediator_cannot_be_claimed(mediation: Mediation) -> None:
    spellings = [
        keys.base58(SERVICE_KEY),
        keys.did_key(SERVICE_KEY),
        keys.did_key_reference(SERVICE_KEY),
    ]
    answered = await mediation.update(*map(add, spellings), *map(remove, spellings))
    assert set(results(answered)) == {"client_error"}
    assert not any(isinstance(command, ClaimKey) for command in mediation.agents.seen)
    assert await mediation.agents.owner(SERVICE_KEY) is None


@pytest.mark.parametrize(
    ("update", "key", "action"),
    [
        (add("no key"), "no key", "add"),
        (add(""), "", "add"),
        (add(None), "", "add"),
        (add([A]), "", "add"),
        ({"recipient_key": A}, A, ""),
        ({"recipient_key": A, "action": "replace"}, A, "replace"),
        ({"recipient_key": A, "action": ["add"]}, A, ""),
        ({"recipient_key": A, "action": {}}, A, ""),
        ({"action": "add"}, "", "add"),
        ({}, "", ""),
        (None, "", ""),
        (A, "", ""),
        ([A, "add"], "", ""),
    ],
)
async def test_a_malformed_update_is_the_clients_error_and_spoils_no_other(
    mediation: Mediation, update: object, key: str, action: str
) -> None:
    assert await mediation.update(update, add(B)) == [
        (key, action, "client_error"),
        (B, "add", "success"),
    ]
    assert await mediation.keylist() == [B]


@pytest.mark.parametrize("updates", [None, "add", {}, 1])
async def test_updates_that_are_no_list_are_a_problem(
    mediation: Mediation, updates: object
) -> None:
    assert code(await mediation.updated(updates=updates)) == "invalid-message"
    assert code(await mediation.updated()) == "invalid-message"


async def test_an_empty_update_is_answered(mediation: Mediation) -> None:
    assert await mediation.update() == []


async def test_updates_beyond_the_bound_are_not_carried_out(mediation: Mediation) -> None:
    named = [keys.did_key(key) for key in KEYS[:11]]
    answered = await mediation.update(*map(add, named), {}, None, add(""), add("x"))
    assert results(answered) == ["success"] * 10 + ["client_error"] * 2
    assert answered[10:] == [(named[10], "add", "client_error"), ("x", "add", "client_error")]
    assert await mediation.keylist() == named[:10]


async def test_who_is_not_mediated_claims_nothing(mediation: Mediation) -> None:
    unmediated = raw_key(1_004)
    await mediation.agents.connect(unmediated)
    assert code(await mediation.updated(unmediated, updates=[add(A)])) == "mediation_not_granted"
    assert code(await mediation.updated(STRANGER, updates=[add(A)])) == "not-connected"
    assert not any(isinstance(command, ClaimKey) for command in mediation.agents.seen)
    assert await mediation.agents.owner(KEYS[0]) is None


async def test_a_report_to_a_stranger_does_not_wait(mediation: Mediation) -> None:
    asks = message("coordinate-mediation/1.0/keylist-query")
    assert not (await outcome(mediation.family, asks, STRANGER, mediation.agents)).may_wait
    assert (await outcome(mediation.family, asks, ALICE, mediation.agents)).may_wait


# ---- keylist-update: limits and failures


async def test_a_full_keylist_takes_all_or_none_and_gives_the_claims_back(
    mediation: Mediation,
) -> None:
    named = [keys.did_key(key) for key in KEYS[:14]]
    await mediation.update(*map(add, named[:10]))
    answered = await mediation.update(add(named[0]), *map(add, named[10:14]))
    assert results(answered) == ["no_change"] + ["client_error"] * 4
    assert await mediation.keylist() == named[:10]
    owners = [await mediation.agents.owner(key) for key in KEYS[:14]]
    assert owners == [A_DID] * 10 + [None] * 4


async def test_what_a_full_update_removes_is_removed_all_the_same(mediation: Mediation) -> None:
    named = [keys.did_key(key) for key in KEYS[:14]]
    await mediation.update(*map(add, named[:10]))
    answered = await mediation.update(remove(named[0]), *map(add, named[10:14]))
    assert results(answered) == ["success"] + ["client_error"] * 4
    assert await mediation.keylist() == named[1:10]
    assert await mediation.agents.owner(KEYS[0]) is None
    assert results(await mediation.update(*map(add, named[10:13]))) == ["success"] * 3


async def test_keys_make_room_for_others_in_the_same_update(mediation: Mediation) -> None:
    named = [keys.did_key(key) for key in KEYS[:16]]
    await mediation.update(*map(add, named[:10]))
    await mediation.update(*map(add, named[10:12]))
    answered = await mediation.update(*map(remove, named[:4]), *map(add, named[12:16]))
    assert results(answered) == ["success"] * 8
    assert await mediation.keylist() == named[4:16]


@pytest.mark.parametrize("refusal", [Refusal.NOT_MEDIATED, Refusal.RATE_LIMITED])
async def test_a_refused_update_gives_new_claims_back_and_no_others(
    mediation: Mediation, refusal: Refusal
) -> None:
    await mediation.update(add(A))
    mediation.agents.refused[UpdateKeylist] = refusal
    assert results(await mediation.update(add(A), add(B))) == ["no_change", "server_error"]
    assert await mediation.agents.owner(KEYS[0]) == A_DID
    assert await mediation.agents.owner(KEYS[1]) is None


async def test_an_update_whose_answer_was_lost_can_be_sent_again(mediation: Mediation) -> None:
    mediation.agents.lost = {UpdateKeylist}
    answered = results(await mediation.update(add(A), remove(B)))
    assert answered == ["server_error", "no_change"]
    assert await mediation.agents.owner(KEYS[0]) == A_DID
    mediation.agents.lost = set()
    assert results(await mediation.update(add(A), remove(B))) == ["no_change"] * 2
    assert await mediation.keylist() == [A]


@pytest.mark.parametrize("command", [ClaimKey, ReleaseKey])
async def test_a_key_whose_owner_does_not_answer_can_be_sent_again(
    mediation: Mediation, command: type[ClaimKey | ReleaseKey]
) -> None:
    await mediation.update(add(B))
    mediation.agents.lost = {command}
    answered = results(await mediation.update(add(A), remove(B)))
    # What is out of the keylist is removed, whatever becomes of the claim.
    assert answered == ["server_error" if command is ClaimKey else "success", "success"]
    mediation.agents.lost = set()
    answered = results(await mediation.update(add(A), remove(B)))
    assert answered == ["success" if command is ClaimKey else "no_change", "no_change"]
    assert await mediation.keylist() == [A]
    assert await mediation.agents.owner(KEYS[0]) == A_DID
    assert await mediation.agents.owner(KEYS[1]) is None


async def test_all_keys_of_an_update_are_asked_for_together(mediation: Mediation) -> None:
    await mediation.update(*(add(keys.did_key(key)) for key in KEYS[:8]))
    wanted = [CheckKeys, *[FindKeyOwner] * 8, *[ClaimKey] * 8, UpdateKeylist]
    assert [type(command) for command in mediation.agents.seen] == wanted


async def test_a_refused_update_costs_no_claims(mediation: Mediation) -> None:
    await mediation.update(*(add(keys.did_key(key)) for key in KEYS[:10]))
    mediation.agents.seen.clear()
    await mediation.update(*(add(keys.did_key(key)) for key in KEYS[10:14]))
    assert [type(command) for command in mediation.agents.seen] == [CheckKeys]


async def test_no_owner_is_looked_for_of_a_key_added_and_removed(mediation: Mediation) -> None:
    await mediation.update(add(A), key=BOB)
    mediation.agents.seen.clear()
    updated = await mediation.update(add(A), remove(A), add(B), remove(B))
    assert results(updated) == ["success"] * 4
    assert [type(command) for command in mediation.agents.seen] == [CheckKeys]
    assert [await mediation.agents.owner(key) for key in KEYS[:2]] == [B_DID, None]


async def test_an_update_without_outcome_is_to_be_tried_again(mediation: Mediation) -> None:
    mediation.agents.hosts.cut(host_name(0))
    assert code(await mediation.updated(updates=[add(A)])) == "try-again"
    mediation.agents.hosts.mend(host_name(0))


# ---- keylist-query


async def test_a_keylist_is_listed_oldest_first_as_did_keys(mediation: Mediation) -> None:
    await mediation.update(add(keys.base58(KEYS[1])), add(keys.did_key_reference(KEYS[0])))
    assert await mediation.query() == {
        "@type": NEW + "coordinate-mediation/1.0/keylist",
        "@id": "reply-1",
        "~thread": {"thid": "message-1"},
        "keys": [{"recipient_key": B}, {"recipient_key": A}],
    }
    assert "keys" in await mediation.query(BOB)
    assert _keys(await mediation.query(BOB)) == []


@pytest.mark.parametrize(
    ("paginate", "first", "pagination"),
    [
        ({"limit": 2, "offset": 0}, 0, {"count": 2, "offset": 0, "remaining": 6}),
        ({"limit": 3, "offset": 6}, 6, {"count": 2, "offset": 6, "remaining": 0}),
        ({"limit": 2, "offset": 8}, 8, {"count": 0, "offset": 8, "remaining": 0}),
        ({"limit": 0, "offset": 1}, 1, {"count": 0, "offset": 1, "remaining": 7}),
        ({"limit": 2**53 - 1, "offset": 0}, 0, {"count": 5, "offset": 0, "remaining": 3}),
        (
            {"limit": 1, "offset": 2**53 - 1},
            8,
            {"count": 0, "offset": 2**53 - 1, "remaining": 0},
        ),
        ({"limit": 4}, 0, {"count": 4, "offset": 0, "remaining": 4}),
        ({"limit": "4", "offset": "1"}, 1, {"count": 4, "offset": 1, "remaining": 3}),
        ({"limit": -1, "offset": 0}, 0, {"count": 5, "offset": 0, "remaining": 3}),
        ({"offset": 7}, 7, {"count": 1, "offset": 7, "remaining": 0}),
        ({}, 0, {"count": 5, "offset": 0, "remaining": 3}),
    ],
)
async def test_a_keylist_is_listed_in_pages(
    mediation: Mediation, paginate: Json, first: int, pagination: dict[str, int]
) -> None:
    named = [keys.did_key(key) for key in KEYS[:8]]
    await mediation.update(*map(add, named))
    part = await mediation.query(paginate=paginate)
    assert part["pagination"] == pagination
    assert _keys(part) == named[first : first + pagination["count"]]


async def test_who_does_not_ask_for_pages_learns_that_keys_are_left(mediation: Mediation) -> None:
    await mediation.update(*(add(keys.did_key(key)) for key in KEYS[:6]))
    part = await mediation.query()
    assert part["pagination"] == {"count": 5, "offset": 0, "remaining": 1}


async def test_an_answer_with_all_keys_has_no_pagination(
    mediation: Mediation,
) -> None:
    await mediation.update(add(A))
    assert "pagination" not in await mediation.query()
    assert "pagination" not in await mediation.query(paginate={"limit": -1, "offset": 0})
    assert "pagination" in await mediation.query(paginate={"limit": 9, "offset": 0})


@pytest.mark.parametrize("paginate", [None, {}, {"limit": None, "offset": None}])
async def test_what_is_null_in_a_query_counts_as_missing(
    mediation: Mediation, paginate: object
) -> None:
    await mediation.update(add(A))
    everything = await mediation.query()
    assert await mediation.query(paginate=paginate) == everything


@pytest.mark.parametrize(
    "paginate",
    [
        [],
        "all",
        1,
        {"limit": 1, "offset": -1},
        {"limit": "all"},
        {"limit": 1.5},
        {"limit": True},
        {"offset": 1e30},
    ],
)
async def test_a_page_that_cannot_be_is_a_problem(mediation: Mediation, paginate: object) -> None:
    assert code(await mediation.query(paginate=paginate)) == "invalid-message"


async def test_who_is_not_mediated_has_no_keylist(mediation: Mediation) -> None:
    unmediated = raw_key(1_004)
    await mediation.agents.connect(unmediated)
    assert code(await mediation.query(unmediated)) == "mediation_not_granted"
    assert code(await mediation.query(STRANGER)) == "not-connected"


async def test_a_query_without_outcome_is_to_be_tried_again(mediation: Mediation) -> None:
    mediation.agents.refused[QueryKeylist] = Refusal.TEMPORARILY_UNAVAILABLE
    assert code(await mediation.query()) == "try-again"


async def test_nothing_is_granted_by_a_refused_request(mediation: Mediation) -> None:
    mediation.agents.refused[GrantMediation] = Refusal.QUOTA_EXCEEDED
    denied = await mediation.request()
    assert denied["@type"] == NEW + "coordinate-mediation/1.0/mediate-deny"
