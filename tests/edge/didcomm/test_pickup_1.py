"""Pickup 1.0 with its extension over real sockets: what depends on the transport.

Every case of the protocol is in ``tests/unit/didcomm/test_pickup_1.py``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import Final

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType

from http_edge.clients.didcomm import ProblemReported
from http_edge.didcomm import unconfirmed
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.listener.in_flight import PARKED_BODY_BYTES_MAX
from http_edge.server.hosts import placement_of
from tests.edge.didcomm.newer_wallets import connected
from tests.edge.didcomm.wallet_network import (
    Bob,
    WalletNetwork,
    ids,
    numbered,
    opened,
    routed,
    sealed,
    subscribers,
)
from tests.edge.mediator import WAIT_S, HandClock, Mediator

PICKUP: Final = "messagepickup/1.0/"
UPDATE: Final = "coordinate-mediation/1.0/keylist-update"
SHORT_MS: Final = 250
LONG_MS: Final = 20_000


async def test_other_messages_pass_a_long_poll_on_its_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket)
        polling = asyncio.create_task(wallet.noop(LONG_MS))
        await asyncio.sleep(0)
        await wallet.ping()
        assert (await wallet.pickup1_status()).message_count == 0
        await network.write(bob, "one")
        assert bob.read(await polling) == "one"


async def test_no_other_message_with_a_delay_is_overtaken_on_its_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    """An update of the keylist takes several steps, each of which the next one could pass."""
    names = [did_key(KeyPair.new().public) for _ in range(15)]
    async with network.socket() as socket:
        for action, timing in (("add", {"~timing": {"delay_milli": 1}}), ("remove", {})):
            updates = [{"recipient_key": name, "action": action} for name in names]
            update = sealed(bob.connection, UPDATE, updates=updates, **timing, **routed())
            await socket.raw.send_bytes(update)
        answers = [opened(bob.connection, await socket.data())["updated"] for _ in range(2)]
    results = [{(one["action"], one["result"]) for one in updated} for updated in answers]
    assert results == [{("add", "success")}, {("remove", "success")}]


@pytest.mark.parametrize("settings", [{"didcomm": {"waiters_max": 1}}])
async def test_who_finds_no_room_to_wait_is_answered_as_if_the_time_were_over(
    network: WalletNetwork, bob: Bob
) -> None:
    polling = asyncio.create_task(bob.wallet.noop(LONG_MS))
    await network.polled()
    assert await bob.wallet.batch(1, LONG_MS) == []
    await network.write(bob, "one")
    assert bob.read(await polling) == "one"


@pytest.mark.parametrize("settings", [{"didcomm": {"waiters_max": 8}}])
async def test_an_address_that_takes_all_room_to_wait_that_it_can_leaves_room_for_others(
    network: WalletNetwork, mediator: Mediator
) -> None:
    of_one = await network.bobs(8)
    polls = [asyncio.create_task(bob.wallet.noop(LONG_MS)) for bob in of_one]
    done, _ = await asyncio.wait(polls, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=connector) as session:
        other = WalletNetwork(mediator, session)
        carol = await other.bob()
        polling = asyncio.create_task(carol.wallet.noop(LONG_MS))
        await subscribers(network, 2 + 1)
        await network.write(carol, "one")
        assert carol.read(await polling) == "one"
    assert sum(poll.done() for poll in polls) == 6
    for bob in of_one:
        await network.write(bob, "two")
    await asyncio.gather(*polls, return_exceptions=True)  # who had no place was answered so
    mediation = mediator.edges[0]._mediation
    assert mediation is not None
    assert not mediation.sockets._dependencies.waiting._slots._held


async def test_a_long_poll_ends_with_its_socket(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        timing = {"~timing": {"delay_milli": LONG_MS}}
        await socket.raw.send_bytes(sealed(bob.connection, PICKUP + "noop", **routed(), **timing))
        await subscribers(network, 1 + 1)  # the wallet on the socket, and its long poll
    await subscribers(network, 0)


@pytest.mark.parametrize("layout", ["two hosts"])
async def test_a_long_poll_that_is_repeated_for_another_account_lets_only_the_next_message_pass(
    network: WalletNetwork, mediator: Mediator
) -> None:
    """Its key speaks for the account of an earlier one, which an edge learns from the owner."""
    placement = placement_of(mediator.settings)

    def host_of(key: KeyPair) -> str:
        return placement.host_of(placement.partition_of(did_key(key.public)))

    first = await connected(network, did_method="key")
    host = host_of(first.connection.key)
    new = next(key for key in iter(KeyPair.new, None) if host_of(key) == host)
    bob = await network.bob()
    while host_of(bob.connection.key) == host:
        bob = await network.bob()
    await first.rotate(new)
    await mediator.restart()
    asks = mediator.hosts.hold(b"DeliverMessages")
    async with network.socket() as socket, asyncio.timeout(WAIT_S):
        poll = {"batch_size": 1, **routed(), "~timing": {"delay_milli": LONG_MS}}
        rotated = replace(bob.connection, key=new)
        await socket.raw.send_bytes(sealed(rotated, PICKUP + "batch-pickup", **poll))
        await asks.arrived.wait()
        query = mediator.hosts.hold(b"QueryKeylist")
        for kind in ("coordinate-mediation/1.0/keylist-query", "trust_ping/1.0/ping"):
            await socket.raw.send_bytes(sealed(bob.connection, kind, **routed()))
        await query.arrived.wait()
        asks.released.set()
        await subscribers(network, 3 + 1)  # both DIDs of the poll and Bob's, and the poll itself
        query.released.set()
        answers = [opened(bob.connection, await socket.data())["@type"] for _ in range(2)]
    assert [each.rpartition("/")[2] for each in answers] == ["keylist", "ping_response"]


@pytest.mark.parametrize("how", ["closes", "resets", "sends no more"])
async def test_a_long_poll_over_http_ends_as_its_client_leaves(
    network: WalletNetwork, bob: Bob, mediator: Mediator, how: str
) -> None:
    timing = {"~timing": {"delay_milli": LONG_MS}}
    poll = sealed(bob.connection, PICKUP + "noop", **routed(), **timing)
    head = f"POST /didcomm HTTP/1.1\r\nHost: mediator\r\nContent-Length: {len(poll)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    writer.write(head.encode() + poll)
    await subscribers(network, 1)
    if how == "closes":
        writer.close()
    elif how == "resets":
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.write_eof()
    await subscribers(network, 0)
    if how == "sends no more":
        async with asyncio.timeout(WAIT_S):
            answer = (await reader.read()).partition(b"\r\n\r\n")[2]
        assert opened(bob.connection, answer)["problem-code"] == "timeout_occurred"
        writer.close()
    mediation = mediator.edges[0]._mediation
    assert mediation is not None
    assert not mediation.sockets._dependencies.waiting._slots._held


async def test_a_long_poll_with_a_large_body_is_answered_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    """The body would wait with it, in the room that the bodies of all addresses share."""
    timing = {"~timing": {"delay_milli": LONG_MS}}
    padding = "x" * PARKED_BODY_BYTES_MAX
    named = {**routed(), **timing, "batch_size": 1, "padding": padding}
    poll = sealed(bob.connection, PICKUP + "batch-pickup", **named)
    async with asyncio.timeout(WAIT_S):
        answer = await network.post(poll)
    assert opened(bob.connection, answer.body)["messages~attach"] == []


async def test_a_socket_holds_eight_long_polls_and_answers_the_next_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    timing = {"~timing": {"delay_milli": LONG_MS}}
    async with network.socket() as socket:
        for number in range(9):
            named = {**routed(), **timing, "@id": f"{number}"}
            poll = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=1, **named)
            await socket.raw.send_bytes(poll)
        answer = opened(bob.connection, await socket.data())
        assert answer["~thread"]["thid"] == "8"
        assert answer["messages~attach"] == []


async def test_a_long_poll_that_is_repeated_for_another_account_keeps_its_place(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    new = await (await connected(network, did_method="key")).rotate(KeyPair.new())
    rotated = replace(bob.connection, key=new.connection.key)
    await mediator.restart()
    timing = {"~timing": {"delay_milli": LONG_MS}}
    async with network.socket() as socket:
        for number, connection in enumerate([*[bob.connection] * 7, rotated, bob.connection]):
            named = {**routed(), **timing, "@id": f"{number}"}
            poll = sealed(connection, PICKUP + "batch-pickup", batch_size=1, **named)
            await socket.raw.send_bytes(poll)
            if connection is rotated:
                await subscribers(network, 3 + 8)
        answer = opened(bob.connection, await socket.data())
        assert answer["~thread"]["thid"] == "8"
        assert answer["messages~attach"] == []


async def test_a_list_pickup_shows_what_another_session_of_its_owner_holds(
    network: WalletNetwork, bob: Bob
) -> None:
    """Over HTTP each request is a session: what was delivered before is leased to another."""
    await network.write(bob, *numbered(2))
    picked = ids(await bob.wallet.fetch(1))
    assert bob.texts(await bob.wallet.list_pickup(picked)) == numbered(1)
    # It was a read: the lease holds, and the message leaves by its acknowledgement alone.
    assert bob.texts(await bob.wallet.fetch(10)) == numbered(1, start=1)
    await bob.wallet.received(picked)
    assert await bob.wallet.list_pickup(picked) == []


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 10, "burst_s": 6}, "didcomm": {"error_reports_max": 1}}],
)
@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_who_only_has_to_send_its_request_again_is_always_answered_so(
    bob: Bob, *, over_socket: bool
) -> None:
    """The clock stands still, so the tokens that the first requests take do not come back."""
    unknown = [str(number) for number in range(1_000)]
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket) if over_socket else bob.wallet
        refused: list[tuple[str, bool]] = []
        for _ in range(20):
            try:
                await wallet.list_pickup(unknown)
            except ProblemReported as error:
                refused.append((error.code, error.may_be_repeated))
    assert len(refused) > 3
    assert set(refused) == {("temporarily_unavailable", True)}


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_who_goes_away_before_the_answer_gets_the_messages_again(
    network: WalletNetwork, bob: Bob, mediator: Mediator, name: str
) -> None:
    """Over HTTP: the connection is gone when the long poll comes to its end."""
    question = sealed(
        bob.connection,
        PICKUP + name,
        batch_size=2,
        **routed(),
        **{"~timing": {"delay_milli": 2 * SHORT_MS}},
    )
    async with aiohttp.ClientSession() as leaving:
        polling = asyncio.create_task(leaving.post(mediator.url("/didcomm"), data=question))
        await network.polled()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    await network.write(bob, "one")
    # Either its poll holds the message still, or it has given it back: another poll gets it.
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["one"]
    assert (await bob.wallet.pickup1_status()).message_count == 0


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_what_was_not_read_from_a_socket_is_offered_again(
    network: WalletNetwork, bob: Bob, name: str
) -> None:
    await network.write(bob, "one")
    async with network.socket(autoping=False) as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PICKUP + name, batch_size=1, **routed()))
        assert await socket.data()
        # No pong follows, which would say that this was read.
        assert (await bob.wallet.pickup1_status()).message_count == 1
        assert await bob.wallet.batch(1) == []
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["one"]


async def test_what_waits_for_pongs_on_a_socket_is_bounded_and_the_rest_is_offered_again(
    network: WalletNetwork, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unconfirmed, "UNCONFIRMED_BYTES_MAX", 1)
    monkeypatch.setattr(unconfirmed, "SHARED_BYTES", 0)
    await network.write(bob, "one", "two")
    async with network.socket(autoping=False) as socket:
        noop = sealed(bob.connection, PICKUP + "noop", **routed())
        await socket.raw.send_bytes(noop)
        assert bob.read(await socket.data()) == "one"
        assert (await socket.raw.receive(WAIT_S)).type is WSMsgType.PING
        await socket.raw.send_bytes(noop)
        assert bob.read(await socket.data()) == "two"
        await socket.raw.pong(b"2")  # a second ping would be answered by it, too
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.pickup1_status()).message_count > 1:
                pass
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["two"]


async def test_a_hundred_messages_taken_one_by_one_are_removed_by_the_last_pong(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(100)
    await network.write(bob, *texts)
    async with network.socket(autoping=False) as socket:
        noop = sealed(bob.connection, PICKUP + "noop", **routed())
        for text in texts:
            await socket.raw.send_bytes(noop)
            assert bob.read(await socket.data()) == text
            assert (await socket.raw.receive(WAIT_S)).type is WSMsgType.PING
        await socket.raw.pong(b"%d" % len(texts))
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.pickup1_status()).message_count:
                pass


async def test_batches_that_were_requested_before_one_was_read_are_removed_by_the_last_pong(
    network: WalletNetwork, bob: Bob
) -> None:
    batches = 9  # of short ids; of usual ones a fourth is beyond what each socket has room for
    texts = numbered(100 * batches)
    await network.write(bob, *texts)
    async with network.socket(autoping=False) as socket:
        request = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=100, **routed())
        for _ in range(batches):
            await socket.raw.send_bytes(request)
        for _ in range(batches):
            batch = opened(bob.connection, await socket.data())
            assert len(batch["messages~attach"]) == 100
            assert (await socket.raw.receive(WAIT_S)).type is WSMsgType.PING
        await socket.raw.pong(b"%d" % batches)
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.pickup1_status()).message_count:
                pass


async def test_who_reads_slowly_removes_what_it_has_read_although_the_lease_is_over(
    network: WalletNetwork, bob: Bob, mediator: Mediator, clock: HandClock
) -> None:
    await network.write(bob, "one", "two")
    async with network.socket(autoping=False) as socket:
        request = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=1, **routed())
        await socket.raw.send_bytes(request)
        assert await socket.data()
        ping = await socket.raw.receive(WAIT_S)
        assert ping.type is WSMsgType.PING
        clock.advance(2 * mediator.settings.didcomm.lease_s)
        assert bob.texts(await bob.wallet.fetch(1)) == ["one"], "offered again"
        await socket.raw.pong(ping.data)
        async with asyncio.timeout(WAIT_S):
            while (await bob.wallet.pickup1_status()).message_count > 1:
                pass
    assert bob.texts(await bob.wallet.batch(2)) == ["two"]


async def test_many_questions_at_once_on_one_socket_are_all_answered(
    network: WalletNetwork, bob: Bob
) -> None:
    """Each answer waits for a pong, and the pongs stand behind the questions."""
    texts = numbered(60)
    await network.write(bob, *texts)
    async with network.socket() as socket:
        for _ in texts:
            await socket.raw.send_bytes(sealed(bob.connection, PICKUP + "noop", **routed()))
        assert [bob.read(await socket.data()) for _ in texts] == texts
        status = sealed(bob.connection, PICKUP + "status-request", **routed())
        while True:
            await socket.raw.send_bytes(status)
            if opened(bob.connection, await socket.data())["message_count"] == 0:
                break


async def _posted(mediator: Mediator, envelope: bytes) -> socket.socket:
    """A connection that has sent a request, and whose machine takes few bytes at a time."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1_000)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", mediator.ports[0]))
    head = f"POST /didcomm HTTP/1.1\r\nHost: m\r\nContent-Length: {len(envelope)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + envelope)
    return client


