"""Every question to a host comes back by its connection with the answer that its type names."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from actors.core.commands import ClaimedKey, Page
from actors.core.limits import HostLimits
from actors.core.placement_table import HostHoldings
from actors.core.replies import KeysOver, Push
from actors.core.submissions import Read
from actors.host import identity_host
from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_client import Content, HostClient
from actors.host.host_finder import HostFinder
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.inspection import CachedIdentities, ListCachedIdentities
from actors.host.measures import HostReport, HostStats
from actors.host.port import (
    QUESTIONS,
    AdoptPartitions,
    AnyQuestion,
    EndHost,
    Expect,
    HandOut,
    HostCutOff,
    HostNotReached,
    HostQuestion,
    HostUnavailable,
    Inspect,
    IsKnown,
    ListDedicated,
    ListQueues,
    NoteSockets,
    Ping,
    QueryHoldings,
    QueryStats,
    ReadPages,
    ReleasePartitions,
    SetDraining,
    StartDedicated,
    TakeIn,
)
from actors.host.question_threads import QuestionThreads
from actors.placement.placer import Placer
from actors.ray.processes import RayIdentityHost
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import PublicEventsFilter
from eventstore.log.host_leases import HostLease
from http_edge.server.cluster_node import ClusterNode
from http_edge.settings.settings import Settings
from tests.called_host import CalledHost
from tests.cluster.accounts import until
from tests.log.raw_sql import run_sql
from tests.ports import free_port

DID, SHARD = "did:x:me", "shard-0"
WAIT_S = 10.0
WAIT_FOR_NOTHING = (NoteSockets, QueryHoldings, SetDraining, EndHost)
"""Questions that wait for neither the writer nor the log."""
NO_HANDOVER = msgspec.msgpack.encode({})
ANSWERS: list[tuple[HostQuestion[Any], type]] = [
    (AdoptPartitions([SHARD], None), dict),
    (Ping(), str),
    (NoteSockets("edge-0", 3, "first"), str),
    (QueryStats(), HostStats),
    (ReadPages([Read(DID, Page(0, 1), PublicEventsFilter())]), list),
    (IsKnown(DID), bool),
    (ListQueues(10), list),
    (Inspect(ListCachedIdentities()), CachedIdentities),
    (QueryHoldings(), HostHoldings),
    (ListDedicated(), list),
    (HandOut(DID, SHARD), bytes),
    (Expect(DID), type(None)),
    (TakeIn(DID, SHARD, NO_HANDOVER), bool),
    (SetDraining(draining=True), type(None)),
    (ReleasePartitions([SHARD]), bytes),
]


def nowhere(said: object) -> None:
    raise AssertionError(said)


@pytest.fixture
def options(tmp_path: Path) -> HostOptions:
    return HostOptions("host", f"sqlite:{tmp_path / 'log.db'}", None, HostLimits())


@pytest.fixture
def host(options: HostOptions) -> Iterator[RayIdentityHost]:
    """The actor's class, as it is before Ray makes it one."""
    host = RayIdentityHost(options, lambda _name: None)
    yield host
    host.stop()


@pytest.fixture
async def port(options: HostOptions) -> AsyncIterator[ConnectedHostPort]:
    """The way of an edge to the host, as soon as it has a row."""
    leases = options.open_leases()
    caller = Caller("edge-0", 10, nowhere, nowhere, patience_s=10)
    port = ConnectedHostPort(caller, "host", HostFinder([leases]))
    yield port
    port.close()
    leases.close()


async def test_every_question_is_answered_by_what_its_type_names(
    host: RayIdentityHost, port: ConnectedHostPort
) -> None:
    elsewhere = {StartDedicated, EndHost}  # what they are about is processes
    assert {type(question) for question, _ in ANSWERS} | elsewhere == set(get_args(AnyQuestion))
    for question, kind in ANSWERS:
        answer = await port.ask(question)
        assert type(answer) is kind, question
    (holdings,) = [await port.ask(QueryHoldings())]
    assert (holdings.name, holdings.draining, holdings.shards) == ("host", True, {})


async def test_a_question_that_fails_is_unavailable_and_the_next_one_is_answered(
    host: RayIdentityHost, port: ConnectedHostPort
) -> None:
    with pytest.raises(HostUnavailable):
        await port.ask(TakeIn(DID, SHARD, b"no handover"))
    with pytest.raises(HostUnavailable):
        await port.ask(EndHost())  # it is that of shards
    assert await port.heartbeat(1) == await port.heartbeat(1) != ""


