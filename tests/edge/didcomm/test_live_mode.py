"""Live mode of pickup 2.0 (RFC 0685): who is pushed to, in what order, and what comes again."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any

import orjson
import pytest

from actors.core.commands import QueueEnvelopes
from actors.core.replies import EnvelopeQueued
from actors.host.port import HostUnavailable
from http_edge.clients.didcomm import ConnectionLost, Live, NoAnswer
from http_edge.didcomm.envelopes.keys import base58, did_key
from http_edge.didcomm.identities import Identities
from tests.edge.didcomm.wallet_network import (
    SUBSCRIBERS,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    ids,
    numbered,
    opened,
    routed,
    sealed,
)
from tests.edge.local_host import LocalHostPort
from tests.edge.mediator import WAIT_S, HandClock, Mediator

CHANGE = "messagepickup/2.0/live-delivery-change"
MOMENT_S = 0.3
"""How long a test listens for what must not come."""


async def pushed(bob: Bob, live: Live, number: int, *, acknowledge: bool = True) -> list[str]:
    """The next so many texts that are pushed."""
    texts: list[str] = []
    while len(texts) < number:
        picked = await live.next(WAIT_S)
        texts += bob.texts(picked)
        if acknowledge:
            await live.received(ids(picked))
    return texts


async def silent(live: Live) -> None:
    """Nothing is pushed for a while."""
    with pytest.raises(NoAnswer):
        await live.next(MOMENT_S)


async def test_what_was_queued_before_is_not_pushed_and_what_comes_is_in_order(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "before")
    texts = numbered(30)
    async with bob.wallet.live() as live:
        await network.write(bob, *texts)
        assert await pushed(bob, live, 30) == texts
        assert bob.texts(await live.fetch(10)) == ["before"]


async def test_what_was_pushed_waits_until_it_is_acknowledged_over_either_transport(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one", "two")
        assert await pushed(bob, live, 2, acknowledge=False) == ["one", "two"]
        assert (await bob.wallet.status()).message_count == 2
        await network.write(bob, "three")
        (third,) = await live.next(WAIT_S)
        assert (await bob.wallet.received([third.id])).message_count == 2
        await silent(live)
    assert await bob.drained() == ["one", "two"]


async def test_what_is_not_acknowledged_in_time_is_pushed_again_with_its_id(
    network: WalletNetwork, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        first = await live.next(WAIT_S)
        clock.advance(mediator.settings.didcomm.lease_s)
        again = await live.next(WAIT_S)
        assert again == first
        assert (await live.received(ids(again))).message_count == 0


async def test_what_a_request_fetched_in_vain_is_pushed_at_the_end_of_its_lease(
    network: WalletNetwork, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    await network.write(bob, "before")
    async with bob.wallet.live() as live:
        assert bob.texts(await bob.wallet.fetch(10)) == ["before"], "over HTTP; here it is lost"
        assert await bob.wallet.fetch(10) == []
        clock.advance(mediator.settings.didcomm.lease_s)
        assert await pushed(bob, live, 1) == ["before"]


async def test_what_is_not_acknowledged_is_offered_again_when_the_socket_ends(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one", "two")
        await pushed(bob, live, 2, acknowledge=False)
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket)
        assert (await wallet.status()).live_delivery is False  # a new socket starts without
        assert bob.texts(await wallet.fetch(10)) == ["one", "two"]


async def test_a_socket_that_is_gone_listens_no_more_and_asks_for_no_messages(
    network: WalletNetwork, bob: Bob
) -> None:
    before = asyncio.all_tasks()
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        await pushed(bob, live, 1)
        assert network.measured(SUBSCRIBERS) == 1
        assert _pumps(before)
    async with asyncio.timeout(WAIT_S):
        while network.measured(SUBSCRIBERS) or _pumps(before):  # noqa: ASYNC110 - the end of a socket sets no event
            await asyncio.sleep(0)


def _pumps(before: set[asyncio.Task[Any]]) -> list[str]:
    """The work for sockets that has begun since and goes on."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() - before]  # type: ignore[union-attr]
    return [name for name in names if name.startswith(("Pump.", "_Peer."))]


