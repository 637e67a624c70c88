"""Views of identities: senders and recipients, their growth, activity and churn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eventstore.log.signs_of_life import NOT_ASKED_FOR, TAKEN
from projections.views.view import COMPLETE, NAMED_SENDER, PROTOCOL, SENDER, View

GROWING: Final = ("registrations", "connections", "contracts", "keys")
UNKNOWN: Final = "(none)"
"""The tenant of identities without a tenant or a label."""
VISIT_MS: Final = 30 * 60_000
"""Acts less than this apart belong to one visit: the field's usual half hour."""
_LARGEST: Final = {"messages": "messages queued", "bytes": "their payloads, bytes"}
_QUEUED: Final = "FROM messages CROSS JOIN span WHERE unix_millis(queued_at) >= since_ms"
_KINDS: Final = ", ".join(f"('{what}')" for what in GROWING)
_BY_OWNERS: Final = (
    *("identity-registered", "contract-requests-acknowledged", "connection-established"),
    *("mediation-granted", "queue-policy-set", "event-saved", "event-tags-updated"),
    *("public-event-published", "public-events-deleted", "account-rotated", "agent-seen"),
)


def _texts(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_PICKED_UP: Final = (
    f"(type = 'messages-delivered' AND channel NOT IN ({_texts(sorted(NOT_ASKED_FOR))})"
    f" OR type = 'messages-removed' AND reason IN ({_texts(sorted(TAKEN))}))"
)
"""What the mediator sends without a request is picked up once it is accepted."""
_DONE_BY_OWNERS: Final = f"""(type IN ({_texts(_BY_OWNERS)}) OR {_PICKED_UP}
  OR type = 'push-device-set' AND channel <> ''
  OR type = 'keylist-updated' AND array_size(keys_added) > 0
  OR type = 'contract-stored' AND identity = recipient_did)"""
"""The mediator, too, removes a device; others may take a key over, and answer a request."""

PAIRS: Final = View(
    "pairs",
    "Messages that were queued in the span, for each sender and recipient.",
    {
        "sender_did": f"who sent them; {SENDER}",
        "identity": "whose queue they are for",
    }
    | PROTOCOL
    | _LARGEST,
    f"""
SELECT sender_did, identity, protocol, count(*) AS messages,
  CAST(sum(size_bytes) AS BIGINT) AS bytes
{_QUEUED}
GROUP BY sender_did, identity, protocol
""",
    ("-messages", "-bytes", "sender_did", "identity", "protocol"),
    is_basis=True,
)
SENDERS: Final = View(
    "senders",
    "How much each sender sent in the span.",
    {"identity": "the sender; rows of senders that are hidden, or whose name left, are left out"}
    | _LARGEST,
    f"""
SELECT sender_did AS identity, CAST(sum(messages) AS BIGINT) AS messages,
  CAST(sum(bytes) AS BIGINT) AS bytes
FROM pairs WHERE {NAMED_SENDER} GROUP BY sender_did
""",
    ("-messages", "-bytes", "identity"),
)
RECIPIENTS: Final = View(
    "recipients",
    "How much was queued for each recipient in the span.",
    {"identity": "whose queue it is"} | _LARGEST,
    """
SELECT identity, CAST(sum(messages) AS BIGINT) AS messages, CAST(sum(bytes) AS BIGINT) AS bytes
FROM pairs GROUP BY identity
""",
    ("-messages", "-bytes", "identity"),
)
LABELS: Final = View(
    "labels",
    "What each identity is counted under: its tenant by the operator's list, else the label that"
    " its agent gave itself.",
    {"identity": "the identity", "tenant": "its tenant, or its label"},
    """
WITH named AS (
  SELECT identity, max_by(label, version) AS label
  FROM events WHERE type = 'connection-established' GROUP BY identity
)
SELECT coalesce(tenants.identity, named.identity) AS identity,
  coalesce(tenants.tenant, named.label) AS tenant
FROM tenants FULL OUTER JOIN named ON tenants.identity = named.identity
WHERE coalesce(tenants.tenant, named.label) <> ''
""",
    ("identity",),
)
TENANT_VOLUMES: Final = View(
    "tenant_volumes",
    "Messages that were queued in the span, by the tenant of the recipient.",
    {
        "tenant": f"the tenant, or the label of the agent; {UNKNOWN} for neither",
        "identities": "recipients",
    }
    | _LARGEST,
    f"""
SELECT coalesce(labels.tenant, '{UNKNOWN}') AS tenant, count(*) AS identities,
  CAST(sum(messages) AS BIGINT) AS messages, CAST(sum(bytes) AS BIGINT) AS bytes
FROM recipients LEFT JOIN labels ON recipients.identity = labels.identity
GROUP BY coalesce(labels.tenant, '{UNKNOWN}')
""",
    ("-messages", "-bytes", "tenant"),
)
GROWTH: Final = View(
    "growth",
    "Identities, connections, contracts and keys over time.",
    {
        "at_time": "the time: where the span begins, and the end of each bin",
        "what": "registrations (identities that ever registered), connections (DIDComm agents that"
        " ever connected), contracts (ever stored) or keys (that have an owner now)",
        "change": "by how much the number grew since the previous time",
        "total": "the number",
    }
    | COMPLETE,
    # An owner may claim a key again: only the first of such claims changes the number.
    f"""
WITH changes AS (
  SELECT
    CASE type WHEN 'identity-registered' THEN 'registrations' ELSE 'connections' END AS what,
    min(unix_millis(recorded_at)) AS at_ms,
    1 AS change
  FROM events WHERE type IN ('identity-registered', 'connection-established')
  GROUP BY type, stream
  UNION ALL
  SELECT 'contracts', unix_millis(recorded_at), 1 FROM events WHERE type = 'contract-stored'
  UNION ALL
  SELECT 'keys', at_ms, claimed - lag(claimed, 1, 0) OVER (PARTITION BY stream ORDER BY version)
  FROM (
    SELECT stream, version, unix_millis(recorded_at) AS at_ms,
      CASE type WHEN 'key-claimed' THEN 1 ELSE 0 END AS claimed
    FROM events WHERE type IN ('key-claimed', 'key-released')
  ) AS claims
),
summed AS (
  SELECT
    what,
    CASE WHEN at_ms < since_ms THEN since_ms
      ELSE least(at_ms - at_ms % bin_ms + bin_ms, until_ms) END AS edge_ms,
    sum(change) AS change
  FROM changes CROSS JOIN span
  GROUP BY 1, 2
),
grid AS (
  SELECT edge_ms, what, edge_ms <= complete_ms AS is_complete
  FROM (
    SELECT since_ms AS edge_ms FROM span
    UNION ALL
    SELECT least(unix_millis(bin_end), until_ms) FROM bins CROSS JOIN span
  ) AS edges
  CROSS JOIN (VALUES {_KINDS}) AS kinds(what)
  CROSS JOIN span
)
SELECT
  timestamp_millis(grid.edge_ms) AS at_time,
  grid.what,
  CAST(CASE WHEN grid.edge_ms > since_ms THEN coalesce(summed.change, 0) ELSE 0 END AS BIGINT)
    AS change,
  CAST(sum(coalesce(summed.change, 0)) OVER (PARTITION BY grid.what ORDER BY grid.edge_ms)
    AS BIGINT) AS total,
  grid.is_complete
FROM grid
CROSS JOIN span
LEFT JOIN summed ON grid.what = summed.what AND grid.edge_ms = summed.edge_ms
""",
    ("at_time", "what"),
)
ACTIVITY: Final = View(
    "activity",
    "In which weeks each identity did something itself: registered, connected, picked messages up,"
    " changed what is kept for it, or sent a message that still names its sender.",
    {
        "identity": "the identity",
        "week": "the Monday on which the week begins, UTC",
    },
    f"""
SELECT DISTINCT identity, date_trunc('week', recorded_at) AS week
FROM events WHERE {_DONE_BY_OWNERS}
UNION
SELECT DISTINCT sender_did, date_trunc('week', recorded_at)
FROM events WHERE type = 'message-queued' AND {NAMED_SENDER}
""",
    ("identity", "week"),
    is_basis=True,
)
COHORTS: Final = View(
    "cohorts",
    "How many of the identities that were first active in one week were active in each later one.",
    {
        "cohort": "the week in which they were first active",
        "week": "the week in which activity is counted",
        "weeks_since": "weeks from the first to the second",
        "identities": "identities that were first active in the cohort's week",
        "active": "how many of them were active",
        "share": "active divided by identities",
    },
    """
WITH firsts AS (SELECT identity, min(week) AS cohort FROM activity GROUP BY identity),
sizes AS (SELECT cohort, count(*) AS identities FROM firsts GROUP BY cohort),
weekly AS (
  SELECT firsts.cohort, activity.week, count(*) AS active
  FROM activity JOIN firsts ON activity.identity = firsts.identity
  GROUP BY firsts.cohort, activity.week
)
SELECT
  weekly.cohort,
  weekly.week,
  CAST((unix_millis(weekly.week) - unix_millis(weekly.cohort)) / 604800000 AS BIGINT)
    AS weeks_since,
  sizes.identities,
  weekly.active,
  CAST(weekly.active AS DOUBLE) / sizes.identities AS share
FROM weekly JOIN sizes ON weekly.cohort = sizes.cohort
""",
    ("cohort", "week"),
)
CHURN: Final = View(
    "churn",
    "Identities that came, came back and stayed away, week by week.",
    {
        "week": "the Monday on which the week begins, UTC",
        "active": "identities that were active",
        "first_time": "those of them that had never been active before",
        "returned": "those of them that had been active earlier, but not in the previous week",
        "lapsed": "identities that were active in the previous week, and not in this one",
        "churn": "lapsed divided by the number active in the previous week; null if that is 0",
    }
    | COMPLETE,
    """
WITH weeks AS (
  SELECT
    identity,
    unix_millis(week) AS week_ms,
    lag(unix_millis(week)) OVER (PARTITION BY identity ORDER BY week) AS before_ms,
    lead(unix_millis(week)) OVER (PARTITION BY identity ORDER BY week) AS after_ms
  FROM activity
),
counted AS (
  SELECT week_ms, 1 AS active, CASE WHEN before_ms IS NULL THEN 1 ELSE 0 END AS first_time,
    CASE WHEN week_ms - before_ms > 604800000 THEN 1 ELSE 0 END AS returned, 0 AS lapsed,
    0 AS active_before
  FROM weeks
  UNION ALL
  SELECT week_ms + 604800000, 0, 0, 0,
    CASE WHEN after_ms = week_ms + 604800000 THEN 0 ELSE 1 END, 1
  FROM weeks
)
SELECT
  timestamp_millis(week_ms) AS week,
  CAST(sum(active) AS BIGINT) AS active,
  CAST(sum(first_time) AS BIGINT) AS first_time,
  CAST(sum(returned) AS BIGINT) AS returned,
  CAST(sum(lapsed) AS BIGINT) AS lapsed,
  CAST(sum(lapsed) AS DOUBLE) / nullif(sum(active_before), 0) AS churn,
  max(week_ms + 604800000) <= max(complete_ms) AS is_complete
FROM counted CROSS JOIN span
WHERE week_ms < complete_ms
GROUP BY week_ms
""",
    ("week",),
)
VISITS: Final = View(
    "visits",
    "Periods in which an identity picked up messages repeatedly. Sockets and their sessions are"
    " not in the log: an open session through which nothing goes is no visit. What is sent to it,"
    " or to an endpoint, counts once it is accepted.",
    {
        "identity": "the identity",
        "number": "which of its visits, from 1",
        "began_at": "its first pickup",
        "ended_at": "its last pickup",
        "pickups": "how often it got messages that it requested, or accepted or acknowledged some",
    },
    f"""
WITH acts AS (
  SELECT identity, unix_millis(recorded_at) AS at_ms
  FROM events CROSS JOIN span
  WHERE {_PICKED_UP} AND unix_millis(recorded_at) >= since_ms
),
marked AS (
  SELECT identity, at_ms,
    CASE WHEN at_ms - lag(at_ms) OVER (PARTITION BY identity ORDER BY at_ms) < {VISIT_MS}
      THEN 0 ELSE 1 END AS is_first
  FROM acts
),
numbered AS (
  SELECT identity, at_ms,
    CAST(sum(is_first) OVER (PARTITION BY identity ORDER BY at_ms) AS BIGINT) AS number
  FROM marked
)
SELECT identity, number, timestamp_millis(min(at_ms)) AS began_at,
  timestamp_millis(max(at_ms)) AS ended_at, count(*) AS pickups
FROM numbered
GROUP BY identity, number
""",
    ("identity", "number"),
)
