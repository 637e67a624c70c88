"""The metrics of an edge process: what it measures, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from actors.host.measures import ITEMS, NAMESPACE, SECONDS, Counts, Histogram
from http_edge.telemetry.refusal_counts import DECENTRL, DIDCOMM

DONE: Final = "done"
"""The result of a command that was not refused."""
UNKNOWN: Final = "unknown"
"""The command of a request that could not be read, or that names no known command."""


class EdgeMeasures:
    """The measures of an edge; times in seconds.

    Counters: ``commands`` by protocol, command and result; ``refusals`` by protocol and reason,
    including requests that were never read; ``cuts`` by cause; ``misaddressed`` by command.

    Times: ``decode`` from the bytes of a command to its validation result, including the wait for
    its turn among commands that came with it; ``outbox`` the wait of a command for a call to its
    host; ``call`` that call, there and back; ``answer`` from the last byte of a POST to its answer,
    by protocol. ``call_items`` is the number of commands in a call.

    The edge gives the gauges the functions that read its state.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(NAMESPACE, registry=registry)
        gauge, counts = partial(Gauge, registry=registry), partial(Counts, registry=registry)
        self.commands = counts(
            "poste_commands",
            "Commands that an edge has read, by how they ended.",
            ("protocol", "command", "result"),
        )
        self.refusals = counts(
            "poste_refusals",
            "What an edge has refused, requests that were never read included.",
            ("protocol", "reason"),
        )
        self.misaddressed = counts(
            "poste_misaddressed",
            "Messages of DIDComm v2 that our key opened and whose header names others alone.",
            ("command",),
        )
        self.cuts = counts(
            "poste_connections_cut",
            "Connections that an edge has cut or refused, by the limit that was exceeded.",
            ("cause",),
        )
        stages = Histogram(
            "poste_edge_stage_seconds",
            "decode: body to checked signature. outbox: wait for a call."
            " call: to the host and back.",
            SECONDS,
            registry,
            label="stage",
            values=("decode", "outbox", "call"),
        )
        self.decode, self.outbox, self.call = stages["decode"], stages["outbox"], stages["call"]
        answers = Histogram(
            "poste_request_seconds",
            "From the last byte of a POST to its answer.",
            SECONDS,
            registry,
            label="protocol",
            values=(DECENTRL, DIDCOMM),
        )
        self.answer = {name: answers[name] for name in (DECENTRL, DIDCOMM)}
        self.call_items = Histogram(
            "poste_call_items", "Commands in a call to a host.", ITEMS, registry
        )
        self.sockets = gauge("poste_sockets", "Open WebSockets.", ["protocol"])
        self.subscribers = gauge(
            "poste_subscribers", "Sockets and waiting requests that get notices of identities."
        )
        self.in_flight = gauge("poste_requests_in_flight", "Requests in progress.")
        self.in_flight_bytes = gauge(
            "poste_requests_in_flight_bytes",
            "Bytes of the bodies of requests in progress, incomplete ones included.",
        )
        self.outbox_items = gauge(
            "poste_outbox_items", "Commands that wait for a call to their host."
        )


class WorkMeasures(Collector):
    """The metrics of work of an edge for agents: a counter by result, and the agents under way."""

    def __init__(
        self,
        done: tuple[str, str],
        agents: tuple[str, str],
        figures: Callable[[], Mapping[str, int]],
    ) -> None:
        """``done`` and ``agents`` are the names of the metrics, each with its documentation.

        ``figures`` returns ``agents`` and counts by result.
        """
        self._done, self._agents, self._figures = done, agents, figures

    @override
    def collect(self) -> Iterator[Metric]:
        counts = dict(self._figures())
        agents = counts.pop("agents")
        done = CounterMetricFamily(*self._done, labels=["result"])
        for result, count in counts.items():
            done.add_metric([result], count)
        yield done
        yield GaugeMetricFamily(*self._agents, agents)


outbound_measures: Final = partial(
    WorkMeasures,
    ("poste_outbound_deliveries", "Messages that endpoints accepted, and tries that failed."),
    ("poste_outbound_agents", "Agents with deliveries pending."),
)
push_measures: Final = partial(
    WorkMeasures,
    ("poste_push_notifications", "Notifications of waiting messages."),
    ("poste_push_agents", "Agents whose queue is watched for a push notification."),
)
