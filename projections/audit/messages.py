"""Audits refusals, and messages that are not fetched.

Each function makes a DataFrame of the events of a step (``events_until``), so it depends only on
the log up to one position. The rows are sorted, and none has the content of a message.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from eventstore.parquet.audit.answering import Period
from eventstore.parquet.opening import Position
from projections.spark.export import ExportedLog
from projections.tables.projection import Step
from projections.tables.queues import QUEUES

REPLAYS: Final = ("DUPLICATE_NONCE", "TIMESTAMP_OUT_OF_RANGE")
"""The reasons of refused replays: while the nonce is remembered, and later. A client with a wrong
clock is refused for the second reason, too."""
_CLOCKS_DIFFER: Final = timedelta(hours=1)
EVER: Final = Period()


def _overlaps(period: Period, first: str, last: str) -> Column:
    """Whether the time from ``first`` to ``last``, both columns, overlaps a period."""
    inside = F.lit(col=True)
    if period.since is not None:
        inside &= F.col(last) >= F.lit(period.since)
    if period.until is not None:
        inside &= F.col(first) < F.lit(period.until)
    return inside


def events_until(spark: SparkSession, export: ExportedLog, position: Position) -> Step:
    """All events up to a position."""
    events = export.events(spark, until=position)
    types = export.types(export.start, position)
    # Each audit reads one or two types, so the rare events are not selected separately.
    return Step(events, events, frozenset(), types, len(position))


def refused_commands(
    step: Step,
    period: Period = EVER,
    *,
    reasons: Collection[str] = (),
) -> DataFrame:
    """Refused commands by protocol, command, reason and sender; most refusals first.

    Args:
        step: the events.
        period: a count is taken whole if its time overlaps the period.
        reasons: only refusals for these reasons; empty for all.
    """
    counts = step.of("refusals-counted")
    if period.since is not None:
        # Counts are recorded later, by the clock of another machine: skip older files.
        counts = counts.where(F.col("recorded_at") >= F.lit(period.since) - F.lit(_CLOCKS_DIFFER))
    rows = counts.select("edge", F.explode("refusals").alias("one")).select("edge", "one.*")
    if reasons:
        rows = rows.where(F.col("reason").isin(*reasons))
    keys = ("protocol", "command", "reason", "sender_did")
    return (
        rows.where(_overlaps(period, "first_at", "last_at"))
        .groupBy(*keys)
        .agg(
            F.sum("count").alias("count"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.count_distinct("edge").alias("edges"),
        )
        .orderBy(F.col("count").desc(), *keys)
    )


def queue_refusals(step: Step, period: Period = EVER) -> DataFrame:
    """How often each queue began to refuse messages, by reason; most often first."""
    keys = ("identity", "recipient_key", "reason")
    return (
        step.of("queue-refused")
        .where(_overlaps(period, "recorded_at", "recorded_at"))
        .groupBy(*keys)
        .agg(
            F.count("*").alias("count"),
            F.min("recorded_at").alias("first_at"),
            F.max("recorded_at").alias("last_at"),
        )
        .orderBy(F.col("count").desc(), *keys)
    )


def stuck_messages(
    step: Step, at_ms: int, *, older_than_s: int, deliveries_min: int, period: Period = EVER
) -> DataFrame:
    """Messages that have waited longer than a bound, or were delivered too often; worst first.

    The worst message exceeds one of the two bounds by the largest factor.

    Args:
        step: the events.
        at_ms: the time of the audit, up to which messages have waited, Unix milliseconds.
        older_than_s: the longest usual wait, in seconds; at least 1.
        deliveries_min: the fewest unacknowledged deliveries of a stuck message; at least 1.
        period: when the messages were queued.
    """
    if period.since is not None:
        # Their later events have later times, by clocks that differ little: skip older files.
        since = F.lit(period.since) - F.lit(_CLOCKS_DIFFER)
        step = replace(step, events=step.events.where(F.col("recorded_at") >= since))
    age_s = (F.lit(at_ms) - F.unix_millis("recorded_at")) / 1_000
    over = F.greatest(F.col("age_s") / older_than_s, F.col("deliveries") / deliveries_min)
    return (
        QUEUES.rebuild(step)
        .where(_overlaps(period, "recorded_at", "recorded_at"))
        .withColumn("age_s", age_s)
        .where((F.col("age_s") > older_than_s) | (F.col("deliveries") >= deliveries_min))
        .orderBy(over.desc(), "position")
        .select(
            "message_id",
            "identity",
            F.col("recorded_at").alias("queued_at"),
            "age_s",
            "deliveries",
            "delivered_at",
            "protocol",
            "sender_did",
            "recipient_key",
            "size_bytes",
            "position",
        )
    )
