"""``/metrics``: the metrics of every process of one ``poste serve``, as Prometheus reads them.

The page has a listener of its own and demands the operators' token: it is for operators only. A
process that does not answer is shown as down, and delays the answer by 3 s at most.

Label values come from closed sets: our processes, shards, stages and protocols, and our lists of
commands and results. No DID and no text of a client ever becomes a label.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from importlib.metadata import version
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from actors.core.partitioning import is_shard
from actors.host.clock import Clock
from actors.host.measures import HostReport, HostStats, MetricFamily
from eventstore.log.event_log import LogFigures
from http_edge.dispatch.whole_log import WholeStorage, logs_by_database, storage, total
from http_edge.server.exits import Exit, Stop
from http_edge.server.hosts import placement_of
from http_edge.server.status_files import archive_figures_by_database, export_figures_by_database
from http_edge.settings.settings import Limits, Settings, split_listen
from http_edge.settings.value_types import KIB

_LOG = logging.getLogger(__name__)
PATH: Final = "/metrics"
_METHODS: Final = ("GET", "HEAD")
_FRESH_S: Final = 1.0
"""The processes are asked at most once in this time, however often clients scrape."""
_ANSWER_S_MAX: Final = 3.0
"""A host waits 2 s for figures of its writer and its log, then answers without them; Prometheus
waits 10 s."""
_LIMITS: Final = Limits(connections_max=64, head_bytes_max=16 * KIB, header_bytes_max=8 * KIB)
"""What strangers may make this process hold: in ``poste serve`` its end ends all others."""
_R = TypeVar("_R")

AskReport: TypeAlias = Callable[..., Awaitable[bytes]]
"""Returns the msgpack of a host's ``HostReport`` (``with_log``: with figures of the log?), or of
an edge's ``list[MetricFamily]``."""

