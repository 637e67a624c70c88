"""DCTRL-0004 10.1 to 10.3: a socket before it is authenticated, and every close code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from aiohttp import WSMsgType

from actors.core.replies import ContractsUpdated, Push
from tests.edge.identities import Identity, Json, b64
from tests.edge.mediator import DAY_S, LAYOUTS, WAIT_S, HandClock, Mediator, Socket
from tests.edge.raw_socket import CLOSE, TEXT, frame, raw_socket

WINDOW_MS = 300_000
ALICE, BOB, STRANGER = Identity("alice"), Identity("bob"), Identity("stranger")


async def refused(socket: Socket) -> tuple[str, int]:
    """The code in AUTH_FAILED and the close code, which come in this order."""
    message = await socket.hear()
    assert set(message) - {"detail"} == {"type", "code"}
    assert message["type"] == "AUTH_FAILED"
    return message["code"], await socket.closing()


@pytest.fixture(autouse=True)
async def _alice_and_bob_are_registered(mediator: Mediator) -> None:
    await mediator.register(ALICE, BOB)


@pytest.mark.parametrize("settings", [{"protocol": {"socket_auth_s": 0.05}}])
async def test_trap_72_who_says_nothing_in_time_is_closed_with_4001(mediator: Mediator) -> None:
    async with mediator.upgrade() as socket:
        assert await refused(socket) == ("AUTH_TIMEOUT", 4001)


@pytest.mark.parametrize("settings", [{"protocol": {"socket_auth_s": 0.05}}])
async def test_trap_72_ping_frames_do_not_stop_the_clock(mediator: Mediator) -> None:
    async with mediator.upgrade() as socket:
        await socket.raw.ping()
        assert await refused(socket) == ("AUTH_TIMEOUT", 4001)


@pytest.mark.parametrize("settings", [{"protocol": {"socket_auth_s": 0.3}}])
async def test_trap_72_pings_that_never_pause_do_not_start_the_clock_anew(
    mediator: Mediator,
) -> None:
    async def pings(socket: Socket) -> None:
        while True:
            await socket.raw.ping()
            await asyncio.sleep(0.05)  # several times as often as the clock is long

    async with mediator.upgrade() as socket:
        pinging = asyncio.create_task(pings(socket))
        async with asyncio.timeout(WAIT_S):
            assert await refused(socket) == ("AUTH_TIMEOUT", 4001)
        pinging.cancel()
        await asyncio.wait([pinging])


def _with(**members: Any) -> Callable[[Json], Json]:
    return lambda message: {**message, **members}


def _without(name: str) -> Callable[[Json], Json]:
    return lambda message: {key: value for key, value in message.items() if key != name}


MALFORMED: dict[str, Callable[[Json], Json | str | bytes]] = {
    "not json": lambda _: "{",
    "empty": lambda _: "",
    "binary": orjson.dumps,
    "null": lambda _: "null",
    "list": lambda message: orjson.dumps([message]).decode(),
    "pong": lambda _: {"type": "PONG", "timestamp": 1},
    "duplicate key": lambda message: orjson.dumps(message).decode()[:-1] + ',"did":"x"}',
    "deep": lambda _: '{"a":' * 1_000 + "1" + "}" * 1_000,
    "type": _with(type="authenticate"),
    "timestamp as text": _with(timestamp="1800000000000"),
    "timestamp as truth": _with(timestamp=True),
    "nonce": _with(nonce="1"),
    "did": _with(did=1),
    "long did": _with(did="did:decentrl:" + "a" * 2048),
    "key id": _with(signing_key_id=None),
    "signature": _with(signature=None),
    **{
        f"no {name}": _without(name)
        for name in ("type", "did", "signing_key_id", "timestamp", "nonce", "signature")
    },
}


@pytest.mark.parametrize("fault", MALFORMED)
async def test_trap_72_anything_but_a_well_formed_message_is_closed_with_4002(
    mediator: Mediator, fault: str
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(MALFORMED[fault](mediator.authenticate(ALICE)))
        assert await refused(socket) == ("INVALID_MESSAGE", 4002)


@pytest.mark.parametrize("drift_ms", [-WINDOW_MS - 1, WINDOW_MS + 1])
async def test_a_drift_beyond_five_minutes_is_closed_with_4003(
    mediator: Mediator, drift_ms: int
) -> None:
    async with mediator.upgrade() as socket:
        at_ms = mediator.clock.now_ms + drift_ms
        await socket.say(mediator.authenticate(ALICE, timestamp=at_ms))
        assert await refused(socket) == ("TIMESTAMP_OUT_OF_RANGE", 4003)


@pytest.mark.parametrize("drift_ms", [-WINDOW_MS, WINDOW_MS, 0.5])
async def test_trap_20_a_drift_of_exactly_five_minutes_is_accepted(
    mediator: Mediator, drift_ms: float
) -> None:
    async with mediator.upgrade() as socket:
        at_ms = mediator.clock.now_ms + drift_ms
        await socket.say(mediator.authenticate(ALICE, timestamp=at_ms))
        assert await socket.hear() == {"type": "AUTH_SUCCESS"}


@pytest.mark.parametrize("did", ["", "alice", "did:web:alice.example", "did:decentrl:a:b:c:d"])
async def test_trap_75_a_did_that_does_not_resolve_is_closed_with_4004(
    mediator: Mediator, did: str
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE, did=did))
        assert await refused(socket) == ("DID_NOT_FOUND", 4004)


@pytest.mark.parametrize("key_id", ["", "#signing", ALICE.did, ALICE.did + "#prekey", BOB.key_id])
async def test_trap_75_a_key_that_is_not_in_the_document_is_closed_with_4005(
    mediator: Mediator, key_id: str
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE, signing_key_id=key_id))
        assert await refused(socket) == ("SIGNING_KEY_NOT_FOUND", 4005)


@pytest.mark.parametrize(
    "change",
    [
        _with(signature=""),
        _with(signature="not base64!"),
        _with(signature=b64(bytes(64))),
        _with(nonce="6f1d1c6e-5b7a-4b8e-9c2d-1e2f3a4b5c6d"),
        _with(timestamp=HandClock().now_ms + 1),
    ],
)
async def test_a_signature_that_does_not_hold_is_closed_with_4006(
    mediator: Mediator, change: Callable[[Json], Json]
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(change(mediator.authenticate(ALICE)))
        assert await refused(socket) == ("INVALID_SIGNATURE", 4006)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_one_who_is_not_registered_is_closed_with_4007(
    mediator: Mediator, clock: HandClock
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(STRANGER))
        assert await refused(socket) == ("NOT_REGISTERED", 4007)
    clock.advance(DAY_S)
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE))
        assert await refused(socket) == ("NOT_REGISTERED", 4007)


async def test_trap_74_the_signed_object_has_four_members_and_further_ones_mean_nothing(
    mediator: Mediator,
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say({**mediator.authenticate(ALICE), "device": "phone"})
        assert await socket.hear() == {"type": "AUTH_SUCCESS"}
    async with mediator.upgrade() as socket:
        message = mediator.authenticate(ALICE)
        signed = {name: value for name, value in message.items() if name != "signature"}
        await socket.say({**message, "signature": ALICE.sign(signed)})  # "type" signed too
        assert await refused(socket) == ("INVALID_SIGNATURE", 4006)


async def test_trap_73_the_checks_are_made_in_the_order_of_the_specification(
    mediator: Mediator,
) -> None:
    """Everything is wrong at first; each next message has the first fault mended."""
    wrong: Json = {
        "nonce": "no uuid",
        "timestamp": mediator.clock.now_ms - WINDOW_MS - 1,
        "did": "did:decentrl:unknown",
        "signing_key_id": "#other",
    }
    mended: list[Json] = [
        {},
        {"nonce": mediator.nonce()},
        {"timestamp": mediator.clock.now_ms},
        {"did": STRANGER.did},
        {"signing_key_id": STRANGER.key_id},
    ]
    seen: list[tuple[str, int]] = []
    for mend in mended:
        wrong |= mend
        async with mediator.upgrade() as socket:
            await socket.say({**mediator.authenticate(STRANGER, **wrong), "signature": "AAAA"})
            seen.append(await refused(socket))
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(STRANGER, **wrong))
        seen.append(await refused(socket))
    assert seen == [
        ("INVALID_MESSAGE", 4002),
        ("TIMESTAMP_OUT_OF_RANGE", 4003),
        ("DID_NOT_FOUND", 4004),
        ("SIGNING_KEY_NOT_FOUND", 4005),
        ("INVALID_SIGNATURE", 4006),
        ("NOT_REGISTERED", 4007),
    ]


async def test_trap_76_the_message_comes_before_the_close_frame_and_nothing_after_it(
    mediator: Mediator,
) -> None:
    async with mediator.upgrade() as socket:
        await socket.say("{")
        kinds = [(await socket.raw.receive(WAIT_S)).type for _ in range(3)]
        assert kinds == [WSMsgType.TEXT, WSMsgType.CLOSE, WSMsgType.CLOSED]


async def test_trap_28_the_nonce_of_a_socket_is_used_by_no_store(mediator: Mediator) -> None:
    message = mediator.authenticate(ALICE)
    for _ in range(2):
        async with mediator.upgrade() as socket:
            await socket.say(message)
            assert await socket.hear() == {"type": "AUTH_SUCCESS"}
    answer = await mediator.send(ALICE, {"type": "QUERY_EVENTS"}, nonce=message["nonce"])
    assert answer.status == 200


@pytest.mark.parametrize("version", ["1", "3", "5", "7"])
async def test_trap_13_the_nonce_of_a_socket_is_a_uuid_of_any_version(
    mediator: Mediator, version: str
) -> None:
    nonce = f"6f1d1c6e-5b7a-{version}b8e-9c2d-1e2f3a4b5c6d"
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE, nonce=nonce))
        assert await socket.hear() == {"type": "AUTH_SUCCESS"}


async def test_a_host_that_does_not_answer_asks_the_client_to_come_back(
    mediator: Mediator,
) -> None:
    mediator.hosts.cut("host-0")
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE))
        assert await refused(socket) == ("TEMPORARILY_UNAVAILABLE", 1013)


async def test_pushes_to_a_socket_that_is_then_refused_are_held_no_longer(
    mediator: Mediator,
) -> None:
    edge = mediator.edges[0]
    opening = mediator.hosts.hold(b"OpenSession")
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(ALICE))
        await opening.arrived.wait()
        edge.take_push(Push(ALICE.did, ContractsUpdated()))
        assert edge._listener.connections.leaving.size_bytes > 0
        mediator.hosts.cut("host-0")
        opening.released.set()
        assert await refused(socket) == ("TEMPORARILY_UNAVAILABLE", 1013)
        assert edge._listener.connections.leaving.size_bytes == 0


@pytest.mark.parametrize("settings", [{"limits": {"sockets_per_identity_max": 2}}])
async def test_an_identity_has_a_bounded_number_of_sockets(mediator: Mediator) -> None:
    async with (
        mediator.socket(ALICE),
        mediator.socket(ALICE),
        mediator.socket(BOB),
        mediator.upgrade() as one_too_many,
    ):
        await one_too_many.say(mediator.authenticate(ALICE))
        assert await refused(one_too_many) == ("TEMPORARILY_UNAVAILABLE", 1013)


@pytest.mark.parametrize(
    "settings", [{"limits": {"sockets_max": 2, "sockets_per_identity_max": 2}}]
)
async def test_an_edge_has_a_bounded_number_of_sockets(mediator: Mediator) -> None:
    async with mediator.socket(ALICE), mediator.upgrade():
        answer = await mediator.get(
            "/ws",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
        assert answer.refusal == (503, "TEMPORARILY_UNAVAILABLE")
        assert answer.headers["Retry-After"]
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize("settings", [{"limits": {"socket_frame_bytes_max": 4096}}])
async def test_a_message_beyond_the_bound_closes_the_socket(mediator: Mediator) -> None:
    async with mediator.upgrade() as socket:
        await socket.say({**mediator.authenticate(ALICE), "padding": "x" * 4096})
        assert await socket.closing() == 1009
    async with mediator.socket(ALICE) as socket:
        await socket.say("x" * 4097)
        assert await socket.closing() == 1009


@pytest.mark.parametrize("settings", [{"limits": {"socket_frame_bytes_max": 4096}}])
async def test_a_message_of_the_largest_size_is_read(mediator: Mediator) -> None:
    async with mediator.upgrade() as socket:
        await socket.say("x" * 4096)
        assert (await socket.hear())["code"] == "INVALID_MESSAGE"


@pytest.mark.parametrize(
    ("sent", "code"), [(frame(TEXT, b"{}", masked=False), 1002), (frame(TEXT, b"\xff"), 1007)]
)
async def test_what_is_no_frame_or_no_text_closes_the_socket_without_a_message(
    mediator: Mediator, sent: bytes, code: int
) -> None:
    async with raw_socket(mediator.ports[0], "/ws") as socket:
        await socket.say(sent)
        assert await socket.hear() == (CLOSE, code.to_bytes(2, "big"))


async def test_a_socket_is_not_compressed(mediator: Mediator) -> None:
    async with mediator.upgrade(compress=15) as socket:
        assert socket.raw.compress == 0
