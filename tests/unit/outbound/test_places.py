"""Who has the places of deliveries: endpoints that do not answer hold up none but each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import pytest
from yarl import URL

from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.outbound.destinations import DeliveryOutcome, Destinations
from http_edge.didcomm.outbound.places import Places, Responsiveness, Turn
from http_edge.settings.settings import Outbound
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    envelopes,
    raw_key,
)

SILENT = 68
"""More endpoints than there are places."""


@pytest.fixture
def silent() -> Iterator[Sequence[str]]:
    """Endpoints that take every connection and answer none, four in a network of their own."""
    with ExitStack() as open_sockets:
        found = []
        for number in range(SILENT):
            address = f"127.{1 + number // 4}.0.{1 + number % 4}"
            listening = open_sockets.enter_context(socket.create_server((address, 0)))
            found.append(f"http://{address}:{listening.getsockname()[1]}/")
        yield found


async def test_endpoints_that_never_answer_hold_up_none_that_does(
    network: DeliveryNetwork, agents: AgentHost, silent: Sequence[str]
) -> None:
    await network.connect(ALICE, agents.url())
    workers = network.workers(
        agents.lookup, permitted=lambda _: True, timeout_s=120, slow_s=60, in_flight_new_max=32
    )
    await network.queue(ALICE, *envelopes(1))
    workers.wake(ALICE)
    await agents.has(1)
    strangers = [did_key(raw_key(100 + number)) for number in range(SILENT)]
    for did, endpoint in zip(strangers, silent, strict=True):
        await network.connect(did, endpoint)
        await network.queue(did, b"{}")
        workers.wake(did)
    # All that get a place have one, and the others stand in line before the next message.
    await network.queue(ALICE, *envelopes(2, first=1))
    workers.wake(ALICE)
    await agents.has(3)
    assert agents.received == envelopes(3)


@asynccontextmanager
async def begun(
    places: Places, *wanted: tuple[str, str, Responsiveness]
) -> AsyncIterator[list[asyncio.Task[Turn]]]:
    """Turns of agents at addresses that are known as that, all at once."""
    end = asyncio.Event()
    has_place: list[asyncio.Task[Turn]] = []

    async def take(agent: str, address: str, taken: asyncio.Future[Turn]) -> None:
        async with places.turn(agent, "http://agent.example/") as turn:
            await turn.take([address])
            taken.set_result(turn)
            await end.wait()

    running = []
    for agent, address, responsiveness in wanted:
        if responsiveness is not Responsiveness.NEW:
            places.remember(f"{agent} http://agent.example/", responsiveness)
        taken: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        running.append(asyncio.create_task(take(agent, address, taken)))
        has_place.append(asyncio.ensure_future(asyncio.shield(taken)))
    for _ in range(3):  # no turn waits for anything but a place
        await asyncio.sleep(0)
    yield has_place
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize(
    ("bound", "first", "refused", "served"),
    [
        ("in_flight_new_max", Responsiveness.NEW, Responsiveness.NEW, Responsiveness.QUICK),
        ("in_flight_new_max", Responsiveness.NEW, Responsiveness.NEW, Responsiveness.SLOW),
        ("in_flight_slow_max", Responsiveness.SLOW, Responsiveness.SLOW, Responsiveness.QUICK),
        ("in_flight_slow_max", Responsiveness.SLOW, Responsiveness.SLOW, Responsiveness.NEW),
        ("in_flight_max", Responsiveness.QUICK, Responsiveness.QUICK, Responsiveness.SLOW),
    ],
)
async def test_new_and_slow_endpoints_wait_for_their_own_kind_alone(
    bound: str, first: Responsiveness, refused: Responsiveness, served: Responsiveness
) -> None:
    places = Places(Outbound.model_validate({"in_flight_per_host_max": 1, bound: 1}))
    turns = [("a", "192.0.2.1", first), ("b", "198.51.100.1", refused)]
    async with begun(places, *turns, ("c", "203.0.113.1", served)) as taken:
        assert [turn.done() for turn in taken] == [True, False, True]


@pytest.mark.parametrize(
    ("one", "same_network", "another"),
    [
        ("192.0.2.1", "192.0.2.250", "192.0.3.1"),
        ("2001:db8:1::1", "2001:db8:1:ffff::1", "2001:db8:2::1"),
    ],
)
async def test_a_network_has_a_share_of_the_places_whatever_its_addresses(
    one: str, same_network: str, another: str
) -> None:
    places = Places(Outbound(in_flight_per_network_max=1))
    addresses = (one, same_network, another)
    turns = [(address, address, Responsiveness.NEW) for address in addresses]
    async with begun(places, *turns) as taken:
        assert [turn.done() for turn in taken] == [True, False, True]


async def test_an_endpoint_that_is_slow_gives_its_place_to_others(agents: AgentHost) -> None:
    agents.answer = gate = Gate()
    ways = Destinations(
        Outbound(slow_s=0.05, in_flight_new_max=1, in_flight_slow_max=1, timeout_s=120),
        lookup=agents.lookup,
        permitted=lambda _: True,
    )

    async def deliver(agent: str) -> DeliveryOutcome:
        async with ways.to(URL(agents.url()), agent) as destination:
            assert destination is not None
            return await destination.send(b"{}")

    first = asyncio.create_task(deliver(ALICE))
    await agents.has(1)
    second = asyncio.create_task(deliver(BOB))
    await agents.has(2)  # in the place that the first one had
    # The only slow place is the first one's: the second one is given up, and its message stays.
    assert await asyncio.wait_for(second, WAIT_S) is DeliveryOutcome.TIMED_OUT
    assert not first.done()
    gate.released.set()
    assert await asyncio.wait_for(first, WAIT_S) is DeliveryOutcome.ACCEPTED
    assert ways._places.responsiveness(f"{ALICE} {agents.url()}") is Responsiveness.SLOW


async def test_an_endpoint_that_answers_quickly_again_is_slow_no_longer() -> None:
    places = Places(Outbound())

    async def answer() -> str:
        return "accepted"

    for before in (Responsiveness.NEW, Responsiveness.SLOW):
        places.remember("agent endpoint", before)
        async with places.turn("agent", "endpoint") as turn:
            await turn.take(["192.0.2.1"])
            assert await turn.timed(answer()) == "accepted"
            turn.answered()
        assert places.responsiveness("agent endpoint") is Responsiveness.QUICK
    async with places.turn("agent", "endpoint") as turn:
        turn.timed_out()
    assert places.responsiveness("agent endpoint") is Responsiveness.SLOW
    assert places.responsiveness("another endpoint") is Responsiveness.NEW


async def test_only_so_many_endpoints_are_remembered_and_the_used_ones_longest() -> None:
    places = Places(Outbound(endpoints_remembered_max=2))
    for name in ("a", "b", "a", "c"):
        places.remember(name, Responsiveness.QUICK)
    assert [places.responsiveness(name) for name in "abc"] == [
        Responsiveness.QUICK,
        Responsiveness.NEW,
        Responsiveness.QUICK,
    ]


async def test_a_name_service_that_hangs_for_a_stranger_answers_for_others(
    agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, requested = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    really = socket.getaddrinfo

    def ask(host: str, *rest: object, **options: object) -> object:
        if host == "hangs.example":
            loop.call_soon_threadsafe(requested.set)
            asyncio.run_coroutine_threadsafe(hangs.wait(), loop).result()
            raise OSError
        return really("127.0.0.1", *rest, **options)  # type: ignore[arg-type]

    ways = Destinations(Outbound(slow_s=60), permitted=lambda _: True)
    monkeypatch.setattr(socket, "getaddrinfo", ask)

    async def deliver(agent: str, url: str) -> DeliveryOutcome | None:
        async with ways.to(URL(url), agent) as destination:
            return None if destination is None else await destination.send(b"{}")

    assert await deliver(ALICE, agents.url()) is DeliveryOutcome.ACCEPTED
    strangers = [
        asyncio.create_task(deliver(f"stranger {number}", "http://hangs.example/"))
        for number in range(64)
    ]
    await asyncio.wait_for(requested.wait(), WAIT_S)
    delivered = await asyncio.wait_for(deliver(ALICE, agents.url()), WAIT_S)
    assert delivered is DeliveryOutcome.ACCEPTED
    hangs.set()
    assert await asyncio.gather(*strangers) == [None] * 64