async def test_who_reads_slowly_gets_a_message_whole_and_once(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    """The kernel has the whole answer long before the client: it waits longer than a stall."""
    await network.write(bob, "x" * 40_000)
    request = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=1, **routed())
    loop = asyncio.get_running_loop()
    with await _posted(mediator, request) as client:
        said, started_at = bytearray(), loop.time()
        size_bytes: int | None = None
        async with asyncio.timeout(WAIT_S):
            while size_bytes is None or len(said) < size_bytes:
                said += await loop.sock_recv(client, 1_500)
                head, found, _ = said.partition(b"\r\n\r\n")
                if found:
                    length = head.lower().partition(b"content-length:")[2].split()[0]
                    size_bytes = len(head) + len(found) + int(length)
                await asyncio.sleep(0.08)  # the pace of the client, about 12 KiB/s
        assert loop.time() - started_at > 4
        batch = opened(bob.connection, bytes(said.partition(b"\r\n\r\n")[2]))
        (attached,) = batch["messages~attach"]
        assert bob.read(orjson.dumps(attached["message"])) == "x" * 40_000
        # A message that was released instead would come at once.
        assert await bob.wallet.batch(1, SHORT_MS) == []
    assert (await bob.wallet.pickup1_status()).message_count == 0


async def _readable(client: socket.socket) -> None:
    """Return when the first bytes of an answer are here, and read none of them."""
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client, begun.set)
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
    loop.remove_reader(client)


@pytest.mark.parametrize("settings", [{"limits": {"commands_in_flight_max": 1}}])
async def test_who_reads_an_answer_slowly_takes_no_place_of_others(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    await network.write(bob, "x" * 20_000)
    request = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=1, **routed())
    with await _posted(mediator, request) as client:
        await _readable(client)
        assert (await bob.wallet.pickup1_status()).message_count == 1


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_who_reads_nothing_of_an_answer_and_is_gone_gets_its_message_again(
    network: WalletNetwork, bob: Bob, mediator: Mediator, name: str
) -> None:
    """The kernel had the whole answer, and the client's machine only a part."""
    await network.write(bob, "x" * 20_000)
    request = sealed(bob.connection, PICKUP + name, batch_size=1, **routed())
    with await _posted(mediator, request) as client:
        await _readable(client)
        assert (await bob.wallet.pickup1_status()).message_count == 1
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["x" * 20_000]
