"""Saved events with their tags (DCTRL-0004 8.9 to 8.11) and public events (DCTRL-0007)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from projections.tables.projection import (
    ERASED,
    PLACE,
    LiveRows,
    Projection,
    Step,
    latest,
    without,
)

_SAVED: Final = {
    "event_id": "id of the saved event",
    "sender_did": "who sent it",
    "recipient_did": "who got it",
    "contract_id": "contract that it belongs to; null for none",
    "timestamp_s": "its time as the owner wrote it, Unix seconds",
    "size_bytes": "size of the encrypted event",
    "tags": "its encrypted tags as last written",
    "processed": "the owner has dealt with it",
}
_REVISION: Final = {"revision": "version that last replaced the tags; 0 for none"}
_PUBLIC: Final = {
    "event_id": "id of the public event",
    "channel_id": "its channel",
    "tags": "its tags",
    "timestamp_s": "its time as the publisher wrote it, Unix seconds",
    "size_bytes": "size of the event",
}


def _saved_events(step: Step) -> DataFrame:
    new = step.of("event-saved").select(*PLACE, *_SAVED, F.lit(0).cast("long").alias("revision"))
    updates = step.of("event-tags-updated").select("stream", "event_id", "version", "tags")
    newest = latest(updates, "stream", "event_id").select(
        "stream",
        "event_id",
        F.col("version").alias("new_revision"),
        F.col("tags").alias("new_tags"),
    )
    since = without(step.since(new), step.of(ERASED), "stream")
    rows = since.join(newest, ["stream", "event_id"], "left")
    # An update of an event that the owner did not have yet changed nothing.
    is_updated = F.coalesce(F.col("new_revision") > F.col("version"), F.lit(col=False))
    return rows.select(
        *PLACE,
        *[name for name in _SAVED if name not in ("tags", "processed")],
        F.when(is_updated, F.col("new_tags")).otherwise(F.col("tags")).alias("tags"),
        (F.col("processed") | is_updated).alias("processed"),
        F.when(is_updated, F.col("new_revision")).otherwise(F.col("revision")).alias("revision"),
    )


def _public_events(step: Step) -> DataFrame:
    new = step.of("public-event-published").select(*PLACE, *_PUBLIC)
    # Expired events may be in any channel.
    deleted = step.of("public-events-deleted", "public-events-expired").select(
        "stream", "version", "channel_id", F.explode("event_ids").alias("event_id")
    )
    everywhere = deleted.where("channel_id IS NULL")
    in_channel = deleted.where("channel_id IS NOT NULL")
    rows = without(step.since(new), everywhere, "stream", "event_id")
    return without(rows, in_channel, "stream", "event_id", "channel_id")


SAVED_EVENTS: Final = Projection(
    "saved_events",
    "Events that identities saved of their own history.",
    PLACE | _SAVED | _REVISION,
    ("event-saved", "event-tags-updated", ERASED),
    _saved_events,
)
PUBLIC_EVENTS: Final = Projection(
    "public_events",
    "Events that any client may read: published and not withdrawn.",
    PLACE | _PUBLIC,
    ("public-event-published", "public-events-deleted", "public-events-expired"),
    _public_events,
    LiveRows(keys=("event_id",), order=("version",)),
)
