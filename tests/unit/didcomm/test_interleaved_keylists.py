"""Updates of one keylist by three and more requests at once, in every order of their steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Final

import pytest
from typing_extensions import override

from actors.core.commands import (
    ClaimedKey,
    ClaimKey,
    Command,
    Connection,
    GrantMediation,
    UpdateKeylist,
)
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.replies import KeyClaim, Reply
from http_edge.didcomm.identities import key_target
from http_edge.didcomm.protocols import keylists
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges, Keylists
from tests.unit.didcomm.requests import COMMAND
from tests.unit.didcomm.stepped_identities import ADD, KEY, OWNER, REMOVE, Stepped, mediated

STEPS_MAX: Final = 4


def orders(wanted: Sequence[KeyChanges], steps: int = 3) -> Iterator[str]:
    """All orders of the first steps of these requests; of two alike the first one begins first."""
    names = "abcd"[: len(wanted)]

    def more(done: str) -> Iterator[str]:
        if len(done) == steps * len(wanted):
            yield done
        for at, name in enumerate(names):
            is_later = at and wanted[at] is wanted[at - 1] and names[at - 1] not in done
            if done.count(name) < steps and not is_later:
                yield from more(done + name)

    return more("")


def assert_owned(identities: Stepped, order: str) -> None:
    if KEY in identities.states[OWNER].keylist:
        owner = identities.states[key_target(KEY)].owner_did
        assert owner == OWNER, order


async def in_order(
    identities: Stepped, order: str, changes: Mapping[str, KeyChanges], *, was_there: bool
) -> None:
    """Make changes step by step; the key has its owner after each, and is free if it is gone."""
    others = asyncio.all_tasks()
    lists = Keylists(identities, keys_max=10, command_s_max=100)
    first = {"before": ADD} if was_there else {}
    for name in first:
        _ = identities.start(name, lists.change(OWNER, COMMAND, ADD))
    tasks = [
        identities.start(name, lists.change(OWNER, COMMAND, wanted))
        for name, wanted in changes.items()
    ]
    await asyncio.sleep(0)
    # What an order leaves of a request follows.
    for name in [*first] * STEPS_MAX + [*order] + [*changes] * STEPS_MAX:
        await identities.step(name)
        assert_owned(identities, order)
    await asyncio.gather(*tasks)
    await identities.settled(but=others)
    owner = identities.states.setdefault(key_target(KEY), Identity()).owner_did
    assert owner == (OWNER if KEY in identities.states[OWNER].keylist else ""), order


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is settled later begins at once, and goes on when all requests are over."""
    for pauses in ("_SETTLED_AFTER", "_AGAIN_AFTER_S"):
        monkeypatch.setattr(keylists, pauses, (0, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("was_there", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize("adds", range(4))
async def test_three_updates_at_once_leave_each_key_an_owner_that_lists_it(
    adds: int, was_there: bool
) -> None:
    wanted = [*[ADD] * adds, *[REMOVE] * (3 - adds)]
    for order in orders(wanted):
        changes = dict(zip("abc", wanted, strict=True))
        await in_order(await mediated(), order, changes, was_there=was_there)


@pytest.mark.thorough
async def test_so_do_four_of_which_some_are_refused_or_cut_off() -> None:
    chance = random.Random(4)  # noqa: S311 - a repeatable choice, not a secret
    for _ in range(2_000):
        identities = await mediated()
        changes = {name: chance.choice((ADD, REMOVE)) for name in "abcd"}
        order = "".join(chance.sample("abcd" * STEPS_MAX, 4 * STEPS_MAX))
        identities.refused = {
            name: Refusal.QUOTA_EXCEEDED for name in "abcd" if chance.random() < 0.2
        }
        identities.lost = {name for name in "abcd" if chance.random() < 0.2}
        await in_order(identities, order, changes, was_there=chance.random() < 0.5)


@pytest.mark.parametrize("why", [Refusal.QUOTA_EXCEEDED, Refusal.NOT_SPEAKING])
async def test_a_key_is_free_after_two_additions_at_once_of_which_both_were_refused(
    why: Refusal,
) -> None:
    for order in orders([ADD, ADD]):
        identities = await mediated()
        identities.refused = {"a": why, "b": why}
        await in_order(identities, order, {"a": ADD, "b": ADD}, was_there=False)


async def test_a_key_that_is_claimed_again_before_it_is_released_stays_its_owners() -> None:
    for order in set(permutations("cccll")):
        identities, others = await mediated(), asyncio.all_tasks()
        identities.refused = dict.fromkeys("ab", Refusal.NOT_SPEAKING)
        lists = Keylists(identities, keys_max=10, command_s_max=100)
        both = [identities.start(name, lists.change(OWNER, COMMAND, ADD)) for name in "ab"]
        await asyncio.sleep(0)
        for name in "ab" * 5:
            await identities.step(name)
        await asyncio.gather(*both)
        (later,) = asyncio.all_tasks() - others
        identities.follow(later)
        added = identities.start("c", lists.change(OWNER, COMMAND, ADD))
        await asyncio.sleep(0)
        for name in order:
            await identities.step({"c": "c", "l": "later"}[name])
        await added
        await identities.settled(but=others)
        assert KEY in identities.states[OWNER].keylist
        assert_owned(identities, "".join(order))


async def test_the_short_did_of_an_account_that_began_during_the_claim_of_another_stays() -> None:
    identities, others, own = await mediated(), asyncio.all_tasks(), "did:peer:4zQmOwn"
    lists, wanted = (
        Keylists(identities, keys_max=10, command_s_max=100),
        KeyChanges([own], []),
    )
    claim = identities.decide(key_target(own), ClaimKey(own))
    assert isinstance(claim, KeyClaim)
    refused = identities.start("b", lists.change(OWNER, COMMAND, wanted))
    await asyncio.sleep(0)
    for _ in range(STEPS_MAX):
        await identities.step("b")
    assert await refused == Changed({own: False}, {own: "client_error"})
    said = Connection(own, "", "", [], "didexchange/1.1", "")
    identities.decide(own, GrantMediation(said, [ClaimedKey(own, claim.number)]))
    identities.decide(own, UpdateKeylist([], [own]))
    assert asyncio.all_tasks() - others, "the claim is to be settled"
    await identities.settled(but=others)
    assert identities.states[key_target(own)].owner_did == own


class EarlierBuild(Stepped):
    """Its hosts do not say whether a claimed key was its owner's before."""

    @override
    def decide(self, target: str, command: Command) -> Reply | Refusal:
        reply = super().decide(target, command)
        return KeyClaim(reply.number, reply.former_did) if isinstance(reply, KeyClaim) else reply


async def test_the_first_claim_of_a_key_at_a_host_of_an_earlier_build_adds_it() -> None:
    identities = await mediated(EarlierBuild())
    await in_order(identities, "aaa", {"a": ADD}, was_there=False)
    assert KEY in identities.states[OWNER].keylist
