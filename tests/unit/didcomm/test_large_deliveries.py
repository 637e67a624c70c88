"""Deliveries that an edge reads by itself, some time after they were decided."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.core.commands import DeliverMessages, QueueEnvelopes, RemoveMessages
from actors.core.message_queue import ACKNOWLEDGED
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, EnvelopeQueued, QueueState
from http_edge.didcomm import identities
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.listener.address_charge import AddressCharge, AddressRates, charged_to, page_turn
from http_edge.settings.settings import Rates
from tests.unit.didcomm.requests import ALICE, COMMAND, agents_of

DELIVER = DeliverMessages("a session", "a channel", 10, 2_000_000, 30_000)
READ = DeliverMessages("a session", "a channel", 10, 2_000_000, 0)


async def test_a_delivery_whose_turn_comes_too_late_is_refused_and_takes_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_TURN_S_MAX", 0.05)
    charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.1", lambda: 0))
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        await agents.connect(ALICE)
        did = did_key(ALICE)
        for _ in range(3):
            await agents.ask(did, QueueEnvelopes("", [bytes(400_000)]), COMMAND, EnvelopeQueued)
        async with page_turn():
            assert await agents.ask(did, READ, COMMAND, Delivery) is Refusal.RATE_LIMITED
        delivery = await agents.ask(did, READ, COMMAND, Delivery)
    assert isinstance(delivery, Delivery)
    assert len(delivery.messages) == 3


@pytest.mark.parametrize("removed", [[1], [0, 1, 2]])
async def test_a_delivery_is_without_what_was_removed_before_it_was_read(
    tmp_path: Path, removed: list[int]
) -> None:
    """The others would else be leased, and not be offered again before the lease ends.

    If none are left, it is refused for now: an empty one would say that no others wait.
    """
    charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.1", lambda: 0))
    payloads = [bytes([number]) * 400_000 for number in range(3)]
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        await agents.connect(ALICE)
        did = did_key(ALICE)
        queued = [
            await agents.ask(did, QueueEnvelopes("", [payload]), COMMAND, EnvelopeQueued)
            for payload in payloads
        ]
        ids = [one.message_id for one in queued if isinstance(one, EnvelopeQueued)]
        deciding = agents.hosts.hold(DELIVER.session.encode())
        async with page_turn():
            delivering = asyncio.create_task(agents.ask(did, DELIVER, COMMAND, Delivery))
            await deciding.arrived.wait()
            deciding.released.set()
            removal = RemoveMessages([ids[number] for number in removed], ACKNOWLEDGED)
            await agents.ask(did, removal, COMMAND, QueueState)
        delivery = await delivering
    if isinstance(delivery, Refusal):
        assert (delivery, len(removed)) == (Refusal.TEMPORARILY_UNAVAILABLE, 3)
    else:
        assert [one.payload for one in delivery.messages] == payloads[::2]
