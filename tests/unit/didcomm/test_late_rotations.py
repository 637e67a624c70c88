"""Rotations that are slow, cut off or overtaken, and which DIDs they leave free."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from actors.core.commands import FindAccount, QueryConnection
from actors.core.refusals import Refusal
from http_edge.didcomm.protocols.keylists import KeyChanges
from tests.unit.didcomm.accounts import COMMAND, NEW_PEER, NEWER, OLD, SAID, Mediator, mediator_of
from tests.unit.didcomm.test_accounts import speaks_for


@pytest.fixture
async def mediator(tmp_path: Path) -> AsyncIterator[Mediator]:
    async with mediator_of(tmp_path) as made:
        yield made


@pytest.mark.parametrize("is_thief", [False, True])
async def test_a_did_that_was_given_up_is_not_let_go_by_a_late_copy_of_its_rotation(
    mediator: Mediator, *, is_thief: bool
) -> None:
    name = NEW_PEER.name
    if is_thief:  # who has its key removes its name, so that the copy is not yet done
        assert await mediator.rotate(NEW_PEER, OLD) is None
        await mediator.keylists.change(OLD, COMMAND, KeyChanges([], [name]))

    async def overtaken() -> None:
        assert await mediator.rotate(NEW_PEER, OLD) is None
        assert await mediator.rotate(NEWER, name, at_s=1_001) is None

    mediator.agents.before_answer[QueryConnection] = overtaken
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_SPEAKING
    assert await speaks_for(mediator, name) == OLD
    enrolled = await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert enrolled is Refusal.SPEAKS_FOR_ANOTHER
    assert await mediator.owner(name) == OLD


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_a_rotation_that_the_end_of_its_account_comes_before_leaves_its_did_free(
    mediator: Mediator, *, is_cut_off: bool
) -> None:
    prior, new = NEW_PEER.name, NEWER.name

    async def ended() -> None:
        assert await mediator.end(prior) is None

    assert await mediator.rotate(NEW_PEER, OLD) is None
    if is_cut_off:
        with mediator.agents.cut_off(QueryConnection, is_lost=False):
            done = await mediator.rotate(NEWER, prior, at_s=1_001)
        assert done is Refusal.TEMPORARILY_UNAVAILABLE
        await ended()
        mediator.agents.moved[new] = None  # as its next message finds out
        assert await mediator.accounts.of(NEWER.account, COMMAND) == NEWER.account
    else:
        mediator.agents.before_answer[QueryConnection] = ended
        done = await mediator.rotate(NEWER, prior, at_s=1_001)
        assert done is Refusal.NOT_CONNECTED
    assert [await speaks_for(mediator, did) for did in (prior, new)] == [OLD, ""]
    assert await mediator.keylists.enrol(new, COMMAND, SAID, [new]) is None


async def test_a_did_whose_release_had_no_answer_is_free_once_its_rotation_comes_again(
    mediator: Mediator,
) -> None:
    name = NEW_PEER.name
    with ExitStack() as afterwards:

        async def overtaken() -> None:
            assert await mediator.rotate(NEWER, OLD) is None
            afterwards.enter_context(mediator.agents.cut_off(FindAccount, is_lost=False))

        mediator.agents.before_answer[QueryConnection] = overtaken
        assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_SPEAKING
    assert await speaks_for(mediator, name) == OLD
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_SPEAKING
    assert await speaks_for(mediator, name) == ""
    assert await mediator.keylists.enrol(name, COMMAND, SAID, [name]) is None
