"""The connections of a listener: how many it admits, and which make room for others."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator

import pytest

from http_edge.listener import connections
from http_edge.listener.connections import Connections
from http_edge.listener.transfers import Cut, Pace, Transfers
from http_edge.settings.settings import Limits

LIMITS = Limits(connections_max=16, connections_per_address_max=8)
MANY = Limits(connections_max=1_000, connections_per_address_max=1_000)
PROXY = "proxy"


class Client:
    """A connection that is idle since ``idle_since_s``; None while it has a request."""

    address = ""
    is_shared = False
    newcomer: int | None = None

    def __init__(self, idle_since_s: float | None = None) -> None:
        self.idle_since_s = idle_since_s
        self.is_closed = False

    def force_close(self) -> None:
        self.is_closed = True


class Listener:
    """Connections of clients; those of a proxy have no address of their own."""

    def __init__(self, limits: Limits) -> None:
        self.has_tokens = True
        self.questions: list[tuple[str, int]] = []
        self.cuts: list[str] = []
        self.connections = Connections(
            limits,
            Transfers(bytes_max=1, bytes_per_address_max=1, pace=Pace(1, 1, 1)),
            address_of=lambda host: None if host == PROXY else host,
            affords=self._affords,
            on_cut=self.cuts.append,
            headers={},
        )

    def _affords(self, address: str, requests: int) -> bool:
        self.questions.append((address, requests))
        return self.has_tokens

    def admitted(self, *hosts: str) -> list[Client]:
        """Clients with a request, one of each host."""
        clients = [Client() for _ in hosts]
        found = [self.connections.admit(*each) for each in zip(clients, hosts, strict=True)]
        assert found == [None] * len(hosts)
        return clients


@pytest.fixture
async def listener(request: pytest.FixtureRequest) -> AsyncIterator[Listener]:
    listener = Listener(getattr(request, "param", LIMITS))
    yield listener
    listener.connections.stop()


def hosts(count: int) -> list[str]:
    return [f"192.0.2.{number}" for number in range(count)]


async def test_beyond_the_bound_of_all_a_connection_is_cut_unless_one_is_idle(
    listener: Listener,
) -> None:
    clients = listener.admitted(*hosts(15), PROXY)
    assert listener.connections.admit(Client(), "198.51.100.1") is Cut.CONNECTIONS
    assert len(listener.connections) == 16
    listener.connections.start()  # looks for idle ones again
    clients[3].idle_since_s, clients[5].idle_since_s = 2.0, 1.0
    assert listener.connections.admit(Client(), "198.51.100.1") is None
    assert [each for each in clients if each.is_closed] == [clients[5]], "idle for longest"
    assert (len(listener.connections), listener.cuts) == (16, ["idle"])


async def test_beyond_the_bound_of_its_address_a_connection_is_cut_unless_one_of_it_is_idle(
    listener: Listener,
) -> None:
    clients = listener.admitted(*["192.0.2.1"] * 8, "192.0.2.2")
    clients[-1].idle_since_s = 1.0
    assert listener.connections.admit(Client(), "192.0.2.1") is Cut.CONNECTIONS_PER_ADDRESS
    listener.connections.start()
    clients[0].idle_since_s = 2.0
    assert listener.connections.admit(Client(), "192.0.2.1") is None
    assert [each for each in clients if each.is_closed] == [clients[0]]


async def test_the_connections_of_a_proxy_are_bounded_with_all_others_alone(
    listener: Listener,
) -> None:
    clients = listener.admitted(*[PROXY] * 16)
    assert {(each.address, each.is_shared) for each in clients} == {("", True)}
    assert listener.connections.admit(Client(), PROXY) is Cut.CONNECTIONS


async def test_where_none_is_idle_none_is_looked_for_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, listener: Listener
) -> None:
    """A look at thousands takes milliseconds, and each new connection would cause one."""
    monkeypatch.setattr(connections, "_NONE_IDLE_S", 3_600.0)
    clients = listener.admitted(*hosts(16))
    assert listener.connections.admit(Client(), "198.51.100.1") is Cut.CONNECTIONS
    clients[0].idle_since_s = 1.0
    assert listener.connections.admit(Client(), "198.51.100.1") is Cut.CONNECTIONS
    listener.connections.start()
    assert listener.connections.admit(Client(), "198.51.100.1") is None


async def test_a_connection_that_has_ended_leaves_its_place(listener: Listener) -> None:
    clients = listener.admitted(*["192.0.2.1"] * 8)
    listener.connections.forget(clients[0])
    listener.connections.forget(clients[0])
    assert len(listener.connections) == 7
    listener.admitted("192.0.2.1")
    assert listener.connections.admit(Client(), "192.0.2.1") is Cut.CONNECTIONS_PER_ADDRESS


@pytest.mark.parametrize("listener", [MANY], indirect=True)
async def test_an_address_without_tokens_has_so_many_connections_and_no_more(
    listener: Listener,
) -> None:
    """Those that have sent no request yet are asked for: each may send one."""
    clients = listener.admitted(*["192.0.2.1"] * 64)
    assert listener.questions == []
    listener.has_tokens = False
    for each in clients[:60]:
        listener.connections.pays(each)
    assert listener.connections.admit(Client(), "192.0.2.1") is Cut.OWING
    assert listener.questions == [("192.0.2.1", 4)]
    listener.admitted("192.0.2.2", PROXY)


@pytest.mark.parametrize(
    ("hard", "admitted"),
    [(1_000, 500), (1_024, 512), (4_096, 3_584), (resource.RLIM_INFINITY, 10_000)],
)
async def test_connections_leave_files_to_all_else(
    monkeypatch: pytest.MonkeyPatch, hard: int, admitted: int
) -> None:
    """The limit of open files is raised as far as it goes; a part of it is not for connections."""
    now = {resource.RLIMIT_NOFILE: (512, hard)}
    monkeypatch.setattr(resource, "getrlimit", now.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", now.__setitem__)
    listener = Listener(Limits(connections_max=10_000, connections_per_address_max=10_000))
    assert now == {resource.RLIMIT_NOFILE: (hard, hard)}
    assert listener.connections._connections_max == admitted
    assert listener.connections._per_address_max == (admitted + 1) // 2
