from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from aiohttp.http import WS_KEY
from yarl import URL

from http_edge.didcomm.outbound.destinations import (
    DeliveryOutcome,
    Destinations,
    _session,
    read_endpoint,
)
from http_edge.didcomm.outbound.responsiveness import Responsiveness
from http_edge.dids.addresses import Permitted
from http_edge.settings.settings import Outbound
from tests.cut_off import cut_off
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate, agent_host, status
from tests.unit.outbound.delivery_network import LOOPBACK, on_loopback
from tests.unit.test_hang_watch import clock_set_ahead
from tests.unit.wire.https_host import https_host

ENVELOPE = b'{"protected":"e30"}'


def way_out(
    host: AgentHost,
    *,
    permitted: Permitted | None = on_loopback,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> Destinations:
    """What is tested; by default it may reach this machine."""
    outbound = Outbound.model_validate(settings)
    return Destinations(outbound, lookup=host.lookup, permitted=permitted, tls=tls)


async def deliver(
    destinations: Destinations, url: str, *sent: bytes
) -> list[DeliveryOutcome] | None:
    """What became of these envelopes; None if the endpoint has no permitted address."""
    endpoint = read_endpoint(url)
    assert endpoint is not None, url
    async with destinations.to(endpoint) as destination:
        if destination is None:
            return None
        return [await destination.send(envelope) for envelope in sent or [ENVELOPE]]


async def test_an_envelope_is_posted_to_the_very_endpoint(agents: AgentHost) -> None:
    assert await deliver(way_out(agents), agents.url()) == [DeliveryOutcome.ACCEPTED]
    (request,) = agents.requests
    assert (request.method, request.path_qs) == ("POST", "/in?token=secret")
    assert request.host == f"agent.example:{agents.port}"
    assert request.headers["Content-Type"] == "application/didcomm-envelope-enc"
    assert request.headers["Content-Length"] == str(len(ENVELOPE))
    assert request.headers["User-Agent"] == "poste"
    assert agents.received == [ENVELOPE]


async def test_a_name_is_looked_up_once_for_all_messages_of_a_turn(agents: AgentHost) -> None:
    async def closing(_: bytes) -> web.StreamResponse:
        response = web.Response()
        response.force_close()
        return response

    agents.answer = closing
    outcomes = await deliver(way_out(agents), agents.url(), b"1", b"2", b"3")
    assert outcomes == [DeliveryOutcome.ACCEPTED] * 3
    assert agents.looked_up == [("agent.example", agents.port)]


async def test_the_messages_of_a_turn_share_a_connection(agents: AgentHost) -> None:
    peers = set()

    async def remember(_: bytes) -> web.StreamResponse:
        transport = agents.requests[-1].transport
        assert transport is not None
        peers.add(transport.get_extra_info("peername"))
        return web.Response(status=202)

    agents.answer = remember
    assert (
        await deliver(way_out(agents), agents.url(), b"1", b"2") == [DeliveryOutcome.ACCEPTED] * 2
    )
    assert len(peers) == 1


async def test_a_large_envelope_arrives_whole(agents: AgentHost) -> None:
    large = b"a" * 1_000_000
    assert await deliver(way_out(agents), agents.url(), large) == [DeliveryOutcome.ACCEPTED]
    assert agents.received == [large]


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
async def test_every_success_is_an_acceptance(agents: AgentHost, code: int) -> None:
    agents.answer = status(code)
    assert await deliver(way_out(agents), agents.url()) == [DeliveryOutcome.ACCEPTED]


@pytest.mark.parametrize("code", [404, 410])
async def test_an_answer_of_the_message_or_of_the_endpoint_is_neither(
    agents: AgentHost, code: int
) -> None:
    agents.answer = status(code)
    assert await deliver(way_out(agents), agents.url()) == [DeliveryOutcome.DECLINED]


@pytest.mark.parametrize("code", [401, 403, 429, 502, 503, 504])
async def test_an_error_that_says_nothing_of_the_message_is_an_endpoint_that_fails(
    agents: AgentHost, code: int
) -> None:
    agents.answer, destinations = status(code), way_out(agents, slow_s=60, timeout_s=120)
    assert await deliver(destinations, agents.url()) == [DeliveryOutcome.UNAVAILABLE]
    assert destinations._slots.responsiveness(f" {agents.url()}") is Responsiveness.NEW


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/there", "/there"])
async def test_a_redirect_is_not_followed(
    agents: AgentHost, code: int, scheme: str, place: str
) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        requests.append(request.path)
        return web.Response(status=code, headers={"Location": place.format(port=agents.port)})

    requests: list[str] = []
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", redirect)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        port = runner.addresses[0][1]
        url = f"{scheme}://agent.example:{port}/here"
        assert await deliver(way_out(agents), url) == [DeliveryOutcome.UNAVAILABLE]
    finally:
        await runner.cleanup()
    assert requests == ["/here"]
    assert agents.requests == []


async def test_the_body_of_an_answer_is_not_read(agents: AgentHost) -> None:
    body = Gate()

    async def head(envelope: bytes) -> web.StreamResponse:
        transport = agents.requests[-1].transport
        assert transport is not None
        transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        return await body(envelope)

    agents.answer = head
    destinations = way_out(agents, timeout_s=WAIT_S)
    assert await deliver(destinations, agents.url()) == [DeliveryOutcome.ACCEPTED]
    body.released.set()


async def test_cookies_are_not_kept(agents: AgentHost) -> None:
    agents.answer = status(200, **{"Set-Cookie": "a=b"})
    await deliver(way_out(agents), agents.url(), b"1", b"2")
    assert all("Cookie" not in request.headers for request in agents.requests)


async def test_a_proxy_of_the_environment_is_not_used(
    agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "ws_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await deliver(way_out(agents), agents.url()) == [DeliveryOutcome.ACCEPTED]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fd00::1]"]
)
@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss"])
async def test_by_default_an_address_inside_is_refused(
    agents: AgentHost, host: str, scheme: str
) -> None:
    destinations = way_out(agents, permitted=None)
    assert await deliver(destinations, agents.url(scheme, host)) is None
    assert agents.looked_up == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["192.168.1.1"],
        ["::ffff:10.0.0.1"],
        ["93.184.215.14", "127.0.0.1"],
        ["127.0.0.1", "93.184.215.14"],
        ["fe80::1%eth0"],
        [],
    ],
    ids=str,
)
async def test_by_default_a_name_with_an_address_inside_is_refused(
    agents: AgentHost, addresses: Sequence[str]
) -> None:
    agents.addresses = addresses
    assert await deliver(way_out(agents, permitted=None), agents.url()) is None
    assert agents.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "agent.example"])
