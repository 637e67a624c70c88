"""What is asked of the whole log: of one host for each of its databases, and put together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from actors.host import HostStats
from actors.host_port import HostUnavailable
from actors.partitions import Placement
from eventstore.log import LogFigures, WaitingQueue
from http_edge.gateway import Gateway

_QUEUES: Final = msgspec.msgpack.Decoder(list[WaitingQueue])


async def waiting_queues(
    gateway: Gateway,
    limit: int,
    *,
    outbound_only: bool = False,
    did: str | None = None,
) -> list[WaitingQueue]:
    """What waits in the log, longest first; of one identity alone if it is named.

    Raises:
        HostUnavailable: a database has no host that answers.
    """
    placement = gateway.placement
    databases = range(placement.databases) if did is None else [placement.database_of(did)]
    readers = _readers(placement, gateway.routes.hosts())
    if not readers.keys() >= set(databases):
        raise HostUnavailable("a database without a host")

    async def ask(database: int) -> list[WaitingQueue]:
        port = gateway.port(readers[database])
        return _QUEUES.decode(await port.queues(limit, outbound_only=outbound_only, did=did))

    answers = await asyncio.gather(*[ask(database) for database in databases])
    found = [queue for answer in answers for queue in answer]
    return sorted(found, key=lambda queue: queue.oldest_at_ms)[:limit]


def log_figures(placement: Placement, stats: Iterable[HostStats]) -> LogFigures | None:
    """The sums over the databases, each by its newest figures; None when no host has any.

    With several databases ``log_position`` is the sum of their positions.
    """
    newest: dict[int, LogFigures] = {}
    for host in stats:
        database = placement.database_of_host(host.name)
        known = newest.get(database)
        if host.log is not None and (known is None or host.log.log_position > known.log_position):
            newest[database] = host.log
    return total(newest.values())


def total(logs: Collection[LogFigures]) -> LogFigures | None:
    """The sums over databases; None of none."""
    if not logs:
        return None
    oldest = [log.queue_oldest_at_ms for log in logs if log.queue_oldest_at_ms is not None]
    return LogFigures(
        log_position=sum(log.log_position for log in logs),
        identities=sum(log.identities for log in logs),
        queue_messages=sum(log.queue_messages for log in logs),
        queue_bytes=sum(log.queue_bytes for log in logs),
        queue_oldest_at_ms=min(oldest, default=None),
    )


def _readers(placement: Placement, hosts: Sequence[str]) -> dict[int, str]:
    readers: dict[int, str] = {}
    for host in hosts:
        readers.setdefault(placement.database_of_host(host), host)
    return readers
