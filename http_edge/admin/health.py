"""Is the mediator able to do its work, and what does it hold now.

``/health``, ``/livez`` and ``/readyz`` answer every client yes or no; operators hear why, and have
``/status``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
import orjson
from aiohttp import web

from actors.host.clock import Clock
from actors.host.measures import HostStats
from actors.host.port import HostUnavailable, Ping, QueryHoldings, QueryStats
from http_edge.admin.operators import OperatorAccess
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.whole_log import logs_by_database, storage, total
from http_edge.listener.in_flight import InFlight
from http_edge.listener.routes import JSON, PlainRoute, Route

Figures: TypeAlias = dict[str, Any]

_CACHE_MS: Final = 1_000
"""A check asks hosts: strangers asking for health must not be able to keep them busy."""
_CHECK_S_MAX: Final = 5.0
_UNEXPLAINED: Final = "part of this mediator does not work"
"""What strangers hear, because DCTRL-0004 3.3 asks for a description."""


class _HostState(msgspec.Struct, frozen=True):
    """What is wrong with a host, None if nothing is; ``serves``: it does a part of its work."""

    problem: str | None
    serves: bool


class Health:
    """Asks every host of shards; answers from a cache of one second."""

    def __init__(self, gateway: Gateway, *, clock: Clock, silent_s_max: float) -> None:
        """A health check over the hosts that the gateway reaches.

        ``silent_s_max``: after so long without a word of the placer another one would be.
        """
        self._gateway = gateway
        self._clock = clock
        self._checked_ms = 0
        self._problems: list[str] = []
        self._working = 0
        self._is_one_missing = False
        self._silent_s_max = silent_s_max
        self._well: str | None = None
        self._well_ms = 0
        self._lock = asyncio.Lock()

    async def detail(self) -> str | None:
        """None when every shard has a host that answers and whose log takes writes, else why."""
        return "; ".join(await self._check()) or None

    async def unready(self) -> str | None:
        """None when any host with shards answers and its log takes writes, else what does not.

        A host without a shard serves no one: on a machine that is cut off from the others, but not
        from the log, it is the one that this edge still reaches. To send no more requests to this
        edge cures no host, and the other edges reach the same hosts: where some still work, taking
        the edges out would end the service of those, too. So one that works is enough, and as long
        as it does no other is asked. Without a word of the placer, and of another host, it is this
        edge that is cut off: what it reaches has other owners by now.
        """
        is_silent = self._gateway.routes.silent_s() > self._silent_s_max
        if not is_silent and await self._is_one_well():
            return None
        problems = await self._check()
        if self._working and not (is_silent and self._is_one_missing):
            return None
        return "; ".join(problems) or "no known host owns a shard"

    async def _is_one_well(self) -> bool:
        """Does the host that worked when it was asked last still work?"""
        async with self._lock:
            now_ms, host = self._clock(), self._well
            if host is None or abs(now_ms - self._well_ms) < _CACHE_MS:
                return host is not None
            state = await self._state(host)
            self._well_ms = now_ms
            if not state.serves:
                self._well = None
            return self._well is not None

    async def _check(self) -> list[str]:
        async with self._lock:
            if abs(self._clock() - self._checked_ms) >= _CACHE_MS:
                hosts = self._gateway.routes.hosts()
                found = await asyncio.gather(*[self._state(host) for host in hosts])
                self._problems = [each.problem for each in found if each.problem is not None]
                working = [host for host, each in zip(hosts, found, strict=True) if each.serves]
                self._working = len(working)
                self._is_one_missing = any(each.problem and not each.serves for each in found)
                self._well = working[0] if working else None
                unowned = self._gateway.routes.unowned()
                if unowned:
                    self._problems.append(f"{unowned} shards have no host")
                self._checked_ms = self._clock()
            return self._problems

    async def figures(self) -> dict[str, Any]:
        """What the hosts hold and have done since they started."""
        routes = self._gateway.routes
        stats, own = await asyncio.gather(
            self._stats_of(routes.hosts()), self._stats_of(routes.dedicated_hosts())
        )
        every = [*stats, *own]
        logs = logs_by_database(self._gateway.placement, ((s.name, s.log) for s in stats))
        log = total(logs)
        figures: dict[str, Any] = {} if log is None else msgspec.to_builtins(log)
        if len(logs) > 1:
            figures["log_positions"] = [None if one is None else one.log_position for one in logs]
        oldest_ms = figures.pop("queue_oldest_at_ms", None)
        waiting = oldest_ms is not None
        figures["queue_oldest_age_s"] = (self._clock() - oldest_ms) / 1000 if waiting else None
        takes = storage(self._gateway.placement, stats)
        figures["storage"] = None if takes is None else msgspec.to_builtins(takes)
        figures["sockets"] = sum(max((s.sockets for s in stats), key=len, default={}).values())
        figures["commits"] = sum(s.commits for s in every)
        figures["commits_per_s"] = sum(s.commits_per_s for s in every)
        figures["commands"] = sum(s.commands for s in every)
        figures["commands_per_s"] = sum(s.commands_per_s for s in every)
        # Their names contain DIDs, which are for operators with a token.
        figures["dedicated_hosts"] = len(own)
        figures["hosts"] = [
            {
                k: v
                for k, v in msgspec.to_builtins(s).items()
                if k not in {"partitions", "log", "storage", "growth_bytes_per_day", "sockets"}
            }
            for s in stats
        ]
        figures["shards"] = [
            {"shard": partition, "host": s.name, "node": s.node}
            for s in stats
            for partition in sorted(s.partitions, key=lambda name: (len(name), name))
        ]
        return figures

    async def _state(self, host: str) -> _HostState:
        port = self._gateway.port(host)
        try:
            async with asyncio.timeout(_CHECK_S_MAX):
                await port.ask(Ping())
                holdings = await port.ask(QueryHoldings())
        except (HostUnavailable, TimeoutError):
            problem = f"{host} does not answer, or its log accepts no writes"
            return _HostState(problem, serves=False)
        short = f"{host} is short of disk space and refuses commands that store data"
        return _HostState(short if holdings.short_of_disk else None, serves=bool(holdings.shards))

    async def _stats_of(self, hosts: Sequence[str]) -> list[HostStats]:
        found = await asyncio.gather(*[self._stats(host) for host in hosts])
        return [stats for stats in found if stats is not None]

    async def _stats(self, host: str) -> HostStats | None:
        try:
            async with asyncio.timeout(_CHECK_S_MAX):
                return await self._gateway.port(host).ask(QueryStats())
        except (HostUnavailable, TimeoutError):
            return None


class HealthEndpoint:
    """The checks of health, and the figures of the mediator.

    ``refused`` is the number of requests that this edge has refused. ``outbound`` are the figures
    of deliveries to endpoints, ``export`` those of the export, from the figures of ``/status`` so
    far, ``archive`` those of archiving; None where this mediator does not do so.
    """

    def __init__(
        self,
        health: Health,
        in_flight: InFlight,
        *,
        refused: Callable[[], int],
        outbound: Callable[[], dict[str, int]] | None = None,
        export: Callable[[Figures], Figures] | None = None,
        archive: Callable[[], Figures] | None = None,
    ) -> None:
        self._health = health
        self._in_flight = in_flight
        self._refused = refused
        self._outbound = outbound
        self._export = export
        self._archive = archive

    def routes(self) -> Sequence[Route]:
        """``/health``, ``/livez`` and ``/readyz`` for every client: without what is wrong."""
        return [
            PlainRoute("GET", "/health", self._check_health),
            PlainRoute("GET", "/livez", self._check_alive),
            PlainRoute("GET", "/readyz", self._check_ready),
        ]

    def operator_routes(self, access: OperatorAccess) -> Sequence[Route]:
        """``/health`` and ``/readyz`` with what is wrong, and ``/status``."""
        return [
            PlainRoute("GET", "/health", access.authorized(self._explain_health)),
            PlainRoute("GET", "/readyz", access.authorized(self._explain_ready)),
            PlainRoute("GET", "/status", access.authorized(self._status)),
        ]

    async def _check_health(self, _: web.Request) -> web.Response:
        """The health of the whole mediator (DCTRL-0004 3.3)."""
        return _check(await self._health_fault())

    async def _check_alive(self, _: web.Request) -> web.Response:
        """This process takes requests; a supervisor would restart it otherwise."""
        return _check(None)

    async def _check_ready(self, _: web.Request) -> web.Response:
        """Requests are worth sending here: some of them, at least, can be answered."""
        return _check(await self._ready_fault())

    async def _explain_health(self, _: web.Request) -> web.Response:
        return _check(await self._health_fault(), explained=True)

    async def _explain_ready(self, _: web.Request) -> web.Response:
        return _check(await self._ready_fault(), explained=True)

    async def _health_fault(self) -> str | None:
        return self._draining() or await self._health.detail()

    async def _ready_fault(self) -> str | None:
        return self._draining() or await self._health.unready()

    async def _status(self, _: web.Request) -> web.Response:
        """What the hosts and this edge hold and have done."""
        figures = await self._health.figures()
        figures["refusals_of_this_edge"] = self._refused()
        if self._outbound is not None:
            figures["outbound"] = self._outbound()
        if self._export is not None:
            figures["export"] = self._export(figures)
        if self._archive is not None:
            figures["archive"] = self._archive()
        return web.Response(body=orjson.dumps(figures), content_type=JSON)

    def _draining(self) -> str | None:
        return "draining" if self._in_flight.draining else None


def _check(fault: str | None, *, explained: bool = False) -> web.Response:
    """The answer to a check of health: whether anything is wrong, and what if it is to be said."""
    found = {"status": "ok"}
    if fault is not None:
        found = {"status": "error", "detail": fault if explained else _UNEXPLAINED}
    status = HTTPStatus.OK if fault is None else HTTPStatus.SERVICE_UNAVAILABLE
    return web.Response(status=status, body=orjson.dumps(found), content_type=JSON)
