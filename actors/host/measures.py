"""What a process measures of its own work, and what a host reports of itself and of its log.

- Metrics: collectors of prometheus_client, one registry for each process. Those of each command are
  plain numbers that one thread writes (``Histogram``).
- The report of a host (``HostReport``) adds what it holds now (``HostStats``), the figures of the
  log (``LogWatch``) and how fast the log grows (``Growth``).
- The placer dedicates identities by the rates of the busiest ones (``CommandRates``).

A report must come even while the host has a fault, most of all then: neither a writer that waits
for the log nor a log that does not answer may delay it. Figures that do not come in time are left
out, or are the last known ones.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import nlargest
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from actors.host.clock import Clock
from actors.host.log_outage import reason
from eventstore.log.errors import LogError
from eventstore.log.event_log import EventLog, LogFigures, StorageFigures
from eventstore.log.events import (
    AccountExpired,
    ContractExpired,
    ContractRequestsExpired,
    Event,
    MessagesRemoved,
    PublicEventsExpired,
)

_LOG = logging.getLogger(__name__)
_LOOK_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_LEAST_MS: Final = 600_000
"""A rate of growth over a shorter time is chance: files grow in steps."""
SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds of times: from a decoded envelope to the longest call to a host."""
ITEMS: Final = tuple(float(2**power) for power in range(11))
"""Bounds of numbers of items: 1 to 1,024, the most in one transaction."""
BYTES: Final = tuple(float(4**power) for power in range(4, 13))
"""Bounds of sizes: 256 bytes to 16 MiB."""
OTHER: Final = "other"
"""The kind under which all are counted for which there is no more room."""
NAMESPACE: Final = "poste"
"""The prefix of the name of every metric."""
_KINDS_MAX: Final = 1_024


class Counts(Collector):
    """A counter by kind; a kind is a few short names from the code, never text of a client.

    The number of kinds is bounded in case that rule is ever broken. One thread counts.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        *,
        kinds_max: int = _KINDS_MAX,
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._kinds_max = kinds_max
        self._counts: dict[tuple[str, ...], int] = {}
        registry.register(self)

    def add(self, *kind: str, count: int = 1) -> None:
        """Add ``count`` to this kind, which has a value for each label."""
        counts = self._counts
        if kind not in counts and len(counts) >= self._kinds_max:
            kind = (OTHER,) * len(kind)
        counts[kind] = counts.get(kind, 0) + count

    @override
    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for kind, count in list(self._counts.items()):
            family.add_metric(kind, count)
        yield family


class Series:
    """The observations of one series of a histogram. One thread observes."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the series to its metric family, with cumulative buckets."""
        names = (*map(str, self._bounds), "+Inf")
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class Histogram(Collector):
    """A histogram in plain numbers, with a series for each value of its label, if it has one.

    The histogram of prometheus_client takes two locks for each value and searches its buckets one
    by one. Five timings and a count cost an edge 8.5 us of CPU with it and 4.0 us with this one;
    the difference was 3 % of what an edge spends on a command before it asks the host.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        *,
        label: str = "",
        values: Sequence[str] = ("",),
    ) -> None:
        self._name, self._documentation, self._label = name, documentation, label
        self._series = {value: Series(bounds) for value in values}
        registry.register(self)

    def __getitem__(self, value: str) -> Series:
        """The series of this value of the label."""
        return self._series[value]

    def observe(self, value: float) -> None:
        """Count a value; for a histogram without a label."""
        self._series[""].observe(value)

    @override
    def collect(self) -> Iterator[Metric]:
        labels = [self._label] if self._label else []
        family = HistogramMetricFamily(self._name, self._documentation, labels=labels)
        for value, series in self._series.items():
            series.add_to(family, [value] if labels else [])
        yield family


class UnderWay(Collector):
    """How long the present round of each background task has been under way, in seconds.

    It shows a round that hangs, the first one too, of which nothing else says that it should have
    ended. Between rounds it is 0. A task runs in one thread.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        tasks: Sequence[str],
        registry: CollectorRegistry,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._documentation, self._monotonic = name, documentation, monotonic
        self._since_s: dict[str, float | None] = dict.fromkeys(tasks)
        registry.register(self)

    @contextlib.contextmanager
    def round(self, task: str) -> Iterator[None]:
        """Note that a round of this task is under way within the block."""
        self._since_s[task] = self._monotonic()
        try:
            yield
        finally:
            self._since_s[task] = None

    @override
    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=["task"])
        for task, since_s in self._since_s.items():
            family.add_metric([task], 0.0 if since_s is None else self._monotonic() - since_s)
        yield family


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """A ``prometheus_client.Metric`` of one process, in the form for the wire.

    Each of ``samples`` is a name, the label values by label, and the value.
    """

    name: str
    documentation: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


