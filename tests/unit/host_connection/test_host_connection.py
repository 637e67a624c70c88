"""Lines between edges and hosts: answers under their numbers, pushes, and how lines end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from actors.core.replies import BatchResult, Done, EnvelopesWaiting, Push
from actors.host.host_client import (
    HostConnectionLost,
    QuestionFailed,
    connect_to_host,
)
from actors.host.host_connection import (
    HEADER,
    PUSH,
    UNPROVEN_MAX,
    Answer,
    Answered,
    EdgeConnection,
    Hello,
    HostServer,
)
from eventstore.log.host_leases import HostLease

EDGE = "edge-0"
WAIT_S = 10


class Host:
    """What stands behind a connection: batches that wait for their answers."""

    def __init__(
        self,
        unsent_bytes_max: int = 1024 * 1024,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request: asyncio.Queue[tuple[str, bytes, Answer, str]] = asyncio.Queue()
        self.questions: asyncio.Queue[tuple[bytes, Answered]] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.server = HostServer(
            lambda *request: self._from_thread(self.request, request),
            lambda *question: self._from_thread(self.questions, question),
            lambda edge: self._from_thread(self.lost, edge),
            unsent_bytes_max=unsent_bytes_max,
            monotonic=monotonic,
        )
        self.address = self.server.listen("127.0.0.1", "host", "", "")

    def _from_thread(self, queue: asyncio.Queue[Any], item: object) -> None:
        with contextlib.suppress(RuntimeError):  # the test is over
            self._loop.call_soon_threadsafe(queue.put_nowait, item)

    async def next(self) -> tuple[str, bytes, Answer, str]:
        async with asyncio.timeout(WAIT_S):
            return await self.request.get()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    host.server.stop()


def nowhere(pushes: bytes) -> None:
    raise AssertionError(pushes)


async def test_every_call_gets_its_own_answer_in_any_order(host: Host) -> None:
    client = await connect_to_host(host.address, EDGE, nowhere)
    calls = [
        asyncio.create_task(client.submit(bytes([i]) * size))
        for i, size in enumerate((1, 900_000, 0))
    ]
    request = [await host.next() for _ in calls]
    assert [(edge, batch) for edge, batch, _, _ in request] == [
        (EDGE, b"\0"), (EDGE, b"\1" * 900_000), (EDGE, b"")
    ]  # fmt: skip
    for _, batch, answer, incarnation in reversed(request):
        assert incarnation == client.incarnation
        answer(batch + b"!")
    assert await asyncio.gather(*calls) == [b"\0!", b"\1" * 900_000 + b"!", b"!"]
    client.close()


async def test_a_server_that_has_left_listens_no_more_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    host = Host()
    client = await connect_to_host(host.address, EDGE, nowhere)
    threads = [t for t in set(threading.enumerate()) - before if t.name.startswith("edge")]
    assert threads
    host.server.leave()
    async with asyncio.timeout(WAIT_S):
        await client.ended()
        for thread in threads:
            await asyncio.to_thread(thread.join, WAIT_S)
            assert not thread.is_alive()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await connect_to_host(host.address, EDGE, nowhere)


async def test_questions_pass_beside_batches_and_fail_alone(host: Host) -> None:
    client = await connect_to_host(host.address, EDGE, nowhere)
    batch = asyncio.create_task(client.submit(b"batch"))
    questions = [asyncio.create_task(client.ask(b"?" * count)) for count in (1, 2)]
    _, _, answer, _ = await host.next()
    came = [await asyncio.wait_for(host.questions.get(), WAIT_S) for _ in questions]
    assert [question for question, _ in came] == [b"?", b"??"]
    came[1][1](None)
    with pytest.raises(QuestionFailed):
        await questions[1]
    came[0][1](b"")
    answer(b"answer")
    assert (await questions[0], await batch) == (b"", b"answer")
    client.close()


async def test_pushes_reach_the_edge_they_are_for_alone(host: Host) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    client = await connect_to_host(host.address, EDGE, came.put_nowait)
    other = await connect_to_host(host.address, "edge-1", nowhere)
    pushes = [Push("did:x:me", EnvelopesWaiting())]
    host.server.push(EDGE, pushes)
    pushed = await asyncio.wait_for(came.get(), WAIT_S)
    assert msgspec.msgpack.decode(pushed, type=list[Push]) == pushes
    client.close()
    other.close()


async def test_an_edge_without_a_connection_gets_to_know_once_that_it_has_missed_pushes(
    host: Host,
) -> None:
    host.server.push(EDGE, [Push("did:x:me", EnvelopesWaiting())])
    assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE
    missed = await connect_to_host(host.address, EDGE, nowhere)
    assert missed.has_missed
    # The host has forgotten its sessions: no edge may believe that they go on.
    assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE
    missed.close()
    assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE
    again = await connect_to_host(host.address, EDGE, nowhere)
    assert not again.has_missed
    again.close()


async def test_a_client_without_the_token_opens_no_connection(host: Host) -> None:
    with pytest.raises(HostConnectionLost):
        await connect_to_host(
            HostLease("host", "", "", "127.0.0.1", host.address.port, bytes(32)), EDGE, nowhere
        )
    for hello in (b"", b"junk", msgspec.msgpack.encode(Hello(b"", EDGE)), bytes(10_000_000)):
        reader, writer = await asyncio.open_connection("127.0.0.1", host.address.port)
        writer.write(HEADER.pack(len(hello), PUSH) + hello[:2_000])
        with contextlib.suppress(OSError):  # what the host leaves unread resets it
            writer.write_eof()
        with pytest.raises((ConnectionResetError, EOFError)):
            await reader.readexactly(1)
        writer.close()
    assert host.request.empty()


async def test_a_hello_that_drips_in_has_one_deadline_as_a_whole() -> None:
    loop, quarters, looked = asyncio.get_running_loop(), itertools.count(), asyncio.Semaphore(0)

    def clock() -> float:
        """A quarter of a second is gone at each look: the head is in time, as is each byte."""
        loop.call_soon_threadsafe(looked.release)
        return next(quarters) / 4

    host = Host(monotonic=clock)
    hello = msgspec.msgpack.encode(Hello(host.address.token, EDGE))
    reader, writer = await asyncio.open_connection("127.0.0.1", host.address.port)

    async def end() -> bytes:
        """What comes before the end; the last byte may have reset the connection."""
        try:
            return await reader.read(1)
        except ConnectionResetError:
            return b""

    ended = asyncio.create_task(end())
    for byte in HEADER.pack(len(hello), PUSH) + hello:
        look = asyncio.create_task(looked.acquire())
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({look, ended}, return_when=asyncio.FIRST_COMPLETED)
        look.cancel()
        if ended.done():
            break
        writer.write(bytes([byte]))
    assert await asyncio.wait_for(ended, WAIT_S) == b""
    # Five seconds for all of it, and not for each part.
    assert next(quarters) == 4 * 5 + 1
    writer.close()
    host.server.close()


async def test_an_edge_that_connects_while_its_host_stops_is_not_kept_waiting() -> None:
    loop, accepted = asyncio.get_running_loop(), asyncio.Event()

    def clock() -> float:
        loop.call_soon_threadsafe(accepted.set)
        return 0.0

    host = Host(monotonic=clock)
    reader, writer = await asyncio.open_connection(host.address.address, host.address.port)
    async with asyncio.timeout(WAIT_S):
        await accepted.wait()
    host.server.stop()
    hello = msgspec.msgpack.encode(Hello(host.address.token, EDGE))
    writer.write(HEADER.pack(len(hello), PUSH) + hello)
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()


async def test_connections_without_a_hello_do_not_keep_edges_out() -> None:
    host = Host()
    silent = [
        await asyncio.open_connection("127.0.0.1", host.address.port)
        for _ in range(UNPROVEN_MAX + 8)
    ]
    client = await asyncio.wait_for(connect_to_host(host.address, EDGE, nowhere), WAIT_S)
    # The longest silent are the ones that had to go, and no more stay than the bound.
    for reader, _ in silent[:8]:
        assert await asyncio.wait_for(reader.read(1), WAIT_S) == b""
    client.close()
    for _, writer in silent:
        writer.close()
    host.server.close()


async def test_a_host_without_a_free_descriptor_pauses_before_it_accepts_again(host: Host) -> None:
    class Full:
        tries = 0

        def accept(self) -> None:
            self.tries += 1
            raise OSError(errno.EMFILE, "none is free") if self.tries <= 2 else SystemExit

    started_s = time.monotonic()
    with pytest.raises(SystemExit):
        host.server._accept(Full())  # type: ignore[arg-type]  # has what is used of a socket
    assert time.monotonic() - started_s >= 0.2


async def test_a_host_without_another_thread_refuses_one_connection_and_accepts_the_next(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", full)
        reader, writer = await asyncio.open_connection(host.address.address, host.address.port)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
    assert not host.server._unproven
    client = await connect_to_host(host.address, EDGE, nowhere)
    client.close()


async def test_the_token_is_in_nothing_that_is_printed(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    token = host.address.token
    wrong = msgspec.structs.replace(host.address, token=bytes(32))
    with pytest.raises(HostConnectionLost):
        await connect_to_host(wrong, EDGE, nowhere)
    assert "wrong token" in caplog.text
    for printed in (repr(host.address), caplog.text):
        assert repr(token) not in printed
        assert token.hex() not in printed


async def test_calls_on_a_connection_that_ends_are_lost_and_both_ends_know(host: Host) -> None:
    client = await connect_to_host(host.address, EDGE, nowhere)
    call = asyncio.create_task(client.submit(b"batch"))
    await host.next()
    host.server.close()
    with pytest.raises(HostConnectionLost):
        await call
    assert not client.is_open
    with pytest.raises(HostConnectionLost):
        await client.submit(b"later")
    assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE


async def test_an_edge_knows_that_it_has_had_every_push_of_a_host_that_ends_in_order(
    host: Host,
) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    pushes = [Push("did:x:me", EnvelopesWaiting())]
    for end, is_in_order in ((host.server.close, False), (host.server.leave, True)):
        client = await connect_to_host(host.address, EDGE, came.put_nowait)
        host.server.push(EDGE, pushes)
        assert msgspec.msgpack.decode(await came.get(), type=list[Push]) == pushes
        assert not client.has_left
        end()
        await asyncio.wait_for(client.ended(), WAIT_S)
        assert (client.has_left, came.empty()) == (is_in_order, True)


async def test_no_push_finds_the_connection_before_where_the_next_one_is_welcomed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await connect_to_host(host.address, EDGE, nowhere)
    found, send = [], EdgeConnection.send

    def noted(connection: EdgeConnection, number: int, content: bytes) -> None:
        found.append(host.server._connections.get(EDGE))
        send(connection, number, content)

    monkeypatch.setattr(EdgeConnection, "send", noted)
    after = await connect_to_host(host.address, EDGE, nowhere)
    assert found == [None]
    before.close()
    after.close()


async def test_what_is_pushed_with_an_answer_arrives_though_the_caller_has_given_up(
    host: Host,
) -> None:
    came: asyncio.Queue[bytes] = asyncio.Queue()
    pushes = [Push("did:x:me", EnvelopesWaiting())]
    client = await connect_to_host(host.address, EDGE, came.put_nowait)
    calls = [asyncio.create_task(client.submit(b"batch")), asyncio.create_task(client.ask(b"?"))]
    _, _, answer, incarnation = await host.next()
    _, answered = await asyncio.wait_for(host.questions.get(), WAIT_S)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    answered(b"late")
    answer(msgspec.msgpack.encode(BatchResult(incarnation, [Done()], pushes)))
    pushed = await asyncio.wait_for(came.get(), WAIT_S)
    assert msgspec.msgpack.decode(pushed, type=list[Push]) == pushes
    assert came.empty()
    client.close()


async def test_a_new_connection_of_an_edge_ends_the_one_before(host: Host) -> None:
    before = await connect_to_host(host.address, EDGE, nowhere)
    after = await connect_to_host(host.address, EDGE, nowhere)
    assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE
    assert before.incarnation != after.incarnation
    call = asyncio.create_task(after.submit(b"batch"))
    _, _, answer, incarnation = await host.next()
    answer(b"answer")
    assert (await call, incarnation) == (b"answer", after.incarnation)
    assert not before.is_open
    assert host.lost.empty()  # called once, and before the first batch of the new connection
    after.close()


async def test_a_connection_that_its_edge_gave_up_ends_no_later_one_with_a_late_hello(
    host: Host,
) -> None:
    """An edge waits a second for its welcome; a busy host may read its first hello last."""
    given_up = await asyncio.to_thread(
        socket.create_connection, ("127.0.0.1", host.address.port), WAIT_S
    )
    client = await connect_to_host(host.address, EDGE, nowhere)
    hello = msgspec.msgpack.encode(Hello(host.address.token, EDGE))
    with given_up:
        given_up.sendall(HEADER.pack(len(hello), PUSH) + hello)
        assert await asyncio.to_thread(given_up.recv, 1) == b""
    call = asyncio.create_task(client.submit(b"batch"))
    _, _, answer, incarnation = await host.next()
    assert incarnation == client.incarnation
    answer(b"answer")
    assert await call == b"answer"
    assert host.lost.empty()
    client.close()


async def test_an_answer_whose_caller_has_given_up_disturbs_no_other(host: Host) -> None:
    client = await connect_to_host(host.address, EDGE, nowhere)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.submit(b"given up")
    (_, _, late, _) = await host.next()
    call = asyncio.create_task(client.submit(b"batch"))
    _, _, answer, _ = await host.next()
    late(msgspec.msgpack.encode(BatchResult("first", [Done()], [])))
    answer(b"answer")
    assert await call == b"answer"
    client.close()


def silent_edge(address: HostLease) -> socket.socket:
    """An edge that opens a connection and reads nothing."""
    connection = socket.create_connection((address.address, address.port))
    hello = msgspec.msgpack.encode(Hello(address.token, EDGE))
    connection.sendall(HEADER.pack(len(hello), PUSH) + hello + HEADER.pack(0, 1))
    return connection


async def test_an_edge_that_reads_slowly_gets_everything_and_delays_no_other() -> None:
    host = Host(unsent_bytes_max=64 * 1024 * 1024)
    connection = silent_edge(host.address)
    _, _, answer, _ = await host.next()
    contents = [bytes([i]) * 1_000_000 for i in range(20)]
    for content in contents:  # far more than the buffers of a connection take
        answer(content)
    with connection, connection.makefile("rb") as reader:

        def read() -> list[bytes]:
            frames = []
            for _ in range(len(contents) + 1):
                length, _ = HEADER.unpack(reader.read(HEADER.size))
                frames.append(reader.read(length))
            return frames

        frames = await asyncio.to_thread(read)
    assert frames[1:] == contents
    host.server.close()


async def test_an_edge_that_never_reads_loses_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    with silent_edge(host.address):
        _, _, answer, _ = await host.next()
        for _ in range(40):
            answer(bytes(1_000_000))
        assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE
    assert "does not read" in caplog.text


async def test_what_is_no_frame_ends_the_connection(host: Host) -> None:
    connection = silent_edge(host.address)
    await host.next()
    with connection:
        connection.sendall(HEADER.pack(2**32 - 1, 2))
        assert await asyncio.wait_for(host.lost.get(), WAIT_S) == EDGE


async def test_no_connection_to_where_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await connect_to_host(
                HostLease("host", "", "", "127.0.0.1", taken.getsockname()[1], b""), EDGE, nowhere
            )


@pytest.mark.parametrize("given_up", ["never", "before its answer", "as its answer comes"])
async def test_pushes_come_in_the_order_of_their_frames_and_none_is_lost_with_its_call(
    host: Host, given_up: str
) -> None:
    """An edge that stood still reads many frames at once, and is late for all of its calls."""
    came: list[bytes] = []
    client = await connect_to_host(host.address, EDGE, came.append)
    earlier, later = ([Push(did, EnvelopesWaiting())] for did in ("did:x:earlier", "did:x:later"))
    result, alone, pushed = map(
        msgspec.msgpack.encode, (BatchResult("", [], earlier), earlier, later)
    )

    async def call() -> None:
        came.append(await client.submit(b""))

    calling = asyncio.create_task(call())
    await host.next()
    if given_up == "before its answer":
        calling.cancel()
        await asyncio.wait([calling])
    frames = ((1, result), (PUSH, pushed))
    client.data_received(b"".join(HEADER.pack(len(c), number) + c for number, c in frames))
    if given_up == "as its answer comes":
        calling.cancel()
    await asyncio.wait([calling])
    await asyncio.sleep(0)
    assert came == [result if given_up == "never" else alone, pushed]
    client.close()
