"""The measures of a mediator as Prometheus reads them.

Labels are closed: names of our processes, shards, stages and protocols, and what a command is and
how it ended, both from lists of ours. No DID and no text of a stranger ever becomes a label.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from actors.host_report import HostReport
from actors.measures import Histogram, Tally
from eventstore.log import LogFigures
from http_edge.edge_report import EdgeReport
from http_edge.whole_log import total

_BY: Final = ["process"]
_BY_DATABASE: Final = ["database"]
_SHARD: Final = "shard-"
_HOST_COUNTERS: Final = {
    "commits": ("poste_commits", "Transactions that the log has stored."),
    "rows": ("poste_log_rows", "Rows that the log has stored, seals included."),
    "append_failures": (
        "poste_append_failures",
        "Transactions whose append failed: every command in them was answered outcome unknown.",
    ),
    "partitions_lost": (
        "poste_partitions_lost",
        "Partitions that were given up because another owner had claimed them.",
    ),
    "activations": ("poste_activations", "Identities that were read from the log into memory."),
}
_HOST_GAUGES: Final = {
    "resident_identities": ("poste_resident_identities", "Identities in memory."),
    "resident_bytes": ("poste_resident_bytes", "Bytes that the identities in memory take."),
    "nonces": ("poste_nonces", "Nonces in force."),
    "leases": ("poste_leases", "Messages that are handed out and not acknowledged."),
    "sessions": ("poste_sessions", "Identities that somebody listens for at an edge."),
    "live_sessions": ("poste_live_sessions", "Identities in live mode."),
}
_EDGE_GAUGES: Final = {
    "listeners": ("poste_listeners", "Sockets and waiting requests that listen for identities."),
    "in_flight": ("poste_requests_in_flight", "Requests that are being worked on."),
    "in_flight_bytes": ("poste_requests_in_flight_bytes", "Bytes of the bodies of those."),
    "outbox_items": ("poste_outbox_items", "Commands that wait for a call to their host."),
}
_LOG_GAUGES: Final = {
    "log_position": ("poste_log_position", "Position of the newest row of the log."),
    "identities": ("poste_identities", "Identities that have a queue, empty or not."),
    "queue_messages": ("poste_queue_messages", "Messages that wait in all queues."),
    "queue_bytes": ("poste_queue_bytes", "Bytes of the messages that wait in all queues."),
}
_EXPORT_GAUGES: Final = {
    "position": (
        "poste_export_position",
        "Position up to which the log, or one database of it, is exported.",
    ),
    "rows_behind": ("poste_export_lag_rows", "Positions of the log that are not exported yet."),
    "caught_up_age_s": (
        "poste_export_caught_up_age_seconds",
        "Since when something may be missing in the export.",
    ),
    "trouble_age_s": (
        "poste_export_trouble_age_seconds",
        "Since when something keeps the export from going on; absent while nothing does.",
    ),
    "standby": (
        "poste_export_standby",
        "1 while another process exports, 0 for the one that does.",
    ),
}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What every process told, None for one that did not answer.

    ``shards`` is how many the log has. ``exports`` are ``http_edge.export_status.figures``, one for
    each of the log's databases; none where nothing is exported.
    """

    hosts: Mapping[str, HostReport | None]
    edges: Mapping[str, EdgeReport | None]
    shards: int
    exports: Sequence[Mapping[str, Any]]
    now_ms: int

    @property
    def log(self) -> LogFigures | None:
        """The figures of the log, from the host of each database that was asked for them."""
        return total(report.log for report in self.hosts.values() if report is not None)


