"""DCTRL-0004 10.4 to 10.6: a socket after it is authenticated."""

from __future__ import annotations

import asyncio
import socket as socket_module
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from aiohttp import WSMsgType

from actors.core.replies import Notice
from http_edge.decentrl import frames
from http_edge.dispatch import outbox
from tests.cluster.accounts import SOURCES, befriend, client, newcomer
from tests.cluster.accounts import Socket as ClusterSocket
from tests.cluster.server import MEDIATOR_DID as SERVED_DID
from tests.edge.identities import Identity, Json, contract_request, public_event, signed_contract
from tests.edge.mediator import (
    DAY_S,
    LAYOUTS,
    WAIT_S,
    HandClock,
    Mediator,
    Socket,
    silent_but,
)

PATIENT: Json = {"protocol": {"ping_interval_s": 0.02, "pings_missed_max": 100}}
CONTRACTS_UPDATED = {"type": "CONTRACTS_UPDATED"}
_SUCCESS = b'{"type":"AUTH_SUCCESS"}'
ALICE, BOB, CAROL, DAVE = (Identity(name) for name in ("alice", "bob", "carol", "dave"))


def pending(sender: Identity, message_id: str, payload: str) -> Json:
    event = {"id": message_id, "sender_did": sender.did, "payload": payload}
    return {"type": "PENDING_EVENTS", "events": [event]}


async def only_updated(
    mediator: Mediator, who: Identity, sockets_of: dict[Identity, Socket]
) -> None:
    """CONTRACTS_UPDATED came to one identity, once, and to no other."""
    assert await sockets_of[who].hear() == CONTRACTS_UPDATED
    await nothing_more(mediator, sockets_of)


async def nothing_more(mediator: Mediator, sockets_of: dict[Identity, Socket]) -> None:
    """What was received is all there was: a message that is sent now comes next."""
    for identity, socket in sockets_of.items():
        message_id = await mediator.delivered(DAVE, identity, "fence")
        await silent_but(pending(DAVE, message_id, "fence"), socket)


@pytest.fixture
async def sockets_of(mediator: Mediator) -> Any:
    """Alice, Bob and Carol are registered, listen, and take messages from Dave."""
    await mediator.register(ALICE, BOB, CAROL)
    for identity in (ALICE, BOB, CAROL):
        await mediator.befriend(identity, DAVE)
    async with AsyncExitStack() as stack:
        yield {
            identity: await stack.enter_async_context(mediator.socket(identity))
            for identity in (ALICE, BOB, CAROL)
        }


async def test_a_push_is_written_once_for_all_sockets_of_an_identity(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes | None] = []
    notice = frames.notice

    def noted(what: Notice) -> bytes | None:
        written.append(notice(what))
        return written[-1]

    await mediator.register(ALICE)
    await mediator.befriend(ALICE, DAVE)
    async with mediator.socket(ALICE) as first, mediator.socket(ALICE) as second:
        monkeypatch.setattr(frames, "notice", noted)
        for text in ("one", "two"):
            message_id = await mediator.delivered(DAVE, ALICE, text)
            for socket in (first, second):
                assert await socket.hear() == pending(DAVE, message_id, text)
    assert len(written) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
