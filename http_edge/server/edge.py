"""One edge: everything between the listening socket and the hosts, put together.

``Edge`` is plain asyncio; ``http_edge.server.ray_edge`` runs it as a Ray actor, tests run it in
their own process with a host beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import orjson

from actors.core.partitioning import identity_of_host, is_shard
from actors.core.placement_table import PlacementTable
from actors.core.replies import KeysOver, Push
from actors.host.clock import Clock, new_id, system_clock
from actors.host.measures import MetricFamily, families
from actors.host.port import HostUnavailable
from actors.host.tasks import Tasks
from actors.placement.port import PlacerPort
from eventstore.log.seal import command_key
from http_edge.admin.erasure import ErasureEndpoint
from http_edge.admin.health import Health, HealthEndpoint
from http_edge.admin.operators import QueueEndpoint, for_operators
from http_edge.admin.shards import FixedPlaces, PlacementEndpoint
from http_edge.crypto.mediator_keys import MediatorKeys, operators_token
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.decentrl.answers import rejection_body
from http_edge.decentrl.command_table import TABLE
from http_edge.decentrl.commands import CommandEndpoint
from http_edge.decentrl.public_events import PublicEventsEndpoint
from http_edge.decentrl.routes import decentrl_routes
from http_edge.decentrl.sockets import SocketEndpoint
from http_edge.decentrl.validator import CommandValidator
from http_edge.didcomm.accounts import ErasedAccounts
from http_edge.didcomm.composition import DidCommDependencies, DidCommMediator, pseudonym
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.outbound.destinations import Destinations
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.worker import DeliveryQueue
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.didcomm.push.gateways import open_gateway
from http_edge.didcomm.push.notifier import PushNotifier
from http_edge.didcomm.unknown_dids import methods
from http_edge.dids import web
from http_edge.dids.fetched import Caller, FetchedDids, FetchedMethod, WebLimits
from http_edge.dids.own_document import mediator_document
from http_edge.dids.resolver import Resolver
from http_edge.dispatch.gateway import Gateway, Ports
from http_edge.dispatch.hub import GOING_AWAY, Hub
from http_edge.dispatch.refusal_log import RefusalLog
from http_edge.dispatch.routes import Routes
from http_edge.dispatch.whole_log import outbound_queues
from http_edge.listener.address_charge import charge_bytes, paying_address
from http_edge.listener.body_reads import in_reading_thread
from http_edge.listener.in_flight import InFlight
from http_edge.listener.listener import HttpListener
from http_edge.listener.routes import Route, RouteGroup
from http_edge.server.address import listen
from http_edge.server.log_head import LogHeadEndpoint
from http_edge.server.status_files import problems_of, status_parts
from http_edge.settings.settings import Audit, DidWeb, Settings
from http_edge.telemetry.edge_measures import EdgeMeasures, outbound_measures, push_measures
from http_edge.telemetry.refusal_counts import DECENTRL, RefusalCounts

_LOG = logging.getLogger(__name__)
_PROBE_S: Final = 1.0
_MISSING_S_MAX: Final = 30.0
"""How long a DID document that was missing is not fetched again: it may be published meanwhile."""
_DOCUMENTS_MAX: Final = 3
"""Documents that one command needs at most: its sender's, and those of a contract's two parties."""
_Document = TypeVar("_Document")
_PUSHES: Final = msgspec.msgpack.Decoder(list[Push])


class Edge:
    """An HTTP and WebSocket server for one mediator."""

    def __init__(  # noqa: PLR0913 - the composition root is handed each part
        self,
        name: str,
        settings: Settings,
        keys: MediatorKeys,
        ports: Ports,
        *,
        routes: Routes,
        placer: PlacerPort | None = None,
        clock: Clock = system_clock,
        former_urls: Sequence[str] = (),
    ) -> None:
        """An edge of hosts at ``ports``; see ``start``. Without ``placer`` owners never change.

        ``former_urls`` are those by which agents may still know this mediator.
        """
        self._settings = settings
        self._web = _fetched_dids(settings.did_web, web.METHODS)
        self._agent_dids = _fetched_dids(settings.did_web, methods(clock))
        resolver = Resolver(settings.mediator_did, keys, web=self._web)
        self._measures = EdgeMeasures()
        self._gateway = Gateway(
            routes,
            ports,
            settings.limits,
            on_push=self.take_push,
            on_new_incarnation=self.host_forgot,
            measures=self._measures,
            address_of=paying_address,
        )
        counts = _refusal_counts(settings.audit, clock, self._measures)
        self._refusals = RefusalLog(name, new_id(), counts, self._gateway)
        self._hub = Hub(name, self._gateway)
        identities = Identities(self._gateway)
        self._keylists = Keylists(
            identities,
            keys_max=settings.didcomm.keylist_keys_max,
            # In an outbox a command waits up to twice as long as for its answer.
            command_s_max=3 * settings.limits.host_call_s_max + settings.limits.move_wait_s_max,
        )
        self._erased = ErasedAccounts(identities, self._keylists)
        self._delivery_workers = self._workers(name, keys, identities, clock)
        self._push_notifier = _push_notifier(settings, identities)
        self._placer = placer or FixedPlaces(self._gateway.routes)
        self._in_flight = InFlight(settings.limits)
        self._mediation = self._didcomm(keys, identities, clock, former_urls)
        listener = partial(
            HttpListener,
            settings,
            clock=clock,
            refusals=counts,
            measures=self._measures,
            error_body=rejection_body,
        )
        self._listener = listener(self._routes(keys, resolver, clock), self._in_flight)
        operators = RouteGroup(DECENTRL, self._operator_routes(identities, clock))
        self._operators = listener([operators], InFlight(settings.limits), cors=False)
        self.operators_port = 0
        self._show_state()
        self._working = Tasks()

    def _routes(self, keys: MediatorKeys, resolver: Resolver, clock: Clock) -> list[RouteGroup]:
        """The routes of each protocol family, of health and of the head of the log."""
        settings, gateway, hub = self._settings, self._gateway, self._hub
        refusals = self._refusals.counts
        commands = CommandEndpoint(
            CommandValidator(settings, keys, resolver, TABLE),
            gateway,
            clock=clock,
            refusals=refusals,
            measures=self._measures,
            erased=self._erased,
        )
        self._sockets = SocketEndpoint(
            settings, resolver, gateway, hub, clock=clock, refusals=refusals
        )
        mediation = self._mediation
        document = mediator_document(settings.mediator_did, settings.url, keys)
        web_document = document if mediation is None else mediation.own_dids.merged(document)
        outbound = self._delivery_workers.figures if settings.didcomm.enabled else None
        push = None if self._push_notifier is None else self._push_notifier.figures
        self._health = HealthEndpoint(
            Health(
                gateway,
                clock=clock,
                silent_s_max=settings.limits.host_lease_s,
                others=partial(problems_of, settings),
            ),
            self._in_flight,
            refused=lambda: refusals.total,
            parts=partial(status_parts, settings, clock, outbound=outbound, push=push),
        )
        groups = [
            decentrl_routes(
                settings,
                orjson.dumps(document),
                orjson.dumps(web_document),
                commands,
                self._sockets,
                PublicEventsEndpoint(settings.limits, gateway, refusals),
            ),
            # Requests on these routes are counted like Decentrl's.
            RouteGroup(
                DECENTRL, [*self._health.routes(), *LogHeadEndpoint(settings, clock).routes()]
            ),
        ]
        return groups if mediation is None else [*groups, mediation.routes()]

    def _operator_routes(self, identities: Identities, clock: Clock) -> list[Route]:
        """The routes of the operators' own listener; each demands their token."""
        token = operators_token(self._settings.operators_token_path)
        erasure = ErasureEndpoint(
            self._gateway,
            identities,
            self._erased,
            records_max=self._settings.retention.records_per_step_max,
        )
        routes = [
            *self._health.operator_routes(),
            *QueueEndpoint(self._gateway, identities, clock=clock).routes(),
            *erasure.routes(),
            *PlacementEndpoint(self._placer).routes(),
        ]
        return [replace(route, handle=for_operators(token, route.handle)) for route in routes]

    def _workers(
        self, name: str, keys: MediatorKeys, identities: Identities, clock: Clock
    ) -> DeliveryWorkers:
        outbound, fetched = self._settings.outbound, self._agent_dids
        destinations = Destinations(outbound, via=pseudonym(keys))
        return DeliveryWorkers(
            DeliveryQueue(name, outbound, identities, destinations, clock, fetched)
        )

    def _didcomm(
        self,
        keys: MediatorKeys,
        identities: Identities,
        clock: Clock,
        former_urls: Sequence[str],
    ) -> DidCommMediator | None:
        if not self._settings.didcomm.enabled:
            return None
        didcomm = DidCommDependencies(
            self._settings,
            identities,
            self._keylists,
            self._hub,
            self._delivery_workers,
            self._push_notifier,
            clock,
            self._refusals.counts,
            self._measures,
            self._agent_dids,
            former_urls,
        )
        return DidCommMediator(keys, didcomm)

    async def start(self, listener: socket.socket | None = None) -> int:
        """Listen on ``listener`` or on the configured address; return the port.

        Listen for operators, too: their port is in ``operators_port`` then.
        """
        operators = listen(self._settings.operators.listen)
        self.operators_port = operators.getsockname()[1]
        await self._operators.start(operators)
        listener = listener or listen(self._settings.listen)
        await self._listener.start(listener)
        self._go_on(self._probe_hosts())
        if period_s := self._settings.audit.refusals_period_s:
            self._go_on(self._refusals.run(period_s))
        if self._settings.didcomm.enabled and self._settings.outbound.enabled:
            self._go_on(self._sweep_outbound())
        port: int = listener.getsockname()[1]
        return port

    async def stop(self, drain_s: float | None = None) -> None:
        """Drain: accept no new work, answer running commands, close sockets with 1001.

        Draining takes ``drain_s`` at most (default: ``limits.drain_s_max``). Deliveries to agents'
        endpoints get half of it: strangers have named these endpoints, and they may take any time.
        """
        drain_s = self._settings.limits.drain_s_max if drain_s is None else drain_s
        self._in_flight.draining = True
        self._working.cancel()
        self._keylists.stop()
        self._hub.close_all()
        if self._mediation is not None:  # also sockets that no agent has used yet
            self._mediation.sockets.close_all(GOING_AWAY)
        closed = asyncio.ensure_future(self._sockets.close_unauthenticated(GOING_AWAY))
        delivered = asyncio.ensure_future(self._delivery_workers.close(drain_s / 2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._gateway.drained()
                await asyncio.shield(delivered)
                await asyncio.shield(closed)
                await self._gateway.drained()  # the removal of delivered messages
                if self._settings.audit.refusals_period_s:
                    await self._refusals.record()
        await delivered
        if self._push_notifier is not None:
            await self._push_notifier.close()
        await self._listener.stop()
        await self._operators.stop()
        for fetched in (self._web, self._agent_dids):
            if fetched is not None:
                await fetched.close()

    def report(self) -> list[MetricFamily]:
        """The metrics of this edge: what it has measured and what it holds now."""
        return families(self._measures.registry)

    def _show_state(self) -> None:
        """Let the gauges read what this edge holds at each report."""
        measures, in_flight = self._measures, self._in_flight
        measures.subscribers.set_function(lambda: len(self._hub))
        measures.in_flight.set_function(lambda: in_flight.requests)
        measures.in_flight_bytes.set_function(lambda: in_flight.bodies.size_bytes)
        measures.outbox_items.set_function(lambda: self._gateway.waiting_items)
        for protocol in in_flight.sockets:
            count = partial(in_flight.sockets.__getitem__, protocol)
            measures.sockets.labels(protocol).set_function(count)
        if self._settings.didcomm.enabled:
            measures.registry.register(outbound_measures(self._delivery_workers.figures))
        if self._push_notifier is not None:
            measures.registry.register(push_measures(self._push_notifier.figures))

    def take_push(self, push: Push) -> None:
        """Take a push for sockets of this edge, or for the edge itself."""
        if isinstance(push.notice, KeysOver):
            release = self._keylists.release(
                push.did, command_key(push.did, new_id()), push.notice.keys
            )
            self._go_on(release)
        else:
            self._hub.push(push.did, push.notice)

    def take_pushes(self, pushes: bytes) -> None:
        """Take pushes that a host sent apart from any reply: msgpack of ``list[Push]``."""
        for push in _PUSHES.decode(pushes):
            self.take_push(push)

    def take_table(self, table: PlacementTable) -> None:
        """Take over a new placement table; close sockets of partitions that lost their sessions.

        Connect to new hosts of shards, and to new dedicated hosts whose identity has a subscriber.
        """
        routes = self._gateway.routes
        known, known_dedicated = {*routes.hosts()}, {*routes.dedicated_hosts()}
        lost = routes.update(table)
        for host in routes.lost_hosts:
            self._gateway.give_up(host)
        # The edge would miss what a new host pushes before it is connected.
        for host in table.hosts.keys() - known:
            self._go_on(self._probe(host))
        for host in known_dedicated - table.dedicated_hosts.keys():
            self._gateway.forget(host)
        for host in table.dedicated_hosts.keys() - known_dedicated:
            if self._hub.subscribers_of(identity_of_host(host)[0]):
                self._go_on(self._probe(host))
        if lost:
            shards = ", ".join(sorted(filter(is_shard, lost)))
            _LOG.warning("lost the sessions of %s", shards or f"{len(lost)} identities")
            self._hub.close_sessions_of(lost)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task that belongs to no request; the edge cancels it when it stops."""
        _ = self._working.run(work, Context())

    def host_forgot(self, host: str) -> None:
        """Close the sockets at a host that lost this edge's sessions or could not push to them."""
        _LOG.warning("lost the sessions at host %s", host)
        self._hub.close_sessions_on(host)
        self._hub.close_sessions_of(self._gateway.routes.just_left(host))

    def host_left(self, host: str) -> None:
        """Forget a host that has ended in order, after all its pushes.

        The sessions that it handed over are whole; the placement table says which others are lost.
        """
        self._gateway.forget(host)

    async def _probe_hosts(self) -> None:
        """Notice a host that restarted while this edge sent it nothing.

        A probe of a host that is down takes as long as a call may, and delays no other.
        """
        under_way: dict[str, asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(_PROBE_S)
            under_way = {host: probe for host, probe in under_way.items() if not probe.done()}
            hosts = {*self._gateway.routes.hosts(), *self._hub.hosts()}
            for host in hosts - under_way.keys():
                under_way[host] = self._working.run(self._probe(host), Context())

    async def _probe(self, host: str) -> None:
        try:
            incarnation = await self._gateway.port(host).heartbeat(len(self._hub))
            self._gateway.saw_incarnation(host, incarnation)
        except HostUnavailable:
            pass
        except Exception:  # noqa: BLE001 - the next probe may succeed
            _LOG.exception("the probe of %s failed", host)

    async def _sweep_outbound(self) -> None:
        """Find waiting messages without a delivery worker: their edge died, or had no room."""
        while True:
            try:
                await self._delivery_workers.sweep(partial(outbound_queues, self._gateway))
            except Exception:  # noqa: BLE001 - the next sweep may succeed
                _LOG.exception("the search for queues with an endpoint failed")
            await asyncio.sleep(self._settings.outbound.sweep_s)


def _push_notifier(settings: Settings, identities: Identities) -> PushNotifier | None:
    try:
        gateway = open_gateway(settings.push) if settings.didcomm.enabled else None
    except (KeyFileRefused, OSError) as error:
        # It was usable at the start of the mediator, and messages do not need it.
        _LOG.error("this edge sends no push notifications until it starts again: %s", error)
        return None
    if gateway is None:
        return None
    return PushNotifier(identities, gateway, settings.push)


def _refusal_counts(audit: Audit, clock: Clock, measures: EdgeMeasures) -> RefusalCounts:
    return RefusalCounts(
        entries_max=audit.refusals_entries_max,
        senders_bytes_max=audit.refusals_senders_bytes_max,
        clock=clock,
        on_count=measures.refusals.add,
    )


def _fetched_dids(
    settings: DidWeb, methods: Mapping[str, FetchedMethod[_Document]]
) -> FetchedDids[_Document] | None:
    """Fetch documents by these methods; None if the operator does not allow it."""
    if not settings.enabled:
        return None
    # A command is read with what the cache holds, after its documents were fetched one by one.
    found_s = max(settings.cache_s, _DOCUMENTS_MAX * settings.seconds_max)
    limits = WebLimits(
        timeout_s=settings.seconds_max,
        body_bytes_max=settings.bytes_max,
        entries_max=settings.cache_entries_max,
        found_ttl_s=found_s,
        missing_ttl_s=min(found_s, _MISSING_S_MAX),
        allowed_hosts=frozenset(map(str.lower, settings.allowed_hosts)),
    )
    return FetchedDids(
        methods, limits, caller=Caller(paying_address, charge_bytes, in_reading_thread)
    )
