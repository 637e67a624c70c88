"""Look-ups of the account that a sender speaks for, and what comes of one that has no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.core.commands import FindAccount, UnnameSpeaker
from actors.core.refusals import Refusal
from tests.unit.didcomm.accounts import COMMAND, NEW_PEER, OLD, Mediator, mediator_of
from tests.unit.didcomm.test_accounts import erased, speaks_for


@pytest.fixture
async def mediator(tmp_path: Path) -> AsyncIterator[Mediator]:
    async with mediator_of(tmp_path) as made:
        yield made


@pytest.mark.parametrize("cut_off", ["account", "state of the account", "release"])
async def test_a_sender_is_to_try_again_while_it_is_not_known_whether_its_account_is_over(
    mediator: Mediator, cut_off: str
) -> None:
    agents, refusal = mediator.agents, Refusal.TEMPORARILY_UNAVAILABLE

    async def refuse() -> None:
        agents.refused[FindAccount] = refusal

    assert await mediator.rotate(NEW_PEER, OLD) is None
    await erased(mediator, OLD, is_cut_short=True)
    assert await mediator.ask_as(NEW_PEER.name, NEW_PEER.name) is Refusal.SPEAKS_FOR_ANOTHER
    if cut_off == "state of the account":
        agents.before_answer[FindAccount] = refuse
    else:
        agents.refused[FindAccount if cut_off == "account" else UnnameSpeaker] = refusal
    elsewhere = mediator.edge()
    assert await elsewhere.of(NEW_PEER.account, COMMAND) is refusal
    assert elsewhere.is_moved(NEW_PEER.account)
    agents.refused.clear()
    assert await elsewhere.of(NEW_PEER.account, COMMAND) == NEW_PEER.account
    assert await speaks_for(mediator, NEW_PEER.account.did) == ""
