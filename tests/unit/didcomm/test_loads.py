"""Forwards are anonymous: their address pays for the queues that they have loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actors.core.commands import QueueEnvelopes
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.listener.address_charge import AddressCharge, AddressRates, charged_to
from http_edge.settings.settings import Rates
from tests.unit.didcomm.requests import ALICE, BOB, Agents, agents_of

ROOM_FOR_ONE: Final = {
    "limits": {"active_identities_max": 1},
    "rates": {"per_address_per_s": 1, "burst_s": 5},
}


async def forward(agents: Agents, key: bytes, number: int) -> EnvelopeQueued | Refusal:
    command = b"%016d" % number
    return await agents.ask(did_key(key), QueueEnvelopes("", [command]), command, EnvelopeQueued)


async def test_the_address_of_a_forward_pays_for_the_queue_that_is_loaded(tmp_path: Path) -> None:
    async with agents_of(tmp_path, **ROOM_FOR_ONE) as agents:
        await agents.connect(ALICE, BOB)
        for number in range(120):
            await forward(agents, BOB if number % 2 else ALICE, number)
        charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.1", lambda: 0))
        assert isinstance(await forward(agents, ALICE, 120), EnvelopeQueued)
        assert await forward(agents, BOB, 121) is Refusal.TEMPORARILY_UNAVAILABLE
        assert isinstance(await forward(agents, ALICE, 122), EnvelopeQueued)
        charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.2", lambda: 0))
        assert isinstance(await forward(agents, BOB, 121), EnvelopeQueued)
