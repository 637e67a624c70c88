"""Bounds of the edge that one client must not use up for all, and messages that go in circles."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from aiohttp import WSMsgType

from actors.host.port import NoteSockets
from http_edge.clients.didcomm import NoAnswer, WalletError, forward_2
from http_edge.crypto.strict_json import CONTAINERS_MAX, JsonRefused, parse
from http_edge.didcomm.composition import pseudonym
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v2.forward import FORWARD
from http_edge.didcomm.envelopes.v2.signed import write_signed
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from http_edge.listener.address_charge import LARGE_ANSWERS_MAX
from http_edge.listener.body_reads import in_reading_thread
from tests.edge.bare_edge import until
from tests.edge.didcomm.newer_wallets import Sender
from tests.edge.didcomm.wallet_network import (
    ENVELOPE,
    IN_FLIGHT,
    IN_FLIGHT_BYTES,
    SERVICE,
    Bob,
    RawSocket,
    WalletNetwork,
    keys,
    numbered,
    opened,
    routed,
    sealed,
)
from tests.edge.mediator import KEYS, WAIT_S, HandClock
from tests.unit.didcomm.v2_agent import V2Agent, recipient

PING = "trust_ping/1.0/ping"
PICKUP_1 = "messagepickup/1.0/"
LARGE = 16_384
TAKEN_BYTES_MAX = 65_536
_PICKED = 16


async def test_a_message_that_this_mediator_sent_out_is_not_taken_in_again(
    network: WalletNetwork,
) -> None:
    url = network.mediator.url("/didcomm")
    for via in (f"1.1 {pseudonym(KEYS)}", f"1.1 another, 1.1 {pseudonym(KEYS)}"):
        for ask in (network.mediator.http.post, network.mediator.http.get):
            async with ask(url, headers={"Via": via}) as answer:
                assert (answer.status, await answer.json()) == (409, {"error": "message-loop"})
    async with network.mediator.http.post(url, headers={"Via": "1.1 another"}, data=b"x") as answer:
        assert answer.status == 400


@pytest.mark.parametrize("settings", [{"limits": {"commands_in_flight_max": 1}}])
async def test_a_wallet_that_waits_for_messages_takes_no_place_of_others(
    network: WalletNetwork, bob: Bob
) -> None:
    polling = asyncio.create_task(bob.wallet.noop(delay_ms=20_000))
    async with asyncio.timeout(WAIT_S):
        await network.polled()
        # No event says that a request began to wait.
        while network.measured(IN_FLIGHT):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await network.write(bob, "hello")
        assert await polling


async def test_a_wallet_that_is_erased_while_it_waits_for_messages_waits_no_longer(
    network: WalletNetwork, bob: Bob
) -> None:
    polling = asyncio.create_task(bob.wallet.noop(delay_ms=int(2_000 * WAIT_S)))
    did = did_key(bob.connection.key.public)
    async with asyncio.timeout(WAIT_S):
        await network.polled()
        await network.mediator.operate(f"/identities/erase?did={quote(did)}", "POST")
        with pytest.raises(WalletError):
            await polling


@pytest.mark.parametrize("is_live", [True, False])
async def test_the_sockets_of_an_erased_wallet_end(
    network: WalletNetwork, bob: Bob, *, is_live: bool
) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, "trust_ping/1.0/ping", **routed()))
        assert opened(bob.connection, await socket.data())
        if is_live:
            live = {"live_delivery": True, **routed()}
            kind = "messagepickup/2.0/live-delivery-change"
            await socket.raw.send_bytes(sealed(bob.connection, kind, **live))
            assert opened(bob.connection, await socket.data())
        else:
            await network.write(bob, "implicit")
            assert bob.read(await socket.data()) == "implicit"
        ended = asyncio.create_task(socket.ended_because())
        did = did_key(bob.connection.key.public)
        await network.mediator.operate(f"/identities/erase?did={quote(did)}", "POST")
        assert await ended == (4410, "erased")


async def test_sessions_end_with_the_connection_of_their_edge_and_not_with_its_reports(
    network: WalletNetwork, bob: Bob
) -> None:
    host = network.mediator.hosts.running["host-0"]
    async with bob.wallet.live():
        host.ask(NoteSockets("edge-0", 1, ""))
        assert host.stats().sessions
        host.forget_edge("edge-0")
        host.stats()  # after what waits on the writer's thread
        assert not host.stats().sessions


OWING = {"per_address_per_s": 20, "burst_s": 3, "unproven_tokens": 30}


@pytest.mark.parametrize("settings", [{"rates": OWING}])
async def test_an_address_that_owes_is_read_no_further_on_its_sockets(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """Over HTTP it is refused then; of what a socket brings nothing is lost."""
    url = network.mediator.url("/didcomm")
    async with network.socket() as socket:
        async with asyncio.timeout(WAIT_S):
            while True:  # what proves nothing costs more than there is
                async with network.mediator.http.post(url, data=b"x") as answer:
                    if answer.status == 429:
                        break
        ping = sealed(bob.connection, PING, comment="x" * LARGE, **routed())
        await socket.raw.send_bytes(ping)
        answered = asyncio.create_task(socket.data())
        assert not (await asyncio.wait([answered], timeout=0.3))[0]
        assert network.measured(IN_FLIGHT_BYTES) == len(ping)
        clock.advance(60)
        opened(bob.connection, await answered)
        assert network.measured(IN_FLIGHT_BYTES) == 0


async def all_of(socket: RawSocket, count: int) -> None:
    for _ in range(count):
        await socket.data()


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 20, "unproven_tokens": 0}}])
async def test_a_message_on_a_socket_costs_its_address_what_a_request_does(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    async with network.socket() as socket:
        for _ in range(5 * 20):  # what the address has at most
            await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        answers = asyncio.create_task(all_of(socket, 5 * 20))
        assert not (await asyncio.wait([answers], timeout=1))[0]
        clock.advance(60)
        await answers


@pytest.mark.parametrize(
    "settings",
    [{"didcomm": {"message_bytes_max": TAKEN_BYTES_MAX}, "rates": {"per_address_per_s": 20}}],
)
async def test_a_body_that_does_not_say_that_it_is_too_large_is_paid_for(
    network: WalletNetwork,
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(TAKEN_BYTES_MAX // 1_024 + 1):
            yield b"x" * 1_024

    headers, statuses = {"Content-Type": ENVELOPE}, []
    url = network.mediator.url("/didcomm")
    for _ in range(10):
        async with network.mediator.http.post(url, data=parts(), headers=headers) as answer:
            statuses.append(answer.status)
    assert statuses[0] == 413
    assert statuses[-1] == 429


@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": TAKEN_BYTES_MAX}}])
async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(
    network: WalletNetwork,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", network.mediator.ports[0])
    head = ("POST /didcomm HTTP/1.1", "Host: x", f"Content-Type: {ENVELOPE}", "Content-Length: ")
    async with asyncio.timeout(WAIT_S):
        writer.write("\r\n".join(head).encode() + b"%d\r\n\r\n" % (TAKEN_BYTES_MAX + 1))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 40, "burst_s": 1}}])
async def test_a_page_of_an_invitation_costs_by_its_size(network: WalletNetwork) -> None:
    url = network.mediator.url("/invitation")
    headers = {"Accept": "text/html"}
    statuses = []
    for _ in range(4):
        async with network.mediator.http.get(url, headers=headers) as answer:
            statuses.append(answer.status)
    assert statuses[0] == 200
    assert 429 in statuses


def test_a_text_of_very_many_parts_is_not_read() -> None:
    assert parse(b"[" + b",".join([b"[]"] * (CONTAINERS_MAX - 1)) + b"]") == [[]] * (
        CONTAINERS_MAX - 1
    )
    with pytest.raises(JsonRefused):
        parse(b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]")


REFUSING = {
    "rates": {"per_address_per_s": 10, "burst_s": 10},
    "didcomm": {"unknown_recipient": "refuse"},
}


@pytest.mark.parametrize("settings", [REFUSING])
@pytest.mark.parametrize(("recipients", "taken"), [(1, 6), (17, 5)])
async def test_envelopes_for_unknown_recipients_cost_their_address_more(
    network: WalletNetwork, recipients: int, taken: int
) -> None:
    """Of 100 tokens each takes its own, 16 because it proves nothing, and some for its bytes."""
    envelope = pack(b"{}", list(keys(recipients)), None)
    answers = [(await network.post(envelope)).status for _ in range(taken + 1)]
    assert answers == [400 if recipients > 16 else 404] * taken + [429]


@pytest.mark.parametrize("settings", [REFUSING])
async def test_a_forward_of_v2_to_an_unknown_name_costs_its_address_as_much(
    network: WalletNetwork,
) -> None:
    unknown, alice = OwnDids(KeyPair.new()), Sender(network)
    envelope = alice.sealed("x", unknown.did_key)
    body = forward_2([envelope], unknown.peer4, OwnDids(SERVICE).did_key)
    answers = [(await network.post(body, content_type=MEDIA_TYPE)).status for _ in range(7)]
    assert answers == [404] * 6 + [429]


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 20}}])
async def test_envelopes_within_one_another_cost_their_address_by_what_opens_them(
    network: WalletNetwork,
) -> None:
    """Of 200 tokens each takes its own, five for what opens it beyond two, and six for 23 KiB."""
    alice, ours = V2Agent(KeyPair.new()), recipient(OwnDids(SERVICE), OwnDids(SERVICE).did_key)
    did = alice.dids.peer4
    attached = [{"data": {"json": orjson.loads(Sender(network).sealed("x", alice.dids.did_key))}}]
    forward = alice.plaintext(
        did, to=[ours.kid], type=FORWARD, body={"next": did}, attachments=attached
    )
    kid = alice.named(did).signing_kid
    signed: dict[str, Any] = write_signed(orjson.dumps(forward), kid, alice.dids.key)
    signed["signatures"] *= 4
    body = alice.pack(orjson.loads(alice.pack(signed, ours, did)), ours, None)
    answers = [(await network.post(body, content_type=MEDIA_TYPE)).status for _ in range(18)]
    assert answers == [202] * 17 + [429]


MEGABYTES = [text + "x" * 250_000 for text in numbered(5)]


async def fill(network: WalletNetwork, bob: Bob, clock: HandClock, texts: Sequence[str]) -> None:
    """Let these messages wait for bob, so slowly that they are paid for."""
    for text in texts:
        await network.write(bob, text)
        clock.advance(60)


async def test_a_large_delivery_is_whole_by_every_generation_of_pickup(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    for text in MEGABYTES:
        await network.write(bob, text)
        clock.advance(1)
    picked = await bob.wallet.fetch(4)
    assert bob.texts(picked) == MEGABYTES[:4]
    shown = await bob.wallet.list_pickup([one.id for one in picked])
    assert bob.texts(shown) == MEGABYTES[:4]
    clock.advance(60)
    fetched = await bob.wallet.queue_fetch(4)
    assert bob.texts(fetched) == MEGABYTES[:4]
    times = [one.added_time for one in fetched]
    assert None not in times
    assert len(set(times)) == 4


async def test_the_event_loop_packs_no_large_delivery(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await fill(network, bob, clock, MEGABYTES[:2])
    held = threading.Event()
    working = asyncio.create_task(in_reading_thread(held.wait))
    try:
        fetching = asyncio.create_task(bob.wallet.fetch(2))
        assert not (await asyncio.wait([fetching], timeout=0.3))[0]
        await bob.wallet.ping()
    finally:
        held.set()
    assert bob.texts(await fetching) == MEGABYTES[:2]
    await working


async def test_a_page_of_public_events_waits_for_no_large_delivery_to_its_address(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await fill(network, bob, clock, MEGABYTES[:4])
    held = threading.Event()
    working = asyncio.create_task(in_reading_thread(held.wait))
    try:
        fetching = asyncio.create_task(bob.wallet.fetch(4))
        assert not (await asyncio.wait([fetching], timeout=0.3))[0]
        async with asyncio.timeout(WAIT_S):
            page = await network.mediator.get("/public/did:key:z1")
    finally:
        held.set()
    assert page.status == 200
    assert bob.texts(await fetching) == MEGABYTES[:4]
    await working


FEW = {"per_address_per_s": 40, "burst_s": 10}


async def _take_turns(tasks: Sequence[asyncio.Task[Any]], clock: HandClock) -> None:
    """Wait for large requests of one address: at most two have an answer before it has paid."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    _, waiting = await asyncio.wait(tasks, timeout=0.3)
    assert len(waiting) >= len(tasks) - 2
    while waiting:
        clock.advance(60)
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


