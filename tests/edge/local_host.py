"""Hosts in this process: the port that an edge asks, without Ray between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from typing_extensions import override

from actors.clock import Clock, NewId
from actors.host_port import HostPort, HostUnavailable
from actors.identity_host import HostOptions, IdentityHost
from actors.partitions import dedicated_did, host_name
from actors.replies import Push
from eventstore.errors import LogError
from eventstore.log import EventLog
from http_edge.config import Settings
from http_edge.gateway import Ports
from http_edge.serve import host_options

_DEDICATED = "dedicated"
_T = TypeVar("_T")

TakePush = Callable[[Push], None]


class Held:
    """A batch that is held back on its way to a host, while others overtake it."""

    def __init__(self, what: bytes) -> None:
        self.what = what
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()


class LocalHosts:
    """The hosts of one mediator, each with its own connection to the same log.

    All dedicated identities share one host here; each is a partition of its own, claimed when it
    is first asked, so a command still crosses from the sender's shard to another host.
    """

    def __init__(self, settings: Settings, *, clock: Clock, new_id: NewId) -> None:
        """Hosts that do not run yet; see ``start``."""
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._edges: dict[str, TakePush] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._down: set[str] = set()
        self._held: Held | None = None
        self.running: dict[str, IdentityHost] = {}
        self.is_placed = False
        """Is it said from outside what is whose, as in a cluster?"""

    def start(self) -> None:
        """Open the log and claim every shard."""
        self._loop = asyncio.get_running_loop()
        options = [host_options(self._settings, index) for index in range(self._settings.hosts)]
        for option in options:
            self.run(option)
        if self._settings.placement == "dedicated" or self._settings.dedicated_dids:
            self.run(
                HostOptions(
                    name=_DEDICATED,
                    dsn=self._settings.log_dsn,
                    partitions=[],
                    limits=options[0].limits,
                )
            )

    def run(self, options: HostOptions, log: EventLog | None = None) -> IdentityHost:
        """Start one host, in place of the one that had its name."""
        options = msgspec.structs.replace(options, is_placed=self.is_placed)
        host = IdentityHost(options, self._push, clock=self._clock, new_id=self._new_id, log=log)
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

    async def pass_through(self, batch: bytes) -> None:
        """Wait here as long as this batch is held back."""
        held = self._held
        if held is not None and held.what in batch:
            self._held = None
            held.arrived.set()
            await held.released.wait()

    def find(self, host: str) -> IdentityHost:
        """A host that can be reached.

        Raises:
            HostUnavailable: it does not run, or is cut off.
        """
        name = host if dedicated_did(host) is None else _DEDICATED
        if name in self._down or name not in self.running:
            raise HostUnavailable(host)
        return self.running[name]

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
        self._did = dedicated_did(host)
        self._claimed_by: IdentityHost | None = None

    @override
    async def submit(self, batch: bytes) -> bytes:
        await self._hosts.pass_through(batch)
        return await self._ask(lambda host: host.submit(self._edge, batch))

    @override
    async def read(self, batch: bytes) -> list[bytes]:
        return await self._ask(lambda host: host.read(batch))

    @override
    async def ping(self) -> str:
        return await self._ask(IdentityHost.ping)

    @override
    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        return await self._ask(lambda host: host.heartbeat(self._edge, sockets, incarnation))

    @override
    async def stats(self) -> bytes:
        return await self._ask(IdentityHost.stats)

    @override
    async def inspect(self, question: bytes) -> bytes:
        return await self._ask(lambda host: host.inspect(question))

    @override
    async def queues(
        self, limit: int, *, outbound_only: bool = False, did: str | None = None
    ) -> bytes:
        return await self._ask(
            lambda host: host.queues(limit, outbound_only=outbound_only, did=did)
        )

    @override
    async def knows(self, did: str) -> bool:
        return await self._ask(lambda host: host.knows(did))

    async def _ask(self, ask: Callable[[IdentityHost], _T]) -> _T:
        host = self._hosts.find(self._host)
        try:
            return await asyncio.to_thread(self._claim_and, ask, host)
        except LogError as error:
            raise HostUnavailable(self._host) from error

    def _claim_and(self, ask: Callable[[IdentityHost], _T], host: IdentityHost) -> _T:
        if self._did is not None and self._claimed_by is not host:
            host.assign([self._did])
            self._claimed_by = host
        return ask(host)