_BY: Final = "process"
_HOST_COUNTERS: Final = {
    "commits": ("poste_commits", "Transactions that the log has stored."),
    "rows": ("poste_log_rows", "Rows that the log has stored, seals included."),
    "append_failures": (
        "poste_append_failures",
        "Transactions whose append failed: the outcome of every command in them is unknown.",
    ),
    "partitions_lost": (
        "poste_partitions_lost",
        "Partitions that a host gave up because another owner had claimed them.",
    ),
    "activations": ("poste_activations", "Identities that were read from the log into memory."),
}
_HOST_GAUGES: Final = {
    "cached_identities": ("poste_cached_identities", "Identities in memory."),
    "cached_bytes": ("poste_cached_bytes", "Bytes that the identities in memory take."),
    "nonces": ("poste_nonces", "Nonces in force."),
    "leases": ("poste_leases", "Messages that are delivered or held back, and not removed."),
    "sessions": (
        "poste_sessions",
        "Identities for which a client is connected or waiting at an edge.",
    ),
    "live_sessions": ("poste_live_sessions", "Identities in live mode."),
    "free_bytes": ("poste_log_disk_free_bytes", "Free bytes of the disk of log.db."),
    "short_of_disk": (
        "poste_short_of_disk",
        "1 if the host refuses commands that store data, for lack of disk space.",
    ),
}
_LOG_UP: Final = {
    "up": (
        "poste_log_up",
        "1 if a host could read the figures of the log, or of one database of it, in time.",
    ),
}
_LOG_GAUGES: Final = {
    "log_position": ("poste_log_position", "Position of the newest row of the log."),
    "identities": ("poste_identities", "Identities that have or had a queue, erased ones too."),
    "queue_messages": ("poste_queue_messages", "Messages waiting in all queues."),
    "queue_bytes": ("poste_queue_bytes", "Bytes of the messages waiting in all queues."),
}
_STORAGE_PARTS: Final = ("facts", "contents", "read_models", "wal", "free")
_EXPORT_GAUGES: Final = {
    "position": (
        "poste_export_position",
        "Position up to which the log, or one database of it, is exported.",
    ),
    "rows_behind": ("poste_export_lag_rows", "Log positions not yet exported."),
    "caught_up_age_s": (
        "poste_export_caught_up_age_seconds",
        "Seconds since the export was last complete.",
    ),
    "fault_age_s": (
        "poste_export_fault_age_seconds",
        "Seconds for which the export has been failing; absent while it works.",
    ),
    "standby": (
        "poste_export_standby",
        "1 for a process that stands by, 0 for the one that exports.",
    ),
}
_ARCHIVE_GAUGES: Final = {
    "position": ("poste_archive_position", "Position up to which old rows have left the log."),
    "rows_left": ("poste_archive_rows_left", "Rows that have left the log for its archive."),
    "rows_stayed": (
        "poste_archive_rows_stayed",
        "Rows that are old enough to leave but stay because other rows refer to them.",
    ),
    "last_round_age_s": (
        "poste_archive_last_round_age_seconds",
        "Seconds since a round of archiving last finished.",
    ),
    "fault_age_s": (
        "poste_archive_fault_age_seconds",
        "Seconds for which archiving has been failing; absent while it works.",
    ),
}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Every metric of a mediator: the report of every process, None for one that did not answer.

    ``shards`` is the number of shards of the log. ``logs`` has the figures of each of its
    databases, None if no host could read them. ``exports`` has the ``export_figures`` of each
    database (``http_edge.server.status_files``), and is empty if nothing is exported. ``storage``
    is the storage that the log takes, None unless it is known of every database. ``archives`` has
    the ``archive_figures`` of each database, and is empty if no round looks at them.
    """

    hosts: Mapping[str, HostReport | None]
    edges: Mapping[str, Sequence[MetricFamily] | None]
    shards: int
    logs: Sequence[LogFigures | None]
    exports: Sequence[Mapping[str, Any]]
    now_ms: int
    storage: WholeStorage | None = None
    archives: Sequence[Mapping[str, Any]] = ()

    def collect(self) -> Iterator[Metric]:
        """The metrics (``prometheus_client.registry.Collector``)."""
        hosts = {name: report for name, report in self.hosts.items() if report is not None}
        edges = {name: families for name, families in self.edges.items() if families is not None}
        up = GaugeMetricFamily(
            "poste_up", "1 if the process has answered this scrape.", None, [_BY]
        )
        for name in (*self.hosts, *self.edges):
            up.add_metric([name], 1 if name in hosts or name in edges else 0)
        yield up
        yield _build_info()
        yield from _by_process({name: host.families for name, host in hosts.items()} | edges)
        yield from _of_hosts({name: host.stats for name, host in hosts.items()})
        shards = "Shards of the log, each of which needs an owner."
        yield GaugeMetricFamily("poste_shards", shards, self.shards)
        yield from _of_the_log(self.logs, self.now_ms)
        yield from _of_the_storage(self.storage)
        yield from _by_database(_EXPORT_GAUGES, self.exports)
        yield from _by_database(_ARCHIVE_GAUGES, self.archives)


class Scrape:
    """Asks hosts and edges by name, and keeps their answers for a second."""

    def __init__(
        self,
        settings: Settings,
        hosts: Mapping[str, AskReport],
        edges: Mapping[str, AskReport],
        *,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._placement = placement_of(settings)
        self._hosts = hosts
        self._edges = edges
        self._clock = clock
        self._lock = asyncio.Lock()
        self._seen: Seen | None = None
        self._seen_at_s = 0.0

    async def seen(self) -> Seen:
        """The reports of the processes, a second old at most."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._seen is None or now_s - self._seen_at_s >= _FRESH_S:
                self._seen = await self._ask()
                self._seen_at_s = asyncio.get_running_loop().time()
            return self._seen

    async def _ask(self) -> Seen:
        # One host reads the figures of each database: they are the same for all its hosts.
        readers = self._readers()
        hosts, edges = await asyncio.gather(
            asyncio.gather(
                *[
                    _answer(ask(with_log=name in readers), HostReport)
                    for name, ask in self._hosts.items()
                ]
            ),
            asyncio.gather(*[_answer(ask(), list[MetricFamily]) for ask in self._edges.values()]),
        )
        answered = dict(zip(self._hosts, hosts, strict=True))
        known = {name: report.stats for name, report in answered.items() if report is not None}
        logs = logs_by_database(self._placement, [(name, known[name].log) for name in known])
        now_ms = self._clock()
        return Seen(
            hosts=answered,
            edges=dict(zip(self._edges, edges, strict=True)),
            shards=self._settings.shards,
            logs=logs,
            exports=self._exports(logs),
            now_ms=now_ms,
            storage=storage(self._placement, known.values()),
            archives=archive_figures_by_database(self._settings, now_ms),
        )

    def _readers(self) -> Collection[str]:
        """For each database the host to read figures from, if possible one that answered last."""
        last = self._seen.hosts if self._seen is not None else {}
        readers: dict[int, str] = {}
        for name in sorted(self._hosts, key=lambda name: last.get(name) is None):
            readers.setdefault(self._placement.database_of_host(name), name)
        return readers.values()

    def _exports(self, logs: Sequence[LogFigures | None]) -> Sequence[dict[str, Any]]:
        if self._settings.export.to is None:
            return []
        positions = [None if log is None else log.log_position for log in logs]
        return export_figures_by_database(self._settings.data_dir, positions, self._clock())


