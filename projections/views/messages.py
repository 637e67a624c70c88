"""Views of messages: the life of each, and sums over time."""

from __future__ import annotations

from typing import Final

from projections.views.view import BIN, COMPLETE, PROTOCOL, SENDER, View

REMOVALS: Final = (
    *("acknowledged", "delivered", "expired", "purged", "ended", "unregistered"),
    *("erased", "idle"),
)
"""The reasons for which messages leave a queue; any that a later release adds is ``other``."""
_CODES: Final = " ".join(f"WHEN '{reason}' THEN {code}" for code, reason in enumerate(REMOVALS))
_REASONS: Final = " ".join(f"WHEN {code} THEN '{reason}'" for code, reason in enumerate(REMOVALS))

BINS: Final = View(
    "bins",
    "The bins of the span.",
    BIN | {"bin_end": "before which the bin ends"} | COMPLETE,
    """
SELECT
  timestamp_millis(start_ms) AS bin_start,
  timestamp_millis(start_ms + bin_ms) AS bin_end,
  start_ms + bin_ms <= complete_ms AS is_complete
FROM (SELECT explode(sequence(since_ms, until_ms - 1, bin_ms)) AS start_ms FROM span) AS starts
CROSS JOIN span
""",
    ("bin_start",),
)
# Reasons are aggregated as numbers: Spark then needs no sorting, only one hash table.
MESSAGES: Final = View(
    "messages",
    "The life of each message to which something happened in the span, or that waited in it.",
    {
        "stream": "16-byte key of the identity's stream",
        "message_id": "id of the message",
        "identity": "DID of the owner of the queue",
    }
    | PROTOCOL
    | {
        "sender_did": f"who sent it; {SENDER}",
        "recipient_key": "key that it is addressed to; empty for the identity itself",
        "size_bytes": "size of the payload, bytes",
        "queued_at": "when it was queued",
        "first_delivered_at": "when it was first handed out; null if never",
        "last_delivered_at": "when it was last handed out; null if never",
        "deliveries": "how often it was handed out in the span",
        "removed_at": "when it left the queue; null if it waits",
        "reason": f"why it left the queue: {', '.join(REMOVALS)}, other; null if it waits",
    },
    f"""
WITH marks AS (
  SELECT
    stream,
    explode(message_ids) AS message_id,
    CASE WHEN type = 'messages-delivered' THEN recorded_at END AS delivered_at,
    CASE WHEN type = 'messages-removed' THEN recorded_at END AS removed_at,
    CASE WHEN type = 'messages-removed' THEN CASE reason {_CODES} ELSE 99 END END AS code
  FROM events
  WHERE type IN ('messages-delivered', 'messages-removed')
),
fates AS (
  SELECT
    stream,
    message_id,
    min(delivered_at) AS first_delivered_at,
    max(delivered_at) AS last_delivered_at,
    count(CASE WHEN unix_millis(delivered_at) >= since_ms THEN 1 END) AS deliveries,
    max(removed_at) AS removed_at,
    max(code) AS code
  FROM marks CROSS JOIN span
  GROUP BY stream, message_id
)
SELECT /*+ SHUFFLE_HASH(fates) */
  queued.stream,
  queued.message_id,
  queued.identity,
  queued.protocol,
  queued.sender_did,
  queued.recipient_key,
  queued.size_bytes,
  queued.recorded_at AS queued_at,
  fates.first_delivered_at,
  fates.last_delivered_at,
  coalesce(fates.deliveries, 0) AS deliveries,
  fates.removed_at,
  CASE fates.code {_REASONS} WHEN 99 THEN 'other' END AS reason
FROM events AS queued
CROSS JOIN span
LEFT JOIN fates ON queued.stream = fates.stream AND queued.message_id = fates.message_id
WHERE queued.type = 'message-queued' AND (
  fates.removed_at IS NULL
  OR unix_millis(queued.recorded_at) >= since_ms
  OR unix_millis(fates.removed_at) >= since_ms
  OR unix_millis(fates.last_delivered_at) >= since_ms
)
""",
    is_basis=True,
)
STAYS: Final = View(
    "stays",
    "Messages by the bins in which they came and went: few rows, whatever the number of messages.",
    PROTOCOL
    | {
        "queued_bin": "the bin in which they were queued; for earlier ones the bin before the span",
        "removed_bin": "the bin in which they left their queue; null if they wait",
        "messages": "messages",
        "bytes": "their payloads, bytes",
        "oldest_at": "when the first of them was queued",
    },
    """
SELECT
  protocol,
  timestamp_millis(greatest(queued_ms - queued_ms % bin_ms, since_ms - bin_ms)) AS queued_bin,
  CASE WHEN removed_ms IS NOT NULL
    THEN timestamp_millis(greatest(removed_ms - removed_ms % bin_ms, since_ms - bin_ms))
  END AS removed_bin,
  count(*) AS messages,
  CAST(sum(size_bytes) AS BIGINT) AS bytes,
  timestamp_millis(min(queued_ms)) AS oldest_at
FROM (
  SELECT
    protocol,
    size_bytes,
    unix_millis(queued_at) AS queued_ms,
    unix_millis(removed_at) AS removed_ms
  FROM messages
) AS lives
CROSS JOIN span
GROUP BY 1, 2, 3
""",
    ("protocol", "queued_bin", "removed_bin"),
    is_basis=True,
)
VOLUMES: Final = View(
    "volumes",
    "Messages and bytes over time.",
    BIN
    | PROTOCOL
    | {
        "queued": "messages that were queued",
        "queued_bytes": "their payloads, bytes",
        "removed": "messages that left the queues, for whatever reason",
        "removed_bytes": "their payloads, bytes",
    }
    | COMPLETE,
    """
WITH counts AS (
  SELECT queued_bin AS bin_start, protocol, messages AS queued, bytes AS queued_bytes,
    0 AS removed, 0 AS removed_bytes
  FROM stays
  UNION ALL
  SELECT removed_bin, protocol, 0, 0, messages, bytes FROM stays
)
SELECT
  bins.bin_start,
  protocols.protocol,
  CAST(coalesce(sum(queued), 0) AS BIGINT) AS queued,
  CAST(coalesce(sum(queued_bytes), 0) AS BIGINT) AS queued_bytes,
  CAST(coalesce(sum(removed), 0) AS BIGINT) AS removed,
  CAST(coalesce(sum(removed_bytes), 0) AS BIGINT) AS removed_bytes,
  bins.is_complete
FROM bins
CROSS JOIN (SELECT DISTINCT protocol FROM stays) AS protocols
LEFT JOIN counts ON bins.bin_start = counts.bin_start AND protocols.protocol = counts.protocol
GROUP BY bins.bin_start, protocols.protocol, bins.is_complete
""",
    ("bin_start", "protocol"),
)
QUEUE_DEPTH: Final = View(
    "queue_depth",
    "How many messages wait, and how long the oldest of them has waited, over time.",
    {"at_time": "the time: each beginning of a bin, and the end of the span"}
    | PROTOCOL
    | {
        "messages": "messages that wait",
        "bytes": "their payloads, bytes",
        "oldest_s": "how long the oldest of them has waited, seconds; null if none waits",
    }
    | COMPLETE,
    """
WITH edges AS (
  SELECT unix_millis(bin_start) AS at_ms FROM bins UNION ALL SELECT until_ms FROM span
),
grid AS (
  SELECT at_ms, timestamp_millis(at_ms) AS at_time, protocol, at_ms <= complete_ms AS is_complete
  FROM edges CROSS JOIN (SELECT DISTINCT protocol FROM stays) AS protocols CROSS JOIN span
)
SELECT
  grid.at_time,
  grid.protocol,
  CAST(coalesce(sum(messages), 0) AS BIGINT) AS messages,
  CAST(coalesce(sum(bytes), 0) AS BIGINT) AS bytes,
  (grid.at_ms - min(unix_millis(oldest_at))) / 1000 AS oldest_s,
  grid.is_complete
FROM grid
LEFT JOIN stays ON grid.protocol = stays.protocol
  AND stays.queued_bin < grid.at_time
  AND (stays.removed_bin IS NULL OR stays.removed_bin >= grid.at_time)
GROUP BY grid.at_ms, grid.at_time, grid.protocol, grid.is_complete
""",
    ("at_time", "protocol"),
)
