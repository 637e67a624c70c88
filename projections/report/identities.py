"""Numbers of identities: how many there are, and which send and receive most."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.report.facts import Facts, Number
from projections.report.pickup import TOP

GROWING: Final = ("registrations", "connections", "contracts", "keys")


def _growth(facts: Facts) -> DataFrame:
    """Changes gathered by the first edge after them; totals are running sums over the edges."""
    bins = facts.span.standing
    changes = (
        _changes(facts)
        .groupBy("what", bins.edge_after(F.col("at_ms")).alias("edge"))
        .agg(F.sum("change").alias("change"))
    )
    edges = facts.spark.range(bins.count + 1).select(F.col("id").cast("int").alias("edge"))
    kinds = facts.spark.createDataFrame([(what,) for what in GROWING], "what string")
    running = Window.partitionBy("what").orderBy("edge")
    change = F.coalesce("change", F.lit(0))
    return (
        edges.crossJoin(F.broadcast(kinds))
        .join(changes, ["what", "edge"], "left")
        .select(
            F.timestamp_millis(bins.edge_ms(F.col("edge"))).alias("at"),
            "what",
            F.when(F.col("edge") > 0, change).otherwise(0).alias("change"),
            F.sum(change).over(running).alias("total"),
        )
    )


def _changes(facts: Facts) -> DataFrame:
    """One row for each time that a total changes: what, at_ms, change."""
    first = {"registrations": "identity-registered", "connections": "connection-established"}
    parts = [
        facts.of(kind)
        .groupBy("stream")
        .agg(F.min("at_ms").alias("at_ms"))
        .select(F.lit(what).alias("what"), "at_ms", F.lit(1).alias("change"))
        for what, kind in first.items()
    ]
    parts.append(
        facts.of("contract-stored").select(
            F.lit("contracts").alias("what"), "at_ms", F.lit(1).alias("change")
        )
    )
    # A key may be claimed again by its owner: only the first of such claims changes the number.
    claimed = F.when(F.col("type") == "key-claimed", 1).otherwise(0)
    before = F.lag(claimed, 1, 0).over(Window.partitionBy("stream").orderBy("version"))
    keys = facts.of("key-claimed", "key-released").select(
        F.lit("keys").alias("what"), "at_ms", (claimed - before).alias("change")
    )
    parts.append(keys.where("change != 0"))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows


def _senders(facts: Facts) -> DataFrame:
    return _largest(facts, "sender_did")


def _recipients(facts: Facts) -> DataFrame:
    return _largest(facts, "identity")


def _largest(facts: Facts, column: str) -> DataFrame:
    """The first ones by messages, and the first ones by bytes."""
    largest = (
        facts.messages.where(facts.span.holds(F.col("queued_ms")) & (F.col(column) != ""))
        .groupBy(F.col(column).alias("did"))
        .agg(F.count("*").alias("messages"), F.sum("size_bytes").alias("bytes"))
    )
    by_messages = largest.orderBy(F.desc("messages"), F.desc("bytes"), "did").limit(TOP)
    by_bytes = largest.orderBy(F.desc("bytes"), F.desc("messages"), "did").limit(TOP)
    return by_messages.union(by_bytes).distinct()


GROWTH: Final = Number(
    "growth",
    "Identities, connections, contracts and keys over time",
    {
        "at": "the time, UTC",
        "what": "registrations (identities that ever registered), connections (DIDComm agents "
        "that ever connected), contracts (ever stored) or keys (that have an owner now)",
        "change": "by how much the number grew since the time before",
        "total": "the number",
    },
    _growth,
    ("at", "what"),
)
_LARGEST: Final = {
    "messages": "messages queued",
    "bytes": "their payloads, bytes",
}
SENDERS: Final = Number(
    "senders",
    "Largest senders",
    {"did": "the sender; none where the protocol hides it"} | _LARGEST,
    _senders,
    ("-messages", "-bytes", "did"),
    ("did",),
)
RECIPIENTS: Final = Number(
    "recipients",
    "Largest recipients",
    {"did": "whose queue it is"} | _LARGEST,
    _recipients,
    ("-messages", "-bytes", "did"),
    ("did",),
)
