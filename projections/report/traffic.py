"""Numbers of traffic: what was queued, handed out and removed when, and how queues stood."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.report.facts import Facts, Number

_STEPS: Final = ("queued", "delivered", "removed")
_COUNTS: Final = tuple(name for step in _STEPS for name in (step, f"{step}_bytes"))


def _volume(facts: Facts) -> DataFrame:
    """Zeros for every bin and protocol, and what happened, summed up."""
    rows = _grid(facts, facts.span.volume.count, "bin").select(
        "bin", "protocol", *[F.lit(0).cast("long").alias(name) for name in _COUNTS]
    )
    sources = {
        "queued": (facts.messages, F.col("queued_ms")),
        "delivered": (facts.deliveries(), F.col("at_ms")),
        "removed": (facts.messages, F.col("removed_ms")),
    }
    for step, (source, at_ms) in sources.items():
        rows = rows.unionByName(_counted(facts, source, step, at_ms))
    return (
        rows.groupBy("bin", "protocol")
        .agg(*[F.sum(name).alias(name) for name in _COUNTS])
        .select(
            F.timestamp_millis(facts.span.volume.start_ms(F.col("bin"))).alias("bin_start"),
            "protocol",
            *_COUNTS,
        )
    )


def _counted(facts: Facts, source: DataFrame, step: str, at_ms: Column) -> DataFrame:
    here = {step: F.count("*"), f"{step}_bytes": F.sum("size_bytes")}
    return (
        source.where(facts.span.holds(at_ms))
        .groupBy(facts.span.volume.index(at_ms).alias("bin"), "protocol")
        .agg(*[here.get(name, F.lit(0)).cast("long").alias(name) for name in _COUNTS])
    )


def _queue(facts: Facts) -> DataFrame:
    """How queues stood at every edge.

    Messages are first gathered by the first and the last edge at which they waited: there are
    at most as many such pairs as the square of edges, whatever the number of messages.
    """
    bins = facts.span.standing
    pairs = (
        facts.messages.select(
            "protocol",
            bins.edge_after(F.col("queued_ms")).alias("first"),
            bins.edge_upto(F.col("removed_ms")).alias("last"),
            "queued_ms",
            "size_bytes",
        )
        .where("first <= last")
        .groupBy("protocol", "first", "last")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            F.min("queued_ms").alias("oldest_ms"),
        )
    )
    edges = _grid(facts, bins.count + 1, "edge")
    waits = (
        (edges["protocol"] == pairs["protocol"])
        & (edges["edge"] >= pairs["first"])
        & (edges["edge"] <= pairs["last"])
    )
    at_ms = bins.edge_ms(F.col("edge"))
    return (
        edges.join(pairs, waits, "left")
        .groupBy("edge", edges["protocol"])
        .agg(
            F.coalesce(F.sum("messages"), F.lit(0)).alias("messages"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.min("oldest_ms").alias("oldest_ms"),
        )
        .select(
            F.timestamp_millis(at_ms).alias("at"),
            "protocol",
            "messages",
            "bytes",
            ((at_ms - F.col("oldest_ms")) / F.lit(1000)).alias("oldest_s"),
        )
    )


def _grid(facts: Facts, count: int, name: str) -> DataFrame:
    """Every bin or edge with every protocol, so that a gap is a zero and not a missing row."""
    protocols = facts.spark.createDataFrame([(p,) for p in facts.protocols], "protocol string")
    numbers = facts.spark.range(count).select(F.col("id").cast("int").alias(name))
    return numbers.crossJoin(F.broadcast(protocols))


VOLUME: Final = Number(
    "volume",
    "Messages and bytes over time",
    {
        "bin_start": "when the bin begins, UTC",
        "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
        "queued": "messages that were queued",
        "queued_bytes": "their payloads, bytes",
        "delivered": "times that messages were handed out, again and again counted each time",
        "delivered_bytes": "payloads handed out, bytes",
        "removed": "messages that left the queues, for whatever reason",
        "removed_bytes": "their payloads, bytes",
    },
    _volume,
    ("bin_start", "protocol"),
)
QUEUE: Final = Number(
    "queue",
    "Waiting messages over time",
    {
        "at": "the time, UTC",
        "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
        "messages": "messages that wait",
        "bytes": "their payloads, bytes",
        "oldest_s": "how long the oldest of them has waited, seconds; empty if none waits",
    },
    _queue,
    ("at", "protocol"),
)
