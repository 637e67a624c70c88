"""At an edge the addresses of clients take turns, and each has a share of the places."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import WAIT_S, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}


async def waiting(mediator: Mediator, number: int) -> None:
    """Wait until so many commands wait for a call."""
    while mediator.edges[0]._gateway.waiting_items != number:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)


@pytest.mark.parametrize("settings", [{"limits": {"batch_items_max": 4}}])
async def test_a_command_does_not_wait_for_those_of_an_address_with_many_identities(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    many = [Identity(f"one of many {number}") for number in range(12)]
    await mediator.register(alice, bob, *many)
    under_way = mediator.hosts.hold(alice.did.encode())
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession(connector=connector) as elsewhere:
        sent = [asyncio.create_task(mediator.send(alice, QUERY))]
        await under_way.arrived.wait()
        sent += [asyncio.create_task(mediator.send(one, QUERY)) for one in many]
        await waiting(mediator, len(many))
        call = mediator.hosts.hold(bob.did.encode())
        late = asyncio.create_task(
            elsewhere.post(mediator.url(), json=mediator.command(bob, QUERY))
        )
        await waiting(mediator, len(many) + 1)
        under_way.released.set()
        await call.arrived.wait()
        assert mediator.edges[0]._gateway.waiting_items == len(many) - 1, "one of them went with it"
        call.released.set()
        assert (await late).status == 200
        assert [answer.status for answer in await asyncio.gather(*sent)] == [200] * 13


@pytest.mark.parametrize("settings", [{"limits": {"commands_in_flight_max": 5}}])
async def test_an_address_takes_a_share_of_the_places_and_leaves_others_theirs(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    in_flight = mediator.edges[0]._in_flight
    with in_flight.request_of(address="127.0.0.1"):
        beyond = await mediator.send(alice, QUERY)
        assert beyond.refusal == (429, "RATE_LIMITED")
        assert beyond.headers["Retry-After"] == "1"
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with (
            aiohttp.ClientSession(connector=connector) as other,
            other.post(mediator.url(), json=mediator.command(alice, QUERY)) as answer,
        ):
            assert answer.status == 200
    assert (await mediator.send(alice, QUERY)).status == 200
