"""What operators see of very many queues, and how long it takes: no look at each of them.

The queues are written into the read model alone, as an append writes them: what is asked here reads
nothing else. A host in this process answers what it is asked for ``/metrics`` and ``/status``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from actors.core.limits import HostLimits
from actors.host.identity_host import HostOptions
from actors.host.measures import HostReport
from actors.host.port import ListQueues, QueryStats
from eventstore.log.event_log import Due, EventLog, QueueDepth
from eventstore.read_models import queue_depths
from eventstore.stores.open_log import open_log, open_store
from http_edge.cli.output import ProgressBar
from http_edge.server.metrics import Seen, exposition
from tests.bench.report import Measurement, Report, measured, report, timed
from tests.called_host import CalledHost

_AT_ONCE: Final = 2_000
_FROM_MS: Final = 1_700_000_000_000
_TIMES: Final = 50
_UPDATED: Final = 2_000


class ScrapePlan(msgspec.Struct, frozen=True):
    """So many queues wait; the log is in SQLite, or where ``dsn`` says, in an empty database."""

    queues: int
    dsn: str = ""


async def run(wanted: ScrapePlan, folder: Path, bar: ProgressBar) -> Report:
    """Carry a plan out: how long each question takes."""
    dsn = wanted.dsn or f"sqlite:{folder / 'log.db'}"
    lines = [_fill(dsn, wanted.queues, bar)]
    options = HostOptions("host-0", dsn, ["shard-0"], HostLimits())
    host = CalledHost(options, lambda _edge, _pushes: None)
    try:
        lines += [
            _questions("metrics", lambda: _scrape(host)),
            _questions("status", lambda: host.ask(QueryStats())),
            _questions("20 queues that wait longest", lambda: host.ask(ListQueues(20))),
        ]
    finally:
        host.stop()
    with closing(open_log(dsn)) as log:
        until_ms = _FROM_MS + wanted.queues
        lines += [_search(log, due, until_ms) for due in (Due.MESSAGES, Due.REQUESTS)]
    return report(wanted, lines)


def _depth(number: int, messages: int) -> QueueDepth:
    at_ms = _FROM_MS + number * 7_919 % 1_000_003
    did = f"did:example:{number}"
    return QueueDepth(UUID(int=number), messages, messages * 1_024, at_ms, did, number % 100 == 0)


def _fill(dsn: str, queues: int, bar: ProgressBar) -> Measurement:
    done, started_s = bar("queues", queues), time.perf_counter()
    with closing(open_store(dsn)) as store:
        for first in range(0, queues, _AT_ONCE):
            with store.writing() as session:
                some = range(first, min(queues, first + _AT_ONCE))
                queue_depths.save(session, [_depth(number, 1) for number in some])
            done(some[-1] + 1)
        spent_s = time.perf_counter() - started_s
        started_ns = time.perf_counter_ns()
        with store.writing() as session:
            queue_depths.save(session, [_depth(number, 2) for number in range(_UPDATED)])
        each_us = (time.perf_counter_ns() - started_ns) / 1_000 / _UPDATED
    return timed("queues written", queues, spent_s, **{"us for one changed": each_us})


def _search(log: EventLog, due: Due, until_ms: int) -> Measurement:
    def ask() -> object:
        return log.due_identities(due, until_ms=until_ms, after=None, limit=32)

    return _questions(f"32 due by {due.value}", ask)


def _scrape(host: CalledHost) -> None:
    reported = msgspec.msgpack.decode(host.report(with_log=True), type=HostReport)
    logs = [reported.stats.log]
    seen = Seen(
        hosts={"host-0": reported}, edges={}, shards=1, logs=logs, exports=[], now_ms=_FROM_MS
    )
    exposition(seen, "")
    assert reported.stats.log is not None
    assert reported.stats.storage is not None


def _questions(name: str, ask: Callable[[], object]) -> Measurement:
    spent_ns = []
    for _ in range(_TIMES):
        started_ns = time.perf_counter_ns()
        ask()
        spent_ns.append(time.perf_counter_ns() - started_ns)
    return measured(name, spent_ns, sum(spent_ns) / 1e9)
