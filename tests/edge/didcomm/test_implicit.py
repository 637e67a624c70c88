"""Implicit pickup: a return route is enough (RFC 0092), as the older wallets have it."""

from __future__ import annotations

import pytest

from http_edge.didcomm.messages import NEW_PREFIX
from http_edge.wallet import NoAnswer
from tests.edge.didcomm.town import PREFIXES, Bob, Town, fresh, letter, numbered, routed, sealed
from tests.edge.mediator import WAIT_S, HandClock, Mediator

PING = "trust_ping/1.0/ping"
MOMENT_S = 0.3


async def test_over_http_each_request_brings_one_message_as_it_is(town: Town, bob: Bob) -> None:
    envelopes = [letter(bob.key, text) for text in numbered(3)]
    for envelope in envelopes:
        assert (await town.post(envelope)).status == 202
    for envelope in envelopes:
        answer = await town.say(bob.connection, PING, response_requested=False, **routed())
        assert (answer.status, answer.body) == (200, envelope)
    answer = await town.say(bob.connection, PING, response_requested=False, **routed())
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_silent_ping_in_either_spelling_brings_a_message(
    town: Town, bob: Bob, prefix: str
) -> None:
    await town.write(bob, "one")
    ping = fresh(**{"@type": prefix + PING, "response_requested": False, **routed()})
    assert bob.read((await town.post(bob.connection.pack(ping))).body) == "one"


async def test_a_requested_answer_is_not_replaced_by_a_waiting_message(
    town: Town, bob: Bob
) -> None:
    await town.write(bob, "one")
    await bob.wallet.ping()
    assert await bob.drained() == ["one"]


async def test_without_a_return_route_nothing_is_handed_out(town: Town, bob: Bob) -> None:
    await town.write(bob, "one")
    for route in ({}, routed("none")):
        answer = await town.say(bob.connection, PING, response_requested=False, **route)
        assert (answer.status, answer.body) == (202, b"")
    assert await bob.drained() == ["one"]


async def test_a_stranger_is_handed_nothing(town: Town, bob: Bob) -> None:
    await town.write(bob, "one")
    assert await town.stranger().implicit() is None


async def test_over_a_socket_everything_comes_and_keeps_coming_in_order(
    town: Town, bob: Bob
) -> None:
    texts = numbered(60)
    await town.write(bob, *texts[:40])
    async with bob.wallet.implicit_socket() as socket:
        seen = [bob.read(await socket.hear(WAIT_S)) for _ in range(40)]
        await town.write(bob, *texts[40:])
        seen += [bob.read(await socket.hear(WAIT_S)) for _ in range(20)]
        assert seen == texts
        await town.settled(bob.wallet.over(socket))
    assert (await bob.wallet.status()).message_count == 0


async def test_what_was_not_read_from_a_socket_is_offered_again(town: Town, bob: Bob) -> None:
    await town.write(bob, "one")
    async with town.socket(autoping=False) as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, PING, response_requested=False, **routed())
        )
        assert bob.read(await socket.data()) == "one"
        # It sends no pong, so nobody knows that it was read.
        assert (await bob.wallet.status()).message_count == 1
    assert bob.texts(await bob.wallet.batch(1, 20_000)) == ["one"]


async def test_asking_explicitly_ends_the_implicit_on_that_socket(town: Town, bob: Bob) -> None:
    await town.write(bob, "one")
    async with bob.wallet.implicit_socket() as socket:
        assert bob.read(await socket.hear(WAIT_S)) == "one"
        await bob.wallet.over(socket).status()
        await town.write(bob, "two")
        with pytest.raises(NoAnswer):
            await socket.hear(MOMENT_S)
        # Nor does another ping bring it back.
        await socket.say(
            fresh(**{"@type": NEW_PREFIX + PING, "response_requested": False, **routed()})
        )
        with pytest.raises(NoAnswer):
            await socket.hear(MOMENT_S)
        assert bob.texts(await bob.wallet.over(socket).fetch(10)) == ["two"]


async def test_what_came_implicitly_never_comes_explicitly(
    town: Town, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    """The explicit question crosses what is on its way."""
    texts = numbered(50)
    await town.write(bob, *texts)
    seen: list[str] = []
    async with bob.wallet.implicit_socket() as socket:
        wallet = bob.wallet.over(socket)
        status = await wallet.status()
        while status.message_count:
            seen += bob.texts([picked async for picked in wallet.drain(7)])
            status = await wallet.status()
        try:
            while True:
                seen.append(bob.read(await socket.hear(0)))
        except NoAnswer:
            pass
        clock.advance(2 * mediator.settings.didcomm.lease_s)
        await wallet.status()
        assert await wallet.fetch(100) == []
    assert sorted(seen) == texts


async def test_two_sockets_never_bring_the_same_message(town: Town, bob: Bob) -> None:
    texts = numbered(40)
    await town.write(bob, *texts[:20])
    async with bob.wallet.implicit_socket() as one, bob.wallet.implicit_socket() as two:
        await town.write(bob, *texts[20:])
        seen: list[str] = []
        while len(seen) < 40:
            for socket in (one, two):
                try:
                    seen.append(bob.read(await socket.hear(0.05)))
                except NoAnswer:
                    continue
        for socket in (one, two):
            with pytest.raises(NoAnswer):
                await socket.hear(MOMENT_S)
    assert sorted(seen) == texts
    assert (await bob.wallet.status()).message_count == 0
