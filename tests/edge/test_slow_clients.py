"""Clients that do not read, or send slowly, make an edge hold little, and not for long."""

from __future__ import annotations

import asyncio
import logging
import socket
from ipaddress import ip_network
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from http_edge.listener.connection import Connection
from http_edge.listener.transfers import Cut, Transfer
from http_edge.settings.settings import Rates
from tests.edge.bare_edge import ANSWER, MIB, REQUESTS, edge_with, ended, served, status, until
from tests.edge.mediator import WAIT_S
from tests.unit.test_hang_watch import clock_set_ahead


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    "limits",
    [{"transfer_grace_s": 0.05}, {"answer_write_s_max": 0.05}],
    ids=["too slow", "too long"],
)
async def test_a_client_that_does_not_read_is_cut_and_leaves_nothing_behind(
    tmp_path: Path, kind: str, limits: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with edge_with(tmp_path, **limits) as edge:
        client = await edge.connect(REQUESTS[kind])
        await until(lambda: edge.unread_bytes > MIB)
        await until(lambda: edge.unread_bytes == 0)
        assert edge.cuts(Cut.SLOW) == 1
        assert await served(edge) == b"x"
        await ended(client)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("kind", [*REQUESTS, "a part of a head"])
async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    async with edge_with(tmp_path, transfer_grace_s=2 * WAIT_S) as edge:
        bodies = edge.in_flight.bodies
        part_of_a_head = b"GET /download HTTP/1.1\r\nA: " + bytes(b"a" * 10_000)
        client = await edge.connect(REQUESTS.get(kind, part_of_a_head))
        await until(lambda: edge.unread_bytes > MIB or bodies.size_bytes > 10_000)
        client.close()
        await until(lambda: not len(edge.listener.connections))
        await until(lambda: not bodies._shares)
        await until(lambda: not edge.listener.connections.leaving._shares)
        assert edge.unread_bytes == 0 == bodies.size_bytes


@pytest.mark.parametrize("path", [b"/echo", b"/read"])
async def test_a_client_that_goes_away_as_its_request_begins_writes_nothing_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: bytes
) -> None:
    async with edge_with(tmp_path) as edge:
        await edge.connect(b"")
        await until(lambda: edge.open_connections)
        (connection,) = edge.open_connections
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx" % path
        connection.data_received(head)
        handling, wire = connection._task_handler, connection._wire
        assert handling is not None
        assert wire is not None
        wire.abort()
        await asyncio.wait([handling], timeout=WAIT_S)
        assert handling.done()
        assert edge.in_flight.bodies.size_bytes == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("kind", REQUESTS)
async def test_one_address_makes_an_edge_hold_a_bounded_number_of_unread_bytes(
    tmp_path: Path, kind: str
) -> None:
    async with edge_with(tmp_path, answers_bytes_per_address_max=9 * MIB) as edge:
        for _ in range(20):
            await edge.connect(REQUESTS[kind])
        await until(lambda: edge.cuts(Cut.BYTES_PER_ADDRESS) == 18)
        assert 4 * MIB < edge.unread_bytes <= 9 * MIB
        assert await served(edge) == b"x"


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_client_that_reads_gets_its_answer_whole(tmp_path: Path, kind: str) -> None:
    async with edge_with(tmp_path, transfer_grace_s=2 * WAIT_S) as edge:
        client = await edge.connect(REQUESTS[kind])
        loop = asyncio.get_running_loop()
        received = 0
        async with asyncio.timeout(WAIT_S):
            while received < len(ANSWER):
                received += len(await loop.sock_recv(client, 65_536))
        await until(lambda: not edge.listener.connections.leaving._shares)


async def test_an_edge_that_stops_waits_for_no_slow_reader_and_logs_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(REQUESTS["GET"])
        await until(lambda: edge.unread_bytes > MIB)
        async with asyncio.timeout(WAIT_S):
            await edge.listener.stop()
        assert edge.unread_bytes == 0
        await ended(client)
    cuts = [vars(line)["causes"] for line in caplog.records if "causes" in vars(line)]
    assert cuts == [{"stop": 1}]