def exposition(seen: Seen, accept: str) -> tuple[bytes, str]:
    """The text for a scraper that accepts these media types, and its own media type."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(seen))
    return encode(registry), content_type


class _Collector(Collector):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    @override
    def collect(self) -> Iterator[Metric]:
        return families(self._seen)


def families(seen: Seen) -> Iterator[Metric]:
    """Every metric, by the processes that have told something."""
    hosts = {name: report for name, report in seen.hosts.items() if report is not None}
    edges = {name: report for name, report in seen.edges.items() if report is not None}
    yield from _of_processes(seen)
    yield from _of_edges(edges)
    yield from _times_of_edges(edges)
    yield from _of_hosts(hosts)
    yield from _times_of_hosts(hosts)
    shards = "Shards of the log, each of which needs an owner."
    yield GaugeMetricFamily("poste_shards", shards, seen.shards)
    yield from _of_the_log(seen)
    yield from _of_the_exports(seen)


def _of_processes(seen: Seen) -> Iterator[Metric]:
    up = GaugeMetricFamily("poste_up", "1 if the process has answered this scrape.", None, _BY)
    cpu = CounterMetricFamily("poste_process_cpu_seconds", "CPU time of the process.", None, _BY)
    memory = GaugeMetricFamily(
        "poste_process_resident_memory_bytes", "Memory of the process.", None, _BY
    )
    for name, report in itertools.chain(seen.hosts.items(), seen.edges.items()):
        up.add_metric([name], 0 if report is None else 1)
        if report is not None:
            cpu.add_metric([name], report.use.cpu_s)
            memory.add_metric([name], report.use.resident_bytes)
    info = GaugeMetricFamily("poste_build_info", "1, with the version.", None, ["version"])
    info.add_metric([version("poste-restante")], 1)
    yield from (up, cpu, memory, info)


def _of_edges(edges: Mapping[str, EdgeReport]) -> Iterator[Metric]:
    commands = _tallies(
        "poste_commands",
        "Commands that an edge has read, by how they ended.",
        ("protocol", "command", "result"),
        {name: edge.measures.commands for name, edge in edges.items()},
    )
    refusals = _tallies(
        "poste_refusals",
        "What an edge has refused, requests that nobody read included.",
        ("protocol", "reason"),
        {name: edge.refusals for name, edge in edges.items()},
    )
    sockets = GaugeMetricFamily("poste_sockets", "Open WebSockets.", None, [*_BY, "protocol"])
    outbound = CounterMetricFamily(
        "poste_outbound_deliveries", "Messages sent to endpoints.", None, [*_BY, "result"]
    )
    agents = GaugeMetricFamily(
        "poste_outbound_agents", "Agents that something is on its way to.", None, _BY
    )
    for name, edge in edges.items():
        for protocol, count in edge.sockets.items():
            sockets.add_metric([name, protocol], count)
        if edge.outbound:
            outbound.add_metric([name, "delivered"], edge.outbound["delivered"])
            outbound.add_metric([name, "failed"], edge.outbound["failed"])
            agents.add_metric([name], edge.outbound["agents"])
    yield from (commands, refusals, sockets, outbound, agents)
    for field, (metric, text) in _EDGE_GAUGES.items():
        yield _gauge(metric, text, {name: getattr(edge, field) for name, edge in edges.items()})


def _times_of_edges(edges: Mapping[str, EdgeReport]) -> Iterator[Metric]:
    stages = HistogramMetricFamily(
        "poste_edge_stage_seconds",
        "decode: body to checked signature. outbox: wait for a call. call: to the host and back.",
        labels=[*_BY, "stage"],
    )
    answers = HistogramMetricFamily(
        "poste_request_seconds",
        "From the last byte of a POST to its answer.",
        labels=[*_BY, "protocol"],
    )
    items = HistogramMetricFamily("poste_call_items", "Commands in a call to a host.", labels=_BY)
    for name, edge in edges.items():
        for stage in ("decode", "outbox", "call"):
            _observed(stages, [name, stage], getattr(edge.measures, stage))
        for protocol, observed in edge.measures.answer.items():
            _observed(answers, [name, protocol], observed)
        _observed(items, [name], edge.measures.call_items)
    yield from (stages, answers, items)


def _of_hosts(hosts: Mapping[str, HostReport]) -> Iterator[Metric]:
    yield _tallies(
        "poste_host_commands",
        "Commands that a host has run, by type and result, those among processes included.",
        ("command", "result"),
        {name: host.measures.commands for name, host in hosts.items()},
    )
    for field, (metric, text) in _HOST_COUNTERS.items():
        counter = CounterMetricFamily(metric, text, None, _BY)
        for name, host in hosts.items():
            counter.add_metric([name], getattr(host.stats, field))
        yield counter
    for field, (metric, text) in _HOST_GAUGES.items():
        found = {name: getattr(host.stats, field) for name, host in hosts.items()}
        yield _gauge(metric, text, found)
    owners = GaugeMetricFamily(
        "poste_shard_owner", "1 for the host that owns the shard.", None, ["shard", "host"]
    )
    for name, host in hosts.items():
        for partition in host.stats.partitions:
            if partition.startswith(_SHARD):  # others are named by the DID of one identity
                owners.add_metric([partition, name], 1)
    yield owners


def _times_of_hosts(hosts: Mapping[str, HostReport]) -> Iterator[Metric]:
    stages = HistogramMetricFamily(
        "poste_host_stage_seconds",
        "waited: arrival to transaction. transaction: first command to replies."
        " commit: the append within.",
        labels=[*_BY, "stage"],
    )
    items = HistogramMetricFamily(
        "poste_transaction_items", "Commands in a transaction.", labels=_BY
    )
    sizes = HistogramMetricFamily(
        "poste_transaction_bytes", "Bytes of the commands in a transaction.", labels=_BY
    )
    for name, host in hosts.items():
        for stage in ("waited", "transaction", "commit"):
            _observed(stages, [name, stage], getattr(host.measures, stage))
        _observed(items, [name], host.measures.items)
        _observed(sizes, [name], host.measures.batch_bytes)
    yield from (stages, items, sizes)


def _of_the_log(seen: Seen) -> Iterator[Metric]:
    log = seen.log
    yield GaugeMetricFamily(
        "poste_log_up", "1 if a host got the figures of the log in time.", 0 if log is None else 1
    )
    for field, (metric, text) in _LOG_GAUGES.items():
        yield GaugeMetricFamily(metric, text, None if log is None else getattr(log, field))
    age_s = None if log is None else 0.0
    if log is not None and log.queue_oldest_at_ms is not None:
        age_s = max(0.0, (seen.now_ms - log.queue_oldest_at_ms) / 1000)
    yield GaugeMetricFamily(
        "poste_queue_oldest_age_seconds", "Age of the message that waits longest; 0 if none.", age_s
    )


def _of_the_exports(seen: Seen) -> Iterator[Metric]:
    """With the number of the database where the log has several."""
    labels = _BY_DATABASE if len(seen.exports) > 1 else []
    for field, (metric, text) in _EXPORT_GAUGES.items() if seen.exports else ():
        family = GaugeMetricFamily(metric, text, None, labels)
        for number, export in enumerate(seen.exports):
            if export[field] is not None:
                family.add_metric([str(number)][: len(labels)], export[field])
        yield family


def _tallies(
    metric: str, text: str, labels: Iterable[str], by_process: Mapping[str, Tally]
) -> Metric:
    family = CounterMetricFamily(metric, text, None, [*_BY, *labels])
    for name, tally in by_process.items():
        for kind, count in tally.counts.items():
            family.add_metric([name, *kind], count)
    return family


def _gauge(metric: str, text: str, by_process: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(metric, text, None, _BY)
    for name, value in by_process.items():
        family.add_metric([name], value)
    return family


def _observed(family: HistogramMetricFamily, labels: list[str], observed: Histogram) -> None:
    bounds = [*map(floatToGoString, observed.bounds), "+Inf"]
    buckets = list(zip(bounds, itertools.accumulate(observed.counts), strict=True))
    family.add_metric(labels, buckets, observed.total)
