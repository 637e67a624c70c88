"""Implicit pickup: a return route is enough (RFC 0092), as the older wallets have it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp import WSMsgType

from http_edge.clients.didcomm import ConnectionLost, NoAnswer, Recipient2, Socket, Wallet2
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import moved, packed, say, successor
from tests.edge.didcomm.wallet_network import (
    ENVELOPE,
    PREFIXES,
    Bob,
    WalletNetwork,
    envelope_of,
    fresh,
    numbered,
    opened,
    routed,
    sealed,
    subscribers,
)
from tests.edge.mediator import WAIT_S, HandClock, Mediator

PING = "trust_ping/1.0/ping"
PING_2 = "trust-ping/2.0/ping"
MOMENT_S = 0.3
LONG_MS = 20_000
NOOP = "messagepickup/1.0/noop"
SILENT = {"response_requested": False}


async def test_over_http_each_request_brings_one_message_as_it_is(
    network: WalletNetwork, bob: Bob
) -> None:
    envelopes = [envelope_of(bob.key, text) for text in numbered(3)]
    for envelope in envelopes:
        assert (await network.post(envelope)).status == 202
    for envelope in envelopes:
        answer = await network.say(bob.connection, PING, response_requested=False, **routed())
        assert (answer.status, answer.body) == (200, envelope)
    answer = await network.say(bob.connection, PING, response_requested=False, **routed())
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("kind", [PING, NOOP])
async def test_what_comes_as_it_is_is_named_in_the_media_type_of_its_generation(
    network: WalletNetwork, bob: Bob, kind: str
) -> None:
    newer = await connected(network, key=bob.connection.key)
    recipient, alice = await newer.new_recipient(), Sender(network)
    await alice.write(recipient, "new")
    await network.write(bob, "old")
    came: list[str] = []
    for _ in range(2):
        answer = await network.say(bob.connection, kind, **SILENT, **routed())
        came.append(answer.headers["Content-Type"])
    assert came == [MEDIA_TYPE, ENVELOPE]


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_silent_ping_in_either_spelling_brings_a_message(
    network: WalletNetwork, bob: Bob, prefix: str
) -> None:
    await network.write(bob, "one")
    ping = fresh(**{"@type": prefix + PING, "response_requested": False, **routed()})
    assert bob.read((await network.post(bob.connection.pack(ping))).body) == "one"


async def test_an_answer_of_the_mediator_that_waited_is_not_lost_over_http(
    network: WalletNetwork, bob: Bob
) -> None:
    """What these fetch has left the queue, also if the mediator wrote it."""
    await network.idle_replies(bob.wallet, 2)
    await network.write(bob, "one")
    for fetched in (await bob.wallet.noop(), await bob.wallet.implicit()):
        assert fetched is not None
        assert str(opened(bob.connection, fetched)["@type"]).endswith("/ping_response")
    assert bob.read(await bob.wallet.implicit()) == "one"


async def test_an_answer_of_the_mediator_that_waited_is_not_lost_over_a_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.idle_replies(bob.wallet, 1)
    await network.write(bob, "one")
    async with bob.wallet.socket() as socket, asyncio.timeout(WAIT_S):
        fetching = bob.wallet.over(socket)
        answer = opened(bob.connection, await fetching.noop())
        assert str(answer["@type"]).endswith("/ping_response")
        assert bob.read(await fetching.noop()) == "one"
        await network.settled(fetching)
    assert (await bob.wallet.status()).message_count == 0


async def test_a_requested_answer_is_not_replaced_by_a_waiting_message(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    await bob.wallet.ping()
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize(
    "kind",
    ["notification/1.0/ack", "notification/1.0/problem-report", "didexchange/1.1/complete"],
)
async def test_a_message_without_an_answer_brings_none_unless_it_is_a_ping(
    network: WalletNetwork, bob: Bob, kind: str
) -> None:
    await network.write(bob, "one")
    answer = await network.say(bob.connection, kind, **routed())
    assert (answer.status, answer.body) == (202, b"")
    async with bob.wallet.socket() as socket:
        await socket.say(fresh(**{"@type": NEW_PREFIX + kind, **routed()}))
        with pytest.raises(NoAnswer):
            await socket.receive(MOMENT_S)
    assert await bob.drained() == ["one"]


async def test_over_a_socket_everything_comes_and_keeps_coming_in_order(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(60)
    await network.write(bob, *texts[:40])
    async with bob.wallet.implicit_socket() as socket:
        seen = [bob.read(await socket.receive(WAIT_S)) for _ in range(40)]
        await network.write(bob, *texts[40:])
        seen += [bob.read(await socket.receive(WAIT_S)) for _ in range(20)]
        assert seen == texts
        await network.settled(bob.wallet.over(socket))
    assert (await bob.wallet.status()).message_count == 0


async def test_what_was_not_read_from_a_socket_is_offered_again(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    async with network.socket(autoping=False) as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, PING, response_requested=False, **routed())
        )
        assert bob.read(await socket.data()) == "one"
        # It sends no pong, so it is unknown whether it was read.
        assert (await bob.wallet.status()).message_count == 1
    assert bob.texts(await bob.wallet.batch(1, 20_000)) == ["one"]


async def test_what_a_program_has_not_received_from_its_socket_is_offered_again(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(3)
    await network.write(bob, *texts)
    async with bob.wallet.implicit_socket() as socket:
        assert bob.read(await socket.receive(WAIT_S)) == texts[0]
        await network.settled(bob.wallet.over(socket))  # the library has read the others
    async with bob.wallet.implicit_socket() as socket:
        assert [bob.read(await socket.receive(WAIT_S)) for _ in texts] == texts
        await network.settled(bob.wallet.over(socket))
    assert (await bob.wallet.status()).message_count == 0


@pytest.mark.parametrize("settings", [{"didcomm": {"ping_interval_s": 0.1}}])
async def test_a_pong_that_answers_no_ping_keeps_a_socket_and_acknowledges_nothing(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    async with network.socket(autoping=False) as socket:
        question = sealed(bob.connection, PING, response_requested=False, **routed())
        await socket.raw.send_bytes(question)
        texts, pings = list[str](), list[bytes]()
        while len(pings) < 6 or not texts:
            frame = await socket.raw.receive(WAIT_S)
            if frame.type is WSMsgType.PING:
                pings.append(bytes(frame.data))
                await socket.raw.pong(b"alive")
            else:
                assert frame.type is WSMsgType.BINARY
                texts.append(bob.read(frame.data))
        assert texts == ["one"]
        assert (await bob.wallet.status()).message_count == 1
        await socket.raw.pong(pings[-1])
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.status()).message_count:
                pass


@pytest.mark.parametrize("settings", [{"didcomm": {"ping_interval_s": 0.1}}])
async def test_a_program_that_receives_nothing_for_many_pings_keeps_its_socket_and_its_messages(
    network: WalletNetwork, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings, many, answer = list[bytes](), asyncio.Event(), Socket._answer

    async def noted(socket: Socket, ping: bytes) -> None:
        await answer(socket, ping)
        pings.append(ping)
        if len(pings) == 8:
            many.set()

    monkeypatch.setattr(Socket, "_answer", noted)
    texts = numbered(3)
    await network.write(bob, *texts)
    async with bob.wallet.implicit_socket() as socket:
        async with asyncio.timeout(WAIT_S):
            await many.wait()
        assert (await bob.wallet.status()).message_count == 3
        assert [bob.read(await socket.receive(WAIT_S)) for _ in texts] == texts
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.status()).message_count:
                pass


async def test_asking_explicitly_ends_the_implicit_on_that_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    async with bob.wallet.implicit_socket() as socket:
        assert bob.read(await socket.receive(WAIT_S)) == "one"
        await bob.wallet.over(socket).status()
        await network.write(bob, "two")
        with pytest.raises(NoAnswer):
            await socket.receive(MOMENT_S)
        # Nor does another ping bring it back.
        await socket.say(
            fresh(**{"@type": NEW_PREFIX + PING, "response_requested": False, **routed()})
        )
        with pytest.raises(NoAnswer):
            await socket.receive(MOMENT_S)
        assert bob.texts(await bob.wallet.over(socket).fetch(10)) == ["two"]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_noop_that_waits_is_answered_by_what_comes_implicitly(
    network: WalletNetwork, bob: Bob, *, is_first: bool
) -> None:
    timing = {"~timing": {"delay_milli": LONG_MS}}
    noop = sealed(bob.connection, NOOP, **routed(), **timing)
    ping = sealed(bob.connection, PING, **SILENT, **routed())
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        for message in (noop, ping) if is_first else (ping, noop):
            await socket.raw.send_bytes(message)
        # What follows is answered first: the noop waits, and the ping has begun.
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        assert opened(bob.connection, await socket.data())["@type"].endswith("ping_response")
        await subscribers(network, 2)  # the socket and the noop
        await network.write(bob, "one")
        assert bob.read(await socket.data()) == "one"
        await subscribers(network, 1)
        await network.write(bob, "two")
        assert bob.read(await socket.data()) == "two"


async def test_a_noop_of_the_newest_socket_gives_nothing_back_to_an_older_one(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.implicit_socket() as first:
        await network.settled(bob.wallet.over(first))
        async with bob.wallet.implicit_socket() as second:
            await network.settled(bob.wallet.over(second))
            await second.say(fresh(**{"@type": NEW_PREFIX + NOOP, **routed()}))
            report = await second.receive(WAIT_S)
            assert isinstance(report, dict)
            assert report["problem-code"] == "empty_queue"
            await network.write(bob, *numbered(5))
            assert [bob.read(await second.receive(WAIT_S)) for _ in range(5)] == numbered(5)
            with pytest.raises(NoAnswer):
                await first.receive(MOMENT_S)


async def test_a_batch_that_is_waited_for_gets_the_messages_and_none_comes_beside_it(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.implicit_socket() as socket:
        wallet = bob.wallet.over(socket)
        polling = asyncio.create_task(wallet.batch(2, LONG_MS))
        await asyncio.sleep(0)
        await wallet.ping()
        await network.write(bob, "one", "two")
        assert bob.texts(await polling) == ["one", "two"]


async def test_a_ping_that_a_pickup_message_follows_at_once_begins_nothing_implicit(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    begins = mediator.hosts.hold(b"Listen")
    timing = {"~timing": {"delay_milli": LONG_MS}}
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        await socket.raw.send_bytes(sealed(bob.connection, PING, **SILENT, **timing, **routed()))
        await begins.arrived.wait()
        status = sealed(bob.connection, "messagepickup/2.0/status-request", **routed())
        await socket.raw.send_bytes(status)
        await asyncio.sleep(MOMENT_S)
        begins.released.set()
        assert opened(bob.connection, await socket.data())["message_count"] == 0
        await network.write(bob, "one")
        await asyncio.sleep(MOMENT_S)
        request = sealed(bob.connection, "messagepickup/2.0/delivery-request", limit=1, **routed())
        await socket.raw.send_bytes(request)
        assert len(opened(bob.connection, await socket.data())["~attach"]) == 1


async def test_an_answer_does_not_overtake_earlier_messages_that_come_implicitly(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    """An edge reads a large page beside its other work."""
    await network.write(bob, *[letter * 200_000 for letter in "abcde"])
    pages = mediator.hosts.hold_pages()
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        await socket.raw.send_bytes(sealed(bob.connection, PING, **SILENT, **routed()))
        await pages.arrived.wait()
        await network.write(bob, "later")
        fetch = sealed(bob.connection, "messagepickup/1.0/batch-pickup", batch_size=9, **routed())
        await socket.raw.send_bytes(fetch)
        first = asyncio.create_task(socket.data())
        await asyncio.wait([first], timeout=MOMENT_S)
        assert not first.done()
        pages.released.set()
        came = [
            bob.read(frame)[0] for frame in [await first, *[await socket.data() for _ in "bcde"]]
        ]
        assert came == ["a", "b", "c", "d", "e"]
        assert len(opened(bob.connection, await socket.data())["messages~attach"]) == 1


async def test_what_came_implicitly_never_comes_explicitly(
    network: WalletNetwork, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    """The explicit question crosses what is on its way."""
    texts = numbered(50)
    await network.write(bob, *texts)
    seen: list[str] = []
    async with bob.wallet.implicit_socket() as socket:
        wallet = bob.wallet.over(socket)
        status = await wallet.status()
        while status.message_count:
            seen += bob.texts([picked async for picked in wallet.drain(7)])
            with suppress(NoAnswer):
                while True:
                    seen.append(bob.read(await socket.receive(0)))
            status = await wallet.status()
        clock.advance(2 * mediator.settings.didcomm.lease_s)
        await wallet.status()
        assert await wallet.fetch(100) == []
    assert sorted(seen) == texts


async def test_two_sockets_never_bring_the_same_message(network: WalletNetwork, bob: Bob) -> None:
    """What the first has read is gone; everything else comes on the newest alone."""
    texts = numbered(40)
    await network.write(bob, *texts[:20])
    async with bob.wallet.implicit_socket() as one:
        seen = [bob.read(await one.receive(WAIT_S)) for _ in range(20)]
        await network.settled(bob.wallet)
        while (await bob.wallet.status()).message_count:
            pass  # each status is a round trip
        async with bob.wallet.implicit_socket() as two:
            await network.settled(bob.wallet.over(two))
            await network.write(bob, *texts[20:])
            seen += [bob.read(await two.receive(WAIT_S)) for _ in range(20)]
            assert seen == texts
            for socket in (one, two):
                with pytest.raises(NoAnswer):
                    await socket.receive(MOMENT_S)
            await network.settled(bob.wallet.over(two))
    assert (await bob.wallet.status()).message_count == 0


async def test_a_newer_socket_takes_over_at_once_and_in_order_from_one_that_is_dead(
    network: WalletNetwork, bob: Bob
) -> None:
    """After a change of networks the old socket stands open and answers no ping."""
    await network.write(bob, "one", "two")
    async with network.socket(autoping=False) as dead:
        await dead.raw.send_bytes(sealed(bob.connection, PING, **SILENT, **routed()))
        assert [bob.read(await dead.data()) for _ in range(2)] == ["one", "two"]
        async with bob.wallet.implicit_socket() as alive:
            await network.write(bob, "three")
            received = [bob.read(await alive.receive(WAIT_S)) for _ in range(3)]
            assert received == ["one", "two", "three"]
            await network.settled(bob.wallet.over(alive))
        assert (await bob.wallet.status()).message_count == 0


async def test_a_dead_socket_that_waits_for_messages_gets_none_after_a_take_over(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.implicit_socket() as first:
        await network.settled(bob.wallet.over(first))
        async with bob.wallet.implicit_socket() as second:
            await network.settled(bob.wallet.over(second))
            await network.write(bob, *numbered(5))
            assert [bob.read(await second.receive(WAIT_S)) for _ in range(5)] == numbered(5)
            with pytest.raises(NoAnswer):
                await first.receive(MOMENT_S)
        # The end of the second gives nothing back to the first; it takes over by speaking again.
        await first.say(fresh(**{"@type": NEW_PREFIX + PING, **SILENT, **routed()}))
        await network.write(bob, "six")
        assert bob.read(await first.receive(WAIT_S)) == "six"


@pytest.mark.parametrize("settings", [{"didcomm": {"live_in_flight_max": 1}}])
async def test_a_live_socket_that_holds_all_it_may_loses_no_message_to_an_older_implicit_one(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.implicit_socket() as first:
        await network.settled(bob.wallet.over(first))
        async with bob.wallet.live() as live:
            await network.write(bob, "one", "two")
            (one,) = await live.next(WAIT_S)
            with pytest.raises(NoAnswer):
                await first.receive(MOMENT_S)
            await live.received([one.id])
            assert bob.texts(await live.next(WAIT_S)) == ["two"]


async def test_a_live_socket_takes_over_what_a_dead_one_held_implicitly(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    async with network.socket(autoping=False) as dead:
        await dead.raw.send_bytes(sealed(bob.connection, PING, **SILENT, **routed()))
        assert bob.read(await dead.data()) == "one"
        async with bob.wallet.live() as live:
            assert bob.texts(await live.fetch()) == ["one"]


async def rotated(network: WalletNetwork) -> tuple[Wallet2, Sender, Recipient2]:
    """A wallet that changed its DID before the edge started, and a message that waits for it."""
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)
    await say(new, PING_2, from_prior=moved(old, new))
    await network.mediator.restart()
    await sender.write(recipient, "waits")
    return new, sender, recipient


@pytest.mark.parametrize("is_silent", [True, False])
async def test_the_first_ping_of_a_rotated_did_brings_what_waits_over_a_socket(
    network: WalletNetwork, *, is_silent: bool
) -> None:
    new, sender, recipient = await rotated(network)
    async with network.socket() as socket:
        ping = packed(new, PING_2, {"response_requested": not is_silent})
        await socket.raw.send_bytes(ping)
        if not is_silent:
            response = new.connection.open(await socket.data())
            assert isinstance(response, dict)
            assert str(response["@type"]).endswith("ping-response")
        assert sender.text_in(recipient, await socket.data()) == "waits"


async def test_a_did_that_is_rotated_on_its_socket_goes_on_to_get_what_comes_implicitly(
    network: WalletNetwork,
) -> None:
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)
    async with network.socket() as socket:
        await socket.raw.send_bytes(packed(old, PING_2, SILENT))
        await sender.write(recipient, "first")
        assert sender.text_in(recipient, await socket.data()) == "first"
        await socket.raw.send_bytes(packed(new, PING_2, from_prior=moved(old, new)))
        assert isinstance(new.connection.open(await socket.data()), dict)
        await sender.write(recipient, "second")
        assert sender.text_in(recipient, await socket.data()) == "second"


@pytest.mark.parametrize("is_rotated", [True, False])
async def test_a_socket_that_waits_for_messages_of_a_did_ends_once_that_is_given_up(
    network: WalletNetwork, *, is_rotated: bool
) -> None:
    wallet = await connected(network)
    async with wallet.implicit_socket() as socket:
        await wallet.over(socket).ping()  # so the mediator waits for messages
        await (wallet.rotate(KeyPair.new()) if is_rotated else wallet.end())
        with pytest.raises(ConnectionLost) as lost:
            await socket.receive(WAIT_S)
    assert lost.value.close_code == 4403


async def test_the_first_ping_of_a_rotated_did_brings_what_waits_over_http(
    network: WalletNetwork,
) -> None:
    new, sender, recipient = await rotated(network)
    ping = packed(new, PING_2, {"response_requested": False})
    answer = await network.post(ping, content_type=MEDIA_TYPE)
    assert answer.status == 200
    assert sender.text_in(recipient, answer.body) == "waits"
