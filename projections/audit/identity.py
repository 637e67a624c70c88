"""Audits one identity: what it did and received, and its messages by day.

See ``projections.audit.messages`` for the arguments and results of these functions.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from eventstore.log.streams import erased_name
from eventstore.parquet.audit.records import DETAILS, OF_ITS_STREAM, TRAFFIC
from projections.tables.projection import Step


def named(column: str, did: str) -> Column:
    """Whether a column names an identity, by its DID or the text in place of an erased one."""
    return F.col(column).isin(did, erased_name(did))


def identity_history(step: Step, did: str) -> DataFrame:
    """The events of an identity, except those of messages and saved events; newest first.

    ``identity`` is the identity itself, or the key or invitation that it took; ``details`` is a
    struct of the event's fields, null for fields that it does not have.
    """
    is_own = F.col("type").isin(*OF_ITS_STREAM) & named("identity", did)
    own = step.of(*OF_ITS_STREAM, "invitation-used").where(is_own | named("by_did", did))
    return (
        own.unionByName(_keys(step, did))
        .select(
            *step.shown_place,
            "recorded_at",
            "type",
            "version",
            "identity",
            F.struct(*DETAILS).alias("details"),
        )
        .orderBy(*[F.col(name).desc() for name in step.order])
    )


def _keys(step: Step, did: str) -> DataFrame:
    """The identity's claims of keys, and the releases of these keys, which name no owner."""
    claimed = step.of("key-claimed").where(named("owner_did", did)).select("stream").distinct()
    until_now = Window.partitionBy("stream").orderBy("version")
    return (
        step.of("key-claimed", "key-released")
        .join(F.broadcast(claimed), "stream", "left_semi")
        .withColumn("owner", F.last("owner_did", ignorenulls=True).over(until_now))
        .where(named("owner", did))
        .drop("owner")
    )


def identity_traffic(step: Step, did: str) -> DataFrame:
    """What an identity sent, received, fetched and kept, by day (UTC), newest first.

    ``by`` is the protocol of sent and queued messages, the channel of deliveries or the reason of
    removals. ``count`` counts messages (or saved or published events), ``size_bytes`` sums their
    content; null if the event does not have its size.
    """
    is_own, is_sent = (named(column, did) for column in ("identity", "sender_did"))
    is_queued = F.col("type") == "message-queued"
    own = F.when(is_own, F.regexp_extract("type", "[a-z]+$", 0))
    what = F.array_compact(F.array(own, F.when(is_queued & is_sent, F.lit("sent"))))
    is_many = F.col("message_ids").isNotNull()
    return (
        step.of(*TRAFFIC)
        .where(is_own | is_sent)
        .select(
            F.to_date("recorded_at").alias("day"),
            F.explode(what).alias("what"),
            F.coalesce("protocol", "channel", "reason", F.lit("")).alias("by"),
            F.when(is_many, F.size("message_ids")).otherwise(1).alias("count"),
            "size_bytes",
        )
        .groupBy("day", "what", "by")
        .agg(F.sum("count").alias("count"), F.sum("size_bytes").alias("size_bytes"))
        .orderBy(F.col("day").desc(), "what", "by")
    )
