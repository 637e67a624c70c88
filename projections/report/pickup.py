"""Numbers of pickup: how long messages wait, and how often they are handed out."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.report.facts import Facts, Number

FIRST_DELIVERY: Final = "first delivery"
BINS_PER_DECADE: Final = 5
TOP: Final = 20
_RANKS: Final = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}
_RANK_ACCURACY: Final = 10_000
_DELIVERIES: Final = (1, 2, 3, 4, 5, 6, 11, 21, 51, 101)
"""Where the classes of messages by the number of deliveries begin."""


def _waits(facts: Facts) -> DataFrame:
    """How long each message waited for what happened to it in the span: stage, protocol, ms."""
    stages = {
        "first_delivered_ms": F.lit(FIRST_DELIVERY),
        "removed_ms": F.col("reason"),
    }
    parts = [
        facts.messages.where(facts.span.holds(F.col(name))).select(
            stage.alias("stage"),
            "protocol",
            # Clocks may step back between two events.
            F.greatest(F.lit(0), F.col(name) - F.col("queued_ms")).alias("ms"),
        )
        for name, stage in stages.items()
    ]
    return parts[0].unionByName(parts[1])


def _latency(facts: Facts) -> DataFrame:
    ranks = F.percentile_approx("ms", list(_RANKS.values()), _RANK_ACCURACY)
    return (
        _waits(facts)
        .groupBy("stage", "protocol")
        .agg(
            F.count("*").alias("messages"),
            ranks.alias("ranks"),
            (F.avg("ms") / 1000).alias("mean_s"),
            (F.max("ms") / 1000).alias("max_s"),
        )
        .select(
            "stage",
            "protocol",
            "messages",
            *[(F.col("ranks")[n] / 1000).alias(name) for n, name in enumerate(_RANKS)],
            "mean_s",
            "max_s",
        )
    )


def _histogram(facts: Facts) -> DataFrame:
    decades = F.floor(F.log10("ms") * BINS_PER_DECADE)
    bin_ = F.when(F.col("ms") < 1, F.lit(-1)).otherwise(decades).cast("int")

    def edge_s(number: int) -> F.Column:
        return F.pow(F.lit(10.0), (F.col("bin") + number) / F.lit(BINS_PER_DECADE)) / 1000

    return (
        _waits(facts)
        .groupBy("stage", "protocol", bin_.alias("bin"))
        .agg(F.count("*").alias("messages"))
        .select(
            "stage",
            "protocol",
            F.when(F.col("bin") < 0, F.lit(0.0)).otherwise(edge_s(0)).alias("from_s"),
            edge_s(1).alias("to_s"),
            "messages",
        )
    )


def _redeliveries(facts: Facts) -> DataFrame:
    least, most = F.lit(_DELIVERIES[0]), F.lit(_DELIVERIES[1] - 1)
    for start, after in zip(_DELIVERIES[1:], (*_DELIVERIES[2:], None), strict=True):
        is_here = F.col("deliveries") >= start
        least = F.when(is_here, F.lit(start)).otherwise(least)
        most = F.when(is_here, F.lit(after - 1 if after else None)).otherwise(most)
    return (
        facts.messages.where("deliveries > 0")
        .groupBy(least.alias("deliveries_from"), most.alias("deliveries_to"), "protocol")
        .agg(F.count("*").alias("messages"))
    )


def _worst(facts: Facts) -> DataFrame:
    return (
        facts.messages.where("deliveries > 1")
        .orderBy(F.desc("deliveries"), "queued_ms", "message_id")
        .limit(TOP)
        .select(
            "message_id",
            F.col("identity").alias("recipient_did"),
            "protocol",
            "deliveries",
            "size_bytes",
            F.timestamp_millis("queued_ms").alias("queued_at"),
            F.timestamp_millis("last_delivered_ms").alias("last_delivered_at"),
            F.timestamp_millis("removed_ms").alias("removed_at"),
            "reason",
        )
    )


_STAGE: Final = {
    "stage": f"{FIRST_DELIVERY}, or the reason for which the message left its queue",
    "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
}
LATENCY: Final = Number(
    "latency",
    "From queued to picked up",
    _STAGE
    | {
        "messages": "messages to which that happened",
        "p50_s": "half of them waited at most this long, seconds",
        "p90_s": "nine of ten waited at most this long, seconds",
        "p99_s": "99 of 100 waited at most this long, seconds",
        "mean_s": "mean wait, seconds",
        "max_s": "longest wait, seconds",
    },
    _latency,
    ("stage", "protocol"),
)
HISTOGRAM: Final = Number(
    "latency_histogram",
    "Distribution of waits",
    _STAGE
    | {
        "from_s": "the shortest wait that is counted here, seconds",
        "to_s": "waits counted here are shorter than this, seconds",
        "messages": "messages",
    },
    _histogram,
    ("stage", "protocol", "from_s"),
)
REDELIVERIES: Final = Number(
    "redeliveries",
    "How often messages were handed out",
    {
        "deliveries_from": "handed out at least this often",
        "deliveries_to": "and at most this often; empty for no bound",
        "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
        "messages": "messages",
    },
    _redeliveries,
    ("deliveries_from", "protocol"),
)
WORST: Final = Number(
    "redelivered_most",
    "Messages handed out most often",
    {
        "message_id": "id of the message",
        "recipient_did": "whose queue it is in",
        "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
        "deliveries": "times that it was handed out",
        "size_bytes": "size of the payload, bytes",
        "queued_at": "when it was queued, UTC",
        "last_delivered_at": "when it was last handed out, UTC",
        "removed_at": "when it left the queue, UTC; empty if it waits",
        "reason": "why it left the queue",
    },
    _worst,
    ("-deliveries", "queued_at", "message_id"),
    ("recipient_did",),
)