def families(registry: CollectorRegistry) -> list[MetricFamily]:
    """All that a process has measured so far."""
    return [
        MetricFamily(
            metric.name,
            metric.documentation,
            metric.type,
            [
                (sample.name, sample.labels, sample.value)
                for sample in metric.samples
                # The creation times of counters, all as old as their process, are left out.
                if not sample.name.endswith("_created")
            ],
        )
        for metric in registry.collect()
    ]


class HostMeasures:
    """The measures of a host; times in seconds.

    ``waited``: a batch, from its arrival to its transaction. ``transaction``: from the first
    command to the replies. ``commit``: the append within a transaction. ``items`` and
    ``batch_bytes`` are per transaction. ``commands`` are by type and result, ``removed`` by kind
    and reason. ``damaged``: records that were left out of pages. ``rounds``: background tasks.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(NAMESPACE, registry=registry)
        stages = Histogram(
            "poste_host_stage_seconds",
            "waited: arrival to transaction. transaction: first command to replies."
            " commit: the append within.",
            SECONDS,
            registry,
            label="stage",
            values=("waited", "transaction", "commit"),
        )
        self.waited = stages["waited"]
        self.transaction = stages["transaction"]
        self.commit = stages["commit"]
        self.items = Histogram(
            "poste_transaction_items", "Commands in a transaction.", ITEMS, registry
        )
        self.batch_bytes = Histogram(
            "poste_transaction_bytes", "Bytes of the commands in a transaction.", BYTES, registry
        )
        self.commands = Counts(
            "poste_host_commands",
            "Commands that a host has run, by type and result, internal ones included.",
            ("command", "result"),
            registry,
        )
        self.removed = Counts(
            "poste_records_removed",
            "Messages that left a queue, and other records that retention removed, by reason.",
            ("kind", "reason"),
            registry,
        )
        self.damaged = Counts(
            "poste_damaged_records_left_out",
            "Records that were left out of an answer because their content is damaged.",
            (),
            registry,
        )
        self.rounds = UnderWay(
            "poste_host_round_seconds",
            "Seconds for which the present round of a background task is under way; 0 between two.",
            ("expiry", "snapshots"),
            registry,
        )

    def count_removed(self, events: Iterable[Event]) -> None:
        """Count the records that these stored events removed."""
        for event in events:
            match event:
                case MessagesRemoved():
                    self.removed.add("message", event.reason, count=len(event.message_ids))
                case ContractRequestsExpired():
                    requests = len(event.request_ids)
                    self.removed.add("contract_request", event.reason, count=requests)
                case ContractExpired():
                    self.removed.add("contract", event.reason)
                case PublicEventsExpired():
                    self.removed.add("public_event", event.reason, count=len(event.event_ids))
                case AccountExpired():
                    self.removed.add("agent", event.reason)
                case _:
                    pass


_REPORTED_MAX: Final = 16
_WINDOW_MS: Final = 3_000
RELEASED_BELOW: Final = 0.25
"""Fraction of the rate for dedication; low enough that an identity does not come and go."""


class CommandRates:
    """Commands per second, also of the busiest identities, and commits, over the last window."""

    def __init__(self, above_per_s: float, now_ms: int) -> None:
        """Start without commands; ``above_per_s`` is the rate for dedication, 0 to count none."""
        self._least_per_s = above_per_s * RELEASED_BELOW
        self._begun_ms, self._commits, self._commands = now_ms, 0, 0
        self._counts: dict[str, int] = {}
        self.reported: Mapping[str, float] = {}
        """Commands per second by DID. Replaced, never changed: any thread may read it."""

    def count(self, did: str, *, is_known: bool) -> None:
        """Count a command for this identity, unless the identity is unknown."""
        if self._least_per_s and is_known:
            self._counts[did] = self._counts.get(did, 0) + 1

    def set_back(self, back_ms: int) -> None:
        """Let the window have begun so much earlier: the clock was set back."""
        self._begun_ms -= back_ms

    def report(self, now_ms: int, stats: HostStats) -> None:
        """Report the rates of the window if it is over, also in ``stats``, and begin the next."""
        if now_ms - self._begun_ms < _WINDOW_MS:
            return
        elapsed_s = (now_ms - self._begun_ms) / 1000
        stats.commits_per_s = round((stats.commits - self._commits) / elapsed_s, 1)
        stats.commands_per_s = round((stats.commands - self._commands) / elapsed_s, 1)
        self._begun_ms, self._commits, self._commands = now_ms, stats.commits, stats.commands
        counts, self._counts = self._counts, {}
        least = self._least_per_s * elapsed_s
        busiest = nlargest(_REPORTED_MAX, ((n, did) for did, n in counts.items() if n >= least))
        self.reported = {did: n / elapsed_s for n, did in busiest}


class HostStats(msgspec.Struct):
    """Counters of a host since its start, and what it holds now.

    Rates cover the last few seconds. ``sockets`` counts the open sockets of each edge; ``log`` is
    the state of the whole log, and ``storage`` its size. ``node`` is empty if there is only one.
    ``free_bytes`` is the free disk of the log, None if unknown; ``growth_bytes_per_day`` is None
    until the log has been measured for ten minutes.
    """

    name: str
    node: str = ""
    partitions: list[str] = []
    commits: int = 0
    commits_per_s: float = 0.0
    rows: int = 0
    commands: int = 0
    commands_per_s: float = 0.0
    append_failures: int = 0
    partitions_lost: int = 0
    activations: int = 0
    cached_identities: int = 0
    cached_bytes: int = 0
    nonces: int = 0
    leases: int = 0
    sessions: int = 0
    live_sessions: int = 0
    short_of_disk: bool = False
    free_bytes: int | None = None
    sockets: dict[str, int] = {}
    log: LogFigures | None = None
    storage: StorageFigures | None = None
    growth_bytes_per_day: float | None = None


class HostReport(msgspec.Struct):
    """Everything about one host; its log figures are None if not requested, or without answer."""

    stats: HostStats
    families: list[MetricFamily]


_A = TypeVar("_A")


class LogWatch:
    """Asks a log for its figures, one question at a time, with a bound on the wait."""

    def __init__(self, log: EventLog) -> None:
        """Start with a thread of its own for the questions."""
        self._log = log
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-watch")
        self._queries: dict[str, Future[Any]] = {}

    def figures(self, seconds_max: float) -> LogFigures | None:
        """The figures, or None when the log fails or takes longer."""
        return self._answer("figures", self._log.figures, seconds_max)

    def storage(self, seconds_max: float) -> StorageFigures | None:
        """The size of the log, or None when the log fails or takes longer."""
        return self._answer("storage", self._log.storage, seconds_max)

    def _answer(self, name: str, ask: Callable[[], _A], seconds_max: float) -> _A | None:
        # A question that timed out is still under way: use its answer instead of asking again.
        query: Future[_A] = self._queries.get(name) or self._thread.submit(ask)
        self._queries[name] = query
        with contextlib.suppress(TimeoutError):
            query.exception(seconds_max)
        if not query.done():
            return None
        self._queries.pop(name, None)  # another thread may have the same answer
        return query.result() if not isinstance(query.exception(), LogError) else None

    def close(self) -> None:
        """Wait for the current question, and ask no more."""
        self._thread.shutdown(cancel_futures=True)


class Growth:
    """The sizes of a log over the last day; one thread measures, any may read the rate."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._seen: deque[tuple[int, int]] = deque()
        self.bytes_per_day: float | None = None
        """The recent growth of the log, scaled to a day; None in the first ten minutes."""

    def look(self) -> None:
        """Measure the size of the log, unless the last time is less than a minute ago.

        If it cannot be measured now, the rate stays as it is until the next look.
        """
        now_ms, seen = self._clock(), self._seen
        if seen and 0 <= now_ms - seen[-1][0] < _LOOK_MS:
            return
        if seen and now_ms < seen[-1][0]:
            seen.clear()  # the clock went back
        try:
            used_bytes = self._log.storage().used_bytes
        except LogError as error:
            _LOG.warning("the size of the log is not known: %s", reason(error))
            return
        seen.append((now_ms, used_bytes))
        while seen[0][0] < now_ms - _DAY_MS:
            seen.popleft()
        (first_ms, first), (last_ms, last) = seen[0], seen[-1]
        passed_ms = last_ms - first_ms
        if passed_ms >= _LEAST_MS:
            self.bytes_per_day = (last - first) * _DAY_MS / passed_ms