async def _answer(answer: Awaitable[bytes], kind: type[_R]) -> _R | None:
    """The report of a process, None after any fault: then the others are still shown."""
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            return msgspec.msgpack.decode(await answer, type=kind)
    except Exception as error:  # noqa: BLE001 - Ray has many ways to say that a process is gone
        _LOG.debug("a process sent no report: %s", type(error).__name__)
        return None


def exposition(shown: Collector, accept: str) -> tuple[bytes, str]:
    """The metrics as text for a scraper with this ``Accept``, and the text's media type."""
    encode, content_type = choose_encoder(accept)
    return encode(shown), content_type


class ExportShown(msgspec.Struct, frozen=True):
    """The metrics of a process that exports and archives for others, and measures of its own.

    ``exports`` and ``archives`` are as in ``Seen``.
    """

    exports: Sequence[Mapping[str, Any]]
    archives: Sequence[Mapping[str, Any]]
    families: Sequence[MetricFamily]

    def collect(self) -> Iterator[Metric]:
        """The metrics, as ``Seen.collect``."""
        yield _build_info()
        yield from _by_process({"export": self.families})
        yield from _by_database(_EXPORT_GAUGES, self.exports)
        yield from _by_database(_ARCHIVE_GAUGES, self.archives)


def _build_info() -> Metric:
    info = GaugeMetricFamily("poste_build_info", "1, with the version.", None, ["version"])
    info.add_metric([version("poste-restante")], 1)
    return info


def _by_process(measured: Mapping[str, Sequence[MetricFamily]]) -> Iterable[Metric]:
    """The processes' own metrics, merged by metric, with the name of the process as a label."""
    metrics: dict[str, Metric] = {}
    for process, families in measured.items():
        for family in families:
            metric = metrics.setdefault(
                family.name, Metric(family.name, family.documentation, family.kind)
            )
            for name, labels, value in family.samples:
                metric.add_sample(name, {_BY: process, **labels}, value)
    return metrics.values()


def _of_hosts(hosts: Mapping[str, HostStats]) -> Iterator[Metric]:
    for kind, figures in ((CounterMetricFamily, _HOST_COUNTERS), (GaugeMetricFamily, _HOST_GAUGES)):
        for field, (metric, text) in figures.items():
            family = kind(metric, text, None, [_BY])
            for name, stats in hosts.items():
                value = getattr(stats, field)
                if value is not None:
                    family.add_metric([name], value)
            yield family
    owners = GaugeMetricFamily(
        "poste_shard_owner", "1 for the host that owns the shard.", None, ["shard", "host"]
    )
    for name, stats in hosts.items():
        for partition in stats.partitions:
            if is_shard(partition):  # the name of any other partition is a DID
                owners.add_metric([partition, name], 1)
    yield owners


def _of_the_log(logs: Sequence[LogFigures | None], now_ms: int) -> Iterator[Metric]:
    yield from _by_database(_LOG_UP, [{"up": log is not None} for log in logs])
    log = total(logs)
    for field, (metric, text) in _LOG_GAUGES.items():
        yield GaugeMetricFamily(metric, text, None if log is None else getattr(log, field))
    age_s = None if log is None else 0.0
    if log is not None and log.queue_oldest_at_ms is not None:
        age_s = max(0.0, (now_ms - log.queue_oldest_at_ms) / 1000)
    yield GaugeMetricFamily(
        "poste_queue_oldest_age_seconds",
        "Age of the message that has waited longest; 0 if none.",
        age_s,
    )


