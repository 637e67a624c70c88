"""The health of the mediator, and the figures of what it holds.

``/health``, ``/livez`` and ``/readyz`` answer every client yes or no. Operators also get the
reason, and ``/status``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import web

from actors.core.placement_table import HostHoldings
from actors.host.clock import Clock
from actors.host.measures import HostStats
from actors.host.port import HostUnavailable, Ping, QueryHoldings, QueryStats
from http_edge.admin.operators import json_answer
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.whole_log import logs_by_database, storage, total
from http_edge.listener.in_flight import InFlight
from http_edge.listener.routes import PlainRoute, Route

Figures: TypeAlias = dict[str, Any]

_CACHE_MS: Final = 1_000
"""A check asks hosts: strangers must not be able to keep hosts busy with requests for health."""
_CHECK_S_MAX: Final = 5.0
_OK: Final = {"status": "ok"}
_UNEXPLAINED: Final = "part of this mediator does not work"
"""The detail for strangers: DCTRL-0004 3.3 asks for a description."""


class _HostState(msgspec.Struct, frozen=True):
    """The problem of a host, None without one; ``serves``: does it do at least part of its work?"""

    problem: str | None
    serves: bool


class Health:
    """Asks every host of shards; answers from a cache of one second."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        clock: Clock,
        silent_s_max: float,
        others: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """A health check over the hosts that the gateway reaches.

        After ``silent_s_max`` without an answer of the placer, another placer may have taken over.
        ``others`` returns the problems of what has no host.
        """
        self._gateway = gateway
        self._clock = clock
        self._others = others
        self._checked_ms = 0
        self._problems: list[str] = []
        self._working = 0
        self._is_one_missing = False
        self._silent_s_max = silent_s_max
        self._well: str | None = None
        self._well_ms = 0
        self._lock = asyncio.Lock()

    async def detail(self) -> str | None:
        """None if every shard has a host that answers and whose log takes writes; else why not."""
        return "; ".join(await self._check()) or None

    async def unready(self) -> str | None:
        """None if any host with shards answers and its log takes writes; else why not.

        One working host is enough: sending no more requests to this edge mends no host, and the
        other edges reach the same hosts, so taking the edges out would end the service of the
        working hosts as well. As long as that host works, no other is asked. A host without shards
        does not count: on a machine that is cut off from the others, but not from the log, it is
        the host that this edge still reaches. If neither the placer nor some host answers, this
        edge itself is cut off: the shards that it reaches have other owners by now. The exception
        is a database of which no host works: that database is away for all edges.
        """
        is_silent = self._gateway.routes.silent_s() > self._silent_s_max
        if not is_silent and await self._is_one_well():
            return None
        problems = await self._check()
        if self._working and not (is_silent and self._is_one_missing):
            return None
        return "; ".join(problems) or "no known host owns a shard"

    async def _is_one_well(self) -> bool:
        """Does the host still work that worked at the last check?"""
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
                self._is_one_missing = self._is_divided(hosts, found)
                self._well = working[0] if working else None
                unowned = self._gateway.routes.unowned()
                if unowned:
                    self._problems.append(f"{unowned} shards have no host")
                self._problems += self._others()
                self._checked_ms = self._clock()
            return self._problems

    def _is_divided(self, hosts: Sequence[str], found: Sequence[_HostState]) -> bool:
        """Whether a database has hosts that work and hosts that do not answer."""
        missing, there = set[int](), set[int]()
        database_of = self._gateway.routes.placement.database_of_host
        for host, each in zip(hosts, found, strict=True):
            is_missing = each.problem is not None and not each.serves
            (missing if is_missing else there).add(database_of(host))
        return not missing.isdisjoint(there)

    async def figures(self) -> dict[str, Any]:
        """The figures of the hosts: what they hold, and what they have done since their start."""
        routes = self._gateway.routes
        hosts = routes.hosts()
        stats, own = await asyncio.gather(
            self._stats_of(hosts), self._stats_of(routes.dedicated_hosts())
        )
        every = [*stats, *own]
        logs = logs_by_database(routes.placement, ((s.name, s.log) for s in stats))
        log = total(logs)
        figures: dict[str, Any] = {} if log is None else msgspec.to_builtins(log)
        if len(logs) > 1:
            figures["log_positions"] = [None if one is None else one.log_position for one in logs]
        oldest_ms = figures.pop("queue_oldest_at_ms", None)
        waiting = oldest_ms is not None
        age_s = max(0.0, (self._clock() - oldest_ms) / 1000) if waiting else None
        figures["queue_oldest_age_s"] = age_s
        takes = storage(routes.placement, stats)
        figures["storage"] = None if takes is None else msgspec.to_builtins(takes)
        figures["sockets"] = sum(max((s.sockets for s in stats), key=len, default={}).values())
        figures["commits"] = sum(s.commits for s in every)
        figures["commits_per_s"] = sum(s.commits_per_s for s in every)
        figures["commands"] = sum(s.commands for s in every)
        figures["commands_per_s"] = sum(s.commands_per_s for s in every)
        answered = {s.name for s in stats}
        figures["silent_hosts"] = [host for host in hosts if host not in answered]
        # Only their number: their names contain DIDs.
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
        return _HostState(_problem(host, holdings), serves=bool(holdings.shards))

    async def _stats_of(self, hosts: Sequence[str]) -> list[HostStats]:
        found = await asyncio.gather(*[self._stats(host) for host in hosts])
        return [stats for stats in found if stats is not None]

    async def _stats(self, host: str) -> HostStats | None:
        try:
            async with asyncio.timeout(_CHECK_S_MAX):
                return await self._gateway.port(host).ask(QueryStats())
        except (HostUnavailable, TimeoutError):
            return None