class TestTable106:
    """Who gets which push, and that no other gets any."""

    async def test_trap_80_a_message_is_pushed_to_its_recipient(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        message_id = await mediator.delivered(DAVE, BOB, "sealed")
        assert await sockets_of[BOB].hear() == pending(DAVE, message_id, "sealed")
        await nothing_more(mediator, sockets_of)

    async def test_trap_80_a_forwarded_request_updates_its_recipient(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        await mediator.send(ALICE, contract_request(ALICE, BOB.pre_public, {}), to=BOB)
        await only_updated(mediator, BOB, sockets_of)

    async def test_trap_80_a_response_updates_the_other_participant(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        contract = signed_contract(ALICE, BOB, mediator.clock.now_s + DAY_S)
        response = {
            "type": "COMMUNICATION_CONTRACT_RESPONSE",
            "signed_communication_contract": contract,
        }
        assert (await mediator.send(BOB, response, to=CAROL)).status == 200
        await only_updated(mediator, ALICE, sockets_of)

    async def test_trap_80_saving_updates_the_sender(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        await mediator.befriend(BOB, ALICE)
        await only_updated(mediator, BOB, sockets_of)

    async def test_trap_59_saving_the_same_contract_again_updates_the_sender_again(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        for _ in range(2):
            await mediator.befriend(BOB, ALICE, DAY_S)
            assert await sockets_of[BOB].hear() == CONTRACTS_UPDATED
        await nothing_more(mediator, sockets_of)

    async def test_everything_else_pushes_nothing(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        await mediator.register(BOB)
        for payload in (
            {"type": "QUERY_PENDING_EVENTS"},
            {"type": "QUERY_COMMUNICATION_CONTRACTS"},
            {"type": "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS"},
            {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": ["x"]},
            {"type": "SAVE_EVENTS", "events": []},
            {"type": "QUERY_EVENTS"},
            {"type": "UPDATE_EVENT_TAGS", "events": []},
        ):
            assert (await mediator.send(BOB, payload)).status == 200
        published = await mediator.send(BOB, public_event(BOB, "x"), channel="ONE_WAY_PUBLIC")
        assert published.status == 200
        await nothing_more(mediator, sockets_of)

    async def test_what_is_refused_pushes_nothing(
        self, mediator: Mediator, sockets_of: dict[Identity, Socket]
    ) -> None:
        assert (await mediator.write(ALICE, BOB, "no contract")).status == 404
        expired = signed_contract(ALICE, BOB, mediator.clock.now_s)
        for kind in ("SAVE_COMMUNICATION_CONTRACT", "COMMUNICATION_CONTRACT_RESPONSE"):
            answer = await mediator.do(BOB, kind, signed_communication_contract=expired)
            assert answer.status == 400
        await nothing_more(mediator, sockets_of)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_trap_77_every_socket_of_an_identity_gets_every_push(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as one, mediator.socket(BOB) as two:
        async with mediator.socket(BOB) as three:
            first = await mediator.delivered(ALICE, BOB, "1")
            await silent_but(pending(ALICE, first, "1"), one, two, three)
        second = await mediator.delivered(ALICE, BOB, "2")
        await silent_but(pending(ALICE, second, "2"), one, two)


async def test_trap_77_a_second_authenticate_on_an_open_socket_is_ignored(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        await socket.say(mediator.authenticate(ALICE))
        await socket.say(mediator.authenticate(BOB))
        message_id = await mediator.delivered(ALICE, BOB, "hi")
        await mediator.delivered(BOB, ALICE, "not for this socket")
        last = await mediator.delivered(ALICE, BOB, "last")
        assert await socket.hear() == pending(ALICE, message_id, "hi")
        assert await socket.hear() == pending(ALICE, last, "last")


async def test_trap_80_no_backlog_is_pushed_at_connection(
    mediator: Mediator, friends: None
) -> None:
    await mediator.delivered(ALICE, BOB, "before")
    async with mediator.socket(BOB) as socket:
        message_id = await mediator.delivered(ALICE, BOB, "after")
        assert await socket.hear() == pending(ALICE, message_id, "after")
    assert await mediator.waiting(BOB) == ["before", "after"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [{"edges": 2}])
async def test_trap_81_a_push_finds_the_socket_on_another_edge(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB, edge=0) as here, mediator.socket(BOB, edge=1) as there:
        for edge in (0, 1):
            answer = await mediator.write(ALICE, BOB, "hi", edge=edge)
            expected = pending(ALICE, answer.json["pendingEventId"], "hi")
            await silent_but(expected, here, there)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_of_many_messages_at_once_each_is_pushed_once(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        texts = [str(number) for number in range(50)]
        await asyncio.gather(*[mediator.delivered(ALICE, BOB, text) for text in texts])
        received = [(await socket.hear())["events"][0] for _ in texts]
    pagination = {"page": 0, "page_size": 100}
    queued = await mediator.records(BOB, "QUERY_PENDING_EVENTS", pagination=pagination)
    assert sorted(event["payload"] for event in received) == sorted(texts)
    assert sorted(event["id"] for event in received) == sorted(event["id"] for event in queued)


@pytest.mark.parametrize(
    "settings", [{"protocol": {"ping_interval_s": 0.02, "pings_missed_max": 3}}]
)
async def test_trap_78_who_answers_pings_with_whatever_timestamp_stays(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        timestamps: list[Any] = [mediator.clock.now_ms, 0, "late", None, {}, -1]
        for timestamp in timestamps:
            assert await socket.hear() == {"type": "PING", "timestamp": mediator.clock.now_ms}
            await socket.say({"type": "PONG", "timestamp": timestamp})


@pytest.mark.parametrize(
    "settings", [{"protocol": {"ping_interval_s": 0.02, "pings_missed_max": 2}}]
)
@pytest.mark.parametrize("noise", [None, "{", '{"type":"PING"}', '{"type":"pong"}'])
async def test_trap_78_who_misses_two_pings_is_closed(
    mediator: Mediator, friends: None, noise: str | None
) -> None:
    async with mediator.socket(BOB) as socket:
        for _ in range(2):
            assert (await socket.hear())["type"] == "PING"
            if noise is not None:
                await socket.say(noise)
        assert await socket.closing() == 1011


@pytest.mark.parametrize(
    "settings", [{"did": SERVED_DID, "protocol": {"ping_interval_s": 0.02, "pings_missed_max": 5}}]
)
async def test_a_socket_of_a_test_that_lasts_stays_open_and_sees_no_ping(
    mediator: Mediator, clock: HandClock
) -> None:
    clock.now_ms = SOURCES.now_ms()
    async with client(mediator.url("")) as there:
        writer, reader = await newcomer(there, "writer"), await newcomer(there, "reader")
        await befriend(writer, reader)
        socket = await ClusterSocket.open(reader)
        assert await socket.closed_within(0.2) is None
        await writer.send(reader.identity.did, "hi")
        assert await socket.pushed() == ["hi"]
        await mediator.stop()
        assert await socket.close_code() == 1001


async def test_trap_78_unknown_messages_are_ignored(mediator: Mediator, friends: None) -> None:
    async with mediator.socket(BOB) as socket:
        for message in ("", "{", "[]", '{"type":"SUBSCRIBE"}', b"\x00\xff", '"\\ud800"'):
            await socket.say(message)
        message_id = await mediator.delivered(ALICE, BOB, "hi")
        assert await socket.hear() == pending(ALICE, message_id, "hi")


@pytest.mark.parametrize("settings", [{"limits": {"socket_frames_per_s_max": 5}}])
async def test_who_sends_too_many_messages_is_closed(mediator: Mediator, friends: None) -> None:
    async with mediator.socket(BOB) as socket:
        for _ in range(10):  # two seconds of burst
            await socket.say("{}")
        message_id = await mediator.delivered(ALICE, BOB, "hi")
        assert await socket.hear() == pending(ALICE, message_id, "hi")
        for _ in range(20):
            await socket.say("{}")
        assert await socket.closing() == 1008


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", [PATIENT])
async def test_trap_79_a_registration_that_ends_closes_the_socket_with_4007(
    mediator: Mediator, clock: HandClock
) -> None:
    await mediator.register(BOB, lifetime_s=60)
    async with mediator.socket(BOB) as socket:
        assert (await socket.hear())["type"] == "PING"
        clock.advance(60)
        received = await socket.hear()
        while received["type"] == "PING":
            received = await socket.hear()
        assert (received["type"], received["code"]) == ("AUTH_FAILED", "NOT_REGISTERED")
        assert await socket.closing() == 4007


@pytest.mark.parametrize("settings", [PATIENT])
async def test_trap_79_a_registration_that_was_renewed_in_time_keeps_the_socket(
    mediator: Mediator, clock: HandClock
) -> None:
    await mediator.register(BOB, lifetime_s=60)
    async with mediator.socket(BOB) as socket:
        await mediator.register(BOB, lifetime_s=120)
        clock.advance(60)
        for _ in range(4):
            assert (await socket.hear())["type"] == "PING"
            await socket.say({"type": "PONG", "timestamp": 0})
        await mediator.befriend(BOB, ALICE)
        message_id = await mediator.delivered(ALICE, BOB, "hi")
        received: list[Any] = []
        while pending(ALICE, message_id, "hi") not in received:
            received.append(await socket.hear())
        assert CONTRACTS_UPDATED in received


@pytest.mark.parametrize("layout", ["one host", "two hosts"])
async def test_a_host_that_starts_anew_closes_its_sockets_so_that_clients_ask_again(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        for index in range(mediator.settings.hosts):
            await mediator.hosts.restart(index)
        await mediator.delivered(ALICE, BOB, "hi")
        assert await socket.closing() == 1012
    async with mediator.socket(BOB) as socket:
        assert await mediator.waiting(BOB) == ["hi"]
        message_id = await mediator.delivered(ALICE, BOB, "again")
        assert await socket.hear() == pending(ALICE, message_id, "again")


async def test_a_draining_edge_closes_its_sockets_with_1001(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        stopping = asyncio.create_task(mediator.edges[0].stop())
        assert await socket.closing() == 1001
        await stopping


async def test_a_draining_edge_closes_sockets_that_are_not_authenticated_with_1001(
    mediator: Mediator,
) -> None:
    async with mediator.upgrade() as socket:
        stopping = asyncio.create_task(mediator.edges[0].stop())
        assert await socket.closing() == 1001
        await stopping
    await mediator.restart()
    assert mediator.refused() == [], "it was not refused"


@pytest.mark.parametrize(
    "settings",
    [
        {
            "limits": {"socket_buffer_bytes_max": 256 * 1024, "body_bytes_max": 256 * 1024},
            "didcomm": {"delivery_bytes_max": 64 * 1024, "message_bytes_max": 64 * 1024},
        }
    ],
)
async def test_a_reader_that_falls_behind_is_closed_and_loses_nothing(
    mediator: Mediator, friends: None
) -> None:
    """The kernel's buffers take some, the mediator's bound the rest; then the socket is cut."""
    text, messages_max = "x" * 200_000, 100
    reader, writer = await _narrow_socket(mediator, BOB)
    sent = 0
    while len(mediator.edges[0]._hub) and sent < messages_max:
        await mediator.delivered(ALICE, BOB, text)
        sent += 1
    assert 1 < sent < messages_max
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(len(text) * sent)
    writer.close()
    pagination = {"page": 0, "page_size": messages_max}
    waiting = await mediator.records(BOB, "QUERY_PENDING_EVENTS", pagination=pagination)
    assert [event["payload"] == text for event in waiting] == [True] * sent


async def _narrow_socket(
    mediator: Mediator, identity: Identity
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An authenticated WebSocket, by hand, over a connection that buffers little."""
    raw = socket_module.socket()
    raw.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", mediator.ports[0]))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.write(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    text = orjson.dumps(mediator.authenticate(identity))
    writer.write(bytes([0x81, 0xFE]) + len(text).to_bytes(2, "big") + bytes(4) + text)
    assert await reader.readexactly(2 + len(_SUCCESS)) == bytes([0x81, len(_SUCCESS)]) + _SUCCESS
    return reader, writer


async def test_a_socket_that_is_gone_is_forgotten_by_its_host(
    mediator: Mediator, friends: None
) -> None:
    async with mediator.socket(BOB) as socket:
        await socket.raw.close()
        assert (await socket.raw.receive(WAIT_S)).type is WSMsgType.CLOSED
    while mediator.hosts.running["host-0"].stats().sessions:
        await mediator.get("/health")  # gives the edge its turn
    assert (await mediator.write(ALICE, BOB, "hi")).status == 200


async def test_a_session_that_ends_late_does_not_end_the_next_one(
    mediator: Mediator, friends: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load two calls to a host are under way, and one may overtake the other."""
    monkeypatch.setattr(outbox, "_SECOND_CALL_ITEMS", 1)  # however slowly the load comes
    ending = mediator.hosts.hold(b"CloseSession")
    async with mediator.socket(BOB):
        pass
    await ending.arrived.wait()
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(BOB))
        load = [asyncio.create_task(mediator.do(ALICE, "QUERY_EVENTS")) for _ in range(60)]
        authenticated = asyncio.create_task(socket.hear())
        await asyncio.gather(*load)
        ending.released.set()
        assert await authenticated == {"type": "AUTH_SUCCESS"}
        message_id = await mediator.delivered(ALICE, BOB, "hi")
        assert await socket.hear() == pending(ALICE, message_id, "hi")