async def test_a_network_that_the_operator_allows_can_be_reached(
    agents: AgentHost, host: str
) -> None:
    allowed = way_out(agents, permitted=None, allowed_networks=["127.0.0.0/29", "fd00::/8"])
    assert await deliver(allowed, agents.url(host=host)) == [DeliveryOutcome.ACCEPTED]
    other = way_out(agents, permitted=None, allowed_networks=["127.0.0.8/29", "fd00::/8"])
    assert await deliver(other, agents.url(host=host)) is None


async def test_a_name_that_changes_its_address_is_reached_where_it_was_checked(
    agents: AgentHost,
) -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    destinations = Destinations(Outbound(), lookup=rebinding, permitted=on_loopback)
    assert await deliver(destinations, agents.url(), b"1", b"2") == [DeliveryOutcome.ACCEPTED] * 2
    assert len(answers) == 1


async def test_of_several_addresses_one_that_works_is_enough(agents: AgentHost) -> None:
    agents.addresses = ["::1", "127.0.0.1"]
    destinations = way_out(agents, permitted=lambda *_: True)
    assert await deliver(destinations, agents.url()) == [DeliveryOutcome.ACCEPTED]


async def test_of_very_many_addresses_of_a_name_the_first_four_are_tried(
    agents: AgentHost,
) -> None:
    agents.addresses = [f"127.0.0.{number}" for number in range(1, 7)]
    destinations = way_out(agents, permitted=lambda *_: True)
    endpoint = read_endpoint(agents.url())
    assert endpoint is not None
    async with destinations.to(endpoint):
        held = destinations._slots._pools[Responsiveness.NEW].at.keys()
        assert {each for each in held if each[0].isdigit()} == {
            *agents.addresses[:4],
            "127.0.0.0/24",
        }