def _problem(host: str, holdings: HostHoldings) -> str | None:
    if holdings.log_fails and holdings.shards:
        return f"the log of {host} fails: its lines on stderr say why"
    if holdings.short_of_disk:
        return f"{host} is short of disk space and refuses commands that store data"
    return None


class HealthEndpoint:
    """Serves the health checks and the figures of the mediator.

    ``refused`` returns the number of requests that this edge has refused. ``parts`` returns the
    figures of work that not every mediator does, from those of the hosts.
    """

    def __init__(
        self,
        health: Health,
        in_flight: InFlight,
        *,
        refused: Callable[[], int],
        parts: Callable[[Figures], Figures],
    ) -> None:
        self._health = health
        self._in_flight = in_flight
        self._refused = refused
        self._parts = parts

    def routes(self) -> Sequence[Route]:
        """The checks for every client, without reasons.

        ``/health`` is about the whole mediator (DCTRL-0004 3.3), ``/readyz`` about what this edge
        can serve; without an answer of ``/livez`` a supervisor restarts this process.
        """
        return [
            PlainRoute("GET", "/health", partial(self._check, self._health.detail)),
            PlainRoute("GET", "/livez", _is_alive),
            PlainRoute("GET", "/readyz", partial(self._check, self._health.unready)),
        ]

    def operator_routes(self) -> Sequence[PlainRoute]:
        """``/health`` and ``/readyz`` with reasons, and ``/status``."""
        explained = partial(self._check, explained=True)
        return [
            PlainRoute("GET", "/health", partial(explained, self._health.detail)),
            PlainRoute("GET", "/readyz", partial(explained, self._health.unready)),
            PlainRoute("GET", "/status", self._status),
        ]

    async def _check(
        self,
        find_fault: Callable[[], Awaitable[str | None]],
        _: web.Request,
        *,
        explained: bool = False,
    ) -> web.Response:
        """The answer to a health check; it names the fault only if ``explained``."""
        fault = "draining" if self._in_flight.draining else await find_fault()
        if fault is None:
            return json_answer(_OK)
        found = {"status": "error", "detail": fault if explained else _UNEXPLAINED}
        return json_answer(found, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _status(self, _: web.Request) -> web.Response:
        """Answer with the figures of the hosts and of this edge."""
        figures = await self._health.figures()
        figures["refusals_of_this_edge"] = self._refused()
        return json_answer(figures | self._parts(figures))


async def _is_alive(_: web.Request) -> web.Response:
    return json_answer(_OK)
