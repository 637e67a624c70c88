"""Addresses that send more than their rate: what they make an edge hold, and what others feel."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from http_edge.listener import connections
from http_edge.listener.transfers import Cut
from http_edge.settings.settings import Rates
from http_edge.telemetry import request_id
from tests.edge.bare_edge import REQUESTS, edge_with, ended, served, status, until


async def test_an_address_that_owes_its_rate_has_few_connections_and_others_as_many_as_before(
    tmp_path: Path,
) -> None:
    now_ms = system_clock()
    async with edge_with(tmp_path, lambda: now_ms) as edge:
        edge.listener._rates.requests.charge("127.0.0.2", now_ms / 1000, 1e9)
        held = [await edge.connect(b"", "127.0.0.2") for _ in range(64)]
        await until(lambda: len(edge.listener.connections) == len(held))
        more = await edge.connect(b"", "127.0.0.2")
        await until(lambda: edge.cuts(Cut.OWING) == 1)
        with pytest.raises(ConnectionError):
            await asyncio.get_running_loop().sock_recv(more, 1)
        assert await served(edge) == b"x"


async def test_refusals_for_a_rate_take_longer_where_many_wait_for_theirs(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge:
        now_s = asyncio.get_running_loop().time
        await edge.connect(b"")
        await until(lambda: len(edge.listener.connections) == 1)
        (client,) = edge.open_connections
        began_s = now_s()
        await asyncio.gather(*[edge.listener._take_time(client) for _ in range(32)])
        one_s = now_s() - began_s
        await asyncio.gather(*[edge.listener._take_time(client) for _ in range(33)])
        assert one_s >= 0.5
        assert now_s() - began_s - one_s >= 1
        assert not edge.listener._limited
        assert not edge.cuts(Cut.OWING)


async def test_of_requests_beyond_a_rate_hundreds_wait_and_by_proxies_a_bounded_number_waits_long(
    tmp_path: Path,
) -> None:
    request, now_ms, proxy = REQUESTS["GET"], system_clock(), ip_network("127.0.0.3")
    slow = Rates(limited_answer_s=10, trusted_proxies=(proxy,))
    async with edge_with(tmp_path, lambda: now_ms, slow, connections_per_address_max=322) as edge:
        clients = [await edge.connect(b"", "127.0.0.2") for _ in range(322)]
        await until(lambda: len(edge.listener.connections) == len(clients))
        edge.listener._rates.requests.charge("127.0.0.2", now_ms / 1000, 1e9)
        for client in clients:
            await asyncio.get_running_loop().sock_sendall(client, request)
        await until(lambda: edge.cuts(Cut.OWING) == 2)
        assert edge.listener._limited["127.0.0.2"] == 320
        assert (await served(edge)) == b"x"
        by_proxy = request[:-2] + b"X-Forwarded-For: 127.0.0.2\r\n\r\n"
        for _ in range(2):
            await edge.connect(by_proxy, "127.0.0.3")
        await until(lambda: edge.listener._limited["127.0.0.2"] == 322)
        assert edge.cuts(Cut.OWING) == 2
        brief = slow.model_copy(update={"limited_answer_s": 2})  # ten times that is too late
        edge.listener._settings = edge.settings.model_copy(update={"rates": brief})
        assert await status(await edge.connect(by_proxy, "127.0.0.3")) == 429


async def test_newcomers_of_an_address_are_no_more_at_once_than_it_can_pay_for_unproven(
    tmp_path: Path,
) -> None:
    now_ms = system_clock()
    request = b"POST /brief HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    async with edge_with(tmp_path, lambda: now_ms) as edge:
        rates = edge.settings.rates
        left = rates.per_address_per_s * rates.burst_s - 66 * (1 + rates.unproven_tokens)
        edge.listener._rates.requests.charge("127.0.0.2", now_ms / 1000, left)
        edge.listener.connections._timers["look"].cancel()
        newcomers = [await edge.connect(b"", "127.0.0.2") for _ in range(67)]
        await until(lambda: len(edge.listener.connections) == len(newcomers))
        await edge.connect(b"", "127.0.0.2")
        await until(lambda: edge.cuts(Cut.OWING) == 1)
        for client in newcomers[:3]:
            for _ in range(2):
                await asyncio.get_running_loop().sock_sendall(client, request)
                assert await status(client) == 200
        # Three that have shown what they cost make room for as many.
        await edge.connect(b"", "127.0.0.2")
        await until(lambda: len(edge.listener.connections) == len(newcomers) + 1)
        assert edge.cuts(Cut.OWING) == 1
        # So does one that is gone.
        newcomers[3].close()
        await until(lambda: len(edge.listener.connections) == len(newcomers))
        await edge.connect(b"", "127.0.0.2")
        await until(lambda: len(edge.listener.connections) == len(newcomers) + 1)
        assert edge.cuts(Cut.OWING) == 1
        # Those that keep silent do not: until the next look, which comes within a second.
        await edge.connect(b"", "127.0.0.2")
        await edge.connect(b"", "127.0.0.2")
        await edge.connect(b"", "127.0.0.2")
        await until(lambda: edge.cuts(Cut.OWING) == 2)
        edge.listener.connections.start()
        standing = len(edge.listener.connections)
        await edge.connect(b"", "127.0.0.2")
        await until(lambda: len(edge.listener.connections) == standing + 1)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"\x16\x03\x01 TLS\r\n\r\n"])
async def test_malformed_http_costs_its_address_a_request_and_waits_like_one(
    tmp_path: Path, head: bytes
) -> None:
    now_ms = system_clock()
    two = Rates(per_address_per_s=1, burst_s=2, limited_answer_s=0)
    async with edge_with(tmp_path, lambda: now_ms, two) as edge:
        for expected in (400, 400, 429):
            client = await edge.connect(head, "127.0.0.2")
            assert await status(client) == expected
            await ended(client)
        assert await served(edge) == b"x"
        # Hundreds that wait for their refusals already are no reason to hold another.
        edge.listener._limited["127.0.0.2"] = 320
        await edge.connect(head, "127.0.0.2")
        await until(lambda: edge.cuts(Cut.OWING) == 1)


async def test_malformed_http_costs_no_client_of_a_trusted_proxy_that_forwards_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = system_clock()
    proxy = ip_network("127.0.0.2")
    one = Rates(per_address_per_s=1, burst_s=1, limited_answer_s=0, trusted_proxies=(proxy,))
    async with edge_with(tmp_path, lambda: now_ms, one) as edge:
        for _ in range(3):
            assert await status(await edge.connect(b"GET\r\n\r\n", "127.0.0.2")) == 400
        assert await status(await edge.connect(REQUESTS["POST"], "127.0.0.2")) == 200
    assert not caplog.records


async def test_cuts_are_counted_in_one_line_for_a_time_and_in_the_name_of_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[tuple[str, dict[str, int]]]()

    def warning(_: str, extra: dict[str, dict[str, int]]) -> None:
        lines.append((request_id.current(), extra["causes"]))

    monkeypatch.setattr(connections, "_LOG_S", 0)
    monkeypatch.setattr(connections._LOG, "warning", warning)
    async with edge_with(tmp_path) as edge:
        request_id.begin("of-a-client")
        for causes in ([Cut.IDLE, Cut.SLOW, Cut.IDLE], [Cut.SLOW]):
            for cause in causes:
                edge.listener.connections.note(cause)
            await until(lambda: not edge.listener.connections._not_logged)
    assert lines == [("", {"idle": 2, "slow": 1}), ("", {"slow": 1})]
