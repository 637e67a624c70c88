"""Nonces in force (DCTRL-0004 5.2, 12.2) and the newest seal of each partition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from projections.tables.projection import LiveRows, Projection, Step

_PACKED_BYTES: Final = 24
"""A packed nonce (``eventstore.log.seal.pack_nonces``): 16 bytes of key, 8 of expiry in Unix ms."""
_KEY_BYTES: Final = 16


def _nonces(step: Step) -> DataFrame:
    """Nonces that had not expired when the last event was recorded.

    A command's timestamp is at most one window ahead, and its nonce is kept for one window more:
    older seals need not be unpacked.
    """
    oldest_ms = step.at_ms - 2 * step.window_ms_max - 1
    oldest = F.lit(datetime.fromtimestamp(oldest_ms / 1000, UTC))
    seals = step.of("batch-sealed").where(F.col("recorded_at") >= oldest)
    new = unpacked(seals).select(
        "partition", "key", F.timestamp_millis("expires_at_ms").alias("expires_at")
    )
    now = F.timestamp_millis(F.lit(step.at_ms).cast("long"))
    return (
        step.since(new)
        .where(F.col("expires_at") >= now)
        .groupBy("partition", "key")
        .agg(F.max("expires_at").alias("expires_at"))
    )


def unpacked(seals: DataFrame, *others: str) -> DataFrame:
    """Unpack the nonces of seals: ``partition``, ``key``, ``expires_at_ms``, and ``others``.

    ``others`` are columns of the seals.
    """
    count = (F.length("nonces") / _PACKED_BYTES).cast("int")
    start = F.col("number") * _PACKED_BYTES + 1
    expiry = F.substring("nonces", start + _KEY_BYTES, F.lit(_PACKED_BYTES - _KEY_BYTES))
    return (
        seals.where(F.length("nonces") >= _PACKED_BYTES)
        .select(
            "partition",
            "nonces",
            *others,
            F.explode(F.sequence(F.lit(0), count - 1)).alias("number"),
        )
        .select(
            "partition",
            F.substring("nonces", start, F.lit(_KEY_BYTES)).alias("key"),
            F.conv(F.hex(expiry), 16, 10).cast("long").alias("expires_at_ms"),
            *others,
        )
    )


def _seals(step: Step) -> DataFrame:
    sealed = step.of("batch-sealed")
    new = sealed.select(
        "partition",
        "version",
        "position",
        "recorded_at",
        "epoch",
        "digest",
        F.lit(1).cast("long").alias("seals"),
        (F.length("nonces") / _PACKED_BYTES).cast("long").alias("nonces"),
        F.col("sealed_rows").alias("events"),
    )
    counted = ("seals", "nonces", "events")
    seals = step.since(new)
    # Aggregate only numbers: to keep a digest, Spark would sort.
    newest = seals.groupBy("partition").agg(
        F.max("position").alias("position"), *[F.sum(name).alias(name) for name in counted]
    )
    rows = seals.drop(*counted).join(F.broadcast(newest), ["partition", "position"])
    return rows.select(*SEALS.columns)


NONCES: Final = Projection(
    "nonces",
    "Nonces in force when the last event was recorded.",
    {
        "partition": "partition that keeps the nonce",
        "key": "16-byte key of the nonce and its sender",
        "expires_at": "when it may be forgotten",
    },
    ("batch-sealed",),
    _nonces,
    LiveRows(keys=("key",), owner="partition"),
)
SEALS: Final = Projection(
    "seals",
    "The newest seal of each partition: the heads of the hash chains.",
    {
        "partition": "the partition",
        "version": "version of the seal in the partition's stream",
        "position": "position of the seal in the log",
        "recorded_at": "when it was made",
        "epoch": "how often the partition was claimed by an owner",
        "digest": "digest of the seal",
        "seals": "how many seals the partition has",
        "nonces": "how many nonces its seals hold",
        "events": "how many events its seals cover",
    },
    ("batch-sealed",),
    _seals,
    LiveRows(owner="partition"),
)
