"""Shards that change hands under load: nothing is refused, lost, doubled or put out of order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from http_edge.didcomm.envelopes.keys import did_key
from http_edge.dispatch import outbox
from http_edge.dispatch.hub import SERVICE_RESTART
from http_edge.server import edge
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, ids
from tests.edge.identities import Identity
from tests.edge.mediator import WAIT_S, HandClock, Mediator, Socket
from tests.edge.moving import MovingMediator, NotedRoutes
from tests.ports import free_port

MOVES = 200
CHANGES = 90
NO_RATES = {"per_sender_per_s": 0, "per_address_per_s": 0}
ROOMY = {"page_size_max": 1_000}


@pytest.fixture
def store() -> str:
    """Where the log is; parametrised where the locks of a store could matter."""
    return "sqlite"


@pytest.fixture
def log_settings(store: str, request: pytest.FixtureRequest) -> dict[str, str]:
    return {} if store == "sqlite" else {"log": request.getfixturevalue("postgres_url")}


EACH_STORE = pytest.mark.parametrize("store", ["sqlite", "postgresql"])


@pytest.fixture
def limits() -> dict[str, float]:
    return {}


@pytest.fixture
async def moving(
    tmp_path: Path, clock: HandClock, log_settings: dict[str, str], limits: dict[str, float]
) -> AsyncIterator[MovingMediator]:
    listen = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {
        "hosts": 2,
        "listen": listen,
        "public_url": f"http://{listen}",
        "rates": NO_RATES,
        "limits": {**ROOMY, **limits},
        **log_settings,
    }
    mediator = MovingMediator(tmp_path, clock, **settings)
    await mediator.start()
    yield mediator
    await mediator.stop()


@pytest.fixture
async def network(moving: MovingMediator) -> AsyncIterator[WalletNetwork]:
    async with aiohttp.ClientSession() as session:
        yield WalletNetwork(moving, session)


def agent(bob: Bob) -> str:
    """The identity that a wallet's messages wait for."""
    return did_key(bob.connection.key.public)


async def hears(socket: Socket) -> str:
    """The text of the one message that a socket is sent next."""
    (event,) = (await socket.hear())["events"]
    return str(event["payload"])


