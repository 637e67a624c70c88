"""Who has the slots of deliveries: endpoints that do not answer hold up none but each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import pytest
from yarl import URL

from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.outbound.destinations import DeliveryOutcome, Destinations
from http_edge.didcomm.outbound.responsiveness import Responsiveness
from http_edge.didcomm.outbound.slots import SharedSlots, Slots, Turn
from http_edge.settings.settings import Outbound
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    envelopes,
    raw_key,
)
from tests.unit.test_hang_watch import clock_set_ahead

SILENT = 68
"""More endpoints than there are slots."""


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
        agents.lookup, permitted=lambda *_: True, timeout_s=120, slow_s=60, in_flight_new_max=32
    )
    await network.queue(ALICE, *envelopes(1))
    workers.wake(ALICE)
    await agents.has(1)
    strangers = [did_key(raw_key(100 + number)) for number in range(SILENT)]
    for did, endpoint in zip(strangers, silent, strict=True):
        await network.connect(did, endpoint)
        await network.queue(did, b"{}")
        workers.wake(did)
    # All that get a slot have one, and the others stand in line before the next message.
    await network.queue(ALICE, *envelopes(2, first=1))
    workers.wake(ALICE)
    await agents.has(3)
    assert agents.received == envelopes(3)


@asynccontextmanager
async def begun(
    slots: Slots, *wanted: tuple[str, str, Responsiveness]
) -> AsyncIterator[list[asyncio.Task[Turn]]]:
    """Turns of agents at addresses that are known as that, all at once."""
    end = asyncio.Event()
    has_slot: list[asyncio.Task[Turn]] = []

    async def take(agent: str, address: str, taken: asyncio.Future[Turn]) -> None:
        async with slots.turn(agent, "http://agent.example/") as turn:
            await turn.take([address])
            taken.set_result(turn)
            await end.wait()

    running = []
    for agent, address, responsiveness in wanted:
        if responsiveness is not Responsiveness.NEW:
            slots.remember(f"{agent} http://agent.example/", [address], responsiveness)
        taken: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        running.append(asyncio.create_task(take(agent, address, taken)))
        has_slot.append(asyncio.ensure_future(asyncio.shield(taken)))
    for _ in range(3):  # no turn waits for anything but a slot
        await asyncio.sleep(0)
    yield has_slot
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
    slots = Slots(Outbound.model_validate({"in_flight_per_host_max": 1, bound: 1}))
    turns = [("a", "192.0.2.1", first), ("b", "198.51.100.1", refused)]
    async with begun(slots, *turns, ("c", "203.0.113.1", served)) as taken:
        assert [turn.done() for turn in taken] == [True, False, True]


@pytest.mark.parametrize(
    ("one", "same_network", "another"),
    [
        ("192.0.2.1", "192.0.2.250", "192.0.3.1"),
        ("2001:db8:1::1", "2001:db8:1:ffff::1", "2001:db8:2::1"),
        ("a.example.com", "b.c.example.com", "a.example.org"),
        ("example.com", "a.example.com", "example"),
    ],
)
async def test_a_network_or_domain_has_a_share_of_the_slots_whatever_its_addresses(
    one: str, same_network: str, another: str
) -> None:
    slots = Slots(Outbound(in_flight_per_network_max=1))
    addresses = (one, same_network, another)
    turns = [(address, address, Responsiveness.NEW) for address in addresses]
    async with begun(slots, *turns) as taken:
        assert [turn.done() for turn in taken] == [True, False, True]


async def test_networks_get_slots_in_turn_however_many_deliveries_wait_for_one() -> None:
    slots = Slots(Outbound(in_flight_max=1, in_flight_per_host_max=1))
    served: list[str] = []

    async def deliver(address: str) -> None:
        async with slots.turn(address, "http://agent.example/") as turn:
            await turn.take([address])
            served.append(address)
            await asyncio.sleep(0)

    strangers = [f"192.0.2.{number}" for number in range(1, 6)]
    await asyncio.gather(*map(deliver, [*strangers, "198.51.100.1", "203.0.113.1"]))
    assert served == [*strangers[:2], "198.51.100.1", "203.0.113.1", *strangers[2:]]


async def test_who_waits_for_a_slot_no_longer_leaves_it_to_the_next() -> None:
    slots = SharedSlots(1)
    await slots.acquire("first")
    gone, given, last, left = [asyncio.create_task(slots.acquire(name)) for name in "abcd"]
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    assert list(slots._waiting) == ["a", "b", "c"]
    gone.cancel()
    slots.release()
    given.cancel()
    await asyncio.wait_for(last, WAIT_S)
    assert gone.cancelled()
    assert given.cancelled()
    slots.release()
    assert not slots.locked()


async def test_a_slot_is_not_lost_when_very_many_stop_to_wait_at_once() -> None:
    """As when an edge stops: a delivery may end before their tasks run."""
    slots = SharedSlots(1)
    await slots.acquire("under way")
    gone = [asyncio.create_task(slots.acquire(str(number % 10))) for number in range(2_000)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    slots.release()
    assert not slots.locked()
    await asyncio.wait(gone)
    assert all(each.cancelled() for each in gone)


async def test_an_endpoint_that_is_slow_gives_its_slot_to_others(
    agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.answer = gate = Gate()
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    ways = Destinations(
        Outbound(slow_s=40, in_flight_new_max=1, in_flight_slow_max=1, timeout_s=120),
        lookup=agents.lookup,
        permitted=lambda *_: True,
    )

    async def deliver(agent: str) -> DeliveryOutcome:
        async with ways.to(URL(agents.url()), agent) as destination:
            assert destination is not None
            return await destination.send(b"{}")

    first = asyncio.create_task(deliver(ALICE))
    await agents.has(1)
    goes_on(40)
    second = asyncio.create_task(deliver(BOB))
    await agents.has(2)  # in the slot that the first one had
    goes_on(40)
    # The only slow slot is the first one's: the second one is given up, and its message stays.
    assert await asyncio.wait_for(second, WAIT_S) is DeliveryOutcome.TIMED_OUT
    assert not first.done()
    gate.released.set()
    assert await asyncio.wait_for(first, WAIT_S) is DeliveryOutcome.ACCEPTED
    assert ways._slots.responsiveness(f"{ALICE} {agents.url()}") is Responsiveness.SLOW


async def test_a_delivery_that_became_slow_gives_its_slow_slot_back() -> None:
    slots = Slots(Outbound(slow_s=0.05, in_flight_slow_max=1))
    # The second one could not become slow without the slot of the first, which is slow once more.
    for agent in ("a", "b", "a"):
        answer = asyncio.Event()
        async with slots.turn(agent, "endpoint") as turn:
            await turn.take(["192.0.2.1"])
            late = asyncio.create_task(turn.timed(answer.wait()))
            async with asyncio.timeout(WAIT_S):
                while not turn._late:  # noqa: ASYNC110 - no event of it
                    await asyncio.sleep(0)
            assert turn.responsiveness is Responsiveness.SLOW
            answer.set()
            assert await late
    assert not any(slot.locked() for slot in slots.of(Responsiveness.SLOW, ()))


async def test_work_that_is_given_up_has_ended_before_its_slots_are_given_back() -> None:
    slots, ended = Slots(Outbound(slow_s=0.05, in_flight_slow_max=1)), asyncio.Event()
    for slot in slots.of(Responsiveness.SLOW, ()):
        await slot.acquire("another")

    async def work() -> bool:
        try:
            return await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with slots.turn("agent", "endpoint") as turn:
        await turn.take(["192.0.2.1"])
        assert await turn.timed(work()) is None
        assert ended.is_set()


async def test_an_endpoint_that_is_given_up_before_it_could_be_slow_counts_as_slow(
    agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.answer = Gate()
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    bounds = Outbound(slow_s=60, timeout_s=30)
    ways = Destinations(bounds, lookup=agents.lookup, permitted=lambda *_: True)
    delivering = asyncio.create_task(deliver(ways, ALICE, agents.url()))
    await agents.has(1)
    goes_on(30)
    assert await delivering is DeliveryOutcome.TIMED_OUT
    assert ways._slots.responsiveness(f"{ALICE} {agents.url()}") is Responsiveness.SLOW


async def test_an_endpoint_that_answers_quickly_again_is_slow_no_longer() -> None:
    slots = Slots(Outbound())

    async def answer() -> str:
        return "accepted"

    for before in (Responsiveness.NEW, Responsiveness.SLOW):
        slots.remember("agent endpoint", ["192.0.2.1"], before)
        async with slots.turn("agent", "endpoint") as turn:
            await turn.take(["192.0.2.1"])
            assert await turn.timed(answer()) == "accepted"
            turn.answered()
        assert slots.responsiveness("agent endpoint") is Responsiveness.QUICK
    async with slots.turn("agent", "endpoint") as turn:
        await turn.take(["192.0.2.1"])
        turn.timed_out()
    assert slots.responsiveness("agent endpoint") is Responsiveness.SLOW
    assert slots.responsiveness("another endpoint") is Responsiveness.NEW


async def test_a_quick_endpoint_waits_for_no_new_one_however_many_others_answer_quickly() -> None:
    slots = Slots(Outbound(endpoints_remembered_max=8, in_flight_new_max=1))
    honest = ("honest", "198.51.100.1"), ("neighbour", "198.51.100.2")
    strangers = [(f"stranger {number}", f"203.0.{number % 3}.{number}") for number in range(40)]
    for agent, address in (*honest, *strangers):
        async with slots.turn(agent, "http://agent.example/") as turn:
            await turn.take([address])
            turn.answered()
    silent = [(f"silent {number}", f"192.0.{number}.1", Responsiveness.NEW) for number in range(3)]
    again = [
        (agent, address, slots.responsiveness(f"{agent} http://agent.example/"))
        for agent, address in honest
    ]
    async with begun(slots, *silent, *again) as taken:
        assert [turn.done() for turn in taken] == [True, False, False, True, True]


async def test_only_so_many_endpoints_are_remembered_and_the_used_ones_longest() -> None:
    slots = Slots(Outbound(endpoints_remembered_max=2))
    for name in ("a", "b", "a", "c"):
        slots.remember(name, ["192.0.2.1"], Responsiveness.QUICK)
    assert [slots.responsiveness(name) for name in "abc"] == [
        Responsiveness.QUICK,
        Responsiveness.NEW,
        Responsiveness.QUICK,
    ]


class HangingNames:
    """A name service that never answers for one domain; all other names are this machine.

    ``hangs`` is that domain; ``release`` lets its look-ups fail.
    """

    hangs: Final = "hangs.example"

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._released = asyncio.Event()
        self._requested: asyncio.Queue[str] = asyncio.Queue()
        self._really = socket.getaddrinfo

    def ask(self, host: str, *rest: object, **options: object) -> object:
        """Stand in for ``socket.getaddrinfo``, in a thread."""
        if host.endswith(self.hangs):
            self._loop.call_soon_threadsafe(self._requested.put_nowait, host)
            asyncio.run_coroutine_threadsafe(self._released.wait(), self._loop).result()
            raise OSError
        return self._really("127.0.0.1", *rest, **options)  # type: ignore[arg-type]

    async def hold(self, lookups: int) -> None:
        """Return when so many more look-ups hang."""
        async with asyncio.timeout(WAIT_S):
            for _ in range(lookups):
                await self._requested.get()

    def release(self) -> None:
        """Let every look-up that hangs fail."""
        self._released.set()


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HangingNames]:
    """The name service of this machine."""
    names = HangingNames()
    monkeypatch.setattr(socket, "getaddrinfo", names.ask)
    yield names
    names.release()


async def deliver(ways: Destinations, agent: str, url: str) -> DeliveryOutcome | None:
    async with ways.to(URL(url), agent) as destination:
        return None if destination is None else await destination.send(b"{}")


@pytest.mark.parametrize(
    ("strangers", "known"),
    [
        (Responsiveness.NEW, Responsiveness.QUICK),
        (Responsiveness.SLOW, Responsiveness.QUICK),
        (Responsiveness.SLOW, Responsiveness.NEW),
        (Responsiveness.QUICK, Responsiveness.QUICK),
        (Responsiveness.QUICK, Responsiveness.NEW),
    ],
)
async def test_a_name_service_that_hangs_for_strangers_answers_for_others(
    agents: AgentHost, names: HangingNames, strangers: Responsiveness, known: Responsiveness
) -> None:
    ways = Destinations(Outbound(slow_s=60), permitted=lambda *_: True)
    ways._slots.remember(f"{ALICE} {agents.url()}", ["127.0.0.1"], known)
    waiting = []
    for number in range(40):
        url = f"http://s{number}.{names.hangs}/"
        ways._slots.remember(f"stranger {number} {url}", [names.hangs], strangers)
        waiting.append(asyncio.create_task(deliver(ways, f"stranger {number}", url)))
    await names.hold(8)
    delivered = await asyncio.wait_for(deliver(ways, ALICE, agents.url()), WAIT_S)
    assert delivered is DeliveryOutcome.ACCEPTED
    names.release()
    assert await asyncio.gather(*waiting) == [None] * 40


async def test_a_look_up_that_is_given_up_holds_its_slot_until_the_name_service_has_answered(
    agents: AgentHost, names: HangingNames
) -> None:
    bounds = Outbound(slow_s=0.05, in_flight_new_max=1, in_flight_slow_max=1, timeout_s=120)
    ways = Destinations(bounds, permitted=lambda *_: True)
    url = f"http://{names.hangs}/"
    slow = asyncio.create_task(deliver(ways, "first", url))
    await names.hold(1)
    # It waits until the first one is in the only slow slot, and finds none when it is late too.
    assert await asyncio.wait_for(deliver(ways, "second", url), WAIT_S) is None
    assert all(slot.locked() for slot in ways._slots.of(Responsiveness.SLOW, ()))
    assert ways._slots.of(Responsiveness.NEW, ())[0].locked()
    names.release()
    assert await asyncio.wait_for(deliver(ways, BOB, agents.url()), WAIT_S) is not None
    assert await slow is None
