"""Views of refusals: queues that accepted no more messages, and commands that edges refused.

A queue records once that it begins to refuse; edges count every refused command and record sums
in the log once per period. A period counts at the time when its sums were recorded.
"""

from __future__ import annotations

from typing import Final

from projections.views.view import BIN, COMPLETE, View

QUEUES: Final = "queue"
COMMANDS: Final = "command"
REASONS_MAX: Final = 12
OTHER: Final = "other"
_REFUSED: Final = {"refused": f"{QUEUES} (one began to refuse) or {COMMANDS} (each is counted)"}
_KIND: Final = {
    "protocol": "decentrl or didcomm; empty for queues",
    "command": "the request; empty where it is not known",
}
_REASON: Final = {"reason": "code of the refusal"}

REFUSALS: Final = View(
    "refusals",
    "What was refused, to whom and why, over time.",
    BIN
    | _REFUSED
    | _KIND
    | _REASON
    | {"sender_did": "the sender if it is proven; else empty", "refusals": "how often"},
    f"""
WITH refused AS (
  SELECT unix_millis(recorded_at) AS at_ms, '{QUEUES}' AS refused, '' AS protocol, '' AS command,
    reason, '' AS sender_did, 1 AS refusals
  FROM events WHERE type = 'queue-refused'
  UNION ALL
  SELECT at_ms, '{COMMANDS}', entry.protocol, entry.command, entry.reason, entry.sender_did,
    entry.count
  FROM (
    SELECT unix_millis(recorded_at) AS at_ms, explode(refusals) AS entry
    FROM events WHERE type = 'refusals-counted'
  ) AS counted
)
SELECT timestamp_millis(at_ms - at_ms % bin_ms) AS bin_start, refused, protocol, command, reason,
  sender_did, CAST(sum(refusals) AS BIGINT) AS refusals
FROM refused CROSS JOIN span
WHERE at_ms >= since_ms
GROUP BY at_ms - at_ms % bin_ms, refused, protocol, command, reason, sender_did
""",
    ("bin_start", "refused", "protocol", "command", "reason", "sender_did"),
    is_basis=True,
)
OVER_TIME: Final = View(
    "refusals_over_time",
    "Refusals over time, by reason.",
    BIN
    | _REFUSED
    | {
        "reason": f"code of the refusal; {OTHER} for all but the {REASONS_MAX} most frequent",
        "refusals": "how often",
    }
    | COMPLETE,
    f"""
WITH ranked AS (
  SELECT reason, row_number() OVER (ORDER BY sum(refusals) DESC, reason) AS place
  FROM refusals GROUP BY reason
)
SELECT
  bins.bin_start,
  refusals.refused,
  CASE WHEN place <= {REASONS_MAX} THEN refusals.reason ELSE '{OTHER}' END AS reason,
  CAST(sum(refusals.refusals) AS BIGINT) AS refusals,
  bins.is_complete
FROM refusals
JOIN ranked ON refusals.reason = ranked.reason
JOIN bins ON refusals.bin_start = bins.bin_start
GROUP BY 1, 2, 3, 5
""",
    ("bin_start", "refused", "reason"),
)
BY_KIND: Final = View(
    "refusals_by_kind",
    "Refusals in the span, by what was refused and why.",
    _REFUSED | _KIND | _REASON | {"refusals": "how often"},
    """
SELECT refused, protocol, command, reason, CAST(sum(refusals) AS BIGINT) AS refusals
FROM refusals GROUP BY refused, protocol, command, reason
""",
    ("-refusals", "refused", "protocol", "command", "reason"),
)
REFUSED_SENDERS: Final = View(
    "refused_senders",
    "Refusals in the span, by sender and reason.",
    {"sender_did": "the sender, which is proven"} | _REASON | {"refusals": "how often"},
    """
SELECT sender_did, reason, CAST(sum(refusals) AS BIGINT) AS refusals
FROM refusals WHERE sender_did <> '' GROUP BY sender_did, reason
""",
    ("-refusals", "sender_did", "reason"),
)
ACCEPTANCE: Final = View(
    "acceptance",
    "Refusals against accepted traffic over time.",
    BIN
    | {
        "accepted": "messages that were queued",
        "commands_refused": "commands that edges refused, messages or not",
        "queues_refusing": "how often a queue began to refuse messages",
        "share_refused": "commands_refused divided by its sum with accepted; null if that is 0",
    }
    | COMPLETE,
    f"""
WITH accepted AS (
  SELECT bin_start, sum(queued) AS accepted FROM volumes GROUP BY bin_start
),
refused AS (
  SELECT bin_start,
    sum(CASE refused WHEN '{COMMANDS}' THEN refusals ELSE 0 END) AS commands_refused,
    sum(CASE refused WHEN '{QUEUES}' THEN refusals ELSE 0 END) AS queues_refusing
  FROM refusals GROUP BY bin_start
)
SELECT
  bins.bin_start,
  CAST(coalesce(accepted, 0) AS BIGINT) AS accepted,
  CAST(coalesce(commands_refused, 0) AS BIGINT) AS commands_refused,
  CAST(coalesce(queues_refusing, 0) AS BIGINT) AS queues_refusing,
  CAST(coalesce(commands_refused, 0) AS DOUBLE)
    / nullif(coalesce(commands_refused, 0) + coalesce(accepted, 0), 0) AS share_refused,
  bins.is_complete
FROM bins
LEFT JOIN accepted ON bins.bin_start = accepted.bin_start
LEFT JOIN refused ON bins.bin_start = refused.bin_start
""",
    ("bin_start",),
)
