"""How envelopes travel (RFC 0025, RFC 0044): HTTP and WebSocket on one URL, and their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import WSMsgType

from http_edge.didcomm.envelope import recipients
from http_edge.didcomm.messages import NEW_PREFIX
from http_edge.wallet import ProblemReported
from http_edge.wallet.pickup_2 import delivered
from tests.edge.didcomm.town import (
    ENVELOPE,
    SERVICE,
    Bob,
    Town,
    forwarded,
    ids,
    letter,
    opened,
    routed,
    sealed,
)
from tests.edge.mediator import WAIT_S, HandClock, Mediator
from tests.edge.people import Json

PING = "trust_ping/1.0/ping"
MEDIATE = "coordinate-mediation/1.0/mediate-request"
STATUS = "messagepickup/2.0/status-request"
TEXT_TOO = pytest.mark.parametrize("is_text", [False, True], ids=["binary", "text"])


# ---- HTTP


async def test_every_content_type_that_agents_send_is_taken(town: Town, bob: Bob) -> None:
    cases: list[Any] = [
        (ENVELOPE, ENVELOPE),
        ("application/ssi-agent-wire", "application/ssi-agent-wire"),
        ("application/jwe", "application/jwe"),
        ("application/didcomm-encrypted+json", ENVELOPE),
        ("application/didcomm-plain+json", ENVELOPE),
        ("application/didcomm-signed+json", ENVELOPE),
        ("application/json", ENVELOPE),
        ("application/json; charset=utf-8", ENVELOPE),
        ("Application/DIDComm-Envelope-Enc;charset=UTF-8", ENVELOPE),
        ("application/octet-stream", ENVELOPE),
        ("text/plain;charset=UTF-8", ENVELOPE),
        (None, ENVELOPE),
    ]
    for content_type, answered in cases:
        answer = await town.post(
            sealed(bob.connection, PING, **routed()), content_type=content_type
        )
        assert answer.status == 200
        assert answer.headers["Content-Type"] == answered
        assert (
            opened(bob.connection, answer.body)["@type"]
            == NEW_PREFIX + "trust_ping/1.0/ping_response"
        )


async def test_another_content_type_is_refused(town: Town, bob: Bob) -> None:
    cases: list[Any] = ["text/html", "multipart/form-data", "image/png", "x/y"]
    for content_type in cases:
        answer = await town.post(letter(bob.key, "one"), content_type=content_type)
        assert (answer.status, answer.json) == (415, {"error": "unsupported-media-type"})
        assert await bob.drained() == []


async def test_a_compressed_body_is_refused(town: Town, bob: Bob) -> None:
    url = town.mediator.url("/didcomm")
    async with town.session.post(url, data=letter(bob.key, "one"), compress="gzip") as answer:
        assert answer.status == 415


async def test_what_needs_no_answer_is_accepted_without_one(town: Town, bob: Bob) -> None:
    for body in (letter(bob.key, "one"), sealed(bob.connection, PING)):
        answer = await town.post(body)
        assert (answer.status, answer.body) == (202, b"")


async def test_a_browser_may_ask(town: Town) -> None:
    preflight = await town.mediator.request(
        "OPTIONS",
        "/didcomm",
        headers={
            "Origin": "https://wallet.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        },
    )
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert preflight.headers["Access-Control-Allow-Headers"] == "Content-Type"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    for refused in (await town.post(b"garbage"), await town.post(b"", content_type="text/html")):
        assert refused.headers["Access-Control-Allow-Origin"] == "*"


async def test_other_methods_are_refused(town: Town) -> None:
    assert (await town.mediator.get("/didcomm")).status == 426
    assert (await town.mediator.request("PUT", "/didcomm", data=b"{}")).status == 405


@pytest.mark.parametrize("settings", [{"didcomm": {"enabled": False}}])
async def test_switched_off_nothing_of_it_is_there(mediator: Mediator, town: Town) -> None:
    assert (await town.post(b"{}")).status == 404
    assert (await mediator.get("/didcomm")).status == 404
    assert (await mediator.get("/invitation")).status == 404
    assert (await mediator.get("/")).status == 200


@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": 16_384}}])
async def test_the_disclosed_size_is_the_bound_over_http(town: Town, bob: Bob) -> None:
    (size,) = await bob.wallet.discover([("constraint", "max_receive_bytes")])
    assert size.id == "max_receive_bytes"
    fits = sealed(bob.connection, PING, **routed()).ljust(16_384)
    assert (await town.post(fits)).status == 200
    refused = await town.post(fits + b" ")
    assert (refused.status, refused.json) == (413, {"error": "message-too-large"})


# ---- return route


async def test_an_answer_without_a_return_route_waits_in_the_queue(town: Town, bob: Bob) -> None:
    answer = await town.say(bob.connection, PING, **{"@id": "question"})
    assert (answer.status, answer.body) == (202, b"")
    (picked,) = await bob.wallet.fetch(10)
    waited = opened(bob.connection, picked.envelope)
    assert waited["~thread"] == {"thid": "question"}


async def test_return_route_thread_covers_that_thread_alone_over_http(town: Town, bob: Bob) -> None:
    own = await town.say(
        bob.connection,
        PING,
        **routed("thread", return_route_thread="t-1"),
        **{"~thread": {"thid": "t-1"}},
    )
    assert opened(bob.connection, own.body)["~thread"] == {"thid": "t-1"}
    other = await town.say(bob.connection, PING, **routed("thread", return_route_thread="t-2"))
    assert (other.status, other.body) == (202, b"")
    assert (await bob.wallet.status()).message_count == 1


async def test_return_route_none_and_nonsense_open_nothing(town: Town, bob: Bob) -> None:
    wishes: list[Json] = [routed("none"), routed("ALL"), {"~transport": 1}, {"~transport": {}}]
    for wish in wishes:
        assert (await town.say(bob.connection, PING, **wish)).body == b""
    assert (await bob.wallet.status()).message_count == 4


async def test_a_socket_remembers_the_widest_return_route(town: Town, bob: Bob) -> None:
    async with town.socket() as socket:
        for wish in ({}, routed("thread"), {}, routed("all"), routed("none")):
            await socket.raw.send_bytes(sealed(bob.connection, MEDIATE, **wish))
        answers = [await socket.data() for _ in range(3)]
        for answer in answers:
            assert opened(bob.connection, answer)["@type"].endswith("/mediate-grant")
    # The first and the third had nowhere to go back.
    assert (await bob.wallet.status()).message_count == 2


async def test_a_thread_stays_open_on_its_socket(town: Town, bob: Bob) -> None:
    async with town.socket() as socket:
        thread = {"~thread": {"thid": "t-1"}}
        await socket.raw.send_bytes(sealed(bob.connection, PING, **thread, **routed("thread")))
        await socket.data()
        await socket.raw.send_bytes(sealed(bob.connection, PING, **thread))
        assert opened(bob.connection, await socket.data())["~thread"] == {"thid": "t-1"}


# ---- WebSocket


@TEXT_TOO
async def test_text_and_binary_frames_are_read_and_binary_ones_written(
    town: Town, bob: Bob, is_text: bool
) -> None:
    async with town.socket() as socket:
        body = sealed(bob.connection, PING, **routed())
        await (socket.raw.send_str(body.decode()) if is_text else socket.raw.send_bytes(body))
        opened(bob.connection, await socket.data())


async def test_a_ping_of_the_client_is_answered(town: Town) -> None:
    async with town.socket(autoping=False) as socket:
        await socket.raw.ping(b"are you there")
        pong = await socket.raw.receive(WAIT_S)
        assert (pong.type, bytes(pong.data)) == (WSMsgType.PONG, b"are you there")


@pytest.mark.parametrize("settings", [{"didcomm": {"ping_interval_s": 0.1}}])
async def test_the_server_pings_and_gives_a_silent_client_up(town: Town, bob: Bob) -> None:
    async with bob.wallet.live() as patient, town.socket(autoping=False) as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        await socket.data()
        kinds = set()
        while (message := await socket.raw.receive(WAIT_S)).type is WSMsgType.PING:
            kinds.add(message.type)
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1011)
        await patient.status()  # who answers the pings stays


async def test_several_wallets_share_a_socket_and_each_gets_its_own(town: Town) -> None:
    bobs = await town.bobs(3)
    async with town.socket() as socket:
        for bob in bobs:
            await socket.raw.send_bytes(
                sealed(
                    bob.connection,
                    "messagepickup/2.0/live-delivery-change",
                    live_delivery=True,
                    **routed(),
                )
            )
            assert opened(bob.connection, await socket.data())["live_delivery"] is True
        for index, bob in enumerate(bobs):
            await town.write(bob, f"for {index}")
        got: dict[int, str] = {}
        while len(got) < 3:
            frame = await socket.data()
            sealed_for = recipients(frame)
            assert sealed_for is not None
            (kid,) = sealed_for.kids
            (index,) = (i for i, bob in enumerate(bobs) if bob.connection.key.public == kid)
            (picked,) = delivered(opened(bobs[index].connection, frame))
            got[index] = bobs[index].read(picked)
        assert got == {index: f"for {index}" for index in range(3)}


async def test_a_message_that_wants_no_answer_counts_though_the_socket_closes_at_once(
    town: Town, bob: Bob
) -> None:
    await town.write(bob, "one", "two")
    picked = ids(await bob.wallet.fetch(10))
    async with town.socket() as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, "messagepickup/2.0/messages-received", message_id_list=picked)
        )
    async with asyncio.timeout(WAIT_S):
        while (await bob.wallet.status()).message_count:
            pass  # each status is a round trip


async def test_a_forward_over_a_socket_is_queued_and_not_answered(town: Town, bob: Bob) -> None:
    async with town.socket() as socket:
        await socket.raw.send_bytes(forwarded(bob.key.hex(), {}, **routed()))
        assert b"not-a-message" in await socket.data()
        await socket.raw.send_bytes(letter(bob.key, "one"))
        await socket.raw.send_bytes(sealed(bob.connection, STATUS, **routed()))
        assert opened(bob.connection, await socket.data())["message_count"] == 1


@TEXT_TOO
@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": 16_384}}])
async def test_the_disclosed_size_is_the_bound_over_a_socket(
    town: Town, bob: Bob, is_text: bool
) -> None:
    async with town.socket() as socket:
        fits = sealed(bob.connection, PING, **routed()).ljust(16_384)
        await (socket.raw.send_str(fits.decode()) if is_text else socket.raw.send_bytes(fits))
        opened(bob.connection, await socket.data())
        over = fits + b" "
        await (socket.raw.send_str(over.decode()) if is_text else socket.raw.send_bytes(over))
        assert await socket.ended() == 1009


@pytest.mark.parametrize("settings", [{"didcomm": {"socket_first_message_s": 0.2}}])
async def test_a_socket_that_serves_nobody_is_closed(town: Town, bob: Bob) -> None:
    async with town.socket() as silent, town.socket() as raving, town.socket() as used:
        await raving.raw.send_bytes(b"garbage")
        await used.raw.send_bytes(letter(bob.key, "one"))
        assert b"not-an-envelope" in await raving.data()
        assert await silent.ended() == 1008
        assert await raving.ended() == 1008
        await used.raw.send_bytes(sealed(bob.connection, STATUS, **routed()))
        assert opened(bob.connection, await used.data())["message_count"] == 1


@pytest.mark.parametrize("settings", [{"limits": {"sockets_per_identity_max": 2}}])
async def test_beyond_the_bound_a_wallets_socket_gets_answers_and_no_live_mode(
    town: Town, bob: Bob
) -> None:
    async with bob.wallet.live() as live, bob.wallet.live(), bob.wallet.socket() as third:
        with pytest.raises(ProblemReported) as told:
            await bob.wallet.over(third).live_delivery(on=True)
        assert told.value.code == "e.m.live-mode-not-supported"
        await bob.wallet.over(third).ping()
        await live.status()


async def test_an_edge_that_goes_away_says_so(town: Town, bob: Bob) -> None:
    async with town.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        opened(bob.connection, await socket.data())
        restarting = asyncio.create_task(town.mediator.restart())
        assert await socket.ended() == 1001
        await restarting
    await bob.wallet.ping()


# ---- rates


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 6}}])
async def test_a_sender_that_asks_too_often_waits_and_others_do_not(
    town: Town, bob: Bob, clock: HandClock
) -> None:
    carol = await town.bob()
    answers = [await town.say(bob.connection, PING, **routed()) for _ in range(6)]
    limited = answers[-1]
    assert (limited.status, limited.json) == (429, {"error": "rate-limited"})
    assert limited.headers["Retry-After"] == "1"
    async with town.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        assert b"rate-limited" in await socket.data()
    await town.write(bob, "one")  # a forward is by nobody
    await carol.wallet.ping()
    clock.advance(1)
    await bob.wallet.ping()


@pytest.mark.parametrize("settings", [{"didcomm": {"socket_messages_per_s_max": 4}}])
async def test_a_socket_that_floods_is_slowed_down_and_loses_nothing(town: Town, bob: Bob) -> None:
    now_s = asyncio.get_running_loop().time
    async with town.socket() as socket:
        started_s = now_s()
        for index in range(10):  # two more than the burst
            question = sealed(bob.connection, PING, **routed(), **{"@id": f"{index}"})
            await socket.raw.send_bytes(question)
        answers = [opened(bob.connection, await socket.data()) for _ in range(10)]
        assert [answer["~thread"]["thid"] for answer in answers] == [f"{i}" for i in range(10)]
        assert now_s() - started_s >= 0.4


@pytest.mark.parametrize(
    "settings", [{"limits": {"sockets_max": 1, "sockets_per_identity_max": 1}}]
)
async def test_sockets_beyond_the_bound_are_refused(town: Town) -> None:
    async with town.socket():
        refused = await town.mediator.request(
            "GET",
            "/didcomm",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        )
        assert refused.status == 503


def test_the_service_key_follows_from_the_mediators_keys() -> None:
    """A backup of the key file covers it; were it to change, no wallet would find its mediator."""
    public = "a670add54589992203330e877039581d809d383fe7d745bceb03a194c28c2efb"
    assert SERVICE.public.hex() == public
