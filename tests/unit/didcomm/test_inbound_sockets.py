"""What a socket does for its agents when it ends."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any, Final, cast

import pytest

from actors.core.commands import ReleaseLeases
from actors.host.clock import new_id
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.inbound_sockets import InboundSocket, SocketDependencies, _Peer
from http_edge.didcomm.protocols.protocol import Outcome
from http_edge.didcomm.unconfirmed import Handover
from http_edge.dispatch.hub import Hub
from http_edge.settings.settings import Settings
from tests.unit.didcomm.requests import Agents, agents_of, message, raw_key

SESSION: Final = "the session of a socket"
_UNUSED: Final = cast("Any", None)


async def test_a_socket_that_ends_takes_few_places_in_an_outbox_however_many_agents_it_has(
    tmp_path: Path,
) -> None:
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, hub, on_it = await socket_with_agents(agents, tmp_path)
        first = agents.hosts.hold(SESSION.encode())
        ending = asyncio.create_task(socket.end())
        await first.arrived.wait()
        sent_at_once = len(agents.seen)
        first.released.set()
        await ending
        assert sent_at_once == 1
        assert agents.seen == [ReleaseLeases(SESSION)] * on_it
        assert len(hub) == 0


async def test_a_socket_that_ends_gets_no_pushes_while_a_host_does_not_answer(
    tmp_path: Path,
) -> None:
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, hub, _ = await socket_with_agents(agents, tmp_path)
        first = agents.hosts.hold(SESSION.encode())
        ending = asyncio.create_task(socket.end())
        await first.arrived.wait()
        subscribers = len(hub)
        first.released.set()
        await ending
        assert subscribers == 0


async def test_a_socket_that_ends_releases_what_all_its_agents_have_although_one_release_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, hub, on_it = await socket_with_agents(agents, tmp_path)
        agents.before_answer[ReleaseLeases] = fail
        await socket.end()
        assert agents.seen == [ReleaseLeases(SESSION)] * on_it
        assert len(hub) == 0
    assert [record.message for record in caplog.records] == ["a task of a socket failed"]


async def test_the_sessions_of_a_socket_end_before_their_agents_can_begin_others(
    tmp_path: Path,
) -> None:
    """One after the other: the release of each precedes the end of its session."""
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, hub, on_it = await socket_with_agents(agents, tmp_path)
        held = agents.hosts.hold(b"edge-0")  # an order to end a session names the edge
        ending = asyncio.create_task(socket.end())
        await held.arrived.wait()
        assert agents.seen == [ReleaseLeases(SESSION)]
        assert len(hub._ending) == 1
        begins = asyncio.create_task(hub.session_ended(agent_account(raw_key(1)).did))
        await asyncio.sleep(0)
        assert not begins.done()
        held.released.set()
        await asyncio.gather(ending, begins)
        assert agents.seen == [ReleaseLeases(SESSION)] * on_it


async def test_the_leases_of_so_many_agents_without_pushes_end_with_their_socket_and_no_more(
    tmp_path: Path,
) -> None:
    """A socket is asked by any number of agents; those of the others end by themselves."""
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, _, on_it = await socket_with_agents(agents, tmp_path)
        for number in range(1, 100):
            socket._note_leases(agent_account(raw_key(number)).did, Outcome(handed_over=["id"]))
        socket._note_leases("did:key:last", Outcome())
        await socket.end()
        assert agents.seen == [ReleaseLeases(SESSION)] * (on_it + 4)


async def test_a_socket_that_ends_leaves_others_the_bytes_of_what_its_agents_have_not_confirmed(
    tmp_path: Path,
) -> None:
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket, _, _ = await socket_with_agents(agents, tmp_path)
        did, ids = agent_account(raw_key(1)).did, [new_id() for _ in range(100)]
        for number in range(10):
            assert socket._unconfirmed.add(Handover(did, did, b"c" * 16, ids), number)
        shared = socket._dependencies.shared
        assert shared.taken_bytes > 0
        await socket.end()
        assert shared.taken_bytes == 0


async def test_a_push_that_is_cancelled_before_it_begins_leaves_no_coroutine() -> None:
    async def push(wake: Wake) -> None:
        await wake.next(1)

    peer = _Peer(_UNUSED, _UNUSED)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        peer.start(push)
        peer.stop()
        await asyncio.gather(*peer._running, return_exceptions=True)
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


async def test_a_push_that_waits_until_it_is_read_waits_no_longer_than_pushes_go_on() -> None:
    peer, ended = _Peer(_UNUSED, _UNUSED), list[bool]()

    async def push(_: Wake) -> None:
        ended.append(await peer.has_read(1))

    async with asyncio.timeout(10):
        for pushes in range(3):
            peer.start(push)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert ended == [False] * pushes
        peer.take_pong(0)
        await asyncio.sleep(0)
        assert len(ended) == 2
        peer.take_pong(1)
        await asyncio.gather(*peer._running)
    assert ended == [False, False, True]


async def socket_with_agents(agents: Agents, data_dir: Path) -> tuple[InboundSocket, Hub, int]:
    """A socket with as many agents as may be, their hub, and their number."""
    dependencies = SocketDependencies(
        settings=Settings(data_dir=data_dir),
        envelopes=_UNUSED,
        inbound=_UNUSED,
        identities=agents,
        hub=Hub("edge-0", agents.gateway),
        waiting=_UNUSED,
    )
    socket = InboundSocket(dependencies, _UNUSED, _UNUSED)
    socket.session = SESSION
    ping = message("trust_ping/1.0/ping", **{"~transport": {"return_route": "all"}})
    admitted = [await socket.admit(agent_account(raw_key(n)), ping) for n in range(1, 100)]
    on_it = sum(peer.pump is not None for peer in admitted)
    assert on_it > 1
    return socket, dependencies.hub, on_it
