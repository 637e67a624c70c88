"""Waiting messages (DCTRL-0004 7.2, 8.7, 8.8; RFC 0685) and owners' rules (Aries queue 1.0)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from projections.tables.projection import (
    ACCOUNT_ENDS,
    PLACE,
    LiveRows,
    Projection,
    Step,
    latest_of,
    without,
)

_MESSAGE: Final = {
    "message_id": "id of the message",
    "protocol": "decentrl, didcomm (version 1) or didcomm/v2",
    "sender_did": "who sent it; empty where the protocol hides that",
    "recipient_key": "key that it is addressed to; empty for the identity itself",
    "size_bytes": "size of the payload",
}
_DELIVERIES: Final = {
    "deliveries": "how often it was handed out and not acknowledged",
    "delivered_at": "when it was last handed out",
}
_POLICY: Final = {
    "will_queue": "messages are kept while no session is open",
    "age_s_max": "longest wait in seconds; 0 is no rule",
    "messages_max": "most messages; 0 is no rule",
    "message_bytes_max": "largest message; 0 is no rule",
    "bytes_max": "most bytes in all; 0 is no rule",
}


def _queues(step: Step) -> DataFrame:
    """Messages that were queued and not removed; each has an id of its own.

    Most messages of a log are gone. So the waiting ones are first found from ids and numbers alone;
    then their other columns are looked up.
    """
    new = step.of("message-queued").select(*PLACE, *_MESSAGE)
    rows = step.since(new, but=_DELIVERIES)
    waiting = step.at_hand(_waiting(step))
    # With several databases a position alone does not distinguish a row.
    return rows.join(waiting, ["stream", "position"]).select(*PLACE, *_MESSAGE, *_DELIVERIES)


def _waiting(step: Step) -> DataFrame:
    """The position of each waiting message, and its deliveries: one pass, one aggregation."""
    kind, version = F.col("type"), F.col("version")
    is_queued, is_delivered = kind == "message-queued", kind == "messages-delivered"
    ids = F.when(is_queued, F.array("message_id")).otherwise(F.col("message_ids"))
    marks = step.of("message-queued", "messages-delivered", "messages-removed").select(
        "stream",
        F.explode(ids).alias("message_id"),
        "version",
        F.when(is_queued, F.col("position")).alias("position"),
        F.when(kind == "messages-removed", version).alias("removed_version"),
        F.when(is_delivered, 1).otherwise(0).cast("long").alias("deliveries"),
        F.when(is_delivered, F.col("recorded_at")).alias("delivered_at"),
    )
    if step.earlier is not None:
        never = F.lit(None).cast("long").alias("removed_version")
        names = ("stream", "message_id", "version", "position", never, *_DELIVERIES)
        marks = marks.unionByName(step.earlier.select(*names))
    delivered_version = F.when(F.col("delivered_at").isNotNull(), version)
    return (
        marks.groupBy("stream", "message_id")
        .agg(
            F.max("position").alias("position"),
            F.max(F.when(F.col("position").isNotNull(), version)).alias("version"),
            F.max("removed_version").alias("removed_version"),
            F.sum("deliveries").alias("deliveries"),
            F.max_by("delivered_at", delivered_version).alias("delivered_at"),
        )
        .where("position IS NOT NULL")
        .where("removed_version IS NULL OR removed_version < version")
        .select("stream", "position", *_DELIVERIES)
    )


def _policies(step: Step) -> DataFrame:
    new = step.of("queue-policy-set").select(*PLACE, *_POLICY)
    return latest_of(step, new, *ACCOUNT_ENDS)


def _expiries(step: Step) -> DataFrame:
    """The expiry times of the messages that still wait."""
    new = step.of("message-expiry-set").select(
        *PLACE, F.explode("message_ids").alias("message_id"), "expires_at_s"
    )
    removed = step.of("messages-removed").select(
        "stream", "version", F.explode("message_ids").alias("message_id")
    )
    return without(step.since(new), removed, "stream", "message_id")


QUEUES: Final = Projection(
    "queues",
    "Messages that wait, of every protocol; a queue is in the order of its versions.",
    PLACE | _MESSAGE | _DELIVERIES,
    ("message-queued", "messages-delivered", "messages-removed"),
    _queues,
    LiveRows(keys=("message_id",), order=("version",)),
)
MESSAGE_EXPIRIES: Final = Projection(
    "message_expiries",
    "Waiting messages that their sender gave an expiry time.",
    PLACE | {"message_id": "id of the message", "expires_at_s": "when it expires, Unix seconds"},
    ("message-expiry-set", "messages-removed"),
    _expiries,
    LiveRows(keys=("message_id",)),
)
QUEUE_POLICIES: Final = Projection(
    "queue_policies",
    "The rules that owners gave their queues.",
    PLACE | _POLICY,
    ("queue-policy-set", *ACCOUNT_ENDS),
    _policies,
    LiveRows(),
)
