"""One edge: everything between the listening socket and the hosts, put together.

``Edge`` is plain asyncio; ``http_edge.ray_edge`` runs it as a Ray actor, tests run it in their own
process with a host beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from contextvars import Context
from typing import Any, Final

import msgspec
import orjson
from aiohttp import web

from actors.clock import Clock, new_id, system_clock
from actors.host_port import HostUnavailable
from actors.measures import process_use
from actors.partitions import Placement, is_shard, of_own_host
from actors.placement_table import Table
from actors.placer_port import PlacerPort
from actors.replies import Push
from http_edge import connections
from http_edge.app import HttpSurface
from http_edge.config import Audit, DidWeb, Limits, Rates, Settings
from http_edge.decentrl.commands import CommandFront
from http_edge.decentrl.judgement import Judge
from http_edge.decentrl.sockets import SocketFront
from http_edge.did_document import mediator_document
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.mediation import Around, Mediation, pseudonym
from http_edge.dids.resolver import Resolver
from http_edge.dids.web import WebDids, WebLimits
from http_edge.edge_report import EdgeMeasures, EdgeReport
from http_edge.gateway import Gateway, GatewayLimits, Ports
from http_edge.health import Health
from http_edge.hub import GOING_AWAY, Hub
from http_edge.mediator_keys import MediatorKeys
from http_edge.operators import OperatorFront
from http_edge.outbound.courier import Courier
from http_edge.outbound.delivery import Deliveries
from http_edge.outbound.rounds import Office
from http_edge.rate_limits import RateLimit
from http_edge.refusal_counts import RefusalCounts
from http_edge.refusal_log import RefusalLog
from http_edge.routes import FixedRoutes, LiveRoutes, Routes
from http_edge.shards import FixedPlaces, ShardFront
from http_edge.whole_log import waiting_queues

_LOG = logging.getLogger(__name__)
_PROBE_S: Final = 1.0
_MISSING_S_MAX: Final = 30.0
"""A DID document that was not there may have been published meanwhile."""
_PUSHES: Final = msgspec.msgpack.Decoder(list[Push])


def placement_of(settings: Settings) -> Placement:
    """Which host owns which partition, as the settings say."""
    return Placement(
        shards=settings.shards,
        hosts=settings.hosts,
        dedicate_all=settings.placement == "dedicated",
        dedicated=frozenset(settings.dedicated_dids),
        databases=len(settings.log_dsns),
    )


class Edge:
    """An HTTP and WebSocket server for one mediator."""

    def __init__(  # noqa: PLR0913 - the composition root is handed each part
        self,
        name: str,
        settings: Settings,
        keys: MediatorKeys,
        ports: Ports,
        *,
        routes: Routes | None = None,
        placer: PlacerPort | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """An edge that reaches its hosts through ``ports``; see ``start``.

        Without ``routes`` and ``placer`` the settings say for ever which host owns what.
        """
        limits = settings.limits
        self._settings = settings
        self._incarnation = new_id()
        self._web = _web_dids(settings.did_web)
        resolver = Resolver(settings.mediator_did, keys, web=self._web)
        self._measures = EdgeMeasures()
        self._gateway = Gateway(
            routes or FixedRoutes(placement_of(settings)),
            ports,
            _gateway_limits(limits),
            on_push=self.take_push,
            on_new_incarnation=self.host_forgot,
            measures=self._measures,
        )
        counts = _refusal_counts(settings.audit, clock)
        self._refusals = RefusalLog(name, self._incarnation, counts, self._gateway)
        self._hub = Hub(name, self._gateway)
        identities = Identities(self._gateway)
        self._courier = Courier(
            Office(name, settings.outbound, identities, _ways_out(settings, keys), clock, new_id)
        )
        self._shards = ShardFront(placer or FixedPlaces(self._gateway.routes))
        self._surface = self._put_together(keys, resolver, identities, clock)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._reached: frozenset[str] = frozenset()
        self._reaching: set[asyncio.Task[None]] = set()

    def _put_together(
        self,
        keys: MediatorKeys,
        resolver: Resolver,
        identities: Identities,
        clock: Clock,
    ) -> HttpSurface:
        """The fronts of both protocols behind one surface."""
        settings, gateway, hub = self._settings, self._gateway, self._hub
        refusals = self._refusals.counts
        commands = CommandFront(
            settings,
            Judge(settings, keys, resolver),
            resolver,
            gateway,
            clock=clock,
            senders=_senders(settings.rates),
            refusals=refusals,
            measures=self._measures,
        )
        sockets = SocketFront(
            hub.edge,
            settings.limits,
            settings.protocol,
            resolver,
            gateway,
            hub,
            clock=clock,
            refusals=refusals,
        )
        senders = _senders(settings.rates)
        around = Around(
            settings,
            identities,
            hub,
            self._courier,
            senders,
            clock,
            new_id,
            refusals,
            self._measures,
        )
        return HttpSurface(
            settings,
            orjson.dumps(mediator_document(settings.mediator_did, settings.url, keys)),
            commands,
            sockets,
            gateway,
            Health(gateway, clock=clock),
            operators=OperatorFront(keys, gateway, identities, clock=clock, new_id=new_id),
            shards=self._shards,
            didcomm=Mediation(keys, around) if settings.didcomm.enabled else None,
            clock=clock,
            new_id=new_id,
            refusals=refusals,
            measures=self._measures,
        )

    async def start(self, listener: socket.socket | None = None) -> int:
        """Listen, on ``listener`` or on the configured address; the port."""
        runner = web.AppRunner(self._surface.application(), access_log=None, handle_signals=False)
        await runner.setup()
        assert runner.server is not None
        listener = listener or listen(self._settings)
        self._runner = runner
        self._server = await connections.serve(runner.server, self._settings.limits, listener)
        loop = asyncio.get_running_loop()
        self._watching = [loop.create_task(self._probe_hosts())]
        period_s = self._settings.audit.refusals_period_s
        if period_s:
            self._watching.append(loop.create_task(self._refusals.run(period_s)))
        if self._settings.didcomm.enabled and self._settings.outbound.enabled:
            self._watching.append(loop.create_task(self._sweep_outbound()))
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """Drain: no new work, running commands answered, sockets closed with 1001."""
        self._surface.draining = True
        for task in (*self._watching, *self._reaching):
            task.cancel()
        self._hub.close_all()
        self._surface.close_sockets(GOING_AWAY)
        await self._courier.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.limits.drain_s_max):
                await self._gateway.drained()
                if self._settings.audit.refusals_period_s:
                    await self._refusals.record()
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._web is not None:
            await self._web.close()

    def report(self) -> EdgeReport:
        """What this edge has measured, and what it holds now."""
        in_flight = self._surface.in_flight
        return EdgeReport(
            measures=self._measures,
            refusals=self._refusals.counts.by_reason,
            sockets=dict(self._surface.sockets_open),
            listeners=len(self._hub),
            in_flight=in_flight.requests,
            in_flight_bytes=in_flight.size_bytes,
            outbox_items=self._gateway.waiting_items,
            outbound=self._courier.figures() if self._settings.didcomm.enabled else {},
            use=process_use(),
        )

    def take_push(self, push: Push) -> None:
        """A push for sockets of this edge."""
        self._hub.push(push)

    def take_pushes(self, pushes: bytes) -> None:
        """Pushes that came on their own: msgpack of ``list[Push]``."""
        for push in _PUSHES.decode(pushes):
            self._hub.push(push)

    def take_table(self, table: Table) -> None:
        """Who owns what from now on; sockets of shards whose sessions were lost are closed.

        For an edge with ``LiveRoutes`` alone.
        """
        routes = self._gateway.routes
        assert isinstance(routes, LiveRoutes)
        lost = routes.update(table)
        self._reach_out(table)
        if lost:
            shards = ", ".join(sorted(filter(is_shard, lost)))
            _LOG.warning("sessions lost of %s", shards or f"{len(lost)} identities")
            self._hub.close_sessions_of(lost)

    def _reach_out(self, table: Table) -> None:
        """Open lines to new hosts of identities that somebody listens for here.

        What such a host pushes before would be missed. Hosts that have ended are forgotten.
        """
        for host in self._reached - table.own_hosts.keys():
            self._gateway.forget(host)
        for host in table.own_hosts.keys() - self._reached:
            if self._hub.listeners_of(of_own_host(host)[0]):
                task = asyncio.get_running_loop().create_task(self._probe(host), context=Context())
                self._reaching.add(task)
                task.add_done_callback(self._reaching.discard)
        self._reached = frozenset(table.own_hosts)

    def host_forgot(self, host: str) -> None:
        """A host does not know the sessions of this edge any more, or could not push to it."""
        _LOG.warning("sessions at host %s are lost", host)
        self._hub.close_sessions_on(host)
        self._hub.close_sessions_of(self._gateway.routes.just_left(host))

    async def _probe_hosts(self) -> None:
        """Notice a host that restarted while nobody talked to it."""
        while True:
            await asyncio.sleep(_PROBE_S)
            hosts = {*self._gateway.routes.hosts(), *self._hub.hosts()}
            await asyncio.gather(*[self._probe(host) for host in hosts])

    async def _probe(self, host: str) -> None:
        with contextlib.suppress(HostUnavailable):
            incarnation = await self._gateway.port(host).heartbeat(
                len(self._hub), self._incarnation
            )
            self._gateway.saw_incarnation(host, incarnation)

    async def _sweep_outbound(self) -> None:
        """Find what should be on its way and is not: left over by an edge that died, or refused."""
        while True:
            try:
                agents_max = self._settings.outbound.agents_max
                waiting = await waiting_queues(self._gateway, agents_max, outbound_only=True)
                self._courier.found_waiting([queue.did for queue in waiting])
            except HostUnavailable:
                pass
            except Exception:  # noqa: BLE001 - the next look may find what this one could not
                _LOG.exception("queues with an endpoint not found")
            await asyncio.sleep(self._settings.outbound.sweep_s)


def _ways_out(settings: Settings, keys: MediatorKeys) -> Deliveries:
    return Deliveries(settings.outbound, via=pseudonym(keys))


def _gateway_limits(limits: Limits) -> GatewayLimits:
    return GatewayLimits(
        limits.outbox_items_max,
        limits.batch_items_max,
        limits.batch_bytes_max,
        limits.reads_in_flight_max,
        limits.move_wait_s_max,
    )


def _refusal_counts(audit: Audit, clock: Clock) -> RefusalCounts:
    return RefusalCounts(
        entries_max=audit.refusals_entries_max,
        senders_bytes_max=audit.refusals_senders_bytes_max,
        clock=clock,
    )


def _senders(rates: Rates) -> RateLimit:
    return RateLimit(rates.per_sender_per_s, burst_s=rates.burst_s, keys_max=rates.keys_max)


def _web_dids(settings: DidWeb) -> WebDids | None:
    if not settings.enabled:
        return None
    return WebDids(
        WebLimits(
            timeout_s=settings.seconds_max,
            body_bytes_max=settings.bytes_max,
            entries_max=settings.cache_entries_max,
            found_ttl_s=settings.cache_s,
            missing_ttl_s=min(settings.cache_s, _MISSING_S_MAX),
            allowed_hosts=frozenset(settings.allowed_hosts),
        )
    )


def listen(settings: Settings) -> socket.socket:
    """A listening socket that several edges may share (SO_REUSEPORT)."""
    host, port = settings.listen_host, settings.listen_port
    family: Any = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.settimeout(0)
    return listener