def post(body_bytes: int, *, chunked: bool) -> bytes:
    """The head of a body of this size and all of it but its last byte, whole or in chunks."""
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
    body = bytes(body_bytes - 1)
    if chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b" % (body_bytes, body)
    return head + b"Content-Length: %d\r\n\r\n%b" % (body_bytes, body)


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_count_as_they_arrive_and_an_address_has_a_share_of_them(
    tmp_path: Path, chunked: bool
) -> None:
    limits = {"bodies_bytes_max": 8 * MIB, "bodies_bytes_per_address_max": 2 * MIB}
    async with edge_with(tmp_path, **limits) as edge:
        bodies = edge.in_flight.bodies
        request = post(MIB // 2, chunked=chunked)
        first = [await edge.connect(request) for _ in range(4)]
        await until(lambda: bodies.size_bytes == 2 * MIB - 4)
        more = [await edge.connect(request) for _ in range(4)]
        assert [await status(client) for client in more] == [429] * 4
        other = await edge.connect(request, "127.0.0.2")
        await until(lambda: bodies.size_bytes == 2 * MIB - 4 + MIB // 2 - 1)
        for client in (*first, other):
            await asyncio.get_running_loop().sock_sendall(
                client, b"x\r\n0\r\n\r\n"[: 8 if chunked else 1]
            )
            assert await status(client) == 200
        await until(lambda: bodies.size_bytes == 0)


async def test_of_a_body_that_is_refused_little_is_read_and_its_sender_is_reset(
    tmp_path: Path,
) -> None:
    names = ("body_bytes_max", "bodies_bytes_per_address_max", "socket_buffer_bytes_max")
    limits = dict.fromkeys(names, 8 * MIB)
    async with edge_with(tmp_path, **limits) as edge:
        held = await edge.connect(post(8 * MIB, chunked=False))
        await until(lambda: edge.in_flight.bodies.size_bytes > 6 * MIB)
        head, _, body = post(8 * MIB, chunked=False).partition(b"\r\n\r\n")
        refused = await edge.connect(head + b"\r\n\r\n")
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(refused, body))
        assert await status(refused) == 429
        arriving = edge.open_connections[-1]._arriving
        with pytest.raises(ConnectionError):
            await sending
        assert arriving is not None
        assert arriving.total_bytes < MIB
        await until(lambda: not arriving._buffer)
        assert edge.cuts(Cut.UNREAD) == 1
        await asyncio.get_running_loop().sock_sendall(held, b"x")
        assert await status(held) == 200


async def test_slow_bodies_of_many_addresses_make_room_for_one_that_is_there(
    tmp_path: Path,
) -> None:
    limits = {"bodies_bytes_max": 2 * MIB, "bodies_bytes_per_address_max": 2 * MIB - 1}
    async with edge_with(tmp_path, **limits) as edge:
        bodies = edge.in_flight.bodies
        honest = await edge.connect(post(MIB // 4, chunked=False), "127.0.0.9")
        await until(lambda: bodies.size_bytes == MIB // 4 - 1)
        slow = [
            await edge.connect(post(MIB, chunked=False), f"127.0.0.{number}")
            for number in range(2, 6)
        ]
        answers = [asyncio.create_task(status(client)) for client in slow]
        await asyncio.wait(answers[:3], timeout=WAIT_S)
        assert 503 in {task.result() for task in answers if task.done()}
        assert bodies.size_bytes <= 2 * MIB
        assert await served(edge) == b"x"
        await asyncio.get_running_loop().sock_sendall(honest, b"x")
        assert await status(honest) == 200
        for task in answers:
            task.cancel()


async def test_a_body_that_comes_slower_than_the_pace_is_cut_before_its_time_is_over(
    tmp_path: Path,
) -> None:
    async with edge_with(tmp_path, transfer_grace_s=0.05, body_read_s_max=WAIT_S) as edge:
        client = await edge.connect(post(100, chunked=False))
        assert await status(client) == 408
        await until(lambda: edge.in_flight.bodies.size_bytes == 0)


async def test_a_body_is_cut_once_if_its_time_is_over_and_its_task_is_not_yet_awake(
    tmp_path: Path,
) -> None:
    """Time-outs and the look at the pace are timers, which one turn of the loop may run both."""
    faults: list[Exception] = []
    async with edge_with(tmp_path, transfer_grace_s=WAIT_S, body_read_s_max=WAIT_S) as edge:
        bodies, loop = edge.in_flight.bodies, asyncio.get_running_loop()
        client = await edge.connect(post(100, chunked=False))
        await until(lambda: any(share.waiting for share in bodies._shares.values()))
        (body,) = (body for share in bodies._shares.values() for body in share.waiting)

        def look() -> None:
            try:
                edge.listener.connections.arriving.cut_slow(loop.time() + 1_000)
            except RuntimeError as error:
                faults.append(error)

        body.cut(Cut.SLOW)  # its time is over in the next turn
        loop.call_soon(look)
        assert await status(client) == 408
    assert faults == []


async def test_slow_clients_are_looked_for_again_after_a_fault(tmp_path: Path) -> None:
    def fail(_: Cut) -> None:
        raise RuntimeError

    async with edge_with(tmp_path) as edge:
        connections = edge.listener.connections
        before = connections._timers["look"]
        edge.in_flight.bodies.begin(Transfer("address", -1_000.0, fail))
        with pytest.raises(RuntimeError):
            connections.start()
        assert connections._timers["look"] is not before
        before.cancel()


@pytest.mark.parametrize(
    ("bytes_per_s_min", "seconds", "is_cut"), [(0, 500, False), (MIB, 14, True)]
)
async def test_the_pace_of_bodies_and_answers_is_what_an_operator_has_set(
    tmp_path: Path, bytes_per_s_min: int, seconds: float, *, is_cut: bool
) -> None:
    limits = {"body_read_s_max": 600, "answer_write_s_max": 3_600, "transfer_grace_s": WAIT_S}
    async with edge_with(tmp_path, transfer_bytes_per_s_min=bytes_per_s_min, **limits) as edge:
        for request in (post(100_000, chunked=False), REQUESTS["GET"]):
            await edge.connect(request)
        transfers = edge.in_flight.bodies, edge.listener.connections.leaving
        await until(lambda: all(each.size_bytes > 90_000 for each in transfers))
        for each in transfers:
            each.cut_slow(asyncio.get_running_loop().time() + seconds)
        assert [each.size_bytes == 0 for each in transfers] == [is_cut] * 2


async def test_requests_that_are_sent_ahead_of_their_answers_stay_in_the_kernel(
    tmp_path: Path,
) -> None:
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(REQUESTS["GET"])
        await until(lambda: edge.unread_bytes > MIB)
        sending = asyncio.get_running_loop().sock_sendall(client, REQUESTS["GET"] * 200_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sending, 0.2)
        (connection,) = edge.open_connections
        assert len(connection._messages) <= 3


async def test_an_address_has_a_bounded_number_of_connections_and_its_idle_ones_make_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge_with(tmp_path, connections_per_address_max=4) as edge:
        busy = [await edge.connect(post(100, chunked=False)) for _ in range(2)]
        idle = [await edge.connect(b"") for _ in range(2)]
        await until(lambda: len(edge.listener.connections) == 4)
        assert await served(edge) == b"x"
        await ended(idle[0])
        for _ in range(50):
            await edge.connect(b"")
        await until(lambda: edge.cuts(Cut.IDLE) >= 50)
        assert len(edge.listener.connections) == 4
        assert await status(await edge.connect(REQUESTS["POST"], "127.0.0.2")) == 200
        for client in busy:
            await asyncio.get_running_loop().sock_sendall(client, b"x")
            assert await status(client) == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_edge_has_a_bounded_number_of_connections_and_none_is_refused_for_idle_ones(
    tmp_path: Path,
) -> None:
    async with edge_with(tmp_path, connections_max=16, connections_per_address_max=8) as edge:
        for number in range(40):
            await edge.connect(b"", f"127.0.0.{2 + number % 4}")
        await until(lambda: edge.cuts(Cut.IDLE) == 24)
        assert len(edge.listener.connections) == 16
        assert await served(edge) == b"x"


async def test_a_newcomer_is_refused_when_no_connection_is_idle(tmp_path: Path) -> None:
    async with edge_with(tmp_path, connections_per_address_max=2) as edge:
        for _ in range(2):
            await edge.connect(post(100, chunked=False))
        await until(lambda: sum(edge.in_flight._bodies_of.values()) == 2)
        await ended(await edge.connect(b""))
        assert edge.cuts(Cut.CONNECTIONS_PER_ADDRESS) == 1


async def test_connections_that_are_refused_do_not_each_look_at_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Connection] = []

    def idle_since_s(connection: Connection) -> None:
        looked_at.append(connection)

    async with edge_with(tmp_path, connections_per_address_max=2) as edge:
        for _ in range(2):
            await edge.connect(post(100, chunked=False))
        await until(lambda: sum(edge.in_flight._bodies_of.values()) == 2)
        monkeypatch.setattr(Connection, "idle_since_s", property(idle_since_s))
        monkeypatch.setattr("http_edge.listener.connections._NONE_IDLE_S", WAIT_S)
        connections, newcomer = edge.listener.connections, edge.open_connections[0]
        refused = [connections.admit(newcomer, "127.0.0.1") for _ in range(100)]
        assert refused == [Cut.CONNECTIONS_PER_ADDRESS] * 100
        assert len(looked_at) == 2
        connections.start()  # the next look
        assert connections.admit(newcomer, "127.0.0.1") is Cut.CONNECTIONS_PER_ADDRESS
        assert len(looked_at) == 4


async def test_a_connection_that_sends_no_head_is_closed_long_before_an_idle_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    async with edge_with(tmp_path, head_s_max=20, keepalive_s=600) as edge:
        used = await edge.connect(REQUESTS["POST"].replace(b": 0", b": 1") + b"x")
        assert await status(used) == 200
        for said in (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nA: b\r\n"):
            client = await edge.connect(said)
            await until(lambda: len(edge.listener.connections) == 2)
            goes_on(20)
            await ended(client)
        assert len(edge.listener.connections) == 1


async def test_a_message_of_a_socket_counts_before_it_is_whole(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(REQUESTS["WebSocket"])
        await until(lambda: sum(edge.in_flight.sockets.values()) == 1)
        frame = b"\x82\xff" + (100_000).to_bytes(8, "big") + bytes(4) + bytes(50_000)
        await asyncio.get_running_loop().sock_sendall(client, frame)
        await until(lambda: edge.in_flight.bodies.size_bytes == 50_000)
        client.close()
        await until(lambda: edge.in_flight.bodies.size_bytes == 0)


async def test_heads_of_one_address_take_no_room_of_another(tmp_path: Path) -> None:
    limits = dict.fromkeys(("body_bytes_max", "bodies_bytes_per_address_max"), 64 * 1_024)
    head = b"GET /brief HTTP/1.1\r\n" + 3 * (b"A: %b\r\n" % (b"a" * 8_000))
    async with edge_with(tmp_path, **limits) as edge:
        for _ in range(4):
            await edge.connect(head, "127.0.0.2")
        await until(lambda: edge.cuts(Cut.BYTES_PER_ADDRESS) == 2)
        client = await edge.connect(head)
        await until(lambda: edge.in_flight.bodies.size_bytes > 3 * 24_000)
        await asyncio.get_running_loop().sock_sendall(client, b"Host: x\r\n\r\n")
        assert await status(client) == 405
        assert edge.cuts(Cut.BYTES_PER_ADDRESS) == 2


async def test_the_head_of_one_client_of_a_proxy_takes_no_room_of_another(tmp_path: Path) -> None:
    limits = dict.fromkeys(("body_bytes_max", "bodies_bytes_per_address_max"), 64 * 1_024)
    trusting = Rates(trusted_proxies=(ip_network("127.0.0.2"),))
    greedy = b"POST /brief HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.1\r\n"
    async with edge_with(tmp_path, system_clock, trusting, **limits) as edge:
        await edge.connect(greedy + b"Content-Length: 60001\r\n\r\n" + bytes(60_000), "127.0.0.2")
        await until(lambda: edge.in_flight.bodies.size_bytes == 60_000)
        reused = await edge.connect(greedy + b"Content-Length: 1\r\n\r\nx", "127.0.0.2")
        assert await status(reused) == 200
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(reused, b"GET /brief HTTP/1.1\r\nA: ")
        await until(lambda: not edge.open_connections[-1]._arriving)
        await loop.sock_sendall(reused, b"a" * 10_000)
        await until(lambda: edge.in_flight.bodies.size_bytes >= 70_000)
        await loop.sock_sendall(reused, b"\r\nHost: x\r\nX-Forwarded-For: 203.0.113.2\r\n\r\n")
        assert await status(reused) == 405


async def test_a_client_that_sends_no_more_gets_the_answer_that_it_waits_for(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(REQUESTS["in pieces"])
        client.shutdown(socket.SHUT_WR)
        answer = b""
        async with asyncio.timeout(WAIT_S):
            while received := await loop.sock_recv(client, 65_536):
                answer += received
        assert answer.endswith(ANSWER)
        await until(lambda: not len(edge.listener.connections))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /brief HT",
        b"POST /brief HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx",
        REQUESTS["WebSocket"].replace(b"/push", b"/silent"),
    ],
    ids=["nothing", "a part of a head", "a part of a body", "an upgrade"],
)
async def test_a_client_that_sends_no_more_and_waits_for_no_answer_is_gone(
    tmp_path: Path, sent: bytes
) -> None:
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(sent)
        client.shutdown(socket.SHUT_WR)
        await ended(client)
        await until(lambda: not len(edge.listener.connections))


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_message_of_a_socket_counts_until_it_is_handled(
    tmp_path: Path, *, leaves: bool
) -> None:
    async with edge_with(tmp_path) as edge:
        client = await edge.connect(REQUESTS["WebSocket"].replace(b"/push", b"/patient"))
        await until(lambda: sum(edge.in_flight.sockets.values()) == 1)
        message = b"\x82\xff" + (50_000).to_bytes(8, "big") + bytes(4) + bytes(50_000)
        await asyncio.get_running_loop().sock_sendall(client, 2 * message)
        await until(lambda: edge.in_flight.bodies.size_bytes == 100_000)
        if leaves:
            client.close()
            await until(lambda: not len(edge.listener.connections))
            assert edge.in_flight.bodies.size_bytes == 100_000
        edge.handles.release()
        await until(lambda: edge.in_flight.bodies.size_bytes == (100_000 if leaves else 50_000))
        edge.handles.release()
        await until(lambda: edge.in_flight.bodies.size_bytes == 0)
        client.close()
        await until(lambda: not sum(edge.in_flight.sockets.values()))
        assert edge.in_flight.bodies.size_bytes == 0
        assert await served(edge) == b"x"


async def test_one_address_makes_an_edge_hold_a_bounded_number_of_socket_messages(
    tmp_path: Path,
) -> None:
    async with edge_with(tmp_path, bodies_bytes_per_address_max=MIB) as edge:
        message = b"\x82\xff" + (50_000).to_bytes(8, "big") + bytes(4) + bytes(50_000)
        clients = []
        for number in range(40):
            opened = REQUESTS["WebSocket"].replace(b"/push", b"/patient")
            clients.append(await edge.connect(opened))
            await until(lambda: sum(edge.in_flight.sockets.values()) == number + 1)  # noqa: B023
        for client in clients:
            await asyncio.get_running_loop().sock_sendall(client, message)
        await until(lambda: edge.cuts(Cut.BYTES_PER_ADDRESS) == 40 - MIB // 50_000)
        assert edge.in_flight.bodies.size_bytes == MIB // 50_000 * 50_000
        assert await served(edge) == b"x"
