"""Whose queue is watched for a device, and for how long: no message is overlooked, nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from actors.core.commands import (
    PushDevice,
    QueryPushDevice,
    QueryQueue,
    QueueEnvelopes,
    RemoveMessages,
    SetPushDevice,
)
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, PushDeviceFound, QueueState
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.push.gateways import open_gateway
from http_edge.didcomm.push.notifier import PushNotifier
from http_edge.settings.settings import Push
from tests.edge.mediator import HandClock
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    delivery_network,
    envelopes,
    errors,
    raw_key,
)
from tests.unit.push.pauses import Pauses

DEVICE = PushDevice("fcm", "token", "Android")
STRANGERS = [did_key(raw_key(number)) for number in range(10, 22)]
SOON_S, LATER_S = 5.0, 600.0
Watch = Callable[..., PushNotifier]


async def connect(network: DeliveryNetwork, did: str, device: PushDevice) -> None:
    """Connect an agent that has this device."""
    await network.connect(did, "")
    found = await network.identities().ask(
        did, SetPushDevice(device), did.encode()[-16:], PushDeviceFound
    )
    assert isinstance(found, PushDeviceFound), found


@pytest.fixture
async def network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[DeliveryNetwork]:
    """Two agents with the same device, and no task for them that fails."""
    async with delivery_network(tmp_path) as running:
        for did in (ALICE, BOB):
            await connect(running, did, DEVICE)
        yield running
    assert errors(caplog) == []


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def watch(
    network: DeliveryNetwork, host: AgentHost, clock: HandClock, pauses: Pauses
) -> AsyncIterator[Watch]:
    """Makes a notifier that watches at most so many agents, and notifies one at a time."""
    made: list[PushNotifier] = []

    def notifier(agents_max: int = 10) -> PushNotifier:
        settings = Push(
            webhook_url=f"http://127.0.0.1:{host.port}/push",
            in_flight_max=1,
            agents_max=agents_max,
            delay_s=SOON_S,
            interval_s=LATER_S,
        )
        gateway = open_gateway(settings, clock=clock)
        assert gateway is not None
        made.append(PushNotifier(network.identities(), gateway, settings, sleep=pauses.sleep))
        return made[-1]

    yield notifier
    for each in made:
        await each.close()


async def unwatched(notifier: PushNotifier) -> None:
    """Return when no agent is watched any more."""
    async with asyncio.timeout(WAIT_S):
        while notifier.figures()["agents"]:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)


async def queued_later(network: DeliveryNetwork, number: int) -> str:
    """The id of one more message for an agent, a millisecond after what came before."""
    network.now_ms += 1
    message = QueueEnvelopes("", envelopes(1, first=number))
    nonce = f"message {number}".encode().ljust(16)
    queued = await network.identities().ask(ALICE, message, nonce, EnvelopeQueued)
    assert isinstance(queued, EnvelopeQueued)
    return queued.message_id


async def test_a_message_that_comes_just_as_none_was_found_is_announced(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch()

    async def queue_one() -> None:
        await network.queue(ALICE, *envelopes(1))
        notifier.wake(ALICE)

    network.identities().before_answer[QueryQueue] = queue_one
    notifier.wake(ALICE)
    assert [await pauses.end_next() for _ in range(2)] == [SOON_S, LATER_S]
    assert [each["waiting"] for each in await host.notifications(1)] == [1]


async def test_a_message_that_comes_after_the_clock_was_set_back_is_announced_once(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch()
    for number in range(2):
        await network.queue(ALICE, *envelopes(1, first=number))
        notifier.wake(ALICE)
        await pauses.end_next()
        await host.has(1)
        network.now_ms -= 3_600_000
    assert [each["waiting"] for each in await host.notifications(2)] == [1, 2]
    await pauses.end_next()
    await unwatched(notifier)
    assert len(host.received) == 2


@pytest.mark.parametrize("later", [0, 1], ids=["nothing", "a message that is fetched at once"])
async def test_a_device_is_not_notified_again_of_what_waited_before_the_newest_message(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses, later: int
) -> None:
    notifier = watch()
    await queued_later(network, 0)
    newest = await queued_later(network, 1)
    notifier.wake(ALICE)
    await pauses.end_next()
    await host.has(1)
    fetched = [newest, *[await queued_later(network, 2 + number) for number in range(later)]]
    removal = RemoveMessages(fetched, "acknowledged")
    left = await network.identities().ask(ALICE, removal, b"its removal".ljust(16), QueueState)
    assert isinstance(left, QueueState)
    assert left.messages == 1
    await pauses.end_next()
    await unwatched(notifier)
    assert len(host.received) == 1


@pytest.mark.parametrize("lost", [QueryQueue, QueryPushDevice])
async def test_queues_out_of_reach_are_asked_again_and_those_of_no_agent_are_not(
    network: DeliveryNetwork,
    host: AgentHost,
    watch: Watch,
    pauses: Pauses,
    lost: type[QueryQueue | QueryPushDevice],
) -> None:
    notifier, refused = watch(), network.identities().refused
    await network.queue(ALICE, *envelopes(1))
    refused[lost] = Refusal.TEMPORARILY_UNAVAILABLE
    notifier.wake(ALICE)
    await pauses.end_next()
    _, ended = await pauses.begun()
    del refused[lost]
    ended.set()
    await host.has(1)
    refused[lost] = Refusal.NOT_CONNECTED
    await pauses.end_next()
    await unwatched(notifier)


async def test_a_did_that_speaks_for_another_account_is_not_watched(
    network: DeliveryNetwork, watch: Watch, pauses: Pauses
) -> None:
    await network.queue(ALICE, *envelopes(1))
    notifier = watch()
    notifier.wake(ALICE)
    await network.begin_to_speak(ALICE, BOB)
    await pauses.end_next()
    await unwatched(notifier)


async def test_who_makes_room_for_another_leaves_nothing_that_keeps_a_device_at_rest(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch(agents_max=1)
    for did in (ALICE, BOB):
        await network.queue(did, *envelopes(1))
    notifier.wake(ALICE)
    await pauses.end_next()
    await host.has(1)
    await pauses.begun()
    notifier.wake(ALICE)
    notifier.wake(BOB)
    assert notifier._news == {BOB}
    await pauses.end_next()
    await host.has(2)


async def test_who_is_watched_again_before_its_last_watch_has_ended_is_watched_once(
    network: DeliveryNetwork, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch(agents_max=2)
    for did in (ALICE, BOB):
        await network.queue(did, *envelopes(1))
        notifier.wake(did)
        await pauses.end_next()
        await pauses.begun()
    notifier.wake(STRANGERS[0])  # in place of the first
    notifier.wake(ALICE)  # in place of the second
    for _ in range(2):
        assert (await pauses.begun())[0] == SOON_S
    assert notifier.figures()["agents"] == 2
    assert notifier.figures()["dropped"] == 2


async def test_agents_are_notified_as_fast_as_the_service_answers_however_many_others_come(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier, tokens = watch(agents_max=3), [f"device {number}" for number in range(len(STRANGERS))]
    for did, token in zip(STRANGERS, tokens, strict=True):
        await connect(network, did, PushDevice("fcm", token, "Android"))
        await network.queue(did, *envelopes(1))
    host.answer = gate = Gate()
    for did in STRANGERS[:3]:
        notifier.wake(did)
        await pauses.end_next()
    await host.has(1)
    for did in STRANGERS[3:]:
        notifier.wake(did)
    assert notifier.figures()["dropped"] == len(STRANGERS) - 3
    gate.released.set()
    notified = [each["device_token"] for each in await host.notifications(3)]
    assert sorted(notified) == tokens[:3]
    for _ in range(3):  # they are watched on, and make room
        assert (await pauses.begun())[0] == LATER_S
    notifier.wake(STRANGERS[3])
    await pauses.end_next()
    assert (await host.notifications(4))[-1]["device_token"] == tokens[3]


async def test_an_agent_that_is_notified_again_makes_no_room_meanwhile(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch(agents_max=1)
    await queued_later(network, 0)
    notifier.wake(ALICE)
    await pauses.end_next()
    await host.has(1)
    await queued_later(network, 1)
    host.answer = gate = Gate()
    await pauses.end_next()
    await host.has(2)
    await network.queue(BOB, *envelopes(1))
    notifier.wake(BOB)
    gate.released.set()
    assert await pauses.end_next() == LATER_S
    await unwatched(notifier)
    assert (notifier.figures()["sent"], notifier.figures()["dropped"]) == (2, 1)


async def test_a_device_of_another_service_is_not_watched(
    network: DeliveryNetwork, host: AgentHost, watch: Watch, pauses: Pauses
) -> None:
    notifier = watch()
    notifier.channels = frozenset({"apns"})
    await network.queue(ALICE, *envelopes(1))
    notifier.wake(ALICE)
    await pauses.end_next()
    await unwatched(notifier)
    assert host.received == []


async def test_a_closed_notifier_watches_no_queue(watch: Watch, pauses: Pauses) -> None:
    notifier = watch()
    notifier.wake(ALICE)
    await pauses.begun()
    await notifier.close()
    assert notifier.figures()["agents"] == 0
    notifier.wake(BOB)
    assert notifier.figures()["agents"] == 0
