"""Identities, and which of them are registered (DCTRL-0004 8.1)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from eventstore.log.events import TOPIC_BY_TYPE, BatchSealed, type_name
from projections.tables.projection import (
    ERASED,
    EXPIRED,
    PLACE,
    LiveRows,
    Projection,
    Step,
    without,
)

_SWITCHES: Final = {
    "refusing": (
        "queue-refused",
        ("messages-removed", "queue-policy-set", "account-ended", EXPIRED),
    ),
    "dedicated": ("identity-dedicated", ("identity-released",)),
    "erased": ("identity-erased", ("identity-registered", "connection-established")),
}
"""Columns that an event of one type sets, and events of others clear."""
_NEWEST: Final = ("added_at", "delivered_at", "removed_at", *_SWITCHES)
"""Columns with the value of the newest event that gives one."""

# All aggregates here keep only numbers: Spark then needs no sorting, only one hash table.


def _identities(step: Step) -> DataFrame:
    kind, at = F.col("type"), F.col("recorded_at")
    switches = [
        F.when(kind == on, F.lit(col=True)).when(kind.isin(*off), F.lit(col=False)).alias(name)
        for name, (on, off) in _SWITCHES.items()
    ]
    new = step.events.where(kind != "batch-sealed").select(
        *PLACE,
        F.when(kind == "event-saved", 1).otherwise(0).cast("long").alias("saved_events"),
        F.when(kind == "message-queued", at).alias("added_at"),
        F.when(kind == "messages-delivered", at).alias("delivered_at"),
        F.when(kind == "messages-removed", at).alias("removed_at"),
        *switches,
    )
    return (
        step.since(new)
        .groupBy("stream", "identity")
        .agg(
            F.max("version").alias("version"),
            F.max("position").alias("position"),
            F.max_by("recorded_at", "version").alias("recorded_at"),
            F.sum("saved_events").alias("saved_events"),
            *[
                F.max_by(name, F.when(F.col(name).isNotNull(), F.col("version"))).alias(name)
                for name in _NEWEST
            ],
        )
        .fillna(value=False, subset=list(_SWITCHES))
    )


def _registrations(step: Step) -> DataFrame:
    new = step.of("identity-registered").select(
        *PLACE,
        "expires_at_s",
        F.lit(1).cast("long").alias("registrations"),
        F.col("recorded_at").alias("since"),
    )
    return (
        without(step.since(new), step.of(ERASED), "stream")
        .groupBy("stream", "identity")
        .agg(
            F.max("version").alias("version"),
            F.max("position").alias("position"),
            F.max_by("recorded_at", "version").alias("recorded_at"),
            F.max("expires_at_s").alias("expires_at_s"),
            F.sum("registrations").alias("registrations"),
            F.min_by("since", "version").alias("since"),
        )
    )


IDENTITIES: Final = Projection(
    "identities",
    "Every stream of the log but those of seals: identities, keys, invitations, edges.",
    PLACE
    | {
        "saved_events": "events of its own history that it saved, erased ones included",
        "added_at": "when its queue last took a message",
        "delivered_at": "when messages were last handed out from its queue",
        "removed_at": "when messages last left its queue",
        "refusing": "its queue refused a message since it last changed",
        "dedicated": "it is a partition of its own instead of belonging to its shard",
        "erased": "it was erased, and has not registered or connected since",
    },
    tuple(dict.fromkeys(type_name(kind) for kind in TOPIC_BY_TYPE if kind is not BatchSealed)),
    _identities,
    LiveRows(),
)
REGISTRATIONS: Final = Projection(
    "registrations",
    "Identities with a contract with the mediator, expired ones included.",
    PLACE
    | {
        "expires_at_s": "latest expiry of all its contracts with the mediator, Unix seconds",
        "registrations": "how often it registered",
        "since": "when it first registered",
    },
    ("identity-registered", ERASED),
    _registrations,
    LiveRows(),
)
