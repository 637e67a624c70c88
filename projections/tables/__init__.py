"""The projected tables, each a fold of the exported events in DataFrame operations.

``PROJECTIONS`` are all of them: every ``Projection`` that these modules declare.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from projections.tables import agents, contracts, identities, queues, saved_events, seals
from projections.tables.projection import FREQUENT, Projection

_DECLARED: Final = [
    value
    for module in (agents, contracts, identities, queues, saved_events, seals)
    for value in vars(module).values()
    if isinstance(value, Projection)
]
# Tables of frequent events take longest: they start first, and the others run beside them.
PROJECTIONS: Final = tuple(
    sorted(_DECLARED, key=lambda table: (FREQUENT.isdisjoint(table.reads), table.name))
)
"""All projections, in the order of their rebuild."""
_READERS: Final = Counter(kind for projection in PROJECTIONS for kind in projection.reads)
RARE: Final = frozenset(kind for kind, count in _READERS.items() if count > 1) - FREQUENT
"""The types of few events that several tables read. One table reads all types; types that no other
table reads are left out."""
