"""Views of pickup: how long messages wait, how often and by which channel they are delivered."""

from __future__ import annotations

from typing import Final

from projections.views.view import BIN, COMPLETE, PROTOCOL, View

FIRST_DELIVERY: Final = "first delivery"
BINS_PER_DECADE: Final = 5
ENDPOINT_CHANNEL: Final = "outbound"
"""The channel of deliveries to the endpoint of an agent."""
_CLASSES: Final = (1, 2, 3, 4, 5, 6, 11, 21, 51, 101)
"""The first number of deliveries of each class of messages."""
_FROM: Final = " ".join(f"WHEN deliveries >= {n} THEN {n}" for n in reversed(_CLASSES))
_TO: Final = " ".join(
    f"WHEN deliveries <= {following - 1} THEN {following - 1}" for following in _CLASSES[1:]
)


def _rank(name: str, share: float) -> str:
    """The SQL for the wait, in seconds, that this share of messages does not exceed."""
    ranked = f"percentile_disc({share}) WITHIN GROUP (ORDER BY wait_ms)"
    return f"CAST({ranked} AS DOUBLE) / 1000 AS {name}"


SERVICE_LEVEL: Final = View(
    "service_level",
    "How soon messages are picked up, by when they were queued.",
    BIN
    | PROTOCOL
    | {
        "messages": "messages that were queued",
        "picked_up": "those of them that left the queue acknowledged or delivered",
        "p50_s": "half of those picked up waited at most this long, seconds",
        "p95_s": "19 of 20 picked up waited at most this long, seconds",
        "p99_s": "99 of 100 picked up waited at most this long, seconds",
        "in_time": "messages that were picked up within the wait of the span (within_ms)",
        "decided": "messages that left the queue or have waited for longer",
        "share_in_time": "in_time divided by decided; null if that is 0",
        "is_complete": "the export has all of the bin, and the wait is over for all its messages",
    },
    f"""
WITH waits AS (
  SELECT
    queued_ms - queued_ms % bin_ms AS start_ms,
    protocol,
    wait_ms,
    CASE WHEN wait_ms <= within_ms THEN 1 END AS in_time,
    CASE WHEN reason IS NOT NULL OR complete_ms - queued_ms > within_ms THEN 1 END AS decided
  FROM (
    SELECT
      protocol,
      reason,
      unix_millis(queued_at) AS queued_ms,
      CASE WHEN reason IN ('acknowledged', 'delivered')
        THEN greatest(unix_millis(removed_at) - unix_millis(queued_at), 0)
      END AS wait_ms
    FROM messages
  ) AS lives
  CROSS JOIN span
  WHERE queued_ms >= since_ms
)
SELECT
  timestamp_millis(start_ms) AS bin_start,
  protocol,
  count(*) AS messages,
  count(wait_ms) AS picked_up,
  {_rank("p50_s", 0.5)},
  {_rank("p95_s", 0.95)},
  {_rank("p99_s", 0.99)},
  count(in_time) AS in_time,
  count(decided) AS decided,
  CAST(count(in_time) AS DOUBLE) / nullif(count(decided), 0) AS share_in_time,
  max(start_ms + bin_ms + within_ms) <= max(complete_ms) AS is_complete
FROM waits CROSS JOIN span
GROUP BY start_ms, protocol
""",
    ("bin_start", "protocol"),
)
STAGES: Final = View(
    "stages",
    "The first delivery and the removal of each message, where these lie in the span.",
    {"stage": f"{FIRST_DELIVERY}, or the reason for which the message left its queue"}
    | PROTOCOL
    | {"at_time": "when that was", "wait_ms": "how long after it was queued, milliseconds"},
    # Clocks may step back between two events: no wait is shorter than none.
    f"""
SELECT stage, protocol, at_time,
  greatest(unix_millis(at_time) - unix_millis(queued_at), 0) AS wait_ms
FROM (
  SELECT '{FIRST_DELIVERY}' AS stage, protocol, queued_at, first_delivered_at AS at_time
  FROM messages
  UNION ALL
  SELECT reason, protocol, queued_at, removed_at FROM messages
) AS reached
CROSS JOIN span
WHERE unix_millis(at_time) >= since_ms
""",
)
WAITS: Final = View(
    "waits",
    "How long messages waited until each stage.",
    {"stage": STAGES.columns["stage"]}
    | PROTOCOL
    | {
        "messages": "messages that reached the stage",
        "p50_s": "half of them waited at most this long, seconds",
        "p90_s": "nine of ten waited at most this long, seconds",
        "p99_s": "99 of 100 waited at most this long, seconds",
        "mean_s": "mean wait, seconds",
        "max_s": "longest wait, seconds",
    },
    f"""
SELECT
  stage,
  protocol,
  count(*) AS messages,
  {_rank("p50_s", 0.5)},
  {_rank("p90_s", 0.9)},
  {_rank("p99_s", 0.99)},
  avg(wait_ms) / 1000 AS mean_s,
  CAST(max(wait_ms) AS DOUBLE) / 1000 AS max_s
FROM stages
GROUP BY stage, protocol
""",
    ("stage", "protocol"),
)
WAIT_CLASSES: Final = View(
    "wait_classes",
    "The distribution of waits, in classes of equal width on a logarithmic scale.",
    {"stage": STAGES.columns["stage"]}
    | PROTOCOL
    | {
        "from_s": "the shortest wait of the class, seconds",
        "to_s": "the waits of the class are shorter than this, seconds",
        "messages": "messages",
    },
    f"""
SELECT
  stage,
  protocol,
  CASE WHEN class < 0 THEN 0.0e0 ELSE power(10.0e0, class / {BINS_PER_DECADE}) / 1000 END AS from_s,
  power(10.0e0, (class + 1) / {BINS_PER_DECADE}) / 1000 AS to_s,
  messages
FROM (
  SELECT stage, protocol, class, count(*) AS messages
  FROM (
    SELECT
      stage,
      protocol,
      CAST(CASE WHEN wait_ms < 1 THEN -1
        ELSE floor(log10(wait_ms) * {BINS_PER_DECADE}) END AS BIGINT) AS class
    FROM stages
  ) AS classed
  GROUP BY stage, protocol, class
) AS counted
""",
    ("stage", "protocol", "from_s"),
)
REDELIVERIES: Final = View(
    "redeliveries",
    "How often messages were handed out.",
    {
        "deliveries_from": "handed out at least this often",
        "deliveries_to": "and at most this often; null for no bound",
    }
    | PROTOCOL
    | {"messages": "messages"},
    f"""
SELECT
  CAST(CASE {_FROM} END AS BIGINT) AS deliveries_from,
  CAST(CASE {_TO} END AS BIGINT) AS deliveries_to,
  protocol,
  count(*) AS messages
FROM messages
WHERE deliveries > 0
GROUP BY 1, 2, 3
""",
    ("deliveries_from", "protocol"),
)
REDELIVERED: Final = View(
    "redelivered",
    "Messages that were handed out more than once.",
    {
        "message_id": "id of the message",
        "identity": "whose queue it is in",
    }
    | PROTOCOL
    | {
        "deliveries": "how often it was handed out",
        "size_bytes": "size of the payload, bytes",
        "queued_at": "when it was queued",
        "last_delivered_at": "when it was last handed out",
        "removed_at": "when it left the queue; null if it waits",
        "reason": "why it left the queue; null if it waits",
    },
    """
SELECT message_id, identity, protocol, deliveries, size_bytes, queued_at, last_delivered_at,
  removed_at, reason
FROM messages
WHERE deliveries > 1
""",
    ("-deliveries", "queued_at", "message_id"),
)
DELIVERIES: Final = View(
    "deliveries",
    "Messages that were handed out over time, by channel.",
    BIN
    | {
        "channel": "pickup/1.0, pickup/2.0, …; live (to an open session as it was queued), implicit"
        f" (as the answer of a request), {ENDPOINT_CHANNEL} (to the agent's endpoint)",
        "messages": "messages that were handed out; each time counts",
        "batches": "how often one or more were handed out together",
    }
    | COMPLETE,
    """
SELECT
  timestamp_millis(start_ms) AS bin_start,
  channel,
  CAST(sum(messages) AS BIGINT) AS messages,
  count(*) AS batches,
  max(start_ms + bin_ms) <= max(complete_ms) AS is_complete
FROM (
  SELECT unix_millis(recorded_at) - unix_millis(recorded_at) % bin_ms AS start_ms, channel,
    array_size(message_ids) AS messages
  FROM events CROSS JOIN span
  WHERE type = 'messages-delivered' AND unix_millis(recorded_at) >= since_ms
) AS batches
CROSS JOIN span
GROUP BY start_ms, channel
""",
    ("bin_start", "channel"),
)
ENDPOINTS: Final = View(
    "endpoints",
    "Deliveries to the endpoints of agents: each agent that has one, and what became of its"
    " messages. Why an attempt failed is only in the mediator's logs and metrics.",
    {
        "identity": "the agent",
        "endpoint": "where messages are sent to, by its newest connection",
        "messages": "messages of the span",
        "attempts": "how often they were handed out, all together",
        "delivered": "messages that left the queue delivered",
        "waiting": "messages that wait",
        "p50_s": "half of those delivered waited at most this long, seconds",
        "max_s": "the longest wait of those delivered, seconds",
    },
    f"""
WITH agents AS (
  SELECT stream, max_by(endpoint, version) AS endpoint
  FROM events WHERE type = 'connection-established' GROUP BY stream
),
lives AS (
  SELECT stream, identity, deliveries, reason,
    CASE WHEN reason = 'delivered'
      THEN greatest(unix_millis(removed_at) - unix_millis(queued_at), 0) END AS wait_ms
  FROM messages
)
SELECT
  lives.identity,
  agents.endpoint,
  count(*) AS messages,
  CAST(sum(lives.deliveries) AS BIGINT) AS attempts,
  count(lives.wait_ms) AS delivered,
  count(CASE WHEN lives.reason IS NULL THEN 1 END) AS waiting,
  {_rank("p50_s", 0.5)},
  CAST(max(wait_ms) AS DOUBLE) / 1000 AS max_s
FROM lives JOIN agents ON lives.stream = agents.stream
WHERE agents.endpoint <> ''
GROUP BY lives.identity, agents.endpoint
""",
    ("-waiting", "-messages", "identity"),
)