async def test_what_is_not_acknowledged_outlives_the_host(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one", "two")
        await pushed(bob, live, 2, acknowledge=False)
        await live.status()  # so that nothing is under way to the host that ends
        await mediator.hosts.restart(0)
        with pytest.raises(ConnectionLost) as lost:  # it has forgotten who listens
            await live.next(WAIT_S)
        assert lost.value.close_code == 1012
    async with bob.wallet.live() as live:
        assert bob.texts(await live.fetch(10)) == ["one", "two"]
        await network.write(bob, "three")
        assert await pushed(bob, live, 1) == ["three"]


async def test_live_mode_is_off_on_a_new_socket(network: WalletNetwork, bob: Bob) -> None:
    async with bob.wallet.live():
        pass
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket)
        await wallet.status()
        await network.write(bob, "one")
        with pytest.raises(NoAnswer):
            await socket.receive(MOMENT_S)


async def test_switched_off_nothing_is_pushed_and_what_is_out_stays_out(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        (one,) = await live.next(WAIT_S)
        await live.live_delivery(on=False)
        await network.write(bob, "two")
        await silent(live)
        await live.live_delivery(on=True)
        await network.write(bob, "three")
        assert await pushed(bob, live, 1) == ["three"]
        await live.received([one.id])
        assert bob.texts(await live.fetch(10)) == ["two"]


async def test_asking_for_live_mode_again_misses_nothing(network: WalletNetwork, bob: Bob) -> None:
    texts = numbered(40)
    async with bob.wallet.live() as live:
        writing = asyncio.create_task(network.write(bob, *texts))
        for _ in range(20):
            await live.live_delivery(on=True)
        assert await pushed(bob, live, 40) == texts
        await writing
        assert (await live.status()).message_count == 0


async def test_a_second_socket_takes_over_and_what_was_in_flight_is_offered_again(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as first:
        await network.write(bob, "one", "two")
        await pushed(bob, first, 2, acknowledge=False)
        async with bob.wallet.live() as second:
            assert bob.texts(await second.fetch(10)) == ["one", "two"]
            await network.write(bob, "three")
            assert await pushed(bob, second, 1) == ["three"]
            await silent(first)
            # The end of the first must not end what the second has.
            await first.socket.websocket.close()
            await network.write(bob, "four")
            assert await pushed(bob, second, 1) == ["four"]


async def test_the_first_socket_can_take_live_mode_back(network: WalletNetwork, bob: Bob) -> None:
    async with bob.wallet.live() as first, bob.wallet.live() as second:
        await first.live_delivery(on=True)
        await network.write(bob, "one")
        assert await pushed(bob, first, 1) == ["one"]
        await silent(second)


async def test_http_requests_do_not_disturb_the_live_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live:
        await network.write(bob, "one")
        (one,) = await live.next(WAIT_S)
        await bob.wallet.ping()
        assert await bob.wallet.fetch(10) == []  # it is out on the socket
        assert await bob.wallet.batch(10) == []
        assert await bob.wallet.implicit() is None
        await bob.wallet.live_delivery(on=False)  # of a connection that has none
        with pytest.raises(NoAnswer):
            await live.next(0)
        await network.write(bob, "two")
        assert await pushed(bob, live, 1) == ["two"]
        assert (await live.received([one.id])).message_count == 0


@pytest.mark.parametrize("timing", [{}, {"~timing": {"delay_milli": 1_000}}])
@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 0}}])
async def test_what_is_pushed_while_an_answer_hands_out_earlier_messages_follows_that_answer(
    network: WalletNetwork, bob: Bob, mediator: Mediator, timing: dict[str, Any]
) -> None:
    """An edge reads and packs a large delivery beside its other work."""
    earlier = [letter * 200_000 for letter in "abcde"]
    await network.write(bob, *earlier)
    pages = mediator.hosts.hold_pages()
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        await socket.raw.send_bytes(sealed(bob.connection, CHANGE, live_delivery=True, **routed()))
        assert opened(bob.connection, await socket.data())["live_delivery"] is True
        wanted = {"limit": 9, **routed(), **timing}
        request = sealed(bob.connection, "messagepickup/2.0/delivery-request", **wanted)
        await socket.raw.send_bytes(request)
        await pages.arrived.wait()
        await network.write(bob, "later")
        pages.released.set()
        came: list[str] = []
        while len(came) < 6:
            delivery = opened(bob.connection, await socket.data())
            came += bob.texts(b64decode(one["data"]["base64"]) for one in delivery["~attach"])
    assert [text[:5] for text in came] == ["aaaaa", "bbbbb", "ccccc", "ddddd", "eeeee", "later"]