@pytest.mark.parametrize("settings", [{"rates": FEW}])
async def test_an_address_reads_one_large_delivery_at_a_time_and_none_while_it_owes(
    network: WalletNetwork, clock: HandClock
) -> None:
    """Each of 1.3 MB takes 326 of 400 tokens."""
    bobs = []
    for _ in range(4):
        bobs.append(await network.bob())
        await fill(network, bobs[-1], clock, MEGABYTES[:4])
    fetching = [asyncio.create_task(bob.wallet.fetch(4)) for bob in bobs]
    await _take_turns(fetching, clock)
    assert [len(await messages) for messages in fetching] == [4] * len(bobs)


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 20, "burst_s": 10}}])
async def test_messages_that_come_implicitly_cost_their_address_by_their_bytes(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """One of 334 KB takes 81 of 200 tokens."""
    await fill(network, bob, clock, MEGABYTES[:4])
    said = [
        (await network.say(bob.connection, PING, response_requested=False, **routed())).status
        for _ in range(4)
    ]
    assert said == [200, 200, 200, 429]


@pytest.mark.parametrize("settings", [{"rates": FEW}])
async def test_messages_that_come_implicitly_over_a_socket_wait_until_earlier_ones_are_paid(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """Six, all that one delivery may carry, take more than 400 tokens: then no pong is read."""
    texts = [str(number) + MEGABYTES[0] for number in range(8)]
    await fill(network, bob, clock, texts)
    async with bob.wallet.implicit_socket() as socket:
        seen = [bob.read(await socket.receive(WAIT_S)) for _ in range(6)]
        with pytest.raises(NoAnswer):
            await socket.receive(0.3)
        clock.advance(60)
        seen += [bob.read(await socket.receive(WAIT_S)) for _ in range(2)]
    assert seen == texts


@pytest.mark.parametrize("settings", [{"rates": FEW}])
async def test_what_waits_for_large_answers_to_one_address_takes_a_bounded_number_of_places(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await fill(network, bob, clock, MEGABYTES[:4])
    ids = [one.id for one in await bob.wallet.fetch(4)]
    clock.advance(60)
    asking = [asyncio.create_task(bob.wallet.list_pickup(ids)) for _ in range(60)]
    refused = 0
    async with asyncio.timeout(WAIT_S):
        for answer in asyncio.as_completed(asking):
            try:
                assert len(await answer) == 4
            except WalletError:
                refused += 1
            if refused == 60 - LARGE_ANSWERS_MAX - 2:
                break
    # Two of them that are answered may not have ended yet.
    await until(lambda: network.measured(IN_FLIGHT) <= LARGE_ANSWERS_MAX)
    while waiting := [one for one in asking if not one.done()]:
        clock.advance(60)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(one, list) for one in answers) <= LARGE_ANSWERS_MAX + 2


UNLIMITED = {"per_address_per_s": 0, "per_sender_per_s": 0}


@pytest.mark.parametrize("settings", [{"rates": UNLIMITED}])
async def test_large_answers_to_an_address_without_a_rate_wait_for_no_others(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await fill(network, bob, clock, MEGABYTES[:4])
    ids = [one.id for one in await bob.wallet.fetch(4)]
    clock.advance(60)
    lists = [bob.wallet.list_pickup(ids) for _ in range(LARGE_ANSWERS_MAX + 2)]
    assert [len(one) for one in await asyncio.gather(*lists)] == [4] * len(lists)


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 20, "burst_s": 10}}])
async def test_a_long_list_of_recipients_costs_its_address_by_its_bytes(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """One of 400 keys takes 11 of 200 tokens, a short one takes the token of its request alone."""
    for _ in range(2):
        await bob.wallet.update_keylist(add=list(keys(200)))
        clock.advance(60)
    kind = "coordinate-mediation/1.0/keylist-query"
    for limit, taken in ((1, 20), (-1, 18)):
        clock.advance(60)
        page = {"paginate": {"limit": limit, "offset": 0}}
        said = [await network.say(bob.connection, kind, **page, **routed()) for _ in range(20)]
        assert [each.status for each in said].count(200) == taken


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 20, "burst_s": 10}}])
async def test_the_keys_that_a_wallet_registers_cost_its_address_by_their_number(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """A hundred take 200 of 200 tokens, and none if they are registered already."""
    clock.advance(60)
    kind = "coordinate-mediation/1.0/keylist-update"
    updates = [{"recipient_key": did_key(key), "action": "add"} for key in keys(100)]
    for after_s, status in ((0, 200), (0, 429), (60, 200), (0, 200)):
        clock.advance(after_s)
        said = await network.say(bob.connection, kind, updates=updates, **routed())
        assert said.status == status


@pytest.mark.parametrize("settings", [{"rates": FEW}])
async def test_an_address_changes_many_keys_in_one_message_at_a_time_and_none_while_it_owes(
    network: WalletNetwork, clock: HandClock
) -> None:
    """Each update of 150 keys takes 300 of 400 tokens."""
    bobs = await network.bobs(4)
    updating = [asyncio.create_task(bob.wallet.update_keylist(add=list(keys(150)))) for bob in bobs]
    await _take_turns(updating, clock)
    for results in [await task for task in updating]:
        assert {each.result for each in results} == {"success"}


async def test_a_request_for_messages_is_not_kept_until_its_sender_has_read_the_answer(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, *numbered(_PICKED))
    async with network.socket(autoping=False) as socket:  # it sends no pong: it reads nothing
        await _pick_one(bob, socket)
        tracemalloc.start()
        try:
            for _ in range(_PICKED - 1):
                await _pick_one(bob, socket)
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert not network.measured(IN_FLIGHT_BYTES)
        assert kept_bytes < _PICKED * LARGE


async def _pick_one(bob: Bob, socket: RawSocket) -> None:
    """Have one message handed over, by a request that is long."""
    request = sealed(
        bob.connection, PICKUP_1 + "batch-pickup", batch_size=1, more="x" * 4 * LARGE, **routed()
    )
    await socket.say(request)
    while (frame := await socket.raw.receive(WAIT_S)).type is WSMsgType.PING:
        pass
    assert len(opened(bob.connection, frame.data)["messages~attach"]) == 1
