"""What is expected of keylists and rules is what is promised, and what breaks it is found."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from http_edge.clients.didcomm import Recipient, Wallet, WalletError, fetch_invitation
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.crash.pickup_ledger import PickupLedger
from tests.crash.registrar import Registrar
from tests.crash.wallet_load import WalletLoad
from tests.edge.mediator import HandClock, Mediator
from tests.ports import free_port

pytestmark = pytest.mark.crash
NOTHING_THERE = "http://127.0.0.1:1"


class Run(NamedTuple):
    """A registrar at a mediator to which nothing happens."""

    registrar: Registrar
    load: WalletLoad

    async def changes_rules_without_an_answer(self) -> None:
        owner = self.registrar.owner
        lost = replace(owner.connection, http_url=NOTHING_THERE)
        self.registrar.owner = Wallet(lost, session=owner.session)
        with pytest.raises(WalletError):
            await self.registrar._change_rules(self.load)
        self.registrar.owner = owner


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    listen = f"127.0.0.1:{free_port()}"
    mediator = Mediator(tmp_path, HandClock(), listen=listen, public_url=f"http://{listen}")
    await mediator.start()
    try:
        async with aiohttp.ClientSession() as session:
            invitation = await fetch_invitation(session, mediator.url("/invitation"))
            owner = await Wallet.connect(invitation, session=session)
            stranger = await Wallet.connect(invitation, session=session)
            await stranger.request_mediation()
            granted, status = await owner.request_mediation(), await owner.queue_status()
            limits = [status.message_count_limit]
            registrar = Registrar(owner, stranger, granted, invitation, limits)
            chance = random.Random(1)  # noqa: S311 - repeatable
            ledger = PickupLedger(1.0, unknown_may_come_late=True)
            yield Run(registrar, WalletLoad(session, ledger, chance, ""))
    finally:
        await mediator.stop()


async def test_a_first_limit_without_an_answer_may_never_come(run: Run) -> None:
    await run.changes_rules_without_an_answer()
    await run.registrar.check(kills=0)
    assert run.registrar.broken == []


@pytest.mark.parametrize("may_come_late", [True, False])
async def test_a_limit_without_an_answer_may_come_after_the_next_only_where_commands_wait(
    run: Run, may_come_late: bool
) -> None:
    registrar = run.registrar
    run.load.ledger.unknown_may_come_late = may_come_late
    await run.changes_rules_without_an_answer()
    (*_, late) = registrar.limits
    await registrar._change_rules(run.load)
    await registrar.owner.update_queue(message_count_limit=late)
    await registrar.check(kills=0)
    assert (registrar.broken == []) == may_come_late


async def test_a_confirmed_limit_that_is_lost_is_found(run: Run) -> None:
    registrar = run.registrar
    await registrar._change_rules(run.load)
    (before,) = registrar.limits
    await registrar._change_rules(run.load)
    await registrar.owner.update_queue(message_count_limit=before)
    await registrar.check(kills=0)
    assert registrar.broken == [f"the limit is {before} instead of one of {registrar.limits}"]


async def test_a_key_given_up_without_an_answer_may_be_of_a_stranger_who_tried_to_claim_it(
    run: Run,
) -> None:
    registrar, key = run.registrar, KeyPair.new()
    registrar.unknown.append(key)
    await registrar.stranger.update_keylist(add=[key.public])
    registrar.tried.add(key.public)
    await registrar.check(kills=0)
    assert registrar.broken == []
    registrar.tried.clear()
    await registrar.check(kills=0)
    assert "its own unknown keys are added: ['client_error']" in registrar.broken


async def test_an_owned_key_that_a_stranger_gets_is_found(run: Run) -> None:
    registrar, key = run.registrar, KeyPair.new()
    registrar.owned[key.public] = Recipient(key, registrar.mediation)
    await registrar.check(kills=0)
    assert registrar.broken == [
        "0 keys too many and 1 too few are in the keylist",
        "keys of another are added: ['success']",
    ]
