"""Large deliveries: an edge waits for its turn, has them leased, and reads them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from actors.core.commands import DeliverMessages, QueryQueue, QueueEnvelopes, RemoveMessages
from actors.core.cost import cost
from actors.core.message_queue import ACKNOWLEDGED
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, EnvelopeQueued, QueueState, Reply
from actors.core.submissions import Read, Submission
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.listener import address_charge
from http_edge.listener.address_charge import (
    LARGE_ANSWERS_MAX,
    AddressCharge,
    AddressRates,
    charged_to,
    is_owing,
    large_answer,
    page_turn,
)
from http_edge.settings.settings import Rates
from tests.unit.didcomm.requests import ALICE, COMMAND, Agents, agents_of

DID: Final = did_key(ALICE)
PAYLOADS: Final = [bytes([number]) * 400_000 for number in range(3)]
DELIVER: Final = DeliverMessages("a session", "a channel", 10, 2_000_000, 30_000)


@asynccontextmanager
async def waiting(data_dir: Path) -> AsyncIterator[tuple[Agents, list[str]]]:
    """Three messages that are large together wait for an agent; their ids."""
    charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.1", lambda: 0))
    async with agents_of(data_dir) as agents, asyncio.timeout(10):
        await agents.connect(ALICE)
        queued = [
            await agents.ask(DID, QueueEnvelopes("", [payload]), COMMAND, EnvelopeQueued)
            for payload in PAYLOADS
        ]
        yield agents, [one.message_id for one in queued if isinstance(one, EnvelopeQueued)]


async def deliver(agents: Agents) -> Delivery | Refusal:
    return await agents.ask(DID, DELIVER, COMMAND, Delivery)


async def remove(agents: Agents, message_ids: list[str]) -> None:
    await agents.ask(DID, RemoveMessages(message_ids, ACKNOWLEDGED), COMMAND, QueueState)


async def is_handed_out_next(agents: Agents) -> bool:
    """No message was handed out so far, and the next request gets all."""
    state = await agents.ask(DID, QueryQueue(), COMMAND, QueueState)
    assert isinstance(state, QueueState)
    delivery = await deliver(agents)
    assert isinstance(delivery, Delivery)
    assert [one.payload for one in delivery.messages] == PAYLOADS
    return state.available == len(PAYLOADS) and not state.last_delivered_ms


async def test_a_delivery_whose_turn_comes_too_late_is_refused_and_handed_out_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_charge, "_TURN_S_MAX", 0.05)
    async with waiting(tmp_path) as (agents, _):
        async with page_turn():
            assert await deliver(agents) is Refusal.RATE_LIMITED
        assert await is_handed_out_next(agents)


async def test_a_delivery_for_which_too_many_wait_is_refused_and_handed_out_at_the_next_try(
    tmp_path: Path,
) -> None:
    async with waiting(tmp_path) as (agents, _):
        with ExitStack() as others:
            for _ in range(LARGE_ANSWERS_MAX):
                others.enter_context(large_answer())
            assert await deliver(agents) is Refusal.RATE_LIMITED
        assert await is_handed_out_next(agents)


async def test_an_account_pays_once_for_a_delivery_that_is_asked_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting(tmp_path) as (agents, _):
        submit, charges = agents.gateway.submit, list[float]()

        async def noted(submission: Submission, size_bytes: int, **others: bool) -> Reply:
            charges.append(submission.charge)
            return await submit(submission, size_bytes, **others)

        monkeypatch.setattr(agents.gateway, "submit", noted)
        await agents.ask(DID, DELIVER, COMMAND, Delivery, by_owner=True)
    assert charges[0] == cost(DELIVER)
    assert sum(charges) == pytest.approx(cost(DELIVER)), "its host adds the price of the answer"


@pytest.mark.parametrize("removed", [[1], [0, 1, 2]])
async def test_a_delivery_is_of_what_waits_when_its_turn_has_come(
    tmp_path: Path, removed: list[int]
) -> None:
    async with waiting(tmp_path) as (agents, ids):
        deciding = agents.hosts.hold(DELIVER.session.encode())
        async with page_turn():
            delivering = asyncio.create_task(deliver(agents))
            await deciding.arrived.wait()
            deciding.released.set()
            await remove(agents, [ids[number] for number in removed])
        delivery = await delivering
    assert isinstance(delivery, Delivery)
    assert [one.payload for one in delivery.messages] == ([] if removed[0] == 0 else PAYLOADS[::2])


@pytest.mark.parametrize("removed", [[1], [0, 1, 2]])
async def test_a_delivery_is_without_what_was_removed_before_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[int]
) -> None:
    """The others would else be leased, and not be offered again before the lease ends.

    If none are left, it is refused for now: an empty one would say that no others wait.
    """
    async with waiting(tmp_path) as (agents, ids):
        read = agents.gateway.read

        async def after_removal(wanted: Read) -> object:
            await remove(agents, [ids[number] for number in removed])
            return await read(wanted)

        monkeypatch.setattr(agents.gateway, "read", after_removal)
        delivery = await deliver(agents)
    if isinstance(delivery, Refusal):
        assert (delivery, len(removed)) == (Refusal.TEMPORARILY_UNAVAILABLE, 3)
    else:
        assert [one.payload for one in delivery.messages] == PAYLOADS[::2]


async def test_a_delivery_whose_host_goes_away_before_it_was_read_may_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting(tmp_path) as (agents, _):
        read, (host,) = agents.gateway.read, agents.hosts.running

        async def after_the_host(wanted: Read) -> object:
            agents.hosts.cut(host)
            return await read(wanted)

        monkeypatch.setattr(agents.gateway, "read", after_the_host)
        assert await deliver(agents) is Refusal.TEMPORARILY_UNAVAILABLE
        agents.hosts.mend(host)


@pytest.mark.parametrize("is_here", [False, True])
async def test_an_address_pays_for_a_delivery_although_its_socket_ends_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_here: bool
) -> None:
    async with waiting(tmp_path) as (agents, _):
        rates = AddressRates(Rates(per_address_per_s=100, burst_s=1), 1)
        charged_to(AddressCharge(rates, "203.0.113.1", lambda: 0))
        read = agents.gateway.read

        async def ends(wanted: Read) -> object:
            page = await read(wanted)
            delivering.cancel()
            if not is_here:
                await asyncio.sleep(0)
            return page

        monkeypatch.setattr(agents.gateway, "read", ends)
        assert not is_owing()
        delivering = asyncio.create_task(deliver(agents))
        await asyncio.wait([delivering])
        assert delivering.cancelled()
        assert is_owing()
