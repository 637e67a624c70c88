"""The whole log from its databases: queries of one host of each, and sums of their figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

import msgspec

from actors.core.partitioning import Placement
from actors.host.measures import HostStats
from actors.host.port import HostUnavailable, ListQueues
from eventstore.log.event_log import DuePlace, LogFigures, StorageFigures, WaitingQueue
from http_edge.dispatch.gateway import Gateway

_PARTS: Final = StorageFigures.__struct_fields__
_N = TypeVar("_N", int, float)


async def waiting_queues(
    gateway: Gateway, limit: int, *, did: str | None = None
) -> list[WaitingQueue]:
    """The waiting queues in the log, oldest first; those of ``did`` alone if it is given.

    Raises:
        HostUnavailable: a database has no host that answers.
    """
    placement = gateway.routes.placement
    databases = range(placement.databases) if did is None else [placement.database_of(did)]
    readers = _readers(placement, gateway.routes.hosts())
    if not readers.keys() >= set(databases):
        raise HostUnavailable("a database without a host")
    question = ListQueues(limit, did=did)
    answers = [gateway.port(readers[database]).ask(question) for database in databases]
    return _oldest(await asyncio.gather(*answers), limit)


async def outbound_queues(
    gateway: Gateway, limit: int, after: WaitingQueue | None = None
) -> list[WaitingQueue]:
    """Queues of agents with an endpoint, oldest first, after one, in all databases that answer."""

    async def ask(host: str) -> list[WaitingQueue]:
        try:
            return await gateway.port(host).ask(ListQueues(limit, outbound_only=True, after=after))
        except HostUnavailable:
            return []

    readers = _readers(gateway.routes.placement, gateway.routes.hosts())
    return _oldest(await asyncio.gather(*map(ask, readers.values())), limit)


class _ByPlace:
    """Compares a queue by its place, whose stream is computed only if both are equally old."""

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue

    @cached_property
    def _place(self) -> DuePlace:
        return self._queue.place

    def __lt__(self, other: _ByPlace) -> bool:
        age, others = self._queue.oldest_at_ms, other._queue.oldest_at_ms
        return age < others if age != others else self._place < other._place


def _oldest(answers: Iterable[Sequence[WaitingQueue]], limit: int) -> list[WaitingQueue]:
    # All answers have this order; that of a single database is not compared.
    return list(islice(merge(*answers, key=_ByPlace), limit))


def logs_by_database(
    placement: Placement, reported: Iterable[tuple[str, LogFigures | None]]
) -> list[LogFigures | None]:
    """The newest figures of each database; None for a database without figures.

    ``reported`` are the names of hosts, each with the figures that the host reported.
    """
    newest: list[LogFigures | None] = [None] * placement.databases
    for host, log in reported:
        database = placement.database_of_host(host)
        known = newest[database]
        if log is not None and (known is None or log.log_position > known.log_position):
            newest[database] = log
    return newest


def total(logs: Iterable[LogFigures | None]) -> LogFigures | None:
    """The sums over databases; None if no figures are known.

    With several databases ``log_position`` is the sum of their positions.
    """
    known = [log for log in logs if log is not None]
    if not known:
        return None
    oldest = [log.queue_oldest_at_ms for log in known if log.queue_oldest_at_ms is not None]
    return LogFigures(
        log_position=sum(log.log_position for log in known),
        identities=sum(log.identities for log in known),
        queue_messages=sum(log.queue_messages for log in known),
        queue_bytes=sum(log.queue_bytes for log in known),
        queue_oldest_at_ms=min(oldest, default=None),
    )


class WholeStorage(msgspec.Struct, frozen=True, kw_only=True):
    """The storage that all databases of the log use together, in bytes.

    A field is None unless it is known for every database. ``days_until_full`` is known only for a
    log on a local disk that grows.
    """

    facts_bytes: int | None
    contents_bytes: int | None
    read_models_bytes: int | None
    wal_bytes: int | None
    free_bytes: int | None
    used_bytes: int | None
    growth_bytes_per_day: float | None
    days_until_full: float | None


def storage(placement: Placement, hosts: Iterable[HostStats]) -> WholeStorage | None:
    """The storage of the log by the first host of each database that knows it.

    None if a database has no such host.
    """
    known: dict[int, tuple[StorageFigures, HostStats]] = {}
    for stats in hosts:
        if stats.storage is not None:
            known.setdefault(placement.database_of_host(stats.name), (stats.storage, stats))
    if len(known) < placement.databases:
        return None
    parts = [storage for storage, _ in known.values()]
    growth = _sum([stats.growth_bytes_per_day for _, stats in known.values()])
    left = _sum([stats.free_bytes for _, stats in known.values()])
    free = _sum([part.free_bytes for part in parts])
    days = None
    if growth is not None and growth > 0 and left is not None:
        days = (left + (free or 0)) / growth
    return WholeStorage(
        **{name: _sum([getattr(part, name) for part in parts]) for name in _PARTS},
        growth_bytes_per_day=growth,
        days_until_full=days,
    )


def _sum(values: Sequence[_N | None]) -> _N | None:
    """The sum of the values; None if one is unknown or there are none."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def _readers(placement: Placement, hosts: Sequence[str]) -> dict[int, str]:
    readers: dict[int, str] = {}
    for host in hosts:
        readers.setdefault(placement.database_of_host(host), host)
    return readers
