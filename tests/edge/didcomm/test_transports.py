"""How envelopes travel (RFC 0025, RFC 0044): HTTP and WebSocket on one URL, and their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from http_edge.clients.didcomm import ProblemReported
from http_edge.clients.didcomm.pickup import delivered
from http_edge.didcomm import inbound_sockets
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import ask_of, connected
from tests.edge.didcomm.wallet_network import (
    ENVELOPE,
    SERVICE,
    Bob,
    WalletNetwork,
    envelope_of,
    forwarded,
    ids,
    opened,
    routed,
    sealed,
)
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S, HandClock, Mediator
from tests.unit.didcomm.envelopes_v1 import sealed_in
from tests.unit.outbound.agent_host import Gate, agent_host

PING = "trust_ping/1.0/ping"
MEDIATE = "coordinate-mediation/1.0/mediate-request"
STATUS = "messagepickup/2.0/status-request"
FETCH = "messagepickup/2.0/delivery-request"
TEXT_TOO = pytest.mark.parametrize("is_text", [False, True], ids=["binary", "text"])


# ---- HTTP


async def test_an_answer_for_a_stranger_that_can_neither_go_back_nor_wait_is_no_failure(
    network: WalletNetwork,
) -> None:
    answer = await network.say(network.stranger().connection, PING)
    assert (answer.status, answer.body) == (202, b"")


async def test_every_content_type_that_agents_send_is_taken(
    network: WalletNetwork, bob: Bob
) -> None:
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
        answer = await network.post(
            sealed(bob.connection, PING, **routed()), content_type=content_type
        )
        assert answer.status == 200
        assert answer.headers["Content-Type"] == answered
        assert (
            opened(bob.connection, answer.body)["@type"]
            == NEW_PREFIX + "trust_ping/1.0/ping_response"
        )


async def test_another_content_type_is_refused(network: WalletNetwork, bob: Bob) -> None:
    cases: list[Any] = ["text/html", "multipart/form-data", "image/png", "x/y"]
    for content_type in cases:
        answer = await network.post(envelope_of(bob.key, "one"), content_type=content_type)
        assert (answer.status, answer.json) == (415, {"error": "unsupported-media-type"})
        assert await bob.drained() == []


async def test_the_parameters_of_a_content_type_are_not_parsed(
    network: WalletNetwork, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_request: web.BaseRequest, raw: str) -> None:
        pytest.fail(f"{raw} is parsed")

    monkeypatch.setattr(web.BaseRequest, "_parse_content_type", parsed)
    for semicolons in (";", ";" * 15_000, ';="' * 5_000):
        for media_type, status in (("Application/JSON ", 200), ("a/b", 415), (" ", 200)):
            answer = await network.post(
                sealed(bob.connection, PING, **routed()), content_type=media_type + semicolons
            )
            assert answer.status == status


async def test_a_compressed_body_is_refused(network: WalletNetwork, bob: Bob) -> None:
    url = network.mediator.url("/didcomm")
    async with network.session.post(
        url, data=envelope_of(bob.key, "one"), compress="gzip"
    ) as answer:
        assert answer.status == 415


async def test_what_needs_no_answer_is_accepted_without_one(
    network: WalletNetwork, bob: Bob
) -> None:
    for body in (envelope_of(bob.key, "one"), sealed(bob.connection, PING)):
        answer = await network.post(body)
        assert (answer.status, answer.body) == (202, b"")


async def test_a_browser_may_ask(network: WalletNetwork) -> None:
    preflight = await network.mediator.request(
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
    for refused in (
        await network.post(b"garbage"),
        await network.post(b"", content_type="text/html"),
    ):
        assert refused.headers["Access-Control-Allow-Origin"] == "*"


async def test_other_methods_are_refused(network: WalletNetwork) -> None:
    assert (await network.mediator.get("/didcomm")).status == 426
    assert (await network.mediator.request("PUT", "/didcomm", data=b"{}")).status == 405


@pytest.mark.parametrize("settings", [{"didcomm": {"enabled": False}}])
async def test_switched_off_nothing_of_it_is_there(
    mediator: Mediator, network: WalletNetwork
) -> None:
    assert (await network.post(b"{}")).status == 404
    assert (await mediator.get("/didcomm")).status == 404
    assert (await mediator.get("/invitation")).status == 404
    assert (await mediator.get("/")).status == 200


@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": 65_536}}])
async def test_the_disclosed_size_is_the_bound_over_http(network: WalletNetwork, bob: Bob) -> None:
    (size,) = await bob.wallet.discover([("constraint", "max_receive_bytes")])
    assert size.id == "max_receive_bytes"
    fits = sealed(bob.connection, PING, **routed()).ljust(65_536)
    assert (await network.post(fits)).status == 200
    refused = await network.post(fits + b" ")
    assert (refused.status, refused.json) == (413, {"error": "message-too-large"})


# ---- return route


async def test_an_answer_without_a_return_route_waits_in_the_queue(
    network: WalletNetwork, bob: Bob
) -> None:
    answer = await network.say(bob.connection, PING, **{"@id": "question"})
    assert (answer.status, answer.body) == (202, b"")
    (picked,) = await bob.wallet.fetch(10)
    waited = opened(bob.connection, picked.envelope)
    assert waited["~thread"] == {"thid": "question"}


async def test_return_route_thread_covers_that_thread_alone_over_http(
    network: WalletNetwork, bob: Bob
) -> None:
    own = await network.say(
        bob.connection,
        PING,
        **routed("thread", return_route_thread="t-1"),
        **{"~thread": {"thid": "t-1"}},
    )
    assert opened(bob.connection, own.body)["~thread"] == {"thid": "t-1"}
    other = await network.say(bob.connection, PING, **routed("thread", return_route_thread="t-2"))
    assert (other.status, other.body) == (202, b"")
    assert (await bob.wallet.status()).message_count == 1


async def test_return_route_none_and_nonsense_open_nothing(
    network: WalletNetwork, bob: Bob
) -> None:
    wishes: list[Json] = [routed("none"), routed("ALL"), {"~transport": 1}, {"~transport": {}}]
    for wish in wishes:
        assert (await network.say(bob.connection, PING, **wish)).body == b""
    assert (await bob.wallet.status()).message_count == 4


async def test_a_socket_remembers_the_widest_return_route(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        for wish in ({}, routed("thread"), {}, routed("all"), routed("none")):
            await socket.raw.send_bytes(sealed(bob.connection, MEDIATE, **wish))
        answers = [await socket.data() for _ in range(3)]
        for answer in answers:
            assert opened(bob.connection, answer)["@type"].endswith("/mediate-grant")
    # The first and the third had nowhere to go back.
    assert (await bob.wallet.status()).message_count == 2


async def test_a_thread_stays_open_on_its_socket(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        thread = {"~thread": {"thid": "t-1"}}
        await socket.raw.send_bytes(sealed(bob.connection, PING, **thread, **routed("thread")))
        await socket.data()
        await socket.raw.send_bytes(sealed(bob.connection, PING, **thread))
        assert opened(bob.connection, await socket.data())["~thread"] == {"thid": "t-1"}


# ---- WebSocket


@TEXT_TOO
async def test_text_and_binary_frames_are_answered_and_followed_by_frames_of_their_kind(
    network: WalletNetwork, bob: Bob, is_text: bool
) -> None:
    """Over one socket: the other kind comes first, so that the last frame decides."""
    change = "messagepickup/2.0/live-delivery-change"
    async with network.socket() as socket:
        for in_text in (not is_text, is_text):
            body = sealed(bob.connection, change, live_delivery=True, **routed())
            await (socket.raw.send_str(body.decode()) if in_text else socket.raw.send_bytes(body))
            answer = await (socket.text() if in_text else socket.data())
            assert opened(bob.connection, answer)["live_delivery"] is True
        await network.write(bob, "pushed")
        pushed = await (socket.text() if is_text else socket.data())
        (picked,) = delivered(opened(bob.connection, pushed))
        assert bob.read(picked) == "pushed"


async def test_a_ping_of_the_client_is_answered(network: WalletNetwork) -> None:
    async with network.socket(autoping=False) as socket:
        await socket.raw.ping(b"are you there")
        pong = await socket.raw.receive(WAIT_S)
        assert (pong.type, bytes(pong.data)) == (WSMsgType.PONG, b"are you there")


@pytest.mark.parametrize("settings", [{"didcomm": {"ping_interval_s": 0.1}}])
async def test_the_server_pings_and_gives_a_silent_client_up(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as patient, network.socket(autoping=False) as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        await socket.data()
        kinds = set()
        while (message := await socket.raw.receive(WAIT_S)).type is WSMsgType.PING:
            kinds.add(message.type)
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1011)
        await patient.status()  # who answers the pings stays


async def test_several_wallets_share_a_socket_and_each_gets_its_own(network: WalletNetwork) -> None:
    bobs = await network.bobs(3)
    async with network.socket() as socket:
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
            await network.write(bob, f"for {index}")
        got: dict[int, str] = {}
        while len(got) < 3:
            frame = await socket.data()
            sealed_for = sealed_in(frame)
            assert sealed_for is not None
            (kid,) = sealed_for.kids
            (index,) = (i for i, bob in enumerate(bobs) if bob.connection.key.public == kid)
            (picked,) = delivered(opened(bobs[index].connection, frame))
            got[index] = bobs[index].read(picked)
        assert got == {index: f"for {index}" for index in range(3)}


async def test_a_message_that_wants_no_answer_counts_though_the_socket_closes_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one", "two")
    picked = ids(await bob.wallet.fetch(10))
    async with network.socket() as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, "messagepickup/2.0/messages-received", message_id_list=picked)
        )
    async with asyncio.timeout(WAIT_S):
        while (await bob.wallet.status()).message_count:
            pass  # each status is a round trip


async def test_a_forward_over_a_socket_is_queued_and_not_answered(
    network: WalletNetwork, bob: Bob
) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(forwarded(bob.key.hex(), {}, **routed()))
        assert await socket.ended_because() == (4400, "not-a-message")
    async with network.socket() as socket:
        await socket.raw.send_bytes(envelope_of(bob.key, "one"))
        await socket.raw.send_bytes(sealed(bob.connection, STATUS, **routed()))
        assert opened(bob.connection, await socket.data())["message_count"] == 1


@TEXT_TOO
@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": 65_536}}])
async def test_the_disclosed_size_is_the_bound_over_a_socket(
    network: WalletNetwork, bob: Bob, is_text: bool
) -> None:
    async with network.socket() as socket:
        fits = sealed(bob.connection, PING, **routed()).ljust(65_536)
        await (socket.raw.send_str(fits.decode()) if is_text else socket.raw.send_bytes(fits))
        opened(bob.connection, await (socket.text() if is_text else socket.data()))
        over = fits + b" "
        await (socket.raw.send_str(over.decode()) if is_text else socket.raw.send_bytes(over))
        assert await socket.closing() == 1009


async def test_a_socket_without_a_message_is_closed(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as used:
        await used.raw.send_bytes(envelope_of(bob.key, "one"))
        async with asyncio.timeout(WAIT_S):
            while not (await bob.wallet.status()).message_count:
                pass
        network.bound_silence()
        await used.raw.ping()  # so that it is read on, within the new bound
        async with network.socket() as silent:
            assert await silent.closing() == 1008
        async with network.socket() as raving:
            await raving.raw.ping(b"here")
            assert await raving.closing() == 1008
        await used.raw.send_bytes(sealed(bob.connection, STATUS, **routed()))
        assert opened(bob.connection, await used.data())["message_count"] == 1


@pytest.mark.parametrize("settings", [{"limits": {"sockets_per_identity_max": 2}}])
async def test_beyond_the_bound_a_wallets_socket_gets_answers_and_no_live_mode(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live, bob.wallet.live(), bob.wallet.socket() as third:
        with pytest.raises(ProblemReported) as reported:
            await bob.wallet.over(third).live_delivery(on=True)
        assert reported.value.code == "e.m.live-mode-not-supported"
        await bob.wallet.over(third).ping()
        await live.status()


async def test_beyond_the_bound_of_wallets_on_a_socket_one_more_gets_answers_and_no_live_mode(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound_sockets, "_PEERS_MAX", 1)
    first, second = await network.bobs(2)
    change = "messagepickup/2.0/live-delivery-change"
    async with network.socket() as socket:

        async def answer(bob: Bob, kind: str, **members: Any) -> Json:
            await socket.raw.send_bytes(sealed(bob.connection, kind, **members, **routed()))
            return opened(bob.connection, await socket.data())

        assert (await answer(first, change, live_delivery=True))["live_delivery"] is True
        report = await answer(second, change, live_delivery=True)
        assert report["description"]["code"] == "e.m.live-mode-not-supported"
        assert (await answer(second, STATUS))["message_count"] == 0
        assert (await answer(first, change, live_delivery=True))["live_delivery"] is True


@pytest.mark.parametrize(("route", "peers_max"), [("thread", 1), ("all", 0)])
async def test_what_any_wallet_got_on_a_socket_is_offered_again_when_that_ends(
    network: WalletNetwork,
    bob: Bob,
    monkeypatch: pytest.MonkeyPatch,
    *,
    route: str,
    peers_max: int,
) -> None:
    monkeypatch.setattr(inbound_sockets, "_PEERS_MAX", peers_max)
    await network.write(bob, "one")
    async with network.socket() as socket:
        fetch = sealed(bob.connection, FETCH, limit=1, **routed(route))
        await socket.raw.send_bytes(fetch)
        assert len(opened(bob.connection, await socket.data())["~attach"]) == 1
        assert await bob.wallet.fetch() == []
    async with asyncio.timeout(WAIT_S):
        while not (again := await bob.wallet.fetch()):
            pass
    assert bob.texts(again) == ["one"]


async def test_an_edge_that_goes_away_says_so(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        opened(bob.connection, await socket.data())
        restarting = asyncio.create_task(network.mediator.restart())
        assert await socket.closing() == 1001
        await restarting
    await bob.wallet.ping()


# ---- rates


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 6}}])
async def test_a_sender_that_asks_too_often_waits_and_others_do_not(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    carol = await network.bob()
    answers = [await network.say(bob.connection, PING, **routed()) for _ in range(6)]
    limited = answers[-1]
    assert (limited.status, limited.json) == (429, {"error": "rate-limited"})
    assert limited.headers["Retry-After"] == "1"
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PING, **routed()))
        report = opened(bob.connection, await socket.data())
        assert report["description"]["code"] == "rate-limited"
    await network.write(bob, "one")  # a forward has no proven sender
    await carol.wallet.ping()
    clock.advance(1)
    await bob.wallet.ping()


@pytest.mark.parametrize("settings", [{"didcomm": {"socket_messages_per_s_max": 4}}])
async def test_a_socket_that_floods_is_slowed_down_and_loses_nothing(
    network: WalletNetwork, bob: Bob
) -> None:
    now_s = asyncio.get_running_loop().time
    async with network.socket() as socket:
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
async def test_sockets_beyond_the_bound_are_refused(network: WalletNetwork) -> None:
    async with network.socket():
        refused = await network.mediator.request(
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


# ---- endpoints of agents


@pytest.mark.parametrize(
    "settings", [{"outbound": {"allowed_networks": ["127.0.0.0/8"], "timeout_s": 120}}]
)
async def test_a_stop_does_not_wait_for_an_endpoint_that_never_answers(
    network: WalletNetwork,
) -> None:
    async with agent_host() as far:
        far.answer = Gate()
        wallet = await connected(network, did_method="peer2", endpoint=far.url(host="127.0.0.1"))
        ping = ask_of("trust-ping/2.0/ping", response_requested=True)
        posted = await network.post(wallet.connection.pack(ping), content_type=MEDIA_TYPE)
        assert posted.status == 202
        await far.has(1)
        await asyncio.wait_for(network.mediator.restart(), WAIT_S)
        # What broke off is still queued.
        await far.has(2)
        assert len(set(far.received)) == 1
