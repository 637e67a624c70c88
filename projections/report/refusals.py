"""Numbers of refusals: queues that took nothing more, and commands that edges refused.

A queue records once that it begins to refuse; edges count every refused command and record sums
in the log once per period. A period counts here when its sums were recorded.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.report.facts import Facts, Number
from projections.report.pickup import TOP

QUEUES: Final = "queue"
COMMANDS: Final = "command"
REASONS_MAX: Final = 12
OTHER: Final = "other"


def _refused(facts: Facts) -> DataFrame:
    """at_ms, refused (queue or command), protocol, command, reason, sender_did, count."""
    nothing = F.lit("")
    queues = facts.inside("queue-refused").select(
        "at_ms",
        F.lit(QUEUES).alias("refused"),
        nothing.alias("protocol"),
        nothing.alias("command"),
        "reason",
        nothing.alias("sender_did"),
        F.lit(1).cast("long").alias("count"),
    )
    commands = (
        facts.inside("refusals-counted")
        .select("at_ms", F.explode("refusals").alias("entry"))
        .select(
            "at_ms",
            F.lit(COMMANDS).alias("refused"),
            *[
                F.col(f"entry.{name}").alias(name)
                for name in ("protocol", "command", "reason", "sender_did", "count")
            ],
        )
    )
    return queues.unionByName(commands)


def _over_time(facts: Facts) -> DataFrame:
    bins, rows = facts.span.volume, _refused(facts)
    return (
        rows.withColumn("reason", _frequent(rows))
        .groupBy(bins.index(F.col("at_ms")).alias("bin"), "refused", "reason")
        .agg(F.sum("count").alias("count"))
        .select(
            F.timestamp_millis(bins.start_ms(F.col("bin"))).alias("bin_start"),
            "refused",
            "reason",
            "count",
        )
    )


def _frequent(rows: DataFrame) -> Column:
    """The reason, or ``other`` for all but the most frequent ones: the table stays bounded."""
    ranked = rows.groupBy("reason").agg(F.sum("count").alias("count"))
    kept = ranked.orderBy(F.desc("count"), "reason").limit(REASONS_MAX).collect()
    reason = F.col("reason")
    return F.when(reason.isin(*[row.reason for row in kept]), reason).otherwise(F.lit(OTHER))


def _by_kind(facts: Facts) -> DataFrame:
    return (
        _refused(facts)
        .groupBy("refused", "protocol", "command", "reason")
        .agg(F.sum("count").alias("count"))
        .orderBy(F.desc("count"), "refused", "protocol", "command", "reason")
        .limit(TOP)
    )


def _senders(facts: Facts) -> DataFrame:
    return (
        _refused(facts)
        .where("sender_did != ''")
        .groupBy(F.col("sender_did").alias("did"), "reason")
        .agg(F.sum("count").alias("count"))
        .orderBy(F.desc("count"), "did", "reason")
        .limit(TOP)
    )


_REFUSED: Final = {"refused": f"{QUEUES} (one began to refuse) or {COMMANDS} (each is counted)"}
REFUSALS: Final = Number(
    "refusals",
    "Refusals over time",
    {"bin_start": "when the bin begins, UTC"}
    | _REFUSED
    | {
        "reason": f"code of the refusal; {OTHER} for all but the {REASONS_MAX} most frequent",
        "count": "refusals",
    },
    _over_time,
    ("bin_start", "refused", "reason"),
)
KINDS: Final = Number(
    "refusals_by_kind",
    "What was refused most",
    _REFUSED
    | {
        "protocol": "decentrl or didcomm; empty for queues",
        "command": "the request; empty where it is not known",
        "reason": "code of the refusal",
        "count": "refusals",
    },
    _by_kind,
    ("-count", "refused", "protocol", "command", "reason"),
)
REFUSED_SENDERS: Final = Number(
    "refused_senders",
    "Who was refused most",
    {
        "did": "the sender, where that is proven",
        "reason": "code of the refusal",
        "count": "refusals",
    },
    _senders,
    ("-count", "did", "reason"),
    ("did",),
)
