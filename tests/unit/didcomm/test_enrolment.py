"""Enrolment: an account begins, and its names become its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.core.commands import (
    ClaimKey,
    Command,
    FindAccount,
    FindKeyOwner,
    GrantMediation,
    UpdateKeylist,
)
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.recipient_names import opposite, twins
from http_edge.didcomm.protocols import keylists
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges, Keylists
from tests.unit.didcomm.accounts import (
    COMMAND,
    NEW_PEER,
    NEWER,
    OLD,
    OLD_NAME,
    SAID,
    STRANGER,
    Mediator,
    mediator_of,
)
from tests.unit.didcomm.requests import agents_of, raw_key


@pytest.fixture
async def mediator(tmp_path: Path) -> AsyncIterator[Mediator]:
    async with mediator_of(tmp_path) as made:
        yield made


@pytest.mark.parametrize("lost", [FindAccount, ClaimKey, GrantMediation])
@pytest.mark.parametrize("how", ["lost", "refused"])
async def test_an_enrolment_that_is_cut_off_anywhere_succeeds_with_the_next_try(
    mediator: Mediator, lost: type[Command], how: str
) -> None:
    agents, name = mediator.agents, NEW_PEER.name
    enrol = (name, COMMAND, SAID, [name])
    with agents.cut_off(lost, is_lost=how == "lost"):
        assert await mediator.keylists.enrol(*enrol) is Refusal.TEMPORARILY_UNAVAILABLE
    assert await mediator.keylists.enrol(*enrol) is None
    assert await mediator.has(name, name) == [name]
    assert await mediator.owner(name) == name
    agents.seen.clear()
    assert await mediator.keylists.enrol(*enrol) is None
    assert mediator.count(ClaimKey) == 0, "what is there is not claimed again"


async def test_an_own_name_is_taken_from_any_other_account(mediator: Mediator) -> None:
    name, squatter = STRANGER.name, OLD
    wanted = KeyChanges([name], [])
    await mediator.keylists.change(squatter, COMMAND, wanted)
    assert isinstance(await mediator.forward(name, b"to the squatter"), EnvelopeQueued)
    assert await mediator.waiting(squatter) == 2
    assert await mediator.keylists.enrol(name, COMMAND, SAID, [name]) is None
    assert await mediator.has(squatter, name) == []
    assert isinstance(await mediator.forward(name, b"to its holder"), EnvelopeQueued)
    assert (await mediator.waiting(squatter), await mediator.waiting(name)) == (2, 1)


async def test_who_cannot_claim_its_own_key_takes_nothing_from_who_has_its_opposite(
    mediator: Mediator,
) -> None:
    name, squatter = keys.base58(keys.KeyPair.from_seed(b"o" * 32).public), OLD
    other = opposite(name)
    assert other is not None
    wanted = KeyChanges([other], [], frozenset())
    await mediator.keylists.change(squatter, COMMAND, wanted)
    refused = mediator.agents.refused

    async def answer_again() -> None:
        refused.clear()

    refused[ClaimKey] = Refusal.TEMPORARILY_UNAVAILABLE
    mediator.agents.before_answer[ClaimKey] = answer_again
    owner = STRANGER.name
    assert await mediator.keylists.enrol(owner, COMMAND, SAID, [name]) is (
        Refusal.TEMPORARILY_UNAVAILABLE
    )
    assert await mediator.has(squatter, other) == [other]
    assert await mediator.owner(other) == squatter


async def test_an_own_key_is_taken_from_who_has_its_opposite(mediator: Mediator) -> None:
    name, squatter = keys.base58(keys.KeyPair.from_seed(b"o" * 32).public), OLD
    other = opposite(name)
    assert other is not None
    wanted = KeyChanges([other], [])
    await mediator.keylists.change(squatter, COMMAND, wanted)
    assert await mediator.has(squatter, other) == [other]
    enrol = (name, COMMAND, SAID, [name])
    with mediator.agents.cut_off(FindKeyOwner, is_lost=False):
        assert await mediator.keylists.enrol(*enrol) is Refusal.TEMPORARILY_UNAVAILABLE
    assert await mediator.keylists.enrol(*enrol) is None
    assert await mediator.has(squatter, other) == []
    (image,) = twins(name)
    assert isinstance(await mediator.forward(image, b"to its holder"), EnvelopeQueued)
    assert await mediator.waiting(name) == 1


async def test_an_own_name_without_room_for_it_is_taken_from_no_other(tmp_path: Path) -> None:
    async with agents_of(tmp_path, didcomm={"keylist_keys_max": 1}) as agents:
        mediator, name, squatter = Mediator(agents), STRANGER.name, NEWER.name
        await mediator.keylists.enrol(name, COMMAND, SAID, [NEW_PEER.name])
        await mediator.keylists.enrol(squatter, COMMAND, SAID, [name])
        enrolled = await mediator.keylists.enrol(name, COMMAND, SAID, [name])
        assert enrolled is Refusal.QUOTA_EXCEEDED
        assert await mediator.has(squatter, name) == [name]


async def test_a_key_is_free_each_time_that_it_is_given_up(mediator: Mediator) -> None:
    name = STRANGER.name
    for _ in range(2):
        for add, remove in (([name], []), ([], [name])):
            await mediator.keylists.change(OLD, COMMAND, KeyChanges(add, remove))
        assert await mediator.owner(name) is None


async def test_who_speaks_for_another_account_takes_no_name_from_it(mediator: Mediator) -> None:
    name = NEW_PEER.name
    assert await mediator.rotate(NEW_PEER, OLD) is None
    enrolled = await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert enrolled is Refusal.SPEAKS_FOR_ANOTHER
    assert await mediator.has(OLD, name) == [name]


async def test_a_keylist_without_room_claims_nothing(mediator: Mediator) -> None:
    mediator.agents.seen.clear()
    wanted = KeyChanges([STRANGER.name], [NEWER.name])
    changed = await Keylists(mediator.agents, keys_max=1, command_s_max=100).change(
        OLD, COMMAND, wanted
    )
    assert not isinstance(changed, Refusal)
    assert changed.failed == {STRANGER.name: "client_error"}
    assert mediator.count(ClaimKey) == 0


@pytest.mark.parametrize("lost", [ClaimKey, UpdateKeylist, GrantMediation])
async def test_a_take_over_that_is_cut_off_anywhere_is_finished_by_the_next_try(
    mediator: Mediator, lost: type[Command]
) -> None:
    name, squatter = STRANGER.name, OLD
    wanted = KeyChanges([name], [])
    await mediator.keylists.change(squatter, COMMAND, wanted)
    mediator.agents.refused[lost] = Refusal.TEMPORARILY_UNAVAILABLE
    enrol = (name, COMMAND, SAID, [name])
    assert await mediator.keylists.enrol(*enrol) is Refusal.TEMPORARILY_UNAVAILABLE
    mediator.agents.refused.clear()
    assert await mediator.keylists.enrol(*enrol) is None
    assert await mediator.has(squatter, name) == []
    assert await mediator.has(name, name) == [name]


async def test_a_held_name_is_taken_over_by_an_update_and_another_is_not(
    mediator: Mediator,
) -> None:
    held, other = STRANGER.name, NEWER.name
    wanted = KeyChanges([held, other], [])
    await mediator.keylists.change(OLD, COMMAND, wanted)
    me = NEW_PEER.name
    await mediator.keylists.enrol(me, COMMAND, SAID, [me])
    wanted = KeyChanges([held, other], [], frozenset({held}))
    changed = await mediator.keylists.change(me, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {other: "client_error"}
    assert await mediator.has(me, held, other) == [held]
    assert await mediator.has(OLD, held, other) == [other]


async def test_a_key_that_is_registered_on_one_curve_is_taken_on_the_other(
    mediator: Mediator,
) -> None:
    (image,) = twins(OLD_NAME)
    me = NEW_PEER.name
    await mediator.keylists.enrol(me, COMMAND, SAID, [me])
    wanted = KeyChanges([image], [], on_either_curve=True)
    changed = await mediator.keylists.change(me, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {image: "client_error"}
    changed = await mediator.keylists.change(OLD, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {}


async def test_nothing_is_added_by_claims_that_took_longer_than_their_release_waits(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, key = mediator.keylists, keys.base58(raw_key(9_000))
    await lists.enrol(OLD, COMMAND, SAID, [OLD_NAME])
    others = asyncio.all_tasks()
    monkeypatch.setattr(keylists, "_SETTLED_AFTER", (0,))
    monkeypatch.setattr(keylists, "_CLAIMING_S_MAX", -1)
    changed = await lists.change(OLD, COMMAND, KeyChanges([key], []))
    assert changed == Changed({key: False}, {key: "server_error"})
    name = NEW_PEER.name
    assert await lists.enrol(name, COMMAND, SAID, [name]) is Refusal.TEMPORARILY_UNAVAILABLE
    await asyncio.gather(*asyncio.all_tasks() - others)
    assert await mediator.owner(key) is None
    assert await mediator.has(OLD, key) == []