async def test_what_was_asked_of_a_host_that_ends_is_answered_before_its_log_closes(
    options: HostOptions, port: ConnectedHostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, closed = threading.Event(), threading.Event()
    found: list[bool] = []

    def listing(_host: IdentityHost, _question: object) -> list[object]:
        began.set()
        found.append(closed.wait(0.3))
        return []

    monkeypatch.setattr(IdentityHost, "answer", listing)
    host = RayIdentityHost(options, lambda _name: None)
    close = host._log.close

    def closing() -> None:
        closed.set()
        close()

    monkeypatch.setattr(host._log, "close", closing)
    answer = asyncio.create_task(port.ask(ListQueues(10)))
    assert await asyncio.to_thread(began.wait, 10)
    await asyncio.to_thread(host.stop)
    assert found == [False]
    with suppress(HostUnavailable):  # its connection ends with the host
        assert await answer == []


@pytest.mark.usefixtures("host")
async def test_a_host_that_knows_the_sockets_of_an_edge_is_not_sent_them_again(
    port: ConnectedHostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[bytes] = []
    ask = HostClient.ask

    async def noted(client: HostClient, question: bytes) -> Content:
        questions.append(question)
        return await ask(client, question)

    monkeypatch.setattr(HostClient, "ask", noted)
    first = {await port.heartbeat(sockets) for sockets in (1, 1, 1, 2, 2)}
    assert (len(first), len(questions)) == (1, 2)
    port.close()
    # The connection ended, and what was pushed to it with it.
    second = {await port.heartbeat(2) for _ in range(3)}
    assert (len(first | second), len(questions)) == (2, 3)


async def test_sessions_end_with_the_connection_of_an_edge_and_not_with_its_next_report(
    host: RayIdentityHost, port: ConnectedHostPort
) -> None:
    sessions = host._host.registry.sessions
    await port.heartbeat(1)
    sessions.open(DID, "edge-0")
    port.close()

    async def ended() -> bool:
        return not sessions.edges_of(DID)

    await until(ended)
    await port.ask(Ping())
    sessions.open(DID, "edge-0")  # of a client that is back before the edge reports
    await port.heartbeat(1)
    assert sessions.edges_of(DID) == {"edge-0"}


async def test_who_asks_a_host_learns_whether_the_one_before_has_ended_in_order(
    options: HostOptions,
) -> None:
    leases, left = options.open_leases(), list[str]()
    caller = Caller("edge-0", 10, nowhere, nowhere, patience_s=10, on_left=left.append)
    port = ConnectedHostPort(caller, "host", HostFinder([leases]))
    known = []
    for end in (RayIdentityHost.stop, fail, RayIdentityHost.stop):
        host = RayIdentityHost(options, lambda _name: None)
        await until(partial(answered, port))
        known.append(list(left))
        await asyncio.to_thread(end, host)
    assert known == [[], ["host"], ["host"]]
    port.close()
    leases.close()


async def answered(port: ConnectedHostPort) -> bool:
    """On both connections; one that has just ended answers nothing."""
    with suppress(HostUnavailable):
        await port.ask(ReadPages([Read(DID, Page(0, 1), PublicEventsFilter())]))
        await port.ask(Ping())
        return True
    return False


def fail(host: RayIdentityHost) -> None:
    """Its connections end as those of a process that is killed."""
    host._server.close()
    host.stop()


async def test_an_edge_that_is_gone_has_no_sockets_and_gets_no_keys_of_ended_agents(
    host: RayIdentityHost, options: HostOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, pushed = options.open_leases(), list[tuple[str, list[Push]]]()
    ports = {
        name: ConnectedHostPort(
            Caller(name, 10, nowhere, nowhere, patience_s=10), "host", HostFinder([leases])
        )
        for name in ("edge-0", "edge-1")
    }
    for port in ports.values():
        await port.heartbeat(7)
    ports["edge-1"].close()

    async def forgotten() -> bool:
        return (await ports["edge-0"].ask(QueryStats())).sockets == {"edge-0": 7}

    await until(forgotten)
    monkeypatch.setattr(host, "_push_out", lambda edge, pushes: pushed.append((edge, pushes)))
    keys = [ClaimedKey("did:key:z6Mk", 1)]
    host._hand_over_keys(DID, keys)
    assert pushed == [("edge-0", [Push(DID, KeysOver(keys))])]
    ports["edge-0"].close()
    leases.close()


async def test_the_next_placer_of_a_process_takes_the_place_of_the_last_at_each_host(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    options = HostOptions("host-0", settings.log_dsn, None, HostLimits())
    host = RayIdentityHost(options, lambda _name: None)
    node = ClusterNode(settings, vital=asyncio.create_task)
    for _ in range(3):
        placer = node._new_placer(0)

        async def sees_host(placer: Placer = placer) -> bool:
            await placer.tick(0.0)
            return bool(placer.places().hosts)

        await until(sees_host)
        await placer.close()

    async def has_one_connection() -> bool:
        return len(host._server._connections) == 1

    await until(has_one_connection)
    await node.stop()
    await asyncio.to_thread(host.stop)


def test_a_placed_host_is_well_as_long_as_its_lease_runs_and_writes_nothing(
    options: HostOptions,
) -> None:
    runs = [True]
    host = IdentityHost(options, lambda *_: None, may_serve=lambda: runs[0])
    assert host.ping() == host.incarnation
    assert run_sql(options.dsn, "SELECT * FROM heartbeat") == []
    runs[0] = False
    with pytest.raises(LogUnavailable):
        host.ping()
    host.stop()


async def test_who_does_not_wait_for_a_host_hears_at_once_that_nothing_was_sent(
    options: HostOptions,
) -> None:
    leases = options.open_leases()
    gone = HostLease("host", "", "gone", "127.0.0.1", free_port(), b"token")
    finder = HostFinder([leases])
    port = ConnectedHostPort(Caller("edge-0", 10, nowhere, nowhere), "host", finder)
    with pytest.raises(HostNotReached):
        await port.submit(b"")
    leases.take(gone, 600)
    found = await finder.find("host")
    assert found is not None
    assert found.incarnation == gone.incarnation
    with pytest.raises(HostNotReached):
        await port.submit(b"")
    # Nothing listens there: that process is gone, whatever the time of its lease is.
    assert await finder.find("host") is None
    leases.close()


@pytest.mark.thorough
async def test_who_cannot_reach_a_host_that_lives_hears_so_at_once_until_there_is_a_way(
    options: HostOptions,
) -> None:
    leases = options.open_leases()
    port = ConnectedHostPort(Caller("edge-0", 10, nowhere, nowhere), "host", HostFinder([leases]))
    with ExitStack() as opened:
        # What is sent to a listener whose backlog is full is lost, as if it were cut off.
        deaf = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        where: tuple[str, int] = deaf.getsockname()
        opened.enter_context(socket.create_connection(where))
        lease = HostLease("host", "", "alive", *where, b"token")
        leases.take(lease, 600)
        for _ in range(2):
            # It may as well be a machine that was lost, which has another owner soon.
            with pytest.raises(HostNotReached):
                await port.submit(b"")
        leases.renew(lease, 600)
        with pytest.raises(HostCutOff):
            await port.submit(b"")
        # While one more attempt is made no caller waits for it.
        requests = [asyncio.create_task(port.submit(b"")) for _ in range(100)]
        await asyncio.sleep(0)
        assert all(isinstance(each.exception(), HostCutOff) for each in requests)
    host = RayIdentityHost(options, lambda _name: None)

    async def answers() -> bool:
        try:
            holdings: HostHoldings = await port.ask(QueryHoldings())
        except HostUnavailable:
            return False
        return holdings.name == "host"

    await until(answers)
    port.close()
    host.stop()
    leases.close()


@pytest.mark.usefixtures("host")
async def test_no_command_waits_behind_a_page(
    port: ConnectedHostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of: dict[type, HostClient] = {}
    ask = HostClient.ask

    async def noted(client: HostClient, question: bytes) -> Content:
        client_of[type(QUESTIONS.decode(question))] = client
        return await ask(client, question)

    monkeypatch.setattr(HostClient, "ask", noted)
    pages = ReadPages([Read(DID, Page(0, 1), PublicEventsFilter())])
    for _ in range(2):
        await port.ask(Ping())
        await port.ask(pages)
        await port.ask(QueryStats())
    assert client_of[Ping] is client_of[QueryStats]
    assert client_of[Ping] is not client_of[ReadPages]
    port.close()
    await client_of[ReadPages].ended()


@pytest.mark.parametrize("question", [question for question, _ in ANSWERS])
def test_a_host_whose_writer_or_log_hangs_answers_what_it_holds(
    question: AnyQuestion,
) -> None:
    goes_on, holds = threading.Event(), queue.SimpleQueue[bool]()

    def answer(one: AnyQuestion) -> None:
        if not isinstance(one, WAIT_FOR_NOTHING):
            goes_on.wait()

    threads = QuestionThreads(answer, call_s_max=WAIT_S)
    for _ in range(20):
        threads.ask(msgspec.msgpack.encode(question), lambda _: None)
    threads.ask(msgspec.msgpack.encode(QueryHoldings()), lambda _: holds.put(True))
    try:
        assert holds.get(timeout=WAIT_S)
    finally:
        goes_on.set()
        threads.stop()


def test_a_host_whose_writer_hangs_answers_its_counters_and_queries_its_writer_once(
    options: HostOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, goes_on = CalledHost(options, lambda _edge, _pushes: None), threading.Event()
    calls: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(host._host, "snapshot_stats", lambda: calls.append(goes_on.wait()))
        patched.setattr(identity_host, "_REPORT_S_MAX", 0.01)
        for _ in range(3):
            report = msgspec.msgpack.decode(host.report(with_log=False), type=HostReport)
            assert report.stats.name == options.name
            assert host.stats().name == options.name
        goes_on.set()
        host.ask(QueryHoldings())
    host.stop()
    assert len(calls) == 1