@pytest.mark.parametrize("timing", [{}, {"~timing": {"delay_milli": 20_000}}])
@pytest.mark.parametrize(
    ("kind", "channel"),
    [
        ("messagepickup/1.0/batch-pickup", b"pickup/1.0"),
        ("messagepickup/1.0/noop", b"pickup/1.0"),
        ("queue/1.0/fetch-request", b"queue/1.0"),
    ],
)
async def test_what_is_pushed_while_a_pickup_without_acknowledgement_answers_follows_its_answer(
    network: WalletNetwork,
    bob: Bob,
    mediator: Mediator,
    kind: str,
    channel: bytes,
    timing: dict[str, Any],
) -> None:
    await network.write(bob, "earlier")
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        await socket.raw.send_bytes(sealed(bob.connection, CHANGE, live_delivery=True, **routed()))
        assert opened(bob.connection, await socket.data())["live_delivery"] is True
        wanted = {"batch_size": 1, "message_count_limit": 1, **routed(), **timing}
        fetch = mediator.hosts.hold(channel)
        await socket.raw.send_bytes(sealed(bob.connection, kind, **wanted))
        await fetch.arrived.wait()
        # From another edge: what this one sends to the host waits behind the request.
        other = Identities(mediator.hosts.gateway("another edge"))
        later = QueueEnvelopes(base58(bob.key), [envelope_of(bob.key, "later")])
        account = did_key(bob.connection.key.public)
        assert isinstance(
            await other.ask(account, later, b"k" * 16, EnvelopeQueued), EnvelopeQueued
        )
        fetch.released.set()
        assert [handed_out(bob, await socket.data()) for _ in range(2)] == ["earlier", "later"]