async def test_a_name_that_does_not_resolve_has_no_address(agents: AgentHost) -> None:
    async def nowhere(_host: str, _port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    destinations = Destinations(Outbound(), lookup=nowhere)
    assert await deliver(destinations, agents.url()) is None
    assert destinations._slots.responsiveness(f" {agents.url()}") is Responsiveness.NEW


async def test_a_name_service_that_never_answers_is_given_up_and_slow(agents: AgentHost) -> None:
    async def silent(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    destinations = Destinations(Outbound(timeout_s=0.05), lookup=silent)
    assert await deliver(destinations, agents.url()) is None
    assert destinations._slots.responsiveness(f" {agents.url()}") is Responsiveness.SLOW


async def test_an_endpoint_without_a_server_is_not_reached() -> None:
    async with agent_host(running=False) as down:
        for scheme in ("http", "ws"):
            assert await deliver(way_out(down), down.url(scheme)) == [DeliveryOutcome.NOT_REACHED]


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_an_endpoint_that_never_answers_is_given_up(
    agents: AgentHost, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    agents.answer = gate = Gate()
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    delivering = asyncio.create_task(deliver(way_out(agents, timeout_s=30), agents.url(scheme)))
    await agents.has(1)
    goes_on(30)
    assert await delivering == [DeliveryOutcome.TIMED_OUT]
    gate.released.set()


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("said", [b"", b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 999999 ?\r\n\r\n"])
async def test_what_is_no_http_is_unavailable(agents: AgentHost, scheme: str, said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, LOOPBACK, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"{scheme}://agent.example:{port}/"
        assert await deliver(way_out(agents), url) == [DeliveryOutcome.UNAVAILABLE]


@pytest.mark.parametrize(
    ("scheme", "said"), [("http", b"HTTP/1.1 102 Processing\r\n\r\n"), ("ws", b"\x89\x00")]
)
@pytest.mark.parametrize(
    ("size_bytes", "outcome"),
    [(1_000, DeliveryOutcome.ACCEPTED), (1_000_000, DeliveryOutcome.UNAVAILABLE)],
)
async def test_an_endpoint_that_says_much_before_its_answer_is_read_no_further(
    agents: AgentHost, scheme: str, said: bytes, size_bytes: int, outcome: DeliveryOutcome
) -> None:
    async def talk(_: bytes) -> web.StreamResponse:
        transport = agents.requests[-1].transport
        assert transport is not None
        transport.write(said * (size_bytes // len(said)))
        return web.Response()

    agents.answer = talk
    assert await deliver(way_out(agents), agents.url(scheme)) == [outcome]


async def test_what_an_endpoint_says_behind_its_consent_to_a_socket_is_counted_once(
    agents: AgentHost,
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = re.findall(rb"Sec-WebSocket-Key: (\S+)", head)[0]
        accepts = b64encode(sha1(key + WS_KEY).digest())  # noqa: S324 - RFC 6455 names it
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accepts + b"\r\n\r\n" + b"\x8a\x00" * 6_000
        )
        await reader.readexactly(2 + 4 + len(ENVELOPE))
        writer.write(b"\x88\x02\x03\xe8")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, LOOPBACK, 0)
    async with server:
        url = f"ws://agent.example:{server.sockets[0].getsockname()[1]}/"
        assert await deliver(way_out(agents), url) == [DeliveryOutcome.ACCEPTED]


async def test_each_answer_of_a_turn_may_be_as_long(agents: AgentHost) -> None:
    async def long(_: bytes) -> web.StreamResponse:
        return web.Response(headers={"X-Long": "x" * 8_000})

    agents.answer = long
    outcomes = await deliver(way_out(agents), agents.url(), *[b"%d" % n for n in range(5)])
    assert outcomes == [DeliveryOutcome.ACCEPTED] * 5
    assert len({id(request.transport) for request in agents.requests}) == 1


async def test_a_websocket_gets_one_binary_frame_and_a_proper_end(agents: AgentHost) -> None:
    outcomes = await deliver(way_out(agents), agents.url("ws"), b"1", b"2")
    assert outcomes == [DeliveryOutcome.ACCEPTED] * 2
    assert agents.received == [b"1", b"2"]
    assert agents.frames == [WSMsgType.BINARY] * 2
    assert len(agents.requests) == 2


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (1003, DeliveryOutcome.REFUSED),
        (1007, DeliveryOutcome.REFUSED),
        (1008, DeliveryOutcome.REFUSED),
        (1009, DeliveryOutcome.REFUSED),
        (1011, DeliveryOutcome.REFUSED),
        (4400, DeliveryOutcome.REFUSED),
        (4409, DeliveryOutcome.REFUSED),
        (4404, DeliveryOutcome.DECLINED),
        (4429, DeliveryOutcome.UNAVAILABLE),
        (1001, DeliveryOutcome.UNAVAILABLE),
        (1013, DeliveryOutcome.UNAVAILABLE),
    ],
)
async def test_a_websocket_that_is_closed_with_an_error_has_not_accepted(
    agents: AgentHost, code: int, outcome: DeliveryOutcome
) -> None:
    agents.answer, agents.close_code = status(400), code
    assert await deliver(way_out(agents), agents.url("ws")) == [outcome]


async def test_a_websocket_that_breaks_off_has_not_accepted(agents: AgentHost) -> None:
    async def break_off(_: bytes) -> web.StreamResponse:
        transport = agents.requests[-1].transport
        assert transport is not None
        transport.abort()
        return web.Response()

    agents.answer = break_off
    assert await deliver(way_out(agents), agents.url("ws")) == [DeliveryOutcome.UNAVAILABLE]


async def test_an_endpoint_that_speaks_tls_must_prove_its_name(tmp_path: Path) -> None:
    async with https_host(tmp_path) as host:

        async def accept(_: web.Request) -> web.StreamResponse:
            return web.Response(status=202)

        host.answer = accept

        async def outcome(name: str, tls: ssl.SSLContext | None) -> list[DeliveryOutcome] | None:
            destinations = Destinations(
                Outbound(), lookup=host.lookup, permitted=on_loopback, tls=tls
            )
            return await deliver(destinations, f"https://{name}:{host.port}/in")

        assert await outcome("mediator.example", host.trust) == [DeliveryOutcome.ACCEPTED]
        assert await outcome("other.example", host.trust) == [DeliveryOutcome.NOT_REACHED]
        assert await outcome("mediator.example", None) == [DeliveryOutcome.NOT_REACHED]
        assert len(host.requests) == 1


async def test_one_host_has_no_more_turns_at_once_than_the_bound(agents: AgentHost) -> None:
    destinations = way_out(agents, in_flight_per_host_max=1)
    one, other = (read_endpoint(agents.url(host=name)) for name in ("one.example", "127.0.0.1"))
    assert one is not None
    assert other is not None
    async with destinations.to(one):
        waiting = asyncio.create_task(deliver(destinations, str(other)))
        agents.addresses = ["127.0.0.2"]
        elsewhere = way_out(agents, permitted=lambda *_: True, in_flight_per_host_max=1)
        async with elsewhere.to(one) as destination:
            assert destination is not None
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, WAIT_S) == [DeliveryOutcome.ACCEPTED]


async def test_all_hosts_together_have_no_more_turns_at_once_than_the_bound(
    agents: AgentHost,
) -> None:
    destinations = way_out(
        agents, permitted=lambda *_: True, in_flight_max=1, in_flight_per_host_max=1
    )
    one, other = (read_endpoint(agents.url(host=host)) for host in ("127.0.0.1", "127.0.0.2"))
    assert one is not None
    assert other is not None
    has_turn = asyncio.Event()

    async def take_turn(endpoint: URL) -> None:
        async with destinations.to(endpoint):
            has_turn.set()

    async with destinations.to(one):
        waiting = asyncio.create_task(take_turn(other))
        await asyncio.sleep(0)
        assert not has_turn.is_set()
    await asyncio.wait_for(waiting, WAIT_S)
    assert has_turn.is_set()


async def test_turns_that_are_over_leave_nothing_behind(agents: AgentHost) -> None:
    destinations = way_out(agents)
    await deliver(destinations, agents.url())
    assert not any(pool.at for pool in destinations._slots._pools.values())


async def test_a_delivery_that_is_cut_off_at_an_await_gives_its_slots_back(
    agents: AgentHost,
) -> None:
    destinations, at = way_out(agents), 1
    free = free_slots(destinations)
    while await cut_off(deliver(destinations, agents.url()), at):
        at += 1
        await asyncio.sleep(0)  # a look-up gives its slots back when it has ended
        assert free_slots(destinations) == free
        assert not any(pool.at for pool in destinations._slots._pools.values())
    assert at > 3


def free_slots(destinations: Destinations) -> list[int]:
    """The free slots of each kind of endpoints, at all addresses together."""
    pools = destinations._slots._pools.values()
    return [slots._free for pool in pools for slots in pool._whole]


async def test_no_other_address_is_reached_whatever_the_url_says(agents: AgentHost) -> None:
    async with _session(["127.0.0.2"], ssl.create_default_context(), {}) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.post(agents.url(host="127.0.0.1"))
    assert agents.requests == []
