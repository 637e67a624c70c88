"""What all numbers of a report are made of: events until its end, and the life of each message.

A message is one row, whatever happened to it; only messages to which something happened in the
range, or which waited in it, are kept. Aggregates of many rows keep numbers alone: Spark then
needs no sorting, only hash tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.report.span import Span
from projections.spark.export import ExportedLog

REMOVALS: Final = ("acknowledged", "delivered", "expired", "purged", "other")
"""Why messages leave a queue; ``other`` is what a later release may add."""
PROTOCOLS_MAX: Final = 6
_AT_MS: Final = "at_ms"
_MESSAGE: Final = ("stream", "message_id")


@dataclass(frozen=True)
class Facts:
    """The sources of the numbers.

    Attributes:
        events: all events before the end of the span, seals included, with ``at_ms``.
        messages: stream, message_id, identity, protocol, sender_did, size_bytes, queued_ms,
            first_delivered_ms, last_delivered_ms, deliveries (in the span), removed_ms, reason.
        protocols: those of the messages.
    """

    spark: SparkSession
    span: Span
    events: DataFrame
    messages: DataFrame
    protocols: tuple[str, ...]

    def of(self, *types: str) -> DataFrame:
        """The events of these types, also those before the span."""
        return self.events.where(F.col("type").isin(*types))

    def inside(self, *types: str) -> DataFrame:
        """The events of these types in the span."""
        return self.of(*types).where(self.span.holds(F.col(_AT_MS)))

    def deliveries(self) -> DataFrame:
        """One row for each time that a message was handed out in the span: at_ms, and whose."""
        handed_out = self.inside("messages-delivered").select(
            "stream", F.explode("message_ids").alias("message_id"), _AT_MS
        )
        columns = self.messages.select(*_MESSAGE, "protocol", "size_bytes")
        return handed_out.join(columns, list(_MESSAGE))


@contextmanager
def gather(spark: SparkSession, export: ExportedLog, span: Span) -> Iterator[Facts]:
    """The sources of the numbers over a span; what Spark keeps of them ends with the block."""
    at_ms = F.unix_millis("recorded_at")
    # The second condition says the same, and is one that the statistics of the files answer.
    ended = (at_ms < F.lit(span.until_ms)) & (
        F.col("recorded_at") < F.timestamp_millis(F.lit(span.until_ms))
    )
    events = export.events(spark).where(ended).withColumn(_AT_MS, at_ms)
    messages = _messages(events, span).persist()
    try:
        found = messages.select("protocol").distinct().orderBy("protocol").limit(PROTOCOLS_MAX)
        protocols = tuple(row.protocol for row in found.collect())
        yield Facts(spark, span, events, messages, protocols)
    finally:
        messages.unpersist()


def _messages(events: DataFrame, span: Span) -> DataFrame:
    queued = events.where(F.col("type") == "message-queued").select(
        *_MESSAGE,
        "identity",
        "protocol",
        "sender_did",
        "size_bytes",
        F.col(_AT_MS).alias("queued_ms"),
    )
    since = F.lit(span.since_ms)
    happened = [F.col(name) >= since for name in ("queued_ms", "removed_ms", "last_delivered_ms")]
    waits_or_happened = F.col("removed_ms").isNull()
    for condition in happened:
        waits_or_happened = waits_or_happened | F.coalesce(condition, F.lit(col=False))
    return (
        # A hash table of each part of the marks: sorting both sides would take twice as long.
        queued.join(_marks(events, span).hint("shuffle_hash"), list(_MESSAGE), "left")
        .where(waits_or_happened)
        .withColumn("deliveries", F.coalesce("deliveries", F.lit(0)))
        .withColumn("reason", _reason(F.col("reason_code")))
        .drop("reason_code")
    )


def _marks(events: DataFrame, span: Span) -> DataFrame:
    """What happened to each message since it was queued."""
    at_ms, is_removal = F.col(_AT_MS), F.col("type") == "messages-removed"
    delivered_ms = F.when(~is_removal, at_ms)
    code = F.lit(len(REMOVALS) - 1)
    for number, reason in enumerate(REMOVALS[:-1]):
        code = F.when(F.col("reason") == reason, F.lit(number)).otherwise(code)
    return (
        events.where(F.col("type").isin("messages-delivered", "messages-removed"))
        .select("stream", F.explode("message_ids").alias("message_id"), "type", _AT_MS, "reason")
        .groupBy(*_MESSAGE)
        .agg(
            F.min(delivered_ms).alias("first_delivered_ms"),
            F.max(delivered_ms).alias("last_delivered_ms"),
            F.count(F.when(span.holds(delivered_ms), 1)).alias("deliveries"),
            F.max(F.when(is_removal, at_ms)).alias("removed_ms"),
            F.max(F.when(is_removal, code)).alias("reason_code"),
        )
    )


def _reason(code: Column) -> Column:
    reasons = F.array(*[F.lit(reason) for reason in REMOVALS])
    return F.when(code.isNotNull(), F.element_at(reasons, code + 1))


@dataclass(frozen=True)
class Number:
    """One table of numbers.

    ``columns`` says what each column holds, with its unit; ``order`` are the columns that rows
    are sorted by, ``-`` before a name for descending; ``naming`` are the columns that name
    an identity, which pseudonyms replace.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    make: Callable[[Facts], DataFrame]
    order: tuple[str, ...]
    naming: tuple[str, ...] = ()
