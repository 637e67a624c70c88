"""All views, each after the views that it reads."""

from __future__ import annotations

from typing import Final

from projections.views import identities, messages, pickup, refusals

VIEWS: Final = (
    messages.BINS,
    messages.MESSAGES,
    messages.STAYS,
    messages.VOLUMES,
    messages.QUEUE_DEPTH,
    pickup.SERVICE_LEVEL,
    pickup.STAGES,
    pickup.WAITS,
    pickup.WAIT_CLASSES,
    pickup.REDELIVERIES,
    pickup.REDELIVERED,
    pickup.DELIVERIES,
    pickup.ENDPOINTS,
    identities.PAIRS,
    identities.SENDERS,
    identities.RECIPIENTS,
    identities.LABELS,
    identities.TENANT_VOLUMES,
    identities.GROWTH,
    identities.ACTIVITY,
    identities.COHORTS,
    identities.CHURN,
    identities.VISITS,
    refusals.REFUSALS,
    refusals.OVER_TIME,
    refusals.BY_KIND,
    refusals.REFUSED_SENDERS,
    refusals.ACCEPTANCE,
)