def _of_the_storage(storage: WholeStorage | None) -> Iterator[Metric]:
    sizes = GaugeMetricFamily(
        "poste_log_bytes",
        "Bytes that the log occupies, and bytes free in its files.",
        None,
        ["part"],
    )
    for part in _STORAGE_PARTS:
        size_bytes = None if storage is None else getattr(storage, f"{part}_bytes")
        if size_bytes is not None:
            sizes.add_metric([part], size_bytes)
    yield sizes
    growth = None if storage is None else storage.growth_bytes_per_day
    about = "Growth of the log in bytes per day, measured over at most the last day."
    yield GaugeMetricFamily("poste_log_growth_bytes_per_day", about, growth)
    days = None if storage is None else storage.days_until_full
    about = "Days until the disk of log.db is full at the present growth of the log."
    yield GaugeMetricFamily("poste_log_days_until_full", about, days)


def _by_database(
    gauges: Mapping[str, tuple[str, str]], databases: Sequence[Mapping[str, Any]]
) -> Iterator[Metric]:
    """The figures of each database, labelled with its number if the log has several."""
    labels = ["database"] if len(databases) > 1 else []
    for field, (metric, text) in gauges.items() if databases else ():
        family = GaugeMetricFamily(metric, text, None, labels)
        for number, figures in enumerate(databases):
            if figures[field] is not None:
                family.add_metric([str(number)][: len(labels)], figures[field])
        yield family


@contextlib.contextmanager
def metrics_socket(
    listen: str | None, named_by: str = "metrics_listen"
) -> Iterator[socket.socket | None]:
    """Listen for scrapes at ``listen`` within the block; yield the socket, None without one.

    ``named_by`` is the setting or option with the address.

    Raises:
        Stop: the address cannot be used; says what to do.
    """
    if listen is None:
        yield None
        return
    host, port = split_listen(listen)
    try:
        found = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise Stop(
            Exit.USAGE,
            f"The address {listen} for metrics cannot be used: {reason}.",
            f"Set {named_by} to another address, or leave it out.",
        ) from error
    with found:
        yield found


@contextlib.asynccontextmanager
async def metrics_served(
    shown: Callable[[], Awaitable[Collector]], on: socket.socket | None, token: str
) -> AsyncIterator[None]:
    """Answer operators' ``GET /metrics`` on this socket, if any, within the block."""
    if on is None:
        yield
        return
    # Most main processes answer no scrapes: this would be a quarter of the time of their imports.
    from aiohttp import hdrs, web  # noqa: PLC0415

    from http_edge.admin.operators import for_operators  # noqa: PLC0415
    from http_edge.listener.bounded_server import BoundedServer  # noqa: PLC0415
    from http_edge.listener.connections import Connections  # noqa: PLC0415
    from http_edge.listener.in_flight import InFlight  # noqa: PLC0415

    async def show(request: web.Request) -> web.Response:
        accept = request.headers.get(hdrs.ACCEPT, "")
        text, content_type = exposition(await shown(), accept)
        return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})

    authorized = for_operators(token, show)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        try:
            if request.path != PATH:
                raise web.HTTPNotFound
            if request.method not in _METHODS:
                raise web.HTTPMethodNotAllowed(request.method, _METHODS)
            return await authorized(request)
        except web.HTTPException as refusal:
            # Further requests of a stranger would keep its connection from being idle.
            refusal.force_close()
            raise

    async def malformed(_request: web.BaseRequest, status: int) -> web.StreamResponse:
        return web.Response(status=status)

    connections = Connections(
        _LIMITS,
        InFlight(_LIMITS).bodies,
        address_of=lambda host: host,
        affords=lambda _address, _newcomers: True,
        on_cut=lambda _cause: None,
        headers={},
    )
    server = BoundedServer(answer, malformed, connections, _LIMITS, linger_s=0)
    await server.start(on)
    try:
        host, port = on.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _LOG.info("metrics are served", extra={"url": f"http://{address}{PATH}"})
        yield
    finally:
        await server.stop()