async def everything(mediator: Mediator, reader: Identity) -> list[str]:
    """The texts of all messages that wait for an identity."""
    page = {"page": 0, "page_size": 1_000}
    events = await mediator.records(reader, "QUERY_PENDING_EVENTS", pagination=page)
    return [event["payload"] for event in events]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what is waited for is on other threads
            await asyncio.sleep(0.01)


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that look for restarted hosts once in an hour."""
    monkeypatch.setattr(edge, "_PROBE_S", 3_600.0)


@pytest.mark.usefixtures("no_probes")
async def test_an_edge_connects_to_each_host_of_a_table_without_a_command_for_it(
    moving: MovingMediator,
) -> None:
    hosts = moving.hosts.running.values()
    await until(lambda: all("edge-0" in host.stats().sockets for host in hosts))


async def befriended(mediator: Mediator, reader: Identity, writer: Identity) -> None:
    """The first may be written to by the second."""
    await mediator.register(reader, writer)
    await mediator.befriend(reader, writer)


async def kept_under_load(
    moving: MovingMediator,
    network: WalletNetwork,
    count: int,
    change: Callable[[Sequence[str]], Awaitable[None]],
) -> None:
    """Let places ``change`` while so many pairs of each protocol write; no text suffers.

    ``change`` gets the DIDs of all senders and recipients.
    """
    pairs = [(Identity(f"reader-{n}"), Identity(f"writer-{n}")) for n in range(count)]
    for pair in pairs:
        await befriended(moving, *pair)
    bobs = await network.bobs(count)
    is_over = False

    async def write(reader: Identity, writer: Identity) -> list[str]:
        texts: list[str] = []
        while not is_over:
            texts.append(f"{writer.name} {len(texts)}")
            await moving.delivered(writer, reader, texts[-1])
        return texts

    async def send(number: int) -> list[str]:
        texts: list[str] = []
        while not is_over:
            texts.append(f"message {len(texts)}")
            await network.write(bobs[number], texts[-1])
        return texts

    writing = [asyncio.create_task(write(*pair)) for pair in pairs]
    sending = [asyncio.create_task(send(number)) for number in range(len(bobs))]
    try:
        await change([someone.did for pair in pairs for someone in pair] + [agent(b) for b in bobs])
    finally:
        is_over = True
    for (reader, _), texts in zip(pairs, await asyncio.gather(*writing), strict=True):
        assert await everything(moving, reader) == texts
    for bob, texts in zip(bobs, await asyncio.gather(*sending), strict=True):
        assert await bob.drained() == texts
    assert NotedRoutes.waits > 0


@EACH_STORE
async def test_two_hundred_moves_under_load_refuse_lose_double_and_disorder_nothing(
    moving: MovingMediator, network: WalletNetwork
) -> None:
    chance = random.Random(1)  # noqa: S311 - the same moves every time

    async def move(busy: Sequence[str]) -> None:
        for _ in range(MOVES):
            await moving.move(moving.shard_of(chance.choice(busy)))

    await kept_under_load(moving, network, 3, move)


async def test_sockets_stay_open_over_a_planned_move_and_hear_what_comes_next(
    moving: MovingMediator, network: WalletNetwork, alice: Identity, bob: Identity
) -> None:
    await befriended(moving, bob, alice)
    wallet = await network.bob()
    async with moving.socket(bob) as socket, wallet.wallet.live() as live:
        for number in range(4):
            await moving.move(moving.shard_of(bob.did))
            await moving.move(moving.shard_of(agent(wallet)))
            await moving.delivered(alice, bob, f"decentrl {number}")
            assert await hears(socket) == f"decentrl {number}"
            await network.write(wallet, f"didcomm {number}")
            picked = await live.next(WAIT_S)
            assert wallet.texts(picked) == [f"didcomm {number}"]
            await live.received(ids(picked))


async def test_what_is_leased_stays_leased_over_a_planned_move_until_its_time(
    moving: MovingMediator, network: WalletNetwork, clock: HandClock
) -> None:
    bob = await network.bob()
    await network.write(bob, "one")
    assert bob.texts(await bob.wallet.fetch(10)) == ["one"]
    await moving.move(moving.shard_of(agent(bob)))
    assert await bob.wallet.fetch(10) == []
    clock.advance(moving.settings.didcomm.lease_s)
    assert bob.texts(await bob.wallet.fetch(10)) == ["one"]


async def test_what_a_live_session_holds_is_still_its_own_after_a_planned_move(
    moving: MovingMediator, network: WalletNetwork
) -> None:
    bob = await network.bob()
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        picked = await live.next(WAIT_S)
        await moving.move(moving.shard_of(agent(bob)))
        assert await bob.wallet.fetch(10) == []
        assert (await live.received(ids(picked))).message_count == 0


async def test_after_an_unplanned_change_the_sockets_of_that_shard_close_and_no_others(
    moving: MovingMediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await befriended(moving, alice, carol)
    await befriended(moving, bob, carol)
    lost, kept = moving.shard_of(alice.did), moving.shard_of(bob.did)
    assert lost != kept
    async with moving.socket(alice) as of_lost, moving.socket(bob) as of_kept:
        await moving.seize(lost)
        moving.publish_table()
        assert await of_lost.closing() == SERVICE_RESTART
        await moving.delivered(carol, bob, "still here")
        assert await hears(of_kept) == "still here"
    async with moving.socket(alice) as again:
        await moving.delivered(carol, alice, "back again")
        assert await hears(again) == "back again"


@EACH_STORE
async def test_an_owner_that_was_replaced_unawares_changes_nothing_and_says_whom_it_is_not(
    moving: MovingMediator, alice: Identity, bob: Identity
) -> None:
    await befriended(moving, bob, alice)
    await moving.delivered(alice, bob, "before")
    shard = moving.shard_of(bob.did)
    former = await moving.seize(shard)
    assert shard in moving.held_by(former)
    waits, facts = NotedRoutes.waits, moving.facts()
    # The edge does not know it yet, so it asks the former owner, whose append the log refuses.
    writing = asyncio.create_task(moving.delivered(alice, bob, "after"))
    await until(lambda: NotedRoutes.waits > waits)
    assert shard not in moving.held_by(former)
    assert moving.facts() == facts  # the sender's nonce is in another shard, and used
    moving.publish_table()
    await writing
    assert await moving.waiting(bob) == ["before", "after"]


@pytest.mark.parametrize("limits", [{"move_wait_s_max": 0.3}])
async def test_a_shard_without_an_owner_for_long_is_temporarily_unavailable(
    moving: MovingMediator, network: WalletNetwork, alice: Identity, bob: Identity
) -> None:
    await befriended(moving, bob, alice)
    wallet = await network.bob()
    for shard in {moving.shard_of(bob.did), moving.shard_of(agent(wallet))}:
        await moving.release(moving.owners[shard].host, [shard])
    refused = await moving.write(alice, bob, "to no owner")  # who owns it has let it go
    assert refused.refusal == (503, "TEMPORARILY_UNAVAILABLE")
    moving.publish_table()
    assert (await moving.write(alice, bob, "to no owner")).status == HTTPStatus.SERVICE_UNAVAILABLE
    envelope_of = await network.forward_text(wallet.key, "to no owner")
    assert envelope_of.status == HTTPStatus.SERVICE_UNAVAILABLE
    health = await moving.get("/health")
    assert health.status == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("limits", [{"commands_in_flight_max": 4}])
async def test_what_waits_for_the_owner_of_one_shard_leaves_places_for_the_others(
    moving: MovingMediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await befriended(moving, bob, alice)
    await befriended(moving, carol, alice)
    shard = moving.shard_of(bob.did)
    assert shard != moving.shard_of(carol.did)
    host = moving.owners[shard].host
    handover = await moving.release(host, [shard])
    moving.publish_table()
    async with asyncio.timeout(WAIT_S):
        sent = [asyncio.create_task(moving.write(alice, bob, str(n))) for n in range(4)]
        refused = [await one for one in itertools.islice(asyncio.as_completed(sent), 2)]
        assert [answer.status for answer in refused] == [HTTPStatus.SERVICE_UNAVAILABLE] * 2
        assert (await moving.write(alice, carol, "meanwhile")).status == HTTPStatus.OK
        await moving.adopt(host, [shard], handover)
        moving.publish_table()
        statuses = [answer.status for answer in await asyncio.gather(*sent)]
    assert statuses.count(HTTPStatus.OK) == 2


@pytest.mark.parametrize("limits", [{"commands_in_flight_max": 4, "batch_items_max": 1}])
async def test_what_waits_for_a_host_that_hangs_leaves_places_for_the_others(
    moving: MovingMediator,
    alice: Identity,
    bob: Identity,
    carol: Identity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await befriended(moving, bob, alice)
    await befriended(moving, carol, alice)
    shard = moving.shard_of(bob.did)
    host = moving.owners[shard].host
    for other in {moving.shard_of(alice.did), moving.shard_of(carol.did)}:
        assert other != shard
        if moving.owners[other].host == host:
            await moving.move(other)
    monkeypatch.setattr(outbox, "_SLOW_S", 0.3)
    held = moving.hosts.hold(b"first")
    async with asyncio.timeout(WAIT_S):
        sent = [asyncio.create_task(moving.write(alice, bob, "first"))]
        await held.arrived.wait()
        await until(lambda: moving.edges[0]._gateway._outbox(host).is_slow)
        sent += [asyncio.create_task(moving.write(alice, bob, str(n))) for n in range(3)]
        refused = await next(asyncio.as_completed(sent))
        assert refused.refusal == (HTTPStatus.SERVICE_UNAVAILABLE, "TEMPORARILY_UNAVAILABLE")
        assert (await moving.write(alice, carol, "meanwhile")).status == HTTPStatus.OK
        held.released.set()
        statuses = [answer.status for answer in await asyncio.gather(*sent)]
    assert statuses.count(HTTPStatus.OK) == 2


async def places_changed(moving: MovingMediator, busy: Sequence[str]) -> None:
    """Let identities leave their shards, move, and come back, while shards move as well."""
    chance = random.Random(1)  # noqa: S311 - the same moves every time
    for turn in range(CHANGES):
        did = chance.choice(busy)
        if did not in moving.dedicated:
            await moving.dedicate(did)
        elif chance.random() < 1 / 3:
            await moving.move_own(did, "ab"[turn % 2])
        else:
            await moving.give_back(did)
        if chance.random() < 1 / 4:
            await moving.move(moving.shard_of(did))


@EACH_STORE
async def test_identities_that_leave_their_shards_and_come_back_refuse_and_lose_nothing(
    moving: MovingMediator, network: WalletNetwork
) -> None:
    async def change(busy: Sequence[str]) -> None:
        await places_changed(moving, busy)

    await kept_under_load(moving, network, 2, change)


async def test_sockets_and_live_sessions_go_with_an_identity_and_come_back_with_it(
    moving: MovingMediator, network: WalletNetwork, alice: Identity, bob: Identity
) -> None:
    await befriended(moving, bob, alice)
    wallet = await network.bob()
    changes = [
        moving.dedicate,
        lambda did: moving.move_own(did, "b"),
        moving.give_back,
        moving.dedicate,
        moving.give_back,
    ]
    async with moving.socket(bob) as socket, wallet.wallet.live() as live:
        for number, change in enumerate(changes):
            await change(bob.did)
            await change(agent(wallet))
            await moving.delivered(alice, bob, f"decentrl {number}")
            assert await hears(socket) == f"decentrl {number}"
            await network.write(wallet, f"didcomm {number}")
            picked = await live.next(WAIT_S)
            assert wallet.texts(picked) == [f"didcomm {number}"]
            assert await wallet.wallet.fetch(10) == []
            await live.received(ids(picked))


async def test_the_socket_of_an_identity_closes_when_its_host_is_lost_and_no_other(
    moving: MovingMediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    for someone in (alice, bob):
        await befriended(moving, someone, carol)
    async with moving.socket(alice) as of_lost, moving.socket(bob) as of_kept:
        await moving.dedicate(alice.did)
        moving.dedicated[alice.did] = None
        moving.publish_table()
        await moving._adopt_own(alice.did, "b", None)
        assert await of_lost.closing() == SERVICE_RESTART
        await moving.delivered(carol, bob, "still here")
        assert await hears(of_kept) == "still here"
    async with moving.socket(alice) as again:
        await moving.delivered(carol, alice, "back again")
        assert await hears(again) == "back again"
