"""Questions about the whole log: each goes to one host of each database, the answers are joined."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from actors.core.partitioning import Placement
from actors.host.port import HostUnavailable, ListQueues
from eventstore.log.event_log import LogFigures, WaitingQueue
from http_edge.dispatch.gateway import Gateway

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
        return await port.ask(ListQueues(limit, outbound_only, did))

    answers = await asyncio.gather(*[ask(database) for database in databases])
    found = [queue for answer in answers for queue in answer]
    return sorted(found, key=lambda queue: queue.oldest_at_ms)[:limit]


def logs_by_database(
    placement: Placement, reported: Iterable[tuple[str, LogFigures | None]]
) -> list[LogFigures | None]:
    """The newest figures of each database, None of one of which there are none.

    ``reported`` are the figures of hosts, each with its name.
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


def _readers(placement: Placement, hosts: Sequence[str]) -> dict[int, str]:
    readers: dict[int, str] = {}
    for host in hosts:
        readers.setdefault(placement.database_of_host(host), host)
    return readers
