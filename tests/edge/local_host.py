"""Hosts in this process: the port that an edge asks, without Ray between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from typing_extensions import override

from actors.core.partitioning import host_name
from actors.core.replies import Push
from actors.host.clock import Clock, NewId
from actors.host.identity_host import HostOptions
from actors.host.port import A, HostPort, HostQuestion, HostUnavailable, NoteSockets, ReadPages
from eventstore.log.errors import LogError
from eventstore.log.event_log import EventLog
from http_edge.dispatch.gateway import Gateway, Ports
from http_edge.dispatch.routes import Routes
from http_edge.server.hosts import host_options, placement_of
from http_edge.settings.settings import Settings
from tests.called_host import CalledHost

_T = TypeVar("_T")

TakePush = Callable[[Push], None]


class Held:
    """What is held back on its way to a host, while others overtake it."""

    def __init__(self, what: bytes) -> None:
        self.what = what
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()


class LocalHosts:
    """The hosts of one mediator, each with its own connection to the same log."""

    def __init__(self, settings: Settings, *, clock: Clock, new_id: NewId) -> None:
        """Hosts that do not run yet; see ``start``."""
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._edges: dict[str, TakePush] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._down: set[str] = set()
        self._held: Held | None = None
        self._held_pages: Held | None = None
        self.running: dict[str, CalledHost] = {}
        self.is_placed = False
        """Is it said from outside what is whose, as in a cluster?"""

    def start(self) -> None:
        """Open the log and claim every shard."""
        self._loop = asyncio.get_running_loop()
        hosts = range(len(placement_of(self._settings).host_names))
        options = [host_options(self._settings, index) for index in hosts]
        for option in options:
            self.run(option)

    def run(self, options: HostOptions, log: EventLog | None = None) -> CalledHost:
        """Start one host, in place of the one that had its name."""
        if self.is_placed:
            options = msgspec.structs.replace(options, partitions=None)
        host = CalledHost(options, self._push, clock=self._clock, new_id=self._new_id, log=log)
        self.running[options.name] = host
        return host

    async def restart(self, index: int) -> None:
        """Stop one host of shards and start it anew: it has forgotten its sessions."""
        await asyncio.to_thread(self.running[host_name(index)].stop)
        self.run(host_options(self._settings, index))

    async def stop(self) -> None:
        """Stop all of them; the log stays."""
        for host in self.running.values():
            await asyncio.to_thread(host.stop)
        self.running.clear()

    def attach(self, edge: str, take_push: TakePush) -> None:
        """Deliver pushes for this edge to ``take_push``."""
        self._edges[edge] = take_push

    def ports_of(self, edge: str) -> Ports:
        """The ports of one edge, by the host's name."""
        return lambda host: LocalHostPort(self, edge, host)

    def gateway(self, edge: str, on_push: TakePush = lambda _: None) -> Gateway:
        """The gateway of one edge."""
        ports: dict[str, HostPort] = {}
        find = self.ports_of(edge)
        return Gateway(
            Routes.fixed(placement_of(self._settings)),
            lambda host: ports.setdefault(host, find(host)),
            self._settings.limits,
            on_push=on_push,
            on_new_incarnation=lambda _: None,
        )

    def cut(self, host: str) -> None:
        """The host does not answer from now on."""
        self._down.add(host)

    def mend(self, host: str) -> None:
        """The host answers again."""
        self._down.discard(host)

    def hold(self, what: bytes) -> Held:
        """Hold back the next batch that carries ``what``."""
        self._held = Held(what)
        return self._held

    def hold_pages(self) -> Held:
        """Hold back all readings of pages, as if an edge read them beside its other work."""
        self._held_pages = Held(b"")
        return self._held_pages

    async def pass_through_pages(self) -> None:
        """Wait here as long as readings of pages are held back."""
        if self._held_pages is not None:
            self._held_pages.arrived.set()
            await self._held_pages.released.wait()

    async def pass_through(self, batch: bytes) -> None:
        """Wait here as long as this batch is held back."""
        held = self._held
        if held is not None and held.what in batch:
            self._held = None
            held.arrived.set()
            await held.released.wait()

    def find(self, host: str) -> CalledHost:
        """A host that can be reached.

        Raises:
            HostUnavailable: it does not run, or is cut off.
        """
        if host in self._down or host not in self.running:
            raise HostUnavailable(host)
        return self.running[host]

    def _push(self, edge: str, pushes: list[Push]) -> None:
        take = self._edges.get(edge)
        assert self._loop is not None
        if take is not None:
            for push in pushes:
                self._loop.call_soon_threadsafe(take, push)


class LocalHostPort(HostPort):
    """The way from one edge to one host in the same process."""

    def __init__(self, hosts: LocalHosts, edge: str, host: str) -> None:
        """A port to the host of that name, whichever instance of it runs."""
        self._hosts = hosts
        self._edge = edge
        self._host = host

    @override
    async def submit(self, batch: bytes) -> bytes:
        await self._hosts.pass_through(batch)
        return await self._run(lambda host: host.submit(self._edge, batch))

    @override
    async def heartbeat(self, sockets: int) -> str:
        return await self.ask(NoteSockets(self._edge, sockets))

    @override
    def close(self) -> None:
        """What is under way in a thread of this process comes to its end."""

    @override
    async def ask(self, question: HostQuestion[A]) -> A:
        if isinstance(question, ReadPages):
            await self._hosts.pass_through_pages()
        return await self._run(lambda host: host.ask(question))

    async def _run(self, ask: Callable[[CalledHost], _T]) -> _T:
        host = self._hosts.find(self._host)
        try:
            return await asyncio.to_thread(ask, host)
        except LogError as error:
            raise HostUnavailable(self._host) from error
