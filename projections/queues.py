"""Waiting messages (DCTRL-0004 7.2, 8.7, 8.8; RFC 0685) and owners' rules (Aries queue 1.0)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.step import PLACE, Projection, Step, latest, select_place

_MESSAGE: Final = {
    "message_id": "id of the message",
    "protocol": "decentrl or didcomm",
    "sender_did": "who sent it; empty where the protocol hides that",
    "recipient_key": "key that it is addressed to; empty for the identity itself",
    "size_bytes": "size of the payload",
}
_DELIVERIES: Final = {
    "deliveries": "how often it was handed out and not acknowledged",
    "delivered_at": "when it was last handed out",
}
_POLICY: Final = {
    "will_queue": "messages are kept while nobody listens",
    "age_s_max": "longest wait in seconds; 0 is no rule",
    "messages_max": "most messages; 0 is no rule",
    "message_bytes_max": "largest message; 0 is no rule",
    "bytes_max": "most bytes together; 0 is no rule",
}


def _queues(step: Step) -> DataFrame:
    """Queued but not removed; an id is given to one message only."""
    new = select_place(
        step.of("message-queued"),
        *_MESSAGE,
        F.lit(0).cast("long").alias("deliveries"),
        F.lit(None).cast("timestamp").alias("delivered_at"),
    )
    # A hash table of each part of the marks: sorting both sides would take twice as long.
    marks = _marks(step).hint("shuffle_hash")
    rows = step.since("queues", new).join(marks, ["stream", "message_id"], "left")
    return rows.where("removed_version IS NULL OR removed_version < version").select(
        *PLACE,
        *_MESSAGE,
        (F.col("deliveries") + F.coalesce("again", F.lit(0))).alias("deliveries"),
        F.coalesce("again_at", "delivered_at").alias("delivered_at"),
    )


def _marks(step: Step) -> DataFrame:
    """What happened to each message since it was queued: one aggregation, one join."""
    is_removal = F.col("type") == "messages-removed"
    delivered_version = F.when(~is_removal, F.col("version"))
    return (
        step.of("messages-delivered", "messages-removed")
        .select(
            "stream", F.explode("message_ids").alias("message_id"), "type", "version", "recorded_at"
        )
        .groupBy("stream", "message_id")
        .agg(
            F.max(F.when(is_removal, F.col("version"))).alias("removed_version"),
            F.count(delivered_version).alias("again"),
            F.max_by("recorded_at", delivered_version).alias("again_at"),
        )
    )


def _policies(step: Step) -> DataFrame:
    new = select_place(step.of("queue-policy-set"), *_POLICY)
    return latest(step.since("queue_policies", new), "stream")


QUEUES: Final = Projection(
    "queues",
    "Messages that wait, of every protocol; a queue is in the order of its versions.",
    PLACE | _MESSAGE | _DELIVERIES,
    ("message-queued", "messages-delivered", "messages-removed"),
    _queues,
)
QUEUE_POLICIES: Final = Projection(
    "queue_policies",
    "The rules that owners gave their queues.",
    PLACE | _POLICY,
    ("queue-policy-set",),
    _policies,
)