async def test_an_answer_follows_what_is_being_fetched_to_be_pushed_and_precedes_later_pushes(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    pages = mediator.hosts.hold_pages()
    await network.write(bob, "before")
    other = Identities(mediator.hosts.gateway("another edge"))
    account = did_key(bob.connection.key.public)
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        first_fetch = mediator.hosts.hold(b"live")
        await socket.raw.send_bytes(sealed(bob.connection, CHANGE, live_delivery=True, **routed()))
        await first_fetch.arrived.wait()
        for letter in "abcde":
            large = QueueEnvelopes(base58(bob.key), [envelope_of(bob.key, letter * 200_000)])
            await other.ask(account, large, letter.encode() * 16, EnvelopeQueued)
        first_fetch.released.set()
        assert opened(bob.connection, await socket.data())["live_delivery"] is True
        await pages.arrived.wait()
        wanted = {"batch_size": 9, **routed()}
        request = sealed(bob.connection, "messagepickup/1.0/batch-pickup", **wanted)
        await socket.raw.send_bytes(request)
        answer = asyncio.create_task(socket.data())
        await asyncio.wait([answer], timeout=MOMENT_S)
        assert not answer.done()
        await network.write(bob, "later")
        pages.released.set()
        pushed = opened(bob.connection, await answer)
        assert len(pushed["~attach"]) == 5
        assert [handed_out(bob, await socket.data()) for _ in range(2)] == ["before", "later"]


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_what_is_pushed_does_not_wait_for_the_end_of_a_long_poll(
    network: WalletNetwork, bob: Bob, name: str
) -> None:
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        await socket.raw.send_bytes(sealed(bob.connection, CHANGE, live_delivery=True, **routed()))
        assert opened(bob.connection, await socket.data())["live_delivery"] is True
        wanted = {"batch_size": 9, **routed(), "~timing": {"delay_milli": 20_000}}
        poll = sealed(bob.connection, f"messagepickup/1.0/{name}", **wanted)
        await socket.raw.send_bytes(poll)
        await network.write(bob, "one")
        assert handed_out(bob, await socket.data()) == "one"


def handed_out(bob: Bob, frame: bytes) -> str:
    """The text of the only message in a frame, which is its envelope or has it in a member."""
    if bob.connection.open(frame) == frame:
        return bob.read(frame)
    answer = opened(bob.connection, frame)
    if "~attach" in answer:
        (pushed,) = answer["~attach"]
        return bob.read(b64decode(pushed["data"]["base64"]))
    if "messages" in answer:
        (fetched,) = answer["messages"]
        return bob.read(orjson.dumps(fetched["msg"]))
    (picked,) = answer["messages~attach"]
    return bob.read(orjson.dumps(picked["message"]))


async def test_a_live_mode_without_a_return_route_is_none(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, CHANGE, live_delivery=True))
        await network.write(bob, "one")
        await socket.raw.send_bytes(
            sealed(bob.connection, "messagepickup/2.0/status-request", **routed())
        )
        status = opened(bob.connection, await socket.data())
        assert status["live_delivery"] is False
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize("settings", [{"didcomm": {"live_in_flight_max": 3}}])
async def test_no_more_is_in_flight_than_allowed(network: WalletNetwork, bob: Bob) -> None:
    texts = numbered(10)
    async with bob.wallet.live() as live:
        await network.write(bob, *texts)
        seen: list[str] = []
        held: list[str] = []
        while len(seen) < 10:
            picked = await live.next(WAIT_S)
            seen += bob.texts(picked)
            held += ids(picked)
            assert len(held) <= 3
            if len(held) == 3:
                await live.received([held.pop(0)])
        assert seen == texts


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 0}}])
async def test_a_burst_of_500_arrives_whole_and_each_once(network: WalletNetwork, bob: Bob) -> None:
    texts = numbered(500)
    async with bob.wallet.live() as live:
        for start in range(0, 500, 50):
            await asyncio.gather(*[network.write(bob, text) for text in texts[start : start + 50]])
        seen = await pushed(bob, live, 500)
        assert sorted(seen) == texts
        assert (await live.status()).message_count == 0
        await silent(live)


async def test_a_live_mode_that_begins_after_its_answer_was_given_up_holds_no_messages(
    network: WalletNetwork, bob: Bob, mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = LocalHostPort.submit

    async def given_up(port: LocalHostPort, batch: bytes) -> bytes:
        answer = await submit(port, batch)
        if b"StartLive" in batch:
            raise HostUnavailable("it takes too long")
        return answer

    async with bob.wallet.socket() as socket:
        with monkeypatch.context() as patched:
            patched.setattr(LocalHostPort, "submit", given_up)
            wallet = bob.wallet.over(socket)
            refused = await answer_to(wallet, CHANGE, live_delivery=True)
            assert refused["@type"].endswith("problem-report"), refused
        await network.write(bob, "one", "two")
        assert bob.texts(await wallet.fetch(10)) == ["one", "two"]
        assert (await wallet.status()).live_delivery is False
        status = await answer_to(wallet, CHANGE, live_delivery=True)
        assert status["live_delivery"] is True
        await network.write(bob, "three")
        assert bob.texts(await Live(bob.connection, socket).next(WAIT_S)) == ["three"]


async def test_a_live_mode_whose_socket_is_gone_holds_no_messages_though_its_end_was_refused(
    network: WalletNetwork, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = LocalHostPort.submit
    refused = asyncio.Event()

    async def overloaded(port: LocalHostPort, batch: bytes) -> bytes:
        if b"ReleaseLeases" in batch:
            refused.set()
            raise HostUnavailable("the edge holds too much")
        return await submit(port, batch)

    async with bob.wallet.socket() as other:
        wallet = bob.wallet.over(other)
        await wallet.status()  # this edge goes on to listen
        with monkeypatch.context() as patched:
            patched.setattr(LocalHostPort, "submit", overloaded)
            async with bob.wallet.live():
                pass
            await asyncio.wait_for(refused.wait(), WAIT_S)
        await network.write(bob, "one")
        async with asyncio.timeout(WAIT_S):
            while not (texts := bob.texts(await wallet.fetch(10))):
                pass
    assert texts == ["one"]
