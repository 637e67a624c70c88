"""One measured line of the report, and the arithmetic behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

_NS_PER_MS: Final = 1_000_000
Figure: TypeAlias = int | float


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured; a figure that does not apply or was not to be had is absent.

    Attributes:
        name: What was done.
        count: How often.
        seconds: How long it took in all.
        per_s: ``count`` in a second.
        p50_ms: Half were faster.
        p95_ms: One in twenty was slower.
        p99_ms: One in a hundred was slower.
        server_cpu_s_per_1000: CPU seconds of all server processes for 1,000.
        commits_per_s: Transactions of the log in a second.
        generator_cpu_us: CPU microseconds of the load generator for one.
        figures: Other figures by name, with their units.
        refused: Answers that were no success, by their beginning.
    """

    name: str
    count: int
    seconds: float
    per_s: float
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    server_cpu_s_per_1000: float | None = None
    commits_per_s: float | None = None
    generator_cpu_us: float | None = None
    figures: dict[str, Figure] = {}
    refused: dict[str, int] = {}


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The value that ``percent`` of the ordered values do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def measured(name: str, latencies_ns: Sequence[int], seconds: float, **more: object) -> Measurement:
    """A measurement from latencies; without any, only the count of 0 remains."""
    ordered = sorted(latencies_ns)
    facts: dict[str, object] = {
        "name": name,
        "count": len(ordered),
        "seconds": seconds,
        "per_s": len(ordered) / seconds if seconds else 0.0,
        **more,
    }
    if ordered:
        facts["p50_ms"] = percentile(ordered, 50) / _NS_PER_MS
        facts["p95_ms"] = percentile(ordered, 95) / _NS_PER_MS
        facts["p99_ms"] = percentile(ordered, 99) / _NS_PER_MS
    return msgspec.convert(facts, Measurement)
